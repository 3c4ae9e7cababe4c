"""The record that a run is compared with, and the table that shows both."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from perf_tests.bench.benchmark_options import SavingOptions, same_parameters, show_beside_baseline
from perf_tests.bench.stash import RUN, WORKBENCH, Run
from perf_tests.cases.selected import FAMILIES
from perf_tests.gate.accepted import FILE_NAME, Acceptance, read_accepted
from perf_tests.records.compare import identity_difference, rows_by_id
from perf_tests.records.journal import unfinished_journals
from perf_tests.records.record import Json, machine_differences, run_of
from perf_tests.records.store import (
    BaselineError,
    StoredRecord,
    comparable_ids,
    latest_baseline,
    list_records,
    numbered_baseline,
)


def choose_baseline(
    run: Run, saving: SavingOptions, machine_info: Json, selection: Mapping[str, Json]
) -> StoredRecord | None:
    """The record to compare the cases of `selection` with, identities by id, where one is asked for.

    Raises BaselineError.
    """
    if not saving.compare:
        if saving.compare_fail:
            raise BaselineError("--benchmark-compare-fail has nothing to compare with; add --benchmark-compare.")
        return None
    if saving.compare_with is not None:
        named = numbered_baseline(saving.storage, saving.compare_with, machine_info)
        return _that_can_fail(named, saving, selection)
    listing = list_records(saving.storage)
    run.notes += listing.left_out
    # A run whose journal is still there is about to be resumed, or just ends.
    unfinished = {path.stem for path in unfinished_journals(saving.storage)}
    earlier = [record for record in listing.records if run_of(record.data) not in unfinished]
    baseline = latest_baseline(earlier, machine_info, selection)
    if baseline is None:
        if saving.compare_fail:
            raise BaselineError(
                f"--benchmark-compare-fail has nothing to compare with: no record under {saving.storage} is of this "
                "machine, build and selection; record a baseline first by running without --benchmark-compare-fail."
            )
        run.notes.append(_why_no_baseline(earlier, machine_info, saving.storage))
        return None
    return _that_can_fail(baseline, saving, selection)


def _that_can_fail(baseline: StoredRecord, saving: SavingOptions, selection: Mapping[str, Json]) -> StoredRecord:
    """Raises BaselineError where --benchmark-compare-fail would pass because no case of it can be compared."""
    if not (saving.compare_fail and selection) or comparable_ids(baseline.data, selection):
        return baseline
    rows = rows_by_id(baseline.data)
    differences = (f"{case}: {identity_difference(rows[case], selection[case])}" for case in selection if case in rows)
    raise BaselineError(
        f"--benchmark-compare-fail has nothing to compare with in {baseline.name}: "
        f"{next(differences, 'it has none of these cases')}. Record a baseline with these options first."
    )


def accepted_slowdowns(root: Path) -> list[Acceptance]:
    try:
        return read_accepted(root / ".benchmarks" / FILE_NAME)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _why_no_baseline(records: list[StoredRecord], machine_info: Json, storage: Path) -> str:
    if not records:
        return f"No baseline yet: {storage} holds no earlier record; this run becomes the first."
    differences = machine_differences(machine_info, records[-1].data["machine_info"])
    reason = "; ".join(differences) if differences else "it has none of these cases"
    return f"None of {len(records)} records is comparable; the newest, {records[-1].name}: {reason}."


def prepare_table(config: pytest.Config, benchmarks: list[Json]) -> None:
    """The rows of pytest-benchmark's table: the valid ones, each below its baseline's."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    session = config.stash[WORKBENCH].session
    assert session is not None
    measured = {row["fullname"] for row in session.contents.benchmarks}
    benchmarks[:] = [row for row in benchmarks if row["fullname"] in measured]
    same_parameters(benchmarks, [name for family in FAMILIES.values() for name in family.axes])
    if run.baseline:
        show_beside_baseline(benchmarks, run.baseline.data, run.baseline.name)
