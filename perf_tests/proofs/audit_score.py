"""The audit against figures judged by hand: what it finds, and what it accuses wrongly.

Judged are the cells of `published/e2e_timing.csv` that break physics (`judged_e2e_timing.csv`) and single known
mistakes of all tables (`known_cases.csv`). A cell is right by its labels if the device was waited for, the precision
that ran is the one it names, and it is not among those.
"""

import csv
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perf_tests.audit.files import Audit, audit_file
from perf_tests.audit.finding import ACCUSING, IMPOSSIBLE
from perf_tests.proofs.held_out_attention import breaks_physics
from perf_tests.proofs.verdict import conclude

PUBLISHED = Path(__file__).parents[2] / "published"
TABLES = ("e2e_timing", "attention_timing", "attention_timing_as_written", "memory", "kernels")

HELD_OUT = "flash_attention"

KEY = ("source", "gpu", "size", "batch", "context", "precision", "compiled", "phase", "warmup", "mean_ms")

CAUSE_WORDS = {"tf32": "TF32", "not_synchronised": "without waiting for the device", "batch": "batch"}
"""What the likely cause of a finding says when it names the judged one."""

Cell = dict[str, str]


@dataclass(frozen=True)
class Score:
    """Lines of a table, by what was judged and what was found."""

    breaking: set[str]
    found: set[str]
    cause_named: set[str]
    right: set[str]
    accused: set[str]

    @property
    def missed(self) -> set[str]:
        return self.breaking - self.found

    @property
    def is_perfect(self) -> bool:
        return not self.missed and not self.accused


def cells(name: str) -> list[Cell]:
    with open(PUBLISHED / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def key_of(cell: Cell) -> tuple[str, ...]:
    return tuple(cell[column] for column in KEY)


def score(audit: Audit, table: Sequence[Cell], judged: Sequence[Cell]) -> Score:
    judgement = {key_of(cell): cell for cell in judged}
    unknown = judgement.keys() - {key_of(cell) for cell in table}
    if unknown:
        raise ValueError(f"{len(unknown)} judged cells are not in the table, the first is {min(unknown)}.")
    place = {f"line {number}": cell for number, cell in enumerate(table, start=2)}
    breaking = {line for line, cell in place.items() if judgement.get(key_of(cell), {}).get("breaks_physics") == "yes"}
    causes = {one: finding.likely_cause for finding in audit.findings_of(IMPOSSIBLE) for one in finding.places}
    accused = {one for finding in audit.findings if finding.verdict in ACCUSING for one in finding.places}
    right = {line for line, cell in place.items() if is_right(cell) and key_of(cell) not in judgement}
    named = {
        line
        for line in breaking & causes.keys()
        if CAUSE_WORDS[judgement[key_of(place[line])]["cause"]] in causes[line]
    }
    return Score(breaking, breaking & causes.keys(), named, right, right & accused)


def held_out_score(audit: Audit, table: Sequence[Cell]) -> Score:
    """Of a table of attention without judgements by hand: every cell with a time either breaks physics or is right."""
    place = {f"line {number}": cell for number, cell in enumerate(table, start=2) if cell["mean_ms"]}
    breaking = {line for line, cell in place.items() if breaks_physics(cell)}
    causes = {one: finding.likely_cause for finding in audit.findings_of(IMPOSSIBLE) for one in finding.places}
    accused = {one for finding in audit.findings if finding.verdict in ACCUSING for one in finding.places}
    right = place.keys() - breaking
    named = {line for line in breaking & causes.keys() if CAUSE_WORDS["tf32"] in causes[line]}
    return Score(breaking, breaking & causes.keys(), named, right, right & accused)


def is_right(cell: Cell) -> bool:
    return bool(cell["mean_ms"]) and cell["sync"] == "yes" and cell["precision"] == cell["precision_that_ran"]


def known_cases_found(audits: dict[str, Audit]) -> list[tuple[Cell, bool]]:
    """Each known mistake, and whether the audit says it of that line in these words."""
    said = {
        (name, place, finding.verdict, finding.rule)
        for name, audit in audits.items()
        for finding in audit.findings
        for place in finding.places
    }
    return [
        (case, (case["file"], f"line {case['line']}", case["verdict"], case["rule"]) in said)
        for case in cells("known_cases")
    ]


def print_held_out(audit: Audit, table: Sequence[Cell]) -> None:
    """The score apart: it is what it is, and no claim stands on it."""
    result = held_out_score(audit, table)
    print(f"held out, {HELD_OUT}.csv, {len(result.breaking) + len(result.right)} cells with a time:")
    print(f"  cells that break physics: {len(result.found)} of {len(result.breaking)} found")
    missed = Counter(
        f"{cell['attention']} {cell['precision']} {cell['phase']} on {cell['gpu']}"
        for cell in (table[int(line.removeprefix("line ")) - 2] for line in result.missed)
    )
    for what, count in missed.most_common():
        print(f"    missed {count}: {what}")
    print(f"  other cells: {len(result.accused)} of {len(result.right)} accused")
    rules = Counter(
        finding.rule
        for finding in audit.findings
        if finding.verdict in ACCUSING and result.accused.intersection(finding.places)
    )
    for rule, count in rules.most_common():
        print(f"    {count} by {rule}")


def main() -> int:
    audits = {f"{name}.csv": audit_file(PUBLISHED / f"{name}.csv") for name in TABLES}
    for name, audit in audits.items():
        counts = ", ".join(f"{count} {verdict}" for verdict, count in audit.counts().items())
        print(f"{name}: {len(audit.places)} figures: {counts}")
    result = score(audits["e2e_timing.csv"], cells("e2e_timing"), cells("judged_e2e_timing"))
    print(f"cells that break physics: {len(result.found)} of {len(result.breaking)} found")
    print(f"of those found: the judged cause is named for {len(result.cause_named)}")
    print(f"synchronised, correctly labelled cells: {len(result.accused)} of {len(result.right)} accused")
    known = known_cases_found(audits)
    for case, is_found in known:
        print(f"{'found ' if is_found else 'MISSED'} {case['file']} line {case['line']}: {case['rule']}: {case['why']}")
    print_held_out(audit_file(PUBLISHED / f"{HELD_OUT}.csv"), cells(HELD_OUT))
    claim = "every cell that breaks physics and every known case is found, and no right cell is accused"
    return conclude(claim, result.is_perfect and all(is_found for _, is_found in known))


if __name__ == "__main__":
    sys.exit(main())
