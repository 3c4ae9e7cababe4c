"""Predicted seconds follow the roofline and the launches, and name what bounds them."""

from dataclasses import asdict, replace

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
from perf_tests.limits.predicted_time import KernelGroup, Part, predicted_time
from perf_tests.meta_tests.example_cases import CEILINGS

MACHINE = replace(
    CEILINGS,
    matmul_flops_per_second={"fp32": 1e12},
    bytes_per_second=1e9,
    launch_seconds=1e-3,
    backward_launch_seconds=2e-3,
    launches_overlap=True,
)

PRODUCT = KernelGroup("aten.mm", calls=2, flops=10**12, bytes=10**6, rate="fp32")
"""A second each, bound by arithmetic."""
SUM = KernelGroup("aten.add", calls=3, flops=0, bytes=10**9, rate="")
"""A second each, bound by memory."""
THIN = KernelGroup("aten.mm", calls=1, flops=10**12, bytes=4 * 10**9, rate="fp32")


@pytest.mark.parametrize(
    "parts, seconds, bound",
    [
        pytest.param([Part(1000, [PRODUCT, SUM])], 5.0, "memory", id="what overlaps is not added up"),
        pytest.param([Part(9000, [PRODUCT, SUM])], 9.0, "launch", id="launches are the slowest"),
        pytest.param([Part(10, [PRODUCT])], 2.0, "compute", id="arithmetic is the slowest"),
        pytest.param([Part(10, [SUM])], 3.0, "memory", id="traffic is the slowest"),
        pytest.param([Part(0, [])], 0.0, "launch", id="nothing"),
        pytest.param([Part(0, [THIN])], 4.0, "memory", id="a kernel takes the later of arithmetic and traffic"),
        pytest.param([Part(100, [], is_backward=True)], 0.2, "launch", id="going back has launches of its own"),
        # 4 s of launches that hide 2 s of kernels, then 3 s of kernels that nothing hides.
        pytest.param([Part(4000, [PRODUCT]), Part(10, [SUM])], 7.0, "memory", id="the device idles and then works on"),
        # 3 s of kernels, then 2 s of launches for 2 s of kernels: the host is through before the device.
        pytest.param([Part(1, [SUM]), Part(2000, [PRODUCT])], 5.0, "memory", id="launches run ahead"),
        pytest.param([Part(1, [replace(PRODUCT, rate="tf32")])], 2.0, "compute", id="tf32 without tensor cores"),
    ],
)
def test_predicted_seconds_and_what_bounds_them(parts: list[Part], seconds: float, bound: str) -> None:
    found = predicted_time(parts, MACHINE)
    assert found.seconds == pytest.approx(seconds, abs=0)
    assert found.bound == bound


def test_a_cpu_launches_and_computes_itself() -> None:
    assert predicted_time([Part(1000, [SUM])], replace(MACHINE, launches_overlap=False)).seconds == pytest.approx(4.0)


def test_shares_are_of_the_predicted_time() -> None:
    found = predicted_time([Part(1000, [PRODUCT, SUM])], MACHINE)
    assert found.launching_seconds == 1.0
    assert found.shares == {"launch": 0.2, "compute": 0.4, "memory": 0.6}


def test_a_precision_without_a_rate_is_an_error_that_names_those_with_one() -> None:
    with pytest.raises(ValueError, match=r"a planted machine has no rate .* in bf16; it has fp32"):
        predicted_time([Part(1, [replace(PRODUCT, rate="bf16")])], MACHINE)


@pytest.mark.parametrize("field", ["bytes_per_second", "launch_seconds"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_ceiling_that_is_none_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Ceilings(**{**asdict(MACHINE), field: value})


@pytest.mark.parametrize("name", GPUS)
def test_no_ceiling_lies_above_its_datasheet(name: str) -> None:
    gpu = GPUS[name]
    ceilings = ceilings_of(gpu)
    assert ceilings.bytes_per_second < gpu.bytes_per_second
    for precision, rate in ceilings.matmul_flops_per_second.items():
        assert rate < (gpu.flops_per_second(precision) or 0)


def test_a_path_that_a_card_lacks_has_no_rate() -> None:
    assert "bf16" not in ceilings_of(gpu_named("T4")).matmul_flops_per_second


def test_the_cards_with_half_the_lanes_are_known_cards() -> None:
    for family in CARDS_WITH_64_LANES:
        names = [name for name in GPUS if name.startswith(family)]
        assert names
        rates = [ceilings_of(GPUS[name]).matmul_flops_per_second["fp32"] for name in names]
        peaks = [GPUS[name].rates["fp32"] for name in names]
        assert rates == pytest.approx([FP32_EFFICIENCY_WITH_64_LANES * peak for peak in peaks])


def test_peaks_given_by_hand_become_ceilings() -> None:
    ceilings = ceilings_of(gpu_named("memory=24GiB,bandwidth=1000GB/s,fp32=10"))
    assert ceilings.bytes_per_second == pytest.approx(850e9)
    assert ceilings.matmul_flops_per_second == {"fp32": pytest.approx(6e12)}
    assert (ceilings.launch_seconds, ceilings.backward_launch_seconds) == (LAUNCH_SECONDS, BACKWARD_LAUNCH_SECONDS)
