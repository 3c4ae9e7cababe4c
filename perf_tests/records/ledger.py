"""The expected exact counters of the whole grid: one line for each case, one file for each torch version.

A change to the model that adds a launch, a saved tensor or a byte of peak shows as a changed line in review. Minor
versions of torch differ in the kernels of an operation, so each has its own ledger."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perf_tests_suite.perf_tests.records.record import without_path
from perf_tests_suite.perf_tests.records.store import write_whole

COUNTERS = (
    "parameters", "model_flops", "executed_flops", "matmul_calls", "kernel_launches", "bytes_touched", "saved_bytes",
    "peak_bytes",
)  # fmt: skip


COLUMNS = ("phase", "id", *COUNTERS)


COMMAND = "perf-tests run test_counters.py --update-counters"


LedgerKey = tuple[str, str]
"""(phase, id), as in ("forward", "small-ctx128-fp32-naive")."""


Line = Mapping[str, int | None]
"""Counter to value; None where the phase has none, as the optimizer has no model FLOPs."""


Ledger = Mapping[LedgerKey, Line]


def read_ledger(path: Path) -> dict[LedgerKey, dict[str, int | None]]:
    """The ledger at `path`; raises ValueError with one sentence for an unreadable or other file."""
    try:
        header, *rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")))) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
    if tuple(header) != COLUMNS:
        raise ValueError(f"{path} is not a ledger: its columns are {','.join(header)!r}, not {','.join(COLUMNS)!r}.")
    ledger: dict[LedgerKey, dict[str, int | None]] = {}
    for number, row in enumerate(rows, 2):
        phase, case_id, *values = row if len(row) == len(COLUMNS) else ["", "", "?"]
        if not all(value == "" or value.isdecimal() for value in values):
            raise ValueError(f"{path}, line {number}: {','.join(row)!r} is not {len(COLUMNS)} fields of numbers.")
        if (phase, case_id) in ledger:
            raise ValueError(f"{path}, line {number}: duplicate entry of {phase} {case_id}; remove one.")
        numbers = [int(value) if value else None for value in values]
        ledger[phase, case_id] = dict(zip(COUNTERS, numbers, strict=True))
    return ledger


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Replace the file at `path` in one step; raises OSError and leaves the old file when that fails."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (phase, case_id), line in ledger.items():
        writer.writerow([phase, case_id, *("" if line[name] is None else line[name] for name in COUNTERS)])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.getvalue().encode())


def changed_counters(old: Ledger, new: Ledger) -> list[str]:
    """The differences in words, in the order of the new ledger; cases that are gone come last."""
    found = []
    for key, line in new.items():
        before = old.get(key)
        if before is None:
            found.append(f"{' '.join(key)}: new")
            continue
        for name in COUNTERS:
            if (was := before[name]) != (now := line[name]):
                words = " -> ".join("none" if value is None else f"{value:,}" for value in (was, now))
                rise = "" if was is None or now is None else f" ({now - was:+,})"
                found.append(f"{' '.join(key)}: {name} {words}{rise}")
    return found + [f"{' '.join(key)}: gone" for key in old if key not in new]


@dataclass
class LedgerBook:
    """One run over the ledger of one torch version, open for comparison or, with `is_updating`, for replacement."""

    path: Path
    torch_version: str
    is_updating: bool
    keys: Sequence[LedgerKey]
    """The keys of every line that the ledger should have, in order."""
    ledger: Ledger | None
    """None where this torch version has none yet."""
    options: str = ""
    """Options of the command: which model, for one of one's own."""
    counted: dict[LedgerKey, Line] = field(default_factory=dict)

    @classmethod
    def opened(
        cls, folder: Path, torch_version: str, is_updating: bool, keys: Sequence[LedgerKey], options: str = ""
    ) -> "LedgerBook":
        """Read the ledger, `torch-2.13.csv` for torch 2.13.0+cpu.

        Raises ValueError with one sentence for one that cannot be read.
        """
        major, minor, *_ = torch_version.split(".")
        path = folder / f"torch-{major}.{minor}.csv"
        ledger = read_ledger(path) if path.exists() else None
        return cls(path, torch_version, is_updating, keys, ledger, options)

    @property
    def why_not_compared(self) -> str | None:
        """Why nothing is compared; None with a ledger to compare with."""
        if self.is_updating or self.ledger is not None:
            return None
        return (
            f"torch {self.torch_version} has no ledger ({self.path}), so the counters are not compared; "
            f"record one with `{COMMAND}{self.options}` and commit it."
        )

    def compare(self, counted: dict[LedgerKey, Line]) -> list[str]:
        """Take in counters; a sentence for each that differs from the ledger's, none while updating."""
        self.counted.update(counted)
        if self.is_updating or self.ledger is None:
            return []
        old = {key: self.ledger[key] for key in counted if key in self.ledger}
        return self._with_next_step(changed_counters(old, counted))

    def strangers(self) -> list[str]:
        """A sentence for each line of the ledger that belongs to no case; an update drops them."""
        if self.is_updating or self.ledger is None:
            return []
        strangers = sorted(self.ledger.keys() - self.keys)
        return self._with_next_step([f"{' '.join(key)}: in the ledger but not in the grid" for key in strangers])

    def closed(self, is_complete: bool) -> list[str]:
        """Write the ledger where it is updated; lines for the user."""
        if self.why_not_compared:
            shown = [
                f"{' '.join(key)}: " + ", ".join(f"{name} {line[name]}" for name in COUNTERS if line[name] is not None)
                for key, line in self.counted.items()
            ]
            return [*shown, self.why_not_compared]
        if not self.is_updating:
            return []
        if not is_complete:
            return [f"{self.path} is unchanged, because some cases could not be counted."]
        old = self.ledger or {}
        known = {**old, **self.counted}
        new = {key: known[key] for key in self.keys if key in known}
        write_ledger(self.path, new)
        changes = changed_counters(old, new)
        return [*changes, f"{len(changes)} counters or cases changed; {self.path} has {len(new)} lines."]

    def _with_next_step(self, findings: list[str]) -> list[str]:
        next_step = f"If this is intended, accept it with `{COMMAND}{self.options}` and commit {self.path.name}."
        return [*findings, next_step] if findings else []
