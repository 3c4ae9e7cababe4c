"""Predicted seconds follow the roofline and the launches, and name what bounds them."""

from dataclasses import asdict, replace

import pytest

from perf_tests.hardware.datasheets import GPUS, gpu_named
from perf_tests.hardware.limits import (
    BACKWARD,
    BARE,
    CARDS_WITH_64_LANES,
    DEVICE_RANGE,
    FAST_HOST_LAUNCH_SECONDS,
    FP32_EFFICIENCY_WITH_64_LANES,
    HELD,
    HOST_SPREAD,
    Ceilings,
    KernelGroup,
    Part,
    ceilings_of,
    predicted_time,
)
from tests.support.example_cases import CEILINGS

MACHINE = replace(
    CEILINGS,
    matmul_flops_per_second={"fp32": 1e12},
    bytes_per_second=1e9,
    launch_seconds=1e-3,
    backward_launch_seconds=2e-3,
    bare_launch_seconds=5e-4,
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
        pytest.param([Part(100, [], BACKWARD)], 0.2, "launch", id="going back has launches of its own"),
        pytest.param([Part(100, [], BARE)], 0.05, "launch", id="so have operators without modules"),
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
    assert ceilings.bytes_per_second == pytest.approx(900e9)
    assert ceilings.matmul_flops_per_second == {"fp32": pytest.approx(6e12)}
    launches = ceilings.launch_seconds, ceilings.backward_launch_seconds, ceilings.bare_launch_seconds
    assert launches == tuple(FAST_HOST_LAUNCH_SECONDS.values())


UNKNOWN_HOST = replace(MACHINE, host_spread=4.0)


@pytest.mark.parametrize(
    "launches, bound, seconds, between",
    [
        pytest.param(9000, "launch", 18.0, (9.0, 36.0), id="either host is slower than the device"),
        pytest.param(3000, "launch, on a typical host", 6.0, (5 * DEVICE_RANGE[0], 12.0), id="only a typical one is"),
        pytest.param(10, "memory", 5.0, (5 * DEVICE_RANGE[0], 5 * DEVICE_RANGE[1]), id="neither is"),
    ],
)
def test_the_range_goes_from_a_fast_host_to_a_typical_one(
    launches: int, bound: str, seconds: float, between: tuple[float, float]
) -> None:
    found = predicted_time([Part(launches, [PRODUCT, SUM])], UNKNOWN_HOST)
    assert found.bound == bound
    assert found.seconds == pytest.approx(seconds)
    assert (found.low_seconds, found.high_seconds) == pytest.approx(between)


def test_a_known_host_is_as_uncertain_as_the_device() -> None:
    found = predicted_time([Part(9000, [PRODUCT, SUM])], MACHINE)
    assert (found.low_seconds, found.high_seconds) == pytest.approx([9.0 * factor for factor in DEVICE_RANGE])


def test_an_unknown_host_widens_no_range_by_more_than_its_spread() -> None:
    found = predicted_time([Part(10**6, [PRODUCT])], ceilings_of(gpu_named("H100")))
    assert found.high_seconds / found.low_seconds == pytest.approx(HOST_SPREAD)


def test_a_strided_kernel_is_bound_by_its_elements_where_memory_is_faster() -> None:
    strided = replace(SUM, calls=1, strided_elements=10**6)
    assert predicted_time([Part(0, [strided])], MACHINE).seconds == pytest.approx(1.0)
    slow = replace(MACHINE, strided_elements_per_second=2.5e5)
    assert predicted_time([Part(0, [strided])], slow).seconds == pytest.approx(4.0)


def test_a_product_on_tensor_cores_pays_for_its_last_wave_and_one_without_them_does_not() -> None:
    machine = replace(MACHINE, matmul_flops_per_second={"fp32": 1e12, "bf16": 1e12}, last_wave_elements=10**6)
    product = replace(PRODUCT, calls=1, summed=10**5)
    assert predicted_time([Part(0, [product])], machine).seconds == pytest.approx(1.0)
    assert predicted_time([Part(0, [replace(product, rate="bf16")])], machine).seconds == pytest.approx(1.2)


def test_every_kernel_takes_the_time_of_an_empty_one_besides_its_work() -> None:
    assert predicted_time([Part(0, [SUM])], replace(MACHINE, kernel_seconds=0.1)).seconds == pytest.approx(3.3)


def test_every_bound_states_how_many_left_out_times_its_range_holds() -> None:
    assert set(HELD) == {"launch", "launch, on a typical host", "compute", "memory"}
    assert all(0 < count <= of for count, of in HELD.values())
