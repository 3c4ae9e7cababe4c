"""The first commit that made a case slower: `git bisect run` in a clone, with the gate as its judge.

Nothing is written to the user's repository, and a kill cannot change it. git starts one process for each commit,
`python -P -m perf_tests.bisect FOLDER [COMMIT]`, whose exit code is the verdict; it reads `task.json` in the search's
temporary folder, appends to `steps.jsonl` there, and ends with the search, whatever ends that.
"""

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
from typing import Literal

from perf_tests.bench.workers import end_with_starter, last_words
from perf_tests.gate.verdicts import SAME_PROGRAM, RunVerdict, Verdict, judge
from perf_tests.interleaved.sides import (
    LEFT_OUT,
    MEASURING_CODE,
    Commit,
    alone,
    copy_measuring_code,
    environment_of_git,
    environment_without_the_suite,
    find_commit,
    run_git,
)
from perf_tests.records.columns import case_name
from perf_tests.records.format import DASH, printable, table
from perf_tests.records.record import Json, how_many
from perf_tests.user_code.named import SUITE, Repository

State = Literal["slower", "not slower", "undecided", "absent", "stopped"]

EXIT_CODES: dict[State, int] = {"slower": 1, "not slower": 0, "undecided": 125, "absent": 125, "stopped": 255}
"""What a step tells `git bisect run`: 125 skips the commit, 255 ends the search."""

STATES: dict[Verdict, State] = {
    Verdict.SLOWER: "slower",
    Verdict.OK: "not slower",
    Verdict.SAME: "not slower",
    Verdict.FASTER: "not slower",
    Verdict.UNDECIDED: "undecided",
}
"""Any other verdict is of a case without a timing: absent."""

MORE_TIME = 2
"""The second gate run on an undecided commit may take so many times as long."""

FOLDERS = "perf-tests-bisect-"
"""How the name of a search's temporary folder begins."""

PYTEST = (sys.executable, "-m", "pytest")

SECONDS_TO_END = 20.0
"""Seconds that an interrupted gate run has to end its workers and remove its trees."""


class SearchError(Exception):
    """The search cannot go on; the message is one sentence."""


class RevisionsError(Exception):
    """There is nothing to search between these two commits; the message is one sentence."""


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    good: str
    bad: str
    case: str
    options: tuple[str, ...]
    """Further options of pytest."""
    minutes: float
    """Time limit of the first gate run on a commit."""


@dataclass(frozen=True)
class Judged:
    """A commit against the good one."""

    commit: str
    subject: str
    state: State
    reason: str = ""
    """Why a commit has no verdict, or no launch pairs of its own."""
    effect: float | None = None
    """The slowdown as a share of the good commit's time, with its 95 % interval."""
    low: float | None = None
    high: float | None = None
    clock: str | None = None
    launch_pairs: int = 0
    """Launch pairs over all gate runs on this commit."""

    @property
    def figures(self) -> tuple[str, str, str]:
        """The effect, its interval and the launch pairs in words."""
        pairs = how_many(self.launch_pairs, "launch pair")
        if self.effect is None or self.low is None or self.high is None:
            return DASH, DASH, pairs
        return f"{self.effect:+.1%}", f"{self.low:+.1%} to {self.high:+.1%}", pairs


@dataclass(frozen=True)
class Found:
    """What a search found."""

    good: Commit
    bad: Commit
    steps: list[Judged]
    """The commits tried in the order of their verdicts, BAD first."""
    suspects: list[str]
    """Full hashes, the newest first. One where the search has found the commit, more where it had to skip some, none
    where BAD is not slower."""


@dataclass(frozen=True)
class Task:
    """A search as its steps know it; `root` and `clone` are the suite's folders in the user's checkout and clone."""

    folder: str
    root: str
    clone: str
    good: str
    """Full hash."""
    case: str
    options: Sequence[str]
    minutes: float
    gate: Sequence[str]
    """The command that runs pytest."""
    suite: str = ""
    """The suite's folder where the commits are of another repository, whose clone holds no benchmarks."""
    start: str = ""
    """The folder below `clone` in which pytest starts."""

    @property
    def steps(self) -> Path:
        return Path(self.folder, "steps.jsonl")

    @property
    def log(self) -> Path:
        return Path(self.folder, "log")

    @property
    def judged(self) -> list[Judged]:
        """The commits so far, in the order of their verdicts."""
        return [Judged(**json.loads(line)) for line in self.steps.read_text().splitlines()]


def search(
    root: Path, asked: Asked, tell: Callable[[str | Judged], None], gate: Sequence[str] = PYTEST,
    theirs: Repository | None = None,
) -> Found:  # fmt: skip
    """Find the first commit after GOOD that is slower than GOOD, in the suite's folder or another repository, `theirs`.

    Raises RevisionsError, TreeError for what is no revision, BesideAnotherError, SearchError and OSError.
    """
    good, bad = (find_commit(root, revision, "bisect") for revision in (asked.good, asked.bad))
    with alone("bisect", FOLDERS), tempfile.TemporaryDirectory(prefix=FOLDERS, ignore_cleanup_errors=True) as folder:
        top = git(root, "rev-parse", "--show-toplevel")
        git(Path(folder), "clone", "--quiet", "--shared", "--no-checkout", top, "clone")
        (clone := Path(folder, "clone", good.prefix)).mkdir(parents=True, exist_ok=True)
        _check_order(clone, good, bad)
        between = git(clone, "rev-list", f"{good.full_hash}..{bad.full_hash}").splitlines()
        tell(f"{len(between)} commits after {good.typed}: {bad.typed} first, then at most {len(between).bit_length()}.")
        task = Task(folder, str(root), str(clone), good.full_hash, asked.case, asked.options, asked.minutes, gate)
        if theirs is not None:
            # A path in their repository is that of each commit in the clone.
            options = [word.replace(f"{root}{os.sep}", f"{clone}{os.sep}") for word in asked.options]
            task = replace(task, options=options, suite=str(SUITE), start=str(theirs.folder_in(root).relative_to(root)))
        Path(folder, "task.json").write_text(json.dumps(asdict(task)))
        task.steps.touch()
        step = (sys.executable, "-P", "-m", "perf_tests.bisect", folder)
        _follow(task, (*step, bad.full_hash), tell)
        if _last(task).state != "slower":
            return Found(good, bad, task.judged, [])
        if len(between) > 1:
            git(clone, "bisect", "start", "--no-checkout", bad.full_hash, good.full_hash)
            _follow(task, ("git", "bisect", "run", *step), tell)
            _last(task)
            between = git(clone, "rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").splitlines()
        if not {*between} <= {judged.commit for judged in task.judged}:
            words = last_words(task.log.read_text(errors="replace"))
            raise SearchError(f"git bisect ended before its last commit: {words}.")
        return Found(good, bad, task.judged, between)


def _check_order(clone: Path, good: Commit, bad: Commit) -> None:
    """Refuse, by RevisionsError, a BAD that does not descend from GOOD."""
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
        raise SearchError(f"The search did not start: {last_words(task.log.read_text(errors='replace'))}.")
    if judged[-1].state == "stopped":
        raise SearchError(f"The search stopped at {judged[-1].commit[:12]}: {judged[-1].reason}.")
    return judged[-1]


def _follow(task: Task, command: Sequence[str], tell: Callable[[Judged], None]) -> None:
    """Run a step, or git, which runs more; tell each verdict as it comes. Ends every process on every exit."""
    path = os.pathsep.join(filter(None, (str(SUITE), os.environ.get("PYTHONPATH", ""))))
    told = len(task.judged)
    with task.log.open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=Path(task.folder, "clone"),
            env={**environment_of_git(), "PYTHONPATH": path},
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
            # The gate last: it removes its trees. Nothing is left to end after a search that came to its end.
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


def git(folder: Path, *words: str) -> str:
    """What git prints. Raises SearchError with its last line."""
    ended = run_git(folder, *words, errors="replace")
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"it exited with {ended.returncode}"]
        raise SearchError(f"git {words[0]} failed in {folder}: {lines[-1].rstrip('.')}.")
    return ended.stdout.strip()


# A step: the gate on one case of one commit, the good commit as base, and again where it is undecided.


def main(folder: str, commit: str | None = None) -> int:
    """Judge a commit, by default the one that `git bisect run` is at; the step's exit code."""
    end_with_starter()
    task = Task(**json.loads(Path(folder, "task.json").read_text()))
    commit = commit or git(Path(task.clone), "rev-parse", "BISECT_HEAD")
    try:
        found = _judged(task, commit)
    except (OSError, SearchError, ValueError) as error:
        found = Judged(commit, "", "stopped", str(error).rstrip("."))
    with task.steps.open("a") as file:
        file.write(json.dumps(asdict(found)) + "\n")
    return EXIT_CODES[found.state]


def _judged(task: Task, commit: str) -> Judged:
    """Gate one commit against GOOD. Raises SearchError, OSError, and ValueError for samples that cannot be judged."""
    clone = Path(task.clone)
    subject = git(clone, "log", "-1", "--format=%s", commit)
    is_ours = not any(word.startswith("--model") for word in task.options)
    left_out = () if task.suite else (*MEASURING_CODE, *(LEFT_OUT if is_ours else ()))
    passed_over = [f":(exclude){name}" for name in left_out]
    for known in (Judged(task.good, "", "not slower"), *task.judged):
        # A commit that differs in nothing that a benchmark runs has the verdict of the other.
        if not run_git(clone, "diff", "--quiet", known.commit, commit, "--", ".", *passed_over).returncode:
            reason = f"the same code as {known.commit[:12]}"
            return replace(known, commit=commit, subject=subject, reason=reason, launch_pairs=0)
    # The commit, with the measuring code of the user's working tree, and nothing accepted.
    git(clone, "checkout", "--quiet", "--force", "--detach", commit)
    git(Path(git(clone, "rev-parse", "--show-toplevel")), "clean", "--quiet", "-ffdx")
    clone.mkdir(parents=True, exist_ok=True)
    if not task.suite:
        copy_measuring_code(Path(task.root), clone)
    shutil.rmtree(clone / ".benchmarks", ignore_errors=True)
    for known in task.judged:
        # One that runs the same program, too: another comment, a renamed local, a module that the case does not import.
        if known.state in ("slower", "not slower") and not known.reason:
            compared = _by_the_gate(task, commit, 0.0, known.commit)
            if compared.reason == SAME_PROGRAM:
                reason = f"the same program as {known.commit[:12]}"
                return replace(known, commit=commit, subject=subject, reason=reason, launch_pairs=0)
    found = _by_the_gate(task, commit, task.minutes)
    if found.state == "undecided":
        again = _by_the_gate(task, commit, MORE_TIME * task.minutes)
        found = replace(again, launch_pairs=again.launch_pairs + found.launch_pairs)
    return replace(found, subject=subject)


def _by_the_gate(task: Task, commit: str, minutes: float, base: str | None = None) -> Judged:
    storage = Path(tempfile.mkdtemp(dir=task.folder))
    ended = _pytest(
        task, f"--against={base or task.good}", f"--gate-minutes={minutes:g}", f"--benchmark-storage=file://{storage}"
    )
    for written in sorted((storage / "gate").glob("*.jsonl"))[-1:]:
        result, *_ = judge(written)
        if result.verdict == RunVerdict.INTERRUPTED:  # it was ended before its verdict
            continue
        (row,) = result.cases
        unclear = result.verdict in (RunVerdict.CONTAMINATED, RunVerdict.INCOMPARABLE)
        state: State = "undecided" if unclear else STATES.get(row.verdict, "absent")
        found = Judged(commit, "", state, result.reason or row.explanation, launch_pairs=sum(result.pairs))
        if row.effect is None:
            return found
        return replace(found, effect=row.effect.effect, low=row.effect.low, high=row.effect.high, clock=row.clock)
    # No verdict: because of the commit, which is skipped, or of the machine, where the next one would fare no better.
    collected = _pytest(task, f"--against={task.good}", "--collect-only", "--quiet")
    why = collected if collected.returncode else ended
    reason = last_words(why.stdout).removeprefix("ERROR: ").removeprefix("E   ")
    return Judged(commit, "", "absent" if collected.returncode else "stopped", reason)


def _pytest(task: Task, *more: str) -> subprocess.CompletedProcess[str]:
    suite = Path(task.suite)
    case = [task.case] if not task.suite else ["--config-file", str(suite / "pyproject.toml"), str(suite / task.case)]
    command = [*task.gate, *case, *task.options, "-p", "no:cacheprovider", *more]
    start = Path(task.clone, task.start)
    return subprocess.run(
        command, cwd=start if start.is_dir() else task.clone, env=environment_without_the_suite(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip


# What a search says: each verdict as it comes, then the commit; the same for machines.

HEADER = ("commit", "against GOOD", "effect", "95 % interval", "clock", "launch pairs", "subject")
MOST_LETTERS = 60
"""Letters of a subject in the table."""


def progress_line(judged: Judged) -> str:
    effect, interval, pairs = judged.figures
    figures = f", {effect} ({interval})" if judged.effect is not None else ""
    reason = f": {judged.reason}" if judged.reason else ""
    return printable(f"{judged.commit[:12]} {judged.state}{figures}, {pairs}{reason}")


def found_lines(found: Found, asked: Asked) -> list[str]:
    """The table of all commits tried, the last line the answer."""
    rows = [
        (step.commit[:12], step.state, *step.figures[:2], step.clock or DASH, str(step.launch_pairs),
         step.subject[:MOST_LETTERS])
        for step in found.steps
    ]  # fmt: skip
    return [printable(line) for line in (*table(HEADER, rows, left=("subject",)), sentence(found, asked))]


def sentence(found: Found, asked: Asked) -> str:
    case, good = case_name(asked.case), f"{found.good.typed} ({found.good.short_hash})"
    if not found.suspects:
        first, bad = found.steps[0], f"BAD {found.bad.typed} ({found.bad.short_hash})"
        effect, interval, pairs = first.figures
        figures = f"{effect} ({interval} at 95 %, {pairs})" if first.launch_pairs else first.reason
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
    effect, interval, pairs = culprit.figures
    by = {"cpu": "CPU time", "wall": "wall time"}[culprit.clock or "wall"]
    return (
        f"{culprit.commit[:12]} is the first commit that is slower than {good} in {case}, by {effect} of {by} "
        f"({interval} at 95 %, {pairs}): {culprit.subject}"
    )


def found_json(found: Found, asked: Asked) -> Json:
    return {
        "case": asked.case,
        "good": asdict(found.good),
        "bad": asdict(found.bad),
        "suspects": found.suspects,
        "steps": [asdict(step) for step in found.steps],
        "sentence": sentence(found, asked),
    }


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except Exception:  # Python's own exit code would call the commit slower
        traceback.print_exc()
        sys.exit(EXIT_CODES["stopped"])
