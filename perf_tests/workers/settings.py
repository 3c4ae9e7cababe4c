"""A run's settings as plain JSON, sent to a worker and received there."""

from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES
from perf_tests.options.settings import Settings
from perf_tests.options.shapes import SHAPE
from perf_tests.options.table import EXECUTIONS
from perf_tests.own.attention import is_own
from perf_tests.own.hugging_face import is_configuration
from perf_tests.own.named import absolute, check_name, why_not_there
from perf_tests.records.record import Json


def sent(settings: Settings) -> Json:
    """Without extra passes, ranges and shares: a worker runs each benchmark that it is given, under one measure."""
    return asdict(replace(settings, passes=(), memory_snapshot=False, nvtx=False, shard=None))


def sent_elsewhere(settings: Settings) -> Json:
    """The same for a worker that runs elsewhere than the user typed."""
    return sent(
        replace(
            settings,
            model=None if settings.model is None else absolute(settings.model),
            optimizer=absolute(settings.optimizer),
            attentions=tuple(map(absolute, settings.attentions)),
            attention_alone_implementations=tuple(map(absolute, settings.attention_alone_implementations)),
        )
    )


def received(values: Json) -> Settings:
    """Without the values that this tree does not know or hold, so that their cases are not collected."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    for name, known in (
        ("precisions", PRECISIONS),
        ("attention_alone_precisions", PRECISIONS),
        ("executions", EXECUTIONS),
    ):
        fields[name] = tuple(value for value in fields[name] if value in known)
    for name in ("attentions", "attention_alone_implementations"):
        fields[name] = tuple(value for value in fields[name] if value == "own" or _is_here(value))
    if not is_configuration(fields["model"] or ""):
        fields["sizes"] = tuple(size for size in fields["sizes"] if size in SIZES or SHAPE.fullmatch(size))
    return Settings(**fields)


def _is_here(attention: str) -> bool:
    """Whether this tree has it: an older base lacks a file that head added."""
    if not is_own(attention):
        return attention in ATTENTION
    if why_not_there(attention) is not None:
        return False
    with suppress(ValueError):
        check_name("--attention", attention)
        return True
    return False
