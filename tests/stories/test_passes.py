"""What an extra pass finds is a row of the record's `passes`: kept by the journal, told on screen, never a timing."""

from pathlib import Path

import pytest

from perf_tests.cases.options import PASSES
from perf_tests.passes.extra_pass import pass_named
from perf_tests.records.record import Json, identity_of, ids_of, why_not_a_record
from perf_tests.records.store import compare, latest_baseline, list_records, rows_by_id, save_record
from perf_tests.report.screens import PASS_LINES, pass_lines, result_lines
from tests.support.launch import Launch, launch, short
from tests.support.synthetic import BACKWARD, FORWARD, passed, record, timed, untimed, with_passes

KERNELS = "perf_tests/test_kernels.py::test_kernels_of_forward[tiny-ctx8-fp32-naive]"


def test_every_pass_says_how_many_rounds_it_runs_and_how_its_rows_are_read() -> None:
    assert list(PASSES) == list(PASS_LINES)
    assert all(pass_named(name).rounds_of("forward", 10) > 0 for name in PASSES)


def test_a_pass_is_no_case_of_the_comparison() -> None:
    before = record([timed()])
    now = with_passes(record([timed()], [{**untimed(KERNELS), "pass": "kernels"}]), passed(KERNELS))
    assert [row.id for row in compare(before, now)] == [row.id for row in compare(now, before)] == [FORWARD]
    assert ids_of(now) == {FORWARD}


def test_a_pass_without_a_result_is_told_with_its_reason() -> None:
    lines = result_lines(record([timed()], [{**untimed(KERNELS, "would_not_fit", "needs 3 GiB"), "pass": "kernels"}]))
    assert "kernels_of_forward tiny-ctx8-fp32-naive: would not fit: needs 3 GiB" in lines


@pytest.mark.parametrize("name", ["id", "identity", "pass", "values"])
def test_a_record_with_a_damaged_pass_is_refused(name: str) -> None:
    row = passed(KERNELS)
    assert why_not_a_record(with_passes(record([timed()]), row)) is None
    assert why_not_a_record(with_passes(record([timed()]), {**row, name: 1})) is not None


def test_a_record_from_before_there_were_passes_is_still_read() -> None:
    data = record([timed()])
    del data["passes"]
    assert why_not_a_record(data) is None
    assert pass_lines(data) == {}


def test_a_run_with_a_pass_finds_a_baseline_without_it(tmp_path: Path) -> None:
    save_record(record([timed(), timed(BACKWARD, phase="backward")]), tmp_path / "machine", "one")
    listing = list_records(tmp_path)
    now = with_passes(record([timed()]), passed(KERNELS))
    assert latest_baseline(listing.records, now["machine_info"], rows_by_id(now)) is not None


# One run of each kind, on one model of two layers.
GRID = ("--phase=forward,full_step", "-k=ctx8", "--threads=1")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch(tmp_path_factory.mktemp("traced") / "storage", *GRID, "--kernels")


def passes_of(data: Json) -> dict[str, Json]:
    return {short(row["id"]): row for row in data["passes"]}


FORWARD_PASS, STEP_PASS = (f"test_kernels_of_{phase}[tiny-ctx8-fp32-naive]" for phase in ("forward", "full_step"))


def test_a_pass_with_the_identity_of_its_case_is_made_for_each_and_saved_beside_the_timings(traced: Launch) -> None:
    assert traced.exit_code == 0, traced.output + traced.errors
    assert traced.measured.keys() == {"test_forward[tiny-ctx8-fp32-naive]", "test_full_step[tiny-ctx8-fp32-naive]"}
    assert passes_of(traced.record).keys() == {FORWARD_PASS, STEP_PASS}
    row = passes_of(traced.record)[STEP_PASS]
    assert row["pass"] == "kernels"
    assert row["identity"] == identity_of(traced.measured["test_full_step[tiny-ctx8-fp32-naive]"])


def test_passes_come_after_every_timing(traced: Launch) -> None:
    names = [case_id.partition("::")[0].rpartition("/")[2] for case_id in traced.record["suite"]["selection"]]
    assert names == ["test_forward.py", "test_full_step.py", "test_kernels.py", "test_kernels.py"]


def test_the_trace_lies_whole_beside_the_record(traced: Launch) -> None:
    row = passes_of(traced.record)[FORWARD_PASS]
    (machine_folder,) = {path.parent for path in traced.storage.glob("*/*.json")}
    assert (machine_folder / row["values"]["trace"]).read_bytes()[:2] == b"\x1f\x8b"
    assert not list(traced.storage.rglob(".unfinished-*"))


def test_the_screen_has_a_row_for_each_pass_and_says_where_the_traces_are(traced: Launch) -> None:
    shown = traced.output.partition("- kernels -")[2]
    rows = [line.split()[0] for line in shown.splitlines() if line.startswith("kernels_of_")]
    assert rows == ["kernels_of_forward", "kernels_of_full_step"]
    (folder,) = (path for path in traced.storage.glob("*/files-*") if path.is_dir())
    assert f"traces for ui.perfetto.dev: {folder.name}, beside the record" in shown
    assert "in extra passes" in shown


def test_without_its_option_a_pass_is_not_collected(tmp_path: Path) -> None:
    listed = launch(tmp_path / "storage", *GRID, "--collect-only", "-q")
    assert "test_kernels" not in listed.output
    assert "test_forward[tiny-ctx8-fp32-naive]" in listed.output


def test_a_resumed_run_keeps_the_passes_that_were_done(tmp_path: Path) -> None:
    """The process dies in the last pass; what went before is not done again."""
    storage = tmp_path / "storage"
    killed = launch(storage, *GRID, "--kernels", "-p", "tests.support.dies_in_the_last_case", PLANTED_DEATH="1")
    assert killed.journals, killed.output + killed.errors
    resumed = launch(storage, *GRID, "--kernels", "--resume", "-p", "tests.support.dies_in_the_last_case")
    assert resumed.exit_code == 0, resumed.output + resumed.errors
    assert "3 of 4 cases were done" in resumed.output
    assert len(passes_of(resumed.record)) == 2
    (folder,) = {path.parent for path in storage.glob("*/*.json")}
    assert all((folder / row["values"]["trace"]).exists() for row in resumed.record["passes"])


def test_a_pass_that_would_not_fit_is_an_outcome_row(tmp_path: Path) -> None:
    small = launch(tmp_path / "storage", *GRID, "--phase=forward", "--kernels", "--memory-budget=4MiB")
    outcome = small.outcomes[FORWARD_PASS]
    assert (outcome["outcome"], outcome["pass"]) == ("would_not_fit", "kernels")
    assert small.record["passes"] == []


def test_disabled_benchmarks_run_a_pass_once_and_keep_nothing(tmp_path: Path) -> None:
    disabled = launch(tmp_path / "storage", *GRID, "--phase=forward", "--kernels", "--benchmark-disable")
    assert "2 passed" in disabled.output, disabled.output + disabled.errors
    assert not list((tmp_path / "storage").rglob("*.*"))


def test_under_nsight_systems_the_kernel_pass_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    refused = launch(tmp_path / "storage", *GRID, "--kernels", NSYS_PROFILING_SESSION_ID="17")
    assert refused.exit_code == 4
    assert "Nsight Systems profiles this process (NSYS_PROFILING_SESSION_ID is set)" in refused.errors
    assert refused.records == []
