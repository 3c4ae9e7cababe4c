"""A worker process: `python -m perf_tests.interleaved.worker SOCKET`, started by the gate inside one side's tree.

It runs the benchmarks as pytest runs them, except that each measured round waits for the gate to ask for it."""

import gc
import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from perf_tests.bench.loop import Measure, Rounds, warm_up
from perf_tests.bench.session import is_benchmark, noted, session_of
from perf_tests.bench.workbench import Workbench
from perf_tests.bench.worker_plugin import WorkerPlugin, received
from perf_tests.bench.workers import Channel, ClosedError, channel_of_worker
from perf_tests.cases.case import Case
from perf_tests.hardware.clock import Clock, sentinels
from perf_tests.hardware.device import CacheFlush, Device, cache_state, count_compilations
from perf_tests.hardware.torch_private import load_code_generator, load_compiler
from perf_tests.predict.counters import counters_or_reason
from perf_tests.records.record import COUNTERS, Json
from perf_tests.user_code.named import Tree, stray, take_files_from, why_not_there


def main() -> int:
    channel = channel_of_worker()
    try:
        task = channel.receive()
        reason = _why_not_this_tree(task) or _serve(channel, task)
        if reason:
            channel.send({"cannot": reason})
    except ClosedError:  # the gate is gone
        return 1
    return 0


def _serve(channel: Channel, task: Json) -> str | None:
    """Why nothing was served, as when an older `model/` lacks what the benchmarks import; None when all was served."""
    try:
        pass
    except Exception as error:
        return f"its model/ cannot be used by these benchmarks: {type(error).__name__}: {error}"
    return serve(channel, task)


def _why_not_this_tree(task: Json) -> str | None:
    """None if what is under test is this tree's own: what is elsewhere on the path would be measured instead."""
    where, tree = task["repository"], Path(task["tree"])
    take_files_from(Tree(tree, Path(where["root"]), Path(where["folder"]), frozenset(where["named"])))
    if where["holds_suite"]:
        found = importlib.util.find_spec("model")
        if found is None or found.origin is None or not Path(found.origin).is_relative_to(tree):
            return "it has no model/"
    # Of several attentions each is looked for alone.
    return why_not_there(task["settings"]["model"]) or why_not_there(task["settings"]["optimizer"])


# Rounds on request: the warm-up of a timing, then each round when the gate asks for it.


OneRound = Callable[[], tuple[float, float | None]]
"""Runs a round, and returns once the device is idle: its wall and CPU seconds.

CPU time is None on a GPU: it is that of a thread that spins until the device is idle.
"""


LONG_ROUND_SECONDS = 0.1
"""A case with rounds this long is warm after two: the first allocates, and short ones need more for the clock rates."""
FEWEST_ROUNDS = 2


@dataclass
class ServedMeasure(Measure):
    serve: Callable[[OneRound, Sequence[float]], None]
    """Called once the case is warm, with the seconds of each round of the warm-up."""
    clock: Clock
    device: Device
    warmup_rounds: int
    fewest_rounds: int = FEWEST_ROUNDS
    """Warm-up rounds of a case with long ones."""
    flush: CacheFlush | None = None
    """Called before each round, outside of its time."""

    def run_rounds(self, rounds: Rounds) -> None:
        spins = self.device.torch_device.type == "cuda"

        def one_round() -> tuple[float, float | None]:
            rounds.play(around_target=self._round)
            # The clocks count nanoseconds; further digits are the float's own.
            return round(self.clock.wall_seconds[-1], 9), None if spins else round(self.clock.cpu_seconds[-1], 9)

        def timed_round() -> float:
            start = time.perf_counter()
            one_round()
            return time.perf_counter() - start

        warmup_seconds: list[float] = []
        for _ in warm_up(self.device, max(1, self.warmup_rounds)):
            warmup_seconds.append(timed_round())
            if self._is_warm(warmup_seconds):
                break
        self.device.make_room()
        self.serve(one_round, warmup_seconds)

    def _is_warm(self, seconds: Sequence[float]) -> bool:
        """After few long rounds. The first may have compiled, and is no load."""
        is_long = min(seconds) >= LONG_ROUND_SECONDS and sum(seconds[1:]) >= self.device.warm_up_seconds
        return is_long and len(seconds) >= max(FEWEST_ROUNDS, self.fewest_rounds)

    @contextmanager
    def _round(self) -> Iterator[None]:
        if self.flush is not None:
            self.flush()
        with self.clock.round():
            yield


# Inside a worker of the gate: pytest runs the benchmarks, and each runs its rounds when the gate asks for them.


def serve(channel: Channel, task: Json) -> str | None:
    """Serve the cases of `task` until the gate has enough of each; None, or why there was nothing to serve."""
    plugin = GatePlugin(settings=received(task["settings"]), channel=channel)
    plugin.run(task["files"])
    return None if plugin.was_ready else plugin.trouble or "pytest stopped before its first benchmark"


def _import_what_they_need(cases: Sequence[Case]) -> None:
    """What the first such case would import, so that it is frozen with the rest."""
    if any(case.is_compiled for case in cases):
        load_code_generator()
    elif any(case.row.trains for case in cases):
        load_compiler()


@dataclass(eq=False, kw_only=True)
class GatePlugin(WorkerPlugin):
    """Runs the cases in the gate's order, and their rounds on request."""

    channel: Channel
    was_ready: bool = False
    _sentinels: dict[str, Callable[[], object]] = field(default_factory=dict)
    _cases: dict[str, Case] = field(default_factory=dict)
    _compiled_before: Counter[str] = field(default_factory=Counter)
    """Compilations up to the case at hand."""
    _counting_before: float = 0.0
    """Seconds spent on counting what cases need, up to the case at hand."""

    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        if (file := stray()) is not None:
            pytest.exit(f"it imports {file} of the working tree, which would be measured as both sides", returncode=4)
        counting_seconds = workbench.spent_seconds["counting"] - self._counting_before
        serve = partial(self.serve_rounds, item.nodeid, workbench.clock, counting_seconds)
        case = noted(item).case
        return ServedMeasure(
            serve,
            workbench.clock,
            workbench.device,
            workbench.warmup_rounds(case),
            case.fewest_warmup_rounds,
            workbench.cache_flush(case),
        )

    def stopped(self, reason: str) -> None:
        self.channel.send({"cannot": reason})

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        yield
        if session.testsfailed:
            return
        by_id = {item.nodeid: item for item in items if is_benchmark(item)}
        self._cases = {case_id: noted(item).case for case_id, item in by_id.items()}
        session_of(config).workbench.check_attentions(self._cases.values())
        self._sentinels = sentinels(session_of(config).workbench.device.torch_device)
        self.was_ready = True
        self.channel.send({"ready": {case_id: case.identity() for case_id, case in self._cases.items()}})
        task = self.channel.receive()
        items[:] = [by_id[case_id] for case_id in task["order"]]
        session_of(config).workbench.known_to_fit = frozenset(self._cases[case_id] for case_id in task["measured"])
        _import_what_they_need([self._cases[item.nodeid] for item in items])
        gc.freeze()  # else the collection after each case walks all that was imported

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """After the last case, when no timing runs any more: count what the gate asks for, until it hangs up."""
        result = yield
        with suppress(ClosedError):
            while self.was_ready:
                self.channel.send(self._count(self.channel.receive()["count"]))
        return result

    def _count(self, case_id: str) -> Json:
        """Exact counters of a case on this side's `model/`, or null and the reason."""
        counters, reason = counters_or_reason(self._cases[case_id])
        values = None if counters is None else {name: getattr(counters, field) for name, field in COUNTERS.items()}
        return {"counted": case_id, "counters": values, "reason": reason}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.outcome = None
        self._compiled_before = count_compilations()
        self._counting_before = session_of(item.config).workbench.spent_seconds["counting"]
        result = yield
        if item.session.shouldstop:
            # Every later case of this process would fail too, so the gate launches both sides again.
            reason = "" if self.outcome is None else self.outcome["reason"]
            device = session_of(item.config).workbench.device.torch_device
            self.channel.send({"ended": f"{device} is unusable after {reason}"})
        else:
            self.channel.send({"done": item.nodeid, "outcome": self.outcome})
        return result

    def serve_rounds(
        self,
        case_id: str,
        clock: Clock,
        counting_seconds: float,
        one_round: OneRound,
        warmup_seconds: Sequence[float],
    ) -> None:
        """Say that the case is warm, then answer the gate's requests until it has enough."""
        # The shortest was disturbed least, above all by the other side, which warms up at the same time.
        round_seconds = min(warmup_seconds)
        is_cold = cache_state(count_compilations() - self._compiled_before) == "cold"
        once_seconds = counting_seconds + (warmup_seconds[0] - round_seconds if is_cold else 0.0)
        answer: Json = {"warm": case_id, "round_seconds": round_seconds, "once_seconds": once_seconds}
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
                cpu_seconds = None if None in cpu else cpu
                answer = {"seconds": wall, "cpu_seconds": cpu_seconds, "idle_cpu_seconds": idle_cpu_seconds}

    def _time_sentinel(self, name: str, count: int, clock: Clock) -> list[float]:
        """The first is dropped: the case has left its own data in the caches."""
        for _ in range(count + 1):
            with clock.round():
                self._sentinels[name]()
        return [round(seconds, 9) for seconds in clock.wall_seconds[1:]]


if __name__ == "__main__":
    sys.exit(main())
