"""Every case of a run on a line: its figures and their spread, or why it has none."""

from perf_tests.audit.physics import FLAGS
from perf_tests.records.columns import Cell, rounds_line
from perf_tests.records.format import significant
from perf_tests.report.page_parts.cases import LABELS, Column, case_rows, number
from perf_tests.report.page_parts.run import RecordedRun
from perf_tests.report.tables import SPREAD_NOTE, milliseconds

INTERVAL_NOTE = "interval: 95 % confidence interval of the median within this launch, by order statistics"


def _interval(cell: Cell) -> str | None:
    found = cell.rounds.median_interval(0.95)
    return None if found is None else f"{significant(found[0] * 1e3)} to {significant(found[1] * 1e3)}"


def _rate(cell: Cell) -> str | None:
    rate = cell.number("tflops_per_second")
    return None if rate is None else significant(rate, 3)


FIGURES: dict[str, Column] = {
    "median (ms)": lambda cell: significant(cell.median_seconds * 1e3),
    "95 % interval (ms)": _interval,
    "mean ± std (ms)": milliseconds,
    "rounds": lambda cell: str(len(cell.rounds)),
    "tokens/s": number("tokens_per_second", ",.0f"),
    "TFLOP/s": _rate,
    "launches": number("kernel_launches", ",.0f"),
    "flags": lambda cell: ", ".join(cell.flags) or None,
}


def timings(run: RecordedRun) -> str:
    """One table for models and one for attention alone, with the columns that the filters compare."""
    said = [run.conditions, rounds_line(run.cells), SPREAD_NOTE, INTERVAL_NOTE, *flag_sentences(run)]
    anchors = anchors_of(run)
    return "".join(
        case_rows(f"run{run.number}-{name}", title, found, LABELS[alone], FIGURES, said, anchors)
        for alone, name, title in ((False, "models", "Language models"), (True, "alone", "Attention alone"))
        if (found := [cell for cell in run.cells if cell.is_attention == alone])
    )


def flag_sentences(run: RecordedRun) -> list[str]:
    """What each flag of this run means."""
    return [f"{name}: {flag.sentence}" for name, flag in FLAGS.items() if any(name in cell.flags for cell in run.cells)]


def anchors_of(run: RecordedRun) -> dict[str, str]:
    return {cell.id: f"run{run.number}-c{place}" for place, cell in enumerate(run.cells)}
