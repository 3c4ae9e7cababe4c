"""Sizes, vocabularies and batches as they are typed, and the cases that follow."""

from dataclasses import replace

import pytest

from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.options import sizes
from perf_tests.cases.selected import chosen_phases, is_inside
from tests.support.example_cases import SETTINGS


@pytest.mark.parametrize(
    "typed, chosen",
    [
        ("192x768x3x4,small,tiny", ("tiny", "small", "192x768x3x4")),
        ("b=192x768x3x4,a.1=64x64x1x2", ("a.1=64x64x1x2", "b=192x768x3x4")),
        ("mine=768x3072x12x12", ("small",)),
        ("128x512x2x4", ("tiny",)),
    ],
)
def test_a_shape_is_a_size_and_a_known_one_takes_its_name(typed: str, chosen: tuple[str, ...]) -> None:
    assert sizes("--size", typed) == chosen


def cases(**changes: object) -> dict[str, LanguageModelCase]:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    grid = LanguageModelCase.grid(settings)
    axes = [dict(zip(LanguageModelCase.axes, values, strict=True)) for values in grid]
    return {
        LanguageModelCase.id_of(*values): LanguageModelCase.of("forward", one, settings)
        for values, one in zip(grid, axes, strict=True)
    }


def test_a_named_shape_stands_in_id_and_identity_by_its_name() -> None:
    ((case_id, case),) = cases(sizes=("wide=192x768x3x4",), vocab_size=500).items()
    assert case_id == "wide-ctx8-fp32-naive"
    identity = case.identity()
    assert (identity["size"], identity["d_model"], identity["num_heads"], identity["vocab_size"]) == (
        "wide",
        192,
        4,
        500,
    )
    assert is_inside(identity, replace(SETTINGS, sizes=("wide=192x768x3x4",)))
    assert not is_inside(identity, SETTINGS)


def test_one_batch_adds_nothing_to_an_id_and_of_several_only_batch_4() -> None:
    assert {case_id: case.batch_size for case_id, case in cases(batch_sizes=(8,)).items()} == {
        "tiny-ctx8-fp32-naive": 8
    }
    assert {case_id: case.batch_size for case_id, case in cases(batch_sizes=(2, 4, 8)).items()} == {
        "tiny-ctx8-fp32-naive-batch2": 2,
        "tiny-ctx8-fp32-naive": 4,
        "tiny-ctx8-fp32-naive-batch8": 8,
    }


def test_attention_alone_runs_only_where_its_grid_is_not_empty() -> None:
    assert chosen_phases(SETTINGS) == {"forward", "backward"}
    assert "attention_forward" in chosen_phases(replace(SETTINGS, head_dims=(16,)))
