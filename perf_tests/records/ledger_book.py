"""One run over the ledger: counters compared with the ledger or written into it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perf_tests.records.ledger import COUNTERS, Ledger, LedgerKey, Line, ledger_file, moved, read_ledger, write_ledger

COMMAND = "pytest perf_tests/test_counters.py --update-counters"


@dataclass
class LedgerBook:
    """The ledger of one torch version, open for comparison or, with `is_updating`, for replacement."""

    path: Path
    torch_version: str
    is_updating: bool
    keys: Sequence[LedgerKey]
    """Of every line that the ledger should have, in order."""
    ledger: Ledger | None
    """None where this torch version has none yet."""
    counted: dict[LedgerKey, Line] = field(default_factory=dict)

    @classmethod
    def opened(cls, folder: Path, torch_version: str, is_updating: bool, keys: Sequence[LedgerKey]) -> "LedgerBook":
        """Raises ValueError with one sentence for a ledger that cannot be read."""
        path = ledger_file(folder, torch_version)
        ledger = read_ledger(path) if path.exists() else None
        return cls(path, torch_version, is_updating, keys, ledger)

    @property
    def why_not_compared(self) -> str | None:
        """None with a ledger to compare with."""
        if self.is_updating or self.ledger is not None:
            return None
        return (
            f"torch {self.torch_version} has no ledger ({self.path}), so the counters are not compared; "
            f"record one with `{COMMAND}` and commit it."
        )

    def compare(self, counted: dict[LedgerKey, Line]) -> list[str]:
        """Take in counters; a sentence for each that differs from the ledger's, none while updating."""
        self.counted.update(counted)
        if self.is_updating or self.ledger is None:
            return []
        old = {key: self.ledger[key] for key in counted if key in self.ledger}
        findings = [found.in_words for found in moved(old, counted)]
        return [*findings, self._how_to_accept()] if findings else []

    def strangers(self) -> list[str]:
        """A sentence for each line of the ledger that belongs to no case; an update drops them."""
        if self.is_updating or self.ledger is None:
            return []
        found = [f"{' '.join(key)}: in the ledger but not in the grid" for key in self.ledger.keys() - self.keys]
        return [*sorted(found), self._how_to_accept()] if found else []

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
        changes = [found.in_words for found in moved(old, new)]
        return [*changes, f"{len(changes)} counters or cases changed; {self.path} has {len(new)} lines."]

    def _how_to_accept(self) -> str:
        return f"If this is intended, accept it with `{COMMAND}` and commit {self.path.name}."


def _shown(key: LedgerKey, line: Line) -> str:
    return f"{' '.join(key)}: " + ", ".join(f"{name} {line[name]}" for name in COUNTERS if line[name] is not None)
