"""Claims are tried by name, each by its limits; their statistics are those of the printed tables."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from claims.__main__ import listed, main
from claims.cost import parsed_time_line
from claims.statistics import Share, means_outside, paired_ratio, paired_ratio_of_turns
from claims.table import CLAIMS, Claim, Figures, Limit, at_most
from claims.their_tests import ALONE, STEPS, WANTED, minutes_of_twenty, missing
from perf_tests_suite.perf_tests.report.screens import time_line
from tests.support.documents import EVIDENCE, page


def claim(figures: Figures, minutes: float = 1.0) -> Claim:
    return Claim("it is so", {"seconds": at_most(2), "MB": Limit(1, 8)}, lambda: figures, minutes)


FOUR = {
    "held": claim({"seconds": 1.0, "MB": 8.0}),
    "refuted": claim({"seconds": 1.0, "MB": 8.1}),
    "untried": claim({"seconds": 1.0}),
    "half": claim({"seconds": 3.0}, minutes=30),
}


@pytest.mark.parametrize("words, exit_code, said", [
    ("held", 0, "claim held: holds"), ("untried", 2, "claim untried: cannot be tried here"), ("held untried", 2, ""),
    ("refuted", 1, "MB 8.1 (1 to 8)"), ("half", 1, "claim half: does not hold"),
    ("--most-minutes 1", 1, "claim refuted: does not hold"),
])  # fmt: skip
def test_the_exit_code_is_that_of_the_gravest_claim_and_the_evidence_keeps_a_row_for_each(
    words: str, exit_code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = tmp_path / "evidence.md"
    main([], {"gone": FOUR["held"]}, evidence)
    main(["untried"], FOUR, evidence)
    evidence.write_text(f"{evidence.read_text()}\n## By hand\n\n| a | row |\n")
    assert main(words.split(), FOUR, evidence) == exit_code
    printed = capsys.readouterr().out
    assert said in printed
    assert ("half" in printed) is ("half" in words), "what takes longer than asked is left out"
    table, below = evidence.read_text().split("\n## ")
    assert below == "By hand\n\n| a | row |\n"
    tried = {"held", "refuted", "untried"} if "--" in words else {"untried", *words.split()}
    rows = [line.split(" | ")[0] for line in table.splitlines()[6:]]
    assert rows == [f"| {name}" for name in FOUR if name in tried]


def test_an_unknown_name_and_minutes_for_no_claim_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"], FOUR, tmp_path / "evidence.md")
    assert ended.value.code == 2
    assert "'nonsense'; the known ones are held, refuted, untried, half." in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--most-minutes", "0.5"], FOUR, tmp_path / "evidence.md")
    assert ended.value.code == 2
    assert "--most-minutes 0.5 leaves out every claim; the shortest takes 1." in capsys.readouterr().err
    assert not (tmp_path / "evidence.md").exists()
    assert main(["--list", "--most-minutes=1"], FOUR) == 0
    assert re.findall(r"^\w+", capsys.readouterr().out, re.M) == ["held", "refuted", "untried"]


def test_the_list_has_each_claim_with_its_limits_and_the_evidence_rows_of_these_alone() -> None:
    lines = listed(CLAIMS).splitlines()
    assert [line.partition(":")[0] for line in lines[::2]] == list(CLAIMS)
    for line, claim in zip(lines[1::2], CLAIMS.values(), strict=True):
        assert all(figure in line for figure in claim.limits)
        assert ("quiet clock" in line) is claim.needs_quiet_clock
    table = EVIDENCE.partition("\n## ")[0]
    assert set(re.findall(r"^\| ([\w-]+) \| [^|]+ \| (?:holds|does not hold|cannot)", table, re.M)) <= CLAIMS.keys()


def test_the_kinds_of_gates_of_somebodys_tests_take_turns() -> None:
    left = missing([])
    assert Counter(left) == WANTED
    assert set(left[:4]) == WANTED.keys()
    assert left.index(ALONE, left.index(ALONE) + 1) > 4


def test_the_page_says_what_twenty_tests_of_somebodys_cost_as_the_claim_holds_it() -> None:
    most = CLAIMS["their-tests"].limits["minutes of twenty tests, median"].high
    assert f"Twenty tests of up to 0.1 s take at most {most:g} min on a" in " ".join(page("your-own").split())
    assert max(STEPS.values()) == STEPS["long"], "the longest, of a tenth of a second"
    of_twelve: list[Any] = [Mock(truth={"seconds": seconds}) for seconds in (70.0, 72.0, 990.0)]
    assert minutes_of_twenty(of_twelve) == 20 / 12 * 72 / 60


def test_what_both_sides_see_cancels_and_a_steady_drift_within_each_quadruple() -> None:
    """Reference, side, side, reference: on a logarithmic slope the outer and the inner means are the same."""
    seconds = 1.0 + 0.01 * np.arange(40)
    seconds[10] *= 20
    spiked = paired_ratio((1.1 * seconds).tolist(), seconds.tolist())
    side, reference = ([math.exp(0.05 * turn) for turn in range(40) if turn % 4 in of] for of in ((1, 2), (0, 3)))
    drifting = paired_ratio_of_turns(side, reference)
    assert (spiked.low, spiked.high, drifting.low, drifting.high) == pytest.approx((1.1, 1.1, 1.0, 1.0))


def test_the_limits_are_those_of_the_printed_tables() -> None:
    """Two-sided 5 % critical values of the signed-rank test, as tabulated by Wilcoxon and Wilcox (1964)."""
    critical = {6: 0, 7: 2, 8: 3, 10: 8, 15: 25, 20: 52}
    assert {count: means_outside(count, 0.025) for count in critical} == critical


def test_six_pairs_span_from_the_smallest_to_the_largest_and_five_are_too_few() -> None:
    seconds = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    found = paired_ratio(seconds, [1.0] * 6)
    assert (found.low, found.high) == pytest.approx((1.0, 1.5))
    with pytest.raises(ValueError, match="5 pairs are too few"):
        paired_ratio(seconds[:5], [1.0] * 5)


def test_the_limits_of_a_share_are_the_exact_ones() -> None:
    """Trials needed to state a rate below 1 % at 95 % (Clopper and Pearson), and 8 of 20 as printed in textbooks."""
    for hits, trials in ((0, 299), (1, 473), (2, 628), (3, 773)):
        assert Share(hits, trials).upper_limit <= 0.01 < Share(hits, trials - 1).upper_limit
    assert Share(8, 20).limits == pytest.approx((0.191, 0.639), abs=0.001)
    assert (Share(10, 10).limits[1], Share(10, 10).upper_limit, Share(0, 10).limits[0]) == (1.0, 1.0, 0.0)
    assert (str(Share(8, 20)), str(Share(0, 0))) == ("8 of 20, 40% (19% to 64%)", "0 of 0")


def test_the_time_line_is_read_as_the_suite_writes_it() -> None:
    line = time_line({"total": 200.0, "rounds": 166.0, "compiling": 20.0, "building": 10.0})
    assert parsed_time_line(f"--- run ---\n{line}\nSaved it.\n") == (200.0, 0.83)
    with pytest.raises(ValueError, match="no line about its time"):
        parsed_time_line("no tests ran in 0.01s")
