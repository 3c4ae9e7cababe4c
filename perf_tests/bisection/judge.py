"""The verdict on one commit: the gate on one case, the good commit as base, and again where it is undecided."""

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from perf_tests.bisection.clone import check_out, has_the_same_code, subject_of
from perf_tests.bisection.task import Judged, State, Task
from perf_tests.gate.conclusion import RunVerdict, conclude
from perf_tests.gate.rules import rules_from_settings
from perf_tests.gate.samples import read_samples
from perf_tests.gate.verdicts import Verdict
from perf_tests.paired.launch_pair import environment_without_the_suite
from perf_tests.workers.process import last_words

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
