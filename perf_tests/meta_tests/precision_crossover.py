"""From which context on mixed precision saves memory, where for shorter ones it costs some.

Autocast keeps a copy of every weight for the backward pass, 2 bytes a parameter whatever comes in; what it halves are
the activations, which grow with the tokens. So there is a context where the two are equal.
"""

from dataclasses import replace

from perf_tests.cases import LanguageModelCase
from perf_tests.counting.case_counters import counters_of

LONGEST_CONTEXT = 8192


def context_where_mixed_precision_saves(case: LanguageModelCase, granularity: int = 8) -> int | None:
    """The shortest context, a multiple of `granularity`, at which `case` peaks lower in bf16 than in fp32.

    None where it does not up to 8192. Raises as `counters_of` does.
    """
    least, enough = 0, LONGEST_CONTEXT // granularity
    if not _saves(case, enough * granularity):
        return None
    while enough - least > 1:
        middle = (least + enough) // 2
        if _saves(case, middle * granularity):
            enough = middle
        else:
            least = middle
    return enough * granularity


def _saves(case: LanguageModelCase, context: int) -> bool:
    at_context = replace(case, config=case.config.at_context(context), context_length=context)
    single, mixed = (counters_of(replace(at_context, precision=name)).peak_bytes for name in ("fp32", "bf16"))
    return mixed < single
