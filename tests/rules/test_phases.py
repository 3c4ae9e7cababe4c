"""What follows from each row of the phases is what a benchmark of that phase does."""

from dataclasses import replace

import pytest

from perf_tests.phases import (
    EXAMINED,
    LANGUAGE_MODEL,
    PHASES,
    PHASES_OF_OTHERS,
    label_of,
    phase_named,
    phases_of,
    place_of,
)

FORWARD_MULTIPLES = {
    "inference": 1, "forward": 1, "backward": 2, "forward_backward": 3, "optimizer": None, "full_step": 3,
    "attention_forward": 1, "attention_backward": 2, "backward_and_optimizer": 2,
    "attention_forward_backward": 3, "collective": None,
}  # fmt: skip


def test_arithmetic_is_counted_in_forward_passes() -> None:
    assert {name: phase.forward_multiple for name, phase in {**PHASES, **PHASES_OF_OTHERS}.items()} == FORWARD_MULTIPLES


@pytest.mark.parametrize(
    "fact, expected",
    [
        ("trains", {"optimizer", "full_step"}),
        ("is_backward", {"backward", "attention_backward"}),
        ("holds_logits", {"forward_backward", "full_step"}),
        ("setup_computes", {"backward", "optimizer", "attention_backward"}),
        ("records_graph", PHASES.keys() - {"inference"}),
        ("has_backward", PHASES.keys() - {"inference", "forward", "attention_forward", "collective"}),
    ],
)
def test_facts_of_a_phase(fact: str, expected: set[str]) -> None:
    assert {name for name, phase in PHASES.items() if getattr(phase, fact)} == expected


def test_the_first_step_is_a_full_step_that_is_examined_and_not_timed() -> None:
    first, full = EXAMINED["first_step"], EXAMINED["full_step"]
    assert replace(first, name=full.name, is_timed=True) == full
    assert set(EXAMINED) - set(PHASES) == {"first_step"}
    assert place_of("optimizer") < place_of("first_step") < place_of("full_step")


def test_phases_that_train_are_measured_last() -> None:
    models = sorted((phase.name for phase in phases_of(LANGUAGE_MODEL)), key=place_of, reverse=True)
    assert models == ["full_step", "optimizer", "forward_backward", "backward", "forward", "inference"]


def test_a_name_without_a_row_is_shown_as_it_is_and_last() -> None:
    assert label_of("warm restart") == "warm restart"
    assert phase_named("warm restart") is None
    assert place_of("warm restart") > max(map(place_of, PHASES))
