"""Whether runs survive rough handling: Ctrl-C, SIGTERM and kill -9, at every kind of moment.

`python -m claims.rough_handling [--signals N] [--kills N]` sends each of the two signals N times and kills N
runs, resumed runs, passes and gates, the moments spread over start, collection, warm-up, rounds, between cases, saving.
What must hold is in the claims that it prints. Nothing is timed.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from claims.verdict import conclude, conditions, gravest
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

SECONDS_TO_END = 2.0
"""Of a worker whose run was killed."""


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
        """By case its raw rounds, in every record and journal."""
        found: dict[str, list[list[float]]] = {}
        contents = [contents for path in self.journals if (contents := read_journal(path)) is not None]
        of_journals = [contents.benchmarks for contents in contents]
        for row in (row for rows in [*(r["benchmarks"] for r in self.records), *of_journals] for row in rows):
            found.setdefault(row["fullname"], []).append(row["stats"]["data"])
        return found


def processes() -> list[str]:
    """Those that this proof's launches started: all but the server, from which they are forked, know its folder."""
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
        if len(counts) != len(place_cases(record)) or set(counts.values()) != {1}:
            yield f"a record holds {sorted(counts.values())}"
        yield from (f"condemned: {row['reason']}" for row in record["outcomes"])
    in_the_end = place.rounds_on_disk
    if any(rounds not in in_the_end.get(case, ()) for case, rounds in before.items()):
        yield "a finished case is lost"
    passes = {row["id"] for record in records for row in record["passes"]}
    if not set(kept) <= in_the_end.keys() | passes:
        yield "a case whose row was written is lost"


def place_cases(record: dict[str, Any]) -> range:
    return range(2 if record["passes"] else 3)


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


Check = Callable[[Place, Strike], Iterator[str]]


def tried(strikes: Sequence[Strike], check: Check, root: Path) -> list[tuple[Strike, list[str]]]:
    """Each strike with what did not hold."""
    results = []
    for strike in strikes:
        with tempfile.TemporaryDirectory() as folder:
            broken = list(check(Place(Path(folder), root), strike))
        results.append((strike, broken))
        for sentence in broken:
            torn = ", journal torn" if strike.is_torn else ""
            words = f"{strike.kind}, {strike.sent.name} at {strike.stage} {strike.number} ({strike.name}{torn})"
            print(f"  {words}: {sentence}", flush=True)
    return results


def shown(results: Sequence[tuple[Strike, list[str]]], claim: str) -> int:
    rows = Counter((strike.kind, strike.sent.name, strike.stage) for strike, _ in results)
    held = Counter((strike.kind, strike.sent.name, strike.stage) for strike, broken in results if not broken)
    print(f"{'launch':8} {'signal':8} {'moment':14} tried  held")
    for row, count in rows.items():
        print(f"{row[0]:8} {row[1]:8} {row[2]:14} {count:5} {held[row]:5}")
    whole = sum(not broken for _, broken in results)
    return conclude(f"{claim}: {whole} of {len(results)}", whole == len(results))


def with_signals(count: int, found: dict[str, list[str]]) -> int:
    codes = []
    for sent, code in EXIT_CODES.items():
        strikes = [Strike("run", *moment, sent=sent) for moment in spread(found, count)]
        claim = f"{sent.name} exits {code}, keeps what is finished and leaves no process"
        codes.append(shown(tried(strikes, signalled, ROOT), claim))
    return gravest(*codes)


def with_kills(count: int, found: dict[str, list[str]]) -> int:
    """Two fifths of them of runs, the others of resumed runs, passes and gates."""
    of_kind = {
        "run": (count - 3 * (count // 5), found),
        "resumed": (count // 5, seen(RUN, ROOT, AFTER_ONE_CASE)),
        "passes": (count // 5, seen(PASSES, ROOT)),
    }
    results = []
    for kind, (kills, moments_there) in of_kind.items():
        chosen = spread(moments_there, kills)
        strikes = [Strike(kind, *moment, is_torn=number % 3 == 2) for number, moment in enumerate(chosen)]
        results += tried(strikes, killed_run, ROOT)
    with tempfile.TemporaryDirectory() as folder:
        root = make_repository(Path(folder))
        found = seen(GATE, root)
        found["between cases"] = found["between cases"][: len(found["between cases"]) // 2]  # turns vary in number
        strikes = [Strike("gate", *moment) for moment in spread(found, count // 5)]
        results += tried(strikes, killed_gate, root)
    claim = "after kill -9 nothing finished is lost or doubled, no healthy case is condemned and nothing is left behind"
    return shown(results, claim)


def main(signals: int, kills: int) -> int:
    for number in EXIT_CODES:  # what a shell starts in the background ignores Ctrl-C, and so would every launch
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    print(conditions(threads=1))
    found = seen(RUN, ROOT)
    return gravest(with_signals(signals, found), with_kills(kills, found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--signals", type=int, default=20, metavar="N")
    parser.add_argument("--kills", type=int, default=100, metavar="N")
    typed = parser.parse_args()
    sys.exit(main(typed.signals, typed.kills))
