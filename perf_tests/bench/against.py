"""What the user asked the gate: options in, one frozen `Against` out, or None where nobody asked for a gate."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.training import OPTIMIZERS
from model.transformer import blocks_per_checkpoint
from perf_tests.bench.benchmark_options import SavingOptions
from perf_tests.options import EXECUTIONS, PASSES, Settings, typed_or

DEFAULT_MINUTES = 15.0

SETTINGS_OF_AXIS = {
    "attention": ("attentions", "attention_alone_implementations"),
    "precision": ("precisions", "attention_alone_precisions"),
    "execution": ("executions",),
    "checkpoint": ("checkpoints",),
    "optimizer": ("optimizer",),
}
"""What `--against-option` may set, and the fields of `Settings` that hold it."""

_KNOWN: dict[str, Collection[str]] = {
    "attention": ATTENTION,
    "precision": PRECISIONS,
    "execution": EXECUTIONS,
    "optimizer": OPTIMIZERS,
}


@dataclass(frozen=True)
class OtherOption:
    """Base runs with `value` on `axis`, head as the user typed it."""

    axis: str
    value: str

    def applied_to(self, settings: Settings) -> Settings:
        """The settings of base."""
        fields = SETTINGS_OF_AXIS[self.axis]
        values: dict[str, Any] = {
            name: self.value if isinstance(getattr(settings, name), str) else (self.value,) for name in fields
        }
        return replace(settings, **values)


@dataclass(frozen=True)
class Against:
    """One gate run. At least one of `revision` and `other_option` is given."""

    revision: str | None
    """As typed; None measures two settings of the working tree."""
    other_option: OtherOption | None
    minutes: float
    undecided: Literal["pass", "fail"]
    summary: Path | None

    def settings_of_base(self, settings: Settings) -> Settings:
        return settings if self.other_option is None else self.other_option.applied_to(settings)


def read_against(config: pytest.Config, settings: Settings, saving: SavingOptions) -> Against | None:
    """What the options say; raises pytest.UsageError with one sentence for what makes no sense together."""
    try:
        return _read_against(config, settings, saving)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _read_against(config: pytest.Config, settings: Settings, saving: SavingOptions) -> Against | None:
    option = config.option
    given = {
        "--gate-minutes": option.gate_minutes, "--gate-undecided": option.gate_undecided,
        "--gate-summary": option.gate_summary,
    }  # fmt: skip
    if option.against is None and option.against_option is None:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} is for the gate; add --against REV.")
        return None
    _refuse_recording(option, settings, saving)
    return Against(
        revision=option.against,
        other_option=None if option.against_option is None else _other_option(option.against_option, settings),
        minutes=typed_or(config, "--gate-minutes", DEFAULT_MINUTES),
        undecided=typed_or(config, "--gate-undecided", "pass"),
        summary=_summary(option.gate_summary, config.invocation_params.dir),
    )


def _refuse_recording(option: Any, settings: Settings, saving: SavingOptions) -> None:
    """A gate run saves its samples and no record, and takes its base from git and not from a record."""
    asked = {
        "--resume": option.resume, "--benchmark-compare": saving.compare, "--benchmark-save": saving.save_name,
        "--benchmark-json": saving.json_path, "--benchmark-compare-fail": saving.compare_fail,
        "--benchmark-disable": saving.disabled, "--nvtx": settings.nvtx,
        **{PASSES[name]: True for name in settings.passes},
    }  # fmt: skip
    for name, value in asked.items():
        if value:
            raise ValueError(f"--against measures two sides in turns and makes no record; it does not go with {name}.")


def _other_option(text: str, settings: Settings) -> OtherOption:
    axis, _, value = text.partition("=")
    if axis not in SETTINGS_OF_AXIS or not value:
        raise ValueError(
            f"--against-option {text!r} is not known; write AXIS=VALUE with one of {', '.join(SETTINGS_OF_AXIS)}."
        )
    if axis == "checkpoint":
        blocks_per_checkpoint(value)
    elif value not in _KNOWN[axis]:
        raise ValueError(f"--against-option {text!r}: {value!r} is not known; choose among {', '.join(_KNOWN[axis])}.")
    for name in SETTINGS_OF_AXIS[axis]:
        chosen = getattr(settings, name)
        values = (chosen,) if isinstance(chosen, str) else chosen
        if len(values) != 1 or "own" in values:
            raise ValueError(
                f"--against-option {text} needs one {axis} of head to set it against, and this run has "
                f"{', '.join(values)}; give one with --{axis}."
            )
        if values == (value,):
            raise ValueError(
                f"--against-option {text} is what head runs with; give another value, or another --{axis}."
            )
    return OtherOption(axis, value)


def _summary(text: str | None, folder: Path) -> Path | None:
    if text is None:
        return None
    path = folder / text
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"--gate-summary {text} cannot be written: there is no folder {path.parent}, or it is one itself."
        )
    return path
