"""The one loop over a benchmark's rounds: an untimed set-up, then its target; and the row of a timed case.

A `Measure` decides what happens around the rounds. Timing them is in this file; to profile them, to watch their memory
or to study their warm-up is a pass (`perf_tests/passes`), to run them on request the gate's (`perf_tests/interleaved`),
and to time them alike on several ranks `perf_tests/bench/ranks.py`.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor

from perf_tests.audit.physics import MEASURED_CEILING_MARGIN
from perf_tests.audit.rounds import (
    RowFacts,
    accusations,
    clocks_disagree,
    raised,
    suggested_warmup_rounds,
    why_replaced,
)
from perf_tests.bench.checked_rounds import Check, CheckedRounds, Draws
from perf_tests.bench.outcomes import ImpossibleError, SuspiciousError
from perf_tests.cases.case import Case
from perf_tests.hardware.bound import late_work, put_back, rate_of_clocks, shares_memory, time
from perf_tests.hardware.clock import Clock, busy_seconds
from perf_tests.hardware.device import CacheFlush, Device, begin_round, cache_state, count_compilations
from perf_tests.hardware.limits import Ceilings
from perf_tests.hardware.machine import OtherProcesses, RoundHealth, conditions, drifting_facts
from perf_tests.predict.expectation import MEASURED_AGAIN, Expectation, why_impossible
from perf_tests.records.record import Json
from perf_tests.user_code.guard import end_if_forked

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
    row: "Row | None"
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
    spent_seconds: dict[str, float] = field(default_factory=dict, init=False)
    """Warm-up and measured rounds with their set-ups, and first rounds that compiled, by `workbench.WORK`."""
    _checked: CheckedRounds = field(init=False)
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
        self._checked = CheckedRounds(rounds, self.device, self.draws)
        before = self._sentinel_seconds()
        found, facts = self._time(rounds)
        found["sentinel_seconds"] = [*before, *self._sentinel_seconds()] or None
        facts["replaced"] = put_back()
        if self.row.case.user_code and facts["replaced"]:  # before its results are judged
            raise SuspiciousError(why_replaced(facts["replaced"]))
        expected, again = self.row.expectation, self.row.measure_ceiling_again
        device_seconds = found["device_seconds"] or []
        if reason := expected and why_impossible(expected, facts["rounds_seconds"], device_seconds, again):
            raise ImpossibleError(reason)
        median_seconds = self.benchmark.stats["median"]
        checked = self._checked.finish(median_seconds)
        facts["same_again"] = None if checked is None else checked["same_again"]
        # After the last reading, because the round is not timed: its launches wait in the queue.
        found["device_busy_seconds"] = self._busy_seconds(rounds, has_slices="compile_cache" not in found)
        seed = None if self.draws is None or rounds.renew is None else self.draws.seed
        info = self.row.of(found, facts, median_seconds)
        self.benchmark.extra_info.update({**info, "values_seed": seed, "checked": checked})

    def _busy_seconds(self, rounds: Rounds, has_slices: bool) -> float | None:
        return busy_seconds(partial(self._prepare_measured, rounds), rounds.run, self.device, has_slices=has_slices)

    def _sentinel_seconds(self) -> list[float]:
        return [] if self.sentinel is None else [self.sentinel()]

    def _time(self, rounds: Rounds) -> tuple[Json, Json]:
        """Return the readings of clocks, allocator and compiler: as the record has them, and as `RowFacts` alone."""
        assert self.row is not None
        case = self.row.case
        gc.collect()
        allocated_before_bytes = self.device.allocated_bytes()
        before, compilations, started_under = self._drifting_facts(), count_compilations(), conditions()
        start = time.perf_counter()
        # The benchmark would show a case that fails in the warm-up as measured, so the warm-up runs outside of it.
        first = self._first_round(rounds) if self.warmup_rounds else {}
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
        seconds, parts, flushed_bytes = self.benchmark.stats["data"], self.clock.part_seconds, 0
        found: Json = dict(first)
        if compiled["graphs"]:
            found["compile_cache"] = cache_state(compiled)
            found["recompiles"] = (count_compilations() - first_compilations)["graphs"]
            found["cudagraph_skips"] = compiled["cudagraph_skips"]
        found["warmup_rounds_run"] = warmup_rounds_run
        if self.flush is not None:
            found["flushed_bytes"] = flushed_bytes = self.flush.bytes
        found |= {"before": before | started_under, "after": after | conditions(), **self.health.facts()}
        # The clock holds the warm-up rounds too, before the measured ones.
        found |= {"other_cores": other_cores, "device_seconds": self.clock.device_seconds[-self.rounds :] or None}
        # On a GPU the thread that waits for the device spins.
        found["cpu_seconds"] = self.clock.cpu_seconds[-self.rounds :] if case.device == "cpu" else None
        found["part_seconds"] = {part: values[-len(seconds) :] for part, values in parts.items()}
        for kind, peaks in zip(("allocated", "requested", "reserved"), zip(*self._peaks, strict=True), strict=True):
            # Of a graph's pool the allocator counts only what outlives a replay.
            is_known = None not in peaks and not (case.replays_cuda_graphs and kind != "reserved")
            found[f"peak_{kind}_bytes"] = max(peaks) - flushed_bytes if is_known else None
        # One scale more than rounds: a skipped step shows as a fall from the scale before its round.
        scales = self._loss_scales[-self.rounds - 1 :]
        found["skipped_steps"] = sum(later < earlier for earlier, later in pairwise(scales)) if scales else None
        found["compile_seconds"] = None
        if compiled["graphs"] and first:
            # Of the first calls, which generate the code and run it once: by its parts, or by set-up and target.
            in_parts = {part: of_rounds[0] for part, of_rounds in parts.items()}
            either = {"forward": first["first_setup_seconds"], "backward": first["first_round_seconds"]}
            whole = either if case.row.is_backward else {"forward": first["first_round_seconds"]}
            found["compile_seconds"] = {part: in_parts[part] for part in either if part in in_parts} or whole
            self.spent_seconds["compiling"] = sum(first.values())
        if allocated_before_bytes is not None:
            allocated_before_bytes -= flushed_bytes
        found["allocated_before_bytes"] = allocated_before_bytes
        return found, {
            "rounds_seconds": seconds,
            # On ranks a round's time is the slowest rank's.
            "raw_seconds": self.clock.raw_seconds[-self.rounds :] if case.ranks is None else (),
            "late_work": late,
            "shares_memory": shares_memory(rounds.result, self.inputs),
        }

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
            self._prepare_measured(rounds)
        self.clock.begin_round()

    def _prepare_measured(self, rounds: Rounds) -> None:
        rounds.prepare()
        if self.flush is not None:
            self.flush()

    def _first_round(self, rounds: Rounds) -> dict[str, float]:
        """Return the seconds of its set-up and of its target, timed apart because either may compile."""
        start = time.perf_counter()
        self._prepare(rounds, 0)
        self.device.synchronize()
        prepared = time.perf_counter()
        self.clock()
        rounds.run()
        self.clock()
        return {"first_setup_seconds": prepared - start, "first_round_seconds": time.perf_counter() - prepared}

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
            self.health.end_of_round()
            if self._checked.keeps_this:
                self._peaks.append(self.device.peaks())
                self._checked.end()
                self.device.start_peaks()

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


def settled(facts: RowFacts, is_user_code: bool) -> RowFacts:
    """Ask at which rate the system runs the clocks, if they disagree.

    Raises SuspiciousError for code of the user's whose facts no honest measurement shows.
    """
    if clocks_disagree(facts):
        facts = replace(facts, rate_of_clocks=rate_of_clocks())
    if is_user_code and (accused := accusations(facts)):
        raise SuspiciousError(" ".join(accused))
    return facts


@dataclass(frozen=True)
class Row:
    """What is known of a case before its rounds; `of` adds what they showed."""

    case: Case
    conditions: Json = field(default_factory=dict)
    """What a figure depends on besides the identity of its case."""
    asked_after: Callable[[], Json] = dict
    """Conditions that only a profiler tells, which may slow down what runs after it (pytorch/pytorch#144455)."""
    matmul_flops_per_second: float | None = None
    expectation: Expectation | None = None
    measure_ceiling_again: Callable[[str], float] | None = None
    """The current matrix-product rate in a precision, measured before a case is called impossible."""
    available_bytes: int | None = None
    empty_round_seconds: float | None = None
    """Wall time of a round without work; None where the device has no clock."""
    facts_of_rounds: Callable[[Sequence[float]], Json] = lambda sentinels: {}
    """Takes the case's sentinels, after its rounds; returns what the run knows of these, as `RowFacts`."""
    ceilings_again: Callable[[str], Ceilings | None] | None = None
    """The machine's ceilings with that precision's products and memory traffic measured once more."""

    def of(self, found: Json, beside: Json, median_seconds: float) -> Json:
        """Return `extra_info` of the record, flat. Raises SuspiciousError.

        `found` are the readings as the record has them, `beside` those that only `RowFacts` has.
        """
        case, expectation = self.case, self.expectation
        info: Json = {
            **case.identity(),
            **self.conditions,
            **self.asked_after(),
            **found,
            "model_flops": self._model_flops,
            "empty_round_seconds": self.empty_round_seconds,
            **self._rates(median_seconds),
            **({} if expectation is None else expectation.derived(median_seconds)),
            "suggested_warmup_rounds": suggested_warmup_rounds(beside["rounds_seconds"], found["warmup_rounds_run"]),
        }
        # Parts are this rank's, the round is the slowest one's.
        known = {name: value for name, value in info.items() if name != "part_seconds" or case.sharing is None}
        facts = RowFacts(
            **{field.name: known[field.name] for field in fields(RowFacts) if field.name in known},
            **beside,
            **self.facts_of_rounds(found["sentinel_seconds"] or ()),
            available_bytes=self.available_bytes,
            is_over_ceiling=expectation is not None and expectation.is_over_ceiling(median_seconds),
            over_roofline=self._over_roofline(median_seconds),
        )
        return info | {"flags": raised(settled(facts, bool(case.user_code)))}

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

    def _rates(self, median_seconds: float) -> Json:
        flops, ceiling = self._model_flops, self.matmul_flops_per_second
        rate = None if flops is None else flops / median_seconds
        # Fused kernels skip the masked half of the square, and checkpoints recompute.
        executes_all = self.case.attention == "naive" and self.case.identity().get("checkpoint", "none") == "none"
        is_user_code = self.case.user_model is not None or self.case.user_attention is not None
        if is_user_code and self.expectation is not None and self.expectation.counters is not None:
            executes_all = self.expectation.counters.executed_flops == flops
        return {
            "tokens_per_second": None if self.case.tokens is None else self.case.tokens / median_seconds,
            "tflops_per_second": None if rate is None else rate / 1e12,
            "matmul_ceiling_tflops_per_second": None if ceiling is None else ceiling / 1e12,
            "share_of_matmul_ceiling": rate / ceiling if rate and ceiling and executes_all else None,
        }

    @property
    def _model_flops(self) -> int | None:
        if self.expectation is None and self.case.user_model is not None:
            return None
        return self.case.model_flops if self.expectation is None else self.expectation.model_flops
