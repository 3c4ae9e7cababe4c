"""What a change did to a program: the first row names the line of the change, and a refactoring has no row.

The programs are models of a user's own, whose files differ between two folders; tests/stories/test_diff.py has the
suite's own model and real repositories.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware.limits import predicted_time
from perf_tests_suite.perf_tests.predict import difference as differences
from perf_tests_suite.perf_tests.predict.compiling import Compilation, GraphBreak, Recompile
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.difference import (
    ADDED,
    CHANGED,
    MOST_ROWS,
    CompiledDifference,
    Difference,
    Lines,
    difference,
    difference_json,
    difference_lines,
)
from perf_tests_suite.perf_tests.predict.operations import fake_round
from perf_tests_suite.perf_tests.predict.step import parts_of
from tests.support.example_cases import CEILINGS, TOY, attention_case, language_model_case

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / 8
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.out(weights @ v)
        hidden = F.gelu(self.up(x))
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self, vocabulary, width=16, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(config):
    return Model(config.vocab_size)
"""

SLOWDOWNS = {
    "a copy of the keys": ("k.transpose(-2, -1) /", "k.transpose(-2, -1).contiguous() /"),
    "float64 in the feed-forward": ("F.gelu(self.up(x))", "F.gelu(self.up(x).double()).float()"),
    "a cast in the line before": ("        hidden = F", "        x = x.double().float()\n        hidden = F"),
    "a bias": ("4 * width, width, bias=False", "4 * width, width, bias=True"),
    "a one-hot product": (
        "x = self.embedding(tokens)",
        "x = F.one_hot(tokens, self.embedding.num_embeddings).float() @ self.embedding.weight",
    ),
    "a value read back": ("        hidden = F", "        assert x.sum().item() < 1e9\n        hidden = F"),
    "a loop over the batch": ("q @ k.transpose(-2, -1)", "torch.stack([a @ b.T for a, b in zip(q, k)])"),
    "a layer run twice": ("for block in self.blocks:", "for block in [*self.blocks, self.blocks[0]]:"),
    "dropout": ("return x + self.down(hidden)", "return x + self.down(F.dropout(hidden, 0.1))"),
    "a checkpoint": ("x = block(x)", "x = checkpoint(block, x, use_reentrant=False)"),
}

REFACTORINGS = {
    "a renamed local": ("weights", "probabilities"),
    "an inlined local": ("hidden = F.gelu(self.up(x))\n        return x + self.down(hidden)",
                         "return x + self.down(F.gelu(self.up(x)))"),
    "a function for an operator": ("weights @ v", "torch.matmul(weights, v)"),
    "a sum in two lines": ("x = x + self.out(weights @ v)",
                           "attended = self.out(weights @ v)\n        x = x + attended"),
}  # fmt: skip

Compare = Callable[..., Difference]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """The difference of two texts of a model in forward and backward pass, or in another phase."""

    def of(base: str, head: str, **changes: object) -> Difference:
        sides = []
        for name, text in (("base", base), ("head", head)):
            file = tmp_path / name / "own.py"
            file.parent.mkdir()
            file.write_text(text)
            changes = {"phase": "forward_backward", "attention": "own", **changes}
            case = language_model_case(replace(TOY, d_model=16), **changes)
            sides.append(fake_round(replace(case, model=f"{file}:build"), file.parent))
        return difference(sides[0], sides[1], Lines(tmp_path / "base", tmp_path / "head"))

    return of


def line_of(text: str, code: str) -> int:
    return text[: text.index(code)].count("\n") + 1


@pytest.mark.parametrize("name", SLOWDOWNS)
def test_the_first_row_names_the_line_of_a_slowdown(compare: Compare, name: str) -> None:
    old, new = SLOWDOWNS[name]
    assert MODEL.count(old) == 1
    head = MODEL.replace(old, new)
    found = compare(MODEL, head)
    first = found.rows[0]
    assert (first.file, first.line) == ("own.py", line_of(head, new.strip()))
    assert found.head.launches + found.head.reads > found.base.launches + found.base.reads
    assert first.codes.most_common(1)[0][0] in head


@pytest.mark.parametrize("name", REFACTORINGS)
def test_a_refactoring_that_issues_the_same_operations_has_no_row(compare: Compare, name: str) -> None:
    old, new = REFACTORINGS[name]
    assert old in MODEL
    found = compare(MODEL, MODEL.replace(old, new))
    assert found.rows == ()
    (sentence,) = difference_lines(found)
    assert sentence.startswith(f"base and head issue the same {found.operations[0]} operations; peak ")


def test_rows_add_up_to_the_difference_of_the_totals(compare: Compare) -> None:
    head = MODEL
    for old, new in (SLOWDOWNS["a bias"], SLOWDOWNS["dropout"], SLOWDOWNS["a copy of the keys"]):
        head = head.replace(old, new)
    found = compare(MODEL, head)
    for name in ("launches", "bytes", "flops", "saved_bytes", "reads"):
        added = sum(getattr(row.amounts, name) for row in found.rows)
        assert added == getattr(found.head, name) - getattr(found.base, name)
    data = differences.difference_json(found)
    assert [row["line"] for row in data["rows"]] == [row.line for row in found.rows]
    assert data["head"]["peak_bytes"] == found.peaks[1]


def test_layers_share_a_row_which_counts_forward_and_backward(compare: Compare) -> None:
    head = MODEL.replace(*SLOWDOWNS["a cast in the line before"])
    (row,) = compare(MODEL, head).rows
    assert row.operations == {"to_copy": 3 * 4}
    of_x = 4 * 2 * TOY.context_length * 16  # bytes of the residual stream
    assert row.amounts.bytes == 3 * 4 * 3 * of_x
    assert row.base is None


def test_what_was_made_faster_stands_below_what_was_made_slower_and_names_bases_line(compare: Compare) -> None:
    base = MODEL.replace(*SLOWDOWNS["a one-hot product"])
    found = compare(base, MODEL.replace(*SLOWDOWNS["a value read back"]))
    is_more = [row.amounts.bytes > 0 for row in found.rows]
    assert is_more == sorted(is_more, reverse=True)
    removed = next(row for row in found.rows if row.kind == differences.REMOVED)
    assert removed.line == line_of(base, "x = F.one_hot")
    assert f"own.py:{removed.line} at base" in "\n".join(difference_lines(found))


def test_at_most_twelve_rows_are_shown_and_the_rest_is_summed(compare: Compare) -> None:
    more = "".join(f"        x = x + {number}\n" for number in range(MOST_ROWS + 2))
    found = compare(MODEL, MODEL.replace("        hidden = F", f"{more}        hidden = F"), phase="inference")
    assert len(found.rows) == MOST_ROWS + 2
    lines = difference_lines(found)
    assert sum(line.startswith("own.py:") for line in lines) == MOST_ROWS
    assert "and 2 rows more: +6 launches, " in "\n".join(lines)
    assert max(map(len, lines)) <= 180


def test_what_a_dtype_changes_downstream_is_answered_for_by_the_line_that_changed_it(compare: Compare) -> None:
    head = MODEL.replace("        mask =", "        scores = scores.double()\n        mask =")
    head = head.replace("weights @ v", "weights.float() @ v")
    head = head.replace("        weights =", "        near = -v\n        weights =")
    rows = {(row.kind, row.line): row.operations for row in compare(MODEL, head, phase="inference").rows}
    cast, back, near = (line_of(head, text) for text in ("scores.double()", "weights.float()", "-v"))
    assert rows.keys() == {(CHANGED, cast), (ADDED, cast), (ADDED, near), (ADDED, back)}
    assert rows[CHANGED, cast] == {"masked_fill": 3, "softmax": 3}


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_a_common_subsequence_is_common_and_longest(base: list[int], head: list[int]) -> None:
    pairs = differences.common_subsequence(base, head)
    assert pairs == sorted(set(pairs))
    assert all(base[one] == head[other] for one, other in pairs)
    lengths = [[0] * (len(head) + 1) for _ in range(len(base) + 1)]
    for i, one in enumerate(base):
        for j, other in enumerate(head):
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if one == other else max(lengths[i][j + 1], lengths[i + 1][j])
    assert len(pairs) == lengths[-1][-1]


def test_alignment_keeps_each_operation_once_and_in_order() -> None:
    case = language_model_case(phase="full_step", optimizer="loop")
    base, head = (fake_round(one).operations for one in (case, replace(case, attention="sdpa")))
    pairs = differences.aligned(base, head)
    for side, operations in enumerate((base, head)):
        assert [pair[side] for pair in pairs if pair[side] is not None] == list(range(len(operations)))
    assert differences.aligned(base, base) == [(number, number) for number in range(len(base))]


def test_the_range_of_a_change_is_a_point_without_one_and_holds_the_prediction_of_one() -> None:
    case = language_model_case(phase="forward")
    cases = (case, replace(case, attention="sdpa"))
    base, head = (differences.parts_of_program(fake_round(one).operations) for one in cases)
    same = differences.predicted_change(base, base, CEILINGS)
    assert (same.low, same.high) == (1.0, 1.0)
    change = differences.predicted_change(base, head, CEILINGS)
    assert change.low < change.head_seconds / change.base_seconds < change.high < 1.0


STEP = language_model_case(phase="full_step", optimizer="foreach", device="cuda")
KINDS = [
    ({"precision": "bf16"}, differences.OF_PRECISION), ({"attention": "sdpa"}, differences.OF_ATTENTION),
    ({"checkpoint": "block"}, differences.OF_CHECKPOINTS), ({"checkpoint": "attention"}, differences.OF_CHECKPOINTS),
    ({"attention": "sdpa", "precision": "bf16"}, None), ({"attention": "sdpa", "checkpoint": "block"}, None),
    ({"precision": "bf16", "checkpoint": "block"}, None),
    ({"checkpoint": "block", "optimizer": "fused"}, None), ({"optimizer": "loop"}, None), ({"batch_size": 3}, None),
]  # fmt: skip
"""What is changed of a step, and the published kind that this alone is of."""


@pytest.mark.parametrize("changed, kind", KINDS)
def test_a_change_is_said_to_be_covered_by_published_ones_of_its_kind_alone(
    changed: dict[str, Any], kind: str | None
) -> None:
    ceilings = replace(CEILINGS, matmul_flops_per_second={"fp32": 1e11, "tf32": 1e11, "bf16": 2e11})
    sides = [differences.parts_of_program(fake_round(one).operations) for one in (STEP, replace(STEP, **changed))]
    for base, head in (sides, sides[::-1]):
        change = differences.predicted_change(base, head, ceilings)
        assert change.kind == kind
        said = differences.change_line(change).partition("(")[2]
        counts = "{} of {}".format(*differences.CHANGES_IN_RANGE[kind]) if kind else "no published pair shows"
        assert said.startswith(counts)
        assert kind is None or f"published changes of {kind} " in said
    same = differences.predicted_change(sides[0], sides[0], ceilings)
    assert re.fullmatch(r"predicted [\d.]+ .?s on both sides", differences.change_line(same))


SIDES: list[tuple[Case, Case]] = [
    (STEP, replace(STEP, checkpoint="block")), (language_model_case(phase="backward"),) * 2,
    (attention_case(phase="attention_backward"),) * 2, (attention_case(device="cuda"),) * 2,
]  # fmt: skip


@pytest.mark.parametrize("sides", SIDES)
def test_both_sides_are_predicted_as_the_case_alone_is(sides: tuple[Case, Case]) -> None:
    """What a checkpoint runs again is no launch like the others of a backward pass, here half as long."""
    ceilings = replace(CEILINGS, launches_overlap=sides[0].device == "cuda", backward_launch_seconds=1e-5)
    base, head = (differences.parts_of_program(fake_round(case).operations) for case in sides)
    alone = [predicted_time(parts_of(case, counters_of(case)), ceilings).seconds for case in sides]
    change = differences.predicted_change(base, head, ceilings)
    assert [change.base_seconds, change.head_seconds] == pytest.approx(alone)


def test_a_compiled_case_differs_in_counters_breaks_and_recompiles_and_not_where_lines_move() -> None:
    stop = GraphBreak("m.py", 7, "x.item()", "it reads a value")
    again = Recompile("a last batch of 3", "m.py", 7, "resume_at_7", "size mismatch")
    base = Compilation(2, (stop,), (again,), host_reads=1, generated_kernels=3, library_calls=1)
    moved = replace(base, breaks=(replace(stop, line=9),), recompiles=(replace(again, line=9, function="resume_at_9"),))
    assert CompiledDifference(base, moved).rows == ()
    assert difference_lines(CompiledDifference(base, moved))[0].startswith("base and head compile alike: 2 graphs")
    more = replace(base, graphs=3, breaks=(stop, replace(stop, line=8)), recompiles=None, generated_kernels=None)
    found = CompiledDifference(base, more)
    assert found.rows == (
        "graphs 2 -> 3", "graph_breaks 1 -> 2", "shape_recompiles 1 -> -", "generated_kernels 3 -> -",
        "added m.py:8 `x.item()`: it reads a value", f"removed {again.sentence}",
    )  # fmt: skip
    nothing = CompiledDifference(base, replace(base, graphs=0, recompiles=None))
    assert "not_compiled 0 -> 1" in nothing.rows
    assert difference_lines(nothing)[1] == f"head: nothing of it was compiled: {stop.sentence}"
    assert difference_json(found)["head"]["lines"] == [stop.sentence, replace(stop, line=8).sentence]
