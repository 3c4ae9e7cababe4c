"""pytest-benchmark's own options, taken over where the suite does better than a file written in place.

Saving, comparing and failing on a regression work as its users know them, but on records that are whole and that know
the cases without a timing. Its table, its columns, its groups and its histograms stay its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from perf_tests.records.compare import identity_difference
from perf_tests.records.record import Json


class RegressionCheck(Protocol):
    """What `--benchmark-compare-fail=median:5%` is parsed to; `fails` returns a sentence or None."""

    def fails(self, current: Json, compared: Json) -> str | None: ...


@dataclass(frozen=True)
class SavingOptions:
    """What the user asked pytest-benchmark to keep and to compare with."""

    storage: Path
    save_name: str | None = None
    json_path: Path | None = None
    compare: bool = False
    compare_with: str | None = None
    """Number, beginning of a name or path; None for the latest that fits."""
    compare_fail: Sequence[RegressionCheck] = ()
    disabled: bool = False


COLUMNS = ["median", "iqr", "mean", "stddev", "min", "rounds"]


def take_over(config: pytest.Config) -> SavingOptions:
    """What the user asked for, with pytest-benchmark told of none of it; call before it reads its options."""
    own = SavingOptions(config.rootpath / ".benchmarks")
    return _take_over(config, own) if config.pluginmanager.hasplugin("benchmark") else own


def _take_over(config: pytest.Config, own: SavingOptions) -> SavingOptions:
    option = config.option
    if option.benchmark_storage == "file://./.benchmarks":
        option.benchmark_storage = f"file://{own.storage}"
    if not option.benchmark_storage.startswith("file://") and "://" in option.benchmark_storage:
        raise pytest.UsageError(
            f"--benchmark-storage {option.benchmark_storage!r} is no folder; records are files, so give file://PATH."
        )
    if not option.benchmark_columns:
        option.benchmark_columns = COLUMNS
    own = replace(
        own,
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
    return own


def show_beside_baseline(rows: list[Json], baseline: Json | None, baseline_name: str) -> None:
    """Put the baseline's row before each row of pytest-benchmark's table, as its own comparison does, in place."""
    known = {row["fullname"]: row for row in baseline["benchmarks"]} if baseline else {}
    shown: list[Json] = []
    for row in rows:
        if row["fullname"] in known and not identity_difference(known[row["fullname"]], row):
            stats = {name: value for name, value in known[row["fullname"]]["stats"].items() if name != "data"}
            shown.append({**row, **stats, "path": baseline_name, "source": baseline_name.rpartition("/")[2][:4]})
            row["source"] = "NOW"
        shown.append(row)
    rows[:] = shown


def same_parameters(rows: list[Json], axes: Sequence[str]) -> None:
    """Give every row every axis, in place: `--benchmark-group-by=param:NAME` fails on rows without the name."""
    for row in rows:
        row["params"] = {**dict.fromkeys(axes, "-"), **(row["params"] or {})}


def regressions(record: Json, baseline: Json, checks: Sequence[RegressionCheck]) -> list[str]:
    """A sentence for each case comparable in both records that fails one of the user's checks."""
    before = {row["fullname"]: row for row in baseline["benchmarks"]}
    return [
        f"{row['fullname']}: {failure}"
        for row in record["benchmarks"]
        if row["fullname"] in before and not identity_difference(before[row["fullname"]], row)
        for check in checks
        if (failure := check.fails(row["stats"], before[row["fullname"]]["stats"]))
    ]


def row_of(benchmark: Any) -> Json:
    """The benchmark's row in the record, raw rounds included, as pytest-benchmark writes it."""
    row: Json = benchmark.stats.as_dict(include_data=True)
    return row
