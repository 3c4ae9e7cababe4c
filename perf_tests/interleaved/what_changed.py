"""Tells what a change did to the program of the cases that a gate fails, after everything is measured."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perf_tests.cases.case import Case
from perf_tests.gate.verdicts import GateResult, Verdict
from perf_tests.interleaved.sides import Trees, environment_of_side
from perf_tests.predict.difference import Difference, compare_sides, row_sentence
from perf_tests.predict.operations import SideToPlay, sent_case
from perf_tests.records.columns import case_name
from perf_tests.records.record import how_many
from perf_tests.user_code.named import Repository

MOST_CASES, MOST_ROWS = 3, 4
"""Cases, and rows of each, that are told, worst first."""


def what_changed(result: GateResult, cases: Mapping[str, Case], other: Mapping[str, str], trees: Trees) -> list[str]:
    """The worst lines of the program of the cases that are SLOWER or MORE; empty where none is.

    `other` are base's values on the axes that differ on purpose.
    """
    slower = [row for row in result.cases if row.verdict == Verdict.SLOWER and row.effect is not None]
    slower.sort(key=lambda row: -row.effect.effect if row.effect else 0.0)
    risen = [row.id for row in result.exact if row.verdict == Verdict.MORE]
    names = [name for name in dict.fromkeys((*(row.id for row in slower), *risen)) if not cases[name].is_compiled]
    if not names:
        return []
    base, head = (side_in(tree, trees.repository) for tree in (trees.base, trees.head))
    pairs = [(sent_case(_at_base(cases[name], other)), sent_case(cases[name])) for name in names[:MOST_CASES]]
    lines = []
    for name, found in zip(names, compare_sides(base, head, pairs), strict=False):
        lines += [f"What changed in {case_name(name)}:", *(f"  {line}" for line in _told(found))]
    left = names[MOST_CASES:]
    more = [f"{how_many(len(left), 'case')} more: perf-tests diff shows each."] if left else []
    return lines + more


def side_in(tree: Path, repository: Repository) -> SideToPlay:
    """The side whose code lies in `tree`, played in the folder and environment of a gate's worker."""
    folder = tree if repository.holds_suite else repository.folder_in(tree)
    return SideToPlay(tree, folder, environment_of_side(repository, tree), repository.told)


def _at_base(case: Case, other: Mapping[str, str]) -> Case:
    """The case with base's values on the axes that it has."""
    values = {axis: value for axis, value in other.items() if hasattr(case, axis)}
    return replace(case, **values)  # type: ignore[type-var]  # each family is a dataclass


def _told(found: Difference | str) -> list[str]:
    if isinstance(found, str):
        return [found]
    if not found.rows:
        return ["both sides issue the same operations; the cause is none that they show, such as work in Python."]
    left = found.rows[MOST_ROWS:]
    more = [f"{how_many(len(left), 'row')} more: perf-tests diff shows them."] if left else []
    return [*map(row_sentence, found.rows[:MOST_ROWS]), *more]
