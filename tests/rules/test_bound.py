"""Clocks and judges are those of before code of the user's ran; CPU time misses no thread; late work is seen."""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from perf_tests.bench import outcomes
from perf_tests.bench.loop import Row, TimedMeasure
from perf_tests.bench.models import load_attentions
from perf_tests.bench.outcomes import SuspiciousError
from perf_tests.bench.workbench import Workbench
from perf_tests.hardware import bound
from perf_tests.hardware.bound import ProcessClock, bind, late_work, put_back, shares_memory, unbind
from perf_tests.hardware.clock import Clock
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


LOOP = "perf_tests.bench.loop"
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
    "perf_tests.bench.outcomes.ImpossibleError": lambda: setattr(outcomes, "ImpossibleError", ValueError),
    f"{LOOP}.Row.of": lambda: setattr(Row, "of", nothing),
    "perf_tests.hardware.bound.time": lambda: setattr(bound, "time", SimpleNamespace()),
    LOOP: lambda: sys.modules.update({LOOP: Mock()}),
    "perf_tests.bench.outcomes.why_too_large": change_code,
}


@pytest.mark.usefixtures("genuine")
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_replaced_is_named_and_put_back(name: str) -> None:
    PLANTED[name]()
    assert [one for one in put_back() if not one.startswith("tests.")] == [name]
    assert put_back() == []


@pytest.mark.usefixtures("genuine")
def test_compiling_and_training_replace_nothing_and_work_on_nowhere() -> None:
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    output = torch.compile(lambda one: layer(one).relu(), backend="eager")(torch.ones(2, 4))
    output.sum().backward()
    optimizer.step()
    assert late_work(output) == late_work(layer.weight) == late_work(output.T[:, :1].expand(4, 9)) == []
    assert late_work(torch.full((4,), float("nan"))) == late_work(torch.zeros(0)) == late_work(None) == []


class Lazy(Tensor):
    """Would compute at its first use."""


@pytest.mark.usefixtures("genuine")
def test_a_thread_that_works_on_a_late_write_and_a_lazy_output_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    output, ends = torch.zeros(300_000), threading.Event()
    waits = threading.Thread(target=ends.wait)
    works = threading.Thread(target=lambda: [None for _ in iter(ends.is_set, True)], name="afterwards")
    for thread in (waits, works):
        thread.start()
    try:
        assert late_work(output) == ["the thread 'afterwards', which it started, works between the rounds"]
    finally:
        ends.set()
        for thread in (waits, works):
            thread.join()
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


# CPU time of several threads.


class TickingKernel:
    """Threads that compute all the time; the process's clock knows of others than the caller what their tick said."""

    TICK = 0.004

    def __init__(self) -> None:
        self.now, self.ended, self.listed = 0.0, 0.0, 0
        self.began = {1: 0.0}
        self.told = {1: 0.0}

    def start(self, thread: int) -> None:
        self.began[thread], self.told[thread] = self.now, 0.0

    def end(self, thread: int) -> None:
        """Its time joins that of the process, to the nanosecond."""
        self.ended += self.now - self.began.pop(thread)
        del self.told[thread]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for thread, began in self.began.items():
            self.told[thread] = max(self.told[thread], (self.now - began) // self.TICK * self.TICK)

    def clock_gettime(self, clock: int) -> float:
        thread = ~(clock >> 3)
        if clock & 7 != 6 or thread not in self.began:
            raise OSError("no such thread")
        self.told[thread] = self.now - self.began[thread]
        return self.told[thread]

    def process_time(self) -> float:
        self.clock_gettime((~1 << 3) | 6)
        return self.ended + sum(self.told.values())

    def listdir(self, path: str) -> list[str]:
        self.listed += 1
        return list(map(str, self.began))

    def read_by(self, clock: ProcessClock) -> ProcessClock:
        clock._stat = Mock(side_effect=lambda path: SimpleNamespace(st_nlink=2 + len(self.began)))
        clock._list = self.listdir  # type: ignore[assignment]
        clock._read, clock._sum = self.clock_gettime, self.process_time
        return clock


def test_cpu_time_has_no_ticks_and_loses_no_thread_that_ends_between_two_readings() -> None:
    kernel = TickingKernel()
    clock = kernel.read_by(ProcessClock())
    kernel.start(2)
    readings = [clock()]
    for seconds in (0.001, 0.0015, 0.0005):
        kernel.pass_time(seconds)
        assert kernel.process_time() - readings[-1] == pytest.approx(seconds), "one of two threads: the other's is late"
        readings.append(clock())
        assert readings[-1] - readings[-2] == pytest.approx(2 * seconds)
    assert kernel.listed == 1, "threads are listed again only where they changed"
    kernel.end(2)
    kernel.start(3)  # as many threads as before
    kernel.pass_time(0.001)
    assert clock() - readings[-1] == pytest.approx(0.002)
    kernel.start(4)
    kernel.pass_time(0.001)
    kernel.end(4)
    kernel.pass_time(0.001)
    assert clock() - readings[-1] == pytest.approx(0.002 + 0.003 + 0.002)


def test_cpu_time_on_this_machine_is_the_processs_own_as_it_is_without_proc() -> None:
    clock, before = ProcessClock(), time.process_time()
    assert before <= clock() <= time.process_time()
    clock._stat, clock._sum = Mock(side_effect=FileNotFoundError), lambda: 7.0
    assert clock() == 7.0


# Where code of the user's is refused.


USERS = attention_case(attention="kernels/flash.py:attend")


def rounds_of(target: Callable[[], object], case: Any, data: float = 1.0) -> list[str]:
    """Return the flags of three rounds of a second each, or what code of the user's is accused of."""
    device = QueueDevice()
    clock, benchmark = Clock(device), LoopBenchmark()
    benchmark.stats = {"median": data, "data": [data] * 3}

    def one_round() -> object:
        device.launch(1.0)
        return target()

    def pedantic(target: Callable[[], None], *, setup: Callable[[], None], rounds: int) -> None:
        for _ in range(rounds):
            setup()
            clock()
            target()
            clock()

    measure = TimedMeasure(benchmark, clock, device, 3, 1, Row(case), inputs=(INPUT,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf_tests.hardware.clock.time", device)
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
    (lambda: None, "", ""),
    (lambda: torch.set_float32_matmul_precision("high"), "conditions_changed", "It changed float32_matmul_precis"),
    (lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"), "conditions_changed", TF32),
    (lambda: INPUT.view(2, 2), "shares_memory", "Its output lies in the memory of an input"),
    (lambda: torch.zeros(4).as_subclass(Lazy), "late_work", "Not all of its work is in its time: its output is a"),
    (lambda: setattr(torch, "equal", lambda *two: True), "replaced", "It replaced torch.equal, by which"),
]


@pytest.mark.parametrize("target, flag, words", FLAGGED)
def test_what_is_a_flag_of_our_row_refuses_code_of_the_users(
    target: Callable[[], object], flag: str, words: str
) -> None:
    (said,) = rounds_of(target, USERS) or [""]
    assert (said[: len(words)], bool(said)) == (words, bool(words))
    watched = flag in ("conditions_changed", "replaced", "shares_memory")  # no thread of the suite's own is looked at
    assert rounds_of(target, attention_case()) == ([flag] if watched else [])


def test_a_file_that_replaces_things_on_import_blames_no_other(tmp_path: Path) -> None:
    lines = "def attend(q, k, v): return v\nanother = attend\n"
    (tmp_path / "honest.py").write_text(lines)
    (tmp_path / "cheat.py").write_text(f"import time\ntime.perf_counter = lambda: 0.0\n{lines}")
    cases = {
        name: attention_case(attention=f"{tmp_path}/{name}")
        for name in ("honest.py:attend", "cheat.py:attend", "cheat.py:another")
    }
    bind()
    try:
        replaced_by = load_attentions(cases.values())
        assert put_back() == []
    finally:
        put_back()
        unbind()
    workbench = Workbench(Mock(), Mock(torch_device=CPU), Mock(), 2**40, replaced_by=replaced_by)
    found = {name: workbench.why_not(case) for name, case in cases.items()}
    assert found.pop("honest.py:attend") is None
    assert [refusal and refusal.outcome for refusal in found.values()] == ["suspicious"] * 2


def test_what_is_copied_to_look_for_late_work_is_in_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr("perf_tests.bench.loop.late_work", lambda output: looked.append(output))
    monkeypatch.setattr(QueueDevice, "peaks", lambda device: (100 + 1000 * len(looked), None, None))
    device, benchmark = QueueDevice(), LoopBenchmark()
    TimedMeasure(benchmark, Clock(device), device, 3, 1, Row(USERS))(lambda: "output")
    assert (looked, benchmark.extra_info["peak_allocated_bytes"]) == (["output"], 100)


def test_times_that_a_second_clock_contradicts_are_refused() -> None:
    """Whoever changed them: the clock, its fixture or its figures."""
    (said,) = rounds_of(lambda: None, USERS, data=1 / 3)
    assert "took 1 s by one clock and 3 s by a second one" in said


def test_a_function_that_replaces_things_on_import_is_not_measured_and_the_suites_own_is() -> None:
    workbench = Workbench(Mock(), Mock(torch_device=CPU), Mock(), 2**40, replaced=["time.perf_counter"])
    refusal = workbench.why_not(USERS)
    assert refusal is not None
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

    ends = threading.Event()
    works = threading.Thread(target=lambda: [hashlib.sha256(bytes(2**20)) for _ in iter(ends.is_set, True)])
    works.start()
    try:
        clock = ProcessClock()
        readings = [(of_threads(), clock(), of_threads()) for _ in range(200)]
    finally:
        ends.set()
        works.join()
    least = max(whole - after for _, whole, after in readings)
    most = min(whole - before for before, whole, _ in readings)
    assert least <= most + 1e-6, "nanoseconds as floats"
