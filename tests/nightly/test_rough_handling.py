"""Runs survive rough handling: Ctrl-C, SIGTERM and kill -9, at every kind of moment.

Each of the two signals is sent to twenty runs, and a hundred runs, resumed runs, passes and gates are killed, the
moments spread over start, collection, warm-up, rounds, between cases and saving. Nothing is timed.
"""

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

from perf_tests.gate.samples import read_samples
from perf_tests.interleaved.sides import TREES
from perf_tests.records.journal import read_journal
from perf_tests.run.termination import EXIT_CODES
from tests.support.forked_python import forked_python
from tests.support.git_repository import make_repository
from tests.support.launch import ROOT, start_command
from tests.support.launch import SMALL as SMALL_CASES
from tests.support.struck import STAGES, moments

SMALL = ("-p", "tests.support.struck", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *SMALL_CASES)
QUICK = ("-p", "tests.support.quick_ceiling")
RUN = ("perf_tests/test_forward.py", *QUICK, "--phase=forward", "--context=8,16,24")
PASSES = ("perf_tests/test_forward.py", "perf_tests/test_memory.py", *QUICK, "--phase=forward", "--memory")
GATE = (
    "perf_tests/test_attention.py", "-p", "tests.support.quick_gate", "--phase=forward", "--against=HEAD",
)  # fmt: skip

SIGNALS = 20

SECONDS_TO_END = 2.0
"""A worker whose run was killed may take so long."""


@dataclass(frozen=True)
class Strike:
    """One launch and the moment at which it is struck: the `number`-th of its stage, or for 0 the first of its name."""

    kind: str
    stage: str
    number: int
    name: str
    sent: signal.Signals = signal.SIGKILL
    is_torn: bool = False
    """Whether half a line is left at the end of the journal."""

    @property
    def at(self) -> str:
        return f"{self.stage}:{self.number}" if self.number else f"first:{self.name}"


AFTER_ONE_CASE = Strike("run", "between cases", 0, "pytest_runtest_teardown")


@dataclass(frozen=True)
class Ended:
    exit_code: int
    said: str
    kept: list[str]
    """Cases whose rows it wrote to the disk."""


Check = Callable[["Place", Strike], Iterator[str]]


class Place:
    """A temporary folder with the storage of some launches."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder, self.root, self.storage = folder, root, folder / "storage"
        (folder / "tmp").mkdir()

    def launch(self, arguments: Sequence[str], strike: Strike | None = None, *more: str) -> Ended:
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        variables = {"STRUCK_LOG": str(log), "TMPDIR": str(self.folder / "tmp")}
        if strike is not None:
            variables |= {"STRUCK_AT": strike.at, "STRUCK_WITH": strike.sent.name}
        storage = f"--benchmark-storage=file://{self.storage}"
        command = (forked_python(), "-m", "pytest", *SMALL, storage, *arguments, *more)
        process = start_command(command, self.root, self.root, **variables)
        output, errors = process.communicate(timeout=300)
        return Ended(process.returncode, output + errors, moments(log, "kept") if log.exists() else [])

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted(self.storage.glob("*/*.json"))]

    @property
    def journals(self) -> list[Path]:
        return list(self.storage.glob("*/journal-*"))

    @property
    def left_behind(self) -> Iterator[str]:
        yield from (f"{path.name} is left" for path in self.storage.rglob(".unfinished*"))
        yield from (f"{path.name[:16]} is left" for path in (self.folder / "tmp").glob(f"{TREES}*"))

    @property
    def rounds_on_disk(self) -> dict[str, list[list[float]]]:
        """Raw rounds by case, in every record and journal."""
        found: dict[str, list[list[float]]] = {}
        contents = [contents for path in self.journals if (contents := read_journal(path)) is not None]
        of_journals = [contents.benchmarks for contents in contents]
        for row in (row for rows in [*(r["benchmarks"] for r in self.records), *of_journals] for row in rows):
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
    while processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    return [f"process {number} is left" for number in processes()]


def signalled(place: Place, strike: Strike) -> Iterator[str]:
    """What does not hold after Ctrl-C or SIGTERM."""
    ended = place.launch(RUN, strike)
    if ended.exit_code != EXIT_CODES[strike.sent]:
        yield f"exit code {ended.exit_code}"
    if "Traceback" in ended.said or "INTERNALERROR" in ended.said:
        yield "a traceback"
    if ended.kept and len(place.journals) + len(place.records) != 1:
        yield f"{len(place.journals)} journals and {len(place.records)} records of {len(ended.kept)} finished cases"
    if not ended.kept and place.journals:
        yield "a journal of no case"
    yield from (*processes_left(), *place.left_behind)


def killed_run(place: Place, strike: Strike) -> Iterator[str]:
    """What does not hold after kill -9 of a run, or of one that resumes it, and `--resume`."""
    arguments = PASSES if strike.kind == "passes" else RUN
    kept = place.launch(arguments, AFTER_ONE_CASE).kept if strike.kind == "resumed" else []
    ended = place.launch(arguments, strike, "--resume")
    if ended.exit_code != -signal.SIGKILL:
        yield f"not killed, but ended with {ended.exit_code}"
    kept += ended.kept
    yield from processes_left()
    for journal in place.journals if strike.is_torn else ():
        with journal.open("ab") as file:
            file.write(b'{"started": "perf_te')
    before = {case: rounds[0] for case, rounds in place.rounds_on_disk.items()}
    last = place.launch(arguments, None, "--resume")
    if last.exit_code:
        yield f"--resume exits with {last.exit_code}"
    yield from records_of(place, before, kept)
    yield from (*processes_left(), *place.left_behind, *(f"{path.name[:7]} is left" for path in place.journals))


def records_of(place: Place, before: dict[str, list[float]], kept: list[str]) -> Iterator[str]:
    """What is wrong with the records in the end."""
    records = place.records
    if len({record["datetime"] for record in records}) < len(records):
        yield "a run is saved twice"
    for record in records:
        counts = Counter(row["fullname"] for row in record["benchmarks"]) + Counter(r["id"] for r in record["passes"])
        if len(counts) != (2 if record["passes"] else 3) or set(counts.values()) != {1}:
            yield f"a record holds {sorted(counts.values())}"
        yield from (f"condemned: {row['reason']}" for row in record["outcomes"])
    in_the_end = place.rounds_on_disk
    if any(rounds not in in_the_end.get(case, ()) for case, rounds in before.items()):
        yield "a finished case is lost"
    passes = {row["id"] for record in records for row in record["passes"]}
    if not set(kept) <= in_the_end.keys() | passes:
        yield "a case whose row was written is lost"


def killed_gate(place: Place, strike: Strike) -> Iterator[str]:
    """What does not hold after kill -9 of a gate, and the start of the next."""
    ended = place.launch(GATE, strike)
    if ended.exit_code != -signal.SIGKILL:
        yield f"not killed, but ended with {ended.exit_code}"
    yield from processes_left()
    log = place.folder / "log"
    appended = sum(moments(log, stage).count("after append") for stage in STAGES)
    for path in place.storage.glob("gate/*.jsonl"):
        samples = read_samples(path)
        if len(samples.measurements) + len(samples.events) < appended:
            yield "a sample is lost"
    following = place.launch(GATE, replace(strike, number=0, name="after send", sent=signal.SIGTERM))
    if following.exit_code != EXIT_CODES[signal.SIGTERM]:
        yield f"the next gate exits with {following.exit_code}"
    yield from (*processes_left(), *place.left_behind)


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


def seen(arguments: Sequence[str], root: Path, before: Strike | None = None) -> dict[str, list[str]]:
    """The moments of an undisturbed launch, but for those after its last file; of one that resumes what was struck."""
    for _ in range(2):  # the first may write caches of the machine, which no later launch does
        with tempfile.TemporaryDirectory() as folder:
            place = Place(Path(folder), root)
            if before is not None:
                place.launch(arguments, before)
            ended = place.launch(arguments, None, *(["--resume"] if before else []))
            assert ended.exit_code == 0, ended.said
            found = {stage: moments(Path(folder, "log"), stage) for stage in STAGES}
    found["saving"] = found["saving"][: found["saving"].index("pytest_terminal_summary") + 1]
    return found


def broken_by(strikes: Sequence[Strike], check: Check, root: Path = ROOT) -> list[str]:
    """What did not hold, with the strike that showed it."""
    found = []
    for strike in strikes:
        with tempfile.TemporaryDirectory() as folder:
            found += [f"{strike}: {sentence}" for sentence in check(Place(Path(folder), root), strike)]
    return found


@pytest.fixture(scope="module", autouse=True)
def signals_reach_launches() -> Iterator[None]:
    """What a shell starts in the background ignores Ctrl-C, and so would every launch."""
    before = {number: signal.getsignal(number) for number in EXIT_CODES}
    for number in EXIT_CODES:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def moments_of_a_run() -> dict[str, list[str]]:
    return seen(RUN, ROOT)


@pytest.mark.parametrize("sent", EXIT_CODES, ids=lambda sent: sent.name)
def test_a_signal_ends_a_run_by_its_exit_code_keeps_what_is_finished_and_leaves_no_process(
    sent: signal.Signals, moments_of_a_run: dict[str, list[str]]
) -> None:
    strikes = [Strike("run", *moment, sent=sent) for moment in spread(moments_of_a_run, SIGNALS)]
    assert broken_by(strikes, signalled) == []


@pytest.mark.parametrize("kind, kills", [("run", 40), ("resumed", 20), ("passes", 20)])
def test_after_a_kill_nothing_finished_is_lost_or_doubled_and_nothing_is_left_behind(
    kind: str, kills: int, moments_of_a_run: dict[str, list[str]]
) -> None:
    """Every third journal is torn besides."""
    found = moments_of_a_run
    if kind != "run":
        found = seen(RUN, ROOT, AFTER_ONE_CASE) if kind == "resumed" else seen(PASSES, ROOT)
    strikes = [Strike(kind, *moment, is_torn=place % 3 == 2) for place, moment in enumerate(spread(found, kills))]
    assert broken_by(strikes, killed_run) == []


def test_after_a_kill_of_a_gate_its_samples_are_whole_and_the_next_one_starts(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    found = seen(GATE, root)
    found["between cases"] = found["between cases"][: len(found["between cases"]) // 2]  # turns vary in number
    assert broken_by([Strike("gate", *moment) for moment in spread(found, 20)], killed_gate, root) == []
