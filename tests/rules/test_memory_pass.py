"""The row of a memory pass: plain values that agree with each other, and a timeline that keeps its peak."""

import os
import pickle
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from signal import SIGHUP, SIGKILL
from typing import Any

import pytest
import torch

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.passes import memory
from perf_tests_suite.perf_tests.passes.memory_watch import LiveTensors, PartChanges
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.parts import (
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    StorageBlock,
    StorageChange,
)
from perf_tests_suite.perf_tests.records.record import Json
from tests.rules.test_memory_watch import assert_consistent, assert_opens
from tests.support.example_cases import CPU, attention_case, build, language_model_case, random_tokens
from tests.support.traced_rounds import rounds


@pytest.mark.parametrize("count", [1, 400, 5000])
def test_a_timeline_is_bounded_and_keeps_its_peak_and_what_was_held_where_parts_meet(count: int) -> None:
    draw = random.Random(count)
    stands, *blocks = (
        StorageBlock(draw.randrange(1, 1000), "aten.add", "model/x.py:1", category, on_host=False)
        for category in ("parameters", *["temporaries"] * count)
    )
    comes = [StorageChange(block, True) for block in blocks]
    goes = [StorageChange(block, False) for block in draw.sample(blocks, count)]
    parts = PartChanges("forward", 1, 1 + count // 3), PartChanges("backward", 1 + count // 3, 1 + 2 * count)
    found = memory.timeline(LiveTensors((StorageChange(stands, True), *comes, *goes), 1, parts, Counter(), {}))
    held = list(accumulate((change.bytes for change in (*comes, *goes)), initial=0))
    moments = found["category_bytes"]["temporaries"]
    forward, backward = found["parts"]
    assert len(moments) <= memory.MOST_MOMENTS
    assert max(moments) == max(held)
    assert set(found["category_bytes"]["parameters"]) == {stands.bytes}
    assert (forward["first"], backward["last"]) == (0, len(moments) - 1)
    assert forward["last"] == backward["first"]
    assert moments[backward["first"]] == held[count // 3]


def test_saved_bytes_are_by_block_and_innermost_part() -> None:
    saved = Counter({
        ("forward", "block 3", "attention", "softmax"): 5, ("forward", "block 3", "norm"): 7, ("forward", "block 3"): 2,
        ("forward", "head"): 1, ("loss",): 4,
    })  # fmt: skip
    assert [tuple(row.values()) for row in memory.saved_by_part(saved)] == [
        ("block 3", "softmax", 5), ("block 3", "norm", 7), ("block 3", "residual", 2), (None, "head", 1),
        (None, "loss", 4),
    ]  # fmt: skip


VALUES: Json = {"peak_allocated_bytes": 1020, "flags": [], "parts": [{"phase": "forward"}]}


def test_a_peak_1_percent_beyond_workspaces_is_flagged_by_what_was_asked_for() -> None:
    """A GPU's blocks are larger than what is asked for."""
    counters = counters_of(language_model_case())
    for share, workspace_bytes, requested, flags in (
        (1.009, 0, None, []), (1.02, 0, None, ["peak_off"]), (0.98, 0, None, ["peak_off"]), (1.02, 10**9, None, []),
        (0.98, 10**9, None, ["peak_off"]), (1.037, 0, 1.0, []), (1.037, 0, 1.02, ["peak_off"]),
    ):  # fmt: skip
        values = {**VALUES, "peak_allocated_bytes": round(share * counters.peak_bytes)}
        if requested is not None:
            values["peak_requested_bytes"] = round(requested * counters.peak_bytes)
        found = memory.with_prediction(values, counters, None, workspace_bytes)
        assert (found["flags"], found["prediction_error"]) == (flags, pytest.approx((requested or share) - 1, abs=1e-3))
        assert found["parts"][0]["predicted_peak_bytes"] == counters.parts[0].peak_bytes


def test_without_counters_a_row_says_why() -> None:
    found = memory.with_prediction(VALUES, None, "nobody knows.", 0)
    assert (found["prediction_reason"], found["flags"]) == ("nobody knows.", [])
    assert found["predicted_peak_bytes"] is found["prediction_error"] is None
    assert found["parts"][0]["predicted_peak_bytes"] is None


def test_a_cpu_has_workspaces_only_where_a_library_takes_some() -> None:
    naive = language_model_case()
    assert memory.workspace_bytes_of(naive, threads=2) == 0
    assert memory.workspace_bytes_of(replace(naive, precision="bf16"), threads=2) == 4 * 2**20
    assert memory.workspace_bytes_of(attention_case(attention="sdpa"), threads=1) == 2 * 2**20
    on_gpu = replace(naive, device="cuda", precision="bf16")
    assert memory.workspace_bytes_of(on_gpu, threads=1) == 0, "they are predicted"


def test_what_outlives_a_round_is_known_by_its_category() -> None:
    training, tokens = Training(build(), PRECISIONS["fp32"], CPU), random_tokens()
    training.step(tokens, tokens)
    leaf = torch.ones(2, requires_grad=True)
    leaf.sum().backward()
    weights, buffers = (len(list(found)) for found in (training.model.parameters(), training.model.buffers()))
    of_step = {INPUTS: 1, PARAMETERS: weights + buffers, OPTIMIZER_STATE: 3 * weights, GRADIENTS: weights}
    of_leaf = {INPUTS: 2, GRADIENTS: 1}
    stand = memory.standing(training, (tokens,)), memory.standing(None, (leaf, tokens))
    for found, counts in zip(stand, (of_step, of_leaf), strict=True):
        assert {category: len(tensors) for category, tensors in found} == counts


def examined(snapshot: Path) -> Json:
    """A backward pass of the toy model, examined in this very process; other tests' tensors may stand beside."""
    training, tokens = Training(build(), PRECISIONS["fp32"], CPU), random_tokens()
    target, setup = rounds(training, tokens)["backward"]
    case = language_model_case(phase="backward")
    measure = memory.MemoryMeasure(case, CPU, lambda: memory.standing(training, (tokens,)), snapshot)
    measure(target, setup=setup)
    return measure.values


def test_a_snapshot_is_written_whole_opens_and_holds_the_blocks_of_the_round(tmp_path: Path) -> None:
    values = examined(tmp_path / "it.pickle")
    assert values["snapshot"] == f"{tmp_path.name}/it.pickle"
    (path,) = tmp_path.iterdir()
    assert_opens(path.read_bytes())
    snapshot = pickle.loads(path.read_bytes())
    assert_consistent(snapshot)
    lines = {frame["filename"] for event in snapshot["device_traces"][0] for frame in event["frames"]}
    assert any(name.endswith("model/transformer.py") for name in lines)


def test_a_snapshot_that_cannot_be_written_costs_the_snapshot_and_not_the_row(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    values = examined(tmp_path / "file" / "it.pickle")
    assert (values["peak_allocated_bytes"] > 0, values["snapshot"]) == (True, None)
    assert re.fullmatch(r"((?!exists).)*exists((?!exists).)*free disk space and run again\.", values["snapshot_reason"])


class Task(dict[str, Any]):
    """Read by the forked process alone, which a signal then ends."""

    def __getitem__(self, name: str) -> Any:
        os.kill(os.getpid(), super().__getitem__("signal"))


def test_a_fork_that_dies_is_an_outcome_with_what_ended_it() -> None:
    killed = "SIGKILL, probably by the out-of-memory killer; set --memory-budget."
    ends: list[tuple[Json, str, str]] = [
        (Task(signal=SIGKILL), "out_of_memory", killed), (Task(signal=SIGHUP), "error", "SIGHUP; run the case alone"),
        ({}, "error", "exit code 1; run the case alone"),
    ]  # fmt: skip
    for task, outcome, words in ends:
        answer = memory.in_a_fork(task)["outcome"]
        assert (answer["outcome"], words in answer["reason"]) == (outcome, True)
