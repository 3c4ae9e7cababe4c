"""A plugin: after PLANTED_RESTARTS rank 1 dies after the last case, and rank 0 saves when torchrun has told it so."""

import os
import time

import pytest

from perf_tests_suite.perf_tests.run.termination import termination_of

PATIENCE_SECONDS = 30


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != os.environ["PLANTED_RESTARTS"]:
        return
    if os.environ["RANK"] == "1":
        os._exit(17)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while termination_of(session.config).came is None and time.monotonic() < deadline:
        time.sleep(0.01)
