"""A plugin for launches: a second is all that a case at context 16 gets."""

import pytest

from perf_tests_suite.perf_tests.run.ends import Timeout


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    timeout = session.config.pluginmanager.getplugin("case timeout")
    assert isinstance(timeout, Timeout)
    timeout.least_seconds = 1.0
    timeout.predict = lambda item: 0.0 if "ctx16" in item.nodeid else 1000.0
