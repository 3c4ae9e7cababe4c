"""Our own figures: flags of a row, the round from which its times are steady, contradictions inside a kernel pass."""

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perf_tests.audit.rounds import (
    FEWEST_REST,
    FLAGS,
    LEVEL,
    MOST_SLOW,
    RowFacts,
    has_trend,
    inconsistencies,
    outlier_places,
    product_shares_that_do_not_fall,
    raised,
    slow_first_rounds,
    steady_from,
    student_tail,
    suggested_warmup_rounds,
)
from perf_tests.records.record import Json
from perf_tests.traces.kernels import kernel_values
from perf_tests.traces.trace import read_chrome_trace
from tests.support.synthetic import FORWARD, FULL_STEP, passed
from tests.support.synthetic_trace import forward_and_backward

HONEST = [1.024, 0.987, 1.011, 0.969, 1.003, 0.994, 1.017, 0.979, 1.006, 0.998]
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


def test_honest_facts_raise_none() -> None:
    assert {name: flags for name, facts in QUIET.items() if (flags := raised(facts))} == {}


def test_scatter_alone_is_no_paging_and_no_parts_that_do_not_add_up() -> None:
    assert "paging" not in raised(RowFacts(SCATTERED, predicted_peak_bytes=50, available_bytes=100))
    assert "paging" not in raised(RowFacts(SCATTERED, available_bytes=100))
    parts = {"forward": [0.4 * value for value in NOISY], "backward": [0.6 * value for value in NOISY]}
    assert "parts_do_not_add_up" not in raised(RowFacts(NOISY, part_seconds=parts))


def test_a_peak_below_the_predicted_one_is_off_and_a_rise_is_a_trend_too() -> None:
    assert raised(RowFacts(HONEST, peak_allocated_bytes=9 * GIB, predicted_peak_bytes=10 * GIB)) == ["peak_off"]
    assert "trend" in raised(RowFacts([value * (1 + 0.02 * place) for place, value in enumerate(HONEST)]))


def test_false_trends_are_rare() -> None:
    draw = random.Random(7)
    runs = [[draw.gauss(1.0, 0.2) for _ in range(10)] for _ in range(2000)]
    assert sum(map(has_trend, runs)) <= 40  # 1 % by the test's level, and 20 more


SERIES = 1000


def noise(draw: random.Random, rounds: int, deviation: float = 0.02) -> list[float]:
    return [draw.gauss(1.0, deviation) for _ in range(rounds)]


@pytest.mark.parametrize("rounds", [10, 20])
@pytest.mark.parametrize("deviation", [0.02, 0.1])
def test_white_noise_is_steady_but_for_a_hundredth(rounds: int, deviation: float) -> None:
    draw = random.Random(rounds)
    alarms = sum(slow_first_rounds(noise(draw, rounds, deviation)) > 0 for _ in range(SERIES))
    # The binomial's own scatter beside the level: three standard deviations.
    assert alarms <= SERIES * LEVEL + 3 * math.sqrt(SERIES * LEVEL)


def most_false_alarms(rounds: int) -> float:
    """Highest rate at which steady rounds are taken for slow first ones, if all their orders are equally likely.

    Of the C(n, k) choices, k + 1 put the first k of n above all others but one, the outlier that may be left out.
    """
    most = min(rounds // 2, rounds - FEWEST_REST, MOST_SLOW)
    return sum((count + 1) / math.comb(rounds, count) for count in range(1, most + 1))


@pytest.mark.parametrize("rounds", [10, 20])
def test_noise_of_any_kind_is_steady_as_often_as_its_order_says(rounds: int) -> None:
    """A Pareto tail has rounds of many times the usual, as a machine shared with others has."""
    draw = random.Random(rounds)
    alarms = sum(slow_first_rounds([draw.paretovariate(3.0) for _ in range(rounds)]) > 0 for _ in range(SERIES))
    assert alarms <= SERIES * most_false_alarms(rounds)
    assert alarms > 0


@pytest.mark.parametrize("slow", [[1.5], [6.0, 2.0], [3.0, 1.4, 1.3], [1.3, 1.6], [5.0, 4.0, 3.0, 2.0, 1.5]])
def test_slow_first_rounds_are_counted(slow: list[float]) -> None:
    draw = random.Random(3)
    for _ in range(50):
        assert slow_first_rounds([*slow, *noise(draw, 15)]) == len(slow)


def test_a_first_round_slower_by_less_than_a_twentieth_is_none() -> None:
    quiet = [1.0, 1.0001, 0.9999, 1.0002, 0.9998, 1.0, 1.0001, 0.9999]
    assert slow_first_rounds([1.04, *quiet]) == 0
    assert slow_first_rounds([1.06, *quiet]) == 1
    assert slow_first_rounds([2.0, *[1.0] * 8]) == 1  # where rounds agree exactly


def test_a_first_round_that_a_later_one_outdoes_is_not_slow() -> None:
    """One round in twenty as slow as the first: the machine's, not the warm-up's."""
    rounds = [1.5, *noise(random.Random(4), 19, deviation=0.001)]
    rounds[12] = 1.6
    assert slow_first_rounds(rounds) == 0


@pytest.mark.parametrize("slow", [[], [2.0]])
def test_an_outlier_in_the_middle_is_no_warm_up_and_hides_none(slow: list[float]) -> None:
    rounds = [*slow, *noise(random.Random(5), 14)]
    rounds[9] = 7.0
    assert (slow_first_rounds(rounds), steady_from(rounds), outlier_places(rounds)) == (len(slow), 1 + len(slow), [10])


def test_a_series_that_moves_on_is_steady_from_no_round() -> None:
    climbing = [value * (1 + 0.03 * place) for place, value in enumerate(noise(random.Random(8), 12))]
    assert steady_from(climbing) is None
    assert steady_from([3.0, *climbing]) is None


@pytest.mark.parametrize("rounds", [[], [1.0], [1.0, 1.0, 1.0]])
def test_too_few_rounds_tell_nothing(rounds: list[float]) -> None:
    assert steady_from(rounds) is None
    assert slow_first_rounds(rounds) == 0
    assert outlier_places(rounds) == []
    assert suggested_warmup_rounds(rounds, 5) is None


def test_a_warm_up_was_short_if_rounds_begin_slow_or_get_faster_and_is_told_what_would_do() -> None:
    steady = noise(random.Random(9), 10)
    falling = [value * (1.5 - 0.05 * place) for place, value in enumerate(steady)]
    assert suggested_warmup_rounds(falling[::-1], 5) is None, "it gets slower, which no warm-up cures"
    assert suggested_warmup_rounds(steady, 5) is None
    assert suggested_warmup_rounds([4.0, 2.0, *steady], 5) == 7
    assert suggested_warmup_rounds(falling, 5) in (6, 7, 8, 9, 10)
    assert suggested_warmup_rounds([2.0, *steady], 0) == 1


@given(st.integers(1, 30), st.floats(0, 50) | st.just(math.inf))
def test_the_tail_of_students_t_is_that_of_scipy(degrees: int, deviations: float) -> None:
    assert student_tail(deviations, degrees) == pytest.approx(stats.t.sf(deviations, degrees), rel=1e-6, abs=1e-14)


@pytest.fixture(scope="module")
def values() -> Json:
    return kernel_values(read_chrome_trace(forward_and_backward().text()), {})


COPIED = {"kind": "host-to-device", "count": 1, "bytes": 4096, "seconds": 1e-6, "share_of_wall": 0.001}

PLANTED: list[tuple[Callable[[Json], Any], str]] = [
    (lambda v: v.update(launches_of_rounds=[9, 10]), "launch 9 and 10 kernels"),
    (lambda v: v["matrix_products"].update(expected_count=5), "4 matrix products ran, and the model has 5"),
    (lambda v: v["kernels"][0].update(total_seconds=1.0), "calls x mean is"),
    (lambda v: v["kernels"][0].update(share=0.9), "the shares of all kernels add up to"),
    (lambda v: v["kinds"].pop(), "the shares of all kinds add up to"),
    (lambda v: v.update(busy_share=1.2), "the device is busy for 120.0% of the time"),
    (lambda v: v["memory_operations"].append(COPIED), "1 copies from the host to the device ran inside a round"),
]


@pytest.mark.parametrize("plant, sentence", PLANTED)
def test_each_contradiction_in_a_kernel_pass_is_told(values: Json, plant: Callable[[Json], Any], sentence: str) -> None:
    broken = copy.deepcopy(values)
    assert inconsistencies(broken) == []
    plant(broken)
    assert any(sentence in told for told in inconsistencies(broken))


@pytest.mark.parametrize("of_step, told", [(0.5, 0), (0.7, 1)])
def test_products_must_take_less_of_a_full_step_than_of_a_forward_pass(of_step: float, told: int) -> None:
    forward, full_step = ({"matrix_products": {"share_of_kernel_time": share}} for share in (0.66, of_step))
    step = passed(FULL_STEP, values=full_step, phase="full_step", optimizer="loop")
    assert len(product_shares_that_do_not_fall([passed(FORWARD, values=forward), step])) == told
