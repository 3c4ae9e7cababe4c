"""A run's settings as plain JSON, sent to a worker and received there."""

from dataclasses import asdict, replace
from typing import Any

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES
from perf_tests.options import EXECUTIONS, Settings
from perf_tests.records.record import Json


def sent(settings: Settings) -> Json:
    """Without extra passes, ranges and shares: a worker runs each benchmark that it is given, under one measure."""
    return asdict(replace(settings, passes=(), memory_snapshot=False, nvtx=False, shard=None))


def received(values: Json) -> Settings:
    """Without the values that this tree's `model/` does not know, so that their cases are not collected."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    for name, known in (
        ("sizes", SIZES),
        ("precisions", PRECISIONS),
        ("attention_alone_precisions", PRECISIONS),
        ("attentions", {**ATTENTION, "own": None}),
        ("attention_alone_implementations", ATTENTION),
        ("executions", EXECUTIONS),
    ):
        fields[name] = tuple(value for value in fields[name] if value in known)
    return Settings(**fields)
