"""The row of the memory pass: the allocator's figures and what held each block, as plain values."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from perf_tests.cases.case import Case
from perf_tests.instruments.memory_holders import Held, Regions
from perf_tests.instruments.round_memory import Mark, RoundMemory, resident_set_peak_bytes
from perf_tests.phases import ATTENTION_ALONE
from perf_tests.records.record import Json
from perf_tests.records.thinned import thinned
from perf_tests.traces.kernel_events import PHASES, layer_of

MARKS = ("after forward", "before backward", "before optimizer", "after optimizer")
MOST_MOMENTS = 300
"""Moments of a timeline; of more, the highest and the lowest of every stretch and the borders of parts are kept."""
LARGEST_ALLOCATIONS = 8

NOT_ATTRIBUTED = "not attributed"
"""Category of what compiled code holds."""


def memory_values(
    case: Case, after_init: tuple[int, int | None], exact: RoundMemory, held: Held, sees_operations: bool
) -> Json:
    """Without what is predicted."""
    marks = [Mark("after init", *after_init), *(mark for mark in exact.marks if mark.name in MARKS)]
    values: Json = {
        "peak_allocated_bytes": exact.peak_allocated_bytes,
        "peak_reserved_bytes": exact.peak_reserved_bytes,
        "marks": [vars(mark) for mark in marks],
        "parts": list(exact.parts),
        "saved_bytes_by_part": saved_by_part(held.saved_bytes),
        "residual_tensor_bytes": case.residual_tensor_bytes,
        "fragmentation": exact.fragmentation,
        "resident_set_peak_bytes": resident_set_peak_bytes(),
        "snapshot": None,
        "flags": [],
    }
    values |= _attributed(held) if sees_operations else _not_attributed(exact)
    if case.row.family == ATTENTION_ALONE:
        moment = "before backward" if case.row.has_backward else "after forward"
        values["memory_before_backward_bytes"] = next(m.allocated_bytes for m in marks if m.name == moment)
    return values


def saved_by_part(saved_bytes: Counter[Regions]) -> list[Json]:
    """Bytes saved for the backward pass, by block and by the innermost region that saved them."""
    rows: Counter[tuple[str | None, str]] = Counter()
    for regions, count in saved_bytes.items():
        rows[layer_of(regions), _innermost(regions)] += count
    return [{"block": block, "part": part, "saved_bytes": count} for (block, part), count in rows.items()]


def _innermost(regions: Regions) -> str:
    names = [name for name in regions if name not in PHASES and not name.startswith("block ")]
    if names:
        return names[-1]
    return "residual" if layer_of(regions) else "elsewhere"


def _attributed(held: Held) -> Json:
    """What held the memory of a round whose operations were seen, by category and line."""
    made = Counter((block.bytes, block.place, block.category) for block in held.allocations())
    largest = sorted(made.items(), key=lambda item: (-item[0][0], item[0][1:]))[:LARGEST_ALLOCATIONS]
    return {
        "peak_by_category_bytes": dict(sorted(held.held_at_peak().items())),
        "largest_allocations": [
            {"bytes": size, "count": count, "line": place, "category": category}
            for (size, place, category), count in largest
        ],
        "timeline": timeline(held),
    }


def _not_attributed(exact: RoundMemory) -> Json:
    """The same of compiled code, which shows sizes alone."""
    totals = list(accumulate((event.bytes for event in exact.events), initial=exact.allocated_before_bytes))
    kept = [totals[place] for place in thinned(totals, MOST_MOMENTS)]
    made = Counter(event.bytes for event in exact.events if event.bytes > 0)
    return {
        "peak_by_category_bytes": {NOT_ATTRIBUTED: exact.peak_allocated_bytes},
        "largest_allocations": [
            {"bytes": size, "count": made[size], "line": "compiled code", "category": NOT_ATTRIBUTED}
            for size in sorted(made, reverse=True)[:LARGEST_ALLOCATIONS]
        ],
        "timeline": {"category_bytes": {NOT_ATTRIBUTED: kept} if exact.events else {}, "parts": []},
    }


def timeline(held: Held) -> Json:
    """Bytes of each category after every change of the round, or after MOST_MOMENTS of them."""
    totals = list(accumulate((change.bytes for change in held.changes), initial=0))[held.first_of_round :]
    parts = [(part.name, part.first - held.first_of_round, part.end - held.first_of_round) for part in held.parts]
    borders = {min(border, len(totals) - 1) for _, *ends in parts for border in ends}
    chosen = sorted({*thinned(totals, MOST_MOMENTS - len(borders)), *borders})
    moments = _held_at(held, chosen)
    categories = sorted({category for moment in moments for category in moment})
    return {
        "category_bytes": {category: [moment[category] for moment in moments] for category in categories},
        "parts": [
            {"name": name, "first": _place(chosen, first), "last": _place(chosen, end)} for name, first, end in parts
        ],
    }


def _held_at(held: Held, chosen: Sequence[int]) -> list[Counter[str]]:
    """Bytes by category after each of the `chosen` numbers of changes of the round, ascending."""
    bytes_now: Counter[str] = Counter()
    done, moments = 0, []
    for place in chosen:
        for change in held.changes[done : held.first_of_round + place]:
            bytes_now[change.block.category] += change.bytes
        done = held.first_of_round + place
        moments.append(+bytes_now)
    return moments


def _place(chosen: Sequence[int], changes: int) -> int:
    """The place among the chosen moments of the one after so many changes."""
    return min(bisect_left(chosen, changes), len(chosen) - 1)
