"""A pytest plugin for tests: with PLANTED_DEATH set, the process ends without a word when the last case begins."""

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    if os.environ.get("PLANTED_DEATH") and item is item.session.items[-1]:
        os._exit(17)
    return (yield)
