"""Tries the claims: `python -m claims` all of them, `python -m claims NAME ...` some, `python -m claims --list` none.

Each prints what it measured, its figures beside their limits and its verdict, and writes its row of `evidence.md`. The
exit code is that of the gravest: 1 where a claim does not hold, else 2 where one cannot be tried here, else 0. Those
that need a quiet clock belong on a machine that does nothing else; none runs beside another.
"""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

from claims.table import CLAIMS, Claim, Figures, Limit
from perf_tests_suite.perf_tests.records.store import write_whole

EVIDENCE = Path(__file__).with_name("evidence.md")

HOLDS, FAILS, NOT_TRIED = "holds", "does not hold", "cannot be tried here"
EXIT_CODES = {HOLDS: 0, NOT_TRIED: 2, FAILS: 1}
"""Exit code by verdict, the gravest last."""

HEAD = """# Evidence

Written by `python -m claims`: what each claim measured when it was last tried, and where.

| claim | figures | verdict | when and where |
|---|---|---|---|
"""


def main(words: Sequence[str] | None = None, claims: dict[str, Claim] = CLAIMS, evidence: Path = EVIDENCE) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims to try (default: all)")
    parser.add_argument("--list", action="store_true", help="print the claims with their limits, and try none")
    parser.add_argument("--most-minutes", type=float, metavar="M", help="leave out what takes longer than this")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.names if name not in claims]:
        parser.error(f"no claim is named {unknown[0]!r}; the known ones are {', '.join(claims)}.")
    chosen = {name: claims[name] for name in asked.names or claims}
    if asked.most_minutes is not None:
        shortest = min(claim.minutes for claim in chosen.values())
        chosen = {name: claim for name, claim in chosen.items() if claim.minutes <= asked.most_minutes}
        if not chosen:
            parser.error(
                f"--most-minutes {asked.most_minutes:g} leaves out every claim; the shortest takes {shortest:g}."
            )
    if asked.list:
        print(listed(chosen))
        return 0
    verdicts = []
    for name, claim in chosen.items():
        # How busy the machine is: neighbours widen every interval.
        where = f"{platform.machine()}, {os.cpu_count()} CPUs, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}"
        print(f"{name}: {claim.sentence} ({where})", flush=True)
        found = claim.measured()
        verdicts.append(verdict_on(claim.limits, found))
        shown = limits_text(claim.limits, found)
        print(f"{shown}\nclaim {name}: {verdicts[-1]}\n", flush=True)
        keep(evidence, f"| {name} | {shown} | {verdicts[-1]} | {date.today()}, {where} |", list(claims))
    return EXIT_CODES[max(verdicts, key=list(EXIT_CODES).index, default=HOLDS)]


def listed(claims: dict[str, Claim]) -> str:
    """Two lines for each claim: its name, sentence and limits, and what trying it takes."""
    lines = []
    for name, claim in claims.items():
        limits = "; ".join(f"{figure} {limit}" for figure, limit in claim.limits.items())
        needs = ", needs a quiet clock" if claim.needs_quiet_clock else ""
        lines += [f"{name}: {claim.sentence}", f"    {limits} ({claim.minutes:g} min{needs})"]
    return "\n".join(lines)


def verdict_on(limits: dict[str, Limit], found: Figures) -> str:
    """Judge figures: one beyond its limit refutes; a figure that is not there leaves the claim untried."""
    if any(not limit.allows(found[figure]) for figure, limit in limits.items() if figure in found):
        return FAILS
    return HOLDS if limits.keys() <= found.keys() else NOT_TRIED


def limits_text(limits: dict[str, Limit], found: Figures) -> str:
    return "; ".join(
        f"{figure} {f'{found[figure]:.4g}' if figure in found else 'not measured'} ({limit})"
        for figure, limit in limits.items()
    )


def keep(evidence: Path, row: str, order: Sequence[str]) -> None:
    """Replace the row of this claim in the evidence; rows of claims that are no more go, sections below stay."""
    known, heading, rest = (evidence.read_text() if evidence.exists() else "").partition("\n## ")
    lines = [*filter(lambda line: line.startswith("| "), known.splitlines()), row]
    rows = {line.split(" | ")[0].strip("| "): line for line in lines}
    write_whole(evidence, (HEAD + "".join(rows[one] + "\n" for one in order if one in rows) + heading + rest).encode())


if __name__ == "__main__":
    sys.exit(main())
