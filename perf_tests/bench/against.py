"""The gate's options, checked once: what was typed in, one frozen `Against` out."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.transformer import blocks_per_checkpoint
from perf_tests.bench.benchmark_options import SavingOptions
from perf_tests.cases.selected import FAMILIES
from perf_tests.options.names import optimizer
from perf_tests.options.settings import Settings
from perf_tests.options.table import EXECUTIONS, PASSES, typed_or
from perf_tests.options.values import Parse, one_of
from perf_tests.own.attention import is_own
from perf_tests.own.named import check_name
from perf_tests.phases import ZERO_GRAD

DEFAULT_MINUTES = 15.0


def _attention(option: str, text: str) -> str:
    if not is_own(text):
        return one_of(ATTENTION, option, text)
    check_name(option, text)
    return text


OTHER_VALUES: dict[str, Parse] = {
    "attention": _attention,
    "precision": partial(one_of, PRECISIONS),
    "execution": partial(one_of, EXECUTIONS),
    "checkpoint": lambda option, text: blocks_per_checkpoint(text),
    "optimizer": optimizer,
    "zero_grad": partial(one_of, ZERO_GRAD),
}
"""The axes of `--against-option`, each with the check of its value."""


@dataclass(frozen=True)
class OtherOption:
    """Base runs with `value` on `axis`, head as the user typed it."""

    axis: str
    value: str

    @property
    def identity_field(self) -> str:
        """In which the two sides of a case differ on purpose."""
        return "zero_grad_policy" if self.axis == "zero_grad" else self.axis

    def applied_to(self, settings: Settings) -> Settings:
        """The settings of base."""
        values: dict[str, Any] = {
            name: self.value if isinstance(getattr(settings, name), str) else (self.value,)
            for name in _fields_of(self.axis)
        }
        return replace(settings, **values)


def _fields_of(axis: str) -> list[str]:
    """The fields of `Settings` that hold an axis."""
    return [family.axes[axis] for family in FAMILIES.values() if axis in family.axes] or [axis]


@dataclass(frozen=True)
class Against:
    """One gate run. At least one of `revision` and `other_option` is given."""

    revision: str | None
    """As typed; None compares two settings of the working tree."""
    other_option: OtherOption | None
    minutes: float
    undecided: Literal["pass", "fail"]
    summary: Path | None
    python: str | None = None
    """The interpreter of base, as typed; None for head's own."""

    def settings_of_base(self, settings: Settings) -> Settings:
        return settings if self.other_option is None else self.other_option.applied_to(settings)


def read_against(config: pytest.Config, settings: Settings, saving: SavingOptions) -> Against | None:
    """None without a gate. Raises ValueError with one sentence for options that cannot be combined."""
    option = config.option
    if option.against is None and option.against_option is None:
        for name in ("--against-python", "--gate-minutes", "--gate-undecided", "--gate-summary"):
            if config.getoption(name) is not None:
                raise ValueError(f"{name} is for the gate; add --against REV.")
        return None
    _refuse_recording(option, settings, saving)
    return Against(
        revision=option.against,
        other_option=None if option.against_option is None else _other_option(option.against_option, settings),
        minutes=typed_or(config, "--gate-minutes", DEFAULT_MINUTES),
        undecided=typed_or(config, "--gate-undecided", "pass"),
        summary=_summary(option.gate_summary, config.invocation_params.dir),
        python=option.against_python,
    )


def _refuse_recording(option: Any, settings: Settings, saving: SavingOptions) -> None:
    """A gate run takes its base from git, not from a record."""
    asked = {
        "--resume": option.resume, "--shard": settings.shard, "--benchmark-compare": saving.compare,
        "--benchmark-save": saving.save_name, "--benchmark-json": saving.json_path,
        "--benchmark-compare-fail": saving.compare_fail, "--benchmark-disable": saving.disabled,
        "--nvtx": settings.nvtx,
        **{PASSES[name]: True for name in settings.passes},
    }  # fmt: skip
    for name, value in asked.items():
        if value:
            raise ValueError(f"--against writes samples and no record; it cannot be combined with {name}.")


def _other_option(text: str, settings: Settings) -> OtherOption:
    axis, _, value = text.partition("=")
    if axis not in OTHER_VALUES or not value:
        raise ValueError(
            f"--against-option {text!r} is not known; write AXIS=VALUE with one of {', '.join(OTHER_VALUES)}."
        )
    OTHER_VALUES[axis](f"--against-option {axis}", value)
    for name in _fields_of(axis):
        chosen = getattr(settings, name)
        values = (chosen,) if isinstance(chosen, str) else chosen
        if len(values) != 1 or "own" in values:
            raise ValueError(
                f"--against-option {text} compares with one {axis} of head, and this run has {', '.join(values)}; "
                f"choose one with --{axis}."
            )
        if values == (value,):
            raise ValueError(f"--against-option {text} is head's own value; give another value, or another --{axis}.")
    return OtherOption(axis, value)


def _summary(text: str | None, folder: Path) -> Path | None:
    if text is None:
        return None
    path = folder / text
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"--gate-summary {text} cannot be written: {path.parent} is not a folder, or {text} is one.")
    return path
