"""What the first round of a process is spent on: its trace compared with that of a later round, by part.

In: two Chrome traces as torch.profiler exports them (Kineto's schema). Out: seconds by part, which sum to the first
round. Only the page faults of a CPU are estimated, from their number and cost, which are measured apart.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from perf_tests.records.record import Json
from perf_tests.traces.chrome_trace import HOST_EVENTS, ROUND
from perf_tests.traces.kernel_kinds import PRODUCTS

MODULE_LOADING, COMPILATION, ALLOCATOR, LIBRARY, LAUNCHES, OPERATORS = (
    "module_loading_seconds", "compilation_seconds", "allocator_growth_seconds", "library_handles_seconds",
    "first_launches_seconds", "other_operators_seconds",
)  # fmt: skip
PARTS = (MODULE_LOADING, COMPILATION, ALLOCATOR, LIBRARY, LAUNCHES, OPERATORS)
"""Python modules and the driver's own; torch.compile; memory from the driver or the kernel; first matrix products,
which make their library's handles and choose its kernels; launches, which load a kernel lazily; other operators."""
STEADY, UNEXPLAINED = "steady_round_seconds", "unexplained_seconds"

PRODUCTS_OF_LIBRARIES = re.compile(r"^aten::_?(scaled_dot_product|flash_attention|efficient_attention|fused_sdp)")
LOADING = re.compile(r"^import of |^cu(da)?(Module|Library)(Load|Get)|^cuda(FuncGetAttributes|GetFuncBySymbol)")
COMPILING = re.compile(r"\(dynamo_timed\)$")
CALLS = {
    re.compile(
        r"^cuda(Malloc|HostAlloc|Free|HostRegister)|^cuMem(Alloc|Create|Map|SetAccess|AddressReserve)"
    ): ALLOCATOR,
    re.compile(r"^cu(da)?(Launch|GraphLaunch|OccupancyMax)"): LAUNCHES,
    re.compile(r"^cu(da)?(Device|Ctx|Stream|Event)Synchronize"): None,
}
LARGEST = 5
TICK_SECONDS = 0.01
"""Of the clock that tells the kernel's share of CPU time (proc(5), sysconf(_SC_CLK_TCK) on Linux)."""


@dataclass(frozen=True)
class TracedRound:
    """One round: the events of its trace, its page faults, and the operating system's CPU time for it."""

    events: Sequence[Json]
    page_faults: int
    system_seconds: float


@dataclass
class _Spent:
    """Seconds of one traced round by part, and by the name of what took them."""

    round_seconds: float = 0.0
    by_part: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_name: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def first_round_parts(first: TracedRound, steady: TracedRound, seconds_per_fault: float | None) -> dict[str, float]:
    """Seconds by part: a steady round first, the unexplained rest last; the sum is the first round as traced.

    Each part is its growth over the steady round, at least 0. `seconds_per_fault` is None where memory does not come by
    page faults. Faults take at most the operating system's own time, known to a tick of its clock. If a compiler ran,
    its faults cannot be told from the operators', so all stay where they happened. The rest may be negative, because
    host and device work at the same time. Raises ValueError for a trace without its round.
    """
    spent, usual = _spent(first), _spent(steady)
    parts = {part: max(0.0, spent.by_part[part] - usual.by_part[part]) for part in PARTS}
    if seconds_per_fault is not None and not parts[COMPILATION]:
        fault_seconds = (first.page_faults - steady.page_faults) * seconds_per_fault
        kernel_seconds = first.system_seconds - steady.system_seconds + TICK_SECONDS
        _give_to_allocator(parts, min(fault_seconds, kernel_seconds))
    growth = spent.round_seconds - usual.round_seconds
    return {STEADY: usual.round_seconds, **parts, UNEXPLAINED: growth - sum(parts.values())}


def largest_growth(first: TracedRound, steady: TracedRound) -> list[Json]:
    """The events whose own time, without the events inside them, grew most; at most five."""
    spent, usual = _spent(first).by_name, _spent(steady).by_name
    growth = {name: seconds - usual[name] for name, seconds in spent.items() if seconds > usual[name]}
    largest = sorted(growth, key=lambda name: -growth[name])[:LARGEST]
    return [{"name": name, "seconds": growth[name]} for name in largest]


def _give_to_allocator(parts: dict[str, float], fault_seconds: float) -> None:
    """Page faults happen inside the operators that first write to new pages; subtract them there."""
    inside = parts[LIBRARY] + parts[OPERATORS]
    share = min(1.0, max(0.0, fault_seconds) / inside) if inside else 0.0
    parts[ALLOCATOR] += share * inside
    for part in (LIBRARY, OPERATORS):
        parts[part] *= 1 - share


def _spent(traced: TracedRound) -> _Spent:
    """Time of each event without that of the events inside it, by part."""
    events = [event for event in traced.events if event.get("ph") == "X" and event.get("cat") in HOST_EVENTS]
    found = next((event for event in events if event["name"] == ROUND), None)
    if found is None:
        raise ValueError("the trace has no round in it: nothing was traced, or the profiler dropped it.")
    start, stop = found["ts"], found["ts"] + found["dur"]
    inside = [event for event in events if start <= event["ts"] < stop and event is not found]
    spent = _Spent(found["dur"] / 1e6)
    open_events: dict[object, list[tuple[float, str | None, str]]] = defaultdict(list)
    for event in sorted(inside, key=lambda event: (event["ts"], -event["dur"])):
        stack = open_events[event["tid"]]
        while stack and stack[-1][0] <= event["ts"]:
            stack.pop()
        around = stack[-1] if stack else (0.0, None, "")
        part, seconds = _part_of(event, around[1]), event["dur"] / 1e6
        for of, name, own in ((part, event["name"], seconds), (*around[1:], -seconds)):
            if of is not None:
                spent.by_part[of] += own
                spent.by_name[name] += own
        stack.append((event["ts"] + event["dur"], part, event["name"]))
    return spent


def _part_of(event: Json, around: str | None) -> str | None:
    """The part of an event's own time; None for none. Everything inside a load or a compilation is part of it."""
    name = event["name"]
    if around == MODULE_LOADING or LOADING.match(name):
        return MODULE_LOADING
    if around == COMPILATION or COMPILING.search(name):
        return COMPILATION
    for pattern, part in CALLS.items():
        if pattern.match(name):
            return part
    if event["cat"] != "cpu_op":
        return around
    return LIBRARY if name in PRODUCTS or PRODUCTS_OF_LIBRARIES.match(name) else OPERATORS
