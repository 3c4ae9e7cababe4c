"""Checks of a benchmark's output after timing, so that every benchmark is also a test."""

from torch import Tensor
from torch.optim import AdamW

from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase


def require(fact: object, sentence: str) -> None:
    """Raise AssertionError with the sentence unless the fact holds, under `python -O` too, which drops `assert`."""
    if not fact:
        raise AssertionError(sentence)


def check_forward(output: Tensor, case: LanguageModelCase) -> None:
    """Check the logits, or the loss of a model that computes it."""
    if case.computes_loss:
        check_finite(output, "losses")
        return
    wanted = (case.per_rank_batch_size or case.batch_size, case.context_length, case.config.vocab_size)
    require(tuple(output.shape) == wanted, f"logits have the shape {tuple(output.shape)}, not {wanted}")
    check_finite(output, "logits")


def check_tokens(tokens_BT: Tensor, targets_BT: Tensor) -> None:
    """The rounds left the tokens as they were drawn: each is still the target of the one before it."""
    is_kept = tokens_BT[:, 1:].equal(targets_BT[:, :-1])
    require(is_kept, "the tokens were changed in place; change a copy, because every round uses them again")


def check_gradients(training: Training) -> None:
    """Check that each trainable parameter has a gradient, finite unless the loss is scaled, which may overflow."""
    for name, parameter in training.model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            raise AssertionError(f"{name} has no gradient")
        if not training.precision.scales_loss:
            check_finite(parameter.grad, f"gradients of {name}")


def check_update(training: Training) -> None:
    """Check that parameters are finite, and AdamW has state for each trainable one; others may need none."""
    for name, parameter in training.model.named_parameters():
        needs_state = parameter.requires_grad and isinstance(training.optimizer, AdamW)
        require(training.optimizer.state.get(parameter) or not needs_state, f"{name} has no optimizer state")
        check_finite(parameter, f"weights of {name}")


def check_attention_output(output_BTK: Tensor, v_BTK: Tensor) -> None:
    """Check the shape, and that the first token, which sees only itself, has its value as output."""
    require(output_BTK.shape == v_BTK.shape, f"the output has the shape {tuple(output_BTK.shape)}, not {v_BTK.shape}")
    check_finite(output_BTK, "outputs")
    first, wanted = output_BTK[:, 0], v_BTK[:, 0].to(output_BTK.dtype)
    require(first.allclose(wanted), "the first token attends to later ones")


def check_attention_gradients(*leaves: Tensor) -> None:
    for name, leaf in zip(("query", "key", "value"), leaves, strict=True):
        if leaf.grad is None:
            raise AssertionError(f"{name} has no gradient")
        check_finite(leaf.grad, f"gradients of {name}")


def check_finite(values: Tensor, what: str) -> None:
    is_finite = values.isfinite()
    require(is_finite.all(), f"{int((~is_finite).sum())} of {values.numel()} {what} are not finite")
