"""Each case over the commits of one machine: steps, exact counters, and how its time went."""

from collections.abc import Mapping, Sequence

from perf_tests.history.commits import Code
from perf_tests.history.series import Era, Series
from perf_tests.records.columns import Cell, case_name
from perf_tests.records.format import DASH, Columns, T, significant
from perf_tests.records.record import Json, how_many
from perf_tests.report.history import COUNTER_COLUMNS, STEP_COLUMNS, conditions, counter_changes_in, since, steps_in
from perf_tests.report.page_parts.axes import Tags, tags_of
from perf_tests.report.page_parts.commits import Change, Pair, cells_of_change, lost_words
from perf_tests.report.page_parts.figure import rounded
from perf_tests.report.page_parts.markup import Html, Row, link, paragraph, rows_table, text
from perf_tests.report.page_parts.sparkline import sparkline

POINT_NOTE = (
    "a commit's figure is the median over its launches; an interval (95 %, by order statistics) needs six of them"
)
LONGEST_SUBJECT = 60
TREND = ("Case", "trend", "commits", "first (ms)", "lowest (ms)", "highest (ms)", "newest (ms)",
         "95 % interval (ms)", "newest / first")  # fmt: skip


def since_section(era: Era, anchor: str) -> str:
    """Without a figure where one commit is all there is; the page's program draws it from `era_data`."""
    to = {id(one): case_anchor(anchor, place) for place, one in enumerate(era.series)}
    steps = _table(f"{anchor}-steps", "Steps: commits at which a time moved", STEP_COLUMNS, steps_in(era), to)
    counters = _table(
        f"{anchor}-counters", "Exact counters: commits at which one changed", COUNTER_COLUMNS,
        counter_changes_in(era), to,
    )  # fmt: skip
    drawn = (
        '<figure><p class="title">Time over commits, one case at a time</p>'
        f'<div class="plot over-commits" id="plot-{anchor}" role="group" '
        f'aria-label="time of a case over commits"></div><figcaption><p class="note">{text(POINT_NOTE)}; '
        f'dotted: steps</p><button type="button" class="csv" data-figure="{anchor}" hidden>CSV</button>'
        "</figcaption></figure>"
    )
    rows = [_trend(era, anchor, place) for place in range(len(era.series))]
    said = [*map(str, conditions(era)), POINT_NOTE]
    trends = rows_table(f"{anchor}-cases", "Every case over the commits, measured", TREND, 1, rows, said)
    none = "" if steps else paragraph("No step was found in any case.")
    return f'{none}{steps}{counters}<div class="figures">{drawn}</div>{trends}'


def short_subject(code: Code) -> str:
    return code.subject if len(code.subject) <= LONGEST_SUBJECT else f"{code.subject[: LONGEST_SUBJECT - 1].rstrip()}…"


def case_anchor(anchor: str, place: int) -> str:
    return f"{anchor}-c{place}"


def anchors_of(era: Era, anchor: str) -> dict[str, str]:
    """Of each case's row, by its id; of two identities, that of the newest code."""
    found: dict[str, str] = {}
    for place, one in enumerate(era.series):
        found.setdefault(one.case, case_anchor(anchor, place))
    return found


def spark_of(one: Series) -> Html:
    values = [point.seconds for point in one.points]
    words = (
        f"{how_many(len(values), 'commit')}, from {significant(values[0] * 1e3)} to {significant(values[-1] * 1e3)} ms"
    )
    return sparkline(values, words, [step.start for step in one.steps])


def tags_of_series(one: Series) -> Tags:
    return tags_of(Cell(one.case, dict(one.identity), {}))


def _table(
    name: str, title: str, columns: Columns[tuple[Series, T]], found: Sequence[tuple[Series, T]], to: Mapping[int, str]
) -> str:
    """With the columns of the screen, each case a link to its figure; empty without rows."""
    if not found:
        return ""
    header = tuple({"case": "Case", "counter": "Case", "name": "counter"}.get(column, column) for column in columns)
    named, *others = columns.values()
    rows = [Row([link(named(row), to[id(row[0])]), *(cell(row) for cell in others)]) for row in found]
    return rows_table(name, title, header, 1, rows)


def _trend(era: Era, anchor: str, place: int) -> Row:
    one = era.series[place]
    seconds, last = [point.seconds for point in one.points], one.points[-1]
    figures = (seconds[0], min(seconds), max(seconds), seconds[-1])
    interval = " to ".join(significant(end * 1e3) for end in last.interval) if last.interval else DASH
    times = [significant(value * 1e3) for value in figures]
    own = case_anchor(anchor, place)
    cells: list[str | Html] = [link(case_name(one.case), own), spark_of(one), str(len(seconds)), *times]
    return Row([*cells, interval, f"{seconds[-1] / seconds[0]:.3f}"], own)


def era_data(era: Era, anchor: str, pairs: Sequence[Pair]) -> Json:
    """For the page's program: a history has thousands of points, so each is three numbers."""
    places = {id(code): place for place, code in enumerate(era.codes)}
    lost = [
        [place, case_name(case), *lost_words(outcome)]
        for place, code in enumerate(era.codes)
        for launch in code.launches
        for case, outcome in launch.outcomes.items()
    ]
    return {
        "anchor": anchor,
        "codes": [[code.name, code.date[:10], short_subject(code), len(code.launches)] for code in era.codes],
        "cases": [_case_data(one, places) for one in era.series],
        "lost": _each_once(lost),
        "pairs": [
            {"base": pair.base, "head": pair.head, "notes": pair.notes, "rows": list(map(_row_data, pair.changes))}
            for pair in pairs
        ],
    }


def _case_data(one: Series, places: Mapping[int, int]) -> Json:
    points = one.points
    at = [places[id(point.code)] for point in points]
    intervals = {place: list(map(rounded, p.interval)) for place, p in enumerate(points) if p.interval is not None}
    return {
        "name": case_name(one.case),
        "at": None if at == list(range(len(places))) else at,
        "seconds": [rounded(point.seconds) for point in points],
        "intervals": intervals,
        "steps": [[step.start, rounded(step.effect), since(one, step)] for step in one.steps],
    }


def _row_data(row: Change) -> list[str]:
    return [case_name(row.case), *cells_of_change(row)]


def _each_once(rows: Sequence[Sequence[object]]) -> list[list[object]]:
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]
