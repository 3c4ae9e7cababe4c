"""How a case's median went over the recorded runs of one machine."""

from collections.abc import Sequence

from perf_tests.phases import label_of
from perf_tests.views.report.figure import Figure, Point, Series
from perf_tests.views.report.run import MachineRuns
from perf_tests.views.screens.lines import DASH, case_name
from perf_tests.views.tables.digits import significant
from perf_tests.views.tables.table import Table

NOTE = "medians of launches of their own: launches of one code differ by more than their rounds do"

MOST_TICKS = 20
"""Up to as many runs, each has its tick."""


class History:
    """The medians of one case over the runs of a machine, of the identity that its newest run has."""

    def __init__(self, case_id: str, machine: MachineRuns) -> None:
        found = [(run.number, *run.medians[case_id]) for run in machine.runs if case_id in run.medians]
        identity = found[-1][2]
        self.name = case_name(case_id)
        self.milliseconds = [(number, seconds * 1e3) for number, seconds, of in found if of == identity]
        named = dict(identity)
        self.tags = named.get("size", ""), named.get("context_length", ""), named["precision"], label_of(named["phase"])


def histories(machine: MachineRuns) -> list[History]:
    """Of every case with two figures or more, as the newest runs know it; cases of older runs alone come last."""
    ids = dict.fromkeys(case_id for run in reversed(machine.runs) for case_id in run.medians)
    return [history for case_id in ids if len((history := History(case_id, machine)).milliseconds) > 1]


def history_figure(found: Sequence[History], machine: MachineRuns, name: str) -> Figure:
    """One line for each case, of which a reader picks one."""
    series = [
        Series(
            history.name, [Point(number, value, history.name, history.tags) for number, value in history.milliseconds]
        )
        for history in found
    ]
    return Figure(
        name, f"Medians over runs: {machine.name}", "number of the run", "median of the rounds (ms)", series,
        [NOTE, machine.newest.conditions], x_log=False, y_log=False, picks_one=True,
        x_values=[run.number for run in machine.runs] if len(machine.runs) <= MOST_TICKS else (),
    )  # fmt: skip


def history_table(found: Sequence[History], machine: MachineRuns) -> Table:
    """First, lowest, highest, previous and newest median of each case."""
    header = ("Case", "runs", "first (ms)", "lowest (ms)", "highest (ms)", "previous (ms)", "newest (ms)",
              "newest / previous")  # fmt: skip
    return Table("history", f"Medians over runs: {machine.name}", header, 1, tuple(map(_row, found)), (NOTE,))


def _row(history: History) -> tuple[str, ...]:
    values = [value for _, value in history.milliseconds]
    chosen = (values[0], min(values), max(values), values[-2], values[-1])
    ratio = f"{values[-1] / values[-2]:.3f}" if values[-2] else DASH
    return (history.name, str(len(values)), *map(significant, chosen), ratio)
