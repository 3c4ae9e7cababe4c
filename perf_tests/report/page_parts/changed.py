"""What changed between two commits that a reader may choose, and the page's first screen above it."""

from collections import Counter
from collections.abc import Mapping

from perf_tests.history.series import Era
from perf_tests.records.columns import case_name
from perf_tests.records.record import how_many
from perf_tests.report.page_parts.commits import HEADER, Change, Kind, Pair, cells_of_change
from perf_tests.report.page_parts.markup import Html, Row, link, notes, rows_table, text
from perf_tests.report.page_parts.since import anchors_of, short_subject, spark_of

WORST = 10
NUMBERS = {Kind.SLOWER: "slower", Kind.FASTER: "faster", Kind.LOST: "gone or failed"}


def changed_section(era: Era, since: str, anchor: str, pair: Pair) -> str:
    """Two choices of a commit, hidden until the page's program runs, and the table of the pair to show first."""
    choices = "".join(_choice(era, side, chosen) for side, chosen in (("base", pair.base), ("head", pair.head)))
    to = anchors_of(era, since)
    rows = [Row([_named(row, to), *cells_of_change(row)]) for row in pair.changes]
    title = f"{commit_words(era, pair.head)} against {commit_words(era, pair.base)}"
    shown = rows_table(anchor, title, HEADER, 1, rows, keeps_columns=True)
    form = f'<form class="commits" data-era="{since}" aria-label="Commits to compare" hidden>{choices}</form>'
    return f'{form}{shown}<div class="said">{notes(pair.notes)}</div>'


def commit_words(era: Era, place: int) -> str:
    code = era.codes[place]
    return f"{code.name} ({code.date[:10]}) {short_subject(code)}".rstrip()


def _choice(era: Era, side: str, chosen: int) -> str:
    options = "".join(
        f'<option value="{place}"{" selected" if place == chosen else ""}>{text(_option(era, place))}</option>'
        for place in reversed(range(len(era.codes)))
    )
    return f'<label>{side} <select data-side="{side}">{options}</select></label>'


def _option(era: Era, place: int) -> str:
    code = era.codes[place]
    return f"{code.date[:10]} {code.name} ({len(code.launches)}) {short_subject(code)}"


def _named(row: Change, to: Mapping[str, str]) -> str | Html:
    name = case_name(row.case)
    return link(name, to[row.case]) if row.case in to else name


def counts_of(pair: Pair) -> Counter[Kind]:
    return Counter(row.kind for row in pair.changes)


def sentence(era: Era, pair: Pair) -> str:
    """What the first screen says of two commits."""
    counts = counts_of(pair)
    head, base = (commit_words(era, place) for place in (pair.head, pair.base))
    of = f"of {how_many(len(pair.changes), 'case')}"
    if not counts[Kind.LOST] and all(row.ratio is None for row in pair.changes):
        return f"{head} and {base} have no case in common, so nothing can be slower or faster yet."
    if not pair.can_tell and not counts[Kind.LOST]:
        return f"Too few launches to tell whether {head} is slower than {base}; the ratios below are no verdict."
    found = [f"{counts[kind]} {words}" for kind, words in NUMBERS.items() if counts[kind]]
    said = f"{', '.join(found)} {of}" if found else f"no change was found in any {of}"
    later = len(era.codes) - 1 - pair.head
    rest = f" {later} newer commit{'s have' if later > 1 else ' has'} too few launches for the gate." if later else ""
    return f"{head} against {base}: {said}.{rest if pair.is_judged else ''}"


def worst_table(era: Era, since: str, pair: Pair) -> str:
    """The first rows of the pair's table, each with how its time went over all commits."""
    to, series = anchors_of(era, since), {one.case: one for one in reversed(era.series)}
    rows = [
        Row([
            _named(row, to), row.verdict, "" if row.ratio is None else f"{row.ratio - 1:+.1%}",
            spark_of(series[row.case]) if row.case in series else "", row.why,
        ])
        for row in pair.changes[:WORST]
    ]  # fmt: skip
    header = ("Case", "verdict", "change", "trend", "why")
    return rows_table("worst", worst_words(len(rows)), header, 1, rows)


def worst_words(count: int) -> str:
    return "The worst case" if count == 1 else f"The worst {count} cases"
