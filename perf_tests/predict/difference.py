"""What a change did to a program: the operations of base and head aligned, by the line that is answerable for each.

Two operations are the same where name, shapes, dtypes and cost are; a longest common subsequence aligns them, first of
those that the same expression issues. The line that answers for an operation is the innermost changed one of its stack;
else the one that answers for an operation of the same stack; else a changed one of an innermost function; else its
own."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import pairwise, product
from math import sqrt
from pathlib import Path

from perf_tests.hardware.limits import (
    BACKWARD,
    BARE,
    DEVICE_RANGE,
    FORWARD,
    Ceilings,
    KernelGroup,
    Part,
    elapsed_seconds,
    predicted_time,
)
from perf_tests.predict.operations import FakeRound, Operation, Place, SideToRun, run_side
from perf_tests.predict.screens import gb
from perf_tests.predict.step import counted
from perf_tests.records.format import DASH, duration, table
from perf_tests.records.record import Json, how_many, some_of

MOST_ROWS = 12
LONGEST_SHOWN = 48
"""Characters of an expression in a table."""

ADDED, REMOVED, CHANGED, MOVED = "added", "removed", "changed", "moved"

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

    def add(self, operation: Operation, times: int, ceilings: Ceilings | None) -> None:
        self.saved_bytes += times * operation.saved_bytes
        if not operation.is_timed:
            return
        self.launches += times * operation.launches
        self.bytes += times * operation.cost.bytes
        self.flops += times * operation.cost.flops
        self.reads += times * operation.reads
        if ceilings is not None:
            waits = operation.reads * ceilings.launch_seconds
            self.seconds += times * (waits + predicted_time([_part([operation], BARE)], ceilings).seconds)


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


def compare_sides(
    base: SideToRun,
    head: SideToRun,
    cases: Sequence[tuple[Json, Json]],
    ceilings: Ceilings | None = None,
) -> list[Difference | str]:
    """The difference of each case, given as base's and head's, or one sentence why there is none."""
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(run_side, side, [pair[at] for pair in cases]) for at, side in enumerate((base, head))]
        both = zip(*(one.result() for one in asked), strict=True)
    lines = Lines(base.tree, head.tree)
    found: list[Difference | str] = []
    for of_base, of_head in both:
        reasons = [
            f"{name} is not compared: {one}."
            for name, one in (("base", of_base), ("head", of_head)) if isinstance(one, str)
        ]  # fmt: skip
        found.append(reasons[0] if reasons else difference(of_base, of_head, lines, ceilings))
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

    def nearest(self, side: int, operation: Operation) -> tuple[Place, int]:
        """The same of the innermost function that is changed, a loop's head for example, or else its innermost line."""
        for place in operation.stack:
            if (line := self._first_in(side, place.file, *place.function)) is not None:
                return place, line
        return operation.stack[0], operation.stack[0].line

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
    rows, (before, after) = _Rows(base.operations, head.operations, lines), (Amounts(), Amounts())
    consumers: tuple[dict[int, Row], dict[int, Row]] = ({}, {})
    for pair in rows.different:
        of_base, of_head = rows.operations_of(pair)
        if not any(one.is_timed or one.saved_bytes for one in (of_base, of_head) if one is not None):
            continue
        row = rows.of(pair)
        for one, times, of_side in ((of_base, -1, consumers[0]), (of_head, 1, consumers[1])):
            if one is not None:
                row.amounts.add(one, times, ceilings)
                for source in one.sources:
                    of_side.setdefault(source, row)
    for number_at_base, number in rows.same:  # what autograd keeps of a result depends on what is done with it
        kept = head.operations[number].saved_bytes - base.operations[number_at_base].saved_bytes
        if kept:
            row = consumers[1].get(number) or consumers[0].get(number_at_base) or rows.of((number_at_base, number))
            row.amounts.saved_bytes += kept
    for amounts, operations in ((before, base.operations), (after, head.operations)):
        for one in operations:
            amounts.add(one, 1, None)
    return Difference(
        rows=tuple(sorted(rows.found.values(), key=lambda row: row.rank)),
        base=before,
        head=after,
        peaks=(base.peak_bytes, head.peak_bytes),
        operations=(sum(one.is_timed for one in base.operations), sum(one.is_timed for one in head.operations)),
        reads_values=any(one.reads and one.part != "optimizer" for one in (*base.operations, *head.operations)),
        change=None
        if ceilings is None
        else predicted_change(parts_of_program(base.operations), parts_of_program(head.operations), ceilings),
    )


class _Rows:
    """The rows of two aligned programs, made as operations are found that differ."""

    def __init__(self, base: Sequence[Operation], head: Sequence[Operation], lines: Lines) -> None:
        self.found: dict[tuple[str, str, int], Row] = {}
        self.same: list[tuple[int, int]] = []
        """Numbers at base and at head of operations that are the same."""
        self.different: list[Pair] = []
        self._sides, self._lines = (base, head), lines
        alone: tuple[set[int], set[int]] = (set(), set())
        for pair in aligned(base, head):
            one, other = pair
            if one is not None and other is not None and _key(base[one]) == _key(head[other]):
                self.same.append((one, other))
                continue
            self.different.append(pair)
            for number, of_side in zip(pair, alone, strict=True):
                of_side.update(() if number is None else (number,))
        self._roots = [_answerable(self._sides[side], alone[side], side, lines) for side in (0, 1)]

    def operations_of(self, pair: Pair) -> tuple[Operation | None, Operation | None]:
        base, head = (None if number is None else self._sides[side][number] for side, number in enumerate(pair))
        return base, head

    def of(self, pair: Pair) -> Row:
        """The row of the line that answers for a pair; its operation is counted."""
        kind = ADDED if pair[0] is None else REMOVED if pair[1] is None else CHANGED
        base, head = (
            None
            if one is None
            else self._roots[side].get(pair[side] or 0) or (one.stack and self._lines.nearest(side, one)) or None
            for side, one in enumerate(self.operations_of(pair))
        )
        side, (place, line) = (0, base or (None, 0)) if kind == REMOVED else (1, head or (None, 0))
        key = (kind, "" if place is None else place.file, line)
        if key not in self.found:
            self.found[key] = Row(kind, base and base[0], head and head[0], line)
        row, operation = self.found[key], self.operations_of(pair)[side]
        assert operation is not None, "a pair has the operation of its side"
        row.operations[operation.cost.name.removeprefix("aten.").strip("_")] += 1
        if place is not None:
            is_whole = place.line == line == place.end_line
            row.codes[place.code if is_whole else self._lines.text(side, place.file, line)] += 1
        return row


def _answerable(
    operations: Sequence[Operation], alone: set[int], side: int, lines: Lines
) -> dict[int, tuple[Place, int]]:
    """The place and line that answer for each operation that the other side lacks, where it has a stack at all."""
    found: dict[int, tuple[Place, int]] = {}
    by_stack: dict[tuple[Place, ...], tuple[Place, int]] = {}
    for number in sorted(alone):
        operation = operations[number]
        answer = lines.innermost(side, operation) or by_stack.get(operation.stack)
        if answer is not None:
            found[number] = by_stack[operation.stack] = answer
        elif operation.stack:
            found[number] = lines.nearest(side, operation)
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


_KINDS = {"backward": BACKWARD, "attention_backward": BACKWARD, "attention_forward": BARE, "optimizer": BARE}


def parts_of_program(operations: Iterable[Operation]) -> list[Part]:
    """Timed parts by what launches them, in order; the loss is launched as the forward pass is."""
    by_kind: dict[str, list[Operation]] = {}
    for one in operations:
        if one.is_timed:
            by_kind.setdefault(_KINDS.get(one.part, FORWARD), []).append(one)
    return [_part(of_kind, kind) for kind, of_kind in by_kind.items()]


OF_ITS_OWN = (0.85, 1.25)
"""Multiples of the predicted time of what only one side issues; what both issue is off by one factor on both."""

CHANGES_IN_RANGE = (88, 99)
"""How many of how many published pairs, fp32 against 16 bits and TF32, lie in the range; `python -m claims
changes-left-out` counts them."""


def predicted_change(base: Sequence[Part], head: Sequence[Part], ceilings: Ceilings) -> Change:
    """Seconds of base and head, each a part for each kind of launches, and the range of their ratio.

    Over hosts from fast to typical, over the time that a device takes for what both issue, and over the time of what
    one issues alone, on either side.
    """
    of_kind = [{part.kind: part for part in parts} for parts in (base, head)]
    works = []
    """By kind of launches, and side: host and device seconds of what both issue, then of what it alone issues."""
    for kind in dict.fromkeys(part.kind for part in (*base, *head)):
        counts = [counted(parts[kind].kernels) if kind in parts else Counter() for parts in of_kind]
        both = counts[0] & counts[1]
        works.append([[*_seconds(both, kind, ceilings), *_seconds(one - both, kind, ceilings)] for one in counts])

    def seconds(side: int, host: float, device: float, own: float) -> float:
        pairs = [
            (shared_host * host + own_host * host * own, shared * device + alone * own)
            for shared_host, shared, own_host, alone in (of_sides[side] for of_sides in works)
        ]
        return elapsed_seconds(pairs, 1.0, 1.0, ceilings.launches_overlap)

    spread = sqrt(ceilings.host_spread)
    ratios = [
        seconds(1, host, device, of_head) / seconds(0, host, device, of_base)
        for host, device in product((1 / spread, 1.0, spread), (DEVICE_RANGE[0], 1.0, DEVICE_RANGE[1]))
        for of_base, of_head in product(OF_ITS_OWN, OF_ITS_OWN)
    ]
    return Change(seconds(0, 1.0, 1.0, 1.0), seconds(1, 1.0, 1.0, 1.0), min(ratios), max(ratios))


def _seconds(kernels: Counter[KernelGroup], kind: str, ceilings: Ceilings) -> tuple[float, float]:
    """Seconds of the host and of the device for so many calls."""
    groups = [replace(kernel, calls=calls) for kernel, calls in kernels.items()]
    time = predicted_time([Part(kernels.total(), groups, kind)], ceilings)
    return time.launching_seconds, time.kernel_seconds


# As text for a terminal, for a sentence under a verdict, and as JSON.


def difference_lines(found: Difference, most: int = MOST_ROWS) -> list[str]:
    """The table of rows, what the rest comes to, totals, peak, and the predicted change; one sentence without rows."""
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
            amounts = Amounts()
            for row in rest:
                for name, value in vars(row.amounts).items():
                    setattr(amounts, name, getattr(amounts, name) + value)
            lines.append(f"and {how_many(len(rest), 'row')} more: {_amounts_text(amounts)}")
        lines.append(f"in all {_amounts_text(_less(found.head, found.base))}{_read_note(found)}; {peak}")
    return lines + ([] if found.change is None else [change_line(found.change)])


def change_line(change: Change) -> str:
    held, of = CHANGES_IN_RANGE
    return (
        f"predicted {duration(change.base_seconds)} at base, {duration(change.head_seconds)} at head: "
        f"{change.head_seconds / change.base_seconds:.2f} x, {change.low:.2f} to {change.high:.2f} x "
        f"(of {of} published pairs {held} lie in their range)"
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


def _less(head: Amounts, base: Amounts) -> Amounts:
    return Amounts(**{name: value - getattr(base, name) for name, value in vars(head).items()})


def _read_note(found: Difference) -> str:
    return "; values that the host reads were taken for 0" if found.reads_values else ""


def difference_json(found: Difference) -> Json:
    """The same with every row, amounts as differences, and both sides' totals."""
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
