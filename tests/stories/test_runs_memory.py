"""The memory pass as a user runs it: a row for each case, exact on a CPU; a process that dies is a row as well."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from model.sizes import SIZES
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.workers import WorkerEndedError
from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.passes.memory import MemoryWorker
from perf_tests.predict.counters import counters_of
from perf_tests.records.record import Json
from tests.rules.test_memory_watch import assert_opens
from tests.support.launch import MODELS, ROOT, Launch, launch, launched_once

ONLY_MEMORY = ("-k=memory_of", "--threads=1")

examined = launched_once(*ONLY_MEMORY, "--memory-snapshot", "--phase=inference,forward,backward,full_step")


def case_of(row: Json) -> Case:
    identity = row["identity"]
    if "head_dim" in identity:
        return AttentionCase(**identity)
    names = [name for name in identity if name in LanguageModelCase.__dataclass_fields__]
    config = SIZES[identity["size"]].at_context(identity["context_length"])
    return LanguageModelCase(config=config, **{name: identity[name] for name in names})


def test_each_case_is_a_row_of_the_pass(examined: Launch) -> None:
    assert examined.exit_code == 0, examined.output + examined.errors
    assert examined.passes.keys() == {
        *(
            f"test_memory_of_{phase}[tiny-ctx8-fp32-naive]"
            for phase in ("inference", "forward", "backward", "first_step", "full_step")
        ),
        *(f"test_memory_of_attention_{phase}[d16-seq16-fp32-naive]" for phase in ("forward", "backward")),
    }
    assert all(row["pass"] == "memory" for row in examined.passes.values())
    assert examined.record["benchmarks"] == []


def test_on_a_cpu_the_peak_of_a_case_and_of_each_part_is_the_predicted_one(examined: Launch) -> None:
    for row in examined.passes.values():
        values = row["values"]
        assert values["predicted_peak_bytes"] == counters_of(case_of(row)).peak_bytes
        assert values["parts"]
        for found in (values, *values["parts"]):
            # The loss scale, a number of four bytes, is only predicted.
            assert found["peak_allocated_bytes"] == pytest.approx(found["predicted_peak_bytes"], abs=64, rel=1e-6)
        assert values["flags"] == []


def test_the_categories_add_up_to_the_peak(examined: Launch) -> None:
    for row in examined.passes.values():
        values = row["values"]
        assert sum(values["peak_by_category_bytes"].values()) == pytest.approx(values["peak_allocated_bytes"], abs=64)
        moments = zip(*values["timeline"]["category_bytes"].values(), strict=True)
        assert max(map(sum, moments)) == sum(values["peak_by_category_bytes"].values())


def test_each_category_at_the_peak_holds_what_is_predicted(examined: Launch) -> None:
    """But the inputs, of which a batch's tokens are slices of one more."""
    for row in examined.passes.values():
        values = row["values"]
        assert values["predicted_by_category_bytes"] == counters_of(case_of(row)).highest_part.bytes_by_category
        held, predicted = (+Counter(values[f"{kind}_by_category_bytes"]) for kind in ("peak", "predicted"))
        assert held == predicted


def test_the_first_step_begins_without_gradients_and_moments_and_ends_with_those_of_a_later_one(
    examined: Launch,
) -> None:
    first, later = (
        examined.passes[f"test_memory_of_{phase}[tiny-ctx8-fp32-naive]"]["values"]["timeline"]["category_bytes"]
        for phase in ("first_step", "full_step")
    )
    moments = 2 * SIZES["tiny"].parameters * 4
    for name, at_least in (("gradients", moments // 2), ("optimizer state", moments)):
        assert first[name][0] == 0
        assert first[name][-1] == later[name][-1] == later[name][0] >= at_least


def test_what_waits_for_the_backward_pass_is_what_the_counters_say(examined: Launch) -> None:
    for row in examined.passes.values():
        saved = sum(part["saved_bytes"] for part in row["values"]["saved_bytes_by_part"])
        expected = 0 if row["identity"]["phase"] == "inference" else counters_of(case_of(row)).saved_bytes
        assert saved == expected


def test_a_step_has_its_moments_and_attention_alone_the_one_before_its_backward_pass(examined: Launch) -> None:
    values = examined.passes["test_memory_of_full_step[tiny-ctx8-fp32-naive]"]["values"]
    marks = {mark["name"]: mark["allocated_bytes"] for mark in values["marks"]}
    assert list(marks) == ["after init", "after forward", "before backward", "before optimizer", "after optimizer"]
    assert marks["after init"] < marks["before backward"] < values["peak_allocated_bytes"]
    assert [part["name"] for part in values["timeline"]["parts"]] == ["forward", "loss", "backward", "optimizer"]
    forward, backward = (
        examined.passes[f"test_memory_of_attention_{way}[d16-seq16-fp32-naive]"]["values"][
            "memory_before_backward_bytes"
        ]
        for way in ("forward", "backward")
    )
    assert forward == backward > 0


def test_the_largest_blocks_have_their_lines(examined: Launch) -> None:
    values = examined.passes["test_memory_of_forward[tiny-ctx8-fp32-naive]"]["values"]
    sizes = [made["bytes"] for made in values["largest_allocations"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(made["line"].startswith("model/") for made in values["largest_allocations"])


def test_a_snapshot_of_each_case_lies_beside_the_record(examined: Launch) -> None:
    (machine_folder,) = {path.parent for path in examined.storage.glob("*/*.json")}
    for row in examined.passes.values():
        assert_opens((machine_folder / row["values"]["snapshot"]).read_bytes())
    assert not list(examined.storage.rglob(".unfinished-*"))


def test_the_screen_has_a_row_for_each_case_and_says_where_the_snapshots_are(examined: Launch) -> None:
    before, _, shown = examined.output.partition("- memory -")
    assert " results " not in before
    assert "full_step tiny-ctx8-fp32-naive" in shown
    assert "saved for the backward pass by a block of tiny-ctx8-fp32-naive" in shown
    assert "snapshots for pytorch.org/memory_viz: files-" in shown


@pytest.mark.parametrize("kind, outcome", [("SIGKILL", "out_of_memory"), ("SIGSEGV", "error")])
def test_a_process_that_dies_is_an_outcome_and_the_next_case_runs(tmp_path: Path, kind: str, outcome: str) -> None:
    model = f"--model={MODELS}:DiesAt16"
    end = launch(tmp_path, *ONLY_MEMORY, "--memory", model, "--context=8,16,24", "--phase=forward", PLANTED_SIGNAL=kind)
    row = end.outcomes["test_memory_of_forward[tiny-ctx16-fp32-own]"]
    assert (row["outcome"], row["pass"]) == (outcome, "memory")
    assert kind in row["reason"]
    assert end.exit_code == (0 if outcome == "out_of_memory" else 1)
    assert "test_memory_of_forward[tiny-ctx8-fp32-own]" in end.passes
    assert "Traceback" not in end.output


def test_a_phase_that_runs_out_of_memory_or_would_not_fit_is_an_outcome(tmp_path: Path) -> None:
    arguments = (f"--model={MODELS}:OutOfMemoryOnRequest", "--phase=forward", "--context=8,100000000")
    full = launch(tmp_path, *ONLY_MEMORY, "--memory", *arguments, "--memory-budget=2GiB", PLANTED_MEMORY="yes")
    asked = full.outcomes["test_memory_of_forward[tiny-ctx8-fp32-own]"]
    assert asked["outcome"] == "out_of_memory"
    assert "can't allocate memory" in asked["reason"]
    assert full.outcomes["test_memory_of_forward[tiny-ctx100000000-fp32-own]"]["outcome"] == "would_not_fit"


@contextmanager
def worker_in(folder: Path) -> Iterator[MemoryWorker]:
    worker = MemoryWorker(folder)
    try:
        yield worker
    finally:
        worker.end()


def write_worker(root: Path, code: str) -> None:
    folder = root / "perf_tests" / "passes"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "memory.py").write_text(code)


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    write_worker(tmp_path, "import nowhere")
    with worker_in(tmp_path) as worker, pytest.raises(WorkerEndedError, match="No module named 'nowhere'"):
        worker.ask({})


def test_a_task_that_nobody_understands_is_answered_and_the_worker_goes_on() -> None:
    reason = "its process ended with exit code 1; run the case alone to see why."
    with worker_in(ROOT) as worker:
        for _ in range(2):
            assert worker.ask({}) == {"outcome": asdict(Outcome("error", reason))}
