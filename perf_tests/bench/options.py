"""What was asked of pytest-benchmark and of the gate, checked once, before anything is measured.

pytest-benchmark's options for saving, comparing and failing on a regression are taken over: they work as its users know
them, but on records that are written whole and hold the cases without a timing. It keeps its table, columns, groups and
histograms.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.transformer import blocks_per_checkpoint
from perf_tests_suite.perf_tests.cases.gate_options import Parse, one_of
from perf_tests_suite.perf_tests.cases.options import EXECUTIONS, PASSES, optimizer, typed_or
from perf_tests_suite.perf_tests.cases.selected import FAMILIES
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.phases import ZERO_GRAD
from perf_tests_suite.perf_tests.records.comparison import StatsCheck, with_baseline
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.given import is_user_function
from perf_tests_suite.perf_tests.user_code.named import check_name


@dataclass(frozen=True)
class SavingOptions:
    """What pytest-benchmark was asked to save and to compare with."""

    storage: Path
    save_name: str | None = None
    json_path: Path | None = None
    compare: bool = False
    compare_with: str | None = None
    """Number, beginning of a name, or path; None for the latest comparable record."""
    compare_fail: Sequence[StatsCheck] = ()
    disabled: bool = False


WITHOUT_EFFECT = (
    *("--benchmark-timer", "--benchmark-min-time", "--benchmark-max-time", "--benchmark-min-rounds"),
    *("--benchmark-calibration-precision", "--benchmark-warmup", "--benchmark-warmup-iterations"),
)

GROUPINGS = (
    *("group", "name", "func", "fullname", "fullfunc", "param"),
    *dict.fromkeys(f"param:{axis}" for family in FAMILIES.values() for axis in family.axes),
)

COLUMNS = ["median", "iqr", "mean", "stddev", "min", "rounds"]


def take_over(config: pytest.Config, storage: Path) -> SavingOptions:
    """Read these options and reset them for pytest-benchmark; call before it reads them. `storage` is the default.

    Raises pytest.UsageError before measuring for what it would ignore, or refuse after measuring.
    """
    option = config.option
    if not config.pluginmanager.hasplugin("benchmark"):
        return SavingOptions(storage)
    if option.benchmark_storage == "file://./.benchmarks":
        option.benchmark_storage = f"file://{storage}"
    if not option.benchmark_storage.startswith("file://") and "://" in option.benchmark_storage:
        raise pytest.UsageError(
            f"--benchmark-storage {option.benchmark_storage!r} is not a folder; records are files, so give file://PATH."
        )
    typed = [word.partition("=")[0] for word in config.invocation_params.args]
    for name in WITHOUT_EFFECT:
        if name in typed:
            raise pytest.UsageError(
                f"{name} would have no effect, because every case is measured for a set number of rounds by a clock "
                "that waits for the device; use --rounds and --warmup-rounds."
            )
    for grouping in option.benchmark_group_by.split(","):
        if grouping not in GROUPINGS:
            raise pytest.UsageError(
                f"--benchmark-group-by {grouping!r} is not known; choose from {', '.join(GROUPINGS)}."
            )
    if option.benchmark_histogram and importlib.util.find_spec("pygal") is None:
        raise pytest.UsageError(
            "--benchmark-histogram draws with pygal, which is not installed; "
            "run `pip install 'pytest-benchmark[histogram]'`."
        )
    path = option.benchmark_json
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise pytest.UsageError(f"--benchmark-json {path} cannot be written: {Path(path).parent} is not a folder.")
    if not option.benchmark_columns:
        option.benchmark_columns = COLUMNS
    saving = SavingOptions(
        storage=Path(option.benchmark_storage.removeprefix("file://")).absolute(),
        save_name=option.benchmark_save or option.benchmark_autosave,
        json_path=option.benchmark_json,
        compare=bool(option.benchmark_compare),
        compare_with=option.benchmark_compare if isinstance(option.benchmark_compare, str) else None,
        compare_fail=tuple(option.benchmark_compare_fail or ()),
        disabled=(option.benchmark_disable and not option.benchmark_enable) or option.benchmark_skip,
    )
    option.benchmark_save = option.benchmark_autosave = option.benchmark_json = option.benchmark_compare_fail = None
    option.benchmark_compare = []
    return saving


def show_beside_baseline(rows: list[Json], baseline: Json | None, baseline_name: str) -> None:
    """Insert the baseline's row before each comparable row of pytest-benchmark's table, as its own comparison does."""
    shown: list[Json] = []
    for row, before in with_baseline(rows, baseline):
        if before is not None:
            stats = {name: value for name, value in before["stats"].items() if name != "data"}
            shown.append({**row, **stats, "path": baseline_name, "source": baseline_name.rpartition("/")[2][:4]})
            row["source"] = "NOW"
        shown.append(row)
    rows[:] = shown


# The gate's options: what was typed in, one frozen `Against` out.


@dataclass(frozen=True)
class OtherOption:
    """Base runs with `value` on `axis`, head as the user typed it."""

    axis: str
    value: str

    @property
    def identity_field(self) -> str:
        """The identity field that base and head differ in on purpose."""
        return "zero_grad_policy" if self.axis == "zero_grad" else self.axis

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings of base."""
        values: dict[str, Any] = {
            name: self.value if isinstance(getattr(settings, name), str) else (self.value,)
            for name in _fields_of(self.axis)
        }
        return replace(settings, **values)


@dataclass(frozen=True)
class Against:
    """One gate run. At least one of `revision` and `other_option` is given."""

    revision: str | None
    """The revision as typed; None compares two settings of the working tree."""
    other_option: OtherOption | None
    minutes: float
    undecided: Literal["pass", "fail"]
    summary: Path | None
    python: str | None = None
    """The interpreter of base, as typed; None for head's own."""
    measures_same: bool = False
    """Whether cases are measured whose program is the same on both sides."""
    compiles: bool = False
    """Whether seconds to compile are judged too."""

    def settings_of_base(self, settings: Settings) -> Settings:
        return settings if self.other_option is None else self.other_option.applied_to(settings)


DEFAULT_MINUTES = 15.0


def read_against(config: pytest.Config, settings: Settings, saving: SavingOptions) -> Against | None:
    """Read the gate's options; None without a gate.

    Raises ValueError with one sentence for options that cannot be combined: a gate run takes its base from git, not
    from a record.
    """
    option = config.option
    if option.against is None and option.against_option is None:
        for name in ("--against-python", "--gate-minutes", "--gate-compile", "--gate-measure-same", "--gate-undecided",
                     "--gate-summary", "--bisect"):  # fmt: skip
            if config.getoption(name):
                raise ValueError(f"{name} is for the gate; add --against REV.")
        return None
    asked = {
        "--resume": option.resume, "--benchmark-compare": saving.compare,
        "--benchmark-save": saving.save_name, "--benchmark-json": saving.json_path,
        "--benchmark-compare-fail": saving.compare_fail, "--benchmark-disable": saving.disabled,
        "--nvtx": settings.nvtx,
        **{PASSES[name]: True for name in settings.passes},
    }  # fmt: skip
    for name, value in asked.items():
        if value:
            raise ValueError(f"--against writes samples and no record; it cannot be combined with {name}.")
    minutes = typed_or(config, "--gate-minutes", DEFAULT_MINUTES)
    for name in ("--against-option", "--gate-compile", "--gate-measure-same"):
        if config.getoption(name):
            refuse_no_minutes(minutes, name)
    other_option = None if option.against_option is None else _other_option(option.against_option, settings)
    return Against(
        revision=option.against,
        other_option=other_option,
        minutes=minutes,
        undecided=typed_or(config, "--gate-undecided", "pass"),
        summary=summary_path(option.gate_summary, config.invocation_params.dir),
        python=option.against_python,
        measures_same=bool(option.gate_measure_same),
        compiles=bool(option.gate_compile),
    )


def refuse_no_minutes(minutes: float, name: str) -> None:
    """Refuse, by ValueError, an option that compares times where none is measured."""
    if not minutes:
        raise ValueError(f"--gate-minutes 0 measures no time, and {name} compares times alone; drop one of the two.")


def summary_path(typed: str | None, folder: Path) -> Path | None:
    """The file of `--gate-summary`, seen from `folder`; raises ValueError where it cannot be written."""
    summary = None if typed is None else folder / typed
    if summary is not None and (summary.is_dir() or not summary.parent.is_dir()):
        raise ValueError(
            f"--gate-summary {typed} cannot be written: {summary.parent} is not a folder, or {typed} is one."
        )
    return summary


OTHER_VALUES: dict[str, Parse] = {
    "attention": lambda option, text: (
        check_name(option, text) if is_user_function(text) else one_of(ATTENTION, option, text)
    ),
    "precision": partial(one_of, PRECISIONS),
    "execution": partial(one_of, EXECUTIONS),
    "checkpoint": lambda option, text: blocks_per_checkpoint(text),
    "optimizer": optimizer,
    "zero_grad": partial(one_of, ZERO_GRAD),
}
"""The axes of `--against-option`, each with the check of its value."""


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


def _fields_of(axis: str) -> list[str]:
    """Return the fields of `Settings` that hold an axis."""
    return [family.axes[axis] for family in FAMILIES.values() if axis in family.axes] or [axis]
