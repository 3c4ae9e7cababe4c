"""The expected exact counters of the whole grid: one line for each case, one file for each torch version.

A change to the model that adds a launch, a saved tensor or a byte of peak shows as a changed line in review. Minor
versions of torch differ in the kernels of an operation, so each has its own ledger.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perf_tests.records.store import write_whole

COUNTERS = (
    "parameters", "model_flops", "executed_flops", "matmul_calls", "kernel_launches", "bytes_touched", "saved_bytes",
    "peak_bytes",
)  # fmt: skip
COLUMNS = ("phase", "id", *COUNTERS)

LedgerKey = tuple[str, str]
"""(phase, id), as in ("forward", "small-ctx128-fp32-naive")."""

Line = Mapping[str, int | None]
"""Counter to value; None where the phase has none, as the optimizer has no model FLOPs."""

Ledger = Mapping[LedgerKey, Line]


@dataclass(frozen=True)
class Moved:
    """A changed counter of one case. A case in one ledger alone has no counter, and None on the other side."""

    key: LedgerKey
    counter: str
    old: int | None
    new: int | None

    @property
    def in_words(self) -> str:
        phase, case_id = self.key
        if self.counter == "":
            return f"{phase} {case_id}: {'new' if self.old is None else 'gone'}"
        old, new = ("none" if value is None else f"{value:,}" for value in (self.old, self.new))
        change = "" if self.old is None or self.new is None else f" ({self.new - self.old:+,})"
        return f"{phase} {case_id}: {self.counter} {old} -> {new}{change}"


def ledger_file(folder: Path, torch_version: str) -> Path:
    """`torch-2.13.csv` for torch 2.13.0+cpu."""
    major, minor = torch_version.split(".")[:2]
    return folder / f"torch-{major}.{minor}.csv"


def read_ledger(path: Path) -> dict[LedgerKey, dict[str, int | None]]:
    """The ledger at `path`; raises ValueError with one sentence for an unreadable or other file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    rows = csv.reader(io.StringIO(text))
    header = next(rows, [])
    if tuple(header) != COLUMNS:
        raise ValueError(f"{path} is no ledger: its columns are {','.join(header)!r}, not {','.join(COLUMNS)!r}.")
    ledger: dict[LedgerKey, dict[str, int | None]] = {}
    for row in rows:
        phase, case_id, *values = row if len(row) == len(COLUMNS) else ["", "", "?"]
        if not all(value == "" or value.isdecimal() for value in values):
            raise ValueError(
                f"{path}, line {rows.line_num}: {','.join(row)!r} is not {len(COLUMNS)} fields of numbers."
            )
        if (phase, case_id) in ledger:
            raise ValueError(f"{path}, line {rows.line_num}: duplicate entry of {phase} {case_id}; remove one.")
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


def moved(old: Ledger, new: Ledger) -> list[Moved]:
    """The differences, in the order of the new ledger; cases that are gone come last."""
    found = []
    for key, line in new.items():
        if key not in old:
            found.append(Moved(key, "", None, 0))
        else:
            found += [Moved(key, name, old[key][name], line[name]) for name in COUNTERS if old[key][name] != line[name]]
    return found + [Moved(key, "", 0, None) for key in old if key not in new]
