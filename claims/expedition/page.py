"""The page that ends an expedition: each claim with its limit, the machine's figure, and whether that confirms it."""

import json
from pathlib import Path

from claims.expedition.claims import CLAIMS, Claim
from claims.expedition.files import LEFT_OUT
from claims.expedition.found import Found, NotMeasuredError
from claims.expedition.slices import SLICES
from perf_tests.records.record import ANYTHING, TEXT, misshapen

FACTS = {"gpu": {"name": TEXT, "driver": ANYTHING}, "torch": ANYTHING, "python": ANYTHING}


def page(state: Path) -> str:
    """The page in Markdown, from the unpacked state."""
    found = Found(state)
    lines = ["# What the machine confirmed", "", _machine(found), ""]
    lines += ["| claim | limit | figure | verdict |", "|---|---|---|---|", *(_row(claim, found) for claim in CLAIMS)]
    lines += ["", "| slice | step | exit code | seconds |", "|---|---|---|---|", *_steps(found)]
    if (state / LEFT_OUT).exists():
        lines += ["", f"Traces beyond the folder's limits: {', '.join((state / LEFT_OUT).read_text().split())}."]
    return "\n".join(lines) + "\n"


def _machine(found: Found) -> str:
    try:
        facts = found.values("facts")
    except (NotMeasuredError, ValueError, TypeError) as error:
        return f"The machine is not known: {error}."
    if wrong := misshapen(facts, FACTS, "facts"):
        return f"The machine is not known: {wrong}."
    gpu = facts["gpu"]
    return f"{gpu['name']}, driver {gpu['driver']}, torch {facts['torch']}, Python {facts['python']}"


def _row(claim: Claim, found: Found) -> str:
    try:
        figure, holds = claim.judge(found)
        verdict = "confirmed" if holds else "not confirmed"
    except NotMeasuredError as error:
        figure, verdict = str(error), "not measured"
    except (ArithmeticError, AttributeError, LookupError, ValueError, TypeError) as error:
        figure, verdict = f"what was recorded cannot be judged: {error!r}", "not measured"
    cells = (claim.sentence, claim.limit, figure, verdict)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _steps(found: Found) -> list[str]:
    names = dict.fromkeys(step.name for steps in SLICES.values() for step in steps)
    ended = [(name, found.state / "findings" / f"{name}.json") for name in names]
    findings = [(name, json.loads(path.read_bytes())) for name, path in ended if path.exists()]
    return [
        f"| {finding['slice']} | {name} | {finding['exit_code']} | {finding['seconds']:.0f} |"
        for name, finding in findings
    ]
