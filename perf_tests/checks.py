"""Facts about the output of a benchmark, asserted after timing, so that every benchmark is also a test."""

from torch import Tensor

from model.training import Training
from perf_tests.cases import LanguageModelCase


def check_logits(logits_BTV: Tensor, case: LanguageModelCase) -> None:
    wanted = (case.batch_size, case.context_length, case.config.vocab_size)
    assert tuple(logits_BTV.shape) == wanted, f"logits have the shape {tuple(logits_BTV.shape)}, not {wanted}"
    assert logits_BTV.isfinite().all(), f"{_not_finite(logits_BTV)} of the logits are not finite"


def check_gradients(training: Training) -> None:
    """Every parameter has a gradient; without a loss scale, which may overflow and then skip, a finite one."""
    for name, parameter in training.model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        if not training.precision.scales_loss:
            assert parameter.grad.isfinite().all(), f"{_not_finite(parameter.grad)} gradients of {name} are not finite"


def check_update(training: Training) -> None:
    """AdamW has state for every parameter, and none of the parameters was lost to overflow."""
    for name, parameter in training.model.named_parameters():
        assert training.optimizer.state.get(parameter), f"{name} has no optimizer state"
        assert parameter.isfinite().all(), f"{_not_finite(parameter)} weights of {name} are not finite"


def check_attention_output(output_BTK: Tensor, v_BTK: Tensor) -> None:
    """The shape is kept; the first token sees only itself, so its output is its value."""
    assert output_BTK.shape == v_BTK.shape, f"the output has the shape {tuple(output_BTK.shape)}, not {v_BTK.shape}"
    assert output_BTK.isfinite().all(), f"{_not_finite(output_BTK)} of the outputs are not finite"
    first, wanted = output_BTK[:, 0], v_BTK[:, 0].to(output_BTK.dtype)
    assert first.allclose(wanted), "the first token attends to later ones"


def check_attention_gradients(*leaves: Tensor) -> None:
    for name, leaf in zip(("query", "key", "value"), leaves, strict=True):
        assert leaf.grad is not None, f"{name} has no gradient"
        assert leaf.grad.isfinite().all(), f"{_not_finite(leaf.grad)} gradients of {name} are not finite"


def _not_finite(values: Tensor) -> str:
    return f"{int((~values.isfinite()).sum())} of {values.numel()}"
