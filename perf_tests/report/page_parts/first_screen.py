"""The page's first screen: one sentence, four numbers, and the worst cases."""

from collections.abc import Sequence

from perf_tests.history.series import Era
from perf_tests.records.columns import Cell, case_name
from perf_tests.records.format import DASH, significant
from perf_tests.records.record import OUTCOMES, how_many
from perf_tests.report.page_parts.changed import NUMBERS, WORST, counts_of, sentence, worst_table, worst_words
from perf_tests.report.page_parts.commits import Kind, Pair
from perf_tests.report.page_parts.markup import Html, Row, link, notes, rows_table, text
from perf_tests.report.page_parts.run import RecordedRun
from perf_tests.report.page_parts.sparkline import sparkline
from perf_tests.report.page_parts.timings import anchors_of, flag_sentences


def first_screen(era: Era, since: str, pair: Pair | None, run: RecordedRun, others: int) -> str:
    """Of the machine that ran last; `others` are machines, builds or settings below."""
    flagged = sum(bool(cell.flags) for cell in run.cells)
    numbers = [(_count(kind, pair), words) for kind, words in NUMBERS.items()]
    if pair is None:
        failed = sum(bool(cell.outcome) for cell in run.cells)
        numbers[-1] = (str(failed), "without timing")
    numbers.append((str(flagged), "flagged"))
    said = _one_commit(era, run) if pair is None else sentence(era, pair)
    where = f"{run.conditions}."
    if others:
        where += f" Shown apart below: {how_many(others, 'other machine')}, by build and settings."
    worst = _furthest(run) if pair is None else worst_table(era, since, pair)
    return f'<p class="answer">{text(said)}</p>{_four(numbers)}{worst}{notes([*flag_sentences(run), where])}'


def _count(kind: Kind, pair: Pair | None) -> str:
    if pair is None or (kind != Kind.LOST and not pair.can_tell):
        return DASH
    return str(counts_of(pair)[kind])


def _four(numbers: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<div><dt>{text(words)}</dt><dd>{text(value)}</dd></div>" for value, words in numbers)
    return f'<dl class="numbers">{cells}</dl>'


def _one_commit(era: Era, run: RecordedRun) -> str:
    if not run.cells:
        return "No recorded run timed a case on this machine, so nothing can be slower or faster yet."
    code = next((one for one in era.codes if any(launch.name == run.name for launch in one.launches)), era.codes[-1])
    timed = sum(cell.is_timed for cell in run.cells)
    launches = how_many(sum(launch.has_cases for launch in code.launches), "launch")
    return (
        f"{timed} of {how_many(len(run.cells), 'case')} {'has' if timed == 1 else 'have'} a time at {code.name}, "
        f"in {launches}; "
        "no other commit has times on this machine, so nothing can be slower or faster yet."
    )


def _furthest(run: RecordedRun) -> str:
    """Of a single commit: cases without a timing, then flagged ones, then those furthest above their least time."""
    cells = sorted(
        run.cells, key=lambda cell: (not cell.outcome, not cell.flags, cell.number("roofline_fraction") or 1.0)
    )
    to = anchors_of(run)
    rows = [_row(cell, to[cell.id]) for cell in cells[:WORST]]
    if not rows:
        return ""
    header = ("Case", "verdict", "median (ms)", "least / median", "trend", "why")
    title = f"{worst_words(len(rows))}: without a time, flagged, or furthest above the least time (trend: rounds)"
    return rows_table("worst", title, header, 1, rows)


def _row(cell: Cell, anchor: str) -> Row:
    name = link(case_name(cell.id), anchor)
    if cell.outcome:
        return Row([name, OUTCOMES[cell.outcome], DASH, DASH, "", cell.reason])
    share = cell.number("roofline_fraction")
    rounds = sparkline(cell.rounds, f"{len(cell.rounds)} rounds") if len(cell.rounds) > 1 else Html("")
    figures = significant(cell.median_seconds * 1e3), DASH if share is None else f"{share:.0%}"
    return Row([name, "flagged" if cell.flags else "measured", *figures, rounds, ", ".join(cell.flags)])
