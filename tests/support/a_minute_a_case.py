"""A plugin for launches with a time limit: no time passes but a minute in each case."""

from collections.abc import Generator

import pytest

from perf_tests.run.ends import TIME_LIMIT

minutes = 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    global minutes
    minutes += 1
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    limit = session.config.stash[TIME_LIMIT]
    assert limit is not None
    limit.now = lambda: 60.0 * minutes
