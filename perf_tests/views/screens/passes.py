"""Extra passes over the cases in a terminal: what prints the rows of each."""

from collections.abc import Callable, Sequence

from perf_tests.records.record import Json
from perf_tests.views.screens import kernels as kernel_screen
from perf_tests.views.screens import memory as memory_screen
from perf_tests.views.screens.warmup import warmup_lines

PASS_LINES: dict[str, Callable[[Sequence[Json]], list[str]]] = {
    "kernels": kernel_screen.summary_lines,
    "memory": memory_screen.summary_lines,
    "warmup": warmup_lines,
}


def pass_lines(record: Json) -> dict[str, list[str]]:
    rows = {name: [row for row in record.get("passes", []) if row["pass"] == name] for name in PASS_LINES}
    return {name: PASS_LINES[name](of_pass) for name, of_pass in rows.items() if of_pass}
