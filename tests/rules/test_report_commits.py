"""The page over several commits and machines: what changed since which, and what cannot be compared."""

import re
from pathlib import Path

import pytest

from perf_tests.history.commits import Code
from perf_tests.report.page_parts.since import short_subject
from tests.support.launches_over_commits import COUNT, NOISE, START, name_of, with_step
from tests.support.report_pages import of_commit, page_over, sections, stored_in
from tests.support.synthetic import BACKWARD, record, timed, traced, untimed, with_passes

pytestmark = pytest.mark.usefixtures("no_plotly")


def test_the_history_holds_the_medians_of_one_identity_on_one_machine(tmp_path: Path) -> None:
    runs = [
        of_commit(f"{n}", benchmarks=[timed(seconds=(second,) * 3)], written=f"203{n}-01-01", threads=threads)
        for n, (second, threads) in enumerate([(1.0, 4), (2.0, 4), (9.0, 8), (3.0, 4)])
    ]
    other = of_commit("9", benchmarks=[timed(seconds=(7.0,) * 3, batch_size=64)], written="2029-01-01")
    text = page_over(tmp_path, *runs, other)
    (era,) = stored_in(text)["eras"]
    ours, others = era["cases"]
    assert (ours["at"], ours["seconds"]) == ([1, 2, 3], [1.0, 2.0, 3.0])
    assert (others["at"], others["seconds"]) == ([0], [7.0])
    assert [code[0] for code in era["codes"]] == ["9" * 12, "0" * 12, "1" * 12, "3" * 12]
    assert {"since1", "changed1"} <= set(sections(text))
    assert "since2" not in sections(text), "one commit has no history"


def test_each_case_of_the_history_leads_to_its_figure(tmp_path: Path) -> None:
    text = page_over(tmp_path, *with_step(0.2))
    for name in ("steps", "cases"):
        body = text.partition(f'id="table-since1-{name}"')[2].partition("</table>")[0].partition("<tbody>")[2]
        assert '<a href="#since1-c0">forward tiny-ctx8-fp32-naive</a>' in body


def test_two_commits_without_a_common_case_are_not_called_unchanged(tmp_path: Path) -> None:
    """Five launches and three, as the gate asks for, but those of passes alone have no times."""
    passes = [of_commit("a", benchmarks=[], written=f"2030-01-0{day}") for day in range(1, 5)]
    base = of_commit("a", benchmarks=[timed(BACKWARD, phase="backward", size="small")], written="2030-01-06")
    heads = [of_commit("b", benchmarks=[timed()], written=f"2031-01-0{day}") for day in range(1, 4)]
    text = page_over(tmp_path, *passes, base, *heads)
    first = text.partition("<nav")[0]
    assert "have no case in common, so nothing can be slower or faster yet." in first
    assert "<dt>slower</dt><dd>-</dd>" in first
    assert "1 launch with times of base against 3 of head; it needs at least 5 and 3" in text


def test_a_long_subject_is_cut_with_a_sign() -> None:
    code = Code("a" * 12, "a" * 40, "2030-01-01", "word " * 20, [], is_missing=False)
    assert short_subject(code).endswith("word…")
    assert len(short_subject(code)) <= 60


def test_two_commits_with_one_launch_each_are_beside_each_other_without_a_verdict(tmp_path: Path) -> None:
    slower = [seconds * 1.5 for seconds in timed()["stats"]["data"]]
    first = of_commit("a", benchmarks=[timed(), timed(BACKWARD, phase="backward")], written="2030-01-01")
    text = page_over(tmp_path, first, of_commit("b", benchmarks=[timed(seconds=slower)], written="2031-01-01"))
    changed = text.partition('id="changed1"')[2].partition("</section>")[0]
    assert "<td>no step<td" in changed
    assert ">1.500" in changed
    assert "No verdict of the gate: 1 launch with times of base against 1 of head" in changed
    assert "Left out: 1 case of base" in changed
    assert "<dt>slower</dt><dd>-</dd>" in text, "so few launches tell nothing"


def test_a_step_of_the_history_is_on_the_first_screen_with_its_commit(tmp_path: Path) -> None:
    text = page_over(tmp_path, *with_step(0.2))
    answer = text.partition('id="answer"')[2].partition("</section>")[0]
    assert "1 slower of 1 case" in answer
    assert f"since {name_of(START)[:12]} (2030-01-01), {COUNT - START} launches against {START}" in answer
    assert '<a href="#since1-c0">forward tiny-ctx8-fp32-naive</a>' in answer
    assert 'id="since1-c0"' in text
    assert answer.count('class="spark"') == 1


LEVELS = {"steady": 1.0, "slower": 1.2, "faster": 0.7, "slowest": 1.5}
"""Head's time of each case over that of the commits before."""


def test_lost_cases_come_first_then_the_slowest_by_steps_that_head_itself_starts(tmp_path: Path) -> None:
    """Twelve commits, and head with three launches."""
    records = []
    for number, place in enumerate([*range(12), 12, 12, 12]):
        is_head = place == 12
        rows = [
            timed(f"test_forward[{name}-ctx8-fp32-naive]", [(level if is_head else 1.0) * NOISE[number]] * 5, size=name)
            for name, level in {**LEVELS, **({} if is_head else {"lost": 1.0})}.items()
        ]
        lost = [untimed("test_forward[lost-ctx8-fp32-naive]", "error", "boom", size="lost")] if is_head else []
        day = f"2030-01-{1 + place:02}T{number:02}:00:00+00:00"
        commit = {"id": name_of(place), "dirty": False, "time": day}
        records.append({**record(rows, lost, written=day), "commit_info": commit})
    answer = page_over(tmp_path, *records).partition("</section>")[0]
    verdicts = re.findall(r">forward (\w+)-ctx8-fp32-naive</a><td>([A-Za-z ]+)<td class=\"n\">([^<]*)<", answer)
    assert [(name, verdict) for name, verdict, _ in verdicts] == [
        ("lost", "FAILED"), ("slowest", "step up"), ("slower", "step up"), ("steady", "no step"),
        ("faster", "step down"),
    ]  # fmt: skip
    changes = {name: float(change.strip("%")) / 100 for name, _, change in verdicts if change}
    assert changes == {name: pytest.approx(level - 1, abs=0.06) for name, level in LEVELS.items()}


def test_a_case_of_another_identity_is_neither_gone_nor_new(tmp_path: Path) -> None:
    first = of_commit("a", benchmarks=[timed()], written="2030-01-01")
    text = page_over(tmp_path, first, of_commit("b", benchmarks=[timed(batch_size=64)], written="2031-01-01"))
    assert "<td>INCOMPARABLE<td" in text
    assert "GONE" not in text.partition("<script")[0]


@pytest.mark.parametrize("has_precision, numbers", [(True, ["-", "-", "1", "0"]), (False, ["-", "-", "0", "0"])])
def test_a_case_is_gone_where_head_ran_its_axes(has_precision: bool, numbers: list[str], tmp_path: Path) -> None:
    """The last commit has no bf16 at 16 tokens; that is a loss where it has bf16 at 8, and a smaller run where not."""
    places = [(8, "fp32"), (16, "fp32"), (8, "bf16"), (16, "bf16")]
    rows = [timed(f"test_forward[tiny-ctx{t}-{name}-naive]", context_length=t, precision=name) for t, name in places]
    kept = rows[:3] if has_precision else rows[:2]
    commits = [{**record(some), "commit_info": {"id": name_of(place)}} for place, some in enumerate((rows, kept))]
    page = page_over(tmp_path, *commits)
    assert re.findall("<dd>([^<]*)</dd>", page) == numbers
    assert ("1 case of base" in page, "2 cases of base" in page) == (False, not has_precision)


def test_a_newest_run_of_a_pass_alone_hides_no_times(tmp_path: Path) -> None:
    passed = with_passes(record(written="2031-01-01"), traced())
    page = page_over(tmp_path, record([timed(sentinel_seconds=[1e-3, 1e-3])], written="2030-01-01"), passed)
    assert "1 of 1 case has a time at" in page.partition("</section>")[0]
    assert {"run1", "run2"} <= set(sections(page))
    assert {"since1", "changed1", "since2"}.isdisjoint(sections(page))


def test_commits_that_timed_nothing_are_not_beside_each_other(tmp_path: Path) -> None:
    """A newest record of a pass alone takes no case away."""
    passed = {**with_passes(record(), traced()), "commit_info": {"id": name_of(3)}}
    commits = [{**record([timed()]), "commit_info": {"id": name_of(place)}} for place in (1, 2)]
    page = page_over(tmp_path, *commits, passed)
    assert f"{name_of(2)[:12]} (" in page.partition("</section>")[0]
    assert "GONE" not in page


def test_a_case_that_failed_in_head_is_counted_with_its_outcome(tmp_path: Path) -> None:
    first = of_commit("a", benchmarks=[timed(), timed(BACKWARD, phase="backward")], written="2030-01-01")
    lost = untimed(BACKWARD, "error", "boom", phase="backward")
    text = page_over(tmp_path, first, of_commit("b", benchmarks=[timed()], outcomes=[lost], written="2031-01-01"))
    assert "<td>FAILED<td" in text
    assert "<dt>gone or failed</dt><dd>1</dd>" in text


def test_two_machines_are_kept_apart_with_ratios_and_no_reading(tmp_path: Path) -> None:
    first = record([timed()], written="2030", threads=2)
    second = record([timed(device="cuda", seconds=(0.1,) * 10)], written="2031", threads=8)
    text = page_over(tmp_path, first, second)
    assert "2 machines, builds or settings are shown separately" in text
    assert "ratios without a verdict" in text
    assert "in these launches" not in text
    assert {"run1", "run2", "run1-run2"} <= set(sections(text))
