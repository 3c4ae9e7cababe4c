"""The memory that a case needs, so that one that cannot fit is not tried."""

from perf_tests.cases import Case, CollectiveCase, LanguageModelCase
from perf_tests.counting.case_counters import counters_or_reason, parameters_of
from perf_tests.limits.least_work import FLOAT32_BYTES


def needed_bytes(case: Case) -> int:
    """Peak of one round, everything resident included; of a case without exact counters what certainly exists.

    That is weights, gradients, AdamW's two moments and logits, or the tensors that attention alone takes and gives.
    """
    if isinstance(case, CollectiveCase):
        return 2 * case.exchanged_bytes  # what is given and what is taken, at most
    counters, _ = counters_or_reason(case)
    if counters is not None:
        return counters.peak_bytes
    if not isinstance(case, LanguageModelCase):
        # Query, key, value and output; in a backward pass also the gradients of all four.
        return (8 if case.row.has_backward else 4) * case.tokens * case.head_dim * FLOAT32_BYTES
    # Another optimizer may keep nothing.
    weights, moments = 1.0 + case.row.has_backward, 2.0 * (case.row.trains and case.own_optimizer is None)
    parameters, ranks = parameters_of(case) or 0, 1
    if case.sharing is not None:
        ranks = case.sharing.world
        weights, moments = weights * case.sharing.share_of_weights, moments * case.sharing.share_of_moments
    logits = case.tokens * case.config.vocab_size // ranks
    return int(FLOAT32_BYTES * ((weights + moments) * parameters + logits))
