"""Checks of a benchmark's output after timing, so that every benchmark is also a test."""

from torch import Tensor
from torch.optim import AdamW

from model.training import Training
from perf_tests.cases.language_model import LanguageModelCase


def check_logits(logits_BTV: Tensor, case: LanguageModelCase) -> None:
    wanted = (case.per_rank_batch_size or case.batch_size, case.context_length, case.config.vocab_size)
    assert tuple(logits_BTV.shape) == wanted, f"logits have the shape {tuple(logits_BTV.shape)}, not {wanted}"
    _check_finite(logits_BTV, "logits")


def check_tokens(tokens_BT: Tensor, targets_BT: Tensor) -> None:
    """The rounds left the tokens as they were drawn: each is still the target of the one before it."""
    is_kept = tokens_BT[:, 1:].equal(targets_BT[:, :-1])
    assert is_kept, "the tokens were changed in place; change a copy, because every round uses them again"


def check_gradients(training: Training) -> None:
    """Every trainable parameter has a gradient, finite unless the loss is scaled: a scaled one may overflow."""
    for name, parameter in training.model.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, f"{name} has no gradient"
        if not training.precision.scales_loss:
            _check_finite(parameter.grad, f"gradients of {name}")


def check_update(training: Training) -> None:
    """All parameters are finite, and AdamW has state for each trainable one; another optimizer may need none."""
    for name, parameter in training.model.named_parameters():
        needs_state = parameter.requires_grad and isinstance(training.optimizer, AdamW)
        assert training.optimizer.state.get(parameter) or not needs_state, f"{name} has no optimizer state"
        _check_finite(parameter, f"weights of {name}")


def check_attention_output(output_BTK: Tensor, v_BTK: Tensor) -> None:
    """The shape is kept, and the first token, which sees only itself, has its value as output."""
    assert output_BTK.shape == v_BTK.shape, f"the output has the shape {tuple(output_BTK.shape)}, not {v_BTK.shape}"
    _check_finite(output_BTK, "outputs")
    first, wanted = output_BTK[:, 0], v_BTK[:, 0].to(output_BTK.dtype)
    assert first.allclose(wanted), "the first token attends to later ones"


def check_attention_gradients(*leaves: Tensor) -> None:
    for name, leaf in zip(("query", "key", "value"), leaves, strict=True):
        assert leaf.grad is not None, f"{name} has no gradient"
        _check_finite(leaf.grad, f"gradients of {name}")


def _check_finite(values: Tensor, what: str) -> None:
    is_finite = values.isfinite()
    assert is_finite.all(), f"{int((~is_finite).sum())} of {values.numel()} {what} are not finite"
