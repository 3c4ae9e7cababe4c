"""What an expedition has found so far, read from its records, journals and findings."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from claims.expedition.slices import SLICES
from perf_tests.records.columns import case_name
from perf_tests.records.journal import JournalContents, read_journal, unfinished_journals
from perf_tests.records.record import Json, identity_of
from perf_tests.records.store import list_records


class NotMeasuredError(Exception):
    """A figure that no slice took; the message says why."""


@dataclass(frozen=True)
class Found:
    """The unpacked state of an expedition. Each method raises NotMeasuredError for what is not there."""

    state: Path

    def finding(self, step: str) -> Json:
        """How the step's process ended."""
        path = self.state / "findings" / f"{step}.json"
        if not path.exists():
            of_slice = next(name for name, steps in SLICES.items() if any(entry.name == step for entry in steps))
            raise NotMeasuredError(f"{step}, slice {of_slice}, has not run")
        finding: Json = json.loads(path.read_bytes())
        if finding["device"] == "cpu":
            raise NotMeasuredError("not measured on a CPU")
        return finding

    def values(self, check: str) -> Json:
        """What a check of the instruments measured."""
        finding = self.finding(check)
        if finding["exit_code"]:
            raise NotMeasuredError(how_it_ended(check, finding))
        values: Json = json.loads(finding["last_line"])
        if "reason" in values:
            raise NotMeasuredError(values["reason"])
        return values

    def run(self, step: str) -> JournalContents:
        """The rows of the step's newest record, else of its journal."""
        finding, storage = self.finding(step), self.state / "storage" / step
        if records := list_records(storage).records:
            data = records[-1].data
            return JournalContents({}, data["benchmarks"], data["outcomes"], data.get("passes", []))
        journals = (read_journal(path) for path in unfinished_journals(storage))
        contents = next(filter(None, journals), None)
        if contents is None:
            raise NotMeasuredError(how_it_ended(step, finding))
        return contents

    def timed(self, step: str) -> list[Json]:
        """The step's timings, at least one."""
        run = self.run(step)
        if not run.benchmarks:
            reasons = sorted({row["reason"] for row in run.outcomes}) or ["no case has run"]
            raise NotMeasuredError(f"{step} has no timing: {'; '.join(reasons)}")
        return run.benchmarks

    def gpu_name(self) -> str:
        return str(self.values("facts")["gpu"]["name"])


def how_it_ended(step: str, finding: Json) -> str:
    return f"{step} exited with {finding['exit_code']}: {finding['last_line']}"


def medians(rows: Iterable[Json]) -> dict[str, float]:
    """Seconds by the short name of the case."""
    return {case_name(row["fullname"]): row["stats"]["median"] for row in rows}


def known(rows: Iterable[Json], *fields: str) -> list[Json]:
    """The rows with a value in all of these fields of `extra_info`; raises NotMeasuredError without any."""
    found = [row for row in rows if all(row["extra_info"].get(name) is not None for name in fields)]
    if not found:
        raise NotMeasuredError(f"no row has {' and '.join(fields)}")
    return found


def same_case(row: Json) -> tuple[tuple[str, object], ...]:
    """The identity of a timing or of a pass over the same case."""
    return tuple(sorted(identity_of(row.get("identity", row)).items()))
