"""Inside a worker: pytest runs the benchmarks, and each hands its rounds out one request at a time."""

import gc
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES
from perf_tests.bench.outcomes import outcome_of_report
from perf_tests.bench.stash import CASE, OUTCOME, SERVED_MEASURE, SETTINGS, WORKBENCH
from perf_tests.bench.workbench import Workbench
from perf_tests.cases import Case
from perf_tests.gate.exact_counters import COUNTERS
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.device import Device
from perf_tests.instruments.sentinels import sentinels
from perf_tests.options import Settings
from perf_tests.prediction.expectation import counted
from perf_tests.records.record import Json
from perf_tests.workers.channel import Channel, ClosedError

_PYTEST = ("-p", "no:cacheprovider", "--benchmark-disable", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def serve(channel: Channel, task: Json) -> str | None:
    """Serve the cases of `task` until the gate has had enough of each; why there was nothing to serve, or None."""
    server = Server(channel, settings_of(task["settings"]))
    pytest.main([*_PYTEST, *task["files"]], plugins=[server])
    return None if server.was_ready else server.trouble or "pytest stopped before its first benchmark"


def settings_of(values: Json) -> Settings:
    """What the gate settled, without the values that this tree's `model/` does not know; their cases are not there."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    for name, known in (
        ("sizes", SIZES),
        ("precisions", PRECISIONS),
        ("attention_alone_precisions", PRECISIONS),
        ("attentions", {**ATTENTION, "own": None}),
        ("attention_alone_implementations", ATTENTION),
    ):
        fields[name] = tuple(value for value in fields[name] if value in known)
    return Settings(**fields)


@dataclass
class ServedMeasure:
    """Takes the place of `Measure`: the same warm-up and the same rounds, but each round only when it is asked for."""

    server: "Server"
    case_id: str
    clock: Clock
    device: Device
    warmup_rounds: int
    _arguments: tuple[Any, ...] = ()
    _result: Any = None

    def __call__(
        self,
        target: Callable[..., Any],
        setup: Callable[[], tuple[Any, ...] | None] | None = None,
        loss_scale: Callable[[], float] | None = None,
    ) -> Any:
        """The result of the last of all rounds of `target(*setup())`; only `target` is timed."""

        def one_round() -> tuple[float, float]:
            self._arguments, self._result = (), None
            self._arguments = (setup() if setup is not None else None) or ()
            self.clock.begin_round()
            gc.disable()
            try:
                start = self.clock()
                self._result = target(*self._arguments)
                stop = self.clock()
            finally:
                gc.enable()
            # The clocks count nanoseconds; the digits below are the float's own.
            return round(stop - start, 9), round(self.clock.cpu_seconds[-1], 9)

        warmup_seconds = []
        for _ in range(max(1, self.warmup_rounds)):
            start = time.perf_counter()
            one_round()
            warmup_seconds.append(time.perf_counter() - start)
        self.device.make_room()
        # The shortest is the one that nobody disturbed, the other side least of all, which warms up beside it.
        self.server.serve_rounds(self.case_id, one_round, self.clock, min(warmup_seconds))
        return self._result


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Server:
    """A plugin of the worker's pytest: what to run, in which order, and what became of it."""

    channel: Channel
    settings: Settings
    was_ready: bool = False
    trouble: str = ""
    """Why pytest collected nothing or stopped, in its own words."""
    _sentinels: dict[str, Callable[[], object]] = field(default_factory=dict)
    _cases: dict[str, Case] = field(default_factory=dict)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        session.config.stash[SETTINGS] = self.settings
        session.config.stash[SERVED_MEASURE] = self.measure

    def measure(self, case_id: str, workbench: Workbench) -> ServedMeasure:
        return ServedMeasure(self, case_id, workbench.clock, workbench.device, self.settings.warmup_rounds)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trouble = report.longreprtext.strip().splitlines()[-1]

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        yield
        if session.testsfailed:
            return
        by_id = {item.nodeid: item for item in items if CASE in item.stash}
        self._cases = {case_id: item.stash[CASE] for case_id, item in by_id.items()}
        self._sentinels = sentinels(config.stash[WORKBENCH].device.torch_device)
        self.was_ready = True
        self.channel.send({"ready": {case_id: item.stash[CASE].identity() for case_id, item in by_id.items()}})
        items[:] = [by_id[case_id] for case_id in self.channel.receive()["order"]]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """After the last case nothing is timed any more: count what the gate asks for, until it hangs up."""
        result = yield
        with suppress(ClosedError):
            while self.was_ready:
                self.channel.send(self._count(self.channel.receive()["count"]))
        return result

    def _count(self, case_id: str) -> Json:
        """Exact counters of a case on this side's `model/`, or null and the reason."""
        counters, reason = counted(self._cases[case_id])
        values = None if counters is None else {name: getattr(counters, field) for name, field in COUNTERS.items()}
        return {"counted": case_id, "counters": values, "reason": reason}

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """`pytest.exit` comes here too: what --model names is no language model."""
        self.channel.send({"cannot": str(excinfo.value)})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.outcome: Json | None = None
        result = yield
        self.channel.send({"done": item.nodeid, "outcome": self.outcome})
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self.outcome is None:
            outcome = item.stash.get(OUTCOME, None) or outcome_of_report(report)
            self.outcome = {"outcome": outcome.outcome, "reason": outcome.reason}
        return report

    def serve_rounds(
        self, case_id: str, one_round: Callable[[], tuple[float, float]], clock: Clock, round_seconds: float
    ) -> None:
        """Say that the case is warm, then do as the gate says until it has had enough."""
        answer: Json = {"warm": case_id, "round_seconds": round_seconds}
        while True:
            idle_start = time.process_time()
            self.channel.send(answer)
            request = self.channel.receive()
            idle_cpu_seconds = time.process_time() - idle_start
            if "enough" in request:
                return
            clock.forget()
            if "sentinel" in request:
                answer = {"seconds": self._time_sentinel(request["sentinel"], request["count"], clock)}
            else:
                for _ in range(request["unmeasured"]):
                    one_round()
                wall, cpu = zip(*(one_round() for _ in range(request["rounds"])), strict=True)
                answer = {"seconds": wall, "cpu_seconds": cpu, "idle_cpu_seconds": idle_cpu_seconds}

    def _time_sentinel(self, name: str, count: int, clock: Clock) -> list[float]:
        seconds = []
        for _ in range(count + 1):
            clock.begin_round()
            start = clock()
            self._sentinels[name]()
            seconds.append(round(clock() - start, 9))
        return seconds[1:]
