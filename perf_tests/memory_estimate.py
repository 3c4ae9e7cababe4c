"""How many bytes a case needs at the least, as closed forms, so that what cannot fit is not tried.

Only what certainly exists is counted: weights, gradients, optimizer state and the tensors that autograd keeps. The
largest of these moments is a lower bound of the peak; temporaries come on top, and running into them is caught.
"""

from model.precision import PRECISIONS
from model.transformer import blocks_per_checkpoint
from perf_tests.cases import AttentionCase, Case, LanguageModelCase

FLOAT32_BYTES = 4
ADAMW_STATE_BYTES_PER_PARAMETER = 8

# T x T matrices that autograd keeps: naive keeps the exponentials and the probabilities.
SAVED_SQUARES = {"naive": 2, "compiled": 0, "sdpa": 0, "flex": 0, "own": 0}


def needed_bytes(case: Case) -> int:
    """Least peak memory of one round of `case`, everything that must be resident included."""
    return _attention_bytes(case) if isinstance(case, AttentionCase) else _language_model_bytes(case)


def _attention_bytes(case: AttentionCase) -> int:
    element_bytes = _element_bytes(case.precision)
    tensor = case.batch_size * case.sequence_length * case.head_dim * FLOAT32_BYTES
    square = case.batch_size * case.sequence_length**2 * element_bytes
    # Query, key, value and output; going back, the gradients of all four.
    tensors = 8 if case.has_backward else 4
    return tensors * tensor + SAVED_SQUARES[case.attention] * square


def _language_model_bytes(case: LanguageModelCase) -> int:
    weights = FLOAT32_BYTES * case.config.parameters
    gradients = weights
    state = ADAMW_STATE_BYTES_PER_PARAMETER * case.config.parameters if case.trains else 0
    logits = case.tokens * case.config.vocab_size * FLOAT32_BYTES
    if case.phase == "inference":
        return weights + logits
    forward_done = weights + state + saved_bytes(case) + logits
    backward_done = weights + state + gradients
    return max(forward_done, backward_done) if case.has_backward else forward_done


def saved_bytes(case: LanguageModelCase) -> int:
    """What a forward pass keeps for the backward pass, weights apart.

    For an eager model of ours these are the tensors of `model/transformer.py`, line by line. Of a model compiled
    or not ours only the inputs of its matrix products are certain, and of somebody else's not even those.
    """
    if case.model != "ours":
        return 0
    config, blocks = case.config, case.config.num_layers
    residual = case.tokens * config.d_model * FLOAT32_BYTES
    group = blocks_per_checkpoint(case.checkpoint)
    if group:
        return -(-blocks // group) * residual + min(group, blocks) * _block_bytes(case)
    return blocks * _block_bytes(case)


def _block_bytes(case: LanguageModelCase) -> int:
    config, half = case.config, _element_bytes(case.precision)
    width, feed_forward = case.tokens * config.d_model, case.tokens * config.d_ff
    if case.execution == "compiled":
        return (3 * width + feed_forward) * half
    # The two norms keep their input, the normalised and the weighted rows; the last is cast for the products.
    norms = 6 * width * FLOAT32_BYTES + (2 * width * half if half < FLOAT32_BYTES else 0)
    # Query, key, value and what they attend to.
    attention = 4 * width * half
    squares = SAVED_SQUARES[case.attention] * case.tokens * config.num_heads * case.context_length * half
    # Gate, its sigmoid, their product, up, and the product of both.
    gated = 5 * feed_forward * half
    # Autocast's copies of the weights live as long as the graph.
    copies = (4 * config.d_model**2 + 3 * config.d_model * config.d_ff) * half if half < FLOAT32_BYTES else 0
    if case.checkpoint == "attention":
        attention, squares = 0, 0
    return norms + attention + squares + gated + copies


def _element_bytes(precision: str) -> int:
    dtype = PRECISIONS[precision].autocast_dtype
    return FLOAT32_BYTES if dtype is None else dtype.itemsize
