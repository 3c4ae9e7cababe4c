"""A study of warm-up: fresh processes that run a benchmark's own rounds, rows of the record, and what to set."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from perf_tests.audit.rounds import (
    LEAST_EXCESS,
    LEAVING_OUT_ROUNDS,
    LEVEL,
    STUDIED_WARMUP_ROUNDS,
    study_rounds,
    warmup_values,
)
from perf_tests.bench.worker_plugin import received, sent
from perf_tests.bench.workers import WorkerEndedError, WorkerProcess, start_worker
from perf_tests.hardware.clock import Clock
from perf_tests.hardware.device import CpuDevice
from perf_tests.hardware.machine import ENERGY_LEAST_SECONDS
from perf_tests.passes.warmup import ROUNDS_BETWEEN, Study, WarmupStudyMeasure, in_fresh_process
from perf_tests.records.record import Json
from perf_tests.report.screens import warmup_lines
from tests.support.documents import page
from tests.support.example_cases import CPU, SETTINGS
from tests.support.launch import ROOT, Launch, launch, launched_once
from tests.support.synthetic import passed

FORWARD = "perf_tests/test_forward.py::test_forward[tiny-ctx8-fp32-naive]"
BACKWARD = "perf_tests/test_backward.py::test_backward[tiny-ctx8-fp32-naive]"
STUDY = "perf_tests/test_warmup.py::test_warmup_of_forward[tiny-ctx8-fp32-naive]"
FALLING = [9.0, 7.0, 5.0, 3.0, 2.5, 2.0]
FIRST_ROUND: Json = {
    "first_round_parts": {"steady_round_seconds": 1.0, "allocator_growth_seconds": 3.0, "unexplained_seconds": 1.0},
    "first_round": {"modules_loaded": 0, "page_faults": 9000, "largest_growth": []},
}


def series(slow: list[float], rounds: int = 10, drift: float = 0.0) -> list[Json]:
    """Every process of a study, each beginning with the `slow` rounds."""
    found = []
    for count in STUDIED_WARMUP_ROUNDS:
        usual = [1.0 + 0.001 * (place % 3) + drift * place for place in range(count + rounds)]
        whole = [*slow, *usual][: count + rounds]
        measured = {"warmup_seconds": whole[:count], "seconds": whole[count:]}
        found.append({"warmup_rounds": count, "leaves_out_timed_phase": False, **measured})
    return found


def without_timed_phase(slow: list[float]) -> Json:
    seconds = [*slow, *[1.0, 1.001, 1.002, 1.0] * 3][:10]
    return {"warmup_rounds": 5, "leaves_out_timed_phase": True, "warmup_seconds": [0.5] * 5, "seconds": seconds}


RECOMMENDED: dict[str, tuple[list[Json], int, list[str], str]] = {
    "as many rounds as were slow": (series([5.0, 2.0]), 2, [], "in all 5 processes; --warmup-rounds 5 covers that."),
    "more rounds than were set": (series(FALLING), 6, ["short_warmup"], "in all 5 processes; set --warmup-rounds 6."),
    "nothing of a process that never settles": (
        *([*series([], drift=0.05)[:1], *series([5.0])[1:]], 1, []),
        "1 warm-up round is enough in 4 of 5 processes, those that became steady; ",
    ),
    "no cure for a machine that drifts": (
        *(series([], drift=0.05), max(STUDIED_WARMUP_ROUNDS), ["short_warmup"]),
        "No process became steady within 20 rounds",
    ),
    "nothing new of too few rounds": (series([2.0], rounds=2)[:1], 5, [], "give at least --rounds 5"),
}


@pytest.mark.parametrize("what", RECOMMENDED)
def test_it_is_recommended(what: str) -> None:
    found, rounds, flags, said = RECOMMENDED[what]
    values = warmup_values(found, FIRST_ROUND, 5)
    assert (values["recommended_warmup_rounds"], values["flags"]) == (rounds, flags)
    assert said in values["recommendation"]


def test_rounds_are_numbered_through_the_process_and_the_first_has_its_parts_where_none_warmed_up() -> None:
    rows = warmup_values([*series([5.0, 2.0]), without_timed_phase([3.0])], FIRST_ROUND, 5)["series"]
    assert [row["steady_from_round"] for row in rows] == [3, 3, 3, 3, 3, 7]
    assert [bool(row["first_round_parts"]) for row in rows] == [True, *[False] * 5]


@pytest.mark.parametrize("process", [series([])[STUDIED_WARMUP_ROUNDS.index(5)], without_timed_phase([])])
def test_an_outlier_bears_its_number_in_the_process(process: Json) -> None:
    assert warmup_values([process], FIRST_ROUND, 5)["series"][0]["outliers"] == []
    seconds = [*process["seconds"][:3], 9.0, *process["seconds"][4:]]
    assert warmup_values([{**process, "seconds": seconds}], FIRST_ROUND, 5)["series"][0]["outliers"] == [9]


def test_what_a_warm_up_without_the_timed_phase_leaves_slow_is_said() -> None:
    slow, quick = (
        warmup_values([*series([5.0]), without_timed_phase(rounds)], FIRST_ROUND, 5)["recommendation"]
        for rounds in ([3.0], [])
    )
    assert slow.endswith("After a warm-up without the timed phase, 1 measured round was slow.")
    assert "without the timed phase" not in quick


def test_the_screen_has_a_row_for_each_case_and_one_line_for_the_machine() -> None:
    quick = passed(STUDY, "warmup", warmup_values(series([5.0, 2.0]), FIRST_ROUND, 5))
    slow_id = STUDY.replace("forward", "backward")
    slow = passed(slow_id, "warmup", warmup_values(series(FALLING), FIRST_ROUND, 5))
    lines = warmup_lines([quick, slow])
    assert "allocator growth 75%" in lines[1]
    assert "round 3" in lines[1]
    assert any(line.startswith("warmup_of_backward tiny-ctx8-fp32-naive: 6 warm-up rounds") for line in lines)
    assert lines[-1] == warmup_lines([slow, quick])[-1]
    assert "--warmup-rounds 6, which warmup_of_backward tiny-ctx8-fp32-naive needs; 5 is too few" in lines[-1]
    assert "5 covers every case of this study" in warmup_lines([quick])[-1]


def test_settings_survive_their_way_to_a_worker_without_passes_of_its_own() -> None:
    there = received(json.loads(json.dumps(sent(replace(SETTINGS, passes=("warmup",), memory_snapshot=True)))))
    assert there == SETTINGS


def test_a_study_is_as_many_rounds_as_it_says() -> None:
    assert study_rounds("forward", 10) == sum(len(one["warmup_seconds"] + one["seconds"]) for one in series([]))
    assert study_rounds("backward", 10) == study_rounds("forward", 10) + 15


def studied_rounds(study: Study) -> tuple[WarmupStudyMeasure, list[str]]:
    """Run the rounds of a study in this process; the order of set-ups and of what is timed."""
    device, ran = CpuDevice(CPU), list[str]()
    measure = WarmupStudyMeasure(study, Clock(device), device)
    measure(lambda: ran.append("timed"), setup=lambda: ran.append("set-up"))
    return measure, ran


def test_a_warm_up_that_leaves_the_timed_phase_out_runs_its_set_up_alone() -> None:
    measure, ran = studied_rounds(Study(2, 2, leaves_out_timed_phase=True))
    assert ran == ["set-up", "set-up", "set-up", "timed", "set-up", "timed"]
    assert (len(measure.values["warmup_seconds"]), len(measure.values["seconds"])) == (2, 2)


def test_room_is_made_after_a_warm_up_and_not_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(CpuDevice, "make_room", lambda device: made.append(1))
    for warmup_rounds in (0, 2):
        studied_rounds(Study(warmup_rounds, 2))
    assert made == [1]  # without a warm-up nothing is known of what a round needs


@pytest.mark.parametrize(
    "study, rounds", [(Study(1, 1), 2), (Study(0, 1, traces_first_round=True), 2 + ROUNDS_BETWEEN)]
)
def test_whole_rounds_are_run_and_several_before_the_one_a_first_is_held_against(study: Study, rounds: int) -> None:
    assert studied_rounds(study)[1] == ["set-up", "timed"] * rounds


@pytest.mark.usefixtures("forked_workers")
def test_a_fresh_process_times_every_round_of_the_benchmark() -> None:
    answer = in_fresh_process(SETTINGS, BACKWARD, Study(2, 3), ROOT)["values"]
    assert (len(answer["warmup_seconds"]), len(answer["seconds"])) == (2, 3)
    assert min(answer["warmup_seconds"] + answer["seconds"]) > 0


def test_a_fresh_process_traces_its_first_round() -> None:
    """Started and not forked, as a study's are."""
    answer = in_fresh_process(SETTINGS, FORWARD, Study(0, 1, traces_first_round=True), ROOT)["values"]
    assert answer["first_round_parts"]["steady_round_seconds"] > 0
    assert answer["first_round"]["page_faults"] > answer["first_round"]["steady_page_faults"]


@pytest.mark.usefixtures("forked_workers")
def test_a_case_that_does_not_fit_a_fresh_process_is_its_answer() -> None:
    answer = in_fresh_process(replace(SETTINGS, memory_budget_bytes=2**23), FORWARD, Study(0, 1), ROOT)
    assert answer["outcome"]["outcome"] == "would_not_fit"


@pytest.mark.usefixtures("forked_workers")
def test_a_fresh_process_without_its_benchmark_says_so() -> None:
    outcome = in_fresh_process(SETTINGS, FORWARD.replace("ctx8", "ctx9"), Study(3, 1), ROOT)["outcome"]
    assert outcome["outcome"] == "error"
    assert "not found" in outcome["reason"]


def test_a_fresh_process_that_is_killed_is_named_with_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed_at_once(module: str, folder: Path, environment: Mapping[str, str]) -> WorkerProcess:
        worker = start_worker(module, folder, environment)
        worker.process.kill()
        worker.process.wait()
        return worker

    monkeypatch.setattr("perf_tests.passes.warmup.start_worker", killed_at_once)
    with pytest.raises(WorkerEndedError, match=r"was killed by SIGKILL\."):
        in_fresh_process(SETTINGS, FORWARD, Study(0, 1), ROOT)


QUICK = ("--phase=forward,backward", "--warmup-study", "--rounds=6", "-p", "tests.support.quick_warmup_study")

studied = launched_once(*QUICK)


def test_a_study_of_each_case_is_saved_beside_the_timings(studied: Launch) -> None:
    assert studied.exit_code == 0, studied.output + studied.errors
    assert studied.passes.keys() == {
        f"test_warmup_of_{before}{way}[{case}-fp32-naive]"
        for before, case in (("", "tiny-ctx8"), ("attention_", "d16-seq16")) for way in ("forward", "backward")
    }  # fmt: skip
    assert {row["pass"] for row in studied.passes.values()} == {"warmup"}
    assert len(studied.measured) == 4


def test_only_a_phase_with_a_set_up_can_leave_its_timed_part_out(studied: Launch) -> None:
    kinds = {
        row["identity"]["phase"]: [one["leaves_out_timed_phase"] for one in row["values"]["series"]]
        for row in studied.passes.values()
    }
    assert kinds["forward"] == kinds["attention_forward"] == [False] * 5
    assert kinds["backward"] == kinds["attention_backward"] == [False] * 5 + [True]


def test_the_screen_says_what_to_set_on_this_machine(studied: Launch) -> None:
    shown = studied.output.partition("- warmup -")[2]
    assert "for this machine: --warmup-rounds 2, which " in shown
    assert "1 is too few" in shown


def test_a_study_that_does_not_fit_is_an_outcome_row(tmp_path: Path) -> None:
    small = launch(tmp_path / "storage", *QUICK, "-k=ctx8", "--phase=forward", PLANTED_OUTCOME="out_of_memory")
    outcome = small.outcomes["test_warmup_of_forward[tiny-ctx8-fp32-naive]"]
    assert (outcome["outcome"], outcome["pass"], outcome["reason"]) == ("out_of_memory", "warmup", "planted")


def test_under_nsight_systems_a_study_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    refused = launch(tmp_path / "storage", *QUICK, NSYS_PROFILING_SESSION_ID="17")
    assert refused.exit_code == 4
    assert "run without --warmup-study under nsys" in refused.errors
    assert refused.records == []


def test_a_disabled_study_runs_one_fresh_process_and_keeps_nothing(tmp_path: Path) -> None:
    disabled = launch(tmp_path / "storage", *QUICK, "-k=ctx8", "--phase=forward", "--benchmark-disable")
    assert "2 passed" in disabled.output, disabled.output + disabled.errors
    assert disabled.records == []


def test_the_readme_states_the_studys_own_figures() -> None:
    text = " ".join(page("warm-up").split())
    *some, last = map(str, STUDIED_WARMUP_ROUNDS)
    assert f"after {', '.join(some)} and {last} warm-up rounds" in text
    assert f"after {LEAVING_OUT_ROUNDS} rounds of set-up alone" in text
    assert f"by {100 * LEAST_EXCESS:.0f} % of their median" in text
    assert f"at most {100 * LEVEL:.0f} % are taken" in text
    processes = len(STUDIED_WARMUP_ROUNDS) + 1
    assert f"takes {processes} processes, {processes + 1} where its set-up computes" in text
    assert f"run {study_rounds('forward', 10)} rounds, or {study_rounds('backward', 10)}, beside" in text
    assert f"null below {ENERGY_LEAST_SECONDS:.0f} s of rounds" in text
