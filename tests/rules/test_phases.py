"""What follows from each row of the phases is what a benchmark of that phase does."""

from dataclasses import replace

from perf_tests_suite.perf_tests import phases
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
    "records_graph": phases.PHASES.keys() - {"inference"},
    "has_backward": phases.PHASES.keys() - {"inference", "forward", "attention_forward", "collective"},
}


def test_facts_of_a_phase_follow_from_its_parts() -> None:
    multiples = {name: phase.forward_multiple for name, phase in {**phases.PHASES, **phases.PHASES_OF_OTHERS}.items()}
    assert multiples == FORWARD_MULTIPLES
    assert {fact: {name for name in phases.PHASES if getattr(phases.PHASES[name], fact)} for fact in FACTS} == FACTS
    assert phases.EXAMINED["full_step"].main_parts == ("forward", "backward", "optimizer")
    assert "zero_grad" not in phases.EXAMINED["full_step"].parts


def test_phases_that_train_are_measured_last_and_a_name_without_a_row_after_them() -> None:
    models = sorted((one.name for one in phases.phases_of(phases.LANGUAGE_MODEL)), key=phases.place_of, reverse=True)
    assert models == ["full_step", "optimizer", "forward_backward", "backward", "forward", "inference"]
    assert (phases.label_of("warm restart"), phases.phase_named("warm restart")) == ("warm restart", None)
    assert phases.place_of("warm restart") > max(map(phases.place_of, phases.PHASES))


def test_the_first_step_is_a_full_step_that_is_examined_and_not_timed() -> None:
    first, full = phases.EXAMINED["first_step"], phases.EXAMINED["full_step"]
    assert replace(first, name=full.name, is_timed=True) == full
    assert set(phases.EXAMINED) - set(phases.PHASES) == {"first_step"}
    assert phases.place_of("optimizer") < phases.place_of("first_step") < phases.place_of("full_step")


def test_an_identity_has_the_fields_of_its_family_and_null_for_those_that_older_rows_lack() -> None:
    collective = {"phase": "collective", "collective": "all_gather"}
    for values, size in ((identity(), 30), (attention_identity(), 8), (collective, 8)):
        found = phases.identity_in({**values, "median": 1.0})
        assert (list(found), len(found)) == ([*phases.family_of(values).__dataclass_fields__], size)
        assert found == {**dict.fromkeys(found), **values}
    older = {name: value for name, value in identity().items() if name not in ("model_args", "reduce_dtype")}
    assert [phases.has_identity(values) for values in (older, {"phase": "forward"}, collective)] == [True, False, False]
