"""What a record says of a timed case: its identity, conditions, raw rounds, and the figures that follow from them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from perf_tests.audit import row_flags
from perf_tests.audit.steadiness import suggested_warmup_rounds
from perf_tests.bench.outcomes import ImpossibleError
from perf_tests.cases import Case
from perf_tests.prediction.expectation import Expectation, why_impossible
from perf_tests.records.record import FLAGS, Json


@dataclass(frozen=True)
class Timing:
    """What clocks, allocator and compiler say of the rounds of one case; lists are of the measured rounds."""

    seconds: list[float]
    median_seconds: float
    device_seconds: list[float]
    """Empty where the device has no clock."""
    cpu_seconds: list[float]
    all_part_seconds: dict[str, list[float]]
    """Of each part of a round, the warm-up rounds first."""
    rounds_seconds: float
    """Warm-up, measured rounds and every set-up."""
    first_setup_seconds: float | None
    """Of the first warm-up round; None without a warm-up."""
    first_round_seconds: float | None
    compiled_graphs: int
    compile_cache: str | None
    """Whether generated code was found (`warm`) or made (`cold`); None where PyTorch does not say."""
    recompiles: int
    """Graphs compiled after the first warm-up round."""
    loss_scales: list[float]
    """Before each measured round, and after the last."""
    before: Json
    after: Json
    """What drifts on a machine: clocks, heat, load."""
    health: Json
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None

    @property
    def first_compiled_seconds(self) -> float:
        """Of the first warm-up round, set-up included, where it compiled something."""
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
    """Of one case; `of` makes it from the rounds' timing."""

    case: Case
    warmup_rounds: int
    conditions: Json = field(default_factory=dict)
    """What a figure depends on beside the identity of its case."""
    matmul_flops_per_second: float | None = None
    expectation: Expectation | None = None
    measure_ceiling_again: Callable[[str], float] | None = None
    """The matrix product rate of this moment in a precision; asked before a case is called impossible."""
    available_bytes: int | None = None

    def refuse_the_impossible(self, timing: Timing) -> None:
        """Raises ImpossibleError for a time that this machine cannot reach."""
        if self.expectation is None:
            return
        reason = why_impossible(self.expectation, timing.seconds, timing.device_seconds, self.measure_ceiling_again)
        if reason is not None:
            raise ImpossibleError(reason)

    def of(self, timing: Timing) -> Json:
        """`extra_info` of the record, flat."""
        info: Json = {
            **self.case.identity(),
            **self.conditions,
            **_conditions_of(timing),
            "model_flops": self.case.model_flops,
            "device_seconds": timing.device_seconds or None,
            "cpu_seconds": timing.cpu_seconds,
            "part_seconds": timing.part_seconds,
            "peak_allocated_bytes": timing.peak_allocated_bytes,
            "peak_reserved_bytes": timing.peak_reserved_bytes,
            **self._rates(timing.median_seconds),
        }
        if self.expectation is not None:
            info.update(self.expectation.derived(timing.median_seconds))
        info["skipped_steps"] = timing.skipped_steps
        info["compile_seconds"] = self._compile_seconds(timing)
        info["suggested_warmup_rounds"] = suggested_warmup_rounds(timing.seconds, self.warmup_rounds)
        info["flags"] = self._flags(timing, info)
        return info

    def _rates(self, median_seconds: float) -> Json:
        flops, ceiling = self.case.model_flops, self.matmul_flops_per_second
        rate = None if flops is None else flops / median_seconds
        return {
            "tokens_per_second": self.case.tokens / median_seconds,
            "tflops_per_second": None if rate is None else rate / 1e12,
            "matmul_ceiling_tflops_per_second": None if ceiling is None else ceiling / 1e12,
            "share_of_matmul_ceiling": rate / ceiling if rate and ceiling and self._executes_model_flops else None,
        }

    @property
    def _executes_model_flops(self) -> bool:
        """Whether the arithmetic done is the arithmetic counted: fused kernels skip the masked half of the square."""
        return self.case.attention == "naive" and getattr(self.case, "checkpoint", "none") == "none"

    def _compile_seconds(self, timing: Timing) -> Json | None:
        """Seconds of the first calls, which generate the code and run it once; None without any, or without warm-up."""
        if not timing.compiled_graphs or timing.first_round_seconds is None:
            return None
        firsts = {part: seconds[0] for part, seconds in timing.all_part_seconds.items()}
        if parts := {part: seconds for part, seconds in firsts.items() if part in ("forward", "backward")}:
            return parts
        if self.case.phase in ("backward", "attention_backward"):
            return {"forward": timing.first_setup_seconds, "backward": timing.first_round_seconds}
        return {"forward": timing.first_round_seconds}

    def _flags(self, timing: Timing, info: Json) -> list[str]:
        rounds, predicted_peak_bytes = timing.seconds, info.get("predicted_peak_bytes")
        is_over_ceiling = self.expectation is not None and self.expectation.is_over_ceiling(timing.median_seconds)
        raised = {
            "math_attention": info.get("sdpa_backend") == "math",
            "recompiled": bool(info.get("recompiles")),
            "skipped_steps": bool(timing.skipped_steps),
            "outlier": row_flags.has_outlier(rounds),
            "short_warmup": info["suggested_warmup_rounds"] is not None,
            "trend": row_flags.has_trend(rounds),
            "throttled": bool(info["throttled_rounds"]),
            "over_ceiling": is_over_ceiling,
            "waits_for_host": row_flags.waits_for_host(rounds, info["device_seconds"], info.get("bound")),
            "parts_do_not_add_up": row_flags.parts_do_not_add_up(rounds, info["part_seconds"]),
            "paging": row_flags.may_page(rounds, predicted_peak_bytes, self.available_bytes),
            "peak_off": row_flags.peak_is_off(timing.peak_allocated_bytes, predicted_peak_bytes),
        }
        return [flag for flag in FLAGS if raised.get(flag)]


def _conditions_of(timing: Timing) -> Json:
    facts: Json = {}
    if timing.first_round_seconds is not None:
        facts = {"first_setup_seconds": timing.first_setup_seconds, "first_round_seconds": timing.first_round_seconds}
    if timing.compiled_graphs:
        facts |= {"compile_cache": timing.compile_cache, "recompiles": timing.recompiles}
    return {**facts, "before": timing.before, "after": timing.after, **timing.health}
