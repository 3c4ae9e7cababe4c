"""Interrupted runs: which of them a call goes on with, and whether another run measures here."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from perf_tests_suite.perf_tests.records.journal import (
    Journal,
    JournalContents,
    read_journal,
    remove_headless,
    unfinished_journals,
)
from perf_tests_suite.perf_tests.records.record import Json, machine_differences
from perf_tests_suite.perf_tests.records.store import is_locked, machine_folder, remove_unfinished


class ResumeError(Exception):
    """The run cannot begin beside another, or cannot be resumed; the message is one sentence."""


DRIVER = "gpu.driver: "
"""The fact of a machine that a resumed run may change, as `machine_differences` writes it."""


def open_journal(
    storage: Path, header: Json, resume: bool, any_driver: bool = False
) -> tuple[Journal, JournalContents, list[str]]:
    """Open a new journal, or with `resume` that of this machine's newest interrupted run, if there is one.

    Returns it with its contents and a sentence for each run of another machine. Raises ResumeError when the interrupted
    run differs from this one or another run measures here, OSError when the journal cannot be written.
    """
    _refuse_a_second_run(storage, header)
    remove_unfinished(machine_folder(storage))
    remove_headless(machine_folder(storage))
    passed_over: list[str] = []
    for path, contents in _interrupted_runs(storage) if resume else ():
        differences = machine_differences(header["machine_info"], contents.header["machine_info"])
        if any(not difference.startswith(DRIVER) for difference in differences):
            passed_over.append(f"{path.name} is of another machine or build: {'; '.join(differences)}.")
            continue
        if is_locked(path):
            continue
        difference = _difference(contents.header, header)
        if difference:
            command = f"`{contents.header['command']}`"
            # With the same settings and selection only the code differs, and the command alone would be refused again.
            how = f"{'go back to that code and ' if difference == CODE else ''}resume it with {command}"
            raise ResumeError(
                f"The interrupted run {path.name} differs from this one in {difference}; {how}, or delete {path} to "
                "start over."
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
    return Journal.create(machine_folder(storage), header), JournalContents(header), passed_over


def newest_selection(storage: Path) -> set[str]:
    """Return the ids of the newest interrupted run's cases; none without such a run."""
    ids = (set(contents.header["selection"]) for path, contents in _readable_runs(storage) if not is_locked(path))
    return next(ids, set())


def _readable_runs(storage: Path) -> Iterator[tuple[Path, JournalContents]]:
    """Yield the unfinished runs, newest first, without those of which nothing can be read."""
    for path in unfinished_journals(storage):
        with suppress(OSError, ValueError):
            if (contents := read_journal(path)) is not None:
                yield path, contents


def _refuse_a_second_run(storage: Path, header: Json) -> None:
    """Raise ResumeError where another run measures on this device: the two would slow each other."""

    def place(run: Json) -> tuple[object, object]:
        return run["machine_info"].get("node"), run["settings"].get("device")

    for path, contents in _readable_runs(storage):
        if is_locked(path) and place(contents.header) == place(header):
            raise ResumeError(
                f"Process {contents.process} is measuring here already, in {path}; wait for it, or choose another "
                "device or --benchmark-storage."
            )


def _interrupted_runs(storage: Path) -> Iterator[tuple[Path, JournalContents]]:
    """Yield them newest first. Raises ResumeError for a damaged one."""
    for path in unfinished_journals(storage):
        try:
            contents = read_journal(path)
        except FileNotFoundError:  # that run has just become complete
            continue
        except ValueError as error:
            raise ResumeError(f"{error} Delete it to start over.") from error
        if contents is not None:
            yield path, contents


CODE = "its code, which has changed since"


def _difference(interrupted: Json, now: Json) -> str:
    """Say what makes two headers different runs; empty if they are one."""
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
    return CODE if interrupted["source"] != now["source"] else ""
