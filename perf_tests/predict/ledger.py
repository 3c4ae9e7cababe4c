"""The expected exact counters of the whole grid: one line for each case, one file for each torch version.

A change to the model that adds a launch, a saved tensor or a byte of peak shows as a changed line in review. Minor
versions of torch differ in the kernels of an operation, so each has its own ledger."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from model.sizes import SIZES
from perf_tests.cases.attention import ATTENTION_BATCH_SIZE, AttentionCase
from perf_tests.cases.case import COUNTED_ATTENTION, Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.options import CONTEXTS, HEAD_DIMS, SEQUENCE_LENGTHS, SIZES_APART
from perf_tests.cases.settings import Settings
from perf_tests.hardware.limits import VARIANTS, sent_bytes, step_messages
from perf_tests.phases import ATTENTION_ALONE, LANGUAGE_MODEL, phases_of
from perf_tests.predict.counters import Counters
from perf_tests.predict.ranks import parameter_shapes
from perf_tests.records.record import without_path
from perf_tests.records.store import write_whole

COUNTERS = (
    "parameters", "model_flops", "executed_flops", "matmul_calls", "kernel_launches", "bytes_touched", "saved_bytes",
    "peak_bytes",
)  # fmt: skip


COLUMNS = ("phase", "id", *COUNTERS)


COMMAND = "pytest perf_tests/test_counters.py --update-counters"


LedgerKey = tuple[str, str]
"""(phase, id), as in ("forward", "small-ctx128-fp32-naive")."""


Line = Mapping[str, int | None]
"""Counter to value; None where the phase has none, as the optimizer has no model FLOPs."""


Ledger = Mapping[LedgerKey, Line]


def ledger_file(folder: Path, torch_version: str) -> Path:
    """`torch-2.13.csv` for torch 2.13.0+cpu."""
    major, minor = torch_version.split(".")[:2]
    return folder / f"torch-{major}.{minor}.csv"


def read_ledger(path: Path) -> dict[LedgerKey, dict[str, int | None]]:
    """The ledger at `path`; raises ValueError with one sentence for an unreadable or other file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
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


def moved(old: Ledger, new: Ledger) -> list[str]:
    """The differences in words, in the order of the new ledger; cases that are gone come last."""
    found = []
    for key, line in new.items():
        before = old.get(key)
        if before is None:
            found.append(f"{' '.join(key)}: new")
        else:
            changes = [_change(name, before[name], line[name]) for name in COUNTERS if before[name] != line[name]]
            found += [f"{' '.join(key)}: {change}" for change in changes]
    return found + [f"{' '.join(key)}: gone" for key in old if key not in new]


def _change(counter: str, old: int | None, new: int | None) -> str:
    before, after = ("none" if value is None else f"{value:,}" for value in (old, new))
    rise = "" if old is None or new is None else f" ({new - old:+,})"
    return f"{counter} {before} -> {after}{rise}"


@dataclass
class LedgerBook:
    """One run over the ledger of one torch version, open for comparison or, with `is_updating`, for replacement."""

    path: Path
    torch_version: str
    is_updating: bool
    keys: Sequence[LedgerKey]
    """Of every line that the ledger should have, in order."""
    ledger: Ledger | None
    """None where this torch version has none yet."""
    options: str = ""
    """Of the command: which model, for one of one's own."""
    counted: dict[LedgerKey, Line] = field(default_factory=dict)

    @classmethod
    def opened(
        cls, folder: Path, torch_version: str, is_updating: bool, keys: Sequence[LedgerKey], options: str = ""
    ) -> "LedgerBook":
        """Raises ValueError with one sentence for a ledger that cannot be read."""
        path = ledger_file(folder, torch_version)
        ledger = read_ledger(path) if path.exists() else None
        return cls(path, torch_version, is_updating, keys, ledger, options)

    @property
    def why_not_compared(self) -> str | None:
        """None with a ledger to compare with."""
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
        return self._with_next_step(moved(old, counted))

    def strangers(self) -> list[str]:
        """A sentence for each line of the ledger that belongs to no case; an update drops them."""
        if self.is_updating or self.ledger is None:
            return []
        strangers = sorted(self.ledger.keys() - self.keys)
        return self._with_next_step([f"{' '.join(key)}: in the ledger but not in the grid" for key in strangers])

    def closed(self, is_complete: bool) -> list[str]:
        """Write the ledger where it is updated; lines for the user."""
        if self.why_not_compared:
            return [*(_shown(key, line) for key, line in self.counted.items()), self.why_not_compared]
        if not self.is_updating:
            return []
        if not is_complete:
            return [f"{self.path} is unchanged, because some cases could not be counted."]
        old = self.ledger or {}
        known = {**old, **self.counted}
        new = {key: known[key] for key in self.keys if key in known}
        write_ledger(self.path, new)
        changes = moved(old, new)
        return [*changes, f"{len(changes)} counters or cases changed; {self.path} has {len(new)} lines."]

    def _with_next_step(self, findings: list[str]) -> list[str]:
        next_step = f"If this is intended, accept it with `{COMMAND}{self.options}` and commit {self.path.name}."
        return [*findings, next_step] if findings else []


def _shown(key: LedgerKey, line: Line) -> str:
    return f"{' '.join(key)}: " + ", ".join(f"{name} {line[name]}" for name in COUNTERS if line[name] is not None)


# The grid of a ledger of exact counters, on an imaginary GPU: every size, context and phase, or those asked for.
BATCH_SIZE = 4


DEVICE = "cuda"
"""Its rules are applied on the CPU, so no GPU is needed."""


OPTIMIZER = "foreach"
"""AdamW's default on a GPU."""


GRID_PRECISIONS = ("fp32", "bf16")


def counted_grid() -> dict[str, list[Case]]:
    """Return, by id, the cases that differ only in their phase and share one count, smallest first."""
    sizes = [size for size in SIZES if size not in SIZES_APART]
    grid: dict[str, list[Case]] = {
        LanguageModelCase.id_of(size, context, precision, attention): _cases(
            LanguageModelCase(
                phase="forward", size=size, config=SIZES[size].at_context(context), context_length=context,
                batch_size=BATCH_SIZE, precision=precision, attention=attention, execution="eager", checkpoint="none",
                optimizer=None, device=DEVICE, model="ours",
            )
        )
        for size, context, attention, precision in product(sizes, CONTEXTS, COUNTED_ATTENTION, GRID_PRECISIONS)
    }  # fmt: skip
    for head_dim, sequence_length, attention in product(HEAD_DIMS, SEQUENCE_LENGTHS, COUNTED_ATTENTION):
        grid[AttentionCase.id_of(head_dim, sequence_length, "fp32", attention)] = [
            AttentionCase(phase.name, head_dim, sequence_length, ATTENTION_BATCH_SIZE, "fp32", attention, DEVICE)
            for phase in phases_of(ATTENTION_ALONE)
        ]
    return grid


def own_grid(settings: Settings) -> dict[str, list[Case]]:
    """The same for the model of --model, over the axes of the run. Raises OwnModelError."""
    grid: dict[str, list[Case]] = {}
    for values in LanguageModelCase.grid(settings):
        axes = dict(zip(LanguageModelCase.axes, values, strict=True))
        case = LanguageModelCase.of("forward", axes, settings)
        grid[LanguageModelCase.id_of(*values)] = _cases(replace(case, device=DEVICE))
    return grid


def _cases(case: LanguageModelCase) -> list[Case]:
    return [
        replace(case, phase=phase.name, optimizer=OPTIMIZER if phase.trains else None)
        for phase in phases_of(LANGUAGE_MODEL)
    ]


def line_of(counters: Counters) -> dict[str, int | None]:
    """The counters that the ledger keeps."""
    return {name: getattr(counters, name) for name in COUNTERS}


# What ranks send in a training step, for the ledger: every size in each way to share a step, on 2, 8 and 64 ranks.
WORLDS = (2, 8, 64)


SENT_COLUMNS = ("size", "parallel", "world", "messages", "bytes_sent_by_all_ranks")


def sent_lines() -> list[str]:
    """A line of CSV for each, under a header. A rank's share may be a fraction of a byte, the sum of all is not."""
    lines = [",".join(SENT_COLUMNS)]
    for size, variant, world in product([size for size in SIZES if size not in SIZES_APART], VARIANTS, WORLDS):
        messages = step_messages(variant, parameter_shapes(SIZES[size]), world)
        lines.append(f"{size},{variant},{world},{len(messages)},{int(world * sent_bytes(messages, world))}")
    return lines
