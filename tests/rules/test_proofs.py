"""The statistics and the parsing that the proofs stand on; the proofs themselves measure time and are no tests."""

import math
import random
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from claims import against_llama, steady_memory
from claims.paired_ratio import means_outside, paired_ratio, paired_ratio_of_turns
from claims.quick import Claim, narrow, parsed_time_line, trace_bytes
from claims.verdict import conclude
from perf_tests.report.screens import time_line
from tests.support.example_cases import TOY
from tests.support.launches import LaunchError, launch_suite


def noisy_seconds(typical_seconds: float, count: int, seed: int) -> list[float]:
    """Rounds that scatter by 5 % around a typical one."""
    draw = random.Random(seed)
    return [typical_seconds * draw.lognormvariate(0, 0.05) for _ in range(count)]


@pytest.mark.parametrize("slowdown", [1.0, 1.1])
def test_a_planted_slowdown_is_found_and_equal_sides_stay_within_the_limits(slowdown: float) -> None:
    found = paired_ratio(noisy_seconds(slowdown, 300, seed=3), noisy_seconds(1.0, 300, seed=4))
    assert found.ratio == pytest.approx(slowdown, rel=0.02)
    assert found.low < found.ratio < found.high
    assert found.is_within(0.98, 1.02) == (slowdown == 1.0)


def test_a_drift_and_a_spike_that_both_sides_see_cancel() -> None:
    seconds = [1.0 + 0.01 * place for place in range(40)]
    seconds[10] *= 20
    found = paired_ratio([1.1 * value for value in seconds], seconds)
    assert (found.low, found.high) == pytest.approx((1.1, 1.1))


def test_a_steady_drift_cancels_within_each_quadruple() -> None:
    """Reference, side, side, reference: on a logarithmic slope the outer and the inner means are the same."""
    side, reference = ([math.exp(0.05 * turn) for turn in range(40) if turn % 4 in of] for of in ((1, 2), (0, 3)))
    found = paired_ratio_of_turns(side, reference)
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_one_spike_moves_neither_the_ratio_nor_the_interval_far() -> None:
    seconds, reference = noisy_seconds(1.0, 60, seed=5), noisy_seconds(1.0, 60, seed=6)
    calm = paired_ratio(seconds, reference)
    seconds[7] *= 50
    assert paired_ratio(seconds, reference).ratio == pytest.approx(calm.ratio, rel=0.01)


@pytest.mark.parametrize(("count", "outside"), [(6, 0), (7, 2), (8, 3), (10, 8), (15, 25), (20, 52)])
def test_the_limits_are_those_of_the_printed_tables(count: int, outside: int) -> None:
    """Two-sided 5 % critical values of the signed-rank test, as tabulated by Wilcoxon and Wilcox (1964)."""
    assert means_outside(count, 0.025) == outside


def test_six_pairs_span_from_the_smallest_to_the_largest_and_five_are_too_few() -> None:
    seconds = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    found = paired_ratio(seconds, [1.0] * 6)
    assert (found.low, found.high) == pytest.approx((1.0, 1.5))
    with pytest.raises(ValueError, match="5 pairs are too few"):
        paired_ratio(seconds[:5], [1.0] * 5)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """2000 draws of 8 equal pairs: at least 95 % less four standard errors of that share."""
    trials = 2000
    draws = ([noisy_seconds(1.0, 8, seed=2 * trial + side) for side in (0, 1)] for trial in range(trials))
    covered = sum(found.low <= 1 <= found.high for found in (paired_ratio(*sides) for sides in draws))
    assert covered / trials >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / trials)


def test_the_time_line_is_read_as_the_suite_writes_it() -> None:
    line = time_line({"total": 200.0, "rounds": 166.0, "compiling": 20.0, "building": 10.0})
    assert parsed_time_line(f"--- run ---\n{line}\nSaved it.\n") == (200.0, 0.83)


def test_a_run_without_a_time_line_is_refused() -> None:
    with pytest.raises(ValueError, match="no line about its time"):
        parsed_time_line("no tests ran in 0.01s")


@pytest.mark.parametrize(("ours", "no_slower"), [(1.0, True), (1.1, False)])
def test_ours_against_llama_is_the_loop_against_the_suite(
    ours: float, no_slower: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop's rounds of the warm-up, here a hundred times as slow, are no part of it."""
    loop_seconds = [100.0] * 3 + [ours] * 24
    info = {"phase": "forward", "context_length": 128, "loop_seconds": loop_seconds}
    benchmark: dict[str, object] = {"extra_info": info, "stats": {"data": [1.0] * 24}}
    assert against_llama.is_no_slower(benchmark) is no_slower
    assert f"ours / llama {ours:.3f} ({ours:.3f} to {ours:.3f})" in capsys.readouterr().out


@pytest.mark.usefixtures("forked_workers")
def test_a_run_is_read_from_its_record_and_a_failed_one_says_what_it_printed() -> None:
    """Here rounds that do nothing, which measure the suite's own cost."""
    suite = ["-p", "tests.support.quick_ceiling", "claims/interleaved_rounds.py", "-k=nothing"]
    size = ["--size=tiny", "--context=64", "--precision=fp32", "--warmup-rounds=1", "--rounds=3"]
    (nothing,) = launch_suite([*suite, "--phase=inference", "--device=cpu", *size]).benchmarks
    assert len(nothing["extra_info"]["between_seconds"]) == 3
    with pytest.raises(LaunchError, match="no_such_file"):
        launch_suite(["perf_tests/no_such_file.py"])


@pytest.mark.parametrize(("holds", "code", "words"), [(True, 0, "holds"), (False, 1, "does not hold")])
def test_the_verdict_is_the_last_word_and_the_exit_code(
    capsys: pytest.CaptureFixture[str], holds: bool, code: int, words: str
) -> None:
    assert conclude("it is so", holds) == code
    assert capsys.readouterr().out == f"claim: it is so: {words}\n"


def test_a_size_that_creeps_up_once_the_first_cases_are_done_is_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steady_memory.CASES == 200
    loading = [100 * case for case in range(steady_memory.LOADING)]
    assert steady_memory.growth([*loading, 5000, 4900, 5000]) == pytest.approx(5000 / 4900 - 1)
    assert steady_memory.growth([*loading, *range(4000, 4400)]) == pytest.approx(4399 / 4000 - 1)
    monkeypatch.setenv("RESIDENT_LOG", str(tmp_path / "log"))
    steady_memory.pytest_runtest_logfinish()
    held = bytearray(2**26)
    held[:: resource.getpagesize()] = b"x" * len(held[:: resource.getpagesize()])
    steady_memory.pytest_runtest_logfinish()
    before, after = map(int, (tmp_path / "log").read_text().split())
    assert after - before == pytest.approx(len(held), rel=0.1)


@pytest.mark.parametrize(("figures", "holds"), [((1.0, 7.9), True), ((1.0, 8.0), False), ((2.0, 1.0), False)])
def test_a_claim_with_several_limits_holds_where_each_figure_is_below_its_own(
    figures: tuple[float, ...], holds: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Claim("takes less than 2 s and 8 MB", (2, 8), lambda: figures).is_shown() is holds
    assert f"{figures[1]:g} (limit 8)" in capsys.readouterr().out


def test_a_model_is_narrowed_and_keeps_its_depth() -> None:
    slim = narrow(replace(TOY, d_model=64, d_ff=256))
    assert (slim.num_layers, slim.num_heads, slim.vocab_size) == (TOY.num_layers, TOY.num_heads, TOY.vocab_size)
    assert (slim.d_model, slim.d_ff) == (2 * TOY.num_heads, 8 * TOY.num_heads)


def test_in_a_trace_width_weighs_little_and_depth_weighs_in_full() -> None:
    shapes: list[dict[str, int]] = [{}, {"d_model": 128, "d_ff": 512}, {"num_layers": 8}]
    thin, wide, deep = (trace_bytes(replace(TOY, **shape)) for shape in shapes)
    assert 0.9 < wide / thin < 1.2
    assert 2 < deep / thin < 4
