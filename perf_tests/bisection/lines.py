"""What a search says: each verdict as it comes, then the commit; the same for machines."""

from dataclasses import asdict

from perf_tests.bisection.search import Asked, Found
from perf_tests.bisection.task import Judged
from perf_tests.records.record import Json
from perf_tests.records.words import how_many
from perf_tests.views.screens.lines import DASH, case_name, printable, table

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
