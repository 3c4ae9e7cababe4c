"""One case under pytest-benchmark: warm-up, rounds, and what is written down about them."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Protocol

from perf_tests.audit.row_flags import RowFacts, raised
from perf_tests.audit.steadiness import suggested_warmup_rounds
from perf_tests.bench.outcomes import ImpossibleError
from perf_tests.cases import Case
from perf_tests.instruments.clock import Clock
from perf_tests.instruments.compilation import count_compilations
from perf_tests.instruments.device import Device
from perf_tests.instruments.machine import drifting_facts
from perf_tests.instruments.round_health import RoundHealth
from perf_tests.prediction.expectation import Expectation, why_impossible
from perf_tests.records.record import Json


class Benchmark(Protocol):
    """The public face of pytest-benchmark's fixture, as far as it is used here."""

    disabled: bool
    extra_info: dict[str, Any]
    stats: Any

    def pedantic(
        self, target: Callable[..., Any], *, setup: Callable[[], Any], rounds: int, warmup_rounds: int
    ) -> object: ...


@dataclass
class Measure:
    """Times `target`; call it once in a test. `rounds_seconds` is what warm-up, rounds and their set-up took."""

    benchmark: Benchmark
    case: Case
    clock: Clock
    device: Device
    rounds: int
    warmup_rounds: int
    matmul_flops_per_second: float | None
    conditions: Json
    on_round: Callable[[int], None]
    """Told the number of each round before its set-up; warm-up rounds come first."""
    expectation: Expectation | None = None
    measure_ceiling_again: Callable[[str], float] | None = None
    """The matrix product rate of this moment in a precision; asked before a case is called impossible."""
    available_bytes: int | None = None
    health: RoundHealth = field(default_factory=lambda: RoundHealth(None))
    rounds_seconds: float = 0.0
    first_call_seconds: float = 0.0
    _arguments: tuple[Any, ...] = ()
    _result: Any = None
    _round: int = 0
    _loss_scales: list[float] = field(default_factory=list)

    def __call__(
        self,
        target: Callable[..., Any],
        setup: Callable[[], tuple[Any, ...] | None] | None = None,
        loss_scale: Callable[[], float] | None = None,
    ) -> Any:
        """The result of the last of all rounds of `target(*setup())`; only `target` is timed.

        `loss_scale` is read before each round; a fall between two tells of a skipped optimizer step.
        """

        def prepare() -> None:
            self._ask_health()
            # Free the last round's graph now, or two of them would be alive at once. For the same reason the
            # arguments are kept here: the benchmark would hold them until the next ones are there.
            self._arguments, self._result = (), None
            self.on_round(self._round)
            if self._round == self.warmup_rounds:
                if self._round:
                    self.device.make_room()
                self.device.start_peaks()
            if loss_scale is not None:
                self._loss_scales.append(loss_scale())
            self._arguments = (setup() if setup is not None else None) or ()
            self._round += 1
            self.clock.begin_round()

        def timed() -> None:
            self._result = target(*self._arguments)

        self.clock.forget()
        if self.benchmark.disabled:
            self.benchmark.pedantic(timed, setup=prepare, rounds=1, warmup_rounds=0)
            return self._result
        self._measure(timed, prepare)
        if loss_scale is not None:
            self._loss_scales.append(loss_scale())
        self._refuse_the_impossible()
        self._write_down()
        return self._result

    def _measure(self, timed: Callable[[], None], prepare: Callable[[], None]) -> None:
        gc.collect()
        before, compilations = self._drifting_facts(), count_compilations()
        start = time.perf_counter()
        warmup_rounds = self.warmup_rounds
        if warmup_rounds:
            # The first round runs outside of the benchmark, which would show a case that fails in it as measured.
            self._first_round(timed, prepare)
            warmup_rounds -= 1
        first_compilations = count_compilations()
        self.benchmark.pedantic(timed, setup=prepare, rounds=self.rounds, warmup_rounds=warmup_rounds)
        self.device.synchronize()
        self._ask_health()
        self.rounds_seconds = time.perf_counter() - start
        all_compilations = count_compilations()
        if all_compilations.since(compilations).graphs:
            self.conditions["compile_cache"] = all_compilations.since(compilations).cache_state
            self.conditions["recompiles"] = all_compilations.since(first_compilations).graphs
        self.conditions["before"], self.conditions["after"] = before, self._drifting_facts()
        self.conditions.update(self.health.facts())

    def _drifting_facts(self) -> Json:
        return drifting_facts(self.device.torch_device, self.health.health)

    def _ask_health(self) -> None:
        """Between two rounds: the one before has just ended."""
        if self._round == self.warmup_rounds:
            self.health.begin()
        elif self._round > self.warmup_rounds:
            self.health.end_of_round()

    def _first_round(self, timed: Callable[[], None], prepare: Callable[[], None]) -> None:
        """One warm-up round by hand, its set-up and its call timed apart: compiled code is generated in either."""
        start = time.perf_counter()
        prepare()
        self.device.synchronize()
        prepared = time.perf_counter()
        self.clock()
        timed()
        self.clock()
        self.first_call_seconds = time.perf_counter() - start
        self.conditions["first_setup_seconds"] = prepared - start
        self.conditions["first_round_seconds"] = time.perf_counter() - prepared

    def _write_down(self) -> None:
        info = self.benchmark.extra_info
        info.update(self.case.identity())
        info.update(self.conditions)
        info["model_flops"] = self.case.model_flops
        info["device_seconds"] = self.clock.device_seconds[-self.rounds :] or None
        info["cpu_seconds"] = self.clock.cpu_seconds[-self.rounds :]
        info["part_seconds"] = {part: values[-self.rounds :] for part, values in self.clock.part_seconds.items()}
        info["peak_allocated_bytes"] = self.device.peak_allocated_bytes()
        info["peak_reserved_bytes"] = self.device.peak_reserved_bytes()
        info.update(self._derived(self.benchmark.stats["median"]))
        if self.expectation is not None:
            info.update(self.expectation.derived(self.benchmark.stats["median"]))
        info["skipped_steps"] = self._skipped_steps()
        info["compile_seconds"] = self._compile_seconds()
        info["suggested_warmup_rounds"] = suggested_warmup_rounds(self.benchmark.stats["data"], self.warmup_rounds)
        info["flags"] = self._flags(info)

    def _derived(self, median_seconds: float) -> Json:
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

    def _skipped_steps(self) -> int | None:
        scales = self._loss_scales[-self.rounds - 1 :]
        if not scales:
            return None
        return sum(later < earlier for earlier, later in pairwise(scales))

    def _compile_seconds(self) -> Json | None:
        """Seconds of the first calls, which generate the code and run it once; None without any, or without warm-up."""
        if "compile_cache" not in self.conditions or "first_round_seconds" not in self.conditions:
            return None
        parts = {part: values[0] for part, values in self.clock.part_seconds.items() if part in ("forward", "backward")}
        if parts:
            return parts
        if self.case.phase in ("backward", "attention_backward"):
            setup = self.conditions["first_setup_seconds"]
            return {"forward": setup, "backward": self.conditions["first_round_seconds"]}
        return {"forward": self.conditions["first_round_seconds"]}

    def _refuse_the_impossible(self) -> None:
        """Raises ImpossibleError, the rounds kept, for a time that this machine cannot reach."""
        if self.expectation is None:
            return
        device_seconds = self.clock.device_seconds[-self.rounds :]
        rounds = self.benchmark.stats["data"]
        reason = why_impossible(self.expectation, rounds, device_seconds, self.measure_ceiling_again)
        if reason is not None:
            raise ImpossibleError(reason)

    def _is_over_ceiling(self) -> bool:
        return self.expectation is not None and self.expectation.is_over_ceiling(self.benchmark.stats["median"])

    def _flags(self, info: Json) -> list[str]:
        facts = {field.name: info[field.name] for field in fields(RowFacts) if field.name in info}
        return raised(
            RowFacts(
                **facts,
                rounds_seconds=self.benchmark.stats["data"],
                available_bytes=self.available_bytes,
                is_over_ceiling=self._is_over_ceiling(),
            )
        )
