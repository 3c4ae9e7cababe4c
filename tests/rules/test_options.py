"""Values as they are typed, the cases that follow from them, and what is no value of an option."""

from dataclasses import replace

import pytest

from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.options import attentions, byte_count, entries, minutes, share, sizes, whole_number
from perf_tests.cases.selected import chosen_phases, is_inside
from tests.support.example_cases import SETTINGS, attention_case


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


def test_amounts_of_memory_are_decimal_or_binary_as_they_are_written() -> None:
    typed = {"8B": 8, "1KB": 1000, "1KiB": 1024, "1.5MB": 1_500_000, "2 MiB": 2**21, "12GiB": 12 * 2**30, "1GB": 10**9}
    assert {text: byte_count("--memory-budget", text) for text in typed} == typed


def test_numbers_minutes_and_shares() -> None:
    assert (whole_number("--seed", "7"), entries("--context", "8, 16")) == (7, ["8", "16"])
    assert [minutes("--time-limit", text) for text in ("3", "0.01")] == [3.0, 0.01]
    assert [share("--shard", text) for text in ("1/1", "2/3", " 3/3 ")] == [(1, 1), (2, 3), (3, 3)]


REFUSED = [
    (sizes, "smal", "'smal' is unknown"),
    (sizes, "192x768x3x5", "is no shape of a model"),
    (sizes, "tiny=192x768x3x4", "the name of a known size"),
    (sizes, "a=192x768x3x4,a=64x64x1x1", "names two shapes 'a'"),
    (byte_count, "12", "is not an amount of memory; write, for example, 12GiB or 800MB"),
    (byte_count, "0GiB", "is less than a byte"),
    (byte_count, "0.5B", "is less than a byte"),
    (byte_count, "99999999999GiB", "is more than any machine has"),
    (whole_number, "0", "--option is 0; it must be at least 1"),
    (whole_number, "-8", "--option is -8; it must be at least 1"),
    (whole_number, "lots", "'lots' is not a whole number"),
    (whole_number, "9" * 20, "is too large"),
    (entries, "8,,16", "has an empty entry"),
    *((minutes, text, "is not a positive number of minutes") for text in ("0", "-1", "nan", "inf", "soon")),
    *((share, text, "write K/N with K from 1 to N") for text in ("0/2", "3/2", "a/b", "1", f"1/{'9' * 5000}")),
    (attentions, "nave", "choose from naive, compiled, sdpa, flex, all, FILE.py:FUNCTION or MODULE:FUNCTION"),
]


@pytest.mark.parametrize("read, text, words", REFUSED, ids=[f"{read.__name__} {text[:9]}" for read, text, _ in REFUSED])
def test_what_is_no_value_is_refused_with_what_was_typed(read: object, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        read("--option", text)  # type: ignore[operator]
    assert str(refusal.value).startswith("--option ")


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
    assert [identity[name] for name in ("size", "d_model", "num_heads", "vocab_size")] == ["wide", 192, 4, 500]
    assert is_inside(identity, replace(SETTINGS, sizes=("wide=192x768x3x4",)))
    assert not is_inside(identity, SETTINGS)


def test_one_batch_adds_nothing_to_an_id_and_of_several_only_batch_4() -> None:
    base = "tiny-ctx8-fp32-naive"
    for typed in ((8,), (2, 4, 8)):
        found = {case_id: case.batch_size for case_id, case in cases(batch_sizes=typed).items()}
        assert found == ({base: 8} if len(typed) == 1 else {f"{base}-batch2": 2, base: 4, f"{base}-batch8": 8})


def test_attention_compiled_by_itself_is_left_out_of_a_compiled_model() -> None:
    grid = cases(attentions=("naive", "compiled"), executions=("eager", "compiled"))
    ways = {(case.attention, case.execution) for case in grid.values()}
    assert ways == {("naive", "eager"), ("naive", "compiled"), ("compiled", "eager")}


def test_attention_alone_runs_only_where_its_grid_is_not_empty_and_for_rounds_of_its_own() -> None:
    assert chosen_phases(SETTINGS) == {"forward", "backward"}
    assert "attention_forward" in chosen_phases(replace(SETTINGS, head_dims=(16,)))
    assert attention_case().rounds(replace(SETTINGS, rounds=5, attention_alone_rounds=7)) == 7
    assert AttentionCase.id_of(64, 256, "fp32", "naive") == "d64-seq256-fp32-naive"
