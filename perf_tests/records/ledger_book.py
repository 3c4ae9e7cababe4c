"""One run over the ledger: what was counted, held against the ledger or written into it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perf_tests.records.ledger import COUNTERS, Ledger, LedgerKey, Line, ledger_file, moved, read_ledger, write_ledger

COMMAND = "pytest perf_tests/test_counters.py --update-counters"


@dataclass
class LedgerBook:
    """The ledger of one torch version, open for comparison or, where `is_updating`, for a new one."""

    path: Path
    torch_version: str
    is_updating: bool
    keys: Sequence[LedgerKey]
    """Every line that the ledger should have, in order."""
    ledger: Ledger | None
    """None where this torch version has none yet."""
    counted: dict[LedgerKey, Line] = field(default_factory=dict)

    @classmethod
    def opened(cls, folder: Path, torch_version: str, is_updating: bool, keys: Sequence[LedgerKey]) -> "LedgerBook":
        """Raises ValueError with one sentence where the ledger is there and cannot be read."""
        path = ledger_file(folder, torch_version)
        ledger = read_ledger(path) if path.exists() else None
        return cls(path, torch_version, is_updating, keys, ledger)

    @property
    def why_not_compared(self) -> str | None:
        """None where there is something to compare with."""
        if self.is_updating or self.ledger is not None:
            return None
        return (
            f"there is no ledger for torch {self.torch_version} ({self.path}), so the counters are compared with "
            f"nothing; record one with `{COMMAND}` and commit it."
        )

    def compare(self, counted: dict[LedgerKey, Line]) -> list[str]:
        """Take in what was counted; a sentence for each counter that is not the ledger's, none while updating."""
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
        found = [
            f"{phase} {case_id}: is in the ledger and in no grid" for phase, case_id in self.ledger.keys() - self.keys
        ]
        return [*sorted(found), self._how_to_accept()] if found else []

    def closed(self, is_complete: bool) -> list[str]:
        """Write the ledger where it is updated; what to tell the user."""
        if self.why_not_compared:
            return [*(_shown(key, line) for key, line in self.counted.items()), self.why_not_compared]
        if not self.is_updating:
            return []
        if not is_complete:
            return [f"{self.path} is left as it was, for not every case could be counted."]
        old = self.ledger or {}
        known = {**old, **self.counted}
        new = {key: known[key] for key in self.keys if key in known}
        write_ledger(self.path, new)
        changes = [found.in_words for found in moved(old, new)]
        return [*changes, f"{len(changes)} counters or cases moved; {self.path} has {len(new)} lines."]

    def _how_to_accept(self) -> str:
        return f"If this is meant, accept it with `{COMMAND}` and commit {self.path.name}."


def _shown(key: LedgerKey, line: Line) -> str:
    return f"{' '.join(key)}: " + ", ".join(f"{name} {line[name]}" for name in COUNTERS if line[name] is not None)
