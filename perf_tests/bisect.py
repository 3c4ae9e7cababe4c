"""One commit of a search: `python -P -m perf_tests.bisect FOLDER [COMMIT]`, started by `git bisect run`.

Its exit code is the verdict. It ends with the search that started git, whatever ends that."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

from perf_tests.bench.workers import end_with_starter, last_words
from perf_tests.gate.samples import read_samples, rules_from_settings
from perf_tests.gate.verdicts import RunVerdict, Verdict, conclude
from perf_tests.interleaved.measuring import environment_without_the_suite
from perf_tests.interleaved.run import alone
from perf_tests.interleaved.sides import LEFT_OUT, MEASURING_CODE, Commit, copy_measuring_code, find_commit
from perf_tests.records.columns import case_name
from perf_tests.records.format import DASH, printable, table
from perf_tests.records.record import Json, how_many

# What a search is to find, and what it has found so far: files in its temporary folder.
#
# Each commit is judged by a process of its own, which git starts and which reads and writes these files.


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


# The clone in which commits are tried: nothing is written to the user's repository, and a kill cannot change it.


class SearchError(Exception):
    """The search cannot go on; the message is one sentence."""


def cloned(root: Path, commit: Commit, folder: Path) -> Path:
    """The suite's folder in a clone of the repository of `root`, which shares its objects and has no files yet.

    Raises SearchError.
    """
    top = git(root, "rev-parse", "--show-toplevel")
    git(folder, "clone", "--quiet", "--shared", "--no-checkout", top, "clone")
    (clone := folder / "clone" / commit.prefix).mkdir(parents=True, exist_ok=True)
    return clone


def check_out(task: Task, commit: str) -> None:
    """The commit in the clone, with the measuring code of the user's working tree, and nothing accepted.

    Raises SearchError and OSError.
    """
    clone = Path(task.clone)
    git(clone, "checkout", "--quiet", "--force", "--detach", commit)
    git(Path(git(clone, "rev-parse", "--show-toplevel")), "clean", "--quiet", "-ffdx")
    clone.mkdir(parents=True, exist_ok=True)
    copy_measuring_code(Path(task.root), clone)
    shutil.rmtree(clone / ".benchmarks", ignore_errors=True)


def has_the_same_code(task: Task, commit: str, other: str) -> bool:
    """Whether the two differ in nothing that a benchmark runs."""
    is_ours = not any(word.startswith("--model") for word in task.options)
    passed_over = [f":(exclude){name}" for name in (*MEASURING_CODE, *(LEFT_OUT if is_ours else ()))]
    return _run(Path(task.clone), "diff", "--quiet", other, commit, "--", ".", *passed_over).returncode == 0


def subject_of(clone: Path, commit: str) -> str:
    return git(clone, "log", "-1", "--format=%s", commit)


def git(folder: Path, *words: str) -> str:
    """What it prints. Raises SearchError with its last line."""
    ended = _run(folder, *words)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"it exited with {ended.returncode}"]
        raise SearchError(f"git {words[0]} failed in {folder}: {lines[-1].rstrip('.')}.")
    return ended.stdout.strip()


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ("git", "-c", f"core.hooksPath={os.devnull}", *words)  # hooks are for the user's own checkouts
    return subprocess.run(command, cwd=folder, env={**environment(), "LC_ALL": "C"}, capture_output=True, text=True)


def environment() -> dict[str, str]:
    """This process's, without the variables of a git that started it, which name another repository."""
    of_git = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in of_git}


# The verdict on one commit: the gate on one case, the good commit as base, and again where it is undecided.


STATES: dict[Verdict, State] = {
    Verdict.SLOWER: "slower",
    Verdict.OK: "not slower",
    Verdict.FASTER: "not slower",
    Verdict.UNDECIDED: "undecided",
}
"""Any other verdict is of a case without a timing: absent."""

MORE_TIME = 2
"""The second gate run on an undecided commit may take so many times as long."""


def judged(task: Task, commit: str) -> Judged:
    """Raises SearchError and OSError."""
    subject = subject_of(Path(task.clone), commit)
    for known in (Judged(task.good, "", "not slower"), *task.judged):
        if has_the_same_code(task, commit, known.commit):
            reason = f"the same code as {known.commit[:12]}"
            return replace(known, commit=commit, subject=subject, reason=reason, launch_pairs=0)
    check_out(task, commit)
    found = _by_the_gate(task, commit, task.minutes)
    if found.state == "undecided":
        again = _by_the_gate(task, commit, MORE_TIME * task.minutes)
        found = replace(again, launch_pairs=again.launch_pairs + found.launch_pairs)
    return replace(found, subject=subject)


def _by_the_gate(task: Task, commit: str, minutes: float) -> Judged:
    storage = Path(tempfile.mkdtemp(dir=task.folder))
    ended = _pytest(task, f"--gate-minutes={minutes:g}", f"--benchmark-storage=file://{storage}")
    written = sorted((storage / "gate").glob("*.jsonl"))
    found = _from_samples(written[-1], commit) if written else None
    if found is not None:
        return found
    # No verdict: because of the commit, which is skipped, or of the machine, where the next one would fare no better.
    collected = _pytest(task, "--collect-only", "--quiet")
    why = collected if collected.returncode else ended
    reason = last_words(why.stdout).removeprefix("ERROR: ").removeprefix("E   ")
    return Judged(commit, "", "absent" if collected.returncode else "stopped", reason)


def _from_samples(path: Path, commit: str) -> Judged | None:
    """None for a run that was ended before its verdict."""
    samples = read_samples(path)
    result = conclude(samples, rules_from_settings(samples.header["settings"]))
    if result.verdict == RunVerdict.INTERRUPTED:
        return None
    (row,) = result.cases
    unclear = result.verdict in (RunVerdict.CONTAMINATED, RunVerdict.INCOMPARABLE)
    state: State = "undecided" if unclear else STATES.get(row.verdict, "absent")
    found = Judged(commit, "", state, result.reason or row.explanation, launch_pairs=sum(result.pairs))
    if row.effect is None:
        return found
    return replace(found, effect=row.effect.effect, low=row.effect.low, high=row.effect.high, clock=row.clock)


def _pytest(task: Task, *more: str) -> subprocess.CompletedProcess[str]:
    command = [*task.gate, task.case, *task.options, f"--against={task.good}", "-p", "no:cacheprovider", *more]
    return subprocess.run(
        command, cwd=task.clone, env=environment_without_the_suite(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip


def main(folder: str, commit: str | None = None) -> int:
    end_with_starter()
    task = Task.read(Path(folder))
    commit = commit or git(Path(task.clone), "rev-parse", "BISECT_HEAD")
    try:
        found = judged(task, commit)
    except (OSError, SearchError, ValueError) as error:
        found = Judged(commit, "", "stopped", str(error).rstrip("."))
    found.keep(task)
    return EXIT_CODES[found.state]


# The search: both ends checked, then `git bisect run` in a clone, all of it in a temporary folder.


FOLDERS = "perf-tests-bisect-"
"""How the name of a search's temporary folder begins."""

PYTEST = (sys.executable, "-m", "pytest")

SECONDS_TO_END = 20.0
"""Of an interrupted gate run, in which it ends its workers and removes its trees."""


class RevisionsError(Exception):
    """Between these two commits there is nothing to search; the message is one sentence."""


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    good: str
    bad: str
    case: str
    options: tuple[str, ...]
    minutes: float


@dataclass(frozen=True)
class Found:
    good: Commit
    bad: Commit
    steps: list[Judged]
    """In the order of their verdicts, BAD first."""
    suspects: list[str]
    """Full hashes, the newest first. One where the search has found the commit, more where it had to skip some, none
    where BAD is not slower."""


def search(root: Path, asked: Asked, tell: Callable[[str | Judged], None], gate: Sequence[str] = PYTEST) -> Found:
    """Find the first commit after GOOD that is slower than GOOD.

    Raises RevisionsError, TreeError for what is no revision, BesideAnotherError, SearchError and OSError.
    """
    good, bad = (find_commit(root, revision, "bisect") for revision in (asked.good, asked.bad))
    with alone("bisect", FOLDERS), tempfile.TemporaryDirectory(prefix=FOLDERS, ignore_cleanup_errors=True) as folder:
        clone = cloned(root, good, Path(folder))
        _check_order(clone, good, bad)
        between = git(clone, "rev-list", f"{good.full_hash}..{bad.full_hash}").splitlines()
        tell(f"{len(between)} commits after {good.typed}: {bad.typed} first, then at most {len(between).bit_length()}.")
        task = Task(
            folder, str(root), str(clone), good.full_hash, bad.full_hash, asked.case, asked.options, asked.minutes,
            tuple(gate),
        )  # fmt: skip
        task.write()
        task.steps.touch()
        step = (sys.executable, "-P", "-m", "perf_tests.bisect", folder)
        _follow(task, (*step, bad.full_hash), tell)
        first = _last(task)
        if first.state != "slower":
            return Found(good, bad, task.judged, [])
        if len(between) > 1:
            git(clone, "bisect", "start", "--no-checkout", bad.full_hash, good.full_hash)
            _follow(task, ("git", "bisect", "run", *step), tell)
            _last(task)
            between = git(clone, "rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").splitlines()
        if not {*between} <= {judged.commit for judged in task.judged}:
            raise SearchError(f"git bisect ended before its last commit: {_last_words(task)}.")
        return Found(good, bad, task.judged, between)


def _check_order(clone: Path, good: Commit, bad: Commit) -> None:
    """Raises RevisionsError unless BAD descends from GOOD."""
    both = f"GOOD {good.typed} ({good.short_hash}) and BAD {bad.typed} ({bad.short_hash})"
    if good.full_hash == bad.full_hash:
        raise RevisionsError(f"{both} are one commit; give a GOOD from before the slowdown.")
    shared = git(clone, "merge-base", good.full_hash, bad.full_hash)
    if shared == bad.full_hash:
        raise RevisionsError(f"{both} are exchanged: BAD is older; give the older commit first.")
    if shared != good.full_hash:
        raise RevisionsError(f"{both} are on two branches; give a GOOD that BAD contains, such as {shared[:12]}.")


def _last(task: Task) -> Judged:
    """The last verdict. Raises SearchError where a step ended the search instead."""
    judged = task.judged
    if not judged:
        raise SearchError(f"The search did not start: {_last_words(task)}.")
    if judged[-1].state == "stopped":
        raise SearchError(f"The search stopped at {judged[-1].commit[:12]}: {judged[-1].reason}.")
    return judged[-1]


def _log(task: Task) -> Path:
    return Path(task.folder, "log")


def _last_words(task: Task) -> str:
    return last_words(_log(task).read_text(errors="replace"))


def _follow(task: Task, command: Sequence[str], tell: Callable[[Judged], None]) -> None:
    """Run a step, or git, which runs more; tell each verdict as it comes. Ends every process on every exit."""
    suite = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (suite, os.environ.get("PYTHONPATH", ""))))
    told = len(task.judged)
    with _log(task).open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=Path(task.folder, "clone"),
            env={**environment(), "PYTHONPATH": path},
            stdin=subprocess.PIPE,  # until it closes, with this process
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C is for this process, which ends the others itself
        )
        try:
            ended = None
            while ended is None:
                with suppress(subprocess.TimeoutExpired):
                    ended = process.wait(timeout=0.2)
                for judged in task.judged[told:]:
                    tell(judged)
                    told += 1
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The gate last: it removes its trees. Nothing is left to end after a search that came to its end."""
    deadline = time.monotonic() + SECONDS_TO_END
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


# What a search says: each verdict as it comes, then the commit; the same for machines.


HEADER = ("commit", "against GOOD", "effect", "95 % interval", "clock", "launch pairs", "subject")
MOST_LETTERS = 60
"""Of a subject in the table."""


def progress_line(judged: Judged) -> str:
    figures = f", {_effect(judged)} ({_interval(judged)})" if judged.effect is not None else ""
    reason = f": {judged.reason}" if judged.reason else ""
    return printable(f"{judged.commit[:12]} {judged.state}{figures}, {_pairs(judged)}{reason}")


def found_lines(found: Found, asked: Asked) -> list[str]:
    """The table of all commits tried, the last line the answer."""
    rows = [
        (
            step.commit[:12], step.state, _effect(step), _interval(step), step.clock or DASH, str(step.launch_pairs),
            step.subject[:MOST_LETTERS],
        )
        for step in found.steps
    ]  # fmt: skip
    return [printable(line) for line in (*table(HEADER, rows, left=("subject",)), sentence(found, asked))]


def sentence(found: Found, asked: Asked) -> str:
    case, good = case_name(asked.case), f"{found.good.typed} ({found.good.short_hash})"
    first = found.steps[0]
    bad = f"BAD {found.bad.typed} ({found.bad.short_hash})"
    figures = f"{_effect(first)} ({_interval(first)} at 95 %, {_pairs(first)})" if first.launch_pairs else first.reason
    if not found.suspects:
        return {
            "not slower": f"{bad} is not slower than GOOD {good} in {case}: {figures}; there is nothing to search.",
            "undecided": f"{bad} is neither shown to be slower than GOOD {good} in {case} nor shown to be as fast: "
            f"{figures}; give it more --gate-minutes.",
            "absent": f"{bad} or GOOD {good} has no timing of {case}: {first.reason}.",
        }[first.state]
    if len(found.suspects) > 1:
        names = ", ".join(commit[:12] for commit in found.suspects)
        return f"One of {len(found.suspects)} commits made {case} slower: {names}; the others could not be judged."
    (culprit,) = (step for step in found.steps if step.commit == found.suspects[0])
    by = {"cpu": "CPU time", "wall": "wall time"}[culprit.clock or "wall"]
    return (
        f"{culprit.commit[:12]} is the first commit that is slower than {good} in {case}, by {_effect(culprit)} of "
        f"{by} ({_interval(culprit)} at 95 %, {_pairs(culprit)}): {culprit.subject}"
    )


def found_json(found: Found, asked: Asked) -> Json:
    return {
        "case": asked.case,
        "good": asdict(found.good),
        "bad": asdict(found.bad),
        "suspects": found.suspects,
        "steps": [step.to_json() for step in found.steps],
        "sentence": sentence(found, asked),
    }


def _effect(judged: Judged) -> str:
    return DASH if judged.effect is None else f"{judged.effect:+.1%}"


def _interval(judged: Judged) -> str:
    return DASH if judged.low is None or judged.high is None else f"{judged.low:+.1%} to {judged.high:+.1%}"


def _pairs(judged: Judged) -> str:
    return how_many(judged.launch_pairs, "launch pair")


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except Exception:  # Python's own exit code would call the commit slower
        traceback.print_exc()
        sys.exit(EXIT_CODES["stopped"])
