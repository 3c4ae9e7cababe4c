"""Phases by the words in use for them, in a column of their own or in the headings of their times."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from perf_tests.audit.files.headers import is_deviation, is_time, normal_name
from perf_tests.phases import PHASES, PHASES_OF_OTHERS

WORDS = {
    phase.published_as: phase.name for phase in (*PHASES.values(), *PHASES_OF_OTHERS.values()) if phase.published_as
} | {
    **dict.fromkeys(("fwd", "forward_pass", "forward_only"), "forward"),
    **dict.fromkeys(("bwd", "backward_pass", "backward_only"), "backward"),
    **dict.fromkeys(("fwd+bwd", "forward+backward", "forward_and_backward", "end_to_end", "e2e"), "forward_backward"),
    **dict.fromkeys(("step", "train_step", "training_step", "full", "fwd+bwd+opt"), "full_step"),
    **dict.fromkeys(("opt", "optimizer_step", "update"), "optimizer"),
    **dict.fromkeys(("forward_no_grad", "inference_forward"), "inference"),
}


@lru_cache(maxsize=4096)
def phase_of(text: str) -> str:
    word = re.sub(r"\s*\+\s*", "+", text.casefold()).replace(" ", "_").replace("-", "_")
    return WORDS.get(word, word if word in PHASES or word in PHASES_OF_OTHERS else text)


@lru_cache(maxsize=4096)
def phase_of_attention(text: str) -> str:
    if (word := f"attention_{phase_of(text)}") in (*PHASES, *PHASES_OF_OTHERS):
        return word
    word = f"attention_{phase_of(re.split('[(+]', text)[0])}"  # without remarks on what else was timed
    return word if word in PHASES else text


@dataclass(frozen=True)
class PhaseColumns:
    """One phase of a table that gives each its own columns of times."""

    phase: str
    heading: str
    """Of its times, as the table writes it."""
    header: list[str]
    """The table's, as if it had these times alone, with a column `phase` at the end."""


def phases_in(header: Sequence[str]) -> list[PhaseColumns]:
    """Those whose times have a heading of their own, `forward_ms` or `mean backward (s)`; none if none has."""
    parts = [_phase_and_figure(normal_name(name)) for name in header]
    found = []
    for phase in dict.fromkeys(part[0] for part in parts if part):
        alone = [
            (part[1] if part[0] == phase else "") if part else name for name, part in zip(header, parts, strict=True)
        ]
        timed = [place for place, part in enumerate(parts) if part and part[0] == phase and is_time(part[1])]
        if timed:
            found.append(PhaseColumns(phase, header[timed[0]], [*alone, "phase"]))
    return found


def _phase_and_figure(name: str) -> tuple[str, str] | None:
    """`mean_fwd_ms` as `forward` and `mean_ms`; None for a column that is no time or deviation of a phase."""
    for word, phase in _BY_COLUMN:
        before, is_named, after = f"_{name}_".partition(f"_{word}_")
        rest = "_".join(filter(None, (before.strip("_"), after.strip("_")))) or "time"
        if is_named and (is_time(rest) or is_deviation(rest)):
            return phase, rest
    return None


_BY_COLUMN = sorted(
    {
        re.sub("[^a-z0-9]+", "_", word): phase for word, phase in (WORDS | {name: name for name in PHASES}).items()
    }.items(),
    key=lambda item: -len(item[0]),
)
"""Words as a header writes them, the longest first; a phase that is alone in its header is a time too."""
