"""`bisect GOOD BAD --case ID`: name the first commit that made a case slower, by `git bisect` and the gate.

perf-tests bisect v1 main --case ID
perf-tests bisect v1 main --case ID --options "--head-dim 32" --gate-minutes 5

The search runs in a clone, with the gate as its judge. Nothing is written to the user's repository, and a kill cannot
change it. Each gate run is a process of its own, `python -P -m perf_tests.bisect COMMAND`, which ends with the search,
whatever ends that.
"""

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from perf_tests.bench.workers import end_with_starter, last_error_line
from perf_tests.gate.verdicts import SAME_PROGRAM, RunVerdict, Verdict, judge
from perf_tests.interleaved import sides
from perf_tests.interleaved.sides import Commit, alone, copy_measuring_code, find_commit, run_git
from perf_tests.phases import FINDINGS, FINE, UNREADABLE, USAGE, InterruptedByUserError, RefusalError, UsageError
from perf_tests.records.columns import case_name
from perf_tests.records.format import DASH, printable, table
from perf_tests.records.record import Json, how_many
from perf_tests.report.gate_screens import deciding_takes
from perf_tests.user_code.named import SUITE, UNDER_TEST, Repository, repository_of

State = Literal["slower", "not slower", "undecided", "absent", "stopped"]

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


class SearchError(RefusalError):
    """The search cannot go on; the message is one sentence."""


class RevisionsError(UsageError):
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


def search(
    root: Path, asked: Asked, report: Callable[[str | Judged], None], gate: Sequence[str] = PYTEST,
    theirs: Repository | None = None,
) -> Found:  # fmt: skip
    """Find the first commit after GOOD that is slower than GOOD, in the suite's folder or another repository, `theirs`.

    `gate` is the command that runs pytest. Raises RevisionsError, TreeError for what is no revision,
    BesideAnotherError, SearchError and OSError.
    """
    good, bad = (find_commit(root, revision, "bisect") for revision in (asked.good, asked.bad))
    with alone("bisect", FOLDERS), tempfile.TemporaryDirectory(prefix=FOLDERS, ignore_cleanup_errors=True) as folder:
        top = git(root, "rev-parse", "--show-toplevel")
        git(Path(folder), "clone", "--quiet", "--shared", "--no-checkout", top, "clone")
        (clone := Path(folder, "clone", good.prefix)).mkdir(parents=True, exist_ok=True)
        _check_order(clone, good, bad)
        suspects = git(clone, "rev-list", f"{good.full_hash}..{bad.full_hash}").splitlines()
        most = len(suspects).bit_length()
        report(f"{len(suspects)} commits after {good.typed}: {bad.typed} first, then at most {most}.")
        judging = Judge(Path(folder), root, clone, good.full_hash, asked, gate, theirs)

        def judged(commit: str) -> Judged:
            try:
                found = judging.judged(commit)
            except (OSError, SearchError, ValueError) as error:
                found = Judged(commit, "", "stopped", str(error).rstrip("."))
            judging.steps.append(found)
            report(found)
            if found.state == "stopped":
                raise SearchError(f"The search stopped at {commit[:12]}: {found.reason}.")
            return found

        if judged(bad.full_hash).state != "slower":
            return Found(good, bad, judging.steps, [])
        said = ""
        if len(suspects) > 1:
            git(clone, "bisect", "start", "--no-checkout", bad.full_hash, good.full_hash)
        while not {*suspects} <= (known := {step.commit for step in judging.steps}):
            if (commit := git(clone, "rev-parse", "BISECT_HEAD")) in known:
                raise SearchError(f"git bisect ended before its last commit: {last_error_line(said)}.")
            word = {"slower": "bad", "not slower": "good"}.get(judged(commit).state, "skip")
            said = run_git(clone, "bisect", word, errors="replace").stderr
            suspects = git(clone, "rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").splitlines()
        return Found(good, bad, judging.steps, suspects)


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


def git(folder: Path, *words: str) -> str:
    """What git prints. Raises SearchError with its last line."""
    ended = run_git(folder, *words, errors="replace")
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"it exited with {ended.returncode}"]
        raise SearchError(f"git {words[0]} failed in {folder}: {lines[-1].rstrip('.')}.")
    return ended.stdout.strip()


# A step: the gate on one case of one commit, the good commit as base, and again where it is undecided.


@dataclass(frozen=True)
class Judge:
    """What judges commits; `root` and `clone` are the suite's folders in the user's checkout and in the clone.

    Where the commits are of another repository, `theirs`, its clone holds no benchmarks.
    """

    folder: Path
    root: Path
    clone: Path
    good: str
    """Full hash."""
    asked: Asked
    gate: Sequence[str]
    theirs: Repository | None
    steps: list[Judged] = field(default_factory=list)
    """The commits so far, in the order of their verdicts."""

    def judged(self, commit: str) -> Judged:
        """Gate one commit against GOOD.

        Raises SearchError, OSError, and ValueError for samples that cannot be judged.
        """
        clone, options, is_ours = self.clone, self.asked.options, self.theirs is None
        subject = git(clone, "log", "-1", "--format=%s", commit)
        is_read = any(word.startswith("--model") or ":" in word for word in options)
        left_out = (*sides.MEASURING_CODE, *(() if is_read else sides.LEFT_OUT)) if is_ours else ()
        passed_over = [f":(exclude){name}" for name in left_out]
        for known in (Judged(self.good, "", "not slower"), *self.steps):
            # A commit that differs in nothing that a benchmark runs has the verdict of the other.
            if not run_git(clone, "diff", "--quiet", known.commit, commit, "--", ".", *passed_over).returncode:
                reason = f"the same code as {known.commit[:12]}"
                return replace(known, commit=commit, subject=subject, reason=reason, launch_pairs=0)
        # The commit, with the measuring code of the user's working tree, and nothing accepted.
        git(clone, "checkout", "--quiet", "--force", "--detach", commit)
        git(Path(git(clone, "rev-parse", "--show-toplevel")), "clean", "--quiet", "-ffdx")
        clone.mkdir(parents=True, exist_ok=True)
        if is_ours:
            copy_measuring_code(self.root, clone)
        shutil.rmtree(clone / ".benchmarks", ignore_errors=True)
        for known in self.steps:
            # One that runs the same program, too: another comment, a renamed local, a module that the case does not
            # import.
            if known.state in ("slower", "not slower") and not known.reason:
                compared = self._by_the_gate(commit, 0.0, known.commit)
                if compared.reason == SAME_PROGRAM:
                    reason = f"the same program as {known.commit[:12]}"
                    return replace(known, commit=commit, subject=subject, reason=reason, launch_pairs=0)
        found = self._by_the_gate(commit, self.asked.minutes)
        if found.state == "undecided":
            again = self._by_the_gate(commit, MORE_TIME * self.asked.minutes)
            found = replace(again, launch_pairs=again.launch_pairs + found.launch_pairs)
        return replace(found, subject=subject)

    def _by_the_gate(self, commit: str, minutes: float, base: str | None = None) -> Judged:
        storage = Path(tempfile.mkdtemp(dir=self.folder))
        against = f"--against={base or self.good}"
        ended, printed = self._pytest(against, f"--gate-minutes={minutes:g}", f"--benchmark-storage=file://{storage}")
        for written in sorted((storage / "gate").glob("*.jsonl"))[-1:]:
            result, _, rules = judge(written)
            if result.verdict == RunVerdict.INTERRUPTED:  # it was ended before its verdict
                continue
            (row,) = result.cases
            unclear = result.verdict in (RunVerdict.CONTAMINATED, RunVerdict.INCOMPARABLE)
            state: State = "undecided" if unclear else STATES.get(row.verdict, "absent")
            reason = result.reason or (deciding_takes(result, rules) if state == "undecided" else row.explanation)
            found = Judged(commit, "", state, reason, launch_pairs=sum(result.pairs))
            if row.effect is None:
                return found
            return replace(found, effect=row.effect.effect, low=row.effect.low, high=row.effect.high, clock=row.clock)
        # No verdict: because of the commit, which is skipped, or of the machine, where no other would fare better.
        code, collected = self._pytest(f"--against={self.good}", "--collect-only", "--quiet")
        reason = last_error_line(collected if code else printed).removeprefix("ERROR: ").removeprefix("E   ")
        # Code of the user's is imported and checked by the run alone.
        is_of_commit = code or reason.startswith(("--model ", "--attention ", "--optimizer "))
        return Judged(commit, "", "absent" if is_of_commit else "stopped", reason or f"pytest ended with {ended}")

    def _pytest(self, *more: str) -> tuple[int, str]:
        """Return pytest's exit code and what it printed. Ends every process on every exit."""
        case, options, start = [self.asked.case], [*self.asked.options], self.clone
        if self.theirs is not None:
            case = ["--config-file", str(SUITE / "pyproject.toml"), str(SUITE / self.asked.case)]
            # A path in their repository is that of each commit in the clone.
            options = [word.replace(f"{self.root}{os.sep}", f"{self.clone}{os.sep}") for word in options]
            start = self.theirs.folder_in(self.clone)
        path = os.pathsep.join(filter(None, (str(SUITE), os.environ.get("PYTHONPATH", ""))))
        command = [*self.gate, *case, *options, "-p", "no:cacheprovider", *more]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "perf_tests.bisect", *command],
            cwd=start if start.is_dir() else self.clone,
            env={**sides.environment_of_git(), "PYTHONPATH": path},
            stdin=subprocess.PIPE,  # until it closes, with this process
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,  # Ctrl-C is for this process, which ends the others itself
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            printed = process.stdout.read()
            return process.wait(), printed
        finally:
            # The gate removes its trees. Nothing is left to end after one that came to its end.
            deadline = time.monotonic() + SECONDS_TO_END
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
                while time.monotonic() < deadline:
                    process.poll()
                    os.killpg(process.pid, 0)
                    time.sleep(0.05)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()
            process.stdout.close()


# What a search says: each verdict as it comes, then the commit; the same for machines.

HEADER = ("commit", "against GOOD", "effect", "95 % interval", "clock", "launch pairs", "subject")
MOST_LETTERS = 60
"""Letters of a subject in the table."""


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
            f"{figures}; {first.reason}.",
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
    return {"case": asked.case, **asdict(found), "sentence": sentence(found, asked)}


# The verb.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("good", help="a revision before the slowdown")
    parser.add_argument("bad", help="a later one, which contains it")
    parser.add_argument("--case", required=True, metavar="ID", help="the case, as pytest or a screen names it")
    parser.add_argument("--gate-minutes", type=float, default=15.0, metavar="MINUTES",
                        help="measure a commit for at most this many minutes; undecided ones get twice that once more "
                        "(15)")  # fmt: skip
    parser.add_argument("--options", default="", metavar="'OPTION ...'",
                        help="what else to give to pytest, so that it collects the case")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    asked = _asked(arguments)
    try:
        repository = _repository(asked.options)
        found = search(repository.root, asked, _print_news, theirs=None if repository.holds_suite else repository)
    except sides.TreeError as error:
        raise UsageError(error) from error
    except (sides.BesideAnotherError, OSError) as error:
        raise RefusalError(error) from error
    except KeyboardInterrupt as error:
        raise InterruptedByUserError("Interrupted; the repository is as it was.") from error
    print(json.dumps(found_json(found, asked)) if arguments.json else "\n".join(found_lines(found, asked)))
    return exit_code(found)


def _asked(arguments: argparse.Namespace) -> Asked:
    case = _case_id(arguments.case)
    if case is None:
        raise UsageError(
            f"--case {shlex.quote(arguments.case)} names no case; write perf_tests/FILE.py::TEST[AXES], as the gate "
            "does, or its name on the page or a screen, such as 'forward small-ctx128-fp32-naive'."
        )
    if not 0 < arguments.gate_minutes < math.inf:
        raise UsageError(f"--gate-minutes {arguments.gate_minutes} is not a positive number of minutes.")
    try:
        options = tuple(shlex.split(arguments.options))
    except ValueError as error:
        raise UsageError(f"--options {arguments.options!r} cannot be split into words: {error}.") from error
    return Asked(arguments.good, arguments.bad, case, options, arguments.gate_minutes)


def _case_id(typed: str) -> str | None:
    """The node id of a case as pytest, the page or a screen names it; None for what names none."""
    name = typed.rpartition("::")[2]
    if "[" not in name:
        test, _, axes = name.partition(" ")
        name = f"test_{test}[{axes}]"
    test = name.partition("[")[0]
    files = [f"perf_tests/{file.name}" for file in sorted((SUITE / "perf_tests").glob("test_*.py"))
             if f"def {test}(" in file.read_text(encoding="utf-8")]  # fmt: skip
    file = typed.rpartition("::")[0] or next(iter(files), "")
    return f"{file}::{name}" if file.startswith("perf_tests/test_") and name.endswith("]") else None


def _repository(options: Sequence[str]) -> Repository:
    """The repository of what the options name, as the gate finds it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in UNDER_TEST:
        parser.add_argument(option)
    typed = {f"--{name}": text for name, text in vars(parser.parse_known_args(options)[0]).items()}
    with UsageError.instead_of(ValueError):
        repository = repository_of(typed, Path.cwd())
    if repository.outside:
        raise UsageError(f"{repository.outside[0]} lies in no git repository, so it has no commits to search.")
    if (why := repository.why_no_base()) is not None:
        raise UsageError(f"{why[:1].upper()}{why[1:]}.")
    if why := sides.why_no_side(repository):
        raise UsageError(why)
    return repository


def exit_code(found: Found) -> int:
    if found.suspects:
        return FINDINGS
    return {"not slower": FINE, "absent": USAGE}.get(found.steps[0].state, UNREADABLE)


def _print_news(news: str | Judged) -> None:
    if isinstance(news, Judged):
        effect, interval, pairs = news.figures
        figures = f", {effect} ({interval})" if news.effect is not None else ""
        news = printable(f"{news.commit[:12]} {news.state}{figures}, {pairs}{news.reason and ': '}{news.reason}")
    print(news, file=sys.stderr, flush=True)


if __name__ == "__main__":
    end_with_starter(outlives_exec=True)
    os.execvpe(sys.argv[1], sys.argv[1:], sides.environment_without_the_suite())
