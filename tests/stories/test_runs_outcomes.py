"""Cases that end without a timing, in real launches: each is a row with its reason, and the next case runs."""

from pathlib import Path

import pytest

from perf_tests.records.record import identity_of
from tests.support.launch import MODELS, Launch, launch, launched_once

BUDGET_BYTES = 2 * 2**30

ONE_FAMILY = (f"--model={MODELS}:Everything", "--memory-budget=2GiB", "-k=not attention")

grid = launched_once(
    *ONE_FAMILY, "--context=8,16,24,32,40,100000000", "--precision=fp32,tf32", "--phase=inference,forward"
)
"""Inference fails in another way at each context from 16 on; a forward pass with its graph works everywhere."""


out_of_memory_alone = launched_once(*ONE_FAMILY, "--context=32", "--phase=inference")


def test_every_selected_case_is_exactly_once_a_row_of_the_record(grid: Launch) -> None:
    rows = [*grid.measured, *grid.outcomes]
    assert len(rows) == len(set(rows)) == len(grid.record["suite"]["selection"]) == 24


@pytest.mark.parametrize(
    "context, outcome, reason, rounds_kept",
    [
        (16, "error", "RuntimeError: planted in the third round", 1),  # after one of warm-up
        (24, "error", "logits are not finite", 2),
        (32, "out_of_memory", "can't allocate memory", 0),
        (40, "would_not_fit", "not tried: the smaller test_inference[tiny-ctx32-fp32-own] is out of memory.", 0),
    ],
)
def test_a_case_that_fails_says_why_and_keeps_the_rounds_before(
    grid: Launch, context: int, outcome: str, reason: str, rounds_kept: int
) -> None:
    row = grid.outcomes[f"test_inference[tiny-ctx{context}-fp32-own]"]
    assert (row["outcome"], len(row["rounds"])) == (outcome, rounds_kept)
    assert reason in row["reason"]


def test_a_case_that_does_not_fit_says_what_it_needed_and_what_there_was(grid: Launch) -> None:
    row = grid.outcomes["test_inference[tiny-ctx32-fp32-own]"]
    assert 0 < row["needed_bytes"] <= row["available_bytes"] == BUDGET_BYTES
    for phase in ("inference", "forward"):
        not_tried = grid.outcomes[f"test_{phase}[tiny-ctx100000000-fp32-own]"]
        assert not_tried["outcome"] == "would_not_fit"
        assert not_tried["needed_bytes"] > not_tried["available_bytes"] == BUDGET_BYTES


@pytest.mark.parametrize("context", [32, 40])
def test_after_a_case_ran_out_of_memory_another_family_is_tried_and_has_that_memory(grid: Launch, context: int) -> None:
    """The forward pass takes nearly all that inference took before it failed."""
    assert f"test_forward[tiny-ctx{context}-fp32-own]" in grid.measured


def test_a_precision_that_the_device_lacks_is_unsupported(grid: Launch) -> None:
    rows = [row for name, row in grid.outcomes.items() if "-tf32-" in name]
    assert len(rows) == 12
    assert {row["outcome"] for row in rows} == {"unsupported"}
    assert all(row["reason"] for row in rows)


def test_a_case_without_a_timing_has_its_whole_identity_and_is_told_with_its_reason(grid: Launch) -> None:
    for row in (*grid.outcomes.values(), *grid.measured.values()):
        identity = identity_of(row)
        assert (identity["model"], identity["batch_size"], identity["d_model"]) == (f"{MODELS}:Everything", 4, 128)
        assert f": {row.get('reason', '')}" in grid.output


def test_pytest_benchmarks_own_table_shows_no_case_without_a_timing(grid: Launch) -> None:
    table = grid.output[grid.output.index("- benchmark 'forward'") : grid.output.index("- results -")]
    assert all(name in table for name in grid.measured)
    assert not any(name in table for name in grid.outcomes)


def test_failed_cases_fail_the_run_and_those_that_do_not_fit_do_not(grid: Launch, out_of_memory_alone: Launch) -> None:
    assert (grid.exit_code, out_of_memory_alone.exit_code) == (1, 0)


def test_a_case_has_the_same_outcome_alone_and_in_a_grid(grid: Launch, out_of_memory_alone: Launch) -> None:
    assert out_of_memory_alone.outcomes.items() <= grid.outcomes.items()
    assert len(out_of_memory_alone.outcomes) == 1


def test_output_that_nobody_watches_shows_no_progress(grid: Launch) -> None:
    assert "\r" not in grid.output
    assert "round 1 of" not in grid.output


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def all_phases(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return logged(logs / "all_phases", tmp_path_factory.mktemp("phases"), "--phase=all", "--precision=fp32,bf16")


def logged(log: Path, storage: Path, *arguments: str, model: str = "Logged") -> Launch:
    return launch(storage, f"--model={MODELS}:{model}", "-k=not attention", *arguments, PLANTED_LOG=str(log))


def weights(log: Path) -> dict[str, str]:
    """The sum of the weights at each case's first round."""
    pairs = (line.rpartition(" ") for line in log.read_text().splitlines() if line != "built")
    return {case.rpartition("::")[2]: total for case, _, total in pairs}


def builds(log: Path) -> int:
    return log.read_text().splitlines().count("built")


def test_a_model_is_built_once_and_every_case_starts_from_the_same_weights(all_phases: Launch, logs: Path) -> None:
    """Those after a training phase too."""
    found = weights(logs / "all_phases")
    assert all_phases.exit_code == 0
    assert len(found) == len(all_phases.measured) >= 6
    assert len(set(found.values())) == 1
    assert builds(logs / "all_phases") == 1


def test_a_case_alone_starts_from_the_weights_it_has_in_a_grid(all_phases: Launch, logs: Path, tmp_path: Path) -> None:
    name = "test_backward[tiny-ctx8-fp32-own]"
    alone = logged(tmp_path / "log", tmp_path / "storage", "--phase=backward")
    assert weights(tmp_path / "log") == {name: weights(logs / "all_phases")[name]}
    assert identity_of(alone.measured[name]) == identity_of(all_phases.measured[name])


def test_a_model_whose_weights_cannot_be_drawn_again_is_rebuilt_after_it_was_trained(tmp_path: Path) -> None:
    phases = "--phase=forward,backward,optimizer,full_step"
    logged(tmp_path / "log", tmp_path / "storage", phases, model="LoggedWithoutReset")
    found = weights(tmp_path / "log")
    assert (builds(tmp_path / "log"), len(found), len(set(found.values()))) == (2, 4, 1)
