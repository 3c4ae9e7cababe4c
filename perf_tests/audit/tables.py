"""`audit FILE`: say which figures of a table or benchmark file are impossible or inconsistent, and why.

Tables of others, and pytest-benchmark files, are read as labelled figures, one at a time, and audited part by part.
Columns that comment on a row (`note`, `status`, `sync`) are ignored.

perf-tests audit TIMES.csv
perf-tests audit TIMES.csv --gpu H100 --all
"""

import argparse
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice, product
from pathlib import Path
from textwrap import fill

from perf_tests.audit import figures as labelled
from perf_tests.audit import rows as published
from perf_tests.audit.consistency import Table
from perf_tests.audit.figures import VERDICTS, Figure, Finding, Kernel, Memory, NotJudged, Timing, attention_of
from perf_tests.audit.physics import USUAL_BATCH_SIZE, Said, one_outlier, rule_out, said_of_kernels, said_of_memories
from perf_tests.audit.rows import ALONE, KERNELS, MEAN, MEMORY, MODEL, STD, Row, UnreadableError, layout_of, seconds_in
from perf_tests.hardware.datasheets import Gpu, gpu_named
from perf_tests.hardware.limits import SIZES, AttentionWork, ModelConfig, ModelWork, Work
from perf_tests.phases import FINDINGS, FINE, PHASES, PHASES_OF_OTHERS, RefusalError
from perf_tests.records.format import printable
from perf_tests.records.record import how_many
from perf_tests.records.store import ENDINGS, announced, strict_json

SHOWN_GROUPS = 40
MOST_REASONS = 30
"""Shown one by one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_file = "a CSV (.gz, .xz) or Markdown table of timings, memory or kernels, or a pytest-benchmark JSON"
    parser.add_argument("file", type=Path, help=of_file)
    parser.add_argument("--gpu", type=_gpu, help="GPU of rows that name none, by name or peaks (memory=..,fp32=..)")
    of_all = "print every finding and notice, not the worst of those alike"
    parser.add_argument("--all", action="store_true", help=of_all)


def _gpu(text: str) -> object:
    try:
        return gpu_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    tally, not_judged, before = Tally(), list[NotJudged](), '{\n "findings": [\n'
    with RefusalError.instead_of(ValueError):
        for file in announced([arguments.file]):
            for part in audits_of(file, arguments.gpu):
                tally.add(part)
                if arguments.json:  # line by line: a part's findings are let go before the next part is read
                    not_judged += part.not_judged
                    for finding in part.findings:
                        print(f"{before}{strict_json(asdict(finding), indent=None)}")
                        before = ","
                elif arguments.all:
                    for finding in part.findings:
                        print(_fitted(finding.sentence()))
    if arguments.json:
        rest = {"kind": tally.kind, "figures": tally.counts.total(), "counts": dict(tally.counts)}
        rest["not_judged"] = [asdict(one) for one in not_judged]
        print(f"{before.removesuffix(',')}],{strict_json(rest).removeprefix('{')}")
    else:
        print("\n".join(map(_fitted, [*([] if arguments.all else tally.shown_groups()), *tally.lines()])))
    return FINDINGS if any(verdict in labelled.ACCUSING for verdict, _, _ in tally.groups) else FINE


def _fitted(sentence: str) -> str:
    """Wrap a sentence at a terminal's width; a program that reads gets one line."""
    sentence = printable(sentence)  # the labels are a stranger's
    if not sys.stdout.isatty():
        return sentence
    return fill(sentence, shutil.get_terminal_size().columns, subsequent_indent="    ", break_long_words=False)


# What a file's audit came to, part by part: counts, and one line for findings that are alike.


MOST_GROUPS = 2000
"""Kept apart; findings beyond are counted under their rule alone."""
MOST_PLACES = 4


@dataclass
class Group:
    """Findings of one rule on one source, and the worst of them."""

    worst: Finding
    findings: int = 0
    figures: int = 0
    first_places: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.findings += 1
        self.figures += len(finding.places)
        self.first_places += finding.places[: MOST_PLACES - len(self.first_places)]
        if finding.excess > self.worst.excess:
            self.worst = finding

    def sentence(self) -> str:
        if self.findings == 1:
            return self.worst.sentence()
        others = f", ... ({how_many(self.figures, 'figure')})" if self.figures > len(self.first_places) else ""
        places = ", ".join(place.removeprefix("line ") for place in self.first_places)
        named = "lines " if self.first_places[0].startswith("line ") else ""
        return self.worst.sentence(f" The worst of {self.findings} like it: {named}{places}{others}.")


@dataclass
class Tally:
    """What all parts came to, in bounded room."""

    kind: str = ""
    parts: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[str] = field(default_factory=Counter)
    first_unjudged: dict[str, NotJudged] = field(default_factory=dict)
    groups: dict[tuple[str, str, str], Group] = field(default_factory=dict)

    def add(self, audit: "Audit") -> None:
        self.kind = audit.kind
        self.parts += 1
        self.counts.update(audit.counts())
        for one in audit.not_judged:
            self.unjudged[one.reason] += 1
            self.first_unjudged.setdefault(one.reason, one)
        for finding in audit.findings:
            key = (finding.verdict, finding.rule, finding.series)
            if key not in self.groups and len(self.groups) >= MOST_GROUPS:
                key = (finding.verdict, finding.rule, "")
            self.groups.setdefault(key, Group(finding)).add(finding)

    def shown_groups(self) -> list[str]:
        """The worst of those alike, the gravest first."""
        order = list(VERDICTS)
        groups = [group for group in self.groups.values() if group.worst.verdict != labelled.NOTICE]
        groups.sort(key=lambda group: (order.index(group.worst.verdict), -group.worst.excess))
        more = f"... and {len(groups) - SHOWN_GROUPS} more groups of findings; --all prints every finding"
        return [group.sentence() for group in groups[:SHOWN_GROUPS]] + [more] * (len(groups) > SHOWN_GROUPS)

    def lines(self) -> list[str]:
        """The counts in words."""
        lines = [f"{verdict}: {self.counts[verdict]} ({meaning})" for verdict, meaning in VERDICTS.items()]
        reasons = self.unjudged.most_common()
        for reason, count in reasons[:MOST_REASONS]:
            first = self.first_unjudged[reason]
            detail = f" ({'first ' if count > 1 else ''}{first.place}: {first.detail})" if first.detail else ""
            lines.append(f"not judged: {count}: {reason}{detail}")
        if rest := reasons[MOST_REASONS:]:
            lines.append(f"not judged: {sum(count for _, count in rest)}: {len(rest)} other reasons")
        compared = f"; each {WINDOW:,} of them were compared with each other" if self.parts > 1 else ""
        of_kind = f"{how_many(self.counts.total(), 'figure')} of {self.kind}, {self.counts['fine']} without a finding"
        return [*lines, f"{of_kind}{compared}"]


# The findings on a file.


WINDOW = 100_000
"""Figures of a file that are held and compared at a time."""


@dataclass(frozen=True)
class Audit:
    """The findings on a file. `places` are those of its figures, in their order."""

    kind: str
    places: list[str]
    findings: list[Finding]
    not_judged: list[NotJudged]

    def counts(self) -> dict[str, int]:
        """Figures by their gravest verdict; `fine` are those judged without any."""
        gravest: dict[str, str] = {}
        for verdict in reversed(VERDICTS):
            gravest |= {place: verdict for finding in self.findings_of(verdict) for place in finding.places}
        unjudged = {one.place for one in self.not_judged} - gravest.keys()
        counted = Counter(gravest.values())
        fine = len(self.places) - len(gravest) - len(unjudged)
        return {verdict: counted[verdict] for verdict in VERDICTS} | {"not judged": len(unjudged), "fine": fine}

    def findings_of(self, verdict: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == verdict]


def audit_file(path: Path, gpu: Gpu | None = None) -> Audit:
    """The whole file at once. `gpu` is the card of rows that name none. Raises ValueError for an unreadable file."""
    parts = list(audits_of(path, gpu))
    places = [place for part in parts for place in part.places]
    findings = _gravest_first(finding for part in parts for finding in part.findings)
    return Audit(parts[0].kind, places, findings, [one for part in parts for one in part.not_judged])


def audits_of(path: Path, gpu: Gpu | None = None, window: int = WINDOW) -> Iterator[Audit]:
    """The same in parts of at most `window` figures, which are compared with each other and not with other parts'.

    Raises ValueError with one sentence for an unreadable file, and for one whose rows cannot be read at all.
    """
    if path.name.casefold().endswith(ENDINGS):
        yield _audit("pytest-benchmark", labelled.read_benchmarks(path), [], gpu)
        return
    with open_figures(path) as (kind, rows):
        is_read = False
        for part in iter(lambda: list(islice(rows, window)), []):
            unreadable = [row for row in part if isinstance(row, NotJudged)]
            figures = [row for row in part if not isinstance(row, NotJudged)]
            if not figures and not is_read:
                raise ValueError(f"{path}: no row can be read. {unreadable[0].place}: {unreadable[0].sentence()}.")
            is_read = True
            yield _audit(kind, figures, unreadable, gpu)
        if not is_read:
            raise ValueError(f"{path} has a header but no rows.")


def _audit(kind: str, figures: Sequence[Figure], unreadable: Sequence[NotJudged], gpu: Gpu | None) -> Audit:
    """What the rules say of figures, by those of their own class and by those of the others beside it."""
    if gpu is not None:
        figures = [figure if figure.gpu else replace(figure, gpu=gpu.name) for figure in figures]
    timings = [figure for figure in figures if isinstance(figure, Timing)]
    table, said = Table(timings), list[Said]()
    for timing in timings:
        said += [table.explain(one) if isinstance(one, Finding) else one for one in rule_out(timing)]
        said += filter(None, [one_outlier(timing)])
    said += table.findings()
    said += said_of_memories([figure for figure in figures if isinstance(figure, Memory)])
    said += said_of_kernels([figure for figure in figures if isinstance(figure, Kernel)])
    findings = _gravest_first(one for one in said if isinstance(one, Finding))
    places = [figure.place for figure in figures] + [one.place for one in unreadable]
    return Audit(kind, places, findings, [*(one for one in said if isinstance(one, NotJudged)), *unreadable])


def _gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: list(VERDICTS).index(finding.verdict))


# A line of each kind of table as a figure.


_YES, _NO = ("yes", "true", "1", "y", "compiled", "torch.compile"), ("no", "false", "0", "n", "eager", "none", "")
_NO_CHECKPOINT = ("", "-", "0", "no", "none", "off", "false")
_NO_WINDOW = ("", "-", "0", "-1", "no", "none", "None", "False", "false", "full")
_OF_A_MODEL = ("size", "d_model", "d_ff", "n_layers", "n_heads", "vocab", "batch", "context")
_OF_ATTENTION = ("batch", "seq_len", "d_model", "heads")
_MOST_WORKS = 65536


def _timing(row: Row, is_alone: bool) -> Timing:
    """A time of a model, or of attention where `is_alone`."""
    # Equal cells give one object: to read them again takes longer.
    columns = _OF_ATTENTION if is_alone else _OF_A_MODEL
    key, works = tuple([row.text(column) for column in columns]), row.layout.works
    if key not in works:
        if len(works) >= _MOST_WORKS:
            works.clear()
        works[key] = _attention_work(row) if is_alone else _model_work(row)
    work: Work | str = works[key]
    if not labelled.covers_the_square(row.text("attention")) or row.text("window") not in _NO_WINDOW:
        work = "its attention leaves out a part of the square"
    precision = _precision(row.text("precision"), row.text("tf32"))
    seconds, _, deviation, rounding = row.measured("mean", seconds_in)
    try:
        std, _, _, _ = row.measured("std", seconds_in)
        warmup = row.count("warmup")
    except UnreadableError:  # which judge nothing alone
        std = warmup = None
    return Timing(
        *row.labels,
        gpu_is_inferred=row.text("gpu_basis").startswith("inferred") or "(inferred" in row.text("gpu"),
        work=None if isinstance(work, str) else work,
        without_work=work if isinstance(work, str) else "",
        precision_label=precision or labelled.NO_PRECISION,
        has_fp32_weights=labelled.labelled_precision(precision) in ("fp32", "tf32") or "amp" in precision,
        implementation=_implementation(row),
        phase=(phase_of_attention if is_alone else phase_of)(row.text("phase")),
        seconds=seconds,
        std_seconds=deviation if std is None else std,
        rounds=row.count("n_measured"),
        warmup_rounds=warmup,
        is_causal=row.text("causal").casefold() not in ("no", "false", "0"),
        rounding_seconds=rounding,
        optimizer=row.text("optimizer").casefold(),
        shape_is_by_name=not is_alone and _named_size(row) is not None,
    )


def _model_work(row: Row) -> ModelWork | str:
    """The work, or why it is not known. Limits are lower ones: a vocabulary that is not stated counts as one token."""
    shape = {column: row.count(column) for column in ("d_model", "d_ff", "n_layers")}
    batch, context = row.count("batch"), row.count("context")
    heads, vocab = row.count("n_heads"), row.count("vocab")
    if (config := _named_size(row)) is not None:
        batch = USUAL_BATCH_SIZE if batch is None else batch
    elif missing := [column for column, value in shape.items() if value is None]:
        return f"no {' and '.join(missing)}"
    else:
        d_model, d_ff, layers = (value or 0 for value in shape.values())
        try:
            config = ModelConfig(d_model, d_ff, layers, heads or 1, 1 if vocab is None else vocab)
        except ValueError as error:
            return str(error).rstrip(".")
    if not (batch and context):
        return f"no {'context' if batch else 'batch'}"
    if labelled.is_another_model(row.text("size")):
        return f"{row.text('size')!r} is another architecture than the suite's"
    return ModelWork(row.text("size"), config, batch, context)


def _named_size(row: Row) -> ModelConfig | None:
    """The course's size of that name, where the row has nothing else of the shape."""
    is_named_alone = not any(map(row.text, ("d_model", "d_ff", "n_layers")))
    return SIZES.get(row.text("size")) if is_named_alone else None


def _attention_work(row: Row) -> AttentionWork | str:
    batch, length, width = row.count("batch"), row.count("seq_len"), row.count("d_model")
    heads = row.count("heads") or 1
    if not (batch and length and width):
        return "no batch, length or width"
    is_of_all_heads = row.name("d_model").casefold() in ("d_model", "embed_dim", "width")
    return AttentionWork(batch * heads, length, max(1, width // heads) if is_of_all_heads else width)


@lru_cache(maxsize=4096)
def label_of(text: str) -> str:
    """The author's label: `fp32` of `tf32(labelled fp32)`."""
    named = re.search(r"labelled (\w+)", text)
    return named[1] if named else text


@lru_cache(maxsize=4096)
def _precision(text: str, tf32: str) -> str:
    """The author's label, with TF32 where a column of its own allows it."""
    precision = label_of(text)
    is_allowed = tf32.casefold() in (*_YES, "on", "enabled", "high", "medium")
    return f"{precision} (tf32)" if is_allowed and labelled.labelled_precision(precision) == "fp32" else precision


def _checkpoint(row: Row) -> str:
    word = row.text("checkpoint").casefold()
    return "none" if word in _NO_CHECKPOINT else word


def _implementation(row: Row) -> str:
    labels = (row.text("attention"), row.text("execution"), _checkpoint(row), row.text("compiled"))
    return _implementation_named(*labels, row.has("compiled") or row.has("execution"))


@lru_cache(maxsize=4096)
def _implementation_named(attention: str, execution: str, checkpoint: str, compiled: str, is_said: bool) -> str:
    """Name it by our own axes where the table has them; others say whether they compiled, or name their kernel."""
    if not execution:
        word = compiled.casefold().partition("(")[0].strip()
        execution = "eager" if word in _NO else "compiled" if word in _YES else compiled
        execution = execution if is_said or attention else "not stated"
    if attention and attention_of(attention) == labelled.UNFUSED:
        attention = "naive"
    return labelled.implementation_named(attention or "naive", execution, checkpoint)


def _memory(row: Row) -> Memory:
    least, most, _, rounding = row.measured("value", published.bytes_in)
    implementation, mode = _implementation(row), row.text("mode")
    # The cell may have the phase and the heading the peak.
    is_peak = phase_of(mode) in PHASES and re.search("peak|max", row.name("value").casefold())
    return Memory(
        *row.labels,
        kind="attention" if row.text("object") == "attention" else "model",
        size=row.text("size"),
        width=row.count("d_model"),
        layers=row.count("n_layers"),
        batch_size=row.count("batch"),
        length=row.count("context"),
        precision_label=label_of(row.text("precision")),
        is_compiled=implementation == "compiled" or attention_of(implementation) == labelled.TILED,
        mode=f"{phase_of(mode)}_peak" if is_peak else mode,
        value_bytes=least,
        most_bytes=most,
        d_ff=row.count("d_ff"),
        rounding_bytes=rounding,
        checkpoint=_checkpoint(row),
        optimizer=row.text("optimizer").casefold(),
    )


def _kernel(row: Row) -> Kernel:
    (total, *_), (average, *_) = (row.measured(column, seconds_in) for column in ("total", "average"))
    return Kernel(
        *row.labels,
        size=row.text("size"),
        context_length=row.count("context"),
        scope=row.text("scope"),
        name=row.text("kernel"),
        calls=row.count("calls"),
        total_seconds=total,
        average_seconds=average,
        percent=(row.figure("pct") or (None,))[0],
        batch_size=row.count("batch"),
    )


@dataclass(frozen=True)
class Kind:
    """One kind of table: the columns that it cannot do without, and the reader of a line."""

    needed: str
    measured: str
    """The needed column that holds its figures."""
    read: Callable[[Row], Figure]


KINDS = {
    KERNELS: Kind("kernel calls", "calls", _kernel),
    MODEL: Kind("d_model d_ff n_layers phase mean", "mean", partial(_timing, is_alone=False)),
    ALONE: Kind("seq_len d_model phase mean", "mean", partial(_timing, is_alone=True)),
    MEMORY: Kind("mode value", "value", _memory),
}
"""The first that has all it needs reads a table; one of times and amounts is a table of times."""


# Phases by the words in use for them, in a column of their own or in the headings of their times.


WORDS = {
    **{row.published_as: row.name for row in (*PHASES.values(), *PHASES_OF_OTHERS.values()) if row.published_as},
    **{
        word: phase
        for phase, words in {
            "forward": "fwd forward_pass forward_only",
            "backward": "bwd backward_pass backward_only",
            "forward_backward": "fwd+bwd forward+backward forward_and_backward end_to_end e2e",
            "full_step": "step train_step training_step full fwd+bwd+opt",
            "optimizer": "opt optimizer_step update",
            "inference": "forward_no_grad inference_forward",
        }.items()
        for word in words.split()
    },
}


@lru_cache(maxsize=4096)
def phase_of(text: str) -> str:
    """The phase that the words name; the text itself where they name none."""
    word = re.sub(r"\s*\+\s*", "+", text.casefold()).replace(" ", "_").replace("-", "_")
    return WORDS.get(word, word if word in PHASES or word in PHASES_OF_OTHERS else text)


@lru_cache(maxsize=4096)
def phase_of_attention(text: str) -> str:
    """The same of attention alone."""
    if (word := f"attention_{phase_of(text)}") in (*PHASES, *PHASES_OF_OTHERS):
        return word
    word = f"attention_{phase_of(re.split('[(+]', text)[0])}"  # without remarks on what else was timed
    return word if word in PHASES else text


def phases_in(header: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Phases whose times have a heading of their own, `forward_ms` or `mean backward (s)`; none if none has.

    Of each its name, the heading of its times, and the header as if it had these alone, with `phase` at the end.
    """
    parts = [_phase_and_figure(published.normal_name(name)) for name in header]
    for phase in dict.fromkeys(part[0] for part in parts if part):
        named = zip(header, parts, strict=True)
        alone = [(part[1] if part[0] == phase else "") if part else name for name, part in named]
        if timed := [place for place, part in enumerate(parts) if part and part[0] == phase and MEAN.find([part[1]])]:
            yield phase, header[timed[0]], [*alone, "phase"]


def _phase_and_figure(name: str) -> tuple[str, str] | None:
    """`mean_fwd_ms` as `forward` and `mean_ms`; None for a column that is no time or deviation of a phase."""
    for word, phase in _BY_COLUMN.items():
        before, is_named, after = f"_{name}_".partition(f"_{word}_")
        # A phase that is alone in its heading is a time too.
        rest = "_".join(filter(None, (before.strip("_"), after.strip("_")))) or "time"
        if is_named and (MEAN.find([rest]) or STD.find([rest])):
            return phase, rest
    return None


_WORDS_AND_NAMES = WORDS | dict(zip(PHASES, PHASES, strict=True))
_BY_COLUMN = {re.sub("[^a-z0-9]+", "_", word): phase for word, phase in _WORDS_AND_NAMES.items()}
_BY_COLUMN = dict(sorted(_BY_COLUMN.items(), key=lambda item: -len(item[0])))
"""Words as a header writes them, the longest first."""


# A file as a table.


Rows = Iterator[Figure | NotJudged]


@contextmanager
def open_figures(path: Path) -> Iterator[tuple[str, Rows]]:
    """The kind of the table, a key of `KINDS`, and its figures as they are taken, unreadable lines among them.

    Raises ValueError with one sentence for a file that is no such table.
    """
    with published.open_text(path) as file:
        read, refused, others = [], [], []
        for place, header, separator, lines in published.tables_in(path, file):
            try:
                read.append((*_kind_of(path, header), separator, lines))
            except ValueError as error:
                refused.append(error)
                continue
            if len(read) > 1:
                others.append(NotJudged(place, "another table of this file; give it a file of its own"))
        if not read:
            raise refused[0] if refused else ValueError(f"{path} holds no table.")
        kind, columns, separator, lines = read[0]

        def figures() -> Rows:
            for place, values in lines:
                for heading, phase, layout in columns:
                    try:
                        if isinstance(values, UnreadableError):
                            raise values
                        yield KINDS[kind].read(Row(f"{place}{heading}", [*values, *phase], layout, separator))
                    except UnreadableError as error:
                        yield NotJudged(f"{place}{heading}", error.reason, error.detail)
            yield from others

        yield kind, figures()


def _kind_of(path: Path, header: list[str]) -> tuple[str, list[tuple[str, list[str], published.Layout]]]:
    """The kind, and of each time on a line its heading and phase, if it has columns of its own, and its columns."""

    def lacking(header: list[str], size_is_a_shape: bool = False) -> dict[str, list[str]]:
        places = {name: {*layout_of(header, name).places} for name in KINDS}
        if size_is_a_shape and "size" in places[MODEL]:
            places[MODEL] |= {"d_model", "d_ff", "n_layers"}
        return {name: [one for one in kind.needed.split() if one not in places[name]] for name, kind in KINDS.items()}

    if twice := sorted(column for column, count in Counter(header).items() if column and count > 1):
        raise ValueError(f"{path} has the columns {', '.join(twice)} twice.")
    narrow: list[tuple[str, list[str], list[str]]] = [("", [], header)]
    wide = [(f" {heading}", [phase], alone) for phase, heading, alone in phases_in(header)]
    for size_is_a_shape, times in product((False, True), (narrow, wide)):
        of_kinds = lacking(times[0][2], size_is_a_shape) if times else {}
        if kind := next((name for name, columns in of_kinds.items() if not columns), ""):
            return kind, [(heading, phase, layout_of(alone, kind)) for heading, phase, alone in times]
    missing = lacking(header)
    nearest = min(missing, key=lambda name: len(missing[name]) / len(KINDS[name].needed.split()))
    measured = [name for name, columns in missing.items() if KINDS[name].measured not in columns]
    labels = {"mean": "mean_ms or another time", "value": "peak_mib or another amount"}
    named = [
        f"{', '.join(labels.get(column, column) for column in missing[name])}, read as a table of {name}"
        for name in measured or [nearest]
    ]
    raise ValueError(f"{path} lacks the columns {'; or '.join(named)}.")
