"""The audit against figures judged by hand: what it finds, and what it accuses or suspects wrongly.

Judged are the cells of two tables of times that break physics (`judged_e2e_timing.csv`, `judged_attention_timing.csv`),
single known mistakes of all tables (`known_cases.csv`), and suspicions that are right (`judged_suspicions.csv`). A cell
is right by its labels if the device was waited for, the phase and the precision that ran are those it names, and it is
not among the judged cells.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claims.held_out_attention import breaks_physics
from perf_tests.audit.figures import ACCUSING, IMPOSSIBLE, SUSPICIOUS
from perf_tests.audit.tables import Audit, audit_file
from perf_tests.records.published import PUBLISHED, published_rows

TABLES = ("e2e_timing", "attention_timing", "attention_timing_as_written", "memory", "kernels")

AS_WRITTEN = ("attention_timing_as_written",)
"""Tables in units that are wrong throughout, so that no cell is right."""

HELD_OUT = ("flash_attention", "compiled_attention")
"""Tables judged by `held_out_attention`, without the audit's code; no rule was tuned on the second."""

JUDGED = ("e2e_timing", "attention_timing")
"""Tables whose cells that break physics were all judged by hand."""

NOT_OF_A_CELL = ("breaks_physics", "cause", "what_is_true", "why")
"""Columns of a judgement; the others name its cell."""

CAUSE_WORDS = {
    "tf32": "TF32",
    "not_synchronised": "without waiting for the device",
    "batch": "batch",
    "no_gradient": "kept no gradient",
    "rounded": "unit",
}
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
    suspected: set[str]
    """Right cells under a suspicion that was not judged right."""

    @property
    def missed(self) -> set[str]:
        return self.breaking - self.found

    def lines(self) -> list[str]:
        share = len(self.suspected) / len(self.right) if self.right else 0.0
        return [
            f"  cells that break physics: {len(self.found)} of {len(self.breaking)} found",
            f"  correct cells: {len(self.accused)} of {len(self.right)} called impossible or inconsistent",
            f"  correct cells: {len(self.suspected)} of {len(self.right)} ({share:.1%}) wrongly called suspicious",
        ]


def cells(name: str) -> list[Cell]:
    return published_rows(table_path(name).name)


def table_path(name: str) -> Path:
    """The file of a table; a large one is packed."""
    (path,) = PUBLISHED.glob(f"{name}.csv*")
    return path


def key_of(cell: Cell, columns: Iterable[str]) -> tuple[str, ...]:
    return tuple(cell[column] for column in columns if column not in NOT_OF_A_CELL)


def score(name: str, audit: Audit, table: Sequence[Cell], judged: Sequence[Cell]) -> Score:
    """Score a table of which the cells that break physics were judged by hand."""
    columns = tuple(judged[0])
    judgement = {key_of(cell, columns): cell for cell in judged}
    unknown = judgement.keys() - {key_of(cell, columns) for cell in table}
    if unknown:
        raise ValueError(f"{len(unknown)} judged cells are not in the table, the first is {min(unknown)}.")
    place = {f"line {number}": cell for number, cell in enumerate(table, start=2)}
    said = {line: judgement[key] for line, cell in place.items() if (key := key_of(cell, columns)) in judgement}
    breaking = {line: cell["cause"] for line, cell in said.items() if cell["breaks_physics"] == "yes"}
    right = {line for line, cell in place.items() if is_right(cell) and line not in said}
    return _scored(name, audit, place, breaking, right)


def held_out_score(name: str, audit: Audit, table: Sequence[Cell]) -> Score:
    """Score attention without judgements by hand: each cell with a time either breaks physics or is right."""
    place = {f"line {number}": cell for number, cell in enumerate(table, start=2) if cell["mean_ms"]}
    breaking = {line: "tf32" for line, cell in place.items() if breaks_physics(cell)}
    return _scored(name, audit, place, breaking, place.keys() - breaking)


def whole_score(name: str, audit: Audit, table: Sequence[Cell]) -> Score:
    """Score a table without cells that break physics: all but the known mistakes are right."""
    known = {case["line"] for case in cells("known_cases") if case["file"] == f"{name}.csv"}
    place = {f"line {number}": cell for number, cell in enumerate(table, start=2) if str(number) not in known}
    return _scored(name, audit, place, {}, set(place))


def _scored(name: str, audit: Audit, place: Mapping[str, Cell], breaking: Mapping[str, str], right: set[str]) -> Score:
    """Hold the findings on the cells, by line, against causes of those that break physics and against the right ones.

    Suspicions that were judged right count against nobody.
    """
    causes: dict[str, str] = {}
    for finding in audit.findings_of(IMPOSSIBLE):
        for line in finding.places:
            causes[line] = f"{causes.get(line, '')} {finding.likely_cause}"
    found = breaking.keys() & causes.keys()
    accused = {line for verdict in ACCUSING for finding in audit.findings_of(verdict) for line in finding.places}
    deserved = {(cell["source"], cell["rule"]) for cell in cells("judged_suspicions") if cell["file"] == f"{name}.csv"}
    suspected = {
        line
        for finding in audit.findings_of(SUSPICIOUS)
        for line in right.intersection(finding.places)
        if (place[line]["source"], finding.rule) not in deserved
    }
    named = {line for line in found if CAUSE_WORDS[breaking[line]] in causes[line]}
    return Score(set(breaking), found, named, right, right & accused, suspected)


def is_right(cell: Cell) -> bool:
    is_what_ran = cell["precision"] == cell["precision_that_ran"] and "(" not in cell["phase"]
    return bool(cell["mean_ms"]) and cell.get("sync", "yes") == "yes" and is_what_ran


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


def audit() -> dict[str, float]:
    """Print what the audit says of each table, beside what was judged by hand."""
    audits = {f"{name}.csv": audit_file(table_path(name)) for name in TABLES}
    scores = []
    for name in TABLES:
        audited, table = audits[f"{name}.csv"], cells(name)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in audited.counts().items())
        print(f"{name}.csv: {len(audited.places)} figures: {counts}")
        if name in JUDGED:
            scores.append(score(name, audited, table, cells(f"judged_{name}")))
            print(f"  of those found: the judged cause is named for {len(scores[-1].cause_named)}")
        elif name not in AS_WRITTEN:
            scores.append(whole_score(name, audited, table))
        else:
            continue
        print(*scores[-1].lines(), sep="\n")
    known = known_cases_found(audits)
    for case, is_found in known:
        print(f"{'found ' if is_found else 'MISSED'} {case['file']} line {case['line']}: {case['rule']}: {case['why']}")
    for name in HELD_OUT:
        table = cells(name)
        scores.append(held_out_score(name, audit_file(table_path(name)), table))
        count = len(scores[-1].breaking) + len(scores[-1].right)
        print(f"{name}.csv, {count} cells with a time, judged without the audit's code:")
        print(*scores[-1].lines(), sep="\n")
        missed = (table[int(line.removeprefix("line ")) - 2] for line in scores[-1].missed)
        kinds = Counter(f"{cell['attention']} {cell['precision']} {cell['phase']} on {cell['gpu']}" for cell in missed)
        print(*(f"    missed {times}: {what}" for what, times in kinds.most_common()), sep="\n", end="")
    return {
        "cells that break physics, missed": sum(len(one.missed) for one in scores),
        "known cases missed": sum(not is_found for _, is_found in known),
        "correct cells accused": sum(len(one.accused) for one in scores),
        "correct cells suspected, worst table": max(len(one.suspected) / len(one.right) for one in scores),
    }
