"""The one loop over a benchmark's rounds: an untimed set-up, then its target; and the row of a timed case.

A `Measure` decides what happens around the rounds. Timing them is in this file; to profile them, to watch their memory
or to study their warm-up is a pass (`perf_tests/passes`), to run them on request the gate's (`perf_tests/interleaved`),
and to time them alike on several ranks `perf_tests/bench/ranks.py`.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from perf_tests_suite.perf_tests.audit.physics import MEASURED_CEILING_MARGIN
from perf_tests_suite.perf_tests.audit.rounds import (
    RowFacts,
    accusations,
    clocks_disagree,
    raised,
    suggested_warmup_rounds,
    why_replaced,
)
from perf_tests_suite.perf_tests.bench.checked_rounds import Check, CheckedRounds, Draws
from perf_tests_suite.perf_tests.bench.outcomes import ImpossibleError, SuspiciousError
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.bound import late_work, put_back, rate_of_clocks, shares_memory, time
from perf_tests_suite.perf_tests.hardware.clock import Clock, busy_seconds
from perf_tests_suite.perf_tests.hardware.device import CacheFlush, Device, begin_round, cache_state, count_compilations
from perf_tests_suite.perf_tests.hardware.limits import Ceilings
from perf_tests_suite.perf_tests.hardware.machine import OtherProcesses, RoundHealth, conditions, drifting_facts
from perf_tests_suite.perf_tests.predict.compiling import Compilation
from perf_tests_suite.perf_tests.predict.expectation import MEASURED_AGAIN, Expectation, why_impossible
from perf_tests_suite.perf_tests.records.measured import Measured
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.guard import end_if_forked

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.bench.judged import JudgedCase, JudgedRounds

UNCHECKED = "rounds of this phase, or shared by ranks, leave nothing that could be held to other values"
"""Why rounds of code of the user's may be recorded without a check."""

SetUp = Callable[[], tuple[Any, ...] | None]
"""A function that returns the arguments of the target."""

Around = Callable[[], AbstractContextManager[object]]
"""A maker of the context that half a round runs in."""


@dataclass
class Rounds:
    """`target(*setup())`, once per round; `result` is what the last round returned."""

    target: Callable[..., Any]
    setup: SetUp | None = None
    loss_scale: Callable[[], float] | None = None
    """The scale of the loss: where it falls between two rounds, the optimizer skipped a step."""
    forget_more: Callable[[], None] | None = None
    """Frees what a round leaves beside its result and the next must not find."""
    renew: Callable[[torch.Generator], None] | None = None
    """A function that writes new values into the inputs, in place; passes leave those that were drawn first."""
    renew_rest: Callable[[], None] | None = None
    """A function that writes what is left of them, which the set-up calls once no code of a case can use it there."""
    check: Callable[[], Check] | None = None
    """A maker of what two of the timed rounds are held to."""
    result: Any = None
    _arguments: tuple[Any, ...] = ()

    def forget(self) -> None:
        """Free what the last round left: its graph beside that of the next would double the peak."""
        self._arguments, self.result = (), None
        if self.forget_more is not None:
            self.forget_more()

    def prepare(self) -> None:
        """Run the set-up. The arguments are kept here: pytest-benchmark would hold them until it has new ones."""
        self.forget()
        end_if_forked()
        begin_round()
        self._arguments = (self.setup() if self.setup is not None else None) or ()

    def run(self) -> None:
        self.result = self.target(*self._arguments)

    def run_round(self, around_setup: Around = nullcontext, around_target: Around = nullcontext) -> None:
        """Run one round; only its result outlives it."""
        self.forget()
        with around_setup():
            self.prepare()
        with around_target():
            self.run()
        self._arguments = ()


@dataclass
class Measure(ABC):
    """What a benchmark calls once, with its rounds."""

    values: Json = field(default_factory=dict, init=False)
    """What `run_rounds` returned."""

    def __call__(self, target: Callable[..., Any], setup: SetUp | None = None, **of_rounds: Any) -> Any:
        """Return the result of the last round of `target(*setup())`; `of_rounds` are further fields of `Rounds`."""
        rounds = Rounds(target, setup, **of_rounds)
        self.values = self.run_rounds(rounds) or {}
        return rounds.result

    @abstractmethod
    def run_rounds(self, rounds: Rounds) -> Json | None:
        """Run the rounds; returns what they showed where a pass keeps it."""


def warm_up(
    device: Device, least_rounds: int, done: int = 0, now: Callable[[], float] = time.perf_counter
) -> Iterator[int]:
    """Yield the number of each warm-up round to run now, after those `done`.

    There are as many as asked for, and as many as the device needs to reach its clock rates. Round 0 does not count as
    load: it may compile.
    """
    for number in count(done):
        if number <= 1:
            start = now()
        if number >= least_rounds and now() - start >= device.warm_up_seconds:
            return
        yield number


@dataclass
class TimedMeasure(Measure):
    """Times the target alone, never its set-up, under pytest-benchmark, and makes the row of it."""

    benchmark: Any
    """pytest-benchmark's fixture, whose class is not public."""
    clock: Clock
    device: Device
    rounds: int
    warmup_rounds: int
    """The fewest there are; 0 is none at all."""
    row: "RowBuilder | None"
    """None where the benchmark only runs once, as a test."""
    on_round: Callable[[int], None] = lambda number: None
    """A function that is called with the number of each round before its set-up, warm-up rounds first."""
    health: RoundHealth = field(default_factory=lambda: RoundHealth(None))
    flush: CacheFlush | None = None
    """A function that is called after the set-up of each measured round, before the clock starts."""
    sentinel: Callable[[], float] | None = None
    """Seconds of work that no change of the code affects, called before the first round and after the last."""
    others: OtherProcesses | None = None
    """Watches the processors over the run; None where other ranks of the run are among the others."""
    inputs: Sequence[Tensor] = ()
    """Tensors that the output of the target may not lie in."""
    draws: Draws | None = None
    """The draws of the inputs in each round; None where they stay, and nothing is checked."""
    judged: "JudgedCase | None" = None
    """The case before the judge, in a process of its own; None where rounds are checked here."""
    spent_seconds: dict[str, float] = field(default_factory=dict, init=False)
    """Warm-up and measured rounds with their set-ups, and first rounds that compiled, by `workbench.WORK`."""
    _checked: "CheckedRounds | JudgedRounds" = field(init=False)
    _loss_scales: list[float] = field(default_factory=list)
    _peaks: list[tuple[int | None, ...]] = field(default_factory=list)
    """Allocated, requested and reserved bytes up to each kept round, whose slices take some."""

    def run_rounds(self, rounds: Rounds) -> None:
        """Run warm-up and measured rounds, then look at what they computed.

        Raises ImpossibleError for a time below this machine's minimum, IncorrectError for what a checked round
        computed, SuspiciousError for code of the user's that was not measured as the suite's own is.
        """
        self.clock.forget()
        if self.row is None:
            # --benchmark-disable: the benchmark runs as a test, and nothing is read off its one round.
            for _ in range(self.warmup_rounds):
                rounds.run_round()
            self.benchmark.pedantic(rounds.run, setup=rounds.prepare, rounds=1, warmup_rounds=0)
            return
        if self.row.case.ranks:  # each has its share of the values alone
            rounds.check = None
        if self.judged is None:
            self._checked = CheckedRounds(rounds, self.device, self.draws)
        else:
            self._checked = self.judged.rounds_of(rounds, self.clock, self.flush)
        before = self._sentinel_seconds()
        facts = self._time(rounds, self.row.conditions)
        sentinels, replaced = [*before, *self._sentinel_seconds()], put_back()
        if self.row.case.user_code and replaced:  # before its results are judged
            raise SuspiciousError(why_replaced(replaced))
        expected, again = self.row.expectation, self.row.measure_ceiling_again
        if reason := expected and why_impossible(expected, facts.rounds_seconds, facts.device_seconds or [], again):
            raise ImpossibleError(reason)
        median_seconds = self.benchmark.stats["median"]
        checked = self._checked.finish(median_seconds)
        if checked is None and self.row.case.user_code:
            checked = {"rounds": [], "what": None, "unchecked": UNCHECKED, "same_again": None}
        facts = replace(
            facts,
            sentinel_seconds=sentinels or None,
            replaced=replaced,
            checked=checked,
            same_again=None if checked is None else checked["same_again"],
            values_seed=None if rounds.renew is None else self._checked.seed,
            # After the last reading, because the round is not timed: its launches wait in the queue.
            device_busy_seconds=self._busy_seconds(rounds, has_slices=facts.recompiles is None),
        )
        measured = self._with_more(self.row.of(facts, median_seconds), rounds)
        self.benchmark.extra_info.update(self.row.case.identity() | measured.as_row())

    def _with_more(self, measured: Measured, rounds: Rounds) -> Measured:
        """Return the row with what a way of measuring looks at beside the timed rounds; here nothing."""
        return measured

    def _busy_seconds(self, rounds: Rounds, has_slices: bool) -> float | None:
        return busy_seconds(partial(self._prepare_measured, rounds), rounds.run, self.device, has_slices=has_slices)

    def _sentinel_seconds(self) -> list[float]:
        return [] if self.sentinel is None else [self.sentinel()]

    def _time(self, rounds: Rounds, known: RowFacts) -> RowFacts:
        """Return what is known already with the readings of clocks, allocator and compiler."""
        assert self.row is not None
        case = self.row.case
        gc.collect()
        allocated_before_bytes = self.device.allocated_bytes()
        before, compilations, started_under = self._drifting_facts(), count_compilations(), conditions()
        start = time.perf_counter()
        # The benchmark would show a case that fails in the warm-up as measured, so the warm-up runs outside of it.
        first = self._first_round(rounds) if self.warmup_rounds else None
        first_compilations = count_compilations()
        warmup_rounds_run = self._warm_up(rounds) if self.warmup_rounds else 0
        if self.health.health is not None:
            before = self._drifting_facts()  # an idle GPU's clocks say nothing about its rounds
        if self.others is not None:
            self.others.mark()
        self._measure(rounds)
        self._peaks.append(self.device.peaks())
        # At once, while late work is still under way; but its copies belong to no peak.
        late = late_work(rounds.result) if case.user_code else []
        other_cores = None if self.others is None else self.others.cores()
        after = self._drifting_facts()
        self.spent_seconds["rounds"] = time.perf_counter() - start
        if rounds.loss_scale is not None:
            self._loss_scales.append(rounds.loss_scale())
        compiled = count_compilations() - compilations
        seconds, parts, health = self.benchmark.stats["data"], self.clock.part_seconds, self.health.of_rounds()
        # One scale more than rounds: a skipped step shows as a fall from the scale before its round.
        scales = self._loss_scales[-self.rounds - 1 :]
        compile_seconds: dict[str, float] | None = None
        if compiled["graphs"] and first is not None:
            # Of the first calls, which generate the code and run it once: by its parts, or by set-up and target.
            in_parts = {part: of_rounds[0] for part, of_rounds in parts.items()}
            set_up_seconds, target_seconds = first
            either = {"forward": set_up_seconds, "backward": target_seconds}
            whole = either if case.phase_row.is_backward else {"forward": target_seconds}
            compile_seconds = {part: in_parts[part] for part in either if part in in_parts} or whole
            self.spent_seconds["compiling"] = sum(first)
        flushed_bytes = 0 if self.flush is None else self.flush.bytes
        allocated, requested, reserved = (
            max(peaks) - flushed_bytes if None not in peaks else None for peaks in zip(*self._peaks, strict=True)
        )
        # Of a graph's pool the allocator counts only what outlives a replay.
        is_replayed = case.replays_cuda_graphs
        return replace(
            known,
            first_setup_seconds=None if first is None else first[0],
            first_round_seconds=None if first is None else first[1],
            compile_cache=cache_state(compiled) if compiled["graphs"] else None,
            recompiles=(count_compilations() - first_compilations)["graphs"] if compiled["graphs"] else None,
            cudagraph_skips=compiled["cudagraph_skips"] if compiled["graphs"] else None,
            warmup_rounds_run=warmup_rounds_run,
            flushed_bytes=None if self.flush is None else flushed_bytes,
            before=before | started_under,
            after=after | conditions(),
            throttled_rounds=health.throttled_rounds,
            energy_joules_per_round=health.energy_joules_per_round,
            throttle_reasons=health.throttle_reasons,
            median_sm_clock_mhz=health.median_sm_clock_mhz,
            other_cores=other_cores,
            # The clock holds the warm-up rounds too, before the measured ones.
            device_seconds=self.clock.device_seconds[-self.rounds :] or None,
            # On a GPU the thread that waits for the device spins.
            cpu_seconds=self.clock.cpu_seconds[-self.rounds :] if case.device == "cpu" else None,
            part_seconds={part: values[-len(seconds) :] for part, values in parts.items()},
            peak_allocated_bytes=None if is_replayed else allocated,
            peak_requested_bytes=None if is_replayed else requested,
            peak_reserved_bytes=reserved,
            skipped_steps=sum(later < earlier for earlier, later in pairwise(scales)) if scales else None,
            compile_seconds=compile_seconds,
            allocated_before_bytes=None if allocated_before_bytes is None else allocated_before_bytes - flushed_bytes,
            rounds_seconds=seconds,
            # On ranks a round's time is the slowest rank's.
            raw_seconds=self.clock.raw_seconds[-self.rounds :] if case.ranks is None else (),
            late_work=late,
            shares_memory=shares_memory(rounds.result, self.inputs),
        )

    def _prepare(self, rounds: Rounds, number: int) -> None:
        """Write new values, set up, flush: in this order, or the writing would be what the caches hold."""
        rounds.forget()
        self.on_round(number)
        if rounds.loss_scale is not None:
            self._loss_scales.append(rounds.loss_scale())
        self._checked.begin(number, is_measured=number >= self.warmup_rounds)
        if number < self.warmup_rounds:
            rounds.prepare()
        else:
            self._prepare_measured(rounds, self._checked.ready)
        self.clock.begin_round()

    def _prepare_measured(self, rounds: Rounds, ready: Callable[[], None] = lambda: None) -> None:
        rounds.prepare()
        ready()
        if self.flush is not None:
            self.flush()

    def _first_round(self, rounds: Rounds) -> tuple[float, float]:
        """Return the seconds of its set-up and of its target, timed apart because either may compile."""
        start = time.perf_counter()
        self._prepare(rounds, 0)
        self.device.synchronize()
        prepared = time.perf_counter()
        self.clock()
        rounds.run()
        self.clock()
        return prepared - start, time.perf_counter() - prepared

    def _warm_up(self, rounds: Rounds) -> int:
        """Run the rest of the warm-up; returns how many rounds it had with the first."""
        done = 1
        for number in warm_up(self.device, self.warmup_rounds, done, self.clock.now):
            # A GPU may need more rounds than were asked for; they keep the last warm-up round's number, or the progress
            # line would count them, and `_prepare` flush for them, as measured ones.
            self._prepare(rounds, min(number, self.warmup_rounds - 1))
            with self.clock.round():
                rounds.run()
            done = number + 1
        return done

    def _measure(self, rounds: Rounds) -> None:
        numbers = count()

        def end_of_round() -> None:
            if self._checked.keeps_this:
                self._peaks.append(self.device.peaks())
                self._checked.end()
                self.device.start_peaks()
            self.health.end_of_round()

        def set_up() -> None:
            number = next(numbers)
            if number:
                end_of_round()
            self._prepare(rounds, self.warmup_rounds + number)

        rounds.forget()
        if self.warmup_rounds:
            self.device.make_room()
        self.device.start_peaks()
        self.health.begin()
        self.benchmark.pedantic(rounds.run, setup=set_up, rounds=self.rounds)
        self.device.synchronize()
        end_of_round()

    def _drifting_facts(self) -> Json:
        return drifting_facts(self.device.torch_device, self.health.health)


def with_clock_rate(facts: RowFacts, is_user_code: bool) -> RowFacts:
    """Ask at which rate the system runs the clocks, if they disagree.

    Raises SuspiciousError for code of the user's whose facts no honest measurement shows.
    """
    if clocks_disagree(facts):
        facts = replace(facts, rate_of_clocks=rate_of_clocks())
    if is_user_code and (accused := accusations(facts)):
        raise SuspiciousError(" ".join(accused))
    return facts


@dataclass(frozen=True)
class RowBuilder:
    """What is known of a case before its rounds; `of` adds what follows from those."""

    case: Case
    conditions: RowFacts = field(default_factory=RowFacts)
    """What a figure depends on besides the identity of its case."""
    sdpa_backend: Callable[[], str | None] = lambda: None
    """Asks a profiler after the rounds, because it may slow down what runs after it (pytorch/pytorch#144455)."""
    matmul_flops_per_second: float | None = None
    expectation: Expectation | None = None
    measure_ceiling_again: Callable[[str], float] | None = None
    """The current matrix-product rate in a precision, measured before a case is called impossible."""
    with_run: Callable[[RowFacts], RowFacts] = lambda facts: facts
    """A function that adds what the run knows of the case's rounds, after these."""
    ceilings_again: Callable[[str], Ceilings | None] | None = None
    """The machine's ceilings with that precision's products and memory traffic measured once more."""
    compilation: Callable[[], tuple[Compilation | None, str | None]] = lambda: (None, None)
    """What torch.compile makes of the case, asked for after its rounds."""

    def of(self, facts: RowFacts, median_seconds: float) -> Measured:
        """Return the readings with what follows from them, and with their flags. Raises SuspiciousError."""
        expectation = self.expectation
        facts = replace(facts, sdpa_backend=self.sdpa_backend(), model_flops=self._model_flops)
        # Code of the user's may compile a part of itself.
        if self.case.is_compiled or (self.case.user_code and count_compilations()["graphs"]):
            found, reason = self.compilation()
            made: Json = {"compiler_reason": reason}
            if found is not None:
                made = {**found.counters, "host_reads": found.host_reads}
                made |= {"compiler_lines": found.lines, "compiler_reason": found.reason}
            facts = replace(facts, **made)
        facts = self._with_rates(facts, median_seconds)
        if expectation is not None:
            facts = expectation.derived(facts, median_seconds)
        facts = self.with_run(
            replace(
                facts,
                suggested_warmup_rounds=suggested_warmup_rounds(facts.rounds_seconds, facts.warmup_rounds_run or 0),
                is_over_ceiling=expectation is not None and expectation.is_over_ceiling(median_seconds),
                over_roofline=self._over_roofline(median_seconds),
            )
        )
        # Parts are this rank's, the round is the slowest one's.
        judged = facts if self.case.sharing is None else replace(facts, part_seconds={})
        return replace(facts, flags=raised(with_clock_rate(judged, bool(self.case.user_code))))

    def _over_roofline(self, median_seconds: float) -> float | None:
        """Return the time of its kernels over the median; before anybody is accused the ceilings are measured again."""
        expectation, times = self.expectation, 0
        if expectation is None:
            return None
        while (over := expectation.over_roofline(median_seconds)) and over > MEASURED_CEILING_MARGIN:
            if not self.case.user_code or self.ceilings_again is None or times == MEASURED_AGAIN:
                break
            expectation = replace(expectation, ceilings=self.ceilings_again(self.case.precision))
            times += 1
        return over

    def _with_rates(self, facts: RowFacts, median_seconds: float) -> RowFacts:
        flops, ceiling = self._model_flops, self.matmul_flops_per_second
        rate = None if flops is None else flops / median_seconds
        # Fused kernels skip the masked half of the square, and checkpoints recompute.
        executes_all = self.case.attention == "naive" and self.case.identity().get("checkpoint", "none") == "none"
        is_user_code = self.case.user_model is not None or self.case.user_attention is not None
        if is_user_code and self.expectation is not None and self.expectation.counters is not None:
            executes_all = self.expectation.counters.executed_flops == flops
        return replace(
            facts,
            tokens_per_second=None if self.case.tokens is None else self.case.tokens / median_seconds,
            tflops_per_second=None if rate is None else rate / 1e12,
            matmul_ceiling_tflops_per_second=None if ceiling is None else ceiling / 1e12,
            share_of_matmul_ceiling=rate / ceiling if rate and ceiling and executes_all else None,
        )

    @property
    def _model_flops(self) -> int | None:
        if self.expectation is None and self.case.user_model is not None:
            return None
        return self.case.model_flops if self.expectation is None else self.expectation.model_flops
