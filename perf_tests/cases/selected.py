"""The families, and which of their cases the options select."""

from dataclasses import replace
from typing import Any

from perf_tests_suite.perf_tests.cases.attention import AttentionCase, CollectiveCase
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.options import size_label
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.cases.sharing import Sharing
from perf_tests_suite.perf_tests.phases import (
    ATTENTION_ALONE,
    COLLECTIVE_ALONE,
    EXAMINED,
    FIRST_STEP,
    FULL_STEP,
    LANGUAGE_MODEL,
    PHASES,
    phases_of,
)
from perf_tests_suite.perf_tests.user_code.named import from_its_repository

FAMILIES: dict[str, type[Case]] = {
    LANGUAGE_MODEL: LanguageModelCase,
    ATTENTION_ALONE: AttentionCase,
    COLLECTIVE_ALONE: CollectiveCase,
}


def family_of(phase: str) -> type[Case]:
    return FAMILIES[EXAMINED[phase].family]


def chosen_phases(settings: Settings) -> set[str]:
    """Names of the phases that `--phase` selects, and every collective, where the family's grid is not empty."""
    axis_of = {
        LANGUAGE_MODEL: settings.parallels,
        ATTENTION_ALONE: settings.head_dims,
        COLLECTIVE_ALONE: settings.collectives,
    }
    labels = (*settings.phases, *(phase.label for phase in phases_of(COLLECTIVE_ALONE)))
    return {phase.name for phase in PHASES.values() if phase.label in labels and axis_of[phase.family]}


def examined_phases(settings: Settings) -> set[str]:
    """The same and, with the full step, the first one, which the memory pass examines."""
    chosen = chosen_phases(settings)
    return chosen | {FIRST_STEP} if FULL_STEP in chosen else chosen


def is_inside(identity: dict[str, Any], settings: Settings) -> bool:
    """Whether the axes of this run contain the case of an older row."""
    if str(identity.get("phase")) not in examined_phases(settings) or identity.get("device") != settings.device_type:
        return False
    in_rows = from_its_repository
    model = in_rows(settings.model or "ours")
    values = {**identity, "model_size": identity.get("size"), "parallel": Sharing.label_in(identity)}
    settings = replace(
        settings,
        sizes=tuple(map(size_label, settings.sizes)),
        attentions=tuple(map(in_rows, settings.attentions)),
        attention_alone_implementations=tuple(map(in_rows, settings.attention_alone_implementations)),
    )
    axes = family_of(identity["phase"]).axes
    return identity.get("model", model) == model and all(values[name] in getattr(settings, axes[name]) for name in axes)


def selectable_cases(settings: Settings) -> int:
    """How many cases the axes span."""
    return sum(len(family_of(name).grid(settings)) for name in chosen_phases(settings))
