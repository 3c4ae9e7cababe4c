"""What follows from each row of the phases is what a benchmark of that phase does."""

from dataclasses import replace

from perf_tests.phases import (
    EXAMINED,
    LANGUAGE_MODEL,
    PHASES,
    PHASES_OF_OTHERS,
    family_of,
    has_identity,
    identity_in,
    label_of,
    phase_named,
    phases_of,
    place_of,
)
from tests.support.synthetic import attention_identity, identity

FORWARD_MULTIPLES = {
    "inference": 1, "forward": 1, "backward": 2, "forward_backward": 3, "optimizer": None, "full_step": 3,
    "attention_forward": 1, "attention_backward": 2, "backward_and_optimizer": 2,
    "attention_forward_backward": 3, "collective": None,
}  # fmt: skip
FACTS = {
    "trains": {"optimizer", "full_step"},
    "is_backward": {"backward", "attention_backward"},
    "holds_logits": {"forward_backward", "full_step"},
    "setup_computes": {"backward", "optimizer", "attention_backward"},
    "records_graph": PHASES.keys() - {"inference"},
    "has_backward": PHASES.keys() - {"inference", "forward", "attention_forward", "collective"},
}


def test_facts_of_a_phase_follow_from_its_parts() -> None:
    multiples = {name: phase.forward_multiple for name, phase in {**PHASES, **PHASES_OF_OTHERS}.items()}
    assert multiples == FORWARD_MULTIPLES
    assert {fact: {name for name in PHASES if getattr(PHASES[name], fact)} for fact in FACTS} == FACTS
    assert EXAMINED["full_step"].main_parts == ("forward", "backward", "optimizer")
    assert "zero_grad" not in EXAMINED["full_step"].parts


def test_phases_that_train_are_measured_last_and_a_name_without_a_row_after_them() -> None:
    models = sorted((phase.name for phase in phases_of(LANGUAGE_MODEL)), key=place_of, reverse=True)
    assert models == ["full_step", "optimizer", "forward_backward", "backward", "forward", "inference"]
    assert (label_of("warm restart"), phase_named("warm restart")) == ("warm restart", None)
    assert place_of("warm restart") > max(map(place_of, PHASES))


def test_the_first_step_is_a_full_step_that_is_examined_and_not_timed() -> None:
    first, full = EXAMINED["first_step"], EXAMINED["full_step"]
    assert replace(first, name=full.name, is_timed=True) == full
    assert set(EXAMINED) - set(PHASES) == {"first_step"}
    assert place_of("optimizer") < place_of("first_step") < place_of("full_step")


def test_an_identity_has_the_fields_of_its_family_and_null_for_those_that_older_rows_lack() -> None:
    collective = {"phase": "collective", "collective": "all_gather"}
    for values, size in ((identity(), 30), (attention_identity(), 8), (collective, 8)):
        found = identity_in({**values, "median": 1.0})
        assert (list(found), len(found)) == ([*family_of(values).__dataclass_fields__], size)
        assert found == {**dict.fromkeys(found), **values}
    older = {name: value for name, value in identity().items() if name not in ("model_args", "reduce_dtype")}
    assert [has_identity(values) for values in (older, {"phase": "forward"}, collective)] == [True, False, False]
