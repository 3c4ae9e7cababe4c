"""Cases that end without a timing, in real launches: each is a row with its reason, and the next case runs."""

from pathlib import Path

import pytest

from perf_tests.meta_tests.launch import MODELS, Launch, launch
from perf_tests.records.record import identity_of

BUDGET_BYTES = 2 * 2**30


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Inference fails in another way at each context from 16 on; a forward pass with its graph works everywhere."""
    return launch(
        tmp_path_factory.mktemp("grid"),
        f"--model={MODELS}:Everything",
        "--context=8,16,24,32,40,100000000",
        "--precision=fp32,tf32",
        "--phase=inference,forward",
        "--memory-budget=2GiB",
        "-k=not attention",
    )


@pytest.fixture(scope="module")
def out_of_memory_alone(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch(
        tmp_path_factory.mktemp("alone"),
        f"--model={MODELS}:Everything",
        "--context=32",
        "--phase=inference",
        "--memory-budget=2GiB",
        "-k=not attention",
    )


def test_every_selected_case_is_exactly_once_a_row_of_the_record(grid: Launch) -> None:
    rows = [*grid.measured, *grid.outcomes]

    assert len(rows) == len(set(rows)) == len(grid.record["suite"]["selection"]) == 24


def test_a_case_that_runs_out_of_memory_says_what_it_needed_and_what_there_was(grid: Launch) -> None:
    row = grid.outcomes["test_inference[tiny-ctx32-fp32-own]"]

    assert row["outcome"] == "out_of_memory"
    assert "can't allocate memory" in row["reason"]
    assert 0 < row["needed_bytes"] <= row["available_bytes"] == BUDGET_BYTES


def test_after_a_case_ran_out_of_memory_the_next_one_has_that_memory(grid: Launch) -> None:
    """The forward pass at context 32 takes nearly all that inference took before it failed."""
    assert "test_forward[tiny-ctx32-fp32-own]" in grid.measured


def test_a_larger_case_of_the_family_is_not_tried_after_one_ran_out_of_memory(grid: Launch) -> None:
    row = grid.outcomes["test_inference[tiny-ctx40-fp32-own]"]

    assert row["outcome"] == "would_not_fit"
    assert row["reason"] == "not tried: the smaller test_inference[tiny-ctx32-fp32-own] is out of memory."


def test_another_family_is_tried_after_one_ran_out_of_memory(grid: Launch) -> None:
    assert "test_forward[tiny-ctx40-fp32-own]" in grid.measured


@pytest.mark.parametrize("phase", ["inference", "forward"])
def test_a_case_that_cannot_fit_is_not_tried(grid: Launch, phase: str) -> None:
    row = grid.outcomes[f"test_{phase}[tiny-ctx100000000-fp32-own]"]

    assert row["outcome"] == "would_not_fit"
    assert row["needed_bytes"] > row["available_bytes"] == BUDGET_BYTES


def test_a_case_that_raises_inside_the_timed_call_keeps_the_rounds_before(grid: Launch) -> None:
    row = grid.outcomes["test_inference[tiny-ctx16-fp32-own]"]

    assert (row["outcome"], row["reason"]) == ("error", "RuntimeError: planted in the third round")
    assert len(row["rounds"]) == 1  # the first of three was the warm-up round


def test_a_case_whose_result_is_wrong_keeps_all_its_rounds_and_has_no_timing(grid: Launch) -> None:
    row = grid.outcomes["test_inference[tiny-ctx24-fp32-own]"]

    assert row["outcome"] == "error"
    assert "logits are not finite" in row["reason"]
    assert len(row["rounds"]) == 2


def test_a_precision_that_the_device_lacks_is_unsupported(grid: Launch) -> None:
    rows = [row for name, row in grid.outcomes.items() if "-tf32-" in name]

    assert len(rows) == 12
    assert {row["outcome"] for row in rows} == {"unsupported"}
    assert all(row["reason"] for row in rows)


def test_a_case_without_a_timing_has_its_whole_identity(grid: Launch) -> None:
    for row in (*grid.outcomes.values(), *grid.measured.values()):
        identity = identity_of(row)
        assert (identity["model"], identity["batch_size"], identity["d_model"]) == (f"{MODELS}:Everything", 4, 128)


def test_each_case_without_a_timing_is_told_with_its_reason(grid: Launch) -> None:
    for row in grid.outcomes.values():
        assert f": {row['reason']}" in grid.output


def test_pytest_benchmarks_own_table_shows_no_case_without_a_timing(grid: Launch) -> None:
    table = grid.output[grid.output.index("- benchmark 'forward'") : grid.output.index("- results -")]

    assert all(name in table for name in grid.measured)
    assert not any(name in table for name in grid.outcomes)


def test_a_failed_case_fails_the_run(grid: Launch) -> None:
    assert grid.exit_code == 1


def test_cases_that_do_not_fit_alone_fail_nothing(out_of_memory_alone: Launch) -> None:
    assert out_of_memory_alone.exit_code == 0


def test_a_case_has_the_same_outcome_alone_and_in_the_middle_of_a_grid(
    grid: Launch, out_of_memory_alone: Launch
) -> None:
    (alone,) = out_of_memory_alone.outcomes.values()
    in_grid = grid.outcomes["test_inference[tiny-ctx32-fp32-own]"]

    assert alone == in_grid


def test_output_that_nobody_watches_shows_no_progress(grid: Launch) -> None:
    assert "\r" not in grid.output
    assert "round 1 of" not in grid.output


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def all_phases(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch(
        tmp_path_factory.mktemp("phases"),
        *(f"--model={MODELS}:Logged", "--phase=all", "--precision=fp32,bf16", "-k=not attention"),
        PLANTED_LOG=str(logs / "all_phases"),
    )


def weights(log: Path) -> dict[str, str]:
    """The sum of the weights at each case's first round."""
    pairs = (line.rpartition(" ") for line in log.read_text().splitlines() if line != "built")
    return {case.rpartition("::")[2]: total for case, _, total in pairs}


def builds(log: Path) -> int:
    return log.read_text().splitlines().count("built")


def test_a_model_is_built_once_for_all_phases_and_precisions(all_phases: Launch, logs: Path) -> None:
    assert all_phases.exit_code == 0
    assert len(weights(logs / "all_phases")) == len(all_phases.measured) >= 6
    assert builds(logs / "all_phases") == 1


def test_every_case_starts_from_the_same_weights(all_phases: Launch, logs: Path) -> None:
    """Those after a training phase too."""
    assert len(set(weights(logs / "all_phases").values())) == 1


def test_a_case_alone_starts_from_the_weights_it_has_in_the_middle_of_a_grid(
    all_phases: Launch, logs: Path, tmp_path: Path
) -> None:
    name = "test_backward[tiny-ctx8-fp32-own]"
    alone = launch(
        tmp_path,
        *(f"--model={MODELS}:Logged", "--phase=backward", "-k=not attention"),
        PLANTED_LOG=str(logs / "alone"),
    )

    assert weights(logs / "alone") == {name: weights(logs / "all_phases")[name]}
    assert identity_of(alone.measured[name]) == identity_of(all_phases.measured[name])


def test_a_model_whose_weights_cannot_be_drawn_again_is_rebuilt_after_it_was_trained(
    logs: Path, tmp_path: Path
) -> None:
    launch(
        tmp_path,
        *(f"--model={MODELS}:LoggedWithoutReset", "--phase=forward,backward,optimizer,full_step", "-k=not attention"),
        PLANTED_LOG=str(logs / "rebuilt"),
    )

    assert builds(logs / "rebuilt") == 2
    assert len(weights(logs / "rebuilt")) == 4
    assert len(set(weights(logs / "rebuilt").values())) == 1
