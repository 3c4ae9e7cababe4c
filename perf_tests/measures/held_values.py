"""What a memory pass keeps of a case: the allocator's figures, and who held what, as one row of plain values."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from perf_tests.cases import AttentionCase, Case
from perf_tests.instruments.memory_holders import Held, Regions
from perf_tests.instruments.round_memory import Mark, RoundMemory
from perf_tests.records.record import Json
from perf_tests.traces.kernel_events import PHASES, layer_of

MARKS = ("after forward", "before backward", "before optimizer", "after optimizer")
MOST_MOMENTS = 1000
"""Of a timeline; between two of them the highest is kept."""
LARGEST_ALLOCATIONS = 8
FLOAT32_BYTES = 4

NOT_ATTRIBUTED = "not attributed"
"""Category of what compiled code holds: it does not say what for."""

COMPILED_CODE = "compiled code"


def memory_values(
    case: Case, after_init: tuple[int, int | None], exact: RoundMemory, held: Held, sees_operations: bool
) -> Json:
    """The row's values, without what is predicted."""
    marks = [Mark("after init", *after_init), *(mark for mark in exact.marks if mark.name in MARKS)]
    values: Json = {
        "peak_allocated_bytes": exact.peak_allocated_bytes,
        "peak_reserved_bytes": exact.peak_reserved_bytes,
        "marks": [vars(mark) for mark in marks],
        "parts": [
            {
                "phase": part.name,
                "peak_allocated_bytes": part.peak_allocated_bytes,
                "peak_reserved_bytes": part.peak_reserved_bytes,
            }
            for part in exact.parts
        ],
        "saved_bytes_by_part": saved_by_part(held.saved_bytes),
        "residual_tensor_bytes": residual_tensor_bytes(case),
        "fragmentation": None if exact.fragmentation is None else vars(exact.fragmentation),
        "resident_set_peak_bytes": None,
        "snapshot": None,
        "flags": [],
    }
    values |= _attributed(held) if sees_operations else _not_attributed(exact)
    if isinstance(case, AttentionCase):
        moment = "before backward" if case.has_backward else "after forward"
        values["memory_before_backward_bytes"] = next(m.allocated_bytes for m in marks if m.name == moment)
    return values


def residual_tensor_bytes(case: Case) -> int | None:
    """One tensor of the residual stream, in float32 under every precision; of attention alone, one of its inputs.

    None for somebody else's model, whose residual stream is its own.
    """
    if isinstance(case, AttentionCase):
        return case.tokens * case.head_dim * FLOAT32_BYTES
    return case.tokens * case.config.d_model * FLOAT32_BYTES if case.model == "ours" else None


def saved_by_part(saved_bytes: Counter[Regions]) -> list[Json]:
    """Bytes that wait for the backward pass, by block and by the innermost region that saved them."""
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
    """By category and line, of a round whose operations were seen."""
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
    """The same of compiled code: how much, and no more."""
    total, moments = exact.allocated_before_bytes, [exact.allocated_before_bytes]
    for event in exact.events:
        total += event.bytes
        moments.append(total)
    made = Counter(event.bytes for event in exact.events if event.bytes > 0)
    width = _bucket_width(len(moments))
    highest = [max(moments[start : start + width]) for start in range(0, len(moments), width)]
    return {
        "peak_by_category_bytes": {NOT_ATTRIBUTED: exact.peak_allocated_bytes},
        "largest_allocations": [
            {"bytes": size, "count": made[size], "line": COMPILED_CODE, "category": NOT_ATTRIBUTED}
            for size in sorted(made, reverse=True)[:LARGEST_ALLOCATIONS]
        ],
        "timeline": {"category_bytes": {NOT_ATTRIBUTED: highest} if exact.events else {}, "parts": []},
    }


def timeline(held: Held) -> Json:
    """Bytes of each category after every change of the round; of many changes the highest moments."""
    totals = [0]
    for change in held.changes:
        totals.append(totals[-1] + change.bytes)
    totals = totals[held.first_of_round :]
    chosen = _highest_moments(totals)
    moments = _held_at(held, chosen)
    categories = sorted({category for moment in moments for category in moment})
    return {
        "category_bytes": {category: [moment[category] for moment in moments] for category in categories},
        "parts": [
            {
                "name": part.name,
                "first": _place(chosen, part.first - held.first_of_round),
                "last": _place(chosen, part.end - held.first_of_round),
            }
            for part in held.parts
        ],
    }


def _highest_moments(totals: Sequence[int]) -> list[int]:
    """Places of `totals`, the highest of each stretch of equal length, MOST_MOMENTS at the most."""
    width = _bucket_width(len(totals))
    return [
        max(range(start, min(start + width, len(totals))), key=totals.__getitem__)
        for start in range(0, len(totals), width)
    ]


def _bucket_width(count: int) -> int:
    return -(-count // MOST_MOMENTS)


def _held_at(held: Held, chosen: Sequence[int]) -> list[Counter[str]]:
    """By category, after so many changes of the round."""
    bytes_now: Counter[str] = Counter()
    moments = []
    wanted = {held.first_of_round + place for place in chosen}
    for done in range(len(held.changes) + 1):
        if done in wanted:
            moments.append(+bytes_now)
        if done < len(held.changes):
            change: Any = held.changes[done]
            bytes_now[change.block.category] += change.bytes
    return moments


def _place(chosen: Sequence[int], changes: int) -> int:
    """Where the moment after so many changes lies among the chosen ones."""
    return min(bisect_left(chosen, changes), len(chosen) - 1)
