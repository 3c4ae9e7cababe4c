"""What is read from the source of `model/`, and the rules of words that are written again, are those of the model."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perf_tests_suite.model import compilation, training, transformer
from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.cases import model_names


def test_names_read_from_the_source_are_those_of_the_model() -> None:
    assert [*model_names.precision_names()] == [*PRECISIONS]
    for name, precision in PRECISIONS.items():
        known = model_names.precision_names()[name]
        autocast = precision.autocast_dtype and str(precision.autocast_dtype).removeprefix("torch.")
        assert (known.autocast, f"torch.{known.tensors}") == (autocast, str(precision.tensor_dtype))
        assert (known.is_tf32, known.scales_loss) == (
            precision.float32_matmul_precision != "highest", precision.scales_loss
        )  # fmt: skip
    assert model_names.attention_names() == {name: one.is_compiled for name, one in ATTENTION.items()}
    assert model_names.words("training.py", "OPTIMIZERS") == training.OPTIMIZERS
    assert model_names.words("compilation.py", "CUDA_GRAPH_MODES") == compilation.CUDA_GRAPH_MODES


def test_a_table_may_be_annotated_and_name_what_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = '"a": Attention("", f, f), "b": Attention("", f, f, True), "c": Attention("", f, f, is_compiled=True)'
    (tmp_path / "attention.py").write_text(f"ATTENTION: dict[str, Attention] = {{{rows}}}\n")
    monkeypatch.setattr(model_names, "MODEL", tmp_path)
    read = model_names.attention_names.__wrapped__
    model_names._assigned.cache_clear()
    assert read() == {"a": False, "b": True, "c": True}
    model_names._assigned.cache_clear()


def outcome(rule: Callable[..., Any], *given: Any) -> Any:
    """What it returns, or its sentence."""
    try:
        return rule(*given)
    except ValueError as error:
        return str(error)


def test_rules_of_words_are_those_of_the_model() -> None:
    for text in ("none", "attention", "block", "1", "12", "0", "-1", "half", ""):
        ours, theirs = model_names.blocks_per_checkpoint, transformer.blocks_per_checkpoint
        assert outcome(ours, text) == outcome(theirs, text), text
    for name in training.OPTIMIZERS:
        for device in ("cpu", "cuda"):
            wanted = training.optimizer_that_runs(name, SimpleNamespace(type=device))  # type: ignore[arg-type]
            assert model_names.optimizer_that_runs(name, device) == wanted
