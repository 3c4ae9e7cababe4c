"""Least work, predicted seconds, the line of a link and the messages of ranks: closed forms against figures by hand."""

import random
from dataclasses import asdict, replace

import pytest

from model.parallel import PARALLEL
from model.sizes import SIZES, ModelConfig
from perf_tests.hardware.datasheets import GPUS, gpu_named
from perf_tests.hardware.limits import (
    BACKWARD,
    BARE,
    BUCKETS,
    CARDS_WITH_64_LANES,
    DEVICE_RANGE,
    FAST_HOST_LAUNCH_SECONDS,
    FP32_EFFICIENCY_WITH_64_LANES,
    GATHERED,
    HELD,
    HOST_SPREAD,
    WHOLE_GRADIENTS,
    AttentionWork,
    Ceilings,
    KernelGroup,
    Message,
    ModelWork,
    ParameterShapes,
    Part,
    Rate,
    bucket_bytes,
    ceilings_of,
    fit_link,
    largest_part_bytes,
    predicted_time,
    sent_bytes,
    slice_bytes,
    step_messages,
    working_bytes,
)
from perf_tests.predict.ranks import parameter_shapes
from perf_tests.records.record import Json
from perf_tests.report.ranks import collective_lines, links_of
from tests.support.example_cases import CEILINGS, TOY, language_model_case


def test_a_backward_pass_holds_a_gradient_beside_each_weight() -> None:
    work = ModelWork("toy", TOY, 2, 8)
    held = {phase: work.least_resident_bytes(phase) for phase in ("forward", "backward", "full_step", "warm restart")}
    weights = 4 * TOY.parameters
    assert held == {"forward": weights, "backward": 2 * weights, "full_step": 2 * weights, "warm restart": None}


def test_a_causal_kernel_may_leave_out_half_of_the_square_and_nothing_else() -> None:
    work, whole = ModelWork("toy", TOY, 2, 8), TOY.forward_flops(2, 8)
    half = whole - TOY.forward_attention_flops(2, 8) // 2
    for phase, times in (("forward", 1), ("backward", 2), ("full_step", 3)):
        assert [work.least_flops(phase, leaves_half) for leaves_half in (False, True)] == [times * whole, times * half]
    alone = AttentionWork(8, 256, 16)
    square = 2 * 2 * 8 * 256 * 256 * 16
    assert [alone.least_flops("attention_forward", half) for half in (False, True)] == [square, square // 2]


MACHINE = replace(
    CEILINGS, matmul_flops_per_second={"fp32": 1e12}, bytes_per_second=1e9, launch_seconds=1e-3,
    backward_launch_seconds=2e-3, bare_launch_seconds=5e-4, launches_overlap=True,
)  # fmt: skip
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


def test_shares_are_of_the_predicted_time_and_a_cpu_launches_and_computes_itself() -> None:
    found = predicted_time([Part(1000, [PRODUCT, SUM])], MACHINE)
    assert found.launching_seconds == 1.0
    assert found.shares == {"launch": 0.2, "compute": 0.4, "memory": 0.6}
    assert predicted_time([Part(1000, [SUM])], replace(MACHINE, launches_overlap=False)).seconds == pytest.approx(4.0)


def test_what_a_kernel_takes_beside_arithmetic_and_traffic() -> None:
    """Its elements where it addresses each, its last wave on tensor cores alone, and the time of an empty kernel."""
    strided = replace(SUM, calls=1, strided_elements=10**6)
    product = replace(PRODUCT, calls=1, summed=10**5)
    waves = {"matmul_flops_per_second": {"fp32": 1e12, "bf16": 1e12}, "last_wave_elements": 10**6}
    for kernel, changes, seconds in (
        (strided, {}, 1.0),
        (strided, {"strided_elements_per_second": 2.5e5}, 4.0),
        (product, waves, 1.0),
        (replace(product, rate="bf16"), waves, 1.2),
        (SUM, {"kernel_seconds": 0.1}, 3.3),
    ):
        assert predicted_time([Part(0, [kernel])], replace(MACHINE, **changes)).seconds == pytest.approx(seconds)


def test_a_precision_without_a_rate_is_an_error_that_names_those_with_one() -> None:
    with pytest.raises(ValueError, match=r"a planted machine has no rate .* in bf16; it has fp32"):
        predicted_time([Part(1, [replace(PRODUCT, rate="bf16")])], MACHINE)


@pytest.mark.parametrize("field", ["bytes_per_second", "launch_seconds"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_ceiling_that_is_none_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Ceilings(**{**asdict(MACHINE), field: value})


def test_what_was_measured_in_a_run_raises_both_rates_and_lowers_none() -> None:
    ceilings = CEILINGS.with_rate("fp32", Rate(burst=2e11, sustained=5e10))
    assert ceilings.matmul_flops_per_second == {"fp32": 1e11}
    assert ceilings.highest_flops_per_second == {"fp32": 2e11}


def test_no_ceiling_lies_above_its_datasheet_and_a_path_that_a_card_lacks_has_none() -> None:
    for gpu in GPUS.values():
        ceilings = ceilings_of(gpu)
        assert ceilings.bytes_per_second < gpu.bytes_per_second
        for precision, rate in ceilings.matmul_flops_per_second.items():
            assert rate < (gpu.flops_per_second(precision) or 0)
    assert "bf16" not in ceilings_of(gpu_named("T4")).matmul_flops_per_second


def test_the_cards_with_half_the_lanes_are_known_cards() -> None:
    for family in CARDS_WITH_64_LANES:
        names = [name for name in GPUS if name.startswith(family)]
        assert names
        rates = [ceilings_of(GPUS[name]).matmul_flops_per_second["fp32"] for name in names]
        assert rates == pytest.approx([FP32_EFFICIENCY_WITH_64_LANES * GPUS[name].rates["fp32"] for name in names])


def test_peaks_given_by_hand_become_ceilings() -> None:
    ceilings = ceilings_of(gpu_named("memory=24GiB,bandwidth=1000GB/s,fp32=10"))
    assert ceilings.bytes_per_second == pytest.approx(900e9)
    assert ceilings.matmul_flops_per_second == {"fp32": pytest.approx(6e12)}
    launches = ceilings.launch_seconds, ceilings.backward_launch_seconds, ceilings.bare_launch_seconds
    assert launches == tuple(FAST_HOST_LAUNCH_SECONDS.values())


@pytest.mark.parametrize(
    "launches, spread, bound, seconds, between",
    [
        pytest.param(9000, 4.0, "launch", 18.0, (9.0, 36.0), id="either host is slower than the device"),
        pytest.param(3000, 4.0, "launch, on a typical host", 6.0, (5 * DEVICE_RANGE[0], 12.0), id="a typical one is"),
        pytest.param(10, 4.0, "memory", 5.0, (5 * DEVICE_RANGE[0], 5 * DEVICE_RANGE[1]), id="neither is"),
        pytest.param(9000, 1.0, "launch", 9.0, (9 * DEVICE_RANGE[0], 9 * DEVICE_RANGE[1]), id="a known host"),
    ],
)
def test_the_range_goes_from_a_fast_host_to_a_typical_one_and_a_known_host_is_as_uncertain_as_the_device(
    launches: int, spread: float, bound: str, seconds: float, between: tuple[float, float]
) -> None:
    found = predicted_time([Part(launches, [PRODUCT, SUM])], replace(MACHINE, host_spread=spread))
    assert found.bound == bound
    assert found.seconds == pytest.approx(seconds)
    assert (found.low_seconds, found.high_seconds) == pytest.approx(between)


def test_an_unknown_host_widens_no_range_by_more_than_its_spread() -> None:
    found = predicted_time([Part(10**6, [PRODUCT])], ceilings_of(gpu_named("H100")))
    assert found.high_seconds / found.low_seconds == pytest.approx(HOST_SPREAD)


def test_every_bound_states_how_many_left_out_times_its_range_holds() -> None:
    assert set(HELD) == {"launch", "launch, on a typical host", "compute", "memory"}
    assert all(0 < count <= of for count, of in HELD.values())


LATENCY, RATE = 2e-4, 5e8
MESSAGES = (64_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000)


def seconds(size: float) -> float:
    return LATENCY + size / RATE


def test_exact_times_give_back_latency_and_rate() -> None:
    link = fit_link([(size, seconds(size)) for size in MESSAGES])
    assert link is not None
    assert (link.latency_seconds, link.bytes_per_second) == pytest.approx((LATENCY, RATE))
    assert link.largest_error == pytest.approx(0, abs=1e-9)
    assert link.seconds(123_456) == pytest.approx(seconds(123_456))


def test_the_error_of_a_link_is_that_of_the_message_farthest_from_its_line() -> None:
    messages = [(size, seconds(size)) for size in MESSAGES[:-1]] + [(MESSAGES[-1], 1.5 * seconds(MESSAGES[-1]))]
    link = fit_link(messages)
    assert link is not None
    assert link.largest_error == pytest.approx(max(abs(link.seconds(size) / taken - 1) for size, taken in messages))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw, held = random.Random(7), 0
    for _ in range(200):
        link = fit_link([(size, seconds(size) * draw.gauss(1, 0.05)) for size in MESSAGES])
        assert link is not None
        assert link.rate_interval is not None
        slowest, fastest = link.rate_interval
        held += slowest <= RATE and (fastest is None or fastest >= RATE)
    assert held >= 180  # of 95 % all but 10 in the mean, with a deviation of 3


def test_two_sizes_have_a_line_and_no_interval_and_three_have_one() -> None:
    two, three = (fit_link([(size, seconds(size)) for size in MESSAGES[:count]]) for count in (2, 3))
    assert two is not None
    assert three is not None
    assert two.latency_interval is two.rate_interval is None
    assert three.latency_interval is not None


def test_a_latency_below_nothing_is_nothing() -> None:
    link = fit_link([(1e6, 1e-4), (2e6, 3e-4), (4e6, 7e-4)])
    assert link is not None
    assert link.latency_seconds == 0
    assert link.latency_interval is not None
    assert link.latency_interval[0] == 0


@pytest.mark.parametrize("messages", [[], [(1e6, 1e-3)], [(1e6, 1e-3), (1e6, 2e-3)], [(1e6, 2e-3), (2e6, 1e-9)]])
def test_what_shows_no_rate_has_no_link(messages: list[tuple[float, float]]) -> None:
    assert fit_link(messages) is None


def row(collective: str, world: int, exchanged_bytes: int, median_seconds: float) -> Json:
    """Of a message that was cut by 3 bytes."""
    info = {
        "collective": collective, "world": world, "backend": "gloo", "message_bytes": exchanged_bytes + 3,
        "exchanged_bytes": exchanged_bytes, "algorithm_bytes_per_second": 1.0, "bus_bytes_per_second": 1.0,
    }  # fmt: skip
    name = f"test.py::test_collective[{collective}-{exchanged_bytes}B-world{world}]"
    stats = {"data": [median_seconds], "median": median_seconds, "iqr": 0.0}
    return {"fullname": name, "extra_info": info, "stats": stats}


def test_each_collective_and_number_of_ranks_has_the_link_of_the_bytes_that_were_exchanged() -> None:
    """A message that ranks cannot divide is cut; a model's row and one rank alone are of no link."""
    rows = [
        row(name, world, size, world * seconds(size))
        for name in ("all_reduce", "all_gather") for world in (1, 2, 3) for size in MESSAGES
    ]  # fmt: skip
    model = {"extra_info": language_model_case().identity(), "stats": {"data": [1.0]}}
    links = {(link.collective, link.world): link for link in links_of([*rows, model])}
    assert links.keys() == {(name, world) for name in ("all_reduce", "all_gather") for world in (2, 3)}
    for (name, world), found in links.items():
        assert found.sizes == len(MESSAGES)
        assert found.link.bytes_per_second == pytest.approx(RATE / world)
        assert found.link.latency_seconds == pytest.approx(LATENCY * world)
        share = (2 if name == "all_reduce" else 1) * (world - 1) / world
        assert found.bus_bytes_per_second == pytest.approx(share * RATE / world)


def test_the_screen_says_which_links_the_sizes_do_not_show_and_what_to_do() -> None:
    """One rank alone sends nothing, so of it nothing is missing."""
    shrinking = [row("all_reduce", world, size, 1 / size) for world in (1, 2) for size in MESSAGES]
    lonely = [row("all_gather", 3, MESSAGES[0], 1.0)]
    growing = [row("reduce_scatter", 2, size, seconds(size)) for size in MESSAGES]
    *_, line = collective_lines([*shrinking, *lonely, *growing])
    assert line.startswith("no latency and rate for all_reduce world2, all_gather world3: it takes two sizes whose")
    assert line.endswith("measure more or larger ones with --message-size")
    assert "no latency" not in "\n".join(collective_lines(growing))


@pytest.mark.parametrize(
    "world, ddp, fsdp2",
    [
        (2, 514_501_632, 741_030_912), (8, 900_377_856, 1_296_804_096), (64, 1_012_925_088, 1_459_485_216),
        (1024, 1_027_998_378, 1_709_907_672),
    ],
)  # fmt: skip
def test_small_sends_what_its_shape_says(world: int, ddp: int, fsdp2: int) -> None:
    """FSDP2's figure is without the norm for clipping, a message of 444 bytes."""
    shapes = parameter_shapes(SIZES["small"])
    assert shapes.bytes == 4 * SIZES["small"].parameters == 514_501_632
    assert sent_bytes(step_messages("ddp", shapes, world), world) == ddp
    norm, messages = Message("all_reduce", 444), step_messages("fsdp2", shapes, world)
    assert norm in messages
    assert sent_bytes(messages, world) - norm.sent_bytes(world) == fsdp2


def test_a_thousand_ranks_pad_the_smallest_matrices_most() -> None:
    """One row of 1024 each at the most."""
    shapes = parameter_shapes(ModelConfig(d_model=20, d_ff=28, num_layers=1, num_heads=2, vocab_size=2000))
    assert slice_bytes(shapes.rest, 1024) == 4 * (2 * 2 * 20 + 1)
    assert slice_bytes(shapes.blocks[0], 1024) == 4 * (6 * 20 + 28 + 2)


def test_before_torch_2_10_all_parameters_have_one_norm_for_clipping() -> None:
    """Nothing else of the step differs."""
    shapes = parameter_shapes(TOY)
    each, one = (step_messages("fsdp2", shapes, 2, norm_of_each=norm_of_each) for norm_of_each in (True, False))
    assert each[:-1] == one[:-1]
    assert (each[-1], one[-1]) == (Message("all_reduce", 4 * len(shapes.all)), Message("all_reduce", 4))


def test_a_bucket_is_sent_once_it_holds_its_size() -> None:
    """In MiB of float32: the first after one, the others after 25 or what is asked for; the last holds what is left."""
    mib = (2**18,)
    assert [size // 2**20 for size in bucket_bytes([mib] * 60)] == [1, 25, 25, 9]
    assert [size // 2**20 for size in bucket_bytes([mib] * 5, bucket_mb=1.5)] == [2, 2, 1]
    assert bucket_bytes([]) == []


def test_the_largest_part_of_a_sharded_optimizer_is_no_less_than_its_largest_parameter() -> None:
    """Whole parameters go to one rank each, the largest first, so more ranks than parameters do not help."""
    shapes = [(5, 2), (30,), (10, 4)]
    assert [largest_part_bytes(shapes, world) // 4 for world in (1, 2, 3, 100)] == [80, 40, 40, 40]


@pytest.mark.parametrize("rest, block", [(3, 2), (10, 2), (3, 20)])
def test_beside_what_it_keeps_a_rank_holds_what_it_gathers_and_whole_gradients_or_buckets(
    rest: int, block: int
) -> None:
    """FSDP2: the rest for the whole step, three blocks, and gradients of the rest or of a block with their buffer."""
    shapes = ParameterShapes(((rest,),), (((block,),), ((1,),)), by_gradient=())
    floats = {GATHERED: rest + 3 * block, WHOLE_GRADIENTS: rest + max(rest, 2 * block)}
    for variant in PARALLEL:
        held = {name: size // 4 for name, size in working_bytes(variant, shapes, "backward").items()}
        buckets = {} if variant == "ddp-naive" else {BUCKETS: rest + block + 1}
        assert held == (floats if variant.startswith("fsdp2") else buckets)


@pytest.mark.parametrize("part", ["forward", "loss", "optimizer"])
def test_gradients_are_whole_in_no_part_but_the_backward_pass(part: str) -> None:
    shapes = parameter_shapes(TOY)
    held = {variant: set(working_bytes(variant, shapes, part)) for variant in PARALLEL}
    gathered = set() if part == "optimizer" else {GATHERED}
    assert held == {"ddp-naive": set(), "ddp-flat": set(), "ddp": {BUCKETS}, "zero1": {BUCKETS},
                    "fsdp2": gathered, "fsdp2-bf16": gathered}  # fmt: skip
