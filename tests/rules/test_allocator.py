"""The rules of CUDA's caching allocator, by their published constants, and what they decide of a step."""

from dataclasses import replace
from typing import Any

import pytest

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.datasheets import DOES_NOT_FIT, FITS, MAY_NOT_FIT, Room, gpu_named
from perf_tests_suite.perf_tests.hardware.limits import ceilings_of
from perf_tests_suite.perf_tests.phases import FIRST_STEP, FULL_STEP, PHASES
from perf_tests_suite.perf_tests.predict import counters
from perf_tests_suite.perf_tests.predict.allocator import MIB, AllocatorPeaks, CachingAllocator, DeviceFullError
from perf_tests_suite.perf_tests.predict.counters import allocator_peaks, counters_of
from perf_tests_suite.perf_tests.predict.request import requested_machine
from perf_tests_suite.perf_tests.predict.step import TargetMachine, largest_batch, predict_case, verdict_on
from tests.support.example_cases import attention_case, language_model_case


def case_of(size: str, context: int, precision: str, phase: str = "forward_backward") -> LanguageModelCase:
    optimizer = "loop" if PHASES[phase].trains else None
    case = language_model_case(SIZES[size].at_context(context), phase=phase, size=size, precision=precision)
    return replace(case, batch_size=4, optimizer=optimizer, device="cuda")


BLOCKS = [
    # bytes asked for, allocated and reserved
    (1, 512, 2 * MIB), (513, 1024, 2 * MIB), (MIB, MIB, 2 * MIB),
    (MIB + 1, MIB + 512, 20 * MIB), (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB, 10 * MIB), (10 * MIB + 1, 10 * MIB + 512, 12 * MIB), (11 * MIB, 12 * MIB, 12 * MIB),
    (11 * MIB - 512, 11 * MIB - 512, 12 * MIB), (19 * MIB, 20 * MIB, 20 * MIB),
]  # fmt: skip


def test_a_block_takes_what_its_pool_and_its_rest_make_it() -> None:
    for asked, allocated, reserved in BLOCKS:
        (allocator := CachingAllocator()).allocate(asked)
        assert allocator.peaks() == AllocatorPeaks(-(-asked // 512) * 512, allocated, reserved)


def test_free_neighbours_become_one_and_the_smallest_that_is_large_enough_is_handed_out() -> None:
    """In any order; the rest of a block has its place behind it."""
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        allocator = CachingAllocator()
        three = [allocator.allocate(6 * MIB) for _ in range(3)]
        large = allocator.allocate(24 * MIB)
        for place in order:
            allocator.free(three[place])
        allocator.free(large)
        assert allocator.allocate(18 * MIB).address == three[0].address
        assert allocator.allocate(20 * MIB).address == large.address
        assert allocator.peaks().reserved_bytes == 44 * MIB


def test_a_full_device_gets_whole_free_segments_back_and_no_part_of_one() -> None:
    allocator = CachingAllocator(room_bytes=62 * MIB)
    kept, part, whole = (allocator.allocate(size * MIB) for size in (4, 16, 30))
    for block in (part, whole):
        allocator.free(block)
    allocator.allocate(40 * MIB)
    assert allocator.peaks().reserved_bytes == 60 * MIB, "the segment of 30 MiB has gone"
    with pytest.raises(DeviceFullError):
        allocator.allocate(17 * MIB)
    allocator.free(kept)
    allocator.allocate(21 * MIB)
    with pytest.raises(DeviceFullError):
        allocator.allocate(1)


FIGURES = {
    ("small", 128, "fp32"): (1.0251, 1344), ("small", 128, "bf16"): (1.0335, 1411),
    ("small", 512, "bf16"): (1.0161, 3536), ("medium", 128, "fp32"): (1.0011, 3607),
    ("large", 128, "fp32"): (1.0292, 10415),
}  # fmt: skip
"""Blocks over what was asked for, and MB reserved, of forward and backward passes played independently of this."""


def test_blocks_and_segments_of_known_passes() -> None:
    for of, (share, reserved_mb) in FIGURES.items():
        peaks: Any = allocator_peaks(case_of(*of))
        assert peaks.allocated_bytes / peaks.requested_bytes == pytest.approx(share, abs=0.001), of
        assert peaks.reserved_bytes / 1e6 == pytest.approx(reserved_mb, abs=1), of


def test_every_round_is_played_to_the_peak_that_is_counted() -> None:
    """In each phase; with a pass held, gradients cleared late, checkpoints, fused attention, 16 bits."""
    tiny = replace(case_of("tiny", 64, "fp32", FULL_STEP), optimizer="foreach")
    deep = replace(tiny, config=replace(tiny.config, num_layers=5))
    cases = [
        *(replace(tiny, phase=phase) for phase in (*PHASES, FIRST_STEP) if PHASES.get(phase, tiny.phase_row).trains),
        *(case_of("tiny", 64, "bf16", phase) for phase in ("inference", "forward", "backward", "forward_backward")),
        replace(deep, zero_grad="after-forward", precision="fp16"), replace(deep, zero_grad="before-step"),
        replace(deep, holds_former_pass=True), replace(deep, checkpoint="block", precision="bf16"),
        replace(deep, attention="sdpa", precision="bf16", checkpoint="2"), replace(deep, phase=FIRST_STEP),
        replace(case_of("tiny", 64, "fp32", "forward"), holds_former_pass=True),
        attention_case(phase="attention_forward", device="cuda"),
        attention_case(phase="attention_backward", precision="bf16", device="cuda"),
    ]  # fmt: skip
    for case in cases:
        peaks = allocator_peaks(case)
        assert peaks is not None, case
        assert peaks.requested_bytes == pytest.approx(counters_of(case).peak_bytes, rel=counters.REPLAY_TOLERANCE)
        assert peaks.requested_bytes <= peaks.allocated_bytes <= peaks.reserved_bytes


def test_a_round_whose_order_is_not_known_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("tiny", 64, "fp32")
    assert allocator_peaks(replace(case, device="cpu")) is None
    monkeypatch.setattr(counters, "REPLAY_TOLERANCE", -1)
    assert allocator_peaks(replace(case, batch_size=3)) is None


def machine(room_bytes: int) -> TargetMachine:
    return TargetMachine("card", "cuda", Room(room_bytes, "made up"), ceilings_of(gpu_named("A100-80GB")), True)


def test_what_fits_is_what_the_allocator_can_place_and_not_a_share() -> None:
    """Of `large` at context 128 the segments take a third more than the peak, and a full device a sixth more."""
    case = case_of("large", 128, "fp32")
    asked = counters_of(case).peak_bytes
    rooms = {share: machine(int(share * asked)) for share in (0.99, 1.06, 1.1, 1.2, 1.4)}
    found = {share: predict_case(case, room).verdict for share, room in rooms.items()}
    assert found == {0.99: DOES_NOT_FIT, 1.06: MAY_NOT_FIT, 1.1: MAY_NOT_FIT, 1.2: FITS, 1.4: FITS}
    on_cpu = predict_case(replace(case, device="cpu"), rooms[1.06])
    assert (on_cpu.in_blocks, on_cpu.verdict) == (None, FITS)


def test_a_step_that_ran_out_of_memory_elsewhere_does_not_surely_fit_and_the_largest_batch_does() -> None:
    """80.6 GB on a card with room for 84.1 (kbjiang/cs336-assignment2-systems-mine)."""
    elsewhere = replace(case_of("2.7B", 512, "bf16", FULL_STEP), zero_grad="after-forward")
    card = requested_machine("A100-80GB")
    assert counters_of(elsewhere, libraries=card.libraries).peak_bytes < 0.96 * card.room.bytes
    assert predict_case(elsewhere, card).verdict == MAY_NOT_FIT
    step, small = case_of("small", 128, "fp32", FULL_STEP), machine(4 * 10**9)
    most = largest_batch(step, small)
    assert [verdict_on(replace(step, batch_size=size), small) for size in (most, most + 1)] == [FITS, MAY_NOT_FIT]
