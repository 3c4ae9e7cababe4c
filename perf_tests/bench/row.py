"""The row of a timed case: its identity, conditions, raw rounds, and the figures derived from them."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import pairwise

from perf_tests.audit.rounds import RowFacts, raised, suggested_warmup_rounds
from perf_tests.bench.outcomes import ImpossibleError
from perf_tests.cases.case import Case
from perf_tests.predict.step import Expectation, why_impossible
from perf_tests.records.record import Json


@dataclass(frozen=True)
class Timing:
    """Readings of the clocks, allocator and compiler over one case; lists are of the measured rounds."""

    seconds: list[float]
    median_seconds: float
    device_seconds: list[float]
    """Elapsed time in the device's stream, host stalls included; empty where the device has no clock."""
    cpu_seconds: list[float]
    all_part_seconds: dict[str, list[float]]
    """By part of a round, warm-up rounds first."""
    warmup_rounds_run: int
    """As many as were asked for, and on a GPU as many more as its clocks needed."""
    rounds_seconds: float
    """Warm-up and measured rounds with their set-ups."""
    first_setup_seconds: float | None
    """None without a warm-up, as is the next."""
    first_round_seconds: float | None
    compiled_graphs: int
    compile_cache: str | None
    """`warm` if the generated code was found, `cold` if it was made; None where PyTorch does not say."""
    recompiles: int
    """Graphs compiled after the first warm-up round."""
    cudagraph_skips: int
    """Compiled graphs of which torch.compile made no CUDA graph although asked to."""
    loss_scales: list[float]
    """Before each measured round, and after the last."""
    drift: Json
    """`before` and `after` the rounds: clocks, temperature, load; and the GPU's health in between."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    allocated_before_bytes: int | None
    """Before the first round: model, inputs and whatever earlier cases left."""
    flushed_bytes: int | None
    """Written before each measured round to flush the caches; None where they are warm."""
    device_busy_seconds: float | None = None
    """Of one more round whose launches waited in the queue, so that the device never waited; None where unknown:
    on a CPU, where the host waits for the device, and for compiled code of more launches than the queue takes."""

    sentinel_seconds: list[float] = field(default_factory=list)
    """Of a product that no change of the code affects, before the first round and after the last."""

    @property
    def first_compiled_seconds(self) -> float:
        """The first warm-up round with its set-up, where it compiled anything."""
        if not self.compiled_graphs:
            return 0.0
        return (self.first_setup_seconds or 0.0) + (self.first_round_seconds or 0.0)

    @property
    def part_seconds(self) -> dict[str, list[float]]:
        return {part: values[-len(self.seconds) :] for part, values in self.all_part_seconds.items()}

    @property
    def skipped_steps(self) -> int | None:
        if not self.loss_scales:
            return None
        return sum(later < earlier for earlier, later in pairwise(self.loss_scales))


@dataclass(frozen=True)
class Row:
    """What is known of a case before its rounds; `of` adds their timing."""

    case: Case
    conditions: Json = field(default_factory=dict)
    """What a figure depends on besides the identity of its case."""
    matmul_flops_per_second: float | None = None
    expectation: Expectation | None = None
    measure_ceiling_again: Callable[[str], float] | None = None
    """The current matrix-product rate in a precision, measured before a case is called impossible."""
    available_bytes: int | None = None

    def refuse_the_impossible(self, timing: Timing) -> None:
        """Raises ImpossibleError for a time below this machine's minimum."""
        if self.expectation is None:
            return
        reason = why_impossible(self.expectation, timing.seconds, timing.device_seconds, self.measure_ceiling_again)
        if reason is not None:
            raise ImpossibleError(reason)

    def of(self, timing: Timing) -> Json:
        """`extra_info` of the record, flat."""
        first = {name: getattr(timing, name) for name in ("first_setup_seconds", "first_round_seconds")}
        compilation = {name: getattr(timing, name) for name in ("compile_cache", "recompiles", "cudagraph_skips")}
        info: Json = {
            **self.case.identity(),
            **self.conditions,
            **(first if timing.first_round_seconds is not None else {}),
            **(compilation if timing.compiled_graphs else {}),
            "warmup_rounds_run": timing.warmup_rounds_run,
            **({} if timing.flushed_bytes is None else {"flushed_bytes": timing.flushed_bytes}),
            **timing.drift,
            "sentinel_seconds": timing.sentinel_seconds or None,
            "model_flops": self._model_flops,
            "device_seconds": timing.device_seconds or None,
            # On a GPU the thread that waits for the device spins.
            "cpu_seconds": timing.cpu_seconds if self.case.device == "cpu" else None,
            "device_busy_seconds": timing.device_busy_seconds,
            "part_seconds": timing.part_seconds,
            # Of a graph's pool the allocator counts only what outlives a replay.
            "peak_allocated_bytes": None if self.case.replays_cuda_graphs else timing.peak_allocated_bytes,
            "peak_reserved_bytes": timing.peak_reserved_bytes,
            **self._rates(timing.median_seconds),
        }
        if self.expectation is not None:
            info |= self.expectation.derived(timing.median_seconds)
        info["skipped_steps"] = timing.skipped_steps
        info["compile_seconds"] = self._compile_seconds(timing)
        info["suggested_warmup_rounds"] = suggested_warmup_rounds(timing.seconds, timing.warmup_rounds_run)
        info["flags"] = self._flags(timing, info)
        info["allocated_before_bytes"] = timing.allocated_before_bytes
        return info

    def _rates(self, median_seconds: float) -> Json:
        flops, ceiling = self._model_flops, self.matmul_flops_per_second
        rate = None if flops is None else flops / median_seconds
        return {
            "tokens_per_second": None if self.case.tokens is None else self.case.tokens / median_seconds,
            "tflops_per_second": None if rate is None else rate / 1e12,
            "matmul_ceiling_tflops_per_second": None if ceiling is None else ceiling / 1e12,
            "share_of_matmul_ceiling": rate / ceiling if rate and ceiling and self._executes_model_flops else None,
        }

    @property
    def _model_flops(self) -> int | None:
        if self.expectation is None and self.case.own is not None:
            return None
        return self.case.model_flops if self.expectation is None else self.expectation.model_flops

    @property
    def _executes_model_flops(self) -> bool:
        """Fused kernels skip the masked half of the square, and checkpoints recompute."""
        is_own = self.case.own is not None or self.case.own_attention is not None
        if is_own and self.expectation is not None and self.expectation.counters is not None:
            return self.expectation.counters.executed_flops == self._model_flops
        return self.case.attention == "naive" and self.case.identity().get("checkpoint", "none") == "none"

    def _compile_seconds(self, timing: Timing) -> Json | None:
        """Seconds of the first calls, which generate the code and run it once; None without compilation or warm-up."""
        if not timing.compiled_graphs or timing.first_round_seconds is None:
            return None
        firsts = {part: seconds[0] for part, seconds in timing.all_part_seconds.items()}
        if parts := {part: seconds for part, seconds in firsts.items() if part in ("forward", "backward")}:
            return parts
        if self.case.row.is_backward:
            return {"forward": timing.first_setup_seconds, "backward": timing.first_round_seconds}
        return {"forward": timing.first_round_seconds}

    def _flags(self, timing: Timing, info: Json) -> list[str]:
        # Parts are this rank's, the round is the slowest one's.
        known = {name: value for name, value in info.items() if name != "part_seconds" or self.case.sharing is None}
        facts = RowFacts(
            **{field.name: known[field.name] for field in fields(RowFacts) if field.name in known},
            rounds_seconds=timing.seconds,
            available_bytes=self.available_bytes,
            is_over_ceiling=self.expectation is not None and self.expectation.is_over_ceiling(timing.median_seconds),
        )
        return raised(facts)
