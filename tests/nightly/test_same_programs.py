"""A wrong SAME would hide a slowdown: 200 edits of behaviour of the model, each alone, are never taken for the same."""

from pathlib import Path

from tests.support.same_programs import decided_on_the_model, mutants_of_the_model

MUTANTS = 200


def test_mutants_of_the_model_are_never_the_same(tmp_path: Path) -> None:
    wrong = [
        (name, text)
        for name, text in mutants_of_the_model(MUTANTS, seed=2)
        if decided_on_the_model(tmp_path, name, text) is None
    ]
    assert wrong == []
