"""What all benchmarks of one run share: device, clock, memory budget, ceilings, and what is kept of the run."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import pytest
import torch

from perf_tests_suite.model.compilation import forget_compiled
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.audit.rounds import RowFacts, why_replaced
from perf_tests_suite.perf_tests.bench.checked_rounds import drawn_seed
from perf_tests_suite.perf_tests.bench.models import Refusals, refusal_of, refusals
from perf_tests_suite.perf_tests.bench.outcomes import Outcome, why_too_large
from perf_tests_suite.perf_tests.bench.recording import MeasuringSession
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.devices import why_unsupported
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.hardware import clock as roofline
from perf_tests_suite.perf_tests.hardware.bound import put_back, time
from perf_tests_suite.perf_tests.hardware.clock import Clock, sentinel_bytes
from perf_tests_suite.perf_tests.hardware.datasheets import CudaLibraries, gpu_named, rate_name
from perf_tests_suite.perf_tests.hardware.device import CacheFlush, Device, error_text, is_out_of_memory, open_device
from perf_tests_suite.perf_tests.hardware.limits import Ceilings, Rate
from perf_tests_suite.perf_tests.hardware.machine import (
    GpuHealth,
    NoHealthError,
    OtherProcesses,
    RunsBeside,
    open_gpu_health,
)
from perf_tests_suite.perf_tests.predict import machine as machine_ceilings
from perf_tests_suite.perf_tests.predict.cuda_rules import libraries_here
from perf_tests_suite.perf_tests.predict.expectation import Expectation, expect
from perf_tests_suite.perf_tests.predict.kept import kept_counters_or_reason

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.bench.ranks import Groups, Peers


CHANGED = 1.1
"""A product that runs this many times the kept rate is of another machine: all ceilings are measured again."""
SAME = 1.03
"""A kept rate is confirmed, and the measuring stops, by a product within this factor of it."""

PART_OF_ROUNDS = "compiling"
WORK = ("rounds", PART_OF_ROUNDS, "communication", "building", "counting", "passes")


@dataclass
class Workbench:
    """Made once per run, before any model."""

    settings: Settings
    device: Device
    clock: Clock
    budget_bytes: int
    budget_of_what: str = ""
    """What limits the budget, in words that continue "may be used"."""
    spent_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WORK, 0.0))
    """Seconds by kind of work; `compiling`, first rounds that generated code, is part of `rounds`."""
    session: MeasuringSession | None = None
    """The journal and progress of the run; None where nothing is measured."""
    groups: "Groups | None" = None
    """Process groups of the ranks; None where there is one process."""
    refused_attentions: Refusals = field(default_factory=dict)
    replaced_by: dict[str, list[str]] = field(default_factory=dict)
    """What the import of each file or module replaced of clocks, judges and the suite; it is put back."""
    replaced: list[str] = field(default_factory=list)
    """The same of any other code of the user's, or of a check of it."""
    known_to_fit: frozenset[Case] = frozenset()
    """Cases that an earlier process measured: their memory is not counted again."""
    values_seed: int = field(default_factory=drawn_seed)
    """The seed of the inputs in each round; made after the user's code is imported, unless it was typed."""
    health: GpuHealth | None = None
    why_no_health: str | None = None
    """A sentence where the state of a GPU cannot be read."""
    others: OtherProcesses = field(default_factory=OtherProcesses)
    beside: RunsBeside | None = None
    """Other runs on this machine; None where nothing is measured."""
    _least_sentinel_seconds: float = math.inf
    doubts: list[str] = field(default_factory=list)
    """Sentences on kept ceilings that this run did not confirm."""
    _rates: dict[str, Rate] = field(default_factory=dict)
    _machine: Ceilings | None = None
    _is_kept: bool = False
    """Whether the machine's ceilings were read from the cache."""
    _is_out_of_memory: bool = False
    """Whether there was too little memory to measure them."""

    def with_run(self, since: float, threads: int, facts: RowFacts) -> RowFacts:
        """Return the facts with what the run knows of rounds that began at a moment, between two sentinels."""
        self._least_sentinel_seconds = least = min((self._least_sentinel_seconds, *(facts.sentinel_seconds or ())))
        return replace(
            facts,
            threads=threads if self.device.torch_device.type == "cpu" else 1,
            least_sentinel_seconds=least if math.isfinite(least) else None,
            is_beside_a_run=self.beside is not None and self.beside.seen_since(since),
        )

    @cached_property
    def empty_round_seconds(self) -> float | None:
        """Measure a round without work on this device, once; None on a CPU, whose rounds hold their work alone."""
        return roofline.empty_round_seconds(Clock(self.device), self.device)

    @property
    def disabled(self) -> bool:
        """Whether every benchmark only runs once, as a test."""
        return self.session is None

    def why_not(self, case: Case) -> Outcome | None:
        """Say why the case is not tried; None where it is."""
        earlier = self.session.contents.outcomes if self.session else []
        device = self.device.torch_device
        gpus = 0 if self.groups is None else self.groups.peers.gpus
        if reason := why_unsupported(case, device) or case.why_unsupported_on_ranks(gpus):
            return Outcome("unsupported", reason)
        of_its_own = (self.replaced_by.get(code.rpartition(":")[0], []) for code in case.user_code)
        if case.user_code and (replaced := [*self.replaced, *chain.from_iterable(of_its_own)]):
            return Outcome("suspicious", why_replaced(replaced))
        if (refusal := refusal_of(case, self.refused_attentions, device)) or case in self.known_to_fit:
            return refusal
        with self.spending("counting"):
            return why_too_large(case, self.budget_bytes, earlier, self.budget_of_what)

    def check_attentions(self, cases: Iterable[Case]) -> None:
        """Check the user's functions: from here on the cases of one that is wrong, or fails, are not tried."""
        self.replaced += put_back()  # by the import of any code of the user's
        with self.spending("building"):
            self.refused_attentions = refusals(cases, self.device.torch_device)
        self.replaced += put_back()
        forget_compiled()

    def halve_memory(self) -> int:
        """Halve the budget for base and head of the gate, which are in memory at the same time.

        Returns what each may use, in bytes. A case has less, because each side keeps its sentinels.
        """
        half_bytes = max(0, self.budget_bytes - self.device.kept_free_bytes) // 2
        self.budget_bytes = max(0, half_bytes - sentinel_bytes(self.device.torch_device))
        self.budget_of_what += " by each of base and head, which are in memory at the same time"
        return half_bytes

    def ceiling(self, precision: str) -> float:
        """Return this machine's highest matrix-product rate in FLOP/s, measured in this run or confirmed by it.

        Kept ceilings are held against a product: a faster machine is measured again, a slower one is said to be.
        """
        if precision in self._rates:
            return self._rates[precision].burst
        with self.spending("counting"):
            ceilings, name = self._ceilings(), rate_name(precision)
            if ceilings is None or name not in ceilings.matmul_flops_per_second:
                rate = self._measured_rate(precision)
            else:
                rate = Rate(ceilings.highest_flops_per_second[name], ceilings.matmul_flops_per_second[name])
                if self._is_kept:  # otherwise it was measured a moment ago
                    known, rate = rate, self._measured_rate(precision, rate.burst / SAME)
                    if rate.burst > CHANGED * known.burst:
                        self._machine, self._is_kept = machine_ceilings.ceilings_of_now(self.device), False
                    elif rate.burst * CHANGED < known.burst:
                        self.doubts.append(
                            f"Products in {precision} reach {rate.burst / known.burst:.0%} of the rate kept in "
                            f"{machine_ceilings.cache_path(self.device.torch_device)}: the machine is busy, or slower "
                            "than it was; remove that file to measure it again."
                        )
                    else:
                        rate = rate.best_with(known)
            self._rates[precision] = rate
        return rate.burst

    def measure_ceiling_again(self, precision: str) -> float:
        """Measure once more; returns the best rate so far, in FLOP/s."""
        rate = self._measured_rate(precision)
        self._rates[precision] = rate.best_with(self._rates.get(precision, rate))
        return self._rates[precision].burst

    def _measured_rate(self, precision: str, enough: float = math.inf) -> Rate:
        rate = roofline.matmul_rate(PRECISIONS[precision], self.device, enough)
        self.device.release_memory()
        return rate

    def expect(self, case: Case) -> Expectation:
        """Return what is expected of the case by its exact counters and the machine's ceilings."""
        ceilings, gpu = self.ceilings_for(case.precision), None
        if self.device.torch_device.type == "cuda":
            with suppress(ValueError):  # an unknown card
                gpu = gpu_named(torch.cuda.get_device_name(self.device.torch_device))
        with self.spending("counting"):
            return expect(case, ceilings, gpu, self.libraries, kept_counters_or_reason)

    @property
    def libraries(self) -> CudaLibraries | None:
        """The CUDA libraries of this GPU; None on a CPU."""
        return libraries_here(self.device.torch_device)

    @contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """Add the time inside to `spent_seconds`, less what other kinds of work inside of it took."""
        start, others = time.perf_counter(), self._named_seconds
        yield
        self.spent_seconds[kind] += time.perf_counter() - start - (self._named_seconds - others)

    @property
    def _named_seconds(self) -> float:
        return sum(seconds for kind, seconds in self.spent_seconds.items() if kind != PART_OF_ROUNDS)

    def ceilings_for(self, precision: str) -> Ceilings | None:
        """Return this machine's ceilings, with the better of the rates measured earlier and in this run."""
        self.ceiling(precision)
        ceilings = self._ceilings()
        return ceilings and ceilings.with_rate(rate_name(precision), self._rates[precision])

    def ceilings_again(self, precision: str) -> Ceilings | None:
        """Measure products and memory traffic once more; returns the best of all so far."""
        self.measure_ceiling_again(precision)
        if self._machine is not None:
            best = max(self._machine.bytes_per_second, roofline.memory_rate(self.device).burst)
            self._machine = replace(self._machine, bytes_per_second=best)
        return self.ceilings_for(precision)

    def _ceilings(self) -> Ceilings | None:
        """Measure or read them at the first call; None without the memory to measure them."""
        if self._machine is not None or self._is_out_of_memory:
            return self._machine
        try:
            kept = machine_ceilings.kept_ceilings(self.device)
            self._machine, self._is_kept = kept or machine_ceilings.ceilings_of_now(self.device), kept is not None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._is_out_of_memory = True
        return self._machine

    def rounds(self, case: Case) -> int:
        return case.rounds(self.settings)

    def warmup_rounds(self, case: Case) -> int:
        return max(self.settings.warmup_rounds, case.fewest_warmup_rounds)

    def cache_flush(self, case: Case) -> CacheFlush | None:
        """Return what to call before each measured round of a case with cold caches; None for other cases."""
        return CacheFlush(self.device.torch_device) if case.cache == "cold" else None

    @property
    def neighbours(self) -> list[str]:
        """Sentences on runs that were seen to measure at the same time."""
        return [] if self.beside is None else self.beside.sentences()

    def on_round(self, number: int) -> None:
        if self.session is not None:
            self.session.progress.round(number)
        if self.beside is not None:
            self.beside.scan_if_due()


def set_up(settings: Settings, peers: "Peers | None" = None) -> Workbench:
    """Prepare this process: device, threads, and a limit that makes running out of memory an error.

    Raises pytest.UsageError where the device cannot be used.
    """
    torch.set_num_threads(settings.threads)
    try:
        device = open_device(torch.device(settings.device))
        available_bytes = device.available_bytes()
        if peers is not None and device.torch_device.type == "cpu":
            available_bytes //= peers.launched.local_world
        budget_bytes = min(settings.memory_budget_bytes or available_bytes, available_bytes)
        device.limit_memory(budget_bytes)
        memory = device.memory_state()
    except RuntimeError as error:
        raise pytest.UsageError(
            f"{settings.device} cannot be used: {error_text(error).rstrip('.')}; see what nvidia-smi says of it, "
            "or measure with --device cpu."
        ) from error
    workbench = Workbench(settings, device, Clock(device), budget_bytes, f" ({memory})" if memory else "")
    if peers is not None:
        from perf_tests_suite.perf_tests.bench.ranks import Groups, RankClock

        workbench.clock, workbench.groups = RankClock(device), Groups(peers, device.torch_device)
    if device.torch_device.type == "cuda":
        try:
            workbench.health = open_gpu_health(device.torch_device)
        except NoHealthError as error:
            workbench.why_no_health = str(error)
    return workbench
