"""Our own figures: flags of a row, the round from which its times are steady, contradictions inside a kernel pass."""

import copy
import math
import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_tests_suite.perf_tests.audit import rounds as ours
from perf_tests_suite.perf_tests.records.columns import pass_cells
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.traces.kernels import kernel_values
from perf_tests_suite.perf_tests.traces.trace import read_chrome_trace
from tests.support.synthetic import FORWARD, FULL_STEP, passed
from tests.support.synthetic_trace import forward_and_backward

HONEST = [1.024, 0.987, 1.011, 0.969, 1.003, 0.994, 1.017, 0.979, 1.006, 0.998]
NOISY = [value * (1 + place) for place, value in enumerate(HONEST)]
"""A machine that moves parts and whole alike."""
SCATTERED = [1.0, 5.0] * 5
MIB, GIB = 2**20, 2**30


def times(factor: float, rounds: list[float] = HONEST) -> list[float]:
    return [factor * value for value in rounds]


def test_one_slow_round_gives_mean_and_spread() -> None:
    assert ours.slow_round(1.9, 2.7, 10) == pytest.approx((1.0, 10.0))
    assert ours.slow_round(34.2, 34.4, 10) == pytest.approx((22.7, 137), rel=0.01)
    assert [ours.slow_round(1.0, 3.0, 10), ours.slow_round(1.0, 0.5, 2), ours.slow_round(1.0, 0.0, 10)] == [None] * 3


def around(before: Json, **after: Any) -> Json:
    return {"before": before, "after": {**before, **after}}


PROCESSORS = {"usable_processors": 2, "processor_quota": None, "load_average_1min": 0.1}
CLOCKS = {"suspended_seconds": 0.0, "booted_unix_seconds": 1e9}
NEARLY_FULL: Json = {"predicted_peak_bytes": 95, "available_bytes": 100}

FACTS: list[tuple[str, Json]] = [
    # the flag that they raise, and what the row says beside honest rounds
    ("", {}),
    ("math_attention", {"sdpa_backend": "math"}), ("", {"sdpa_backend": "flash"}),
    ("not_compiled", {"not_compiled": 1, "graphs": 0}), ("", {"not_compiled": 0, "graph_breaks": 3}),
    ("recompiled", {"recompiles": 1}), ("no_cuda_graph", {"cudagraph_skips": 1}),
    ("skipped_steps", {"skipped_steps": 2}), ("throttled", {"throttle_reasons": {"heat": 1}}),
    ("", {"recompiles": 0, "skipped_steps": 0, "throttle_reasons": {}}), ("", {"throttle_reasons": {"power cap": 9}}),
    ("throttled", {"throttle_reasons": {"power cap": 9, "power brake": 1}}),
    ("nondeterministic", {"same_again": False}), ("", {"same_again": True}),
    ("steps_left_out", {"checked": {"rounds": [2, 5], "still": [5]}}), ("unchecked", {"checked": {"rounds": []}}),
    ("", {"checked": {"rounds": [2, 5], "still": None}}), ("", {"checked": None}),
    ("outlier", {"rounds_seconds": [*HONEST[:9], 6.0]}), ("", {"rounds_seconds": [*HONEST[:5], *times(3, HONEST[5:])]}),
    ("", {"rounds_seconds": [1.0, 2.0, 3.0]}), ("", {"rounds_seconds": [1.0 + 0.001 * place for place in range(10)]}),
    ("trend", {"rounds_seconds": [1.0 - 0.02 * place for place in range(10)]}),
    ("trend", {"rounds_seconds": [value * (1 + 0.02 * place) for place, value in enumerate(HONEST)]}),
    ("short_warmup", {"suggested_warmup_rounds": 0}), ("over_ceiling", {"is_over_ceiling": True}),
    ("processors_changed", around(PROCESSORS, usable_processors=1)), ("", around(PROCESSORS, load_average_1min=1.9)),
    ("processors_changed", around(PROCESSORS, processor_quota=0.5)),
    ("memory_limit_changed", around({"memory_limit_bytes": None}, memory_limit_bytes=GIB)),
    ("busy_machine", {**around(PROCESSORS), "other_cores": 0.15, "threads": 2}),
    ("busy_machine", {**around(PROCESSORS), "other_cores": 1.2}), ("", {**around(PROCESSORS), "other_cores": 0.9}),
    ("", {**around(PROCESSORS), "other_cores": 0.05, "threads": 8}), ("", {"other_cores": 1.5, "threads": 2}),
    ("", {**around(PROCESSORS), "other_cores": None, "threads": 2}),
    ("busy_machine", {"sentinel_seconds": [0.9, 0.3], "least_sentinel_seconds": 0.1}),
    ("", {"sentinel_seconds": [0.9, 0.15], "least_sentinel_seconds": 0.1}),
    ("", {"sentinel_seconds": [], "least_sentinel_seconds": 0.1}),
    ("suspended", around(CLOCKS, suspended_seconds=60.0)), ("date_set", around(CLOCKS, booted_unix_seconds=1e9 - 1)),
    ("", around(CLOCKS, suspended_seconds=0.001, booted_unix_seconds=1e9 - 0.001)),
    ("waits_for_host", {"device_busy_seconds": 0.87, "bound": "compute"}),
    ("", {"device_busy_seconds": 0.87, "bound": "launch"}), ("", {"device_busy_seconds": 0.96, "bound": "compute"}),
    ("", {"device_busy_seconds": None, "bound": "compute"}),
    ("", {"device_busy_seconds": 0.87, "empty_round_seconds": 0.1, "bound": "compute"}),
    ("waits_for_host", {"device_busy_seconds": 0.87, "empty_round_seconds": 0.05, "bound": "compute"}),
    ("parts_do_not_add_up", {"part_seconds": {"forward": times(0.5)}}),
    ("parts_do_not_add_up", {"part_seconds": {"forward": HONEST[1:]}}),
    ("", {"part_seconds": {"forward": times(0.5), "backward": times(0.5)}}), ("", {"part_seconds": {"forward": []}}),
    ("trend", {"rounds_seconds": NOISY, "part_seconds": {"forward": times(0.4, NOISY), "backward": times(0.6, NOISY)}}),
    ("paging", {"rounds_seconds": SCATTERED, **NEARLY_FULL}), ("", NEARLY_FULL),
    ("", {"rounds_seconds": SCATTERED, **NEARLY_FULL, "predicted_peak_bytes": 89}),
    ("", {"rounds_seconds": SCATTERED, "available_bytes": 100}),
    ("peak_off", {"peak_allocated_bytes": 96 * MIB, "predicted_peak_bytes": 64 * MIB}),
    ("peak_off", {"peak_allocated_bytes": 9 * GIB, "predicted_peak_bytes": 10 * GIB}),
    ("", {"peak_allocated_bytes": 10.4 * GIB, "peak_requested_bytes": 10 * GIB, "predicted_peak_bytes": 10 * GIB}),
    ("", {"predicted_peak_bytes": GIB}),
    ("", {"peak_allocated_bytes": 66 * MIB, "predicted_peak_bytes": 64 * MIB, "workspace_bytes": 2 * MIB}),
    ("beside_a_run", {"is_beside_a_run": True}), ("replaced", {"replaced": ["time.perf_counter"]}),
    ("late_work", {"late_work": ["it goes on"]}),
    ("shares_memory", {"shares_memory": True}), ("over_roofline", {"over_roofline": 1.26}),
    ("", {"over_roofline": 1.24}), ("clocks_disagree", {"raw_seconds": times(3.0)}),
    ("clocks_disagree", {"raw_seconds": times(1.0013)}), ("", {"raw_seconds": times(1.001)}),
    ("", {"rounds_seconds": times(1e-6), "raw_seconds": times(9e-5)}), ("", {"raw_seconds": []}),
    ("", {"raw_seconds": times(1.08), "rate_of_clocks": 1 / 1.08}),
    ("", {"raw_seconds": [*HONEST[:-1], HONEST[-1] + 0.1]}),
    ("clocks_disagree", {"raw_seconds": [*HONEST[:-2], HONEST[-2] + 0.1, HONEST[-1] + 0.1]}),
    ("clocks_disagree", {"rounds_seconds": [0.1, 0.1], "raw_seconds": [0.1, 0.2]}),
    ("more_cpu_than_wall", {"cpu_seconds": times(2.2), **around(PROCESSORS)}),
    ("", {"cpu_seconds": [*times(1.8)[:9], 4.0], **around(PROCESSORS)}), ("", {"cpu_seconds": times(2.2)}),
    ("conditions_changed", around({"float32_matmul_precision": "highest"}, float32_matmul_precision="high")),
    ("conditions_changed", around({"deterministic_algorithms": False}, deterministic_algorithms=True)),
]  # fmt: skip


def test_facts_raise_their_flag_and_no_other_and_each_flag_has_some_here() -> None:
    honest: Json = {"rounds_seconds": HONEST}
    found = [ours.raised(ours.RowFacts(**{**honest, **facts})) for _, facts in FACTS]
    assert found == [[flag] if flag else [] for flag, _ in FACTS]
    assert {flag for flag, _ in FACTS} == {"", *ours.FLAGS}


ACCUSED: list[tuple[Json, str]] = [
    ({"raw_seconds": times(3.0)}, "took 9.988 s by one clock and 29.96 s by a second one of the system"),
    ({"cpu_seconds": times(2.5), **around(PROCESSORS)}, "in which 2 processors have at most 19.98 s"),
    ({"over_roofline": 1.27}, "its kernels need 1.27 x the time that it took"),
    (around({"float32_matmul_precision": "highest"}, float32_matmul_precision="high"),
     "It changed float32_matmul_precision from highest to high in its rounds"),
]  # fmt: skip


def test_code_of_the_users_is_accused_with_figures_of_what_no_honest_measurement_shows() -> None:
    for facts, words in ACCUSED:
        (said,) = ours.accusations(ours.RowFacts(**{"rounds_seconds": HONEST, **facts}))
        assert words in said
    busy = {**around(PROCESSORS), "other_cores": 1.2}
    assert ours.accusations(ours.RowFacts(rounds_seconds=HONEST, **busy)) == [], "a flag of the machine accuses nobody"


def test_what_was_replaced_is_named_up_to_three() -> None:
    assert "It replaced a, b, c and 1 more, by which it is measured and checked;" in ours.why_replaced(list("abcd"))
    assert "It replaced a, by which" in ours.why_replaced(["a"])


SERIES = 500


def noise(draw: random.Random, rounds: int, deviation: float = 0.02) -> list[float]:
    return [draw.gauss(1.0, deviation) for _ in range(rounds)]


@given(st.lists(st.integers(0, 9), min_size=60, max_size=90))
def test_a_trend_counts_rises_less_falls_of_all_pairs(values: list[int]) -> None:
    signs = ((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    assert ours.rises_less_falls(values) == sum(signs)


def test_a_trend_of_many_rounds_takes_far_fewer_comparisons_than_they_have_pairs() -> None:
    compared = []

    class Counted(float):
        def __lt__(self, other: float) -> bool:
            compared.append(other)
            return float(self) < float(other)

    assert not ours.has_trend([Counted(one) for one in noise(random.Random(11), 4000)])
    assert len(compared) < 4000 * 100


def test_false_trends_are_rare() -> None:
    draw = random.Random(7)
    assert sum(ours.has_trend(noise(draw, 10, 0.2)) for _ in range(2000)) <= 40  # 1 % by the test's level, and 20 more


@pytest.mark.parametrize("rounds", [10, 20])
def test_steady_rounds_are_taken_for_slow_ones_as_rarely_as_the_level_and_their_order_say(rounds: int) -> None:
    """A Pareto tail has rounds of many times the usual, as a machine shared with others has.

    Of the C(n, k) choices, k + 1 put the first k of n above all others but one, the outlier that may be left out.
    """
    draw = random.Random(rounds)
    most = min(rounds // 2, rounds - ours.FEWEST_REST, ours.MOST_SLOW)
    by_order = sum((count + 1) / math.comb(rounds, count) for count in range(1, most + 1))
    tails = ([draw.paretovariate(3.0) for _ in range(rounds)] for _ in range(SERIES))
    assert 0 < sum(ours.slow_first_rounds(tail) > 0 for tail in tails) <= SERIES * by_order
    for deviation in (0.02, 0.1):  # the binomial's own scatter beside the level: three standard deviations
        alarms = sum(ours.slow_first_rounds(noise(draw, rounds, deviation)) > 0 for _ in range(SERIES))
        assert alarms <= SERIES * ours.LEVEL + 3 * math.sqrt(SERIES * ours.LEVEL)


def test_slow_first_rounds_are_counted() -> None:
    draw = random.Random(3)
    for slow in ([1.5], [6.0, 2.0], [3.0, 1.4, 1.3], [1.3, 1.6], [5.0, 4.0, 3.0, 2.0, 1.5]):
        assert {ours.slow_first_rounds([*slow, *noise(draw, 15)]) for _ in range(50)} == {len(slow)}


def test_a_first_round_slower_by_less_than_a_twentieth_or_outdone_by_a_later_one_is_not_slow() -> None:
    quiet = [1.0, 1.0001, 0.9999, 1.0002, 0.9998, 1.0, 1.0001, 0.9999]
    assert [ours.slow_first_rounds([first, *quiet]) for first in (1.04, 1.06)] == [0, 1]
    assert ours.slow_first_rounds([2.0, *[1.0] * 8]) == 1  # where rounds agree exactly
    rounds = [1.5, *noise(random.Random(4), 19, deviation=0.001)]
    rounds[12] = 1.6
    assert ours.slow_first_rounds(rounds) == 0


CLIMBING = [value * (1 + 0.03 * place) for place, value in enumerate(noise(random.Random(8), 12))]
STEADY = noise(random.Random(9), 10)
FALLING = [value * (1.5 - 0.05 * place) for place, value in enumerate(STEADY)]


def test_rounds_are_steady_after_the_slow_ones_unless_they_move_on_or_are_too_few() -> None:
    """An outlier in the middle is no warm-up, and hides none."""
    for slow in ([], [2.0]):
        rounds = [*slow, *noise(random.Random(5), 9 - len(slow)), 7.0, *noise(random.Random(6), 4)]
        assert (ours.steady_from(rounds), ours.outlier_places(rounds)) == (1 + len(slow), [10])
    for rounds in (CLIMBING, [3.0, *CLIMBING], *([1.0] * count for count in range(4))):
        assert (ours.steady_from(rounds), ours.outlier_places(rounds)) == (None, [])


def test_a_warm_up_was_short_if_rounds_begin_slow_or_get_faster_and_is_told_what_would_do() -> None:
    for rounds, configured, suggested in (
        ([4.0, 2.0, *STEADY], 5, 7), ([2.0, *STEADY], 0, 1), (FALLING, 5, 10), (FALLING[::-1], 5, None),
        (STEADY, 5, None), ([1.0] * 3, 5, None),
    ):  # fmt: skip
        assert ours.suggested_warmup_rounds(rounds, configured) == suggested, rounds


COPIED = {"kind": "host-to-device", "count": 1, "bytes": 4096, "seconds": 1e-6, "share_of_wall": 0.001}
PLANTED: list[tuple[Callable[[Json], Any], str]] = [
    (lambda v: v.update(launches_of_rounds=[9, 10]), "launch 9 and 10 kernels"),
    (lambda v: v["matrix_products"].update(expected_count=5), "4 matrix products ran, and the model has 5"),
    (lambda v: v["kernels"][0].update(total_seconds=1.0), "calls x mean is"),
    (lambda v: v["kernels"][0].update(share=0.9), "the shares of all kernels add up to"),
    (lambda v: v["kinds"].pop(), "the shares of all kinds add up to"),
    (lambda v: v.update(busy_share=1.2), "the device is busy for 120.0% of the time: the rounds do not wait for"),
    (lambda v: v["memory_operations"].append(COPIED), "1 copies from the host to the device ran inside a round"),
]


def test_each_contradiction_in_a_kernel_pass_is_told_once() -> None:
    values = kernel_values(read_chrome_trace(forward_and_backward().text()), {})
    assert ours.inconsistencies(values) == []
    for plant, sentence in PLANTED:
        plant(broken := copy.deepcopy(values))
        (told,) = ours.inconsistencies(broken)
        assert sentence in told


def test_products_must_take_less_of_a_full_step_than_of_a_forward_pass() -> None:
    for of_step, told in ((0.5, 0), (0.66, 1), (0.7, 1)):
        forward, full_step = ({"matrix_products": {"share_of_kernel_time": share}} for share in (0.66, of_step))
        step = passed(FULL_STEP, values=full_step, phase="full_step", optimizer="loop")
        assert (
            len(
                ours.product_shares_that_do_not_fall(
                    pass_cells({"passes": [passed(FORWARD, values=forward), step], "outcomes": []}, "kernels")
                )
            )
            == told
        )
