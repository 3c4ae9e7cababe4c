"""`report [RUN ...]`: write one page of recorded runs that opens from disk; without RUN, of all of them.

perf-tests report
perf-tests report 0004 0005 -o report.html
"""

import argparse
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

from markupsafe import Markup

from perf_tests_suite.perf_tests.audit.rounds import FLAGS
from perf_tests_suite.perf_tests.history.commits import Launch, moment, read_log
from perf_tests_suite.perf_tests.history.series import Era, newest_first, still_open
from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, UNREADABLE
from perf_tests_suite.perf_tests.records.columns import (
    EVERY_COLUMN,
    CaseContext,
    CaseRow,
    date_of,
    lost_lines,
    machine_line,
    machine_name,
    rounds_line,
)
from perf_tests_suite.perf_tests.records.format import DASH, Table, printable
from perf_tests_suite.perf_tests.records.record import OUTCOMES, how_many, some_of, without_nan
from perf_tests_suite.perf_tests.records.store import announced, each_readable, print_left_out, write_named
from perf_tests_suite.perf_tests.report import blocks, changes, plots, tables
from perf_tests_suite.perf_tests.report.changes import COUNTED, FIRST_RUN, WORST, ChangeKind, Pair
from perf_tests_suite.perf_tests.report.history import chosen_machines, still_open_line
from perf_tests_suite.perf_tests.report.plots import RecordedRun

HERE = Path(__file__).parent
TITLE = "Recorded runs"
MOST_IN_FULL = 10
"""Named runs shown in full, the newest: each is a screenful of tables for every case."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="path, folder, or start of a record's name")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="output file (default: report.html)"
    )
    parser.add_argument("--storage", type=Path, default=Path(".benchmarks"), help="where records are (.benchmarks)")


def run(arguments: argparse.Namespace) -> int:
    """Write the page: named runs in full, the newest ten, and all others in their machine's history.

    Without names, each machine's newest run, and its newest with cases, are in full.
    """
    machines, left_out = chosen_machines(arguments)
    launches = sorted((launch for machine in machines for launch in machine.launches), key=_moment)
    numbers = {launch.path: number for number, launch in enumerate(launches, 1)}
    chosen = launches[-MOST_IN_FULL:]
    if not arguments.runs:
        kinds = ((machine.launches, [one for one in machine.launches if one.has_cases]) for machine in machines)
        newest = {max(some, key=_moment).path for of_machine in kinds for some in of_machine if some}
        chosen = [launch for launch in launches if launch.path in newest]
    full = each_readable(announced(launch.path for launch in chosen), left_out)
    shown = [RecordedRun.of(record, numbers[record.path]) for record in full]
    print_left_out(left_out, arguments.runs)
    if not shown:
        return UNREADABLE
    eras = newest_first(machines, read_log(arguments.storage))
    write_named(arguments.output, page_of(Report(eras, numbers, shown, left_out)).encode())
    if arguments.json:
        said = {"page": arguments.output, "runs": len(numbers), "machines": len(machines), "left_out": left_out}
        print(json.dumps(said))
    else:
        print(f"Wrote {arguments.output}: {len(numbers)} run(s) of {len(machines)} machine(s).")
    return FINDINGS if left_out else FINE


def _moment(launch: Launch) -> tuple[float, str]:
    return moment(launch.written), launch.name


class Report:
    """What the page is about: `eras` newest first, numbers of runs by date from 1 on, the runs shown in full.

    All but the newest of a machine are folded until a reader opens them.

    The newest run of the first era is among those. `left_out` says what could not be read.
    """

    def __init__(
        self, eras: Sequence[Era], numbers: Mapping[Path, int], shown: Sequence[RecordedRun], left_out: Sequence[str]
    ) -> None:
        self.eras, self.numbers, self.shown, self.left_out = eras, numbers, shown, [*left_out]
        newest = {one.conditions: one.number for one in shown}
        self.folded = {one.number: f"Run {one.name}" for one in shown if one.number not in newest.values()}
        self.pairs: list[Pair | None] = [changes.pair_of(era) for era in eras]


# The sections of the page. A new one is one line here and a function below that gives its blocks.


@dataclass(frozen=True)
class Section:
    """A heading and what `blocks_of` makes of each of its subjects; a subject without blocks has no section.

    `{number}` and `{name}` in its anchor and title are the subject's.
    """

    anchor: str
    title: str
    subjects: "Callable[[Report], Iterable[tuple[int | str, str, Any]]]"
    blocks_of: Callable[[Report, Any], Iterable[blocks.PageBlock]]
    level: int = 2


def whole_page(report: Report) -> Iterator[tuple[str, str, Report]]:
    yield "", "", report


def each_era(report: Report) -> Iterator[tuple[int, str, int]]:
    """Machines by their names, with what else tells one apart from another of that name."""
    names = [machine_name(era.machine.record) for era in report.eras]
    for place, (era, name) in enumerate(zip(report.eras, names, strict=True)):
        if names.count(name) > 1:
            sentinel = "" if era.has_sentinel else ", before a product was timed beside the cases"
            name = f"{machine_line(era.machine.record)}{sentinel}"
        yield place + 1, name, place


def each_run(report: Report) -> Iterator[tuple[int, str, RecordedRun]]:
    for one in reversed(report.shown):
        yield one.number, one.name, one


def neighbours(report: Report) -> Iterator[tuple[str, str, tuple[RecordedRun, RecordedRun]]]:
    """The newest run of each machine beside that of the next one."""
    newest = {one.conditions: one for one in report.shown}
    for before, now in pairwise(newest.values()):
        yield f"{before.number}-run{now.number}", f"run {before.number} and run {now.number}", (before, now)


TableOf = Callable[[Sequence[CaseRow]], Table | None]


def part(
    name: str, title: str, figures: Sequence[Callable[[RecordedRun], Iterable[blocks.Chart]]] = (),
    tables: Sequence[TableOf] = (), passed: str = "", pass_tables: Sequence[TableOf] = (),
) -> Section:  # fmt: skip
    """A subsection of a run: figures, tables of its cases, tables of what the pass `passed` found."""

    def blocks_of(_: Report, one: RecordedRun) -> Iterator[blocks.PageBlock]:
        if drawn := [figure for of in figures for figure in of(one)]:
            yield blocks.Charts(drawn)
        # The reasons for cases without a timing, of which there may be thousands, stand below the run's first table.
        said = frozenset(lost_lines(one.cells))
        found = one.passes.get(passed, [])
        for builders, cells, without in ((tables, one.cells, said), (pass_tables, found, frozenset())):
            for table in filter(None, (build(cells) for build in builders)):
                notes = [*(note for note in table.notes if note not in without), one.conditions]
                name, rows = f"run{one.number}-{table.name}", list(map(blocks.TableRow, table.rows))
                yield blocks.Rows(name, table.title, table.header, table.label_columns, rows, notes, table.text_columns)

    return Section(f"run{{number}}-{name}", title, each_run, blocks_of, level=3)


TILES = {ChangeKind.SLOWER: "bad", ChangeKind.FASTER: "good", ChangeKind.LOST: "lost"}


def answer(report: Report, _: Report) -> Iterator[blocks.PageBlock]:
    """One sentence, four numbers and the worst cases, of the machine that ran last."""
    era = report.eras[0]
    pair = report.pairs[0]
    names = {launch.name for code in era.codes for launch in code.launches}
    runs = [one for one in report.shown if one.name in names] or report.shown[:1]
    newest = next((one for one in reversed(runs) if one.cells), runs[-1])
    flagged = str(sum(bool(cell.flags) for cell in newest.cells)), "flagged", ""
    if pair is None:
        timed = sum(cell.is_timed for cell in newest.cells)
        count = f"{timed} of {how_many(len(newest.cells), 'case')} {'has' if timed == 1 else 'have'} a time"
        launches = sum(launch.has_cases for code in era.codes for launch in code.launches)
        first = (
            FIRST_RUN if launches == 1 else f"{launches} runs of these cases, all of one commit; nothing to compare."
        )
        yield blocks.Said(f"{first} {count}." if newest.cells else "No recorded run timed a case.", "answer")
        lost = sum(bool(cell.outcome) for cell in newest.cells)
        failed = str(lost), "without timing", "lost" if lost else ""
        yield blocks.Numbers(
            [(DASH, COUNTED[ChangeKind.SLOWER], ""), (DASH, COUNTED[ChangeKind.FASTER], ""), failed, flagged]
        )
        if newest.cells:
            yield _furthest(newest)
    else:
        found = changes.changes_shown(era, pair)
        lines = [changes.headline(era, pair, found), changes.sentence(era, pair), still_open_line(era, still_open(era))]
        for place, line in enumerate(filter(None, lines)):
            yield blocks.Said(line, "" if place else "answer")
        moved = Counter(one.kind for one in found)
        counts = [
            (str(moved[kind]) if moved[kind] or kind == ChangeKind.LOST or pair.has_evidence else DASH, words,
             TILES[kind] if moved[kind] else "")
            for kind, words in COUNTED.items()
        ]  # fmt: skip
        yield blocks.Numbers([*counts, flagged])
        yield from changes.worst(era, 1, pair, found)
        yield from changes.commands(era, found)
    others = len(report.eras) - 1
    where = f"{newest.conditions}."
    if others:
        where += f" Shown apart below: {how_many(others, 'other machine')}, by build and settings."
    yield from (blocks.Said(line, "note") for line in (*_flag_sentences(newest), where))


def _furthest(one: RecordedRun) -> blocks.Rows:
    """Cases without a timing, then flagged ones, then those furthest above their least time."""
    cells = sorted(one.cells, key=lambda of: (not of.outcome, not of.flags, of.number("roofline_fraction") or 1.0))
    of_furthest = [EVERY_COLUMN[name] for name in ("median_seconds", "roofline_fraction")]
    to, rows = _anchors(one), []
    for cell in cells[:WORST]:
        told: list[blocks.CellOfRow] = [OUTCOMES.get(cell.outcome, ""), DASH, DASH, "", cell.reason]
        if cell.is_timed:
            figures = [column.below(CaseContext(cell)) for column in of_furthest]
            rounds = blocks.sparkline(cell.rounds, f"{len(cell.rounds)} rounds")
            told = ["flagged" if cell.flags else "measured", *figures, rounds, " ".join(cell.flags)]
        rows.append(blocks.TableRow([blocks.ElementLink(cell.case, to[cell.id]), *told]))
    header = ("Case", "verdict", *(column.title for column in of_furthest), "trend", "why")
    title = "The worst case" if len(rows) == 1 else f"The worst {len(rows)} cases"
    why = "without a time, flagged, or furthest above the least time (trend: rounds)"
    return blocks.Rows("worst", f"{title}: {why}", header, 1, rows, text_columns=("verdict", "trend"))


TIMINGS = (
    "median_seconds", "median_interval_seconds", "mean_and_deviation_seconds", "rounds", "tokens_per_second",
    "tflops_per_second", "kernel_launches", "flags",
)  # fmt: skip
INTERVAL_NOTE = "interval: 95 % confidence interval of the median within this launch, by order statistics"

KNOWN_LIMITS = ("roofline_fraction", "share_of_matmul_ceiling", "mfu")
LIMITS = (
    "median_seconds", "roofline_seconds", *KNOWN_LIMITS, "bound", "peak_allocated_bytes", "predicted_peak_bytes",
)  # fmt: skip
"""What a timed case shows; a column that is null for every case is left out."""
LIMIT_NOTE = (
    "least time: arithmetic and memory traffic of a case's kernels at rates measured on this machine, above the median "
    "where caches serve what it counts as memory traffic; roofline: least time over median; "
    "ceiling: the best square product measured here"
)


def limits(_: Report, one: RecordedRun) -> Iterator[blocks.PageBlock]:
    """The roofline, and a table of the cases whose record knows a limit."""
    if drawn := plots.roofline(one):
        yield blocks.Charts(drawn)
    timed = (cell for cell in one.cells if cell.is_timed)
    known = [cell for cell in timed if any(cell.number(name) is not None for name in KNOWN_LIMITS)]
    yield from _case_tables(one, ("limits-models", "limits-attention"), known, LIMITS, [LIMIT_NOTE, one.conditions], {})


def heading(_: Report, one: RecordedRun) -> Iterator[blocks.PageBlock]:
    yield blocks.Said(f"{one.conditions}; {date_of(one.record)}")
    if one.collectives:
        rows = how_many(one.collectives, "measurement")
        said = f"{rows} of collectives alone, of data between ranks without a model"
        yield blocks.Said(f"Not shown here: {said}. Read them with `perf-tests tables --only cases RECORD`.", "note")


def timings(_: Report, one: RecordedRun) -> Iterator[blocks.PageBlock]:
    """Every case of a run on a line, with the columns that the filters compare."""
    said = [one.conditions, rounds_line(one.cells), tables.SPREAD_NOTE, INTERVAL_NOTE, *_flag_sentences(one)]
    yield from _case_tables(one, ("models", "alone"), one.cells, TIMINGS, said, _anchors(one))


def _case_tables(
    one: RecordedRun, names: tuple[str, str], cells: Sequence[CaseRow], columns: Sequence[str], said: Sequence[str],
    anchors: Mapping[str, str],
) -> Iterator[blocks.Rows]:  # fmt: skip
    """A table of models and one of attention alone: each case's labels, and its figures or why it has none."""
    for alone, name, title in zip((False, True), names, ("Language models", "Attention alone"), strict=True):
        found = [cell for cell in cells if cell.is_attention == alone]
        if not found:
            continue
        places = (tables.HEAD_DIM, tables.SEQUENCE) if alone else (tables.SIZE, tables.CONTEXT)
        labels = (*places, tables.PHASE, tables.PRECISION, tables.IMPLEMENTATION)
        timed = [CaseContext(cell) for cell in found if cell.is_timed]
        used = [column for column in map(EVERY_COLUMN.__getitem__, columns) if any(map(column.has_value, timed))]
        rows = []
        for cell in found:
            known = CaseContext(cell)
            texts = [*(label.of(cell) for label in labels), *(of.below(known) for of in used if cell.is_timed)]
            lost = None if cell.is_timed else (OUTCOMES[cell.outcome], cell.reason)
            rows.append(blocks.TableRow(texts, anchors.get(cell.id, ""), lost))
        header = [*(label.name for label in labels), *(column.title for column in used)]
        words = [column.title for column in used if column.kind is str]
        header += [] if used else ["outcome"]
        yield blocks.Rows(f"run{one.number}-{name}", title, header, len(labels), rows, said, words)


def _anchors(one: RecordedRun) -> dict[str, str]:
    return {cell.id: f"run{one.number}-c{place}" for place, cell in enumerate(one.cells)}


def _flag_sentences(one: RecordedRun) -> list[str]:
    """What each flag of this run means, and whose it is."""
    found = {name: [cell.case for cell in one.cells if name in cell.flags] for name in FLAGS}
    return [f"{some_of(cases)}: {name}: {FLAGS[name].sentence}" for name, cases in found.items() if cases]


def what_ran(report: Report, _: Report) -> Iterator[blocks.PageBlock]:
    rows = []
    for place, era in enumerate(report.eras, 1):
        for code, launch in ((one, launch) for one in era.codes for launch in one.launches):
            texts = (
                launch.name, f"{place}", launch.written[:16].replace("T", " "), code.name,
                f"{len(launch.figures)}", f"{len(launch.outcomes)}", code.subject,
            )  # fmt: skip
            rows.append((report.numbers[launch.path], texts))
    header = ("Run", "Record", "Machine", "Written", "Commit", "measured", "without timing", "subject")
    lines = [f"machine {place}: {machine_line(era.machine.record)}" for place, era in enumerate(report.eras, 1)]
    if len(report.eras) > 1:
        count = len(report.eras)
        lines.append(f"{count} machines, builds or settings are shown separately: their times are not comparable")
    in_order = [blocks.TableRow([str(place), *texts]) for place, texts in sorted(rows)]
    yield blocks.Rows("runs", "Recorded runs", header, 5, in_order, lines)
    yield from (blocks.Said(f"Left out: {line}", "warning") for line in report.left_out)


SECTIONS = (
    Section("answer", "Is anything slower?", whole_page, answer),
    Section("changed{number}", "What changed: {name}", each_era,
            lambda report, place: changes.changed(report.eras[place], place + 1, report.pairs[place])),
    Section("since{number}", "Since when: {name}", each_era,
            lambda report, place: changes.over_commits(report.eras[place], place + 1)),
    Section("run{number}-roofline", "How close to the limits: {name}", each_run, limits),
    Section("run{number}", "Run {name}", each_run, heading),
    Section("run{number}-timings", "Timings", each_run, timings, level=3),
    part("by-size", "By size and context", tables=[tables.timing_table]),
    part("context", "Scaling over context", [partial(plots.model_growth, name="context", axis=plots.CONTEXT)]),
    part("size", "Scaling over size", [partial(plots.model_growth, name="size", axis=plots.PARAMETERS)]),
    part("precision", "Precision", [plots.speed_up], [tables.precision_table]),
    part("memory", "Memory", [plots.peaks, plots.memory_categories, plots.timelines], [tables.memory_table],
         "memory", tables.MEMORY_TABLES),
    part("attention", "Attention alone", [plots.attention_growth],
         [tables.attention_table, tables.attention_memory_table]),
    part("kernels", "Where the device time goes", [plots.kernel_shares], (),
         "kernels", [tables.share_table, tables.kernel_table]),
    part("kernels-layer", "One attention layer", (), (), "kernels", [tables.attention_part_table]),
    part("warmup", "Warm-up", [plots.warmup_series], (), "warmup", tables.WARMUP_TABLES),
    Section("run{number}", "Side by side: {name}", neighbours, lambda _, two: changes.side_by_side(*two)),
    Section("runs", "What ran and where", whole_page, what_ran),
)  # fmt: skip
"""The page from top to bottom. Neighbours of the same subjects go together: all sections of a run, then of the next."""


def page_of(report: Report) -> str:
    """The whole page: its text, the data of its figures, and the programs that draw and filter them."""
    sections: list[dict[str, Any]] = []
    for subjects, of_each in groupby(SECTIONS, key=lambda section: section.subjects):
        for (own_number, name, subject), section in product(subjects(report), list(of_each)):
            if found := list(section.blocks_of(report, subject)):
                words = {"anchor": section.anchor, "title": section.title}
                told = {part: text.format(number=own_number, name=name) for part, text in words.items()}
                folded = report.folded.get(own_number, "") if subjects is each_run else ""
                sections.append({**told, "level": section.level, "blocks": found, "folded": folded})
    drawn = [block for section in sections for block in section["blocks"] if isinstance(block, blocks.Charts)]
    figures = [figure for block in drawn for figure in block.figures if not figure.over_commits]
    cells = [cell for one in report.shown for cell in one.cells]
    over_time = (CaseRow(one.case, dict(one.identity), {}) for era in report.eras for one in era.series)
    cases = {cell.case: blocks.tags_of(cell) for cell in (*cells, *over_time)}
    choices, stored = blocks.choices_of(cells), blocks.stored_data(figures, cases)
    eras = [
        changes.era_data(era, n, pair)
        for n, (era, pair) in enumerate(zip(report.eras, report.pairs, strict=True), 1)
        if pair is not None
    ]
    template: Any = environment().get_template("page.html.jinja").module
    document: str = template.document(
        title=TITLE, choices=choices, style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        sections=[(folded, list(some)) for folded, some in groupby(sections, key=lambda section: section["folded"])],
        data=without_nan({**stored, "eras": eras, "tones": changes.TONES}),
        drawing=Markup(plotly()) if figures or eras else "",
        program=Markup((HERE / "page.js").read_text(encoding="utf-8")),
    )  # fmt: skip
    return str(document)


def plotly() -> str:
    """The smallest of Plotly's published bundles that draws every figure: it knows scatter, bar and pie."""
    return lzma.decompress((HERE / "plotly" / "plotly-basic.min.js.xz").read_bytes()).decode()


@cache
def environment() -> Any:
    """Read the templates beside this file.

    Every text that they are given is escaped, control characters and lone surrogates as spaces; JSON holds no
    character that could end its element.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # no other verb's help waits for it

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment
