"""Least work, predicted seconds, the line of a link and the messages of ranks: closed forms against figures by hand."""

import random
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_tests_suite.model.parallel import PARALLEL
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.hardware import limits
from perf_tests_suite.perf_tests.hardware.datasheets import GPUS, gpu_named
from perf_tests_suite.perf_tests.hardware.limits import BACKWARD, BARE, LOOP, KernelGroup, Part
from perf_tests_suite.perf_tests.predict.shapes import parameter_shapes
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.report.ranks import collective_lines, links_of
from tests.support.example_cases import CEILINGS, TOY, language_model_case
from tests.support.synthetic import timed_collective


def test_the_least_work_of_a_phase() -> None:
    """A gradient beside each weight; a causal kernel may leave out half of the square and nothing else."""
    work, whole = limits.ModelWork("toy", TOY, 2, 8), TOY.forward_flops(2, 8)
    half = whole - TOY.forward_attention_flops(2, 8) // 2
    for phase, flops, bytes_ in (("forward", 1, 1), ("backward", 2, 2), ("full_step", 3, 2), ("restart", None, None)):
        least = [work.least_flops(phase, left_out) for left_out in (False, True)]
        assert least == [flops and flops * whole, flops and flops * half], phase
        assert work.least_resident_bytes(phase) == (bytes_ and bytes_ * 4 * TOY.parameters), phase
    assert limits.saved_bytes(TOY, 3, 8) == 4 * TOY.num_layers * 3 * 8 * (2 * 8 + 8 * 16 + 4 * 24)
    square, alone = 2 * 2 * 8 * 256 * 256 * 16, limits.AttentionWork(8, 256, 16)
    assert [alone.least_flops("attention_forward", left_out) for left_out in (False, True)] == [square, square // 2]


MACHINE = replace(
    CEILINGS, matmul_flops_per_second={"fp32": 1e12, "bf16": 1e12}, bytes_per_second=1e9, launch_seconds=1e-3,
    backward_launch_seconds=2e-3, bare_launch_seconds=5e-4, loop_launch_seconds=4e-4, launches_overlap=True,
)  # fmt: skip
PRODUCT = KernelGroup("aten.mm", calls=2, flops=10**12, bytes=10**6, rate="fp32", summed=10**5)
"""A second each, bound by arithmetic."""
SUM = KernelGroup("aten.add", calls=3, flops=0, bytes=10**9, rate="", strided_elements=10**6)
"""A second each, bound by memory."""
THIN = KernelGroup("aten.mm", calls=1, flops=10**12, bytes=4 * 10**9, rate="fp32")
LOW, HIGH = limits.DEVICE_RANGE
TYPICAL, WAVE = {"host_spread": 4.0}, {"last_wave_elements": 10**6}


PREDICTED: dict[str, tuple[list[Part], dict[str, Any], float, str, tuple[float, ...]]] = {
    "what overlaps is not added up": ([Part(1000, [PRODUCT, SUM])], {}, 5.0, "memory", ()),
    "launches are slowest": ([Part(9000, [PRODUCT, SUM])], {}, 9.0, "launch", (9 * LOW, 9 * HIGH)),
    "arithmetic is the slowest": ([Part(10, [PRODUCT])], {}, 2.0, "compute", ()),
    "traffic is the slowest": ([Part(10, [SUM])], {}, 3.0, "memory", ()),
    "nothing": ([Part(0, [])], {}, 0.0, "launch", ()),
    "the later of arithmetic and traffic": ([Part(0, [THIN])], {}, 4.0, "memory", ()),
    "going back has launches of its own": ([Part(100, [], BACKWARD)], {}, 0.2, "launch", ()),
    "so have operators without modules": ([Part(100, [], BARE)], {}, 0.05, "launch", ()),
    "and an optimizer": ([Part(100, [], LOOP)], {}, 0.04, "launch", ()),
    "what a checkpoint runs again is two of a forward pass": (
        [Part(100, [replace(SUM, calls=30, bytes=0, strided_elements=0, is_recomputed=True)], BACKWARD)],
        {"launch_seconds": 3e-3}, 70 * 2e-3 + 30 * 6e-3, "launch", (),
    ),
    # 4 s of launches that hide 2 s of kernels, then 3 s of kernels that nothing hides.
    "the device idles": ([Part(4000, [PRODUCT]), Part(10, [SUM])], {}, 7.0, "memory", ()),
    # 3 s of kernels, then 2 s of launches for 2 s of kernels: the host is through before the device.
    "launches run ahead": ([Part(1, [SUM]), Part(2000, [PRODUCT])], {}, 5.0, "memory", ()),
    "tf32 without its path": ([Part(1, [replace(PRODUCT, rate="tf32")])], {}, 2.0, "compute", ()),
    "a CPU": ([Part(1000, [SUM])], {"launches_overlap": False}, 4.0, "memory", (4 * LOW, 4 * HIGH)),
    "each element": ([Part(0, [SUM])], {"strided_elements_per_second": 2.5e5}, 12.0, "memory", ()),
    "no wave of fp32": ([Part(0, [PRODUCT])], WAVE, 2.0, "compute", ()),
    # Of 5e6 elements: 7 waves of 100 tiles of 128 x 64, sooner done than 4 of 128 x 128 and 13 of 64 x 64.
    "whole waves of tiles of fp32": (
        [Part(0, [PRODUCT])], {"multiprocessors": 100}, 2 * 7 * 0.8192e6 / 0.95 / 5e6, "compute", (),
    ),
    "a product narrower than its tile": (  # of 10e6 elements: 13 waves of 128 x 64
        [Part(0, [replace(PRODUCT, side=32)])], {"multiprocessors": 100, "fp32_tile_side": 64},
        2 * 13 * 0.8192e6 / 0.95 / 5e6, "compute", (),
    ),
    "no product, no tiles": ([Part(0, [THIN])], {"multiprocessors": 100}, 4.0, "memory", ()),
    "the last wave of a tensor core": ([Part(0, [replace(PRODUCT, rate="bf16")])], WAVE, 2.4, "compute", ()),
    "an empty kernel's time": ([Part(0, [SUM])], {"kernel_seconds": 0.1}, 3.3, "memory", ()),
    "either host is slower": ([Part(9000, [PRODUCT, SUM])], TYPICAL, 18.0, "launch", (9.0, 36.0)),
    "a typical one is": ([Part(3000, [PRODUCT, SUM])], TYPICAL, 6.0, "launch, on a typical host", (5 * LOW, 12.0)),
    "neither is": ([Part(10, [PRODUCT, SUM])], TYPICAL, 5.0, "memory", (5 * LOW, 5 * HIGH)),
}  # fmt: skip


def test_predicted_seconds_their_range_and_what_bounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a fast host to a typical one; a known host is as uncertain as the device."""
    monkeypatch.setattr(limits, "FIRST_LAUNCHES", 0)
    for what, (parts, changes, seconds, bound, between) in PREDICTED.items():
        found = limits.predicted_time(parts, replace(MACHINE, **changes))
        assert found.bound == bound, what
        assert found.seconds == pytest.approx(seconds), what
        assert not between or (found.low_seconds, found.high_seconds) == pytest.approx(between), what


def test_the_device_waits_for_the_first_launches_of_a_pass_and_a_short_pass_takes_the_sum() -> None:
    """Unless it is busy for as long with what is not timed."""
    of_four, of_many = (limits.predicted_time([Part(launches, [SUM])], MACHINE) for launches in (4, 1000))
    assert (of_four.seconds, of_many.seconds) == pytest.approx((3.004, 3 + limits.FIRST_LAUNCHES * 1e-3))
    assert limits.predicted_time([Part(4, [SUM])], MACHINE, ahead_seconds=1.0).seconds == pytest.approx(3)


def test_a_host_of_2025_launches_in_about_half_the_time() -> None:
    of = {name: limits.ceilings_of(gpu_named(name)).launch_seconds_by_kind for name in ("H100", "B200", "RTX 5090")}
    assert of["B200"]["forward"] == pytest.approx(9.6e-6, rel=0.01)
    assert of["RTX 5090"] == of["H100"]
    assert {round(of["B200"][kind] / seconds, 2) for kind, seconds in of["H100"].items()} == {0.53}


def test_a_host_that_is_ahead_hides_its_launches_and_no_kernel() -> None:
    """By as much as the device does before: do_bench clears a cache."""
    parts, typical = [Part(3000, [PRODUCT])], replace(MACHINE, host_spread=4.0)
    seconds = {ahead: limits.predicted_time(parts, typical, ahead).seconds for ahead in (0.0, 1.0, 9.0)}
    assert seconds == pytest.approx({0.0: 6.0, 1.0: 5.0, 9.0: 2.0})
    bounds = [limits.predicted_time(parts, typical, ahead).bound for ahead in (0.0, 2.0, 11.0)]
    assert bounds == ["launch", "launch, on a typical host", "compute"]


def test_shares_are_of_the_predicted_time_and_a_missing_rate_is_named() -> None:
    found = limits.predicted_time([Part(1000, [PRODUCT, SUM])], MACHINE, ahead_seconds=1.0)
    assert (found.launching_seconds, found.kernel_seconds) == (1.0, 5.0)
    assert found.shares == {"launch": 0.2, "compute": 0.4, "memory": 0.6}
    assert limits.predicted_time([Part(0, [])], MACHINE).shares["launch"] == 0.0
    with pytest.raises(ValueError, match=r"a planted machine has no rate .* in fp16; it has fp32, bf16"):
        limits.predicted_time([Part(1, [replace(PRODUCT, rate="fp16")])], MACHINE)


POSITIVE = ("bytes_per_second", "launch_seconds", "backward_launch_seconds", "bare_launch_seconds", "host_spread",
            "strided_elements_per_second")  # fmt: skip
NOT_NEGATIVE = ("last_wave_elements", "kernel_seconds", "multiprocessors")


def test_a_ceiling_that_is_none_is_refused() -> None:
    for value in (0.0, -1.0, float("inf"), float("nan"), 10**400):
        for name in (*POSITIVE, *(NOT_NEGATIVE if value != 0 else ())):
            with pytest.raises(ValueError, match=f"{name} of a planted machine"):
                limits.Ceilings(**{**asdict(MACHINE), name: value})
        for name in ("matmul_flops_per_second", "burst_flops_per_second"):
            with pytest.raises(ValueError, match="fp32 of a planted machine"):
                limits.Ceilings(**{**asdict(MACHINE), name: {"fp32": value}})


def test_what_was_measured_in_a_run_raises_both_rates_and_lowers_none() -> None:
    found = CEILINGS.with_rate("fp32", limits.Rate(2e11, 5e10)).with_rate("bf16", limits.Rate(3e11, 2e11))
    assert found.matmul_flops_per_second == {"fp32": 1e11, "bf16": 2e11}
    assert found.highest_flops_per_second == {"fp32": 2e11, "bf16": 3e11}


def test_ceilings_are_shares_of_the_datasheet_which_half_the_lanes_raise() -> None:
    """Launches of a host that is not known widen no range by more than its spread."""
    for gpu in GPUS.values():
        ceilings, lanes = limits.ceilings_of(gpu), gpu.name.startswith(limits.CARDS_WITH_64_LANES)
        assert ceilings.bytes_per_second == pytest.approx(0.9 * gpu.bytes_per_second)
        shares = {name: 0.8 if name != "fp32" else 0.92 if lanes else 0.67 for name in gpu.rates}
        assert ceilings.matmul_flops_per_second == pytest.approx({one: shares[one] * gpu.rates[one] for one in shares})
        assert ceilings.strided_elements_per_second == pytest.approx(gpu.rates["fp32"] / (128 if lanes else 256))
    assert all(any(name.startswith(family) for name in GPUS) for family in limits.CARDS_WITH_64_LANES)
    by_hand = limits.ceilings_of(gpu_named("memory=24GiB,bandwidth=1000GB/s,fp32=10"))
    launches = by_hand.launch_seconds, by_hand.backward_launch_seconds, by_hand.bare_launch_seconds
    assert launches == tuple(limits.FAST_HOST_LAUNCH_SECONDS.values())
    found = limits.predicted_time([Part(10**6, [PRODUCT])], by_hand)
    assert found.high_seconds / found.low_seconds == pytest.approx(limits.HOST_SPREAD)


LATENCY, RATE = 2e-4, 5e8
MESSAGES = (64_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000)


def seconds_of(size: float) -> float:
    return LATENCY + size / RATE


def fitted(*messages: tuple[float, float]) -> limits.Link:
    link = limits.fit_link(messages)
    assert link is not None
    return link


@settings(deadline=None)
@given(
    st.sets(st.integers(14, 30).map(lambda power: 2**power), min_size=2, max_size=6),
    st.floats(1e-6, 1e-2),
    st.floats(1e7, 1e11),
)
def test_exact_times_give_back_latency_and_rate(sizes: set[int], latency: float, rate: float) -> None:
    link = fitted(*((size, latency + size / rate) for size in sizes))
    assert link.largest_error == pytest.approx(0, abs=1e-6)
    for size in sizes:
        assert link.seconds(size) == pytest.approx(latency + size / rate, rel=1e-6)
    assert (link.latency_interval is None) == (link.rate_interval is None) == (len(sizes) == 2)


def test_a_links_error_is_of_the_message_farthest_from_its_line_and_no_latency_lies_below_nothing() -> None:
    off = [(size, seconds_of(size) * (1.5 if size == MESSAGES[-1] else 1)) for size in MESSAGES]
    link = fitted(*off)
    assert link.largest_error == pytest.approx(max(abs(link.seconds(size) / taken - 1) for size, taken in off))
    noisy = fitted((1e6, 1.0), (2e6, 1.3), (4e6, 1.2))
    assert noisy.rate_interval is not None
    assert noisy.rate_interval[1] is None, "these sizes do not bound the rate"
    steep = fitted((1e6, 1e-4), (2e6, 3e-4), (4e6, 7e-4))
    assert steep.latency_interval is not None
    assert steep.latency_seconds == steep.latency_interval[0] == 0
    for messages in ([], [(1e6, 1e-3)], [(1e6, 1e-3), (1e6, 2e-3)], [(1e6, 2e-3), (2e6, 1e-9)]):
        assert limits.fit_link(messages) is None, "no rate shows"


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw, held = random.Random(7), 0
    for _ in range(200):
        link = fitted(*((size, seconds_of(size) * draw.gauss(1, 0.05)) for size in MESSAGES))
        assert link.rate_interval is not None
        slowest, fastest = link.rate_interval
        held += slowest <= RATE and (fastest is None or fastest >= RATE)
    assert 180 <= held < 200  # of 95 % all but 10 in the mean, with a deviation of 3


def row(collective: str, world: int, size: int, seconds: float) -> Json:
    """A row of a message that was cut by 3 bytes."""
    return timed_collective(size + 3, [seconds], collective=collective, world=world, exchanged_bytes=size)


def test_each_collective_and_number_of_ranks_has_the_link_of_the_bytes_that_were_exchanged() -> None:
    """A model's row and one rank alone are of no link; the screen names what shows none, and what to measure."""
    names = {"all_reduce": 2, "all_gather": 1}
    rows = [row(name, n, size, n * seconds_of(size)) for name in names for n in (1, 2, 3) for size in MESSAGES]
    model = {"extra_info": language_model_case().identity(), "stats": {"data": [1.0]}}
    links = {(link["collective"], link["world"]): link for link in links_of([*rows, model])}
    assert links.keys() == {(name, world) for name in names for world in (2, 3)}
    for (name, world), found in links.items():
        assert (found["sizes"], found["bytes_per_second"]) == pytest.approx((len(MESSAGES), RATE / world))
        assert found["latency_seconds"] == pytest.approx(LATENCY * world)
        assert found["bus_bytes_per_second"] == pytest.approx(names[name] * (world - 1) / world * RATE / world)
    shrinking = [row("all_reduce", world, size, 1 / size) for world in (1, 2) for size in MESSAGES]
    *_, line = collective_lines([*shrinking, row("all_gather", 3, MESSAGES[0], 1.0), *rows[10:15]])
    assert line.startswith("no latency and rate for all_reduce world2, all_gather world3: it takes two sizes whose")
    assert line.endswith("measure more or larger ones with --message-size")


def test_small_sends_what_its_shape_says() -> None:
    """FSDP2's figure is without the norms for clipping, 4 bytes each: before torch 2.10 a single one."""
    shapes = parameter_shapes(SIZES["small"])
    assert shapes.bytes == 4 * SIZES["small"].parameters == 514_501_632
    for world, ddp, fsdp2 in (
        (2, 514_501_632, 741_030_912), (8, 900_377_856, 1_296_804_096), (64, 1_012_925_088, 1_459_485_216),
        (1024, 1_027_998_378, 1_709_907_672),
    ):  # fmt: skip
        assert limits.sent_bytes(limits.step_messages("ddp", shapes, world), world) == ddp
        for of_each, norm in ((True, 444), (False, 4)):
            *messages, last = limits.step_messages("fsdp2", shapes, world, norm_of_each=of_each)
            assert last == limits.Message("all_reduce", norm)
            assert limits.sent_bytes(messages, world) == fsdp2


def test_a_bucket_is_sent_once_it_holds_its_size() -> None:
    """In MiB of float32: the first after one, the others after 25 or what is asked for; the last holds what is left."""
    mib = (2**18,)
    assert [size // 2**20 for size in limits.bucket_bytes([mib] * 60)] == [1, 25, 25, 9]
    assert [size // 2**20 for size in limits.bucket_bytes([mib] * 5, bucket_mb=1.5)] == [2, 2, 1]
    assert limits.bucket_bytes([]) == []


def test_the_largest_part_of_a_sharded_optimizer_is_no_less_than_its_largest_parameter() -> None:
    """Whole parameters go to one rank each, the largest first, so more ranks than parameters do not help."""
    shapes = [(5, 2), (30,), (10, 4)]
    assert [limits.largest_part_bytes(shapes, world) // 4 for world in (1, 2, 3, 100)] == [80, 40, 40, 40]


@pytest.mark.parametrize("rest, block", [(3, 2), (10, 2), (3, 20)])
def test_beside_what_it_keeps_a_rank_holds_what_it_gathers_and_buckets(rest: int, block: int) -> None:
    """FSDP2: the rest for the whole step, three blocks or all of them and one, and gradients with their buffer."""
    shapes = limits.ParameterShapes(((rest,),), (((block,),), ((1,),)), by_gradient=())
    gathered, kept = {limits.GATHERED: rest + 3 * block}, rest + 2 * block + 1
    gradients, buckets = {limits.WHOLE_GRADIENTS: rest + max(rest, 2 * block)}, {limits.BUCKETS: rest + block + 1}
    forward = {"ddp-naive": {}, "ddp-flat": {}, "ddp": buckets, "zero1": buckets, "fsdp2": gathered,
               "fsdp2-bf16": gathered}  # fmt: skip
    for variant in PARALLEL:
        sharded = variant.startswith("fsdp2")
        backward = gathered | gradients if sharded else {} if variant == "ddp-naive" else buckets
        optimizer: dict[str, int] = {} if sharded else forward[variant]
        for part, wanted in (("forward", forward[variant]), ("backward", backward), ("optimizer", optimizer)):
            assert limits.working_bytes(variant, shapes, part) == {name: 4 * size for name, size in wanted.items()}
        if sharded:
            assert limits.working_bytes(variant, shapes, "forward", reshard=False) == {limits.GATHERED: 4 * kept}
