"""Claims are tried by name, each by its limits; their statistics are those of the printed tables."""

import math
import random
from pathlib import Path

import pytest

from claims.__main__ import listed, main
from claims.cost import parsed_time_line
from claims.statistics import Share, means_outside, paired_ratio, paired_ratio_of_turns
from claims.table import CLAIMS, Claim, Figures, Limit, at_most
from perf_tests.report.screens import time_line
from tests.support.documents import block, indented, page


def claim(figures: Figures, minutes: float = 1.0) -> Claim:
    return Claim("it is so", {"seconds": at_most(2), "MB": Limit(1, 8)}, lambda: figures, minutes)


HELD, REFUTED, UNTRIED = claim({"seconds": 1.0, "MB": 8.0}), claim({"seconds": 1.0, "MB": 8.1}), claim({"seconds": 1.0})
THREE = {"held": HELD, "refuted": REFUTED, "untried": UNTRIED}


@pytest.mark.parametrize(
    "names, exit_code",
    [(["held"], 0), (["untried"], 2), (["held", "untried"], 2), (["refuted"], 1), ([], 1)],
)
def test_the_exit_code_is_that_of_the_gravest_claim(names: list[str], exit_code: int, tmp_path: Path) -> None:
    assert main(names, THREE, tmp_path / "evidence.md") == exit_code


def test_a_false_claim_is_named_with_its_figure_and_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["refuted"], THREE, tmp_path / "evidence.md")
    said = capsys.readouterr().out
    assert "claim refuted: does not hold" in said
    assert "MB 8.1 (1 to 8)" in said


def test_a_figure_beyond_its_limit_refutes_though_another_is_missing(tmp_path: Path) -> None:
    assert main([], {"one": claim({"seconds": 3.0})}, tmp_path / "evidence.md") == 1


def test_an_unknown_name_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"], THREE, tmp_path / "evidence.md")
    assert ended.value.code == 2
    assert "no claim is named 'nonsense'; the known ones are held, refuted, untried." in capsys.readouterr().err
    assert not (tmp_path / "evidence.md").exists()


def test_the_evidence_keeps_a_row_for_each_claim_and_none_of_one_that_is_no_more(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.md"
    main(["untried"], THREE, evidence)
    main([], {"gone": HELD}, evidence)
    main(["held"], THREE, evidence)
    main(["untried", "refuted"], THREE, evidence)
    rows = [line.split(" | ") for line in evidence.read_text().splitlines()[6:]]
    assert [(row[0], row[2]) for row in rows] == [
        ("| held", "holds"), ("| refuted", "does not hold"), ("| untried", "cannot be tried here"),
    ]  # fmt: skip


def test_what_takes_longer_than_asked_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = {"quick": HELD, "slow": claim({}, minutes=30)}
    assert main(["--most-minutes", "1"], slow, tmp_path / "evidence.md") == 0
    assert "slow" not in capsys.readouterr().out


def test_the_page_lists_what_the_program_lists() -> None:
    assert listed(CLAIMS).splitlines() == indented(block(page("claims"), "claims"))


def noisy_seconds(typical_seconds: float, count: int, seed: int) -> list[float]:
    """Rounds that scatter by 5 % around a typical one."""
    draw = random.Random(seed)
    return [typical_seconds * draw.lognormvariate(0, 0.05) for _ in range(count)]


@pytest.mark.parametrize("slowdown", [1.0, 1.1])
def test_a_planted_slowdown_is_found_and_equal_sides_stay_within_the_limits(slowdown: float) -> None:
    found = paired_ratio(noisy_seconds(slowdown, 300, seed=3), noisy_seconds(1.0, 300, seed=4))
    assert found.ratio == pytest.approx(slowdown, rel=0.02)
    assert found.low < found.ratio < found.high
    assert (found.low >= 0.98 and found.high <= 1.02) == (slowdown == 1.0)


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


@pytest.mark.parametrize(("hits", "trials"), [(0, 299), (1, 473), (2, 628), (3, 773)])
def test_the_upper_limit_is_one_percent_where_the_tables_say(hits: int, trials: int) -> None:
    """Trials needed to state a rate below 1 % at 95 % (Clopper and Pearson)."""
    assert Share(hits, trials).upper_limit <= 0.01
    assert Share(hits, trials - 1).upper_limit > 0.01


def test_the_interval_of_a_share_is_the_exact_one() -> None:
    """8 of 20: 0.191 to 0.639, as printed in textbooks."""
    assert Share(8, 20).limits == pytest.approx((0.191, 0.639), abs=0.001)
    assert Share(10, 10).limits[1] == 1.0
    assert str(Share(8, 20)) == "8 of 20, 40% (19% to 64%)"
    assert str(Share(0, 0)) == "0 of 0"


def test_the_time_line_is_read_as_the_suite_writes_it() -> None:
    line = time_line({"total": 200.0, "rounds": 166.0, "compiling": 20.0, "building": 10.0})
    assert parsed_time_line(f"--- run ---\n{line}\nSaved it.\n") == (200.0, 0.83)
    with pytest.raises(ValueError, match="no line about its time"):
        parsed_time_line("no tests ran in 0.01s")
