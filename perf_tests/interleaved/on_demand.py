"""Inside a worker of the gate: pytest runs the benchmarks, and each runs its rounds when the gate asks for them."""

import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.audit.rounds import RowFacts, why_replaced
from perf_tests_suite.perf_tests.bench.checked_rounds import CheckedRounds, Draws
from perf_tests_suite.perf_tests.bench.loop import Measure, Rounds, warm_up, with_clock_rate
from perf_tests_suite.perf_tests.bench.outcomes import SuspiciousError
from perf_tests_suite.perf_tests.bench.session import Session, benchmark_of, is_benchmark, session_of
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.bench.worker_plugin import WorkerPlugin, received
from perf_tests_suite.perf_tests.bench.workers import Channel, ClosedError
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.bound import late_work, put_back, time
from perf_tests_suite.perf_tests.hardware.clock import Clock, sentinels
from perf_tests_suite.perf_tests.hardware.device import CacheFlush, Device, cache_state, count_compilations
from perf_tests_suite.perf_tests.hardware.machine import conditions
from perf_tests_suite.perf_tests.hardware.torch_private import TorchDispatchMode, load_code_generator, load_compiler
from perf_tests_suite.perf_tests.interleaved.observer import Recorder
from perf_tests_suite.perf_tests.predict.compiling import compilation_or_reason, compile_seconds_or_reason
from perf_tests_suite.perf_tests.predict.counters import counters_or_reason
from perf_tests_suite.perf_tests.predict.fake_run import LISTENERS
from perf_tests_suite.perf_tests.predict.rounds import attention_passes, passes, updates
from perf_tests_suite.perf_tests.records.record import COUNTERS, Json
from perf_tests_suite.perf_tests.user_code.named import stray

OneRound = Callable[[], tuple[float, float | None]]
"""Runs a round, and returns once the device is idle: its wall and CPU seconds.

CPU time is None on a GPU: it is that of a thread that spins until the device is idle.
"""

LONG_ROUND_SECONDS = 0.1
"""A case with rounds this long is warm after two: the first allocates, and short ones need more for the clock rates."""
FEWEST_ROUNDS = 2


def serve(channel: Channel, task: Json, recorder: Recorder | None = None) -> str | None:
    """Serve the cases of `task` until the gate has enough of each; None, or why there was nothing to serve.

    With a `recorder` they are not measured: they run on fake tensors, and some of them once on real ones.
    """
    plugin = GatePlugin(settings=received(task["settings"]), channel=channel, recorder=recorder)
    plugin.run(task["files"])
    if not plugin.was_ready:
        return plugin.trouble or "pytest stopped before its first benchmark"
    if plugin.trouble:  # a model that cannot be imported is met after the worker said that it is ready
        channel.send({"ended": plugin.trouble})
    return None


@dataclass
class RoundsOnDemand(Measure):
    """Warms a case up as a timing does, then hands its rounds to `serve`."""

    serve: Callable[[OneRound, Sequence[float]], None]
    """A function that is called once the case is warm, with the seconds of each round of the warm-up."""
    clock: Clock
    device: Device
    warmup_rounds: int
    fewest_rounds: int = FEWEST_ROUNDS
    """Warm-up rounds of a case with long ones."""
    flush: CacheFlush | None = None
    """A function that is called before each round, outside of its time."""
    draws: Draws | None = None
    """The same on both sides; None where inputs stay, and nothing is checked."""
    is_user_code: bool = False

    def run_rounds(self, rounds: Rounds) -> None:
        """Serve rounds; raises IncorrectError, once the gate has enough, for what a checked round computed.

        Raises SuspiciousError for code of the user's, as a timing does; a round has no row to carry a flag.
        """
        started_under = conditions()
        spins = self.device.torch_device.type == "cuda"
        checked, positions = CheckedRounds(rounds, self.device, self.draws), count(-1, -1)

        @contextmanager
        def timed() -> Iterator[None]:
            checked.ready()
            if self.flush is not None:
                self.flush()
            with self.clock.round():
                yield
            checked.end()

        def one_round() -> tuple[float, float | None]:
            position = next(positions)
            rounds.forget()
            checked.begin(position, is_measured=position >= 0)
            rounds.run_round(around_target=timed)
            # The clocks count nanoseconds; further digits are the float's own. A thread that spins until the device is
            # idle burns CPU time that is no work.
            return round(self.clock.wall_seconds[-1], 9), None if spins else round(self.clock.cpu_seconds[-1], 9)

        warmup_seconds: list[float] = []
        for _ in warm_up(self.device, max(1, self.warmup_rounds)):
            start = time.perf_counter()
            one_round()
            warmup_seconds.append(time.perf_counter() - start)
            # A few long rounds are enough. The first may have compiled, and is no load.
            loaded = sum(warmup_seconds[1:]) >= self.device.warm_up_seconds
            is_long = min(warmup_seconds) >= LONG_ROUND_SECONDS and loaded
            if is_long and len(warmup_seconds) >= max(FEWEST_ROUNDS, self.fewest_rounds):
                break
        self.device.make_room()
        # Each side warms up for as long as it needs; from here on both have the same values.
        positions = count()
        self.serve(one_round, warmup_seconds)
        if self.is_user_code:
            facts = RowFacts(
                rounds_seconds=self.clock.wall_seconds,
                raw_seconds=self.clock.raw_seconds,
                before=started_under,
                after=conditions(),
                late_work=late_work(rounds.result),
            )
            if replaced := put_back():  # before its results are judged
                raise SuspiciousError(why_replaced(replaced))
            with_clock_rate(facts, is_user_code=True)
        checked.finish(min(warmup_seconds))


class SingleRound(Measure):
    """Runs a single round."""

    def run_rounds(self, rounds: Rounds) -> None:
        rounds.run_round()


@dataclass(eq=False, kw_only=True)
class GatePlugin(WorkerPlugin):
    """Runs the cases in the gate's order, and their rounds on request."""

    channel: Channel
    recorder: Recorder | None = None
    was_ready: bool = False
    _draws: dict[str, Draws] = field(default_factory=dict)
    """The draws by node id, which base and head may write differently: of both it is the place in the gate's order."""
    _sentinels: dict[str, Callable[[], object]] = field(default_factory=dict)
    _cases: dict[str, Case] = field(default_factory=dict)
    _compiled_before: Counter[str] = field(default_factory=Counter)
    """Compilations up to the case at hand."""
    _counting_before: float = 0.0
    """Seconds spent on counting what cases need, up to the case at hand."""
    _unplayed: dict[str, str] = field(default_factory=dict)
    """Why a case did not run on real tensors in a rehearsal."""

    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        if (file := stray()) is not None:
            pytest.exit(f"it imports {file} of the working tree, which would be measured as both sides", returncode=4)
        if self.recorder is not None:
            return SingleRound()
        counting_seconds = workbench.spent_seconds["counting"] - self._counting_before
        case = benchmark_of(item).case
        return RoundsOnDemand(
            partial(self.serve_rounds, item.nodeid, workbench.clock, counting_seconds),
            workbench.clock,
            workbench.device,
            workbench.warmup_rounds(case),
            case.fewest_warmup_rounds,
            workbench.cache_flush(case),
            self._draws.get(item.nodeid),
            bool(case.user_code),
        )

    def stopped(self, reason: str) -> None:
        self.channel.send({"cannot": reason})

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Tell the gate which cases there are, then keep those that it asks for, in its order."""
        # Of an axis of which this side knows no value pytest makes one item, with a member of an Enum, that is no case.
        axes = {item: item.callspec.params if hasattr(item, "callspec") else {} for item in items}
        items[:] = [item for item, axis in axes.items() if not any(isinstance(value, Enum) for value in axis.values())]
        yield
        if session.testsfailed:
            return
        by_id = {item.nodeid: item for item in items if is_benchmark(item)}
        if not by_id:
            self.was_ready = True
            self.channel.send({"absent": "it does not know a value of these cases"})
            return
        workbench = session_of(config).workbench
        self._cases = {case_id: benchmark_of(item).case for case_id, item in by_id.items()}
        workbench.check_attentions(self._cases.values())
        self._sentinels = sentinels(workbench.device.torch_device)
        self.was_ready = True
        self.channel.send({"ready": {case_id: case.identity() for case_id, case in self._cases.items()}})
        task = self.channel.receive()
        if self.recorder is not None:
            chosen = one_of_each({name: self._cases[name] for name in self._rehearse(self.recorder, task["order"])})
            items[:] = [by_id[name] for name in chosen]
            for item in items:
                benchmark_of(item).case = chosen[item.nodeid]
            gc.freeze()
            return
        items[:] = [by_id[case_id] for case_id in task["order"]]
        self._draws = {
            case_id: Draws(task["seed"], str(place), task["pair"]) for place, case_id in enumerate(task["order"])
        }
        workbench.known_to_fit = frozenset(self._cases[case_id] for case_id in task["measured"])
        # Import what the first such case would import, so that it is frozen with the rest.
        cases = [self._cases[item.nodeid] for item in items]
        if any(case.is_compiled for case in cases):
            load_code_generator()
        elif any(case.phase_row.trains for case in cases):
            load_compiler()
        gc.freeze()  # else the collection after each case walks all that was imported

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Count or compile, after the last case, what the gate asks for, until it hangs up."""
        result = yield
        with suppress(ClosedError):
            if self.recorder is not None:
                self.channel.send({"unplayed": self._unplayed, **self.recorder.observation().as_json})
                return result
            while self.was_ready:
                asked, suite = self.channel.receive(), session_of(session.config)
                if (to_compile := asked.get("compile")) is not None:
                    self.channel.send(compiled_once(self._cases[to_compile], suite))
                else:
                    self.channel.send({"counted": asked["count"], **counted(self._cases[asked["count"]], suite)})
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        workbench = session_of(item.config).workbench
        self.outcome = None
        self._compiled_before = count_compilations()
        self._counting_before = workbench.spent_seconds["counting"]
        result = yield
        if self.recorder is not None:
            if self.outcome is not None:
                self._unplayed[item.nodeid] = self.outcome["reason"]
            return result
        if item.session.shouldstop:
            # Every later case of this process would fail too, so the gate launches both sides again.
            reason = "" if self.outcome is None else self.outcome["reason"]
            self.channel.send({"ended": f"{workbench.device.torch_device} is unusable after {reason}"})
        else:
            self.channel.send({"done": item.nodeid, "outcome": self.outcome})
        return result

    def _rehearse(self, recorder: Recorder, order: Sequence[str]) -> list[str]:
        """Run cases on fake tensors, say what that was, and return those that the gate wants once on real ones."""
        torch.compiler.set_stance("force_eager")  # compiled code runs no function of theirs
        digests = digests_of_operations({case_id: self._cases[case_id] for case_id in order})
        with suppress(ClosedError):
            if (file := stray()) is not None:
                self.channel.send({"cannot": f"it imports {file} of the working tree"})
            else:
                self.channel.send({"digests": digests, **recorder.observation().as_json})
                once: list[str] = self.channel.receive()["once"]
                return once
        return []

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
                for _ in range(request["count"] + 1):
                    with clock.round():
                        self._sentinels[request["sentinel"]]()
                # The first is dropped: the case has left its own data in the caches.
                answer = {"seconds": [round(seconds, 9) for seconds in clock.wall_seconds[1:]]}
            else:
                for _ in range(request["unmeasured"]):
                    one_round()
                wall, cpu = zip(*(one_round() for _ in range(request["rounds"])), strict=True)
                cpu_seconds = None if None in cpu else cpu
                answer = {"seconds": wall, "cpu_seconds": cpu_seconds, "idle_cpu_seconds": idle_cpu_seconds}


def counted(case: Case, suite: Session) -> Json:
    """Exact counters of a case on this side's `model/`, or null and the reason."""
    found, reason = counters_or_reason(case)
    counters = {} if found is None else {name: getattr(found, field) for name, field in COUNTERS.items()}
    if case.is_compiled or case.user_code:  # which may hold torch.compile
        workbench = suite.workbench
        by_compiler, why = compilation_or_reason(case, workbench.device.torch_device, workbench.settings.seed)
        if by_compiler is not None:
            counters = {"host_reads": by_compiler.host_reads, **counters, **by_compiler.counters}
        reason = why or reason
    return {"counters": counters or None, "reason": reason}


def compiled_once(case: Case, suite: Session) -> Json:
    """Return wall and CPU seconds to compile each part of a case, or the outcome that says why there are none."""
    workbench = suite.workbench
    seconds, reason = compile_seconds_or_reason(case, workbench.device, workbench.settings.seed)
    return {"compiled": seconds, "outcome": None if seconds else {"outcome": "error", "reason": reason}}


# Whether base and head run the same program: what is issued when the cases run on fake tensors.


class Operations(TorchDispatchMode):
    """Digests each operation in order: its name, and form and place of each tensor and every other argument."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.digest = hashlib.sha256()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.prim.device.default:  # most calls, and of no operation
            self.digest.update(f"{func} {described(args)} {described(sorted(kwargs.items()))}\n".encode())
        return func(*args, **kwargs)


def described(value: Any) -> str:
    """An argument in words that are the same in another process."""
    if isinstance(value, torch.Tensor):
        form = (value.dtype, tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad)
        return f"{value.device.type}{form}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(map(described, value))}]"
    if value is None or isinstance(
        value, bool | int | float | complex | str | torch.dtype | torch.device | torch.layout | torch.memory_format
    ):
        return repr(value)
    return type(value).__name__


def digests_of_operations(cases: Mapping[str, Case]) -> dict[str, Json]:
    """Run each case on fake tensors; a `digest` of the operations of all up to its end, or null and the `reason`.

    Cases share passes, each run once, and a pass may leave something behind for the next. Of a compiled case what
    is to be compiled is run.
    """
    for known in (passes, updates, attention_passes):
        known.cache_clear()
    operations, found = Operations(), dict[str, Json]()
    LISTENERS.append(operations)
    try:
        for case_id, case in cases.items():
            counters, reason = counters_or_reason(uncompiled(case))
            found[case_id] = {"digest": counters and operations.digest.hexdigest(), "reason": reason}
    finally:
        LISTENERS.remove(operations)
    return found


def uncompiled(case: Case) -> Case:
    """What is to be compiled, as it is."""
    if isinstance(case, LanguageModelCase):
        case = replace(case, execution="eager")
    if case.attention == "compiled":
        case = replace(case, attention="naive")  # type: ignore[type-var]  # each family is a dataclass
    return case


# What the timed step calls: one round on real tensors.


NARROWEST = replace(SIZES["tiny"], vocab_size=256)


def one_of_each(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return the smallest case of each kind, by what chooses the functions that a round calls, not compiled.

    The suite's own model has the narrowest width, in which it calls the same; the user's is theirs to choose.
    """
    kinds = ("phase", "attention", "precision", "checkpoint", "optimizer")
    chosen: dict[tuple[object, ...], tuple[str, Case]] = {}
    for name, case in sorted(cases.items(), key=lambda each: each[1].least_bytes, reverse=True):
        case = uncompiled(case)
        if isinstance(case, LanguageModelCase) and not case.user_code:
            layers, context = case.config.num_layers, case.config.context_length
            case = replace(case, config=replace(NARROWEST, num_layers=layers, context_length=context))
        chosen[tuple(getattr(case, kind, None) for kind in kinds)] = (name, case)
    return dict(sorted(chosen.values(), key=lambda each: [*cases].index(each[0])))
