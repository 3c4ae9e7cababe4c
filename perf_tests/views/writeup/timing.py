"""How long: passes by size and context, how sure that is, and what a step is made of."""

from collections.abc import Callable, Sequence

from perf_tests.views.tables.cells import Cell
from perf_tests.views.tables.digits import significant
from perf_tests.views.tables.timing import milliseconds, ratio
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, files_of, question
from perf_tests.views.writeup.published import Row
from perf_tests.views.writeup.sources import Found, Sources

SIZE_CONTEXT = ("Size", "Context")
E2E = "published/e2e_timing.csv"
TITLE = "Timing a step"


def place(cell: Cell) -> tuple[str, str]:
    return cell.label("size"), cell.label("context_length")


def is_plain(cell: Cell, *phases: str, precision: str = "fp32") -> bool:
    """Of the reference: naive, eager, the course's batch."""
    known = (cell.implementation, cell.label("batch_size"), cell.is_attention) == ("naive", "4", False)
    return known and cell.label("precision") == precision and (not phases or cell.phase in phases)


def plain(*phases: str, precision: str = "fp32") -> Callable[[Cell], bool]:
    return lambda cell: is_plain(cell, *phases, precision=precision)


def in_milliseconds(found: Sequence[Found], head: str = "here (ms)") -> list[Figure]:
    return [Figure(place(one.cell), head, milliseconds(one.cell)) for one in found]


def _times(sources: Sources, phase: str, published_as: str) -> Answer:
    found = sources.timed(plain(phase))
    others = published.times(sources, phase=published_as, precision="fp32")
    return Answer(SIZE_CONTEXT, in_milliseconds(found), others, files_of([*map(file_of, found), *[E2E] * bool(others)]))


@question(
    "How long does a forward pass take, by size?",
    "pytest perf_tests/test_forward.py --phase forward --precision fp32 --size all",
    "A card's time follows its FLOPs once they outlast the launches; below that every size costs its layers.",
)
def forward(sources: Sources) -> Answer:
    return _times(sources, "forward", "forward")


@question(
    "How long does a backward pass take, by size?",
    "pytest perf_tests/test_backward.py --phase backward --precision fp32 --size all",
    "It has two products for each one of the forward pass, and it clears no gradients here.",
)
def backward(sources: Sources) -> Answer:
    return _times(sources, "backward", "backward")


@question(
    "How long do forward and backward pass take together?",
    "pytest perf_tests/test_backward.py --phase forward_backward --precision fp32 --size all",
    "Three write-ups time both in one range, which hides how the time is divided.",
)
def forward_backward(sources: Sources) -> Answer:
    return _times(sources, "forward_backward", "fwd_bwd")


@question(
    "How long does a full training step take?",
    "pytest perf_tests/test_full_step.py --phase full_step --precision fp32 --size all",
    "It clears gradients, goes forward and back, clips and updates; no write-up times the whole as one.",
)
def full_step(sources: Sources) -> Answer:
    return _times(sources, "full_step", "full_step")


def file_of(found: Found) -> str:
    return found.file


@question(
    "How does a forward pass grow with the context?",
    "pytest perf_tests/test_forward.py --phase forward --precision fp32 --context all",
    "Products grow with the tokens and attention with their square; a launch costs the same at any context.",
)
def growth_with_context(sources: Sources) -> Answer:
    shortest: dict[tuple[str, str], list[Found]] = {}
    for one in sources.timed(plain("forward")):
        if one.cell.is_timed:
            shortest.setdefault((one.cell.label("size"), one.file), []).append(one)
    here, files = [], []
    for found in shortest.values():
        found.sort(key=lambda one: int(one.cell.label("context_length")))
        for one in found[1:]:
            here.append(
                Figure(place(one.cell), f"here: over context {place(found[0].cell)[1]}", ratio(one.cell, found[0].cell))
            )
            files.append(one.file)
    rows = published.warmed_up(sources, phase="forward", precision="fp32", context=("128", "256", "512", "1024"))
    others = [
        figure
        for context in ("256", "512", "1024")
        for figure in published.ratios(rows, "context", context, "128", ("size", "context"), "over context 128")
    ]
    return Answer(SIZE_CONTEXT, here, others, files_of([*files, E2E]))


@question(
    "How long does one layer take, by size?",
    "pytest perf_tests/test_forward.py --phase forward --precision fp32 --size all",
    "Where launches are the time, every layer costs the same, and time follows depth and not width.",
)
def time_per_layer(sources: Sources) -> Answer:
    found = [one for one in sources.timed(plain("forward")) if one.cell.is_timed]
    here = [
        Figure(place(one.cell), "here: one layer (ms)", significant(one.cell.mean_seconds * 1e3 / layers, 3))
        for one in found
        if (layers := one.cell.number("num_layers"))
    ]
    rows = [
        row
        for row in published.warmed_up(sources, phase="forward", precision="fp32")
        if row["mean_ms"] and row["n_layers"]
    ]
    others = [
        Figure(
            row_place(row),
            published.column(row, "ms", "one layer"),
            significant(float(row["mean_ms"]) / int(row["n_layers"]), 3),
        )
        for row in rows
    ]
    return Answer(SIZE_CONTEXT, here, others, files_of([*map(file_of, found), E2E]))


def row_place(row: Row) -> tuple[str, str]:
    return published.label(row, "size"), published.label(row, "context")


@question(
    "How many TFLOP/s is a forward pass?",
    "pytest perf_tests/test_forward.py --phase forward --precision fp32 --size all",
    "A larger model multiplies larger matrices, which reach a larger share of the peak.",
)
def flops_per_second(sources: Sources) -> Answer:
    found = [one for one in sources.timed(plain("forward")) if one.cell.number("tflops_per_second")]
    here = [
        Figure(place(one.cell), "here (TFLOP/s)", significant(one.cell.number("tflops_per_second") or 0, 3))
        for one in found
    ]
    here += [
        Figure(place(one.cell), "here: of the best product", f"{share:.0%}")
        for one in found
        if (share := one.cell.number("share_of_matmul_ceiling")) is not None
    ]
    others = []
    for row in published.warmed_up(sources, phase="forward", precision="fp32", sync="yes"):
        if row["mean_ms"] and row["context"] and row["size"] in sources.shapes:
            flops = sources.counted("forward", f"{row['size']}-ctx{row['context']}-fp32-naive", "model_flops")
            others.append(
                Figure(
                    row_place(row),
                    published.column(row, "TFLOP/s"),
                    significant(flops / float(row["mean_ms"]) / 1e9, 3),
                )
            )
    return Answer(SIZE_CONTEXT, here, others, files_of([*map(file_of, found), E2E, sources.ledger_name]))


@question(
    "How much do the rounds of a case vary?",
    "pytest perf_tests --precision fp32",
    "It is the scatter within one process; two processes of the same code differ by more.",
)
def spread(sources: Sources) -> Answer:
    found = [one for one in sources.timed(plain()) if one.cell.std_seconds]
    here = [
        Figure(
            (*place(one.cell), one.cell.phase),
            "here: std / mean",
            f"{(one.cell.std_seconds or 0) / one.cell.mean_seconds:.1%}",
        )
        for one in found
    ]
    others = [
        Figure(
            (*row_place(row), row["phase"].replace("fwd_bwd", "forward_backward")),
            published.column(row, "", "std / mean"),
            f"{float(row['std_ms']) / float(row['mean_ms']):.1%}",
        )
        for row in published.warmed_up(sources, precision="fp32")
        if row["std_ms"]
    ]
    return Answer((*SIZE_CONTEXT, "Phase"), here, others, files_of([*map(file_of, found), E2E]))


QUESTIONS = (
    forward,
    backward,
    forward_backward,
    full_step,
    growth_with_context,
    time_per_layer,
    flops_per_second,
    spread,
)
