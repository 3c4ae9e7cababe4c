"""Cases that end without a timing, in real launches: each is a row with its reason, and the next case runs.

A model that misbehaves costs its own case, a disk that refuses no case that was finished. Ten launches.
"""

import re
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.record import identity_of
from tests.support.launch import MODELS, THREE_CASES, Launch, launch, launched_once

BUDGET_BYTES = 2 * 2**30

ONE_FAMILY = (f"--model={MODELS}:Everything", "--memory-budget=2GiB")

grid = launched_once(
    *ONE_FAMILY, "--context=8,16,24,32,40,100000000", "--precision=fp32,tf32", "--phase=inference,forward",
    "-k=not attention", "--benchmark-sort=name", exits=1,
)  # fmt: skip
"""Inference fails in another way at each context from 16 on; a forward pass with its graph works everywhere."""


def test_every_selected_case_is_once_a_row_with_its_identity_and_its_reason_on_the_screen(grid: Launch) -> None:
    rows = [*grid.measured, *grid.outcomes]
    assert len(rows) == len(set(rows)) == len(grid.record["suite"]["selection"]) == 24
    for row in (*grid.outcomes.values(), *grid.measured.values()):
        identity = identity_of(row)
        assert (identity["model"], identity["batch_size"], identity["d_model"]) == (f"{MODELS}:Everything", 4, 128)
        assert f": {row.get('reason', '')}" in grid.output
    table = grid.output[grid.output.index("- benchmark 'forward'") : grid.output.index("- results -")]
    assert {name for name in rows if name in table} == grid.measured.keys(), "pytest-benchmark shows timings alone"
    assert not any(progress in grid.output for progress in ("\r", "round 1 of")), "nobody watches"


def test_a_case_that_fails_says_why(grid: Launch) -> None:
    for context, outcome, reason, rounds_kept in (
        (16, "error", "RuntimeError: planted in the third round", 1),  # after one of warm-up
        (24, "error", "logits are not finite", 2),
        (32, "out_of_memory", "can't allocate memory", 0),
        (40, "would_not_fit", "not tried: the smaller test_inference[tiny-ctx32-fp32-own] is out of memory.", 0),
        (100000000, "would_not_fit", "needs at least", 0),
    ):
        row = grid.outcomes[f"test_inference[tiny-ctx{context}-fp32-own]"]
        assert (row["outcome"], len(row["rounds"])) == (outcome, rounds_kept)
        assert reason in row["reason"]
        if outcome != "error":
            assert row["available_bytes"] == BUDGET_BYTES
            assert (row["needed_bytes"] > 0, row["needed_bytes"] > BUDGET_BYTES) == (True, context == 100000000)


ONLY_COMPILED = """
import torch
from torch import nn

class Mixed(nn.Module):
    def forward(self, x):
        x = x.cumsum(1)
        if torch.compiler.is_compiling():
            return x @ torch.ones(3, 3)
        return x

def build(config):
    return nn.Sequential(nn.Embedding(config.vocab_size, 16), Mixed(), nn.Linear(16, config.vocab_size))
"""


def test_a_model_that_fails_only_compiled_says_where_without_records_of_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ONLY_COMPILED)
    words = ("--context=8", "--precision=fp32", "--phase=forward", "--execution=compiled", "-k=not attention")
    ended = launch(tmp_path, f"--model={tmp_path}/own.py:build", *words, exits=1)
    (row,) = ended.outcomes.values()
    assert (row["outcome"], row["reason"].partition(": ")[0]) == ("error", "torch._dynamo.exc.TorchRuntimeError")
    assert row["reason"].endswith("own.py:9")
    assert not re.search(r"torch\.(__trace|jit)", ended.output)


def test_after_a_case_ran_out_of_memory_another_family_is_tried_and_has_that_memory(grid: Launch) -> None:
    """The forward pass takes nearly all that inference took before it failed."""
    assert {f"test_forward[tiny-ctx{context}-fp32-own]" for context in (32, 40)} <= grid.measured.keys()


def test_a_precision_that_the_device_lacks_is_unsupported(grid: Launch) -> None:
    rows = [row for name, row in grid.outcomes.items() if "-tf32-" in name]
    assert [(row["outcome"], bool(row["reason"])) for row in rows] == [("unsupported", True)] * 12


def test_a_case_has_the_same_outcome_in_the_process_of_its_pass_and_fails_no_run(grid: Launch, tmp_path: Path) -> None:
    alone = launch(tmp_path, *ONE_FAMILY, "--context=32", "--phase=inference", "--memory", "-k=memory_of_inference")
    ((name, row),) = alone.outcomes.items()
    assert (alone.exit_code, name, row.pop("pass")) == (0, "test_memory_of_inference[tiny-ctx32-fp32-own]", "memory")
    in_grid = grid.outcomes["test_inference[tiny-ctx32-fp32-own]"]
    same = ("outcome", "reason", "needed_bytes", "available_bytes")
    assert {key: row[key] for key in same} == {key: in_grid[key] for key in same}


def test_a_model_is_built_once_and_every_case_starts_from_the_same_weights(tmp_path: Path) -> None:
    """Those after a training phase too."""
    log = tmp_path / "log"
    ended = launch(
        tmp_path / "storage", f"--model={MODELS}:Logged", "-k=not attention", "--phase=all", "--precision=fp32,bf16",
        PLANTED_LOG=str(log), exits=0,
    )  # fmt: skip
    lines = log.read_text().splitlines()
    weights = dict(line.rsplit(" ", 1) for line in lines if line != "built")
    assert len(weights) == len(ended.measured) >= 6
    assert (len(set(weights.values())), lines.count("built")) == (1, 1)


# A disk that refuses.


def test_a_full_disk_stops_the_run_with_one_sentence_and_costs_no_case_that_was_finished(tmp_path: Path) -> None:
    """The system refuses the journal's growth in the second of three cases."""
    full = launch(tmp_path, f"--model={MODELS}:DiskFillsAt16", *THREE_CASES, PLANTED_STORAGE=str(tmp_path))
    assert full.exit_code not in (0, 5)
    said = full.output + full.errors
    assert said.count(f"{full.journals[0]} cannot be written") == 1
    assert "Traceback" not in said
    assert "Error" not in said.replace("[Errno", "")
    assert (full.finished, full.records) == (cases(8), [])


def test_a_record_that_cannot_be_written_fails_the_run_and_is_written_later(tmp_path: Path) -> None:
    """The disk turns read-only while the cases run: the journal is open, but the record gets no name."""
    arguments = (f"--model={MODELS}:DiskTurnsReadOnly", *THREE_CASES)
    read_only = launch(tmp_path / "first", *arguments, PLANTED_READ_ONLY="yes", exits=1)
    assert read_only.output.count("The record cannot be written: [Errno 30] Read-only file system") == 1
    assert "Traceback" not in read_only.output + read_only.errors
    assert (read_only.records, read_only.finished) == ([], cases(8, 16, 24))
    completed = launch(read_only.copied(tmp_path), *arguments, "--resume", exits=0)
    assert completed.journals == []
    assert completed.record["benchmarks"] == read_only.journal.benchmarks


# A model that misbehaves.


HEALTHY, FAULTY = (8, 56, 80), (16, 24, 32, 40, 48, 60, 64, 72, 74, 76, 78)


def cases(*contexts: int) -> set[str]:
    return {f"test_forward[tiny-ctx{context}-fp32-own]" for context in contexts}


def test_each_fault_is_the_row_of_its_case_and_a_signal_costs_the_case_in_flight(tmp_path: Path) -> None:
    contexts = ",".join(map(str, sorted((*HEALTHY, *FAULTY))))
    arguments = (f"--model={MODELS}:MisbehavesByContext", f"--context={contexts}", *THREE_CASES[1:])
    struck = launch(tmp_path / "struck", *arguments, PLANTED_SIGNAL="SIGTERM", exits=143)
    assert struck.finished == cases(8, 56, *FAULTY)
    resumed = launch(struck.copied(tmp_path), *arguments, "--resume", exits=1)
    assert ({*resumed.measured}, {*resumed.outcomes}) == (cases(*HEALTHY), cases(*FAULTY))
    assert resumed.journals == []
    for context, words in {
        16: "RuntimeError: planted", 24: "SystemExit: 0", 40: "meta", 48: "number of threads from 1 to 2",
        60: f"--model {MODELS}:MisbehavesByContext fails on tokens of shape (1, 60): ValueError: no sixty",
        64: "logits are not finite", 72: "the tokens were changed in place",
        32: "The case changed torch's default dtype from torch.float32 to torch.float64",
        74: "It replaced time.perf_counter, by which it is measured",
        76: "It changed float32_matmul_precision from highest to medium",
        78: "A process that the case forked came back and worked on beside it",
    }.items():  # fmt: skip
        row = resumed.outcomes[cases(context).pop()]
        assert words in row["reason"]
        assert (row["outcome"], len(row["rounds"])) == ("suspicious", 2) or context not in (74, 76)


def test_a_kernel_that_is_wrong_in_its_timed_rounds_is_a_row_without_a_time(tmp_path: Path) -> None:
    ended = launch(
        tmp_path, "--attention=naive,tests/support/cheats/output_by_shape.py:attend", "--sequence-length=256",
        "--rounds=4", "--warmup-rounds=4", "--seed=7", "-k=attention_forward",  # its first four calls are right
        exits=1,
    )  # fmt: skip
    ((_, right),), ((_, wrong),) = ended.measured.items(), ended.outcomes.items()
    assert (wrong["outcome"], wrong["rounds"]) == ("incorrect", [])
    assert " of the output, for inputs of shape (8, 256, 16) in measured round " in wrong["reason"]
    assert wrong["reason"] in ended.output
    info = right["extra_info"]
    assert (info["values_seed"], info["seed"]) == (7, 7)
    assert len(info["checked"]["rounds"]) == 4
    assert (info["checked"]["what"], info["checked"]["unchecked"]) == ("the output at 64 rows", None)


@pytest.mark.parametrize(
    "model, words",
    [
        ("EndsTheProcessAt16", "The case called os._exit(0), which ends the run; raise an error instead, or sys.exit."),
        ("EndsFromCAt16", "ended it from C (_exit, exit or exec). Finished cases are kept in the journal;"),
    ],
)
def test_a_model_that_ends_the_process_fails_the_run(tmp_path: Path, model: str, words: str) -> None:
    ended = launch(tmp_path, f"--model={MODELS}:{model}", *THREE_CASES, exits=4)
    assert words in ended.errors
    assert ended.finished == cases(8)
