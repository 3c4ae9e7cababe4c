"""What a change did to a program: the operations of base and head aligned, by the line that is answerable for each.

Two operations are the same where name, shapes, dtypes and cost are; a longest common subsequence aligns them, first of
those that the same expression issues. The line that answers for an operation is the innermost changed one of its stack;
else the one that answers for an operation of the same stack; else a changed one of an innermost function; else its
own."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import reduce
from itertools import chain, pairwise, product
from math import sqrt
from pathlib import Path

from perf_tests_suite.perf_tests.hardware.limits import (
    BACKWARD,
    BARE,
    DEVICE_RANGE,
    FIRST_LAUNCHES,
    FORWARD,
    LOOP,
    Ceilings,
    KernelGroup,
    Part,
    Timed,
    elapsed_seconds,
    predicted_time,
)
from perf_tests_suite.perf_tests.predict.compiling import Compilation, GraphBreak
from perf_tests_suite.perf_tests.predict.costs import BATCHED_PRODUCTS, FUSED_ATTENTION
from perf_tests_suite.perf_tests.predict.operations import FakeRound, Operation, Place, SideToRun, run_side
from perf_tests_suite.perf_tests.predict.screens import gb
from perf_tests_suite.perf_tests.predict.step import counted
from perf_tests_suite.perf_tests.records.format import DASH, duration, table
from perf_tests_suite.perf_tests.records.record import Json, how_many, some_of

MOST_ROWS = 12
LONGEST_SHOWN = 48
"""Characters of an expression in a table."""

ADDED, REMOVED, CHANGED = "added", "removed", "changed"

Pair = tuple[int | None, int | None]
"""The numbers of one operation at base and at head; None where a side has none."""


@dataclass
class Amounts:
    """What operations cost; of a row head's less base's."""

    launches: int = 0
    bytes: int = 0
    """Moved, at least."""
    flops: int = 0
    saved_bytes: int = 0
    """Kept for the backward pass."""
    reads: int = 0
    """Values that the host waits for."""
    seconds: float = 0.0
    """Predicted of each operation by itself; 0 where no machine is known."""

    @classmethod
    def of(cls, operation: Operation, ceilings: Ceilings | None = None) -> "Amounts":
        if not operation.is_timed:
            return cls(saved_bytes=operation.saved_bytes)
        one, seconds = operation, 0.0
        if ceilings is not None:
            waits = one.reads * ceilings.launch_seconds
            seconds = waits + predicted_time([_part([one], BARE)], ceilings).seconds
        return cls(one.launches, one.cost.bytes, one.cost.flops, one.saved_bytes, one.reads, seconds)

    def add(self, other: "Amounts", times: int = 1) -> "Amounts":
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + times * value)
        return self


@dataclass
class Row:
    """Operations that one line answers for."""

    kind: str
    base: Place | None
    head: Place | None
    line: int
    """The first changed line of the expression, or else its first, on the side that has it."""
    amounts: Amounts = field(default_factory=Amounts)
    operations: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)

    @property
    def file(self) -> str:
        place = self.head or self.base
        return "" if place is None else place.file

    @property
    def rank(self) -> tuple[bool, float, int, int, int]:
        """Sort key: what costs more first, worst first, then what costs less."""
        one = self.amounts
        cost = one.seconds or float(one.bytes)
        is_less = (cost, one.flops, one.reads, one.saved_bytes) < (0, 0, 0, 0)
        return is_less, -abs(cost), -abs(one.flops), -abs(one.reads), -abs(one.saved_bytes)


@dataclass(frozen=True)
class Change:
    """Predicted seconds of both sides, and the range of head's over base's."""

    base_seconds: float
    head_seconds: float
    low: float
    high: float
    kind: str | None = None
    """The published kind that it is of; None for any other, whose range is held to nothing."""


@dataclass(frozen=True)
class Difference:
    """One case on both sides."""

    rows: tuple[Row, ...]
    """Worst first; none where both issue the same operations in their timed parts."""
    base: Amounts
    head: Amounts
    peaks: tuple[int, int]
    """Peak bytes of base and head."""
    operations: tuple[int, int]
    reads_values: bool
    """Whether the program outside of its optimizer reads values, which are not known here."""
    change: Change | None
    """None where no machine is known."""


@dataclass(frozen=True)
class CompiledDifference:
    """What torch.compile makes of one case on both sides."""

    base: Compilation
    head: Compilation

    @property
    def rows(self) -> tuple[str, ...]:
        """A sentence for each counter, break and recompile in which they differ; lines may move."""
        old, new = self.base.counters, self.head.counters
        counters = [
            f"{name} {DASH if old[name] is None else old[name]} -> {DASH if new[name] is None else new[name]}"
            for name in old
            if old[name] != new[name]
        ]
        sides = [
            {**{(one.file, one.code, one.reason, place): one.sentence for place, one in _numbered(side.breaks)},
             **{(one.call, one.file, re.sub(r"\d+", "", one.function), one.guard): one.sentence
                for one in side.recompiles or ()}}
            for side in (self.base, self.head)
        ]  # fmt: skip
        gone, come = ([sides[at][key] for key in sides[at] if key not in sides[1 - at]] for at in (0, 1))
        return (*counters, *(f"{ADDED} {one}" for one in come), *(f"{REMOVED} {one}" for one in gone))

    @property
    def lines(self) -> list[str]:
        base, head = self.base.summary, self.head.summary
        if not self.rows:
            return [f"base and head compile alike: {head}"]
        return [f"base: {base}", f"head: {head}", *self.rows]

    @property
    def as_json(self) -> Json:
        return {
            "rows": self.rows,
            **{side: {**one.counters, "host_reads": one.host_reads, "lines": one.lines, "reason": one.reason}
               for side, one in (("base", self.base), ("head", self.head))},
        }  # fmt: skip


def _numbered(breaks: Iterable[GraphBreak]) -> Iterator[tuple[int, GraphBreak]]:
    """Each break with its number among those of the same code, of which a file may have several."""
    seen = Counter[tuple[str, ...]]()
    for one in breaks:
        seen[one.file, one.code, one.reason] += 1
        yield seen[one.file, one.code, one.reason], one


def compare_sides(
    base: SideToRun,
    head: SideToRun,
    cases: Sequence[tuple[Json, Json]],
    ceilings: Ceilings | None = None,
) -> list[Difference | CompiledDifference | str]:
    """The difference of each case, given as base's and head's, or one sentence why there is none."""
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(run_side, side, [pair[at] for pair in cases]) for at, side in enumerate((base, head))]
        both = zip(*(one.result() for one in asked), strict=True)
    lines = Lines(base.tree, head.tree)
    found: list[Difference | CompiledDifference | str] = []
    for of_base, of_head in both:
        reasons = [
            f"{name} is not compared: {one}."
            for name, one in (("base", of_base), ("head", of_head)) if isinstance(one, str)
        ]  # fmt: skip
        if reasons:
            found.append(reasons[0])
        elif isinstance(of_head, Compilation):
            found.append(CompiledDifference(of_base, of_head))
        else:
            found.append(difference(of_base, of_head, lines, ceilings))
    return found


class Lines:
    """The lines that differ between two trees; half a line more is the gap behind it, where the other has some."""

    def __init__(self, base: Path, head: Path) -> None:
        self._trees = base, head
        self._known: dict[str, tuple[set[float], set[float]]] = {}

    def innermost(self, side: int, operation: Operation) -> tuple[Place, int] | None:
        """The innermost expression of its stack that is changed, and its first changed line."""
        for place in operation.stack:
            if (line := self._first_in(side, place.file, place.line, place.end_line)) is not None:
                return place, line
        return None

    def nearest(self, side: int, operation: Operation) -> tuple[Place, int] | None:
        """The same of the innermost function that is changed, a loop's head for example, or else its innermost line."""
        for place in operation.stack:
            if (line := self._first_in(side, place.file, *place.function)) is not None:
                return place, line
        return next(((place, place.line) for place in operation.stack), None)

    def _first_in(self, side: int, file: str, start: int, end: int) -> int | None:
        if file not in self._known:
            self._known[file] = self._compared(file)
        changed = self._known[file][side]
        return next((line for line in range(start, end + 1) if line in changed or
                     (line < end and line + 0.5 in changed)), None)  # fmt: skip

    def text(self, side: int, file: str, line: int) -> str:
        lines = self._read(side, file)
        return lines[line - 1].strip() if line <= len(lines) else ""

    def _read(self, side: int, file: str) -> list[str]:
        try:
            return (self._trees[side] / file).read_text(errors="replace").splitlines()
        except OSError:
            return []

    def _compared(self, file: str) -> tuple[set[float], set[float]]:
        base, head = self._read(0, file), self._read(1, file)
        changed: tuple[set[float], set[float]] = set(), set()
        for tag, *ends in SequenceMatcher(None, base, head, autojunk=False).get_opcodes():
            if tag == "equal":
                continue
            for of_side, (start, end) in zip(changed, (ends[:2], ends[2:]), strict=True):
                of_side.update(range(start + 1, end + 1) if end > start else (start + 0.5,))
        return changed


def difference(base: FakeRound, head: FakeRound, lines: Lines, ceilings: Ceilings | None = None) -> Difference:
    """What head issues and base does not, and the reverse."""
    sides = (base.operations, head.operations)
    pairs = aligned(*sides)

    def of_pair(pair: Pair) -> tuple[Operation | None, ...]:
        return tuple(None if number is None else sides[side][number] for side, number in enumerate(pair))

    def is_same(pair: Pair) -> bool:
        one, other = of_pair(pair)
        return one is not None and other is not None and _key(one) == _key(other)

    different = [pair for pair in pairs if not is_same(pair)]
    roots = [_answerable(sides[side], [pair[side] for pair in different], side, lines) for side in (0, 1)]
    rows: dict[tuple[str, str, int], Row] = {}

    def row_of(pair: Pair) -> Row:
        """The row of the line that answers for a pair; its operation is counted."""
        kind = ADDED if pair[0] is None else REMOVED if pair[1] is None else CHANGED
        at = [
            None if one is None else roots[side].get(pair[side] or 0) or lines.nearest(side, one)
            for side, one in enumerate(of_pair(pair))
        ]
        side = 0 if kind == REMOVED else 1
        place, line = at[side] or (None, 0)
        key = (kind, "" if place is None else place.file, line)
        row = rows.setdefault(key, Row(kind, at[0] and at[0][0], at[1] and at[1][0], line))
        operation = of_pair(pair)[side]
        assert operation is not None, "a pair has the operation of its side"
        row.operations[operation.cost.name.removeprefix("aten.").strip("_")] += 1
        if place is not None:
            is_whole = place.line == line == place.end_line
            row.codes[place.code if is_whole else lines.text(side, place.file, line)] += 1
        return row

    consumers: tuple[dict[int, Row], dict[int, Row]] = ({}, {})
    for pair in different:
        both = of_pair(pair)
        if any(one.is_timed or one.saved_bytes for one in both if one is not None):
            row = row_of(pair)
            for one, times, of_side in zip(both, (-1, 1), consumers, strict=True):
                if one is not None:
                    row.amounts.add(Amounts.of(one, ceilings), times)
                    for source in one.sources:
                        of_side.setdefault(source, row)
    for pair in filter(is_same, pairs):  # what autograd keeps of a result depends on what is done with it
        of_base, of_head = (one.saved_bytes for one in of_pair(pair) if one is not None)
        if of_head != of_base:
            row = consumers[1].get(pair[1] or 0) or consumers[0].get(pair[0] or 0) or row_of(pair)
            row.amounts.saved_bytes += of_head - of_base
    totals = [sum_of(Amounts.of(one) for one in side) for side in sides]
    parts = [parts_of_program(side) for side in sides]
    return Difference(
        rows=tuple(sorted(rows.values(), key=lambda row: row.rank)),
        base=totals[0],
        head=totals[1],
        peaks=(base.peak_bytes, head.peak_bytes),
        operations=(sum(one.is_timed for one in sides[0]), sum(one.is_timed for one in sides[1])),
        reads_values=any(one.reads and one.part != "optimizer" for one in chain(*sides)),
        change=None if ceilings is None else predicted_change(parts[0], parts[1], ceilings),
    )


def sum_of(amounts: Iterable[Amounts]) -> Amounts:
    return reduce(Amounts.add, amounts, Amounts())


def _answerable(
    operations: Sequence[Operation], alone: Sequence[int | None], side: int, lines: Lines
) -> dict[int, tuple[Place, int]]:
    """The changed place and line that answer for operations that the other side lacks."""
    found: dict[int, tuple[Place, int]] = {}
    by_stack: dict[tuple[Place, ...], tuple[Place, int]] = {}
    for number in (one for one in alone if one is not None):
        operation = operations[number]
        answer = lines.innermost(side, operation) or by_stack.get(operation.stack)
        if answer is not None:
            found[number] = by_stack[operation.stack] = answer
    return found


def _key(operation: Operation) -> tuple[Hashable, ...]:
    return operation.part, operation.is_timed, operation.cost, operation.tensors, operation.launches


def aligned(base: Sequence[Operation], head: Sequence[Operation]) -> list[Pair]:
    """Pairs in order: of equal operations, then, between these, of those with one name."""
    sides = (base, head)
    keys = [[_key(one) for one in side] for side in sides]
    if keys[0] == keys[1]:
        return [(number, number) for number in range(len(base))]
    lines = [[(key, one.stack[:1] and one.stack[0].code) for key, one in zip(*side, strict=True)]
             for side in zip(keys, sides, strict=True)]  # fmt: skip
    names = [[(one.part, one.cost.name) for one in side] for side in sides]
    pairs = _refined(_refined(common_subsequence(*lines), *keys), *names)
    found: list[Pair] = []
    for before, after in pairwise([(-1, -1), *pairs, (len(base), len(head))]):
        found += [(number, None) for number in range(before[0] + 1, after[0])]
        found += [(None, number) for number in range(before[1] + 1, after[1])]
        found.append(after)
    return found[:-1]


def _refined(
    pairs: Sequence[tuple[int, int]], base: Sequence[Hashable], head: Sequence[Hashable]
) -> list[tuple[int, int]]:
    """The pairs and, in each gap between them, those of a longest common subsequence."""
    found: list[tuple[int, int]] = []
    for before, after in pairwise([(-1, -1), *pairs, (len(base), len(head))]):
        starts = before[0] + 1, before[1] + 1
        inside = common_subsequence(base[starts[0] : after[0]], head[starts[1] : after[1]])
        found += [(starts[0] + one, starts[1] + other) for one, other in inside]
        found.append(after)
    return found[:-1]


def common_subsequence(base: Sequence[Hashable], head: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs of places of a longest common subsequence, by one number of as many bits as `base` has places.

    Hyyro, "Bit-parallel LCS-length computation revisited", 2004: a bit of a row is 0 where the length grows.
    """
    places: dict[Hashable, int] = {}
    for number, one in enumerate(base):
        places[one] = places.get(one, 0) | 1 << number
    mask = (1 << len(base)) - 1
    rows, row = [mask], mask
    for one in head:
        both = row & places.get(one, 0)
        row = ((row + both) | (row - both)) & mask
        rows.append(row)
    pairs, column, line = [], len(base), len(head)
    while column and line:
        bit = 1 << (column - 1)
        if rows[line] & bit:
            column -= 1
        elif not rows[line - 1] & bit:
            line -= 1
        else:
            column, line = column - 1, line - 1
            pairs.append((column, line))
    return pairs[::-1]


# The predicted time of a program, and of what a change does to it.


def _part(operations: Iterable[Operation], kind: str) -> Part:
    launching = [one for one in operations if one.launches]
    kernels = [
        KernelGroup(**{**vars(one.cost), "bytes": one.cost.bytes // one.launches}, calls=one.launches)
        for one in launching
    ]
    return Part(sum(one.launches for one in launching), kernels, kind)


_KINDS = {"backward": BACKWARD, "attention_backward": BACKWARD, "attention_forward": BARE, "optimizer": LOOP}


def parts_of_program(operations: Iterable[Operation]) -> list[Part]:
    """Timed parts by what launches them, in order; the loss is launched as the forward pass is."""
    by_kind: dict[str, list[Operation]] = {}
    for one in operations:
        if one.is_timed:
            by_kind.setdefault(_KINDS.get(one.part, FORWARD), []).append(one)
    return [_part(of_kind, kind) for kind, of_kind in by_kind.items()]


OF_ITS_OWN = (0.85, 1.25)
"""Multiples of the predicted time of what only one side issues; what both issue is off by one factor on both."""

OF_PRECISION, OF_ATTENTION, OF_CHECKPOINTS = "precision", "attention", "checkpoints"
CHANGES_IN_RANGE = {OF_PRECISION: (87, 99), OF_ATTENTION: (34, 40), OF_CHECKPOINTS: (82, 83)}
"""Counts by kind of change: how many of how many published pairs lie in the range, fp32 against 16 bits and TF32, naive
against fused attention, and without against with checkpoints; printed by `python -m claims changes-left-out`."""


def predicted_change(base: Sequence[Part], head: Sequence[Part], ceilings: Ceilings) -> Change:
    """Seconds of base and head, each a part for each kind of launches, and the range of their ratio.

    Over hosts from fast to typical, over the time that a device takes for what both issue, and over the time of what
    one issues alone, on either side.
    """
    sides = [{part.kind: counted(part.kernels) for part in parts} for parts in (base, head)]
    works, firsts = [], []
    """By kind of launches, and side: host and device seconds of what both issue, then of what it alone issues."""
    for kind in dict.fromkeys(part.kind for part in (*base, *head)):
        counts = [side.get(kind, Counter[KernelGroup]()) for side in sides]
        both = counts[0] & counts[1]
        firsts.append(FIRST_LAUNCHES * ceilings.launch_seconds_by_kind[kind])
        works.append([[*_seconds(both, kind, ceilings), *_seconds(one - both, kind, ceilings)] for one in counts])

    def seconds(side: int, host: float, device: float, own: float) -> float:
        parts = [
            Timed(launching := shared_host * host + own_host * host * own, shared * device + alone * own,
                  min(launching, first * host))
            for first, (shared_host, shared, own_host, alone) in zip(firsts, (one[side] for one in works), strict=True)
        ]  # fmt: skip
        return elapsed_seconds(parts, 1.0, 1.0, ceilings.launches_overlap)

    spread = sqrt(ceilings.host_spread)
    ratios = [
        seconds(1, host, device, of_head) / seconds(0, host, device, of_base)
        for host, device in product((1 / spread, 1.0, spread), (DEVICE_RANGE[0], 1.0, DEVICE_RANGE[1]))
        for of_base, of_head in product(OF_ITS_OWN, OF_ITS_OWN)
    ]
    return Change(
        seconds(0, 1.0, 1.0, 1.0), seconds(1, 1.0, 1.0, 1.0), min(ratios), max(ratios), kind_of_change(*sides)
    )


def kind_of_change(base: Mapping[str, Counter[KernelGroup]], head: Mapping[str, Counter[KernelGroup]]) -> str | None:
    """The one published kind that explains what differs, by the kernels of each part; None for another or for two.

    A precision shows in the rates of products that are otherwise the same, fused attention on one side beside the same
    products of layers, which are not batched, and a checkpoint in kernels of the forward pass in the backward pass.
    """
    sides = base, head
    products = [
        [(kind, kernel, calls) for kind, part in side.items() for kernel, calls in part.items() if kernel.summed]
        for side in sides
    ]
    rates, layers, work = [], [], []
    for side in products:
        rates.append({kernel.rate for _, kernel, _ in side})
        layers.append({product for product in side if product[1].name not in BATCHED_PRODUCTS})
        work.append(sum((Counter({(kind, one.flops, one.summed): calls}) for kind, one, calls in side), Counter()))
    fused = [any(kernel.name in FUSED_ATTENTION for part in side.values() for kernel in part) for side in sides]
    backward = [side.get(BACKWARD, Counter[KernelGroup]()) for side in sides]
    ahead = [{kind: part for kind, part in side.items() if kind != BACKWARD} for side in sides]
    again = (backward[0] - backward[1]) | (backward[1] - backward[0])
    if rates[0] != rates[1]:
        return OF_PRECISION if work[0] == work[1] and fused[0] == fused[1] else None
    if fused[0] != fused[1]:
        return OF_ATTENTION if layers[0] == layers[1] else None
    is_recomputed = again and ahead[0] == ahead[1] and all(kernel.is_recomputed for kernel in again)
    return OF_CHECKPOINTS if is_recomputed and FORWARD in base else None


def _seconds(kernels: Counter[KernelGroup], kind: str, ceilings: Ceilings) -> tuple[float, float]:
    """Seconds of the host and of the device for so many calls."""
    groups = [replace(kernel, calls=calls) for kernel, calls in kernels.items()]
    time = predicted_time([Part(kernels.total(), groups, kind)], ceilings)
    return time.launching_seconds, time.kernel_seconds


# As text for a terminal, for a sentence under a verdict, and as JSON.


def difference_lines(found: Difference | CompiledDifference, most: int = MOST_ROWS) -> list[str]:
    """The table of rows, what the rest comes to, totals, peak, and the predicted change; one sentence without rows."""
    if isinstance(found, CompiledDifference):
        return found.lines
    base, head = found.peaks
    peak = f"peak {gb(head)}" if base == head else f"peak {gb(base)} at base, {gb(head)} at head"
    if not found.rows:
        same = f"base and head issue the same {how_many(found.operations[1], 'operation')}"
        lines = [f"{same}{_read_note(found)}; {peak}"]
    else:
        shown = found.rows[:most]
        header = ("line", "code", "what", "launches", "moved", "FLOPs", "saved for backward")
        rows = [(_line(row), _code(row), _what(row), *_cells(row.amounts)) for row in shown]
        lines = table(header, rows, left=("code", "what"))
        if rest := found.rows[most:]:
            lines.append(f"and {how_many(len(rest), 'row')} more: {_amounts_text(sum_of(row.amounts for row in rest))}")
        in_all = sum_of([found.head]).add(found.base, -1)
        lines.append(f"in all {_amounts_text(in_all)}{_read_note(found)}; {peak}")
    return lines + ([] if found.change is None else [change_line(found.change)])


def change_line(change: Change) -> str:
    if change.low == change.high == 1:
        return f"predicted {duration(change.head_seconds)} on both sides"
    coverage = "no published pair shows such a change: how often its range holds is not known"
    if change.kind is not None:
        held, of = CHANGES_IN_RANGE[change.kind]
        where = ", all of one model on one card" if change.kind == OF_CHECKPOINTS else ""
        coverage = f"{held} of {of} published changes of {change.kind} lie in their range{where}"
    return (
        f"predicted {duration(change.base_seconds)} at base, {duration(change.head_seconds)} at head: "
        f"{change.head_seconds / change.base_seconds:.2f} x, {change.low:.2f} to {change.high:.2f} x "
        f"({coverage})"
    )


def row_sentence(row: Row) -> str:
    """`model/attention.py:41 `scores.double()` added 12 _to_copy: 12 launches, +151.00 MB moved`."""
    return f"{_line(row)} `{_code(row)}` {_what(row)}: {_amounts_text(row.amounts)}"


def _line(row: Row) -> str:
    place, base = row.head or row.base, row.base
    if place is None:
        return "no line of the repository"
    at = f"{place.file}:{row.line}"
    if row.kind == REMOVED:
        return f"{at} at base"
    return at if base is None or (base.file, base.line) == (place.file, place.line) else f"{at} ({base.line} at base)"


def _code(row: Row) -> str:
    codes = [code for code, _ in row.codes.most_common(1)]
    code = codes[0] if codes else ""
    return code if len(code) <= LONGEST_SHOWN else f"{code[: LONGEST_SHOWN - 4]} ..."


def _what(row: Row) -> str:
    names = [f"{count} {name.replace('local_scalar_dense', 'read back to the host')}" for name, count in
             row.operations.most_common()]  # fmt: skip
    return f"{row.kind} {some_of(names, 2)}"


def _signed(value: int, form: Callable[[int], str] = lambda count: f"{count:,}") -> str:
    return DASH if value == 0 else f"{'+' if value > 0 else '-'}{form(abs(value))}"


def _bytes(count: int) -> str:
    return gb(count) if count >= 1e5 else f"{count / 1e3:.2f} kB"


def _flops(count: int) -> str:
    return f"{count / 1e9:.2f} G" if count >= 1e7 else f"{count / 1e6:.2f} M"


def _cells(amounts: Amounts) -> tuple[str, ...]:
    return (
        _signed(amounts.launches), _signed(amounts.bytes, _bytes), _signed(amounts.flops, _flops),
        _signed(amounts.saved_bytes, _bytes),
    )  # fmt: skip


def _amounts_text(amounts: Amounts) -> str:
    launches, moved, flops, saved = _cells(amounts)
    words = [f"{launches} {'launch' if abs(amounts.launches) == 1 else 'launches'}", f"{moved} moved"]
    words += [f"{flops}FLOP"] if amounts.flops else []
    words += [f"{saved} saved for backward"] if amounts.saved_bytes else []
    words += (
        [f"{_signed(amounts.reads)} {'read' if abs(amounts.reads) == 1 else 'reads'} back to the host"]
        if amounts.reads
        else []
    )
    return ", ".join(word for word in words if not word.startswith(DASH + " ")) or "nothing else"


def _read_note(found: Difference) -> str:
    return "; values that the host reads were taken for 0" if found.reads_values else ""


def difference_json(found: Difference | CompiledDifference) -> Json:
    """The same with every row, amounts as differences, and both sides' totals."""
    if isinstance(found, CompiledDifference):
        return found.as_json
    return {
        "rows": [
            {
                "kind": row.kind,
                "base": None if row.base is None else vars(row.base),
                "head": None if row.head is None else vars(row.head),
                "line": row.line,
                "operations": dict(row.operations),
                **vars(row.amounts),
            }
            for row in found.rows
        ],
        "base": {"operations": found.operations[0], **vars(found.base), "peak_bytes": found.peaks[0]},
        "head": {"operations": found.operations[1], **vars(found.head), "peak_bytes": found.peaks[1]},
        "reads_values": found.reads_values,
        "predicted": None if found.change is None else vars(found.change),
    }
