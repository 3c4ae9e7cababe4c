"""Gate runs chained over commits: the curve, its steps, and each reason why a run is no link of it."""

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from claims import histories
from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.gate.samples import End, SamplesFile
from perf_tests_suite.perf_tests.gate.verdicts import CaseResult, Verdict, conclude
from perf_tests_suite.perf_tests.history import relative
from perf_tests_suite.perf_tests.history.commits import CommitLog
from perf_tests_suite.perf_tests.history.relative import EXACT, Ratio, RunRatios, pooled, relative_of
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.git_repository import git
from tests.support.launch import Verb
from tests.support.simulated_launches import RULES, SimulatedCase, header, line

COMMITS = [f"{place:012}" for place in range(9)]
LOG = CommitLog({commit: place for place, commit in enumerate(COMMITS)}, {}, {})
CASE = ("test_forward[a]", "{}")


def run(base: int, head: int, effect: float = 0.0, error: float = 0.002, machine: str = "a") -> RunRatios:
    ratio = Ratio(math.log1p(effect), error**2, 20) if error else EXACT
    return RunRatios(COMMITS[base], COMMITS[head], machine, {CASE: (ratio, ratio)}, [])


def chain(*runs: RunRatios | str) -> Json:
    return relative_of(runs, COMMITS, LOG)


def levels(found: Json) -> dict[int, float]:
    (one,) = found["cases"]
    return {int(point["since"]): round(point["effect"], 3) for point in one["points"]}


def steps(found: Json) -> list[int]:
    return [int(step["since"]) for one in found["cases"] for step in one["steps"]]


def test_ratios_multiply_to_a_level_whose_errors_add_up_and_a_same_program_adds_none() -> None:
    found = chain(run(0, 1, 0.1), run(1, 2, error=0), run(2, 3, -0.05), run(3, 4, error=0))
    assert levels(found) == {1: 0.1, 2: 0.1, 3: 0.045, 4: 0.045}
    low, high = found["cases"][0]["interval"]
    assert math.log1p(high) - math.log1p(low) == pytest.approx(2 * 2.021 * 8e-6**0.5, rel=1e-3), "t of 40 degrees"
    assert (found["cases"][0]["points"][0]["interval"][1], steps(found)) == (pytest.approx(0.1046, abs=1e-4), [1, 3])
    only_same = chain(run(0, 1, error=0), run(1, 2, error=0))
    assert only_same["cases"][0]["interval"] == [0, 0]


def test_a_step_is_judged_by_its_own_pair_and_what_its_neighbours_scatter_never_by_the_level() -> None:
    creeping = chain(*(run(place, place + 1, 0.015) for place in range(8)))
    assert (steps(creeping), creeping["cases"][0]["interval"][0] > 0.1) == ([], True)
    names = [f"{place}" for place in range(21)]
    for scatter, count in ((0.001, 1), (0.02, 0)):
        logs = np.random.default_rng(1).normal(0, scatter, 20) + 0.04 * (np.arange(20) == 9)
        ratios = [Ratio(float(log), 0.001**2, 20) for log in logs]
        runs = [RunRatios(*pair, "a", {CASE: (of, of)}, []) for pair, of in zip(pairwise(names), ratios, strict=True)]
        found = relative_of(runs, names, CommitLog({name: place for place, name in enumerate(names)}, {}, {}))
        assert steps(found) == [10] * count, scatter


def test_a_run_over_several_commits_counts_where_no_finer_ones_do_and_does_not_say_which_is_slower() -> None:
    found = chain(run(0, 1), run(1, 4, 0.1), run(4, 5))
    assert (levels(found), found["gaps"]) == ({1: 0.0, 4: 0.1, 5: 0.1}, [])
    assert any(f"{COMMITS[4][:12]}, or 2 before" in line for line in relative.relative_lines(found))
    finer = chain(run(0, 3, 0.1, error=0.01), run(0, 1), run(1, 2, 0.1), run(2, 3))
    assert levels(finer) == {1: 0.0, 2: 0.1, 3: 0.1}


def test_a_commit_without_a_run_breaks_the_curve_and_the_run_that_closes_it_is_named() -> None:
    found = chain(run(0, 1, 0.3), run(2, 3, 0.1), run(3, 4))
    assert (levels(found), found["cases"][0]["since"]) == ({3: 0.1, 4: 0.1}, COMMITS[2])
    assert steps(found) == [1, 3], "what lies before it keeps its steps"
    said = "\n".join(relative.relative_lines(found))
    assert f"`perf-tests run --against {COMMITS[1][:12]}` at {COMMITS[2][:12]} closes it" in said
    assert "without a run: 4 commits after" in said


def test_runs_of_one_pair_are_averaged_and_where_cpus_differ_as_uncertain_as_that() -> None:
    one = Ratio(0.01, 1e-6, 20)
    known = [pooled([one, Ratio(log, 1e-6, 20)]) for log in (0.012, 0.05)]
    assert [(round(mean.log, 6), mean.freedom, differs) for mean, differs in known] == [
        (0.011, 40, False), (0.03, 1, True),
    ]  # fmt: skip
    assert [mean.variance for mean, _ in known] == pytest.approx([5e-7, 4e-4])
    assert pooled([one, EXACT]) == (EXACT, False)
    found = chain(run(0, 1, 0.01, machine="a"), run(0, 1, 0.05, machine="b"))
    assert (found["differing"], found["machines"], found["runs"]) == (1, ["a", "b"], 2)


ASIDE: dict[str, tuple[RunRatios | str, RunRatios | str]] = {
    "stored twice": (run(0, 1), run(0, 1)),
    "CONTAMINATED": (run(0, 1), "CONTAMINATED"),
    "newer than its head": (run(0, 1), run(3, 2)),
    "that this clone lacks": (run(0, 1), RunRatios("f" * 40, COMMITS[2], "a", {}, [])),
}


@pytest.mark.parametrize("why", ASIDE)
def test_what_is_no_link_is_said(why: str) -> None:
    found = chain(*ASIDE[why])
    assert (found["runs"], list(levels(found)), sum(found["left_aside"].values())) == (1, [1], 1)
    assert re.search(f"left aside: 1 run .*{why}", "\n".join(relative.relative_lines(found)))


# Files, in a repository whose line was rewritten: `old` is no ancestor any more.


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Commits by name: first, second, old beside third, and a merge of a branch, fourth."""
    git(tmp_path, "init", "-q", "-b", "main")
    found = {}

    def commit(name: str) -> None:
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", name)
        found[name] = git(tmp_path, "rev-parse", "HEAD")

    for name in ("first", "second", "old"):
        commit(name)
    git(tmp_path, "branch", "rewritten")
    git(tmp_path, "reset", "-q", "--hard", "HEAD~1")
    commit("third")
    git(tmp_path, "switch", "-q", "-c", "side", "HEAD~1")
    commit("side")
    git(tmp_path, "switch", "-q", "main")
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "fourth", "side")
    found["fourth"] = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.chdir(tmp_path)
    return found


def write(name: str, base: str, head: str, slowdown: float = 0.0, end: str = "finished", **facts: object) -> None:
    """Write samples of stage 1, of three cases, of which the first is slower, into `runs`."""
    draw = np.random.default_rng(len(name))
    cases = [SimulatedCase(f"test_forward[{place}]", slowdown=slowdown * (place == 0)) for place in range(3)]
    told: Json = {**header(cases), "engine": 3, **facts}
    told |= {"base": {"revision": base, "label": "base"} | told.pop("of_base", {})}
    told |= {"head": {"revision": head, "label": "head", "changed_files": 0} | told.pop("of_head", {})}
    file = SamplesFile(Path("runs", f"{name}.jsonl"), told)
    for pair in range(RULES.screen_pairs):
        for case in cases:
            file.append(line(draw, case, 1, pair, quadruples=2))
    file.append(End(end).to_line())  # type: ignore[arg-type]  # one of its reasons
    file.close()


@pytest.fixture
def said(made: dict[str, str], verb: Verb) -> Verb:
    return lambda *words: verb("history", "--relative", "runs", *words)


def write_all(made: dict[str, str], *slower: str) -> None:
    names = ("first", "second", "third", "fourth")
    for base, head in pairwise(names):
        write(f"{base}-{head}", made[base], made[head], 0.2 * (head in slower))


def test_steps_are_found_in_files_and_one_of_the_newest_commit_is_a_finding(made: dict[str, str], said: Verb) -> None:
    write_all(made, "third")
    code, printed, _ = said("--case", "forward 0")
    assert (code, printed.count(f"{made['third'][:12]}")) == (0, 2)
    assert "3 gate runs, " in printed
    assert printed.endswith("history: 1 step, 0 counter changes; no slowdown is new with the newest commit\n")
    assert "2 cases not shown to have moved" in printed
    git(Path(), "tag", "v1", made["second"])
    shown = json.loads(said("--json", "--since", "v1")[1])
    assert [(case["since"], len(case["points"]), len(case["steps"])) for case in shown["cases"]] == [
        (made["second"], 2, 1), (made["second"], 2, 0), (made["second"], 2, 0),
    ]  # fmt: skip
    assert shown["cases"][0]["steps"][0]["effect"] == pytest.approx(0.2, abs=0.03)
    assert (shown["new_slowdowns"], shown["newest"]) == ([], made["fourth"])
    write("newest", made["third"], made["fourth"], 0.3)
    Path("runs/third-fourth.jsonl").unlink()
    code, printed, _ = said()
    assert (code, "\nhistory: 2 steps, 0 counter changes; 1 slowdown by the newest commit\n" in printed) == (1, True)


FILES: dict[str, Json] = {
    "with uncommitted changes": {"of_head": {"changed_files": 1}},
    "of one commit against itself": {"of_base": {"revision": "same"}, "of_head": {"revision": "same"}},
    "of two builds": {"of_base": {"build": "torch 2.11"}},
    "of an early engine": {"engine": 2},
    "outside of a repository": {"of_head": {"revision": None}},
    "INTERRUPTED": {"end": "interrupted"},
    "a line that was rewritten": {"of_head": {"revision": "old"}},
}


def test_a_file_that_is_no_link_is_counted_by_why_and_a_damaged_one_named(made: dict[str, str], said: Verb) -> None:
    write_all(made)
    for why, facts in FILES.items():
        sides = {side: {key: made.get(str(value), value) for key, value in of.items()}
                 for side, of in facts.items() if isinstance(of, dict)}  # fmt: skip
        write(why.replace(" ", "-"), made["second"], made["third"], 0.5, **{**facts, **sides})
    code, printed, _ = said()
    assert (code, "no step in any case" in printed) == (0, True)
    lines = [line for line in printed.splitlines() if line.startswith("left aside: 1 run ")]
    assert [why for why in FILES if not any(why in line for line in lines)] == []
    assert len(lines) == len(FILES)
    Path("runs/damaged.jsonl").write_text("{}\n")
    code, _, errors = said()
    assert (code, len(errors.splitlines()), "runs/damaged.jsonl" in errors) == (1, 1, True)


def test_the_verdict_same_is_a_ratio_of_one(made: dict[str, str], said: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown_same(*given: object) -> object:
        result = conclude(*given)  # type: ignore[arg-type]
        result.cases[0] = CaseResult("test_forward[0]", Verdict.SAME)
        return result

    monkeypatch.setattr(relative, "conclude", shown_same)
    write_all(made, "third")
    points = json.loads(said("--json")[1])["cases"][0]["points"]
    assert [(point["effect"], point["interval"], point["is_same"]) for point in points] == [(0, [0, 0], True)] * 3


REFUSED: dict[str, tuple[Sequence[str], int, str]] = {
    "no run of the line": ((), 3, "No gate run joins two commits of this line: left aside are 1 of commits off"),
    "no samples": ((), 3, "runs holds no samples of a gate"),
    "a commit off the line": (("--since", "rewritten"), 3, "--since rewritten is not on the line"),
    "no such case": (("--case", "nothing"), 2, "no case of these runs"),
    "an export": (("--export", "otava"), 2, "--relative has none"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_question_without_an_answer_is_one_sentence(what: str, made: dict[str, str], said: Verb) -> None:
    words, exit_code, sentence = REFUSED[what]
    Path("runs").mkdir()
    if what == "no run of the line":
        write("one", made["second"], made["old"])
    elif what != "no samples":
        write_all(made)
    code, printed, errors = said(*words)
    assert (code, printed, len(errors.splitlines()), sentence in errors) == (exit_code, "", 1, True)
    assert main(["history", "--since", "first"]) == 2


def test_outside_of_a_repository_there_is_no_line(
    made: dict[str, str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, said: Verb
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("none"))
    write("one", made["first"], made["second"])
    code, _, errors = said()
    assert (code, "run this in a clone" in errors) == (3, True)


def test_planted_steps_are_found_and_the_chain_covers_its_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim `relative-history` in small."""
    monkeypatch.setattr(histories, "most_bias", lambda: 0.0)
    found = histories.relative_figures(1)
    assert found["found of 5%"] >= 0.95
    assert found["false steps in 1000 commits and cases"] <= 1
    assert found["the chain's interval covers"] >= 0.85
