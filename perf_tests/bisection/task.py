"""What a search is to find, and what it has found so far: files in its temporary folder.

Each commit is judged by a process of its own, which git starts and which reads and writes these files.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from perf_tests.records.record import Json

State = Literal["slower", "not slower", "undecided", "absent", "stopped"]

EXIT_CODES: dict[State, int] = {"slower": 1, "not slower": 0, "undecided": 125, "absent": 125, "stopped": 255}
"""What a step tells `git bisect run`: 125 skips the commit, 255 ends the search."""


@dataclass(frozen=True)
class Task:
    """One search. `root` and `clone` are the suite's folders in the user's checkout and in the clone."""

    folder: str
    root: str
    clone: str
    good: str
    bad: str
    """Both the full hash."""
    case: str
    options: tuple[str, ...]
    """Of pytest."""
    minutes: float
    """Of the first gate run on a commit."""
    gate: tuple[str, ...]
    """The command that runs pytest."""

    def write(self) -> None:
        Path(self.folder, "task.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        values: Json = json.loads((folder / "task.json").read_text())
        return cls(**{**values, "options": tuple(values["options"]), "gate": tuple(values["gate"])})

    @property
    def steps(self) -> Path:
        return Path(self.folder, "steps.jsonl")

    @property
    def judged(self) -> list["Judged"]:
        """The commits so far, in the order of their verdicts."""
        return [Judged(**json.loads(line)) for line in self.steps.read_text().splitlines()]


@dataclass(frozen=True)
class Judged:
    """A commit against the good one."""

    commit: str
    subject: str
    state: State
    reason: str = ""
    """Of a commit without a verdict, or without launch pairs of its own."""
    effect: float | None = None
    """The slowdown as a share of the good commit's time, with its 95 % interval."""
    low: float | None = None
    high: float | None = None
    clock: str | None = None
    launch_pairs: int = 0
    """Over all gate runs on this commit."""

    def keep(self, task: Task) -> None:
        with task.steps.open("a") as file:
            file.write(json.dumps(self.to_json()) + "\n")

    def to_json(self) -> Json:
        return asdict(self)
