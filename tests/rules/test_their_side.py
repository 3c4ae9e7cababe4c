"""How calls of a user's test are timed and counted, without a session of pytest around them."""

import gc
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.perf_tests.interleaved import their_side as module
from perf_tests_suite.perf_tests.interleaved.measuring import ROUND_SECONDS, calls_of_a_round
from perf_tests_suite.perf_tests.interleaved.their_counters import counted, forget_what_is_compiled
from perf_tests_suite.perf_tests.interleaved.their_side import Calls


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still until somebody works."""
    clock = SimpleNamespace(now=0.0)
    reads = Mock(perf_counter=lambda: clock.now, process_time=lambda: clock.now / 2)
    monkeypatch.setattr(module, "time", reads)
    return clock


def test_a_round_times_its_calls_and_nothing_that_is_set_up_or_torn_down(clock: SimpleNamespace) -> None:
    done = []

    def works(kind: str, seconds: float, result: object = None) -> object:
        clock.now += seconds
        done.append(kind)
        return result

    calls = Calls(lambda value: works(f"call {value}", 3.0, value), (7,))
    assert (calls.round(4), done, calls.result) == ((12.0, 6.0), ["call 7"] * 4, 7)
    done.clear()
    calls = Calls(
        lambda value: works(f"call {value}", 3.0), setup=lambda: works("set up", 50.0, ((8,), {})),
        teardown=lambda value: works(f"tear down {value}", 70.0),
    )  # fmt: skip
    assert calls.round(2) == (6.0, 3.0)
    assert done == ["set up", "call 8", "tear down 8"] * 2
    with pytest.raises(TypeError, match="`setup` returns the arguments"):
        Calls(works, ("twice", 0), setup=lambda: ((8,), {})).round(1)


def test_collections_and_tracers_are_as_the_test_asks_and_as_before_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    was, before = gc.isenabled(), sys.gettrace()
    try:
        gc.enable()
        for disable_gc in (False, True):
            Calls(lambda: seen.append(gc.isenabled()), disable_gc=disable_gc).round(1)
        sys.settrace(lambda *_: None)
        Calls(lambda: seen.append(sys.gettrace() is None)).round(1)
        assert sys.gettrace() is not None
        assert (seen, gc.isenabled()) == ([True, False, True], True)
    finally:
        sys.settrace(before)
        (gc.enable if was else gc.disable)()


def test_the_device_is_idle_at_both_readings(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a GPU that takes two seconds for what it is given."""

    def wait() -> None:
        clock.now += queued.pop() if queued else 0.0

    queued = [100.0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    assert Calls(lambda: queued.append(2.0)).round(1) == (2.0, 1.0)
    assert module.uses_gpu()


@pytest.mark.parametrize(
    ("call_seconds", "whole_seconds", "calls"),
    [
        (1.0, 1.0, 1), (ROUND_SECONDS, ROUND_SECONDS, 1), (ROUND_SECONDS / 7, ROUND_SECONDS / 7, 7),
        (1e-6, 1e-6, 5000), (1e-6, ROUND_SECONDS, 10), (1e-6, 1.0, 1), (0.0, 0.0, 5_000_000),
    ],
)  # fmt: skip
def test_short_calls_are_grouped_as_far_as_their_set_up_allows(
    call_seconds: float, whole_seconds: float, calls: int
) -> None:
    assert calls_of_a_round(call_seconds, whole_seconds) == calls


def test_counters_are_of_one_call_and_none_where_calls_differ_or_run_no_operation() -> None:
    forget_what_is_compiled()  # by tests before
    left = torch.ones(4, 8, requires_grad=True)
    (left @ left.T).sum().backward()  # else the first call makes the gradient, and the second adds to it
    found = counted(lambda: (left @ left.T).sum().backward())
    assert found["counters"]["executed_flops"] == 3 * 2 * 4 * 4 * 8
    assert found["counters"]["kernel_launches"] > 3
    grown = [left.detach()]
    assert counted(lambda: grown.append(torch.cat(grown)))["reason"] == "two of its calls run other operations"
    assert counted(lambda: sum(range(9))) == {"counters": None, "reason": ""}
    assert "ZeroDivisionError" in counted(lambda: 1 // 0)["reason"]


def test_a_call_that_compiles_is_not_counted_where_there_may_be_marks() -> None:
    forget_what_is_compiled()
    assert counted(lambda: None) == {"counters": None, "reason": ""}
    plus_one = torch.compile(lambda x: x + 1, backend="eager")
    plus_one(torch.ones(2))
    assert counted(lambda: plus_one(torch.ones(2))) == {"compiles": True}
    forget_what_is_compiled()
    assert counted(lambda: None) == {"counters": None, "reason": ""}
    plus_one(torch.ones(2))
    assert counted(lambda: plus_one(torch.ones(2))) == {"compiles": True}, "as by the first test that calls it"


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("ImportError while loading conftest '/x/conftest.py'.\nx:1: in <module>\nE   KeyError: 'a'\n",
         "ImportError while loading conftest '/x/conftest.py': KeyError: 'a'"),
        ("ERROR: usage: a [options]\na: error: unrecognized arguments: --x\n  inifile: y\n",
         "unrecognized arguments: --x"),
        ("ERROR: file or directory not found: z\n\nno tests ran in 0.1s\n", "file or directory not found: z"),
    ],
)  # fmt: skip
def test_the_reason_why_pytest_ran_nothing_is_what_it_said_of_it(printed: str, why: str) -> None:
    assert module._why_nothing_ran(printed) == why
