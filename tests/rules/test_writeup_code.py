"""Figures of the write-up that code computes: played steps, exercises, closed forms, counters."""

from pathlib import Path

import pytest

from model.sizes import SIZES, ModelConfig
from numerics_tests.harness import exercises
from perf_tests.predict.counters import counters_of
from perf_tests.report.cs336_parts.attention import squares_saved
from perf_tests.report.cs336_parts.exercises import EXERCISES
from perf_tests.report.cs336_parts.sources import ROOT, Shape, Sources
from perf_tests.report.cs336_parts.tensors import crossover
from perf_tests.report.cs336_parts.warmup import one_slow_round
from tests.support.example_cases import language_model_case
from tests.support.writeup_sources import PLAYED, QUESTIONS, entry, here


def test_what_is_played_stands_beside_what_is_published(writeup_root: Path) -> None:
    peak = here(Sources(writeup_root, PLAYED), "What is the peak of a training step")
    assert peak["2.7B", "128", "fp32"]["here: predicted for write-up 003 (GB)"] == "60.2"
    assert (
        entry(Sources(writeup_root, PLAYED), "What is the peak of a training step").answer.published[0].text == "60.0"
    )
    assert here(Sources(writeup_root, PLAYED), "the first step")["medium", "128", "fp32"] == {
        "here: batch 2, first (GB)": "7.0", "here: batch 2, later (GB)": "8.0",
    }  # fmt: skip
    line = here(Sources(writeup_root, PLAYED), "Which line of code")
    assert line["2.7B", "128", "model/transformer.py:100"] == {"here: one (MiB)": "1.000", "here: made": "3"}
    assert here(Sources(writeup_root, PLAYED), "norm give in half")["about 1000",] == {
        "here: low": "all zero",
        "here: high": "within",
    }


def test_the_exercises_are_the_numerics_suites() -> None:
    """Their tables hold what numerics_tests asserts."""
    tables = exercises.tables()
    totals = {row[0]: row[1] for row in tables["accumulation"][1:]}
    assert totals == {name: f"{total:.10g}" for name, (_, _, total) in exercises.LOOPS.items()}
    named = {question.command.rpartition("/")[2] for question in QUESTIONS if "numerics_tests" in question.command}
    assert all((ROOT / "numerics_tests" / name).exists() for name in named)
    labels = {name: label for name, _, _, label, _ in EXERCISES}
    assert labels == {name: rows[0][0] for name, rows in tables.items()}


def test_one_slow_round_explains_a_deviation() -> None:
    """Nine rounds of 22.7 ms and one of 137 ms have mean and deviation of 34.2 ± 34.4."""
    usual, slow = one_slow_round(34.2, 34.4, 10)
    assert usual == pytest.approx(22.7, abs=0.1)
    assert slow == pytest.approx(137, abs=1)


def shape_of(config: ModelConfig) -> Shape:
    return Shape(config.d_model, config.d_ff, config.num_layers, config.num_heads)


def test_the_shapes_are_those_of_the_sizes() -> None:
    for name, shape in Sources(ROOT).shapes.items():
        assert shape == shape_of(SIZES[name])


@pytest.mark.parametrize("context, is_attention", [(8, False), (24, True)])
def test_the_largest_tensor_changes_where_the_closed_form_says(context: int, is_attention: bool) -> None:
    """A shape whose scores and feed-forward tensors are equal at a context of 16, and both larger than the logits."""
    config = ModelConfig(d_model=16, d_ff=64, num_layers=1, num_heads=4, vocab_size=8, context_length=context)
    assert crossover(shape_of(config)) == 16
    largest = counters_of(language_model_case(config)).largest_allocations[0]
    assert largest.bytes == 2 * 4 * (config.num_heads * context**2 if is_attention else context * config.d_ff)
    assert ("attention" in largest.place) == is_attention


@pytest.mark.parametrize("attention, squares", [("naive", 2 + 1 / 32), ("sdpa", 0)])
def test_the_matrices_that_attention_saves_are_the_ledgers(attention: str, squares: float) -> None:
    assert squares_saved(Sources(ROOT), attention)[0] == pytest.approx(squares, abs=0.001)
