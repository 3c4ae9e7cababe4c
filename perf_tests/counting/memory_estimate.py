"""A lower bound of the bytes that a case needs, in closed form, so that cases that cannot fit are not tried.

It counts only what certainly exists: weights, gradients, optimizer state and the tensors that autograd saves, at the
moment with most of them. Temporaries come on top; running out of memory because of them is caught.
"""

from model.precision import PRECISIONS
from model.transformer import blocks_per_checkpoint
from perf_tests.cases import Case, LanguageModelCase

FLOAT32_BYTES = 4
ADAMW_STATE_BYTES_PER_PARAMETER = 8

# T x T matrices that autograd saves: naive saves the exponentials and the probabilities.
SAVED_SQUARES = {"naive": 2, "compiled": 0, "sdpa": 0, "flex": 0, "own": 0}


def needed_bytes(case: Case) -> int:
    """Least peak memory of one round of `case`, including everything resident."""
    if isinstance(case, LanguageModelCase):
        return _language_model_bytes(case)
    tensor = case.batch_size * case.sequence_length * case.head_dim * FLOAT32_BYTES
    square = case.batch_size * case.sequence_length**2 * _element_bytes(case.precision)
    # Query, key, value and output; backward, the gradients of all four.
    tensors = 8 if case.row.has_backward else 4
    return tensors * tensor + SAVED_SQUARES[case.attention] * square


def _language_model_bytes(case: LanguageModelCase) -> int:
    weights = FLOAT32_BYTES * case.config.parameters
    gradients = weights
    state = ADAMW_STATE_BYTES_PER_PARAMETER * case.config.parameters if case.row.trains else 0
    logits = case.tokens * case.config.vocab_size * FLOAT32_BYTES
    if not case.row.records_graph:
        return weights + logits
    forward_done = weights + state + saved_bytes(case) + logits
    if not case.row.has_backward:
        return forward_done
    return max(forward_done, weights + state + _recomputing_bytes(case), weights + state + gradients)


def saved_bytes(case: LanguageModelCase) -> int:
    """What a forward pass saves for the backward pass, without weights.

    For the suite's eager model these are the tensors of `model/transformer.py`, line by line, without those of one
    number per row. Of a compiled model only the inputs of its products are certain, of a user's model nothing.
    """
    if case.model != "ours":
        return 0
    groups = _checkpointed_groups(case)
    blocks = groups * _width_bytes(case) if groups else case.config.num_layers * _block_bytes(case)
    return blocks + _head_bytes(case)


def _recomputing_bytes(case: LanguageModelCase) -> int:
    """The inputs of all checkpointed groups, and the inside of the last, which is recomputed first."""
    groups = _checkpointed_groups(case)
    if not groups or case.model != "ours":
        return 0
    blocks = min(blocks_per_checkpoint(case.checkpoint), case.config.num_layers)
    last_group = case.config.num_layers - (groups - 1) * blocks
    return (groups - 1) * _width_bytes(case) + last_group * _block_bytes(case)


def _checkpointed_groups(case: LanguageModelCase) -> int:
    group = blocks_per_checkpoint(case.checkpoint)
    return -(-case.config.num_layers // group) if group else 0


def _width_bytes(case: LanguageModelCase) -> int:
    """One residual, in float32 under every precision."""
    return case.tokens * case.config.d_model * FLOAT32_BYTES


def _block_bytes(case: LanguageModelCase) -> int:
    width, feed_forward = case.tokens * case.config.d_model, case.tokens * case.config.d_ff
    if case.execution != "eager":
        return (3 * width + feed_forward) * _element_bytes(case.precision)
    # The two norms save their input and the normalised rows. A checkpoint saves the output of the first.
    norms = 4 * _width_bytes(case)
    attention = _width_bytes(case) if case.checkpoint == "attention" else _attention_part_bytes(case)
    return norms + attention + _feed_forward_part_bytes(case)


def _attention_part_bytes(case: LanguageModelCase) -> int:
    config, element_bytes = case.config, _element_bytes(case.precision)
    # Query, key, value and the output, which the CPU's fused kernel leaves in a layout that must be copied.
    widths = 5 if case.attention == "sdpa" and case.device == "cpu" else 4
    squares = SAVED_SQUARES[case.attention] * case.tokens * config.num_heads * case.context_length
    inputs_and_weights = _product_bytes(case, products=3, matrices=4 * config.d_model**2)
    return inputs_and_weights + (widths * case.tokens * config.d_model + squares) * element_bytes


def _feed_forward_part_bytes(case: LanguageModelCase) -> int:
    config = case.config
    # Gate, its sigmoid, their product, up, and the product of both.
    gated = 5 * case.tokens * config.d_ff * _element_bytes(case.precision)
    return gated + _product_bytes(case, products=2, matrices=3 * config.d_model * config.d_ff)


def _head_bytes(case: LanguageModelCase) -> int:
    """The last norm's input and normalised rows, and the logits' product."""
    if case.execution != "eager":
        return 0
    return 2 * _width_bytes(case) + _product_bytes(case, 1, case.config.d_model * case.config.vocab_size)


def _product_bytes(case: LanguageModelCase, products: int, matrices: int) -> int:
    """The normed rows that `products` share; under autocast, a copy of them for each product and of the weights."""
    element_bytes = _element_bytes(case.precision)
    if element_bytes == FLOAT32_BYTES:
        return _width_bytes(case)
    return (products * case.tokens * case.config.d_model + matrices) * element_bytes


def _element_bytes(precision: str) -> int:
    dtype = PRECISIONS[precision].autocast_dtype
    return FLOAT32_BYTES if dtype is None else dtype.itemsize
