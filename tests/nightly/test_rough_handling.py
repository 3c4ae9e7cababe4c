"""Runs survive rough handling: any moment and any of Ctrl-C, SIGTERM and kill -9 loses no finished case.

Each of the two signals is sent to twenty runs, and a hundred runs, resumed runs, passes and gates are killed, the
moments spread over start, collection, warm-up, rounds, between cases and saving. Nothing is timed.
"""

import functools
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from perf_tests_suite.perf_tests.gate.samples import read_samples
from perf_tests_suite.perf_tests.interleaved.sides import TREES
from perf_tests_suite.perf_tests.records.journal import read_journal
from perf_tests_suite.perf_tests.run.termination import EXIT_CODES
from tests.support.forked_python import forked_python
from tests.support.git_repository import make_repository
from tests.support.launch import ROOT, SMALL, start_command
from tests.support.struck import STAGES, moments

PLUGINS = ("-p", "tests.support.struck", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *SMALL)
QUICK = ("-p", "tests.support.quick_ceiling")
RUN = ("perf_tests/test_forward.py", *QUICK, "--phase=forward", "--context=8,16,24")
PASSES = ("perf_tests/test_forward.py", "perf_tests/test_memory.py", *QUICK, "--phase=forward", "--memory")
GATE = (
    "perf_tests/test_attention.py",
    "-p",
    "tests.support.quick_gate",
    "--phase=forward",
    "--against=HEAD",
    "--gate-measure-same",
)

SECONDS_TO_END = 2.0
"""A worker whose run was killed may take so long."""


@dataclass(frozen=True)
class Strike:
    """One launch and the moment at which it is struck: the `number`-th of its stage, or for 0 the first of its name."""

    stage: str
    number: int
    name: str
    sent: signal.Signals = signal.SIGKILL
    is_torn: bool = False
    """Whether half a line is left at the end of the journal."""


AFTER_ONE_CASE = Strike("between cases", 0, "pytest_runtest_teardown")


class Place:
    """A temporary folder with the storage of some launches."""

    def __init__(self, folder: Path, arguments: Sequence[str], root: Path = ROOT) -> None:
        self.folder, self.arguments, self.root = folder, arguments, root
        self.storage, self.log = folder / "storage", folder / "log"
        self.kept: set[str] = set()
        """Cases whose rows were written to the disk."""
        (folder / "tmp").mkdir()

    def launch(self, strike: Strike | None = None, *more: str) -> tuple[int, str]:
        """The exit code and what was said."""
        self.log.unlink(missing_ok=True)
        variables = {"STRUCK_LOG": str(self.log), "TMPDIR": str(self.folder / "tmp")}
        if strike is not None:
            at = f"{strike.stage}:{strike.number}" if strike.number else f"first:{strike.name}"
            variables |= {"STRUCK_AT": at, "STRUCK_WITH": strike.sent.name}
        storage = f"--benchmark-storage=file://{self.storage}"
        command = (forked_python(), "-m", "pytest", *PLUGINS, storage, *self.arguments, *more)
        process = start_command(command, self.root, self.root, **variables)
        output, errors = process.communicate(timeout=300)
        self.kept |= set(moments(self.log, "kept")) if self.log.exists() else set()
        return process.returncode, output + errors

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted(self.storage.glob("*/*.json"))]

    @property
    def journals(self) -> list[Path]:
        return list(self.storage.glob("*/journal-*"))

    def left_behind(self) -> Iterator[str]:
        yield from processes_left()
        yield from (f"{path.name} is left" for path in self.storage.rglob(".unfinished*"))
        yield from (f"{path.name[:16]} is left" for path in (self.folder / "tmp").glob(f"{TREES}*"))

    def rounds(self) -> dict[str, list[list[float]]]:
        """Raw rounds by case, in every record and journal."""
        found: dict[str, list[list[float]]] = {}
        journals = [contents.benchmarks for path in self.journals if (contents := read_journal(path)) is not None]
        for row in (row for rows in [*(r["benchmarks"] for r in self.records), *journals] for row in rows):
            found.setdefault(row["fullname"], []).append(row["stats"]["data"])
        return found


def processes() -> list[str]:
    """Those that these launches started: all but the server, from which they are forked, know its folder."""
    folder, found = str(Path(forked_python()).parent), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, state = (process / "cmdline").read_bytes().decode(), (process / "stat").read_text()
        except OSError:
            continue
        if folder in words and f" {os.getpid()} " not in state and state.rpartition(")")[2].split()[0] != "Z":
            found.append(process.name)
    return found


def processes_left() -> list[str]:
    deadline = time.monotonic() + SECONDS_TO_END
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [f"process {number} is left" for number in left]


def signalled(place: Place, strike: Strike) -> Iterator[str]:
    """What does not hold after Ctrl-C or SIGTERM."""
    exit_code, said = place.launch(strike)
    if exit_code != EXIT_CODES[strike.sent]:
        yield f"exit code {exit_code}"
    if "Traceback" in said or "INTERNALERROR" in said:
        yield "a traceback"
    wanted = 1 if place.kept else 0
    if len(place.journals) + len(place.records) != wanted:
        yield f"{len(place.journals)} journals and {len(place.records)} records of {len(place.kept)} finished cases"
    yield from place.left_behind()


def killed_run(place: Place, strike: Strike, is_resumed: bool = False) -> Iterator[str]:
    """What does not hold after kill -9 of a run, or of one that resumes it, and `--resume`."""
    if is_resumed:
        place.launch(AFTER_ONE_CASE)
    exit_code, _ = place.launch(strike, "--resume")
    if exit_code != -signal.SIGKILL:
        yield f"not killed, but ended with {exit_code}"
    yield from processes_left()
    for journal in place.journals if strike.is_torn else ():
        with journal.open("ab") as file:
            file.write(b'{"started": "perf_te')
    before = {case: rounds[0] for case, rounds in place.rounds().items()}
    exit_code, _ = place.launch(None, "--resume")
    if exit_code:
        yield f"--resume exits with {exit_code}"
    if len({record["datetime"] for record in place.records}) < len(place.records):
        yield "a run is saved twice"
    in_the_end, passes = place.rounds(), {row["id"] for record in place.records for row in record["passes"]}
    for record in place.records:
        counts = Counter([*(row["fullname"] for row in record["benchmarks"]), *(row["id"] for row in record["passes"])])
        if sorted(counts.values()) != [1] * (2 if record["passes"] else 3) or record["outcomes"]:
            yield f"a record holds {sorted(counts.values())} and {record['outcomes']}"
    if any(rounds not in in_the_end.get(case, ()) for case, rounds in before.items()):
        yield "a finished case is lost"
    if not place.kept <= in_the_end.keys() | passes:
        yield "a case whose row was written is lost"
    yield from (*place.left_behind(), *(f"{path.name[:7]} is left" for path in place.journals))


def killed_gate(place: Place, strike: Strike) -> Iterator[str]:
    """What does not hold after kill -9 of a gate, and the start of the next."""
    exit_code, _ = place.launch(strike)
    if exit_code != -signal.SIGKILL:
        yield f"not killed, but ended with {exit_code}"
    yield from processes_left()
    appended = sum(moments(place.log, stage).count("after append") for stage in STAGES)
    for samples in map(read_samples, place.storage.glob("gate/*.jsonl")):
        if len(samples.measurements) + len(samples.events) < appended:
            yield "a sample is lost"
    exit_code, _ = place.launch(replace(strike, number=0, name="after send", sent=signal.SIGTERM))
    if exit_code != EXIT_CODES[signal.SIGTERM]:
        yield f"the next gate exits with {exit_code}"
    yield from place.left_behind()


def spread(found: dict[str, list[str]], count: int) -> list[tuple[str, int, str]]:
    """`count` moments: as many of each stage as there are, each stage's from its first to its last.

    A hook that collection calls for every file counts as one moment, known by its name.
    """
    chosen: list[tuple[str, int, str]] = []
    for place, stage in enumerate(stages := [stage for stage in STAGES if found[stage]]):
        numbered = list(enumerate(found[stage], start=1))
        if stage in ("start", "collection"):
            numbered = [(0, name) for name in dict.fromkeys(found[stage])]
        wanted = count * (place + 1) // len(stages) - count * place // len(stages)
        steps = [round(step * (len(numbered) - 1) / max(1, wanted - 1)) for step in range(wanted)]
        chosen += [(stage, *numbered[step]) for step in steps]
    return chosen


@functools.cache
def seen(arguments: Sequence[str], root: Path = ROOT, is_resumed: bool = False) -> dict[str, list[str]]:
    """The moments of an undisturbed launch, but for those after its last file; of one that resumes what was struck."""
    for _ in range(2):  # the first may write caches of the machine, which no later launch does
        with tempfile.TemporaryDirectory() as folder:
            place = Place(Path(folder), arguments, root)
            if is_resumed:
                place.launch(AFTER_ONE_CASE)
            exit_code, said = place.launch(None, *(["--resume"] if is_resumed else []))
            assert exit_code == 0, said
            found = {stage: moments(place.log, stage) for stage in STAGES}
    found["saving"] = found["saving"][: found["saving"].index("pytest_terminal_summary") + 1]
    return found


def broken_by(
    strikes: Sequence[Strike], check: Callable[..., Iterator[str]], arguments: Sequence[str], root: Path = ROOT,
    **known: bool,
) -> list[str]:  # fmt: skip
    """What did not hold, with the strike that showed it."""
    found = []
    for strike in strikes:
        with tempfile.TemporaryDirectory() as folder:
            place = Place(Path(folder), arguments, root)
            found += [f"{strike}: {sentence}" for sentence in check(place, strike, **known)]
    return found


@pytest.fixture(scope="module", autouse=True)
def signals_reach_launches() -> Iterator[None]:
    """What a shell starts in the background ignores Ctrl-C, and so would every launch."""
    defaults: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("sent", EXIT_CODES, ids=lambda sent: sent.name)
def test_a_signal_ends_a_run_by_its_exit_code_keeps_what_is_finished_and_no_process(sent: signal.Signals) -> None:
    strikes = [Strike(*moment, sent=sent) for moment in spread(seen(RUN), 20)]
    assert broken_by(strikes, signalled, RUN) == []


@pytest.mark.parametrize(
    "arguments, is_resumed, kills", [(RUN, False, 40), (RUN, True, 20), (PASSES, False, 20)],
    ids=["run", "resumed", "passes"],
)  # fmt: skip
def test_a_kill_loses_and_doubles_nothing_finished(arguments: Sequence[str], is_resumed: bool, kills: int) -> None:
    """Every third journal is torn besides."""
    found = spread(seen(arguments, is_resumed=is_resumed), kills)
    strikes = [Strike(*moment, is_torn=place % 3 == 2) for place, moment in enumerate(found)]
    assert broken_by(strikes, killed_run, arguments, is_resumed=is_resumed) == []


def test_after_a_kill_of_a_gate_its_samples_are_whole_and_the_next_one_starts(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    found = dict(seen(GATE, root))
    found["between cases"] = found["between cases"][: len(found["between cases"]) // 2]  # turns vary in number
    assert broken_by([Strike(*moment) for moment in spread(found, 20)], killed_gate, GATE, root) == []
