"""Functions of the user's, given with --attention, held to float64 before their cases are timed."""

import math
from collections import defaultdict
from collections.abc import Iterable

import torch

from model.precision import PRECISIONS
from perf_tests.bench.outcomes import Outcome
from perf_tests.cases.case import Case
from perf_tests.instruments.device_errors import is_beyond_device, is_out_of_memory, needs_gpu, words_of
from perf_tests.own.attention import attention_named, function_of
from perf_tests.own.attention_check import IncorrectError, Sizes, Use, check_attention
from perf_tests.own.guard import OwnModelError
from perf_tests.phases import LANGUAGE_MODEL

Refusals = dict[tuple[str, Use], Outcome]
"""Why a function is not timed, by how it was typed and where it is used."""

LONGEST_CONTEXT = 1024
"""Lengths of cases up to this are checked too; float64 keeps several T x T matrices."""

MOST_HEADS = 1024
"""Heads of all sequences together that are checked, at a short length: they take about as long as LONGEST_CONTEXT."""


def load_attentions(cases: Iterable[Case]) -> None:
    """Raises OwnModelError for one that cannot be imported.

    Before anything runs on tensors without content, of which a module imported meanwhile would keep some.
    """
    for name in {case.own_attention for case in cases}:
        if name is not None:
            function_of(name)


def refusals(cases: Iterable[Case], device: torch.device) -> Refusals:
    """Each function is checked once for each head width, precision and layout of its cases."""
    lengths: dict[tuple[str, Use], set[int]] = defaultdict(set)
    sizes: dict[tuple[str, Use], set[Sizes]] = defaultdict(set)
    for case in cases:
        if case.own_attention is not None and case.why_unsupported(device) is None:
            key, (batch, *heads, tokens, _) = (case.own_attention, use_of(case, device)), case.query_shape
            lengths[key].add(min(tokens, LONGEST_CONTEXT))
            sizes[key].add((min(batch, max(1, MOST_HEADS // math.prod(heads))), *heads))
    found = {key: _refusal(*key, checked, sizes[key]) for key, checked in lengths.items()}
    return {key: outcome for key, outcome in found.items() if outcome is not None}


def use_of(case: Case, device: torch.device) -> Use:
    return Use(case.query_shape[-1], case.row.family == LANGUAGE_MODEL, PRECISIONS[case.precision], device)


def refusal_of(case: Case, refused: Refusals, device: torch.device) -> Outcome | None:
    """Of the case's function; a model of the user's has none, and may name no heads."""
    return None if case.own_attention is None else refused.get((case.own_attention, use_of(case, device)))


def _refusal(name: str, use: Use, lengths: Iterable[int], sizes: Iterable[Sizes]) -> Outcome | None:
    try:
        check_attention(attention_named(name).build(), name, use, lengths, sizes)
    except IncorrectError as error:
        return Outcome("incorrect", str(error))
    except OwnModelError as error:
        return Outcome("unsupported" if _is_of_device(error.__cause__, use.device) else "error", str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Outcome("out_of_memory", words_of(error))
    return None


def _is_of_device(error: BaseException | None, device: torch.device) -> bool:
    """Whether the device is at fault, which would run another function."""
    return error is not None and (is_beyond_device(error) or (device.type == "cpu" and needs_gpu(error)))
