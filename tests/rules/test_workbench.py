"""What a run says of its own time."""

import time
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests.bench.workbench import WORK, Workbench


def test_work_inside_of_other_work_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that counts its case: otherwise the shares of a run add up to more than all of it."""
    readings = iter([0.0, 10.0, 14.0, 20.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    anything: Any = Mock()
    workbench = Workbench(anything, anything, anything, 2**40)
    with workbench.spending("passes"), workbench.spending("counting"):
        pass
    assert workbench.spent_seconds == dict.fromkeys(WORK, 0) | {"counting": 4, "passes": 16}
