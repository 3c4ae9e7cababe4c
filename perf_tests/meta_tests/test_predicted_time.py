"""Predicted seconds follow the roofline and the launches, and name what bounds them."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from perf_tests.limits.ceilings import (
    BACKWARD_LAUNCH_SECONDS,
    CARDS_WITH_64_LANES,
    FP32_EFFICIENCY_WITH_64_LANES,
    LAUNCH_SECONDS,
    Ceilings,
    ceilings_of,
)
from perf_tests.limits.datasheets import GPUS, gpu_named
from perf_tests.limits.predicted_time import Part, predicted_time

MACHINE = Ceilings(
    name="a round machine",
    matmul_flops_per_second={"fp32": 1e12},
    bytes_per_second=1e9,
    launch_seconds=1e-3,
    backward_launch_seconds=2e-3,
    launches_overlap=True,
    source="made up",
)


@dataclass(frozen=True)
class Group:
    name: str
    calls: int
    flops: int
    bytes: int
    rate: str


PRODUCT = Group("aten.mm", calls=2, flops=10**12, bytes=10**6, rate="fp32")
"""A second each, bound by arithmetic."""
SUM = Group("aten.add", calls=3, flops=0, bytes=10**9, rate="")
"""A second each, bound by memory."""


def test_what_overlaps_is_not_added_up() -> None:
    found = predicted_time([Part(1000, [PRODUCT, SUM])], MACHINE)
    assert (found.seconds, found.launching_seconds, found.bound) == (5.0, 1.0, "memory")


@pytest.mark.parametrize(
    "launches, kernels, seconds, bound",
    [
        (9000, [PRODUCT, SUM], 9.0, "launch"),
        (10, [PRODUCT], 2.0, "compute"),
        (10, [SUM], 3.0, "memory"),
        (0, [], 0.0, "launch"),
    ],
)
def test_the_slowest_bounds_the_phase(launches: int, kernels: list[Group], seconds: float, bound: str) -> None:
    found = predicted_time([Part(launches, kernels)], MACHINE)
    assert (found.seconds, found.bound) == (seconds, bound)


def test_a_kernel_takes_the_later_of_arithmetic_and_traffic() -> None:
    thin = Group("aten.mm", calls=1, flops=10**12, bytes=4 * 10**9, rate="fp32")
    assert predicted_time([Part(0, [thin])], MACHINE).seconds == 4.0


def test_going_back_has_launches_of_its_own() -> None:
    assert predicted_time([Part(100, [], is_backward=True)], MACHINE).seconds == pytest.approx(0.2)


def test_a_device_idles_in_a_part_that_launches_bound_and_works_on_in_the_next() -> None:
    """4 s of launches that hide 2 s of kernels, then 3 s of kernels that nothing hides."""
    found = predicted_time([Part(4000, [PRODUCT]), Part(10, [SUM])], MACHINE)
    assert found.seconds == pytest.approx(7.0)


def test_launches_run_ahead_while_the_device_is_busy() -> None:
    """3 s of kernels, then 2 s of launches for 2 s of kernels: the host is through before the device."""
    found = predicted_time([Part(1, [SUM]), Part(2000, [PRODUCT])], MACHINE)
    assert found.seconds == pytest.approx(5.0)


def test_a_cpu_does_both_itself() -> None:
    cpu = replace(MACHINE, launches_overlap=False)
    assert predicted_time([Part(1000, [SUM])], cpu).seconds == pytest.approx(4.0)


def test_shares_are_of_the_predicted_time() -> None:
    found = predicted_time([Part(1000, [PRODUCT, SUM])], MACHINE)
    assert found.shares == {"launch": 0.2, "compute": 0.4, "memory": 0.6}


def test_a_precision_without_a_rate_is_an_error_that_names_those_with_one() -> None:
    with pytest.raises(ValueError, match=r"a round machine has no rate .* in bf16; it has fp32"):
        predicted_time([Part(1, [replace(PRODUCT, rate="bf16")])], MACHINE)


def test_without_tensor_cores_tf32_runs_in_the_units_of_float32() -> None:
    assert predicted_time([Part(1, [replace(PRODUCT, rate="tf32")])], MACHINE).seconds == 2.0


@pytest.mark.parametrize("field", ["bytes_per_second", "launch_seconds"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_ceiling_that_is_none_is_refused(field: str, value: float) -> None:
    change: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=field):
        replace(MACHINE, **change)


@pytest.mark.parametrize("name", GPUS)
def test_no_ceiling_lies_above_its_datasheet(name: str) -> None:
    gpu = GPUS[name]
    ceilings = ceilings_of(gpu)
    assert ceilings.bytes_per_second < gpu.bytes_per_second
    for precision, rate in ceilings.matmul_flops_per_second.items():
        peak = gpu.flops_per_second(precision)
        assert peak is not None
        assert rate < peak


def test_a_path_that_a_card_lacks_has_no_rate() -> None:
    assert "bf16" not in ceilings_of(gpu_named("T4")).matmul_flops_per_second


def test_the_cards_with_half_the_lanes_are_known_cards() -> None:
    for family in CARDS_WITH_64_LANES:
        names = [name for name in GPUS if name.startswith(family)]
        assert names
        rates = [ceilings_of(GPUS[name]).matmul_flops_per_second["fp32"] for name in names]
        peaks = [GPUS[name].fp32_flops_per_second for name in names]
        assert rates == pytest.approx([FP32_EFFICIENCY_WITH_64_LANES * peak for peak in peaks])


def test_peaks_given_by_hand_become_ceilings() -> None:
    ceilings = ceilings_of(gpu_named("memory=24GiB,bandwidth=1000GB/s,fp32=10"))
    assert ceilings.bytes_per_second == pytest.approx(850e9)
    assert ceilings.matmul_flops_per_second == {"fp32": pytest.approx(6e12)}
    assert (ceilings.launch_seconds, ceilings.backward_launch_seconds) == (LAUNCH_SECONDS, BACKWARD_LAUNCH_SECONDS)
