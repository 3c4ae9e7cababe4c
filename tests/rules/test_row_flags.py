"""Each flag of a row fires on the mistake it is named for, and stays quiet on honest rounds."""

import random

import pytest

from perf_tests.audit.rounds import FLAGS, RowFacts, has_trend, raised

draw = random.Random(7)
HONEST = [draw.gauss(1.0, 0.02) for _ in range(10)]
NOISY = [value * (1 + place) for place, value in enumerate(HONEST)]
"""A machine that moves parts and whole alike."""
SCATTERED = [1.0, 5.0] * 5
HALF_FORWARD = [0.5 * value for value in HONEST]
GIB = 2**30

RAISED = {
    "math_attention": RowFacts(HONEST, sdpa_backend="math"),
    "recompiled": RowFacts(HONEST, recompiles=1),
    "no_cuda_graph": RowFacts(HONEST, cudagraph_skips=1),
    "skipped_steps": RowFacts(HONEST, skipped_steps=2),
    "outlier": RowFacts([*HONEST[:9], 6.0]),
    "short_warmup": RowFacts(HONEST, suggested_warmup_rounds=0),
    "trend": RowFacts([1.0 - 0.02 * place for place in range(10)]),
    "throttled": RowFacts(HONEST, throttled_rounds=[3]),
    "processors_changed": RowFacts(HONEST, before={"usable_processors": 2}, after={"usable_processors": 1}),
    "memory_limit_changed": RowFacts(HONEST, before={"memory_limit_bytes": None}, after={"memory_limit_bytes": GIB}),
    "suspended": RowFacts(HONEST, before={"suspended_seconds": 0.0}, after={"suspended_seconds": 60.0}),
    "date_set": RowFacts(HONEST, before={"booted_unix_seconds": 1e9}, after={"booted_unix_seconds": 1e9 - 1.0}),
    "over_ceiling": RowFacts(HONEST, is_over_ceiling=True),
    "waits_for_host": RowFacts(HONEST, device_busy_seconds=0.9 * min(HONEST), bound="compute"),
    "parts_do_not_add_up": RowFacts(HONEST, part_seconds={"forward": HALF_FORWARD}),
    "paging": RowFacts(SCATTERED, predicted_peak_bytes=95, available_bytes=100),
    "peak_off": RowFacts(HONEST, peak_allocated_bytes=2**26 + 2**25, predicted_peak_bytes=2**26),
}

QUIET = {
    "nothing but honest rounds": RowFacts(HONEST),
    "fused attention": RowFacts(HONEST, sdpa_backend="flash"),
    "nothing recompiled, skipped or throttled": RowFacts(HONEST, recompiles=0, skipped_steps=0, throttled_rounds=[]),
    "several slow rounds": RowFacts([*HONEST[:5], *(3.0 * value for value in HONEST[5:])]),
    "a small drift": RowFacts([1.0 + 0.001 * place for place in range(10)]),
    "too few rounds for a trend": RowFacts([1.0, 2.0, 3.0]),
    "a device that launches hold up": RowFacts(HONEST, 0.9 * min(HONEST), bound="launch"),
    "a clock with little beside the device": RowFacts(HONEST, 0.99 * min(HONEST), bound="compute"),
    "a device without a clock": RowFacts(HONEST, None, bound="compute"),
    "parts that add up": RowFacts(HONEST, part_seconds={"forward": HALF_FORWARD, "backward": HALF_FORWARD}),
    "the same processors at another load": RowFacts(
        HONEST,
        before={"usable_processors": 2, "processor_quota": None, "load_average_1min": 0.1},
        after={"usable_processors": 2, "processor_quota": None, "load_average_1min": 1.9},
    ),
    "clocks read one after the other": RowFacts(
        HONEST,
        before={"suspended_seconds": 0.0, "booted_unix_seconds": 1e9},
        after={"suspended_seconds": 0.001, "booted_unix_seconds": 1e9 - 0.001},
    ),
    "a GPU without a package that reads it": RowFacts(
        HONEST, before={"sm_clock_mhz": None}, after={"sm_clock_mhz": None}
    ),
    "no parts": RowFacts(HONEST, part_seconds={}),
    "honest rounds in memory nearly full": RowFacts(HONEST, predicted_peak_bytes=95, available_bytes=100),
    "a peak with workspaces": RowFacts(
        HONEST, peak_allocated_bytes=2**26 + 2**21, predicted_peak_bytes=2**26, workspace_bytes=2**21
    ),
    "no peak": RowFacts(HONEST, predicted_peak_bytes=10 * GIB),
}


def test_every_flag_has_a_mistake_here() -> None:
    assert RAISED.keys() == FLAGS.keys()


@pytest.mark.parametrize("flag", RAISED)
def test_a_mistake_raises_its_flag(flag: str) -> None:
    assert flag in raised(RAISED[flag])


@pytest.mark.parametrize("name", QUIET)
def test_honest_facts_raise_none(name: str) -> None:
    assert raised(QUIET[name]) == []


def test_scatter_alone_is_no_paging_and_no_parts_that_do_not_add_up() -> None:
    assert "paging" not in raised(RowFacts(SCATTERED, predicted_peak_bytes=50, available_bytes=100))
    assert "paging" not in raised(RowFacts(SCATTERED, available_bytes=100))
    parts = {"forward": [0.4 * value for value in NOISY], "backward": [0.6 * value for value in NOISY]}
    assert "parts_do_not_add_up" not in raised(RowFacts(NOISY, part_seconds=parts))


def test_a_peak_below_the_predicted_one_is_off_and_a_rise_is_a_trend_too() -> None:
    assert raised(RowFacts(HONEST, peak_allocated_bytes=9 * GIB, predicted_peak_bytes=10 * GIB)) == ["peak_off"]
    assert "trend" in raised(RowFacts([value * (1 + 0.02 * place) for place, value in enumerate(HONEST)]))


def test_false_trends_are_rare() -> None:
    runs = [[draw.gauss(1.0, 0.2) for _ in range(10)] for _ in range(2000)]
    assert sum(map(has_trend, runs)) <= 40  # 1 % by the test's level, and 20 more
