"""How long a case takes with everything around its rounds: a closed form, for progress, time limits and fair shares.

The exact counters would say more, but counting a whole grid takes minutes.
"""

import pytest

from perf_tests.bench.stash import CASE, PASS
from perf_tests.cases.case import Case
from perf_tests.cases.collective_alone import CollectiveCase
from perf_tests.counting.case_counters import update_flops
from perf_tests.limits.ceilings import Ceilings, ceilings_of
from perf_tests.limits.datasheets import gpu_named
from perf_tests.options.settings import Settings
from perf_tests.passes.every_pass import EVERY_PASS
from perf_tests.phases import FORWARD_PASSES

NOMINAL = {
    "cpu": Ceilings(
        name="a CPU",
        matmul_flops_per_second={"fp32": 1e11},
        bytes_per_second=2e10,
        launch_seconds=1e-5,
        backward_launch_seconds=2e-5,
        bare_launch_seconds=1e-5,
        launches_overlap=False,
        source="round figures",
    ),
    "cuda": ceilings_of(gpu_named("H100")),
}
"""Stand in for this machine where its figures are unknown, or must be the same on every machine."""

_FORWARD_PASSES = {**FORWARD_PASSES, "optimizer": 0.5}
LAUNCHES_PER_BLOCK = 50
"""Of an eager forward pass: 46 in fp32, 62 in bf16, by the ledger of exact counters."""
USES_PER_BYTE = 3
"""What a round holds is written once and read about twice."""
COMPILING_SECONDS_PER_BLOCK = 5.0
COLLECTIVE_BYTES_PER_SECOND = {"gloo": 2.5e8, "nccl": 1e10}
OVERHEAD_SECONDS = {None: 2.0, "kernels": 5.0, "memory": 5.0, "warmup": 60.0}
"""By pass: building, counting, processes. These and compiling are rough, and hold until a like case is measured."""


def predicted_seconds(item: pytest.Item, settings: Settings, ceilings: Ceilings | None = None) -> float:
    """Of a benchmark's case or pass; by `ceilings`, or on the nominal machine."""
    case, extra_pass = item.stash[CASE], item.stash[PASS]
    rounds = case.rounds(settings)
    if extra_pass is None:
        rounds += settings.warmup_rounds
    else:
        rounds = EVERY_PASS[extra_pass].rounds_of(case.phase, rounds)
    compiling = COMPILING_SECONDS_PER_BLOCK * case.blocks if case.is_compiled else 0.0
    round_seconds = _round_seconds(case, ceilings or NOMINAL[case.device])
    return OVERHEAD_SECONDS[extra_pass] + compiling + rounds * round_seconds


def _round_seconds(case: Case, ceilings: Ceilings) -> float:
    """Its set-up included."""
    if isinstance(case, CollectiveCase):
        return case.message_bytes / COLLECTIVE_BYTES_PER_SECOND[case.backend]
    passes = sum(_FORWARD_PASSES.get(part, 0.0) for part in case.row.parts)
    rates = ceilings.matmul_flops_per_second
    rate = rates.get(case.precision.removesuffix("-unscaled")) or rates["fp32"]
    launching = LAUNCHES_PER_BLOCK * case.blocks * ceilings.launch_seconds * ceilings.host_spread
    moving = USES_PER_BYTE * case.held_bytes / ceilings.bytes_per_second
    updating = update_flops(case) / rates["fp32"]
    return passes * (_forward_flops(case) / rate + launching) + updating + moving


def _forward_flops(case: Case) -> int:
    """Of a model of the user's own the products with its weights alone."""
    return case.forward_flops if case.own is None else 2 * (case.tokens or 0) * (case.parameters or 0)
