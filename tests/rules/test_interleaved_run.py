"""A whole gate run, from its first launch pair to its exit code, with workers that need no torch and make up times.

Too little time for all cases is known after the first launch pair, and fewer are measured well.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests.bench.options import Against, OtherOption
from perf_tests.cases.case import Case
from perf_tests.gate.samples import End, ExactFinding, GateSamples, LeftOut, Rules, read_samples
from perf_tests.gate.verdicts import GateResult, RunVerdict, Verdict, conclude, next_step
from perf_tests.interleaved import run as run_module
from perf_tests.interleaved.measuring import Watch
from perf_tests.interleaved.run import GatePlan, GateRun, PairCost, left_out, run_gate, too_short_sentence
from perf_tests.interleaved.sides import find_commit
from perf_tests.report.gate_screens import report_lines
from perf_tests.run.gate import GatePlugin
from perf_tests.user_code.named import Repository
from tests.support.example_cases import SETTINGS, attention_case
from tests.support.fake_sides import tree
from tests.support.git_repository import commit, git
from tests.support.simulated_launches import SimulatedCase, gate_run

CASE_ID = "perf_tests/test_attention.py::test_attention_forward[d16-seq{}-fp32-naive]"
CASES: Mapping[str, Case] = {CASE_ID.format(n): attention_case(sequence_length=n) for n in (64, 128, 256)}

QUICK = Rules(screen_pairs=3, confirm_looks=(5, 8), look_shares=(0.5, 0.5), clock="wall")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose worker is the fake one; base is what is committed."""
    folder = tree(tmp_path / "project", {})
    git(folder, "init", "-q", "-b", "main")
    return folder


def gated(
    project: Path,
    base: dict[str, Any],
    head: dict[str, Any],
    /,
    minutes: float = 5.0,
    device: str = "cpu",
    watch: Watch | None = None,
    **changes: Any,
) -> GateRun:
    behave(project, base)
    commit(project)
    behave(project, head)
    plan = GatePlan(
        repository=Repository(project),
        storage=project.parent / "storage",
        against=Against("main", None, minutes, "pass", None),
        base=find_commit(project, "main"),
        settings=replace(SETTINGS, device=device),
        cases=CASES,
        ids_at_base={case: case for case in CASES},
        machine_info={},
        rules=QUICK,
        options="--against main",
    )
    run = GateRun(replace(plan, **changes))
    run_gate(run, watch or Mock())
    return run


def behave(project: Path, behaviour: dict[str, Any]) -> None:
    cases = {case_id: case.identity() for case_id, case in CASES.items()}
    always = {"cases": cases, "scatter": 0.002, "round_seconds": 0.1}
    (project / "behaviour.json").write_text(json.dumps({**always, **behaviour}))


def result_of(run: GateRun) -> GateResult:
    assert run.result is not None
    return run.result


def verdicts(run: GateRun) -> set[Verdict]:
    return {row.verdict for row in result_of(run).cases}


def test_a_slower_head_is_confirmed_on_fresh_launch_pairs_and_fails(project: Path) -> None:
    run = gated(project, {}, {"round_seconds": 0.102})
    assert run.header["settings"]["layout_seed"] >= 0
    assert verdicts(run) == {Verdict.SLOWER}
    assert result_of(run).exit_code == 1
    assert result_of(run).pairs in ((3, 5), (3, 8))
    effects = [row.effect.effect for row in result_of(run).cases if row.effect]
    assert effects == pytest.approx([0.02] * 3, abs=0.002)


TWO_SETTINGS = {"against": Against(None, OtherOption("attention", "sdpa"), 1e-6, "pass", None), "base": None}


@pytest.mark.parametrize("changes", [{}, TWO_SETTINGS], ids=["revision ignores records", "two settings"])
def test_an_accepted_entry_counts_in_a_gate_whose_base_lacks_it(project: Path, changes: dict[str, Any]) -> None:
    (project / ".gitignore").write_text(".benchmarks/\n")
    (project / ".benchmarks").mkdir()
    entry = 'id = "a"\nreason = "why"\nrevision = "abc"\nclock = "wall"\nlimit = 1.5\n'
    (project / ".benchmarks/accepted.toml").write_text(f"[[accepted]]\n{entry}")
    run = gated(project, {}, {}, minutes=1e-6, **changes)
    assert [(limit["id"], limit["limit"]) for limit in run.header["accepted"]] == [("a", 1.5)]
    assert not any("has expired" in note for note in run.notes)


@pytest.mark.parametrize(("files", "is_counted"), [((), False), ((Path("behaviour.json"),), True)])
def test_counters_are_compared_where_a_named_file_beside_the_model_changed(
    project: Path, files: tuple[Path, ...], is_counted: bool
) -> None:
    head = {"round_seconds": 0.1001}
    run = gated(project, {}, head, minutes=1e-6, repository=Repository(project, files=files))
    assert any("is identical on both sides" in note for note in run.notes) is not is_counted


def test_a_run_whose_sentinels_moved_is_measured_again_and_then_refused(project: Path) -> None:
    run = gated(project, {}, {"sentinel_seconds": 0.003})
    assert len(run.paths) == 2
    assert result_of(run).verdict == RunVerdict.CONTAMINATED
    assert result_of(run).exit_code == 4


def test_a_budget_that_runs_out_ends_the_run_undecided(project: Path) -> None:
    run = gated(project, {}, {"round_seconds": 0.11}, minutes=1e-6)
    assert read_samples(run.paths[0]).end == "budget"
    assert result_of(run).pairs == (1, 0)
    assert verdicts(run) == {Verdict.UNDECIDED}
    assert result_of(run).exit_code == 0
    assert "nan%" not in " ".join(report_lines(result_of(run), run.header, run.plan.rules))


@dataclass
class AMinuteACase(Watch):
    clock: list[float] = field(default_factory=list)

    def case_begins(self, case: str, place: int) -> None:
        super().case_begins(case, place)
        self.clock[0] += 60


@pytest.mark.parametrize("minutes, cases", [(1, 0), (2.5, 1), (3.5, 2), (6.5, 3), (7.5, 6)])
def test_a_time_limit_ends_the_gate_between_cases_and_is_no_success(project: Path, minutes: float, cases: int) -> None:
    """A minute a case, after more than one for the start: a pair is begun only if its three cases fit."""
    clock = [70.0]
    watch = AMinuteACase(None, None, 3, 300, lambda: 60 * minutes - clock[0], clock=clock)
    run = gated(project, {}, {}, watch=watch)
    samples = read_samples(run.paths[0])
    assert (len(samples.measurements), samples.end) == (cases, "time_limit")
    assert (result_of(run).verdict, result_of(run).exit_code) == (RunVerdict.UNFINISHED, 4)
    assert "--time-limit ended the gate with 3 of 3 cases undecided" in result_of(run).reason
    session = Mock(exitstatus=0)
    GatePlugin(run, watch, {}).pytest_sessionfinish(session)
    assert session.exitstatus == 4
    said = report_lines(result_of(run), run.header, run.plan.rules)
    assert said[-1].startswith("gate: UNFINISHED: --time-limit")
    assert not any("PASSED" in line for line in said)


def test_a_case_that_means_something_else_at_base_is_new_and_says_in_what(project: Path) -> None:
    other = {case_id: {**case.identity(), "batch_size": 4} for case_id, case in CASES.items()}
    run = gated(project, {"cases": other}, {})
    assert verdicts(run) == {Verdict.NEW}
    assert "batch_size was 4, is 8" in result_of(run).cases[0].explanation


@pytest.mark.parametrize("idle_seconds, is_told", [(0.0002, False), (0.009, True)])
def test_a_side_that_spins_while_it_waits_is_told(project: Path, idle_seconds: float, is_told: bool) -> None:
    run = gated(project, {}, {"idle_cpu_seconds": idle_seconds}, minutes=1e-6)
    assert any("spin" in note for note in run.notes) == is_told


@pytest.mark.parametrize(
    "device, can_bind, shares_cores, is_told",
    [("cpu", True, True, False), ("cpu", False, False, True), ("cuda", True, False, False)],
)
def test_both_sides_share_cores_on_a_cpu_that_lets_them(
    project: Path, monkeypatch: pytest.MonkeyPatch, device: str, can_bind: bool, shares_cores: bool, is_told: bool
) -> None:
    monkeypatch.setattr(run_module, "can_bind", lambda: can_bind)
    run = gated(project, {}, {}, minutes=1e-6, device=device)
    lines = [json.loads(line) for line in run.paths[0].read_text().splitlines()]
    assert {line["cores"] is not None for line in lines if "orders" in line} == {shares_cores}
    assert any("binding processes to cores" in note for note in run.notes) == is_told


# Too little time for all cases.

RULES = Rules()
SIMULATED = [SimulatedCase(f"a::{place}", pair_spread=0.003) for place in range(6)]
COST = PairCost(5.0, {case.id: 10.0 - place for place, case in enumerate(SIMULATED)})
FOR_ALL = COST.needed_seconds(COST.case_seconds, RULES)


@pytest.fixture
def samples() -> GateSamples:
    """After the first launch pair, which found that the change moves counters of the first, dearest case alone."""
    first = replace(gate_run(SIMULATED, RULES, seed=1, most_pairs=1), events=[])
    first.events += [ExactFinding(case.id, "saved_bytes", 8, 8) for case in SIMULATED[1:]]
    first.events.append(ExactFinding(SIMULATED[0].id, "saved_bytes", 9, 8))
    return first


@pytest.mark.parametrize("kept", [[0], [0, 5], [0, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
def test_what_the_change_touches_is_measured_first_then_the_cheapest_and_one_case_always(
    samples: GateSamples, kept: list[int]
) -> None:
    names = [f"a::{place}" for place in kept]
    for seconds in (COST.needed_seconds(names, RULES), *([1.0] if len(kept) == 1 else [])):
        left = left_out(samples, COST, RULES, seconds)
        assert [case.id for case in SIMULATED if case.id not in left] == names


def test_what_is_left_out_is_measured_no_further_and_undecided(samples: GateSamples) -> None:
    samples.events += [LeftOut("a::0"), LeftOut("a::1")]
    step = next_step(samples, RULES)
    assert step is not None
    assert set(step.cases) == {"a::2", "a::3", "a::4", "a::5"}
    result = conclude(replace(samples, events=[*samples.events, End("finished")]), RULES)
    assert {row.id: row.verdict for row in result.cases}["a::0"] == Verdict.UNDECIDED


def test_the_sentence_says_how_many_minutes_all_cases_need() -> None:
    said = too_short_sentence(["a::0", "a::1"], COST, RULES, 300)
    assert said.startswith(f"5 min are too short for 6 cases, which need about {FOR_ALL / 60:.0f} min (--gate-minutes)")
    assert (
        "the time goes to 4 of them, those with changed counters first, then the cheapest; the rest is left UNDECIDED."
        in said
    )
