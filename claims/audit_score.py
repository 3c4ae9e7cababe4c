"""The audit against figures judged by hand: what it finds, and what it accuses wrongly.

Judged are the cells of two tables of times that break physics (`judged_e2e_timing.csv`, `judged_attention_timing.csv`)
and single cells of a table in wrong units (`known_cases.csv`). A cell is right by its labels if the device was waited
for, the phase and the precision that ran are those it names, and it is not among the judged cells.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claims.held_out_attention import breaks_physics
from claims.published import PUBLISHED, published_rows
from perf_tests_suite.perf_tests.audit.figures import Finding
from perf_tests_suite.perf_tests.audit.physics import judge
from perf_tests_suite.perf_tests.audit.tables import open_figures

TABLES = ("e2e_timing", "attention_timing", "attention_timing_as_written", "memory")

AS_WRITTEN = ("attention_timing_as_written",)
"""Tables in units that are wrong throughout, so that no cell is right."""

HELD_OUT = ("flash_attention", "compiled_attention")
"""Tables judged by `held_out_attention`, without the audit's code; no rule was tuned on the second."""

JUDGED = ("e2e_timing", "attention_timing")
"""Tables whose cells that break physics were all judged by hand."""

NOT_OF_A_CELL = ("breaks_physics", "cause", "what_is_true", "why")
"""Columns of a judgement; the others name its cell."""

Cell = dict[str, str]


@dataclass(frozen=True)
class Score:
    """Lines of a table, by what was judged and what was found."""

    breaking: set[str]
    found: set[str]
    right: set[str]
    accused: set[str]

    @property
    def missed(self) -> set[str]:
        return self.breaking - self.found

    def lines(self) -> list[str]:
        return [
            f"  cells that break physics: {len(self.found)} of {len(self.breaking)} found",
            f"  correct cells: {len(self.accused)} of {len(self.right)} called impossible",
        ]


def cells(name: str) -> list[Cell]:
    return published_rows(table_path(name).name)


def table_path(name: str) -> Path:
    """The file of a table; a large one is packed."""
    (path,) = PUBLISHED.glob(f"{name}.csv*")
    return path


def key_of(cell: Cell, columns: Iterable[str]) -> tuple[str, ...]:
    return tuple(cell[column] for column in columns if column not in NOT_OF_A_CELL)


def audited(name: str) -> list[Finding]:
    """What the audit finds in a table."""
    with open_figures(table_path(name)) as (_, figures):
        return [one for figure in figures for one in judge(figure) if isinstance(one, Finding)]


def score(findings: Sequence[Finding], table: Sequence[Cell], judged: Sequence[Cell]) -> Score:
    """Score a table of which the cells that break physics were judged by hand."""
    columns = tuple(judged[0])
    judgement = {key_of(cell, columns): cell for cell in judged}
    unknown = judgement.keys() - {key_of(cell, columns) for cell in table}
    if unknown:
        raise ValueError(f"{len(unknown)} judged cells are not in the table, the first is {min(unknown)}.")
    place = {f"line {number}": cell for number, cell in enumerate(table, start=2)}
    said = {line: judgement[key] for line, cell in place.items() if (key := key_of(cell, columns)) in judgement}
    breaking = {line for line, cell in said.items() if cell["breaks_physics"] == "yes"}
    right = {line for line, cell in place.items() if is_right(cell) and line not in said}
    return _scored(findings, breaking, right)


def held_out_score(findings: Sequence[Finding], table: Sequence[Cell]) -> Score:
    """Score attention without judgements by hand: each cell with a time either breaks physics or is right."""
    place = {f"line {number}": cell for number, cell in enumerate(table, start=2) if cell["mean_ms"]}
    breaking = {line for line, cell in place.items() if breaks_physics(cell)}
    return _scored(findings, breaking, place.keys() - breaking)


def whole_score(findings: Sequence[Finding], table: Sequence[Cell]) -> Score:
    """Score a table in which no cell breaks physics."""
    return _scored(findings, set(), {f"line {number}" for number, _ in enumerate(table, start=2)})


def _scored(findings: Sequence[Finding], breaking: set[str], right: set[str]) -> Score:
    """Hold the findings on the cells, by line, against those that break physics and those that are right."""
    accused = {place for finding in findings for place in finding.places}
    return Score(breaking, breaking & accused, right, right & accused)


def is_right(cell: Cell) -> bool:
    is_what_ran = cell["precision"] == cell["precision_that_ran"] and "(" not in cell["phase"]
    return bool(cell["mean_ms"]) and cell.get("sync", "yes") == "yes" and is_what_ran


def known_cases_found(findings: Mapping[str, Sequence[Finding]]) -> list[tuple[Cell, bool]]:
    """Each known mistake, and whether the audit's findings, by table, say it of that line."""
    said = {
        (f"{name}.csv", place, one.rule) for name, found in findings.items() for one in found for place in one.places
    }
    return [(case, (case["file"], f"line {case['line']}", case["rule"]) in said) for case in cells("known_cases")]


def audit() -> dict[str, float]:
    """Print what the audit says of each table, beside what was judged by hand."""
    findings = {name: audited(name) for name in (*TABLES, *HELD_OUT)}
    scores = []
    for name, found in findings.items():
        table = cells(name)
        print(f"{name}: {len(table)} cells, {len(found)} findings")
        if name in AS_WRITTEN:
            continue
        if name in JUDGED:
            scores.append(score(found, table, cells(f"judged_{name}")))
        elif name in HELD_OUT:
            scores.append(held_out_score(found, table))
        else:
            scores.append(whole_score(found, table))
        print(*scores[-1].lines(), sep="\n")
        missed = (table[int(line.removeprefix("line ")) - 2] for line in scores[-1].missed)
        kinds = Counter(f"{cell['precision']} {cell['phase']} on {cell['gpu']}" for cell in missed)
        print(*(f"    missed {times}: {what}" for what, times in kinds.most_common()), sep="\n", end="")
    known = known_cases_found(findings)
    for case, is_found in known:
        print(f"{'found ' if is_found else 'MISSED'} {case['file']} line {case['line']}: {case['rule']}: {case['why']}")
    return {
        "cells that break physics, missed": sum(len(one.missed) for one in scores),
        "known cases missed": sum(not is_found for _, is_found in known),
        "correct cells accused": sum(len(one.accused) for one in scores),
    }
