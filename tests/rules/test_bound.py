"""Clocks and judges are those of before code of the user's ran; CPU time misses no thread; late work is seen."""

import hashlib
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from perf_tests_suite.perf_tests.bench import outcomes
from perf_tests_suite.perf_tests.bench.loop import RowBuilder, TimedMeasure
from perf_tests_suite.perf_tests.bench.models import load_attentions
from perf_tests_suite.perf_tests.bench.outcomes import SuspiciousError
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.hardware import bound
from perf_tests_suite.perf_tests.hardware.bound import bind, late_work, put_back, shares_memory, unbind
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.clocks import ProcessClock
from tests.support.example_cases import CPU, attention_case
from tests.support.fake_device import LoopBenchmark, QueueDevice


@pytest.fixture
def genuine() -> Iterator[None]:
    bind()
    yield
    assert put_back() == []
    unbind()


def change_code() -> None:
    outcomes.why_too_large.__code__ = (lambda case, budget_bytes, earlier, of_what="": None).__code__


def nothing(*anything: object, **named: object) -> None:
    """Takes the place of anything."""


LOOP = "perf_tests_suite.perf_tests.bench.loop"
PLANTED: dict[str, Callable[[], object]] = {
    "time.perf_counter": lambda: setattr(time, "perf_counter", nothing),
    "time.clock_gettime": lambda: setattr(time, "clock_gettime", nothing),
    "torch.allclose": lambda: setattr(torch, "allclose", nothing),
    "torch.Tensor.isfinite": lambda: setattr(Tensor, "isfinite", lambda one: one == one),
    "torch.Tensor.backward": lambda: setattr(Tensor, "backward", nothing),
    "torch.autograd.grad": lambda: setattr(torch.autograd, "grad", nothing),
    "torch.testing.assert_close": lambda: setattr(torch.testing, "assert_close", nothing),
    "torch.cuda.synchronize": lambda: setattr(torch.cuda, "synchronize", nothing),
    "torch.cuda.Event.elapsed_time": lambda: setattr(torch.cuda.Event, "elapsed_time", nothing),
    "perf_tests_suite.perf_tests.bench.outcomes.ImpossibleError": lambda: setattr(
        outcomes, "ImpossibleError", ValueError
    ),
    f"{LOOP}.RowBuilder.of": lambda: setattr(RowBuilder, "of", nothing),
    "perf_tests_suite.perf_tests.hardware.bound.time": lambda: setattr(bound, "time", SimpleNamespace()),
    LOOP: lambda: sys.modules.update({LOOP: Mock()}),
    "perf_tests_suite.perf_tests.bench.outcomes.why_too_large": change_code,
}


@pytest.mark.usefixtures("genuine")
def test_what_is_replaced_is_named_and_put_back() -> None:
    for name, replace in PLANTED.items():
        replace()
        assert [one for one in put_back() if not one.startswith("tests.")] == [name]
        assert put_back() == []


@pytest.mark.usefixtures("genuine")
def test_compiling_and_training_replace_nothing_and_work_on_nowhere() -> None:
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    output = torch.compile(lambda one: layer(one).relu(), backend="eager")(torch.ones(2, 4))
    output.sum().backward()
    optimizer.step()
    others = output.T[:, :1].expand(4, 9), torch.full((4,), float("nan")), torch.zeros(0), None
    assert [late_work(one) for one in (output, layer.weight, *others)] == [[]] * 6


class Lazy(Tensor):
    """Would compute at its first use."""


@contextmanager
def threads(works: Callable[[], object]) -> Iterator[None]:
    """Two threads until the end: one that waits, and one that does this again and again."""
    ends = threading.Event()
    busy = threading.Thread(target=lambda: [works() for _ in iter(ends.is_set, True)], name="afterwards")
    started = [threading.Thread(target=ends.wait), busy]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in started:
            thread.join()


@pytest.mark.usefixtures("genuine")
def test_a_thread_that_works_on_a_late_write_and_a_lazy_output_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    output = torch.zeros(300_000)
    with threads(nothing):
        found = late_work(output)
    assert found == ["the thread 'afterwards', which it started, works between the rounds"]
    lazy = "its output is a Lazy, a subclass of torch.Tensor that may compute it later"
    assert late_work(output.as_subclass(Lazy)) == [lazy]
    monkeypatch.setattr(bound, "time", Mock(sleep=lambda seconds: output.view(2, -1)[1].add_(1)))
    assert late_work(output) == ["its output is written after the clock was read"]
    monkeypatch.undo()


def test_an_output_in_the_memory_of_an_input_is_told_from_one_of_its_own() -> None:
    q, k = torch.zeros(2, 8), torch.zeros(2, 8)
    assert shares_memory(k[1:].T, (q, k))
    assert not shares_memory(k + 1, (q, k))
    assert not shares_memory(None, (q, k))


class LateKernel:
    """Threads that compute all the time; of others than the caller the process's clock knows what theirs last said."""

    def __init__(self) -> None:
        self.now, self.ended, self.began = 0.0, 0.0, {1: 0.0}
        self.told = defaultdict[int, float](float)
        self.clock, self.listed = ProcessClock(), Mock(side_effect=lambda path: list(map(str, self.began)))
        self.clock._stat = Mock(side_effect=lambda path: SimpleNamespace(st_nlink=2 + len(self.began)))
        self.clock._list, self.clock._read, self.clock._sum = self.listed, self.clock_gettime, self.process_time

    def end(self, thread: int) -> None:
        """Its time joins that of the process, to the nanosecond."""
        self.ended += self.now - self.began.pop(thread)
        self.told.pop(thread, None)

    def clock_gettime(self, clock: int) -> float:
        thread = ~(clock >> 3)
        if clock & 7 != 6 or thread not in self.began:
            raise OSError("no such thread")
        self.told[thread] = self.now - self.began[thread]
        return self.told[thread]

    def process_time(self) -> float:
        self.clock_gettime((~1 << 3) | 6)
        return self.ended + sum(self.told.values())


def test_cpu_time_has_no_ticks_and_loses_no_thread_that_ends_between_two_readings() -> None:
    kernel = LateKernel()
    kernel.began[2] = 0.0
    readings = [kernel.clock()]
    for seconds in (0.001, 0.0015, 0.0005):
        kernel.now += seconds
        assert kernel.process_time() - readings[-1] == pytest.approx(seconds), "one of two threads: the other's is late"
        readings.append(kernel.clock())
        assert readings[-1] - readings[-2] == pytest.approx(2 * seconds)
    assert kernel.listed.call_count == 1, "threads are listed again only where they changed"
    kernel.end(2)
    kernel.began[3] = kernel.now  # as many threads as before
    kernel.now += 0.001
    assert kernel.clock() - readings[-1] == pytest.approx(0.002)
    kernel.began[4] = kernel.now
    kernel.now += 0.001
    kernel.end(4)
    kernel.now += 0.001
    assert kernel.clock() - readings[-1] == pytest.approx(0.002 + 0.003 + 0.002)


def test_cpu_time_without_proc_is_the_processs_own() -> None:
    clock = ProcessClock()
    clock._stat, clock._sum = Mock(side_effect=FileNotFoundError), lambda: 7.0
    assert clock() == 7.0


USERS = attention_case(attention="kernels/flash.py:attend")


def rounds_of(target: Callable[[], object], case: Any, data: float = 1.0) -> list[str]:
    """Return the flags of three rounds of a second each, or what code of the user's is accused of."""
    device, benchmark = QueueDevice(), LoopBenchmark()
    clock = Clock(device)
    benchmark.stats = {"median": data, "data": [data] * 3}

    def one_round() -> object:
        device.launch(1.0)
        return target()

    def pedantic(target: Callable[[], None], *, setup: Callable[[], None], rounds: int) -> None:
        steps: list[Callable[[], object]] = [setup, clock, target, clock]
        for step in steps * rounds:
            step()

    measure = TimedMeasure(benchmark, clock, device, 3, 1, RowBuilder(case), inputs=(INPUT,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf_tests_suite.perf_tests.hardware.clock.time", device)
        patch.setattr(benchmark, "pedantic", pedantic)
        bind()
        try:
            measure(one_round)
        except SuspiciousError as error:
            return [str(error)]
        finally:
            put_back()
            unbind()
            torch.set_float32_matmul_precision("highest")
    return list(benchmark.extra_info["flags"])


INPUT = torch.zeros(4)
TF32 = "It changed float32_matmul_precision from highest to set in two ways"
FLAGGED: list[tuple[Callable[[], object], str, str]] = [
    (lambda: None, "", "unchecked"),
    (lambda: torch.set_float32_matmul_precision("high"), "conditions_changed", "It changed float32_matmul_precis"),
    (lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"), "conditions_changed", TF32),
    (lambda: INPUT.view(2, 2), "shares_memory", "Its output lies in the memory of an input"),
    (lambda: torch.zeros(4).as_subclass(Lazy), "late_work", "Not all of its work is in its time: its output is a"),
    (lambda: setattr(torch, "equal", lambda *two: True), "replaced", "It replaced torch.equal, by which"),
]


def test_what_is_a_flag_of_our_row_refuses_code_of_the_users() -> None:
    for target, flag, words in FLAGGED:
        (said,) = rounds_of(target, USERS) or [""]
        assert (said[: len(words)], bool(said)) == (words, bool(words))
        watched = flag in ("conditions_changed", "replaced", "shares_memory")  # no thread of the suite's is looked at
        assert rounds_of(target, attention_case()) == ([flag] if watched else [])


def workbench_with(**found: Any) -> Workbench:
    return Workbench(Mock(), Mock(torch_device=CPU), Mock(), 2**40, **found)


def test_a_file_that_replaces_things_on_import_blames_no_other(tmp_path: Path) -> None:
    lines = "def attend(q, k, v): return v\nanother = attend\n"
    (tmp_path / "honest.py").write_text(lines)
    (tmp_path / "cheat.py").write_text(f"import time\ntime.perf_counter = lambda: 0.0\n{lines}")
    names = ("honest.py:attend", "cheat.py:attend", "cheat.py:another")
    cases = [attention_case(attention=f"{tmp_path}/{name}") for name in names]
    bind()
    try:
        replaced_by = load_attentions(cases)
        assert put_back() == []
    finally:
        put_back()
        unbind()
    refusals = [workbench_with(replaced_by=replaced_by).why_not(case) for case in cases]
    assert [refusal and refusal.outcome for refusal in refusals] == [None, "suspicious", "suspicious"]


def test_what_is_copied_to_look_for_late_work_is_in_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr("perf_tests_suite.perf_tests.bench.loop.late_work", lambda output: looked.append(output))
    monkeypatch.setattr(QueueDevice, "peaks", lambda device: (100 + 1000 * len(looked), None, None))
    device, benchmark = QueueDevice(), LoopBenchmark()
    TimedMeasure(benchmark, Clock(device), device, 3, 1, RowBuilder(USERS))(lambda: "output")
    assert (looked, benchmark.extra_info["peak_allocated_bytes"]) == (["output"], 100)


def test_times_that_a_second_clock_contradicts_are_refused() -> None:
    """Whoever changed them: the clock, its fixture or its figures."""
    (said,) = rounds_of(lambda: None, USERS, data=1 / 3)
    assert "took 1 s by one clock and 3 s by a second one" in said


def test_a_function_that_replaces_things_on_import_is_not_measured_and_the_suites_own_is() -> None:
    workbench = workbench_with(replaced=["time.perf_counter"])
    refusal: Any = workbench.why_not(USERS)
    assert (refusal.outcome, "It replaced time.perf_counter" in refusal.reason) == ("suspicious", True)
    assert workbench.why_not(attention_case()) is None


def test_a_time_servers_correction_is_known_and_a_slower_clock_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    for rate, excused in ((1.0, 1.0), (0.92, 0.92), (1.08, 1.08), (0.5, 1.0), (3.0, 1.0)):
        clocks = Mock(perf_counter=lambda rate=rate: rate * sum(slept), raw=lambda: sum(slept), sleep=slept.append)
        monkeypatch.setattr(bound, "time", clocks)
        assert bound.rate_of_clocks() == pytest.approx(excused)


def test_on_this_machine_cpu_time_is_the_sum_of_its_threads_while_one_of_them_computes() -> None:
    """Less the time of ended threads, which is the same in all readings: each must lie between two sums around it."""
    if not Path("/proc/self/task").exists():
        pytest.skip("no /proc")

    def of_threads() -> float:
        clocks = [(~int(thread) << 3) | 6 for thread in os.listdir("/proc/self/task")]
        return sum(map(time.clock_gettime, clocks))

    with threads(lambda: hashlib.sha256(bytes(2**20))):
        clock = ProcessClock()
        readings = [(of_threads(), clock(), of_threads()) for _ in range(200)]
    least = max(whole - after for _, whole, after in readings)
    most = min(whole - before for before, whole, _ in readings)
    assert least <= most + 1e-6, "nanoseconds as floats"
