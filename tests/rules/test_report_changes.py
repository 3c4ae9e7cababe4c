"""What the page sets beside each other: two commits, each case over all commits, two machines."""

import re
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json
from tests.support import launches_over_commits as commits
from tests.support.git_repository import git
from tests.support.launches_over_commits import SLOWED, SLOWER, START, launch, name_of
from tests.support.report_pages import Page, of_commit, page_over
from tests.support.synthetic import BACKWARD, machine, record, timed, traced, untimed, with_passes

TINY = "forward tiny-ctx8-fp32-naive"
pytestmark = pytest.mark.usefixtures("no_plotly")


BACK, LATE = timed(BACKWARD, phase="backward"), timed("late", phase="full_step")
FAILED = untimed(BACKWARD, "error", "boom", phase="backward")
GRID = [timed(f"a[{t}{name}]", context_length=t, precision=name) for name in ("fp32", "bf16") for t in (8, 16)]


@pytest.mark.parametrize(
    "base, head, lost, verdicts, counts, said",
    [
        ([timed(), BACK], [timed(seconds=[1.5] * 10)], [], ["no step"], "--00", "Left out: 1 case of base that"),
        ([timed(), BACK], [timed(), LATE], [FAILED], ["FAILED", "no step", "NEW"], "--10", OUTCOMES["error"]),
        ([timed()], [timed(batch_size=64)], [], ["INCOMPARABLE"], "--00", "another identity on either side"),
        ([BACK], [timed()], [], ["NEW"], "--00", "First run of these cases; nothing to compare."),
        (GRID, GRID[:3], [], ["GONE", *["no step"] * 3], "--10", "1 gone or failed of 4 cases"),
        (GRID, GRID[:2], [], ["no step", "no step"], "--00", "Left out: 2 cases of base that the axes of head's"),
    ],
    ids=["few launches", "failed and new", "identity", "nothing in common", "gone", "a smaller run"],
)
def test_of_two_commits_with_a_launch_each_what_is_lost_is_told_apart_from_what_was_not_asked_for(
    base: list[Json], head: list[Json], lost: list[Json], verdicts: list[str], counts: str, said: str, tmp_path: Path
) -> None:
    now = {**of_commit("b", "2031-01-01", *head), "outcomes": lost}
    page = page_over(tmp_path, of_commit("a", "2030-01-01", *base), now)
    assert page.column("changed1-cases", "verdict") == verdicts
    assert len(page.tables["changed1-cases"][0]) == 6, "the page's program fills empty columns for other pairs"
    assert "".join(page.counts) == counts, "so few launches tell nothing but a loss"
    assert said in page.texts["answer"] + page.texts["changed1"]
    assert "the two commits, which need 3 launches on either side" in page.texts["changed1"]


def test_launches_of_passes_alone_have_no_times_and_hide_none(tmp_path: Path) -> None:
    passed = {**with_passes(record(written="2032-01-01"), traced()), "commit_info": {"id": name_of(3)}}
    page = page_over(tmp_path / "one", launch(1, 1.0), passed)
    assert "1 of 1 case has a time." in page.texts["answer"]
    assert {"run1", "run2"} <= set(page.sections)
    assert {"since1", "changed1", "since2"}.isdisjoint(page.sections)
    passes = [of_commit("a", f"2030-01-0{day}") for day in range(1, 5)]
    bases, heads = ([of_commit(name, f"203{name}-01-0{day}", timed()) for day in days]
                    for name, days in (("2", [6]), ("3", [1, 2, 3])))  # fmt: skip
    for data in bases:
        data["commit_info"] = passes[0]["commit_info"]
    page = page_over(tmp_path / "five", *passes, *bases, *heads)
    assert re.findall(r'data-side="(\w+)">.*?selected>(20\d\d)-', page.source) == [("base", "2030"), ("head", "2033")]


# Over all commits.


def test_a_step_of_the_history_is_on_the_first_screen_with_its_commit(tmp_path: Path) -> None:
    records = commits.with_step(0.2)
    for data, date in zip(records, reversed([data["datetime"] for data in records]), strict=True):
        data["datetime"] = date  # a clock that went backwards moves no commit: git orders them, or their own dates
    page = page_over(tmp_path, *records)
    assert f"{name_of(commits.COUNT - 1)[:12]} (2030-01-01) against {name_of(0)[:12]}" in page.texts["answer"]
    assert "1 slower of 1 case" in page.texts["answer"]
    ((case, verdict, change, start, _, why),) = page.tables["worst"][1:]
    assert (case, verdict, start) == (TINY, "step up", name_of(START)[:12])
    assert float(change.strip("%")) == pytest.approx(20, abs=6)
    assert f"since {name_of(START)[:12]} (2030-01-01), {commits.COUNT - START} launches against {START}" in why
    assert [page.tables[f"since1-{name}"][1][0] for name in ("steps", "cases")] == [TINY, TINY]
    assert "since1-counters" not in page.tables
    assert f"1 of 1 case is slower: {TINY}, {change}, since {name_of(START)[:12]}." in page.texts["answer"]
    assert page.having("href").count("#since1-c0") == 4, "of the worst, what changed, the steps and all cases"
    assert page.source.count('class="spark"') == page.source.count('class="mark"') == 2


def test_a_case_that_became_slower_after_it_became_faster_is_slower(tmp_path: Path) -> None:
    level = [1.0] * 8 + [0.6] * 8 + [0.7] * 8
    page = page_over(tmp_path, *(launch(n, commits.NOISE[n] * one) for n, one in enumerate(level)))
    ((_, verdict, change, start, _, _),) = page.tables["worst"][1:]
    assert (verdict, start, page.column("changed1-cases", "verdict")) == ("step up", name_of(16)[:12], ["step down"])
    assert float(change.strip("%")) == pytest.approx(100 / 6, abs=2)
    assert page.counts == ["1", "0", "0", "0"]


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory, no_plotly: None) -> tuple[list[str], Page]:
    folder = tmp_path_factory.mktemp("eight")
    made = [commit[:12] for commit in commits.eight_commits(folder)]
    assert main(["report", f"--storage={folder}/.benchmarks", f"--output={folder}/page.html"]) == 0
    return made, Page((folder / "page.html").read_text())


def test_the_first_screen_says_what_is_slower_since_when_and_what_to_type_next(eight: tuple[list[str], Page]) -> None:
    made, page = eight
    said = [line for line in page.texts["answer"].splitlines() if line]
    since = f"since {made[SLOWED]} (Cast attention scores to float32 before the mask)"
    assert said[1] == f"2 of 30 cases are slower: {SLOWER[0]}, +12.7%, {since}; 2 of 30 cases gone or failed."
    assert said[2].endswith(f" against {made[0]} (2030-01-01) Start: 2 slower, 2 gone or failed of 30 cases.")
    assert said[3] == (
        f"Still open: 1 gone since {made[commits.COUNTED]} (2 commits ago), "
        f"1 out of memory since {made[commits.LOST]} (1 commit ago), 2 slower since {made[SLOWED]} (3 commits ago)."
    )
    assert page.counts == ["2", "0", "2", "0"]
    worst = zip(page.column("worst", "Case"), page.column("worst", "since"), strict=True)
    first = {
        commits.GONE: made[commits.COUNTED],
        commits.FULL: made[commits.LOST],
        **dict.fromkeys(SLOWER, made[SLOWED]),
    }
    assert list(worst) == list(first.items()), "what did not move has one line"
    assert "26 without a step (one of about" in page.texts["answer"]
    test = "test_attention.py::test_attention_forward[d64-seq1024-fp32-naive]"
    options = "--head-dim 64 --sequence-length 1024 --precision fp32 --attention naive"
    good, bad = made[SLOWED - 1], made[SLOWED]
    typed = f"git bisect run perf-tests run '{test}' {options} --against {good} --bisect"
    assert {f"git bisect start {bad} {good}", typed} <= {*said}
    screen = page.source.partition("</section>")[0]
    assert [screen.count(f'class="{tone}"') for tone in ("bad", "lost", "good")] == [3, 3, 0], "a tile and its rows"
    drawn = [attributes for _, attributes in page.elements if "data-case" in attributes]
    cases = [case["name"] for case in page.data["eras"][0]["cases"]]
    assert [cases[int(one["data-case"])] for one in drawn] == [SLOWER[0]]


def test_a_case_has_one_median_for_each_commit(eight: tuple[list[str], Page]) -> None:
    """The drift of the machine is taken out of what changed as it is out of the history."""
    _, page = eight
    newest = dict(zip(page.column("since1-cases", "Case"), page.column("since1-cases", "newest (ms)"), strict=True))
    shown = zip(page.column("changed1-cases", "Case"), page.column("changed1-cases", "head, median (ms)"), strict=True)
    assert all(newest[case] == milliseconds for case, milliseconds in shown if milliseconds)
    ratios = list(map(float, page.column("since1-cases", "newest / first")))
    assert ratios == sorted(ratios, reverse=True)


LEVELS = {"lost": 1.0, **{f"slow{n}": 1 + n / 10 for n in range(9, 1, -1)}, "steady": 1.0, "faster": 0.7}
"""Head's time of each case over that of the commits before, in the order of the page."""


def test_the_first_screen_has_ten_cases_lost_ones_first_then_the_slowest(tmp_path: Path) -> None:
    """Twelve commits, on which a counter of one case changes once, and head with three launches."""
    records = []
    for number, place in enumerate([*range(12), 12, 12, 12]):
        rows = [
            timed(f"test_forward[{name}]", [(level if place == 12 else 1.0) * commits.NOISE[number]] * 5, size=name,
                  **({"kernel_launches": 560 + (place > 5)} if name == "steady" else {}))
            for name, level in reversed(LEVELS.items()) if (name, place) != ("lost", 12)
        ]  # fmt: skip
        lost = [untimed("test_forward[lost]", "error", "boom", size="lost")] if place == 12 else []
        day = f"2030-01-{1 + place:02}T{number:02}:00:00+00:00"
        told = {"commit_info": {"id": name_of(place), "dirty": False, "time": day}}
        records.append(record(rows, lost, written=day) | told)
    page = page_over(tmp_path, *records)
    verdicts = ["FAILED", *["step up"] * 8, "no step", "step down"]
    assert page.column("changed1-cases", "verdict") == verdicts
    assert page.column("worst", "Case") == [f"forward {name}" for name in LEVELS if name != "steady"]
    assert page.column("worst", "verdict") == [verdict for verdict in verdicts if verdict != "no step"]
    assert "1 without a step (one of about" in page.texts["answer"]
    ratios = list(map(float, page.column("changed1-cases", "head / base")[1:]))
    assert ratios == pytest.approx(list(LEVELS.values())[1:], abs=0.06)
    assert page.counts == ["8", "1", "1", "0"]
    (counted,) = page.tables["since1-counters"][1:]
    assert counted[:5] == ["forward steady", "kernel_launches", "560", "561", name_of(6)[:12]]


def test_the_history_holds_the_medians_of_one_identity_on_one_machine(tmp_path: Path) -> None:
    runs = [
        of_commit(f"{n}", f"203{n}-01-01", timed(seconds=(second,) * 3), threads=threads)
        for n, (second, threads) in enumerate([(2.0, 4), (1.0, 4), (9.0, 8), (4.0, 4), (3.0, 4)])
    ]
    page = page_over(tmp_path, *runs, of_commit("9", "2029-01-01", timed(seconds=(7.0,) * 3, batch_size=64)))
    (era,) = page.data["eras"]
    found = [(case["at"], case["seconds"]) for case in era["cases"]]
    assert found == [([1, 2, 3, 4], [2.0, 1.0, 4.0, 3.0]), ([0], [7.0])]
    assert [code[0] for code in era["codes"]] == [of * 12 for of in "90134"]
    assert {"since1", "changed1"} <= set(page.sections)
    assert "since2" not in page.sections, "one commit has no history"
    # Its first, lowest, highest and newest time.
    assert page.tables["since1-cases"][1][2:] == ["4", "2000", "1000", "4000", "3000", "-", "1.500"]
    chosen = re.findall(r'data-side="(\w+)">.*?selected>20\d\d-01-01 (\w+)', page.source)
    assert chosen == [("base", "9" * 12), ("head", "4" * 12)]


def test_a_commit_has_its_subject_as_text_cut_with_a_sign(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=pwned()> {{ 7 }} & \"'"
    made = []
    for subject in (hostile, "word " * 20):
        git(tmp_path, "init", "-q")
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", subject)
        made.append(git(tmp_path, "rev-parse", "HEAD"))
    page = page_over(tmp_path, launch(1, 1.0), *(launch(n, 1.0, commit) for n, commit in enumerate(made, 2)))
    assert "img" not in {tag for tag, _ in page.elements}
    assert hostile in page.texts["changed1"]
    codes = {code[0]: code[2] for code in page.data["eras"][0]["codes"]}
    assert codes == {name_of(1)[:12]: "", made[0][:12]: hostile, made[1][:12]: f"{'word ' * 11}word…"}


# Machines.


def test_machines_are_kept_apart_beside_each_other_without_a_verdict(tmp_path: Path) -> None:
    there = [{**launch(n, 2.0, device="cuda"), "machine_info": machine(threads=64)} for n in (3, 4)]
    for data in there:
        data["benchmarks"].append(BACK)
    page = page_over(tmp_path, launch(1, 1.0), launch(2, 1.0), *there)
    assert [era["cases"][0]["seconds"] for era in page.data["eras"]] == [[2.0, 2.0], [1.0, 1.0]]
    assert "2 machines, builds or settings are shown separately" in page.texts["runs"]
    assert "Shown apart below: 1 other machine" in page.texts["answer"]
    (ratio,) = page.figures["run2-run4"]
    assert (ratio["x"], ratio["y"]) == ([1000.0], [2.0])
    back = [f"backward {TINY.split()[1]}", "-", "1045", "-", "new"]
    assert page.tables["run2-run4"][1:] == [[TINY, "1000", "2000", "2.000", ""], back]


def test_launches_without_a_product_beside_their_cases_are_a_history_of_their_own(tmp_path: Path) -> None:
    without = [launch(number, 1.0, sentinel=None) for number in (1, 2)]
    page = page_over(tmp_path, *without, launch(3, 1.0), launch(4, 1.0))
    assert ", before a product was timed beside the cases" in page.texts["changed2"]
    assert len(page.data["eras"]) == 2
