"""Faults in softmax and cross-entropy."""

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import softmax
from model.training import cross_entropy
from numerics_tests.claims import Fault
from numerics_tests.summation import sequential


def unshifted(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def shifted_by_the_first(x: Tensor) -> Tensor:
    powers = (x - x[..., :1]).exp()
    return powers / powers.sum(-1, keepdim=True)


def sum_in_16_bits(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / sequential(powers)[..., None]


def sum_in_bfloat16(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.bfloat16().sum(-1, keepdim=True).to(x.dtype)


def padded_denominator(x: Tensor) -> Tensor:
    """One more than the sum, as in attention with a sink."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / (powers.sum(-1, keepdim=True) + 1)


def _logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.float()
    return wide, wide - wide.amax(-1, keepdim=True)


def _picked(x: Tensor, targets: Tensor) -> Tensor:
    return x.gather(-1, targets[..., None])[..., 0]


def unshifted_loss(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.float()
    return (wide.exp().sum(-1).log() - _picked(wide, targets)).mean()


def log_sum_in_bfloat16(logits: Tensor, targets: Tensor) -> Tensor:
    _, shifted = _logits(logits)
    return (shifted.exp().sum(-1).log().bfloat16().float() - _picked(shifted, targets)).mean()


def log_of_a_probability(logits: Tensor, targets: Tensor) -> Tensor:
    return -_picked(softmax(logits.float()), targets).log().mean()


def loss_in_the_logits_format(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def sum_without_the_target(logits: Tensor, targets: Tensor) -> Tensor:
    _, shifted = _logits(logits)
    others = shifted.exp().sum(-1) - _picked(shifted.exp(), targets)
    return (others.log() - _picked(shifted, targets)).mean()


def sum_over_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets) * targets.numel()


def target_logit_detached(logits: Tensor, targets: Tensor) -> Tensor:
    wide, _ = _logits(logits)
    return wide.logsumexp(-1).mean() - _picked(wide.detach(), targets).mean()


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, label_smoothing=0.1)


def bits_instead_of_nats(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets) / torch.tensor(2.0).log().item()


def mean_over_all_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="sum") / targets.numel()


def gradient_in_ignored_rows(logits: Tensor, targets: Tensor) -> Tensor:
    """The value is right, but ignored rows get a gradient."""
    pull = 1e-3 * (logits.float() - logits.detach().float())
    return F.cross_entropy(logits.float(), targets, ignore_index=-100) + pull.mean()


EQUAL = "loss_of_equal_logits_is_the_log_of_their_number"
FAULTS = (
    Fault("softmax without the shift, order", "softmax_is_within_its_bound", unshifted),
    Fault("softmax with a denominator in bfloat16", "softmax_is_within_its_bound", sum_in_bfloat16),
    Fault("softmax with a sum in 16 bits", "softmax_of_16_bits_is_within_its_bound", sum_in_16_bits),
    Fault("softmax without the shift", "softmax_ignores_a_shift", unshifted),
    Fault("softmax shifted by the first", "softmax_is_finite_and_sums_to_one", shifted_by_the_first),
    Fault("softmax with a padded denominator", "softmax_is_finite_and_sums_to_one", padded_denominator),
    Fault("softmax of the negative", "softmax_keeps_order", lambda x: softmax(-x)),
    Fault("softmax at a quarter of the temperature", "softmax_moves_no_more_than_its_input", lambda x: softmax(4 * x)),
    Fault("loss without the shift", "loss_is_within_its_bound", unshifted_loss),
    Fault("loss with a log-sum in bfloat16", "loss_is_within_its_bound", log_sum_in_bfloat16),
    Fault("loss as the log of a probability", "loss_is_within_its_bound", log_of_a_probability),
    Fault("loss with label smoothing", "loss_is_within_its_bound", smoothed),
    Fault("loss in the logits' format", "loss_is_float32_and_not_negative", loss_in_the_logits_format),
    Fault("loss without the target in its sum", EQUAL, sum_without_the_target),
    Fault("loss in bits", EQUAL, bits_instead_of_nats),
    Fault("loss that overflows on a shift", "loss_ignores_a_shift", unshifted_loss),
    Fault("target logit detached", "loss_gradient_is_probability_less_one_hot", target_logit_detached),
    Fault("sum over tokens for their mean", "loss_moves_at_most_twice_its_logits", sum_over_tokens),
    Fault("mean over ignored tokens too", "ignored_tokens_count_for_nothing", mean_over_all_tokens),
    Fault("gradient in ignored rows", "ignored_tokens_count_for_nothing", gradient_in_ignored_rows),
)
