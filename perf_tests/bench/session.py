"""One run from its first case to its record: the journal, and the rows of each case."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from perf_tests.bench.outcomes import KILLED, Outcome
from perf_tests.bench.progress import Progress
from perf_tests.cases.case import Case
from perf_tests.records.journal import (
    Journal,
    JournalContents,
    is_running,
    read_journal,
    remove_headless,
    unfinished_journals,
)
from perf_tests.records.record import OUTCOMES, Json, build_record, machine_differences
from perf_tests.records.store import own_folder, remove_unfinished, save_record, saved_as
from perf_tests.views.screens.lines import case_name, duration

DRIVER = "gpu.driver: "
"""The fact of a machine that a resumed run may change, as `machine_differences` writes it."""


class ResumeError(Exception):
    """The run cannot begin beside another, or cannot be resumed; the message is one sentence."""


@dataclass
class MeasuringSession:
    """Keeps the journal of one run and builds its record."""

    journal: Journal
    contents: JournalContents
    """What the journal holds, with the cases of an interrupted run."""
    progress: Progress
    in_flight: str | None = None
    """The case that has begun and has no row yet."""
    was_complete: bool = field(default=False, init=False)
    """Whether an earlier process finished the last case."""
    saved: Path | None = field(default=None, init=False)
    """The record of a run that was killed before it removed its journal."""

    def __post_init__(self) -> None:
        self.was_complete = self.is_complete
        if self.was_complete:
            self.saved = saved_as(self.journal.path.parent, self.journal.path.stem)

    def begin(self, case_id: str, warmup_rounds: int, rounds: int) -> None:
        self.journal.write("started", case_id)
        self.in_flight = case_id
        self.progress.begin(case_id, warmup_rounds, rounds)

    def measured(self, row: Json) -> None:
        self._keep("benchmark", row, row["fullname"], duration(row["stats"]["median"]))

    def not_measured(
        self, case_id: str, case: Case, outcome: Outcome, rounds: Sequence[float] = (), extra_pass: str | None = None
    ) -> None:
        row = outcome.as_row(case_id, case, rounds) | ({} if extra_pass is None else {"pass": extra_pass})
        self._keep("outcome", row, case_id, OUTCOMES[outcome.outcome])

    def passed(self, case_id: str, case: Case, extra_pass: str, values: Json) -> None:
        row = {"id": case_id, "identity": case.identity(), "pass": extra_pass, "values": values}
        self._keep("pass", row, case_id, "done")

    def _keep(self, kind: str, row: Json, case_id: str, result: str) -> None:
        self.journal.write(kind, row)
        self.contents.add(kind, row)
        self.in_flight = None
        self.progress.end(case_id, f"{case_name(case_id)}  {result}")

    def measure_again(self, case_id: str) -> None:
        """Whatever the journal holds of the case does not count. Raises OSError."""
        self.journal.write("again", case_id)
        self.contents.add("again", case_id)

    def side_file(self, case_id: str, suffix: str) -> Path:
        """The path of a file too large for the record, in the run's folder beside it. Raises OSError."""
        folder = self.journal.path.with_name(self.journal.path.stem.replace("journal", "files", 1))
        folder.mkdir(exist_ok=True)
        return folder / f"{case_name(case_id).replace(' ', '-')}.{suffix}"

    @property
    def is_complete(self) -> bool:
        return set(self.contents.header["selection"]) <= self.contents.finished_ids

    @property
    def killed_in(self) -> list[str]:
        """Cases given up, perhaps by no fault of theirs, that the user has not seen in an earlier process."""
        rows = [] if self.was_complete else self.contents.outcomes
        return [row["id"] for row in rows if row["reason"] == KILLED.reason]

    def record(self) -> Json:
        """The run in the order of its selection, also where several calls finished it."""
        place = {case_id: number for number, case_id in enumerate(self.contents.header["selection"])}

        def in_order(rows: list[Json], name: str) -> list[Json]:
            return sorted(rows, key=lambda row: place.get(row[name], len(place)))

        return build_record(
            {**self.contents.header, "run": self.journal.path.stem},
            in_order(self.contents.benchmarks, "fullname"),
            in_order(self.contents.outcomes, "id"),
            in_order(self.contents.passes, "id"),
        )

    def save(self, record: Json, storage: Path, name: str) -> Path:
        """Write the run's record, then delete the journal; raises OSError, and then the journal stays."""
        path = self.saved or save_record(record, own_folder(storage), name)
        self.journal.discard()
        return path


def open_journal(
    storage: Path, header: Json, resume: bool, any_driver: bool = False
) -> tuple[Journal, JournalContents, list[str]]:
    """A new journal, or with `resume` that of this machine's newest interrupted run, if there is one.

    Beside it a sentence for each run of another machine. Raises ResumeError when the interrupted run differs from this
    one or another run measures here, OSError when the journal cannot be written.
    """
    _refuse_a_second_run(storage, header)
    remove_unfinished(own_folder(storage))
    remove_headless(own_folder(storage))
    passed_over: list[str] = []
    for path, contents in _interrupted_runs(storage, header) if resume else ():
        differences = machine_differences(header["machine_info"], contents.header["machine_info"])
        if any(not difference.startswith(DRIVER) for difference in differences):
            passed_over.append(f"{path.name} is of another machine or build: {'; '.join(differences)}.")
            continue
        if is_running(path):
            continue
        difference = _difference(contents.header, header)
        if difference:
            raise ResumeError(
                f"The interrupted run {path.name} differs from this one in {difference}; "
                f"resume it with `{contents.header['command']}`, or delete {path} to start over."
            )
        if differences and not any_driver:
            raise ResumeError(
                f"The interrupted run {path.name} is of another NVIDIA driver ({differences[0]}); resume it with "
                f"--resume-any-driver, or delete {path} to start over."
            )
        journal = Journal.reopen(path)
        if journal is None:  # another process has just taken or completed it
            continue
        if differences:
            driver = header["machine_info"]["torch"]["gpu"]["driver"]
            journal.write("driver", driver)
            contents.add("driver", driver)
        return journal, contents, []
    return Journal.create(own_folder(storage), header), JournalContents(header), passed_over


def newest_selection(storage: Path) -> set[str]:
    """The cases of the newest interrupted run; none without one."""
    for path in unfinished_journals(storage):
        with suppress(OSError, ValueError):
            contents = read_journal(path)
            if contents is not None and not is_running(path):
                return set(contents.header["selection"])
    return set()


def _refuse_a_second_run(storage: Path, header: Json) -> None:
    """Two runs on one device would slow each other. Shares of one grid run beside each other, on several GPUs."""
    for path in filter(is_running, unfinished_journals(storage)):
        with suppress(OSError, ValueError):
            contents = read_journal(path)
            if contents is not None and _is_here(contents.header, header):
                raise ResumeError(
                    f"Process {contents.process} is measuring here already, in {path}; wait for it, or choose another "
                    "device or --benchmark-storage."
                )


def _is_here(theirs: Json, ours: Json) -> bool:
    there, here = ((run["machine_info"].get("node"), run["settings"].get("device")) for run in (theirs, ours))
    return there == here and not _is_another_share(theirs, ours)


def _interrupted_runs(storage: Path, header: Json) -> Iterator[tuple[Path, JournalContents]]:
    """Newest first, without those of other shares of this grid. Raises ResumeError for a damaged one."""
    for path in unfinished_journals(storage):
        try:
            contents = read_journal(path)
        except FileNotFoundError:  # that run has just become complete
            continue
        except ValueError as error:
            raise ResumeError(f"{error} Delete it to start over.") from error
        if contents is not None and not _is_another_share(contents.header, header):
            yield path, contents


def _is_another_share(interrupted: Json, now: Json) -> bool:
    """Whether both are shares of one grid, which may lie side by side in one folder."""
    theirs, ours = interrupted["settings"].get("shard"), now["settings"].get("shard")
    return isinstance(theirs, list) and ours is not None and theirs[:1] != ours[:1] and theirs[1:] == ours[1:]


def _difference(interrupted: Json, now: Json) -> str:
    """What makes two headers different runs; empty if they are one."""
    before = interrupted["settings"]
    changed = [
        f"{name} ({before.get(name)!r} then, {value!r} now)"
        for name, value in now["settings"].items()
        if before.get(name) != value
    ]
    if changed:
        return ", ".join(changed)
    if interrupted["selection"] != now["selection"]:
        return f"its selection ({len(interrupted['selection'])} cases then, {len(now['selection'])} now)"
    if interrupted["source"] != now["source"]:
        return "its code, which has changed since"
    return ""
