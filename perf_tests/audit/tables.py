"""`audit FILE`: say which figures of a table no hardware can reach.

A table is read as labelled figures, one a line. Each is held to the physics of its own labels. Columns that comment on
a row (`note`, `status`, `sync`) are ignored.

perf-tests audit TIMES.csv
perf-tests audit TIMES.csv --gpu H100 --all
"""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from perf_tests_suite.perf_tests.audit import figures as labelled
from perf_tests_suite.perf_tests.audit import rows as published
from perf_tests_suite.perf_tests.audit.figures import (
    IMPOSSIBLE,
    Figure,
    Finding,
    Memory,
    NotJudged,
    Timing,
    attention_of,
)
from perf_tests_suite.perf_tests.audit.physics import judge
from perf_tests_suite.perf_tests.audit.rows import (
    ALONE,
    MEMORY,
    MODEL,
    TableLine,
    UnreadableCellError,
    layout_of,
    seconds_in,
)
from perf_tests_suite.perf_tests.hardware.datasheets import Gpu, gpu_named, pieces_named
from perf_tests_suite.perf_tests.hardware.limits import (
    FLOAT32_BYTES,
    AttentionWork,
    ModelConfig,
    ModelWork,
    Work,
)
from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, PHASES, PHASES_OF_OTHERS, RefusalError
from perf_tests_suite.perf_tests.records.format import printable
from perf_tests_suite.perf_tests.records.record import how_many
from perf_tests_suite.perf_tests.records.store import ENDINGS, announced, strict_json

SHOWN_GROUPS = 40
MOST_REASONS = 30
"""Shown one by one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_file = "a CSV (.gz, .xz) or Markdown table of timings or memory"
    parser.add_argument("file", type=Path, help=of_file)
    parser.add_argument("--gpu", type=_gpu, help="GPU of rows that name none, by name or peaks (memory=..,fp32=..)")
    of_all = "print every finding, not the worst of those alike"
    parser.add_argument("--all", action="store_true", help=of_all)


def _gpu(text: str) -> object:
    try:
        return gpu_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """1 where a figure is impossible. Raises RefusalError for no table, and for one of which nothing can be judged."""
    (file,) = announced([arguments.file])
    not_judged, before = list[NotJudged](), '{\n "findings": [\n'
    with RefusalError.instead_of(ValueError), open_figures(file) as (kind, figures):
        tally = Tally(kind)
        for figure in figures:
            said = judge(with_gpu(figure, arguments.gpu))
            tally.add(said)
            for one in said:
                if isinstance(one, NotJudged):
                    not_judged += [one] * arguments.json
                elif arguments.json:  # line by line: a finding is let go before the next figure is read
                    print(f"{before}{strict_json(asdict(one), indent=None)}")
                    before = ","
                elif arguments.all:
                    print(printable(one.sentence()))  # the labels are a stranger's
    if not tally.figures:
        raise RefusalError(f"{file} has a header but no rows.")
    if arguments.json:
        rest = {"kind": kind, "figures": tally.figures, "counts": tally.counts()}
        rest["not_judged"] = [asdict(one) for one in not_judged]
        print(f"{before.removesuffix(',')}],{strict_json(rest).removeprefix('{')}")
    else:
        print(*map(printable, [*([] if arguments.all else tally.shown_groups()), *tally.lines()]), sep="\n")
    if tally.unjudged.total() == tally.figures:
        first = next(iter(tally.first_unjudged.values()))
        raise RefusalError(
            f"Of the {how_many(tally.figures, 'figure')} of {file} none can be judged. {first.place}: "
            f"{first.sentence()}. State what is missing in columns of the table, or the card with --gpu."
        )
    return FINDINGS if tally.impossible else FINE


def with_gpu(figure: Figure | NotJudged, gpu: Gpu | None) -> Figure | NotJudged:
    """The figure on this card if it names none."""
    return figure if gpu is None or isinstance(figure, NotJudged) or figure.gpu else replace(figure, gpu=gpu.name)


# What a file's audit came to, figure by figure: counts, and one line for findings that are alike.


MOST_GROUPS = 2000
"""Kept apart; findings beyond are counted under their rule alone."""


@dataclass
class Tally:
    """What all figures came to, in bounded room."""

    kind: str
    figures: int = 0
    impossible: int = 0
    unjudged: Counter[str] = field(default_factory=Counter)
    """Figures by the reason."""
    first_unjudged: dict[str, NotJudged] = field(default_factory=dict)
    groups: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Findings by rule and source."""
    worst: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def add(self, said: Sequence[Finding | NotJudged]) -> None:
        """Count one figure."""
        self.figures += 1
        self.impossible += any(isinstance(one, Finding) for one in said)
        for one in said:
            if isinstance(one, NotJudged):
                self.unjudged[one.reason] += 1
                self.first_unjudged.setdefault(one.reason, one)
                continue
            key = (one.rule, one.series)
            if key not in self.groups and len(self.groups) >= MOST_GROUPS:
                key = (one.rule, "")
            self.groups[key] += 1
            self.worst[key] = max(self.worst.get(key, one), one, key=lambda finding: finding.excess)

    def counts(self) -> dict[str, int]:
        """Figures by what was said of them; `fine` are those judged and possible."""
        not_judged = self.unjudged.total()
        fine = self.figures - self.impossible - not_judged
        return {IMPOSSIBLE: self.impossible, "not judged": not_judged, "fine": fine}

    def shown_groups(self) -> list[str]:
        """The worst of those alike."""
        found = sorted(self.worst, key=lambda key: -self.worst[key].excess)
        more = f"... and {len(found) - SHOWN_GROUPS} more groups of findings; --all prints every finding"
        alike = {key: f" The worst of {count} like it." for key, count in self.groups.items() if count > 1}
        shown = [self.worst[key].sentence(alike.get(key, "")) for key in found[:SHOWN_GROUPS]]
        return shown + [more] * (len(found) > SHOWN_GROUPS)

    def lines(self) -> list[str]:
        """The counts in words."""
        lines = [f"impossible: {self.impossible} (breaks physics under its own labels)"]
        reasons = self.unjudged.most_common()
        for reason, count in reasons[:MOST_REASONS]:
            first = self.first_unjudged[reason]
            detail = f" ({'first ' if count > 1 else ''}{first.place}: {first.detail})" if first.detail else ""
            lines.append(f"not judged: {count}: {reason}{detail}")
        if rest := reasons[MOST_REASONS:]:
            lines.append(f"not judged: {sum(count for _, count in rest)}: {len(rest)} other reasons")
        return [*lines, f"{how_many(self.figures, 'figure')} of {self.kind}, {self.counts()['fine']} of them possible"]


# A line of each kind of table as a figure.


_YES, _NO = ("yes", "true", "1", "y", "compiled", "torch.compile"), ("no", "false", "0", "n", "eager", "none", "")
_NO_CHECKPOINT = ("", "-", "0", "no", "none", "off", "false")
_NO_WINDOW = ("", "-", "0", "-1", "no", "none", "None", "False", "false", "full")


def _timing(row: TableLine, is_alone: bool) -> Timing:
    """A time of a model, or of attention where `is_alone`."""
    work = _attention_work(row) if is_alone else _model_work(row)
    if not labelled.covers_the_square(row.text("attention")) or row.text("window") not in _NO_WINDOW:
        work = "its attention leaves out a part of the square"
    precision = _precision(row.text("precision"), row.text("tf32"))
    seconds, most_seconds = row.measured("mean", seconds_in)
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
        most_seconds=most_seconds,
        is_causal=row.text("causal").casefold() not in ("no", "false", "0"),
        optimizer=row.text("optimizer").casefold(),
    )


def _model_work(row: TableLine) -> Work | str:
    """The work, or why it is not known."""
    config, batch, context = _config(row), row.count("batch"), row.count("context")
    if isinstance(config, str) or not (batch and context):
        return config if isinstance(config, str) else f"no {'context' if batch else 'batch'}"
    return ModelWork(row.text("size"), config, batch, context)


def _config(row: TableLine) -> ModelConfig | str:
    """The shape, or why it is not known. Limits are lower ones: a vocabulary that is not stated counts as one token."""
    size = row.text("size")
    if labelled.is_another_model(size):
        return f"{size!r} is another architecture than the suite's"
    shape = {column: row.count(column) for column in ("d_model", "d_ff", "n_layers")}
    if missing := [column for column, value in shape.items() if value is None]:
        return f"no {' and '.join(missing)}"
    d_model, d_ff, layers = (value or 0 for value in shape.values())
    vocab = row.count("vocab")
    try:
        return ModelConfig(d_model, d_ff, layers, row.count("n_heads") or 1, 1 if vocab is None else vocab)
    except ValueError as error:
        return str(error).rstrip(".")


def _attention_work(row: TableLine) -> Work | str:
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


def _checkpoint(row: TableLine) -> str:
    word = row.text("checkpoint").casefold()
    return "none" if word in _NO_CHECKPOINT else word


def _implementation(row: TableLine) -> str:
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


def _memory(row: TableLine) -> Memory:
    value, most = row.measured("value", published.bytes_in)
    mode, precision = row.text("mode"), label_of(row.text("precision"))
    is_of_attention = row.text("object") == "attention"
    what = f"attention d {row.text('d_model')}" if is_of_attention else row.text("size")
    labels = f"{what} length {row.text('context')} batch {row.text('batch')} {precision} {mode}"
    return Memory(
        *row.labels,
        labels=" ".join(labels.split()),
        value_bytes=value,
        most_bytes=most,
        least_bytes=None if is_of_attention else _least_peak_bytes(row, mode, precision),
    )


def _least_peak_bytes(row: TableLine, mode: str, precision: str) -> int | None:
    """The weights of a whole model on one card, where they are known and the amount is a peak."""
    is_peak = "peak" in mode or (phase_of(mode) in PHASES and re.search("peak|max", row.name("value").casefold()))
    config, per_weight = _config(row), _weight_bytes(precision)
    if not is_peak or per_weight is None or isinstance(config, str):
        return None
    is_whole = "block" not in row.text("size") and pieces_named(row.labels[2]) == 1
    return per_weight * config.parameters if is_whole else None


@lru_cache(maxsize=4096)
def _weight_bytes(precision: str) -> int | None:
    """Least bytes of one parameter: half-precision weights unless the label says autocast. None for other formats."""
    if not precision:
        return FLOAT32_BYTES
    known, is_mixed = labelled.labelled_precision(precision), re.search("amp|autocast|mixed", precision.casefold())
    return None if known is None else FLOAT32_BYTES if is_mixed or known in ("fp32", "tf32") else 2


@dataclass(frozen=True)
class Kind:
    """One kind of table: the columns that it cannot do without, and the reader of a line."""

    name: str
    needed: str
    read: Callable[[TableLine], Figure]


KINDS = (
    Kind(MODEL, "d_model d_ff n_layers phase mean", partial(_timing, is_alone=False)),
    Kind(ALONE, "seq_len d_model phase mean", partial(_timing, is_alone=True)),
    Kind(MEMORY, "mode value", _memory),
)
"""The first that has all it needs reads a table; one of times and amounts is a table of times."""

FIGURES = {"mean": "mean_ms or another time", "value": "peak_mib or another amount"}


# Phases by the words in use for them.


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


# A file as a table.


Rows = Iterator[Figure | NotJudged]


@contextmanager
def open_figures(path: Path) -> Iterator[tuple[str, Rows]]:
    """The kind of the table and its figures as they are taken, unreadable lines among them.

    Raises ValueError with one sentence for a file that is no such table.
    """
    if path.name.casefold().endswith(ENDINGS):
        raise ValueError(f"{path} is no table; of a record `perf-tests show {path}` says which figures are impossible.")
    with published.open_text(path) as file:
        read, refused, others = [], [], []
        for place, header, lines in published.tables_in(path, file):
            try:
                read.append((*_kind_of(path, header), lines))
            except ValueError as error:
                refused.append(error)
                continue
            if len(read) > 1:
                others.append(NotJudged(place, "another table of this file; give it a file of its own"))
        if not read:
            raise refused[0] if refused else ValueError(f"{path} holds no table.")
        kind, layout, lines = read[0]

        def figures() -> Rows:
            for place, values in lines:
                try:
                    if isinstance(values, UnreadableCellError):
                        raise values
                    yield kind.read(TableLine(place, values, layout))
                except UnreadableCellError as error:
                    yield NotJudged(place, error.reason, error.detail)
            yield from others

        yield kind.name, figures()


def _kind_of(path: Path, header: list[str]) -> tuple[Kind, published.Layout]:
    """The kind of the table and its columns. Raises ValueError for a header of none."""
    if twice := sorted(column for column, count in Counter(header).items() if column and count > 1):
        raise ValueError(f"{path} has the columns {', '.join(twice)} twice.")
    lacking: list[tuple[Kind, list[str]]] = []
    for kind in KINDS:
        layout = layout_of(header, kind.name)
        missing = [column for column in kind.needed.split() if column not in layout.places]
        if not missing:
            return kind, layout
        lacking.append((kind, missing))
    with_figures = [one for one in lacking if one[1][-1] not in FIGURES] or lacking
    each = (f"{', '.join(FIGURES.get(name, name) for name in lack)} of {kind.name}" for kind, lack in with_figures)
    raise ValueError(f"{path} lacks the columns {'; or '.join(each)}.")
