"""A whole gate run, from its first launch pair to its exit code, with workers that need no torch and make up times.

Too little time for all cases is known after the first launch pair, and fewer are measured well.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.bench.options import Against, OtherOption
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.gate.samples import (
    SIDES,
    ExactFinding,
    GateSamples,
    NoTiming,
    PairTime,
    Rules,
    compile_row,
    read_samples,
)
from perf_tests_suite.perf_tests.gate.verdicts import GateResult, RunVerdict, Verdict, conclude
from perf_tests_suite.perf_tests.interleaved import run as module
from perf_tests_suite.perf_tests.interleaved.measuring import GateProgress, Measuring, launched
from perf_tests_suite.perf_tests.interleaved.run import (
    GatePlan,
    GateRun,
    PairCost,
    left_out,
    run_gate,
    too_short_sentence,
)
from perf_tests_suite.perf_tests.interleaved.sides import changed_since, find_commit
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.record import Json, how_many
from perf_tests_suite.perf_tests.report.gate_screens import verdict_sentence
from perf_tests_suite.perf_tests.user_code.named import Repository
from tests.support.example_cases import SETTINGS, attention_case
from tests.support.fake_sides import logged, tree
from tests.support.git_repository import commit, git
from tests.support.same_programs import write
from tests.support.simulated_launches import RULES, SimulatedCase, gate_run

CASE_ID = "perf_tests/test_attention.py::test_attention_forward[d16-seq{}-fp32-naive]"
CASES: Mapping[str, Case] = {CASE_ID.format(n): attention_case(sequence_length=n) for n in (64, 128, 256)}
QUICK = Rules(screen_pairs=3, confirm_looks=(5, 8), look_shares=(0.5, 0.5), clock="wall")
ONE_PAIR: dict[str, Any] = {"minutes": 1e-6}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose worker is the fake one; base is what is committed."""
    folder = tree(tmp_path / "project", {})
    git(folder, "init", "-q", "-b", "main")
    return folder


def gated(project: Path, base: Json, head: Json, /, minutes: float = 5.0, **changes: Any) -> tuple[GateRun, GateResult]:
    """A gate of a head that behaves so against a base that does; `changes` of its plan, its settings and `Against`."""
    of_run = changes.get("cases", CASES)
    for behaviour in (base, head):
        cases = {case_id: case.identity() for case_id, case in of_run.items()}
        always = {"cases": cases, "scatter": 0.002, "round_seconds": 0.1}
        (project / "behaviour.md").write_text(json.dumps({**always, **behaviour}))
        if behaviour is base:
            commit(project)
    watch, base_of = changes.pop("watch", Mock()), changes.pop("base_of", find_commit)
    settings = replace(SETTINGS, device=changes.pop("device", "cpu"))
    against = Against("main", None, minutes, "pass", None, measures_same=changes.pop("measures_same", True))
    against = replace(against, compiles=changes.pop("compiles", False))
    plan = GatePlan(
        repository=Repository(project), storage=project.parent / "storage", against=against,
        base=base_of(project, "main"), settings=settings, cases=of_run, ids_at_base={case: case for case in of_run},
        machine_info={}, rules=QUICK, options="--against main",
    )  # fmt: skip
    run = GateRun(plan, how_long=changes.pop("how_long", None))
    run.plan = replace(plan, **changes)
    run_gate(run, watch)
    assert run.result is not None
    return run, run.result


def test_a_slower_head_is_confirmed_on_fresh_launch_pairs_and_fails(project: Path) -> None:
    run, result = gated(project, {}, {"round_seconds": 0.102})
    assert run.header["settings"]["layout_seed"] >= 0
    assert ({row.verdict for row in result.cases}, result.exit_code) == ({Verdict.SLOWER}, 1)
    assert result.pairs in ((3, 5), (3, 8))
    assert [row.effect.effect for row in result.cases if row.effect] == pytest.approx([0.02] * 3, abs=0.002)


COMPILED = "perf_tests/test_attention.py::test_attention_{}[d16-seq64-fp32-compiled]"
PHASES = {phase: COMPILED.format(phase) for phase in ("forward", "backward")}
COMPILED_CASES: Mapping[str, Case] = {
    name: attention_case(phase=f"attention_{phase}", attention="compiled", sequence_length=64)
    for phase, name in PHASES.items()
}
OF_COMPILING = [
    compile_row(PHASES["backward"], *of) for of in (("forward", "cold"), ("backward", "cold"), ("", "warm"))
]


def test_seconds_to_compile_are_judged_by_fresh_processes_in_turns_each_with_an_empty_cache(project: Path) -> None:
    """A row for each part of the phase that has all of them, by the pairs and the statistics of any other."""
    run, result = gated(project, {}, {"compile_seconds": 25.0}, cases=COMPILED_CASES, compiles=True)
    rows = {row.id: row for row in result.cases}
    assert [*rows] == [*PHASES.values(), *OF_COMPILING]
    assert {rows[name].verdict for name in OF_COMPILING} == {Verdict.SLOWER}
    assert {rows[name].verdict for name in PHASES.values()} == {Verdict.OK}
    assert (result.verdict, result.exit_code) == (RunVerdict.FAILED, 1)
    assert result.suite is None, "compiling is no part of the suite's shift"
    assert "compile_forward_seconds (cold)" in " ".join(run.what_changed)
    samples = read_samples(run.paths[0])
    assert conclude(samples, QUICK).cases == result.cases, "a replay says the same"
    of_row = [line for line in samples.measurements if line.case == OF_COMPILING[2]]
    assert {line.orders for line in of_row} == {("AB",), ("BA",)}
    assert of_row[0].base_seconds.tolist() == [[pytest.approx(4.0, rel=0.05)]]
    pairs = {line.pair: line.orders[0] for line in of_row}
    assert {row.pair: row for row in samples.of(PairTime)}.keys() == pairs.keys()


def test_each_process_that_compiles_is_a_fresh_one_and_a_side_finds_no_cache_but_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Any]()
    ended = Measuring._measure_compiling

    def watched(self: Measuring, rows: Any, draw: Any) -> None:
        ended(self, rows, draw)
        seen.extend((side, *one) for side in SIDES for one in logged(getattr(self.trees, side), "compiled"))

    monkeypatch.setattr(Measuring, "_measure_compiling", watched)
    run, _ = gated(project, {}, {}, cases=COMPILED_CASES, compiles=True, **ONE_PAIR)
    order = read_samples(run.paths[0]).measurements[-1].orders[0]
    turns = [SIDES["AB".index(letter)] for letter in order] * 2
    assert [(side, is_full) for side, _, _, _, is_full in sorted(seen, key=lambda one: one[1])] == [
        (side, number > 1) for number, side in enumerate(turns)
    ]
    assert len({one[2] for one in seen}) == 4
    assert len({(one[0], one[3]) for one in seen}) == len({one[3] for one in seen}) == 2
    assert not [cache for *_, cache, _ in seen if Path(cache).exists()]


@pytest.mark.parametrize(
    ("base", "head", "verdicts"),
    [
        ("", "compiles nothing", [Verdict.FAILED] * 3),
        ("compiles nothing", "", [Verdict.NEW] * 3),
        ("compiles nothing", "compiles nothing", [Verdict.NOT_MEASURED] * 3),
        ("misses its cache", "misses its cache", [Verdict.UNDECIDED, Verdict.UNDECIDED, Verdict.NOT_MEASURED]),
    ],
)
def test_a_side_that_compiles_nothing_says_why_in_the_rows_of_compiling_alone(
    project: Path, base: str, head: str, verdicts: list[Verdict]
) -> None:
    of_base, of_head = ({"faults": {PHASES["backward"]: fault}} for fault in (base, head))
    _, result = gated(project, of_base, of_head, cases=COMPILED_CASES, compiles=True, **ONE_PAIR)
    rows = {row.id: row for row in result.cases}
    assert [rows[name].verdict for name in OF_COMPILING] == verdicts
    assert {rows[name].verdict for name in PHASES.values()} == {Verdict.UNDECIDED}
    assert (base or head) in rows[OF_COMPILING[2]].explanation


def test_what_is_the_same_program_is_not_compiled_either(project: Path) -> None:
    head: Json = {"faults": {PHASES["forward"]: "reads a value"}}
    _, result = gated(
        project, {}, head, cases=COMPILED_CASES, compiles=True, measures_same=False, **ONE_PAIR
    )  # fmt: skip
    same = {row.id for row in result.cases if row.verdict == Verdict.SAME}
    assert same == {PHASES["backward"], *OF_COMPILING}


def test_a_run_whose_sentinels_moved_is_measured_again_while_there_is_time_and_then_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, result = gated(project, {}, {"sentinel_seconds": 0.003})
    assert (len(run.paths), result.verdict) == (2, RunVerdict.CONTAMINATED)
    assert f"its samples: {run.paths[0]}." in " ".join(run.notes)
    left = iter([300.0, 149.0])
    monkeypatch.setattr(GateRun, "seconds_left", property(lambda run: next(left)))
    run, result = gated(project, {"again": True}, {"sentinel_seconds": 0.003})
    assert (len(run.paths), result.verdict) == (1, RunVerdict.CONTAMINATED)
    assert "less than half of the minutes is left" in " ".join(run.notes)


ONE, *OTHERS = CASES
MEASURED: dict[str, tuple[Json, Json, dict[str, str]]] = {
    # what base and head do, and why cases are measured
    "nothing": ({}, {}, {}),
    "another file": ({}, {"round_seconds": 0.2}, {}),
    "its data": ({}, {"read": ["behaviour.md"]}, dict.fromkeys(CASES, "behaviour.md is read, and differs")),
    "its operations": ({}, {"operations": "other"}, dict.fromkeys(CASES, "it issues other operations")),
    "unplayed": ({}, {"faults": {ONE: "reads a value"}}, {ONE: "it reads a value."}),
    "no case": ({"absent": [ONE]}, {}, {ONE: "base does not have it"}),
    "no import": ({"cannot": "no model"}, {}, dict.fromkeys(CASES, "base could not run on fake tensors: no model")),
    "no file": ({"lacks": "no model"}, {}, dict.fromkeys(CASES, "base could not run on fake tensors: no model")),
}


@pytest.mark.parametrize("name", MEASURED)
def test_cases_are_measured_unless_code_and_operations_are_shown_to_be_the_same(project: Path, name: str) -> None:
    """Until the budget ends the run, in the middle of which nothing is decided."""
    base, head, measured = MEASURED[name]
    run, result = gated(project, base, head, measures_same=False, **ONE_PAIR)
    assert {row.id: row.why_measured for row in result.cases if row.verdict != Verdict.SAME} == measured
    samples = read_samples(run.paths[0])
    timed = set() if {"cannot", "lacks"} & base.keys() else {*measured} - {*base.get("absent", ())}
    assert {line.case for line in samples.measurements} == timed
    verdicts = {Verdict.UNDECIDED if row.id in timed else row.verdict for row in result.cases}
    assert ({row.verdict for row in result.cases}, result.exit_code) == (verdicts, 4 * ("cannot" in base))
    assert verdicts == {Verdict.SAME} or measured
    assert (samples.end, result.pairs) == ("budget", (1, 0)) or not timed
    assert conclude(samples, QUICK).cases == result.cases, "a replay says the same"


NO_MINUTES: list[tuple[Json, Verdict, RunVerdict, int]] = [
    # what head counts, the verdict on the case that is not SAME, and on the run, its exit code
    ({"kernel_launches": 7}, Verdict.NOT_MEASURED, RunVerdict.NOT_MEASURED, 0),
    ({"kernel_launches": 8}, Verdict.MORE, RunVerdict.FAILED, 1),
    ({}, Verdict.NOT_MEASURED, RunVerdict.NOT_MEASURED, 4),
]


@pytest.mark.parametrize(("counters", "verdict", "of_run", "exit_code"), NO_MINUTES)
def test_a_gate_of_no_minutes_compares_programs_and_counters_and_passes_nothing_that_it_did_not_look_at(
    project: Path, counters: Json, verdict: Verdict, of_run: RunVerdict, exit_code: int
) -> None:
    head: Json = {"faults": {ONE: "reads a value"}, "counters": counters}
    run, result = gated(project, {}, head, measures_same=False, minutes=0)
    assert {row.id: row.verdict for row in result.cases} == {ONE: verdict, **dict.fromkeys(OTHERS, Verdict.SAME)}
    assert (sum(result.pairs), result.verdict, result.exit_code) == (0, of_run, exit_code)
    assert "PASSED" not in verdict_sentence(result)
    assert ("NOT MEASURED (1)" in verdict_sentence(result)) == (exit_code != 1)
    assert conclude(read_samples(run.paths[0]), QUICK).verdict == of_run, "a replay says the same"


def test_a_case_whose_counters_rose_is_measured_no_more_and_the_run_ends_without_a_case(project: Path) -> None:
    entry = f'id = "{ONE}"\nreason = "why"\nrevision = "abc"\ncounters = {{ kernel_launches = 8 }}\n'
    write(project, {".gitignore": ".benchmarks/\n", ".benchmarks/accepted.toml": f"[[accepted]]\n{entry}"})
    head, said, watch = {"counters": {"kernel_launches": 8}}, list[str](), Mock()
    watch.say = said.append
    run, result = gated(project, {}, head, watch=watch, how_long=lambda left: "now", **ONE_PAIR)
    names = ", ".join(map(case_name, OTHERS))
    assert said[0].startswith(f"MORE: counters of {names} rose: "), "and by which line"
    assert said[0].endswith("The gate fails already: Ctrl-C ends it here, with -x it would have ended.")
    assert said[1] == "now"
    assert {line.case for line in read_samples(run.paths[0]).measurements} == {ONE}, "what is accepted is measured"
    assert {row.id for row in result.cases if row.verdict == Verdict.MORE} == {*OTHERS}
    (project / ".benchmarks/accepted.toml").unlink()
    _, result = gated(project, {"again": True}, head)
    assert (result.pairs, result.exit_code, {row.verdict for row in result.cases}) == ((0, 0), 1, {Verdict.MORE})


def test_what_is_lost_before_the_first_launch_pair_is_no_counter_that_rose(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of the user's that raises, for instance, as it is called once."""
    said, watch = list[str](), Mock()
    watch.say = said.append
    lost = NoTiming(ONE, "head", "error", "it raises")
    monkeypatch.setattr(module, "compare_programs", lambda run, *_: run.known.append(lost))
    _, result = gated(project, {}, {}, watch=watch, how_long=lambda left: f"{len(left)} left", **ONE_PAIR)
    assert (said[0], result.exit_code) == ("2 left", 1)


@pytest.mark.parametrize(("most_failures", "pairs"), [(0, 3), (1, 1), (2, 3)])
def test_as_many_failures_as_x_asks_for_end_the_run(project: Path, most_failures: int, pairs: int) -> None:
    """One case is lost in the first launch pair; the others go on without -x."""
    _, result = gated(project, {}, {"faults": {ONE: "out of memory"}}, most_failures=most_failures)
    assert (result.pairs[0], result.exit_code) == (pairs, 1)


@pytest.mark.parametrize("minutes", [0, 1e-6])
def test_code_of_head_that_writes_the_tree_of_base_is_no_comparison(project: Path, minutes: float) -> None:
    head: Json = {"writes": "../*/behaviour.md", "read": ["behaviour.md"]}
    _, result = gated(project, {}, head, measures_same=False, minutes=minutes)
    assert (result.verdict, result.exit_code) == (RunVerdict.INCOMPARABLE, 4)
    assert "wrote behaviour.md in the tree of base" in result.reason


def of_code(project: Path, base: Json, head: Json) -> tuple[GateRun, GateResult, list[str]]:
    """A gate of two sides of which a module differs that neither ran, and what it says before it measures."""
    write(project, {"unused.py": "1"})
    watch = Mock()

    def also_changed(*_: object) -> Any:
        return find_commit(write(project, {"unused.py": "2"}), "main")

    run, result = gated(project, base, head, measures_same=False, base_of=also_changed, watch=watch, minutes=0)
    return run, result, [call.args[0] for call in watch.say.mock_calls]


def test_what_a_round_on_real_tensors_alone_reads_counts_for_all_cases(project: Path) -> None:
    _, result, said = of_code(project, {}, {"read_once": ["behaviour.md"]})
    assert {row.why_measured for row in result.cases} == {"behaviour.md is read, and differs"}
    assert said == ["All are measured. 3 cases: behaviour.md is read, and differs."]
    _, result, said = of_code(project, {"again": True}, {})
    assert {row.verdict for row in result.cases} == {Verdict.SAME}
    assert said == ["Of 3 cases 3 will not be measured: the program is the same on both sides."]


def test_a_change_of_documents_needs_no_round_on_real_tensors(project: Path) -> None:
    _, result = gated(project, {}, {"read_once": ["behaviour.md"]}, measures_same=False, minutes=0)
    assert {row.verdict for row in result.cases} == {Verdict.SAME}


@pytest.mark.parametrize(
    ("head", "why", "count"),
    [
        ({"unplayed": {ONE: "no room."}}, "no room", 1),
        ({"faults": {"any": "dies in a round"}}, "its process exited with 9", 3),
    ],
)
def test_a_round_on_real_tensors_that_fails_is_told_and_decides_nothing(
    project: Path, head: Json, why: str, count: int
) -> None:
    run, result, _ = of_code(project, {}, head)
    assert {row.verdict for row in result.cases} == {Verdict.SAME}
    assert f"{how_many(count, 'case')} could not run a round on real tensors ({why})" in " ".join(run.notes)


def test_what_is_left_to_measure_is_announced_with_the_first_difference_before_it_is_measured(project: Path) -> None:
    said, watch = list[str](), Mock()
    watch.say = said.append
    head: Json = {"faults": {ONE: "reads a value"}}
    gated(project, {}, head, measures_same=False, watch=watch, how_long=lambda left: f"{len(left)} left", **ONE_PAIR)
    assert said[:2] == [
        "Of 3 cases 2 will not be measured: the program is the same on both sides. Measured: 1 case: it reads a value.",
        "1 left",
    ]
    said.clear()
    gated(
        project, head, {**head}, measures_same=False, watch=watch, how_long=lambda left: "nothing is left", **ONE_PAIR
    )
    assert "nothing is left" not in said
    gated(project, {"again": True}, {}, watch=watch, how_long=lambda left: f"all {len(left)}", **ONE_PAIR)
    assert "all 3" in said


NEEDS = '[project]\nname = "a"\ndependencies = ["torch"]\n'
OF_THE_SUITE: list[tuple[dict[str, str], bool, str]] = [
    # files that changed, whether the cases are the same, and what is said
    ({"perf_tests/phases.py": "other"}, True, "The suite itself changed (perf_tests/phases.py): not judged"),
    ({"pyproject.toml": f"{NEEDS}[tool.ruff]\nline-length = 1\n"}, True, "(pyproject.toml): not judged"),
    ({"pyproject.toml": NEEDS.replace("torch", "torch>=3")}, False, "(pyproject.toml): not judged"),
    ({"requirements.txt": "torch"}, False, ""),
]


@pytest.mark.parametrize(("files", "same", "said"), OF_THE_SUITE)
def test_a_change_of_the_suite_is_not_judged(project: Path, files: dict[str, str], same: bool, said: str) -> None:
    commit(write(project, {"pyproject.toml": NEEDS}))

    def also_changed(*_: object) -> Any:
        return find_commit(write(project, files), "main")

    run, result = gated(project, {}, {}, measures_same=False, base_of=also_changed, **ONE_PAIR)
    assert {row.verdict == Verdict.SAME for row in result.cases} == {same}
    assert all("dependencies changed, not measured here" in row.why_measured for row in result.cases) != same
    assert said in " ".join(run.notes)


def test_a_gate_started_in_a_folder_of_head_alone_shows_nothing_to_be_the_same(project: Path) -> None:
    def also_new(*_: object) -> Any:
        return find_commit(write(project, {"experiments/notes.md": "new"}), "main")

    here = Repository(project, folder=project / "experiments")
    _, result = gated(project, {}, {}, measures_same=False, base_of=also_new, repository=here, **ONE_PAIR)
    why = "base has no experiments, where this was started, so that its paths mean other files there"
    assert {row.why_measured for row in result.cases} == {why}


def test_a_submodule_that_moved_is_in_neither_tree_and_not_the_same(project: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"a": ""})
    commit(other)
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    commit(project)
    base = find_commit(project, "main")
    assert changed_since(project, base) == {}
    (project / "sub/a").write_text("changed")
    assert changed_since(project, base) == {"sub": True}


@pytest.mark.parametrize("is_another_option", [False, True])
def test_an_accepted_entry_counts_in_a_gate_whose_base_lacks_it(project: Path, is_another_option: bool) -> None:
    """A revision whose git ignores records, and the same revision under another option."""
    entry = 'id = "a"\nreason = "why"\nrevision = "abc"\nclock = "wall"\nlimit = 1.5\n'
    write(project, {".gitignore": ".benchmarks/\n", ".benchmarks/accepted.toml": f"[[accepted]]\n{entry}"})
    other = Against(None, OtherOption("attention", "sdpa"), 1e-6, "pass", None)
    changes: dict[str, Any] = {"against": other, "base": None} if is_another_option else {}
    run, _ = gated(project, {}, {}, **ONE_PAIR, **changes)
    assert [(limit["id"], limit["limit"]) for limit in run.header["accepted"]] == [("a", 1.5)]
    assert not any("has expired" in note for note in run.notes)
    assert ("with attention sdpa" in run.header["base"]["label"]) == is_another_option


SPINS, BINDS, SAME = "its threads spin", "binding processes to cores", "is identical on both sides"
TOLD: dict[str, tuple[Json, Json, bool, bool, set[str]]] = {
    # what head does, changes of the plan, whether processes can be bound to cores and are, and what is told
    "nothing": ({}, {}, True, True, {SAME}),
    "hardly uses CPU time": ({"idle_cpu_seconds": 0.0002}, {}, True, True, set()),
    "spins": ({"idle_cpu_seconds": 0.009}, {}, True, True, {SPINS}),
    "cannot bind": ({}, {}, False, False, {SAME, BINDS}),
    "GPU": ({}, {"device": "cuda"}, True, False, {SAME}),
    "a file beside the model changed": ({"round_seconds": 0.1001}, {}, True, True, set()),
    "a named file changed": ({"round_seconds": 0.1001}, {"files": (Path("behaviour.md"),)}, True, True, set()),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_makes_figures_noisier_or_counts_needless_is_told(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    head, more, can_bind, shares_cores, told = TOLD[name]
    monkeypatch.setattr(module, "can_bind", lambda: can_bind)
    changes = {"repository": Repository(project, files=more["files"])} if "files" in more else more
    run, _ = gated(project, {}, head, **ONE_PAIR, **changes)
    assert {words for words in (SPINS, BINDS, SAME) if any(words in note for note in run.notes)} == told
    lines = [json.loads(line) for line in run.paths[0].read_text().splitlines()]
    assert {line["cores"] is not None for line in lines if "orders" in line} == {shares_cores}


def test_workers_have_the_variables_that_were_there_before_any_code_of_heads_ran(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What head sets as it is imported would else reach base too."""
    started, known = list[dict[str, str]](), {**os.environ}

    def launched_here(*given: Any) -> Any:
        started.append({**os.environ})
        return launched(*given)

    monkeypatch.setattr(module, "launched", launched_here)
    monkeypatch.setenv("SET_BY_HEAD", "1")
    run, _ = gated(project, {}, {"round_seconds": 0.2}, measures_same=False, environment=known, **ONE_PAIR)
    assert [known] == started[:1]
    assert os.environ["SET_BY_HEAD"] == "1"
    assert run.plan.environment is known


@dataclass
class AMinuteACase(GateProgress):
    clock: list[float] = field(default_factory=list)

    def case_begins(self, case: str, place: int) -> None:
        super().case_begins(case, place)
        self.clock[0] += 60


@pytest.mark.parametrize("minutes, cases", [(1, 0), (2.5, 1), (3.5, 2), (6.5, 3), (7.5, 6)])
def test_a_time_limit_ends_the_gate_between_cases_and_is_no_success(project: Path, minutes: float, cases: int) -> None:
    """A minute a case, after more than one for the start: a pair is begun only if its three cases fit."""
    clock = [70.0]
    watch = AMinuteACase(None, None, 3, 36, 300, lambda: 60 * minutes - clock[0], clock=clock)
    run, result = gated(project, {}, {}, watch=watch)
    samples = read_samples(run.paths[0])
    assert (len(samples.measurements), samples.end, result.verdict) == (cases, "time_limit", RunVerdict.UNFINISHED)
    assert "--time-limit ended the gate with 3 of 3 cases undecided" in result.reason


# Too little time for all cases.

SIMULATED = [SimulatedCase(f"a::{place}", pair_spread=0.003) for place in range(6)]
COST = PairCost(5.0, {case.id: 10.0 - place for place, case in enumerate(SIMULATED)})


@pytest.fixture
def samples() -> GateSamples:
    """The first launch pair, which found that the change moves counters of the first, dearest case alone."""
    counts = [ExactFinding(case.id, "saved_bytes", 8, 7 if case is SIMULATED[0] else 8) for case in SIMULATED]
    return replace(gate_run(SIMULATED, most_pairs=1), events=[*counts])


@pytest.mark.parametrize("kept", [[0], [0, 5], [0, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
def test_what_the_change_touches_is_measured_first_then_the_cheapest(samples: GateSamples, kept: list[int]) -> None:
    names = [f"a::{place}" for place in kept]
    for seconds in (COST.needed_seconds(names, RULES), *([1.0] if len(kept) == 1 else [])):
        left = left_out(samples, COST, RULES, seconds)
        assert [case.id for case in SIMULATED if case.id not in left] == names
    # Six pairs of launches and cases, three more of the launches and a fifth of the cases.
    assert COST.needed_seconds(["a::0"], RULES) == 6 * (5 + 10) + 3 * (5 + 0.2 * 10)
    said = too_short_sentence(["a::0", "a::1"], COST, RULES, 300)
    whole = COST.needed_seconds(COST.case_seconds, RULES) / 60
    assert f"5 min are too short for 6 cases, which need about {whole:.0f} min (--gate-minutes)" in said
    assert "the time goes to 4 of them, those with changed counters first, then the cheapest" in said
