"""pytest-benchmark's options for saving, comparing and failing on a regression, taken over by the suite.

They work as its users know them, but on records that are written whole and hold the cases without a timing.
pytest-benchmark keeps its table, columns, groups and histograms.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from perf_tests.cases.selected import FAMILIES
from perf_tests.records.compare import identity_difference
from perf_tests.records.record import Json


class RegressionCheck(Protocol):
    """What pytest-benchmark makes of `--benchmark-compare-fail=median:5%`; `fails` returns a sentence or None."""

    def fails(self, current: Json, compared: Json) -> str | None: ...


@dataclass(frozen=True)
class SavingOptions:
    """What pytest-benchmark was asked to save and to compare with."""

    storage: Path
    save_name: str | None = None
    json_path: Path | None = None
    compare: bool = False
    compare_with: str | None = None
    """Number, beginning of a name, or path; None for the latest comparable record."""
    compare_fail: Sequence[RegressionCheck] = ()
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
    """Read these options and reset them for pytest-benchmark; call before it reads them. `storage` is the default."""
    option = config.option
    if not config.pluginmanager.hasplugin("benchmark"):
        return SavingOptions(storage)
    if option.benchmark_storage == "file://./.benchmarks":
        option.benchmark_storage = f"file://{storage}"
    if not option.benchmark_storage.startswith("file://") and "://" in option.benchmark_storage:
        raise pytest.UsageError(
            f"--benchmark-storage {option.benchmark_storage!r} is not a folder; records are files, so give file://PATH."
        )
    _refuse_what_cannot_work(config)
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


def _refuse_what_cannot_work(config: pytest.Config) -> None:
    """Raises pytest.UsageError before measuring for what pytest-benchmark would ignore, or refuse after measuring."""
    typed = [word.partition("=")[0] for word in config.invocation_params.args]
    for name in WITHOUT_EFFECT:
        if name in typed:
            raise pytest.UsageError(
                f"{name} would have no effect, because every case is measured for a set number of rounds by a clock "
                "that waits for the device; use --rounds and --warmup-rounds."
            )
    for grouping in config.option.benchmark_group_by.split(","):
        if grouping not in GROUPINGS:
            raise pytest.UsageError(
                f"--benchmark-group-by {grouping!r} is not known; choose from {', '.join(GROUPINGS)}."
            )
    if config.option.benchmark_histogram and importlib.util.find_spec("pygal") is None:
        raise pytest.UsageError(
            "--benchmark-histogram draws with pygal, which is not installed; "
            "run `pip install 'pytest-benchmark[histogram]'`."
        )
    path = config.option.benchmark_json
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise pytest.UsageError(f"--benchmark-json {path} cannot be written: {Path(path).parent} is not a folder.")


def show_beside_baseline(rows: list[Json], baseline: Json | None, baseline_name: str) -> None:
    """Insert the baseline's row before each comparable row of pytest-benchmark's table, as its own comparison does."""
    shown: list[Json] = []
    for row, before in _with_baseline(rows, baseline):
        if before is not None:
            stats = {name: value for name, value in before["stats"].items() if name != "data"}
            shown.append({**row, **stats, "path": baseline_name, "source": baseline_name.rpartition("/")[2][:4]})
            row["source"] = "NOW"
        shown.append(row)
    rows[:] = shown


def _with_baseline(rows: Sequence[Json], baseline: Json | None) -> Iterator[tuple[Json, Json | None]]:
    """Each row with its comparable row of the baseline, or None."""
    known = {row["fullname"]: row for row in baseline["benchmarks"]} if baseline else {}
    for row in rows:
        before = known.get(row["fullname"])
        yield row, None if before is None or identity_difference(before, row) else before


def same_parameters(rows: list[Json], axes: Sequence[str]) -> None:
    """Give every row every axis: `--benchmark-group-by=param:NAME` fails on rows without the name."""
    for row in rows:
        row["params"] = {**dict.fromkeys(axes, "-"), **(row["params"] or {})}


def regressions(record: Json, baseline: Json, checks: Sequence[RegressionCheck]) -> list[str]:
    """A sentence for each comparable case and each of the user's checks that it fails."""
    return [
        f"{row['fullname']}: {failure}"
        for row, before in _with_baseline(record["benchmarks"], baseline)
        if before is not None
        for check in checks
        if (failure := check.fails(row["stats"], before["stats"]))
    ]
