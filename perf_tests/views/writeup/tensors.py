"""Single tensors, the lines that make them, and one block: what it saves, its gradients, its checkpoint."""

from collections.abc import Mapping

from perf_tests.limits.least_work import FLOAT32_BYTES
from perf_tests.views.tables.cells import Cell, finite, rows_in
from perf_tests.views.tables.digits import MIB, significant
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, files_of, question
from perf_tests.views.writeup.memory import BATCH, CHECKPOINT, COUNTING, COURSE_SIZE, MEMORY, predict
from perf_tests.views.writeup.published import SAID
from perf_tests.views.writeup.sources import CONTEXTS, Shape, Sources
from perf_tests.views.writeup.timing import SIZE_CONTEXT, place, plain

TITLE = "Tensors and blocks"
COMMAND = "pytest perf_tests/test_memory.py --memory --phase forward --precision fp32"


@question(
    "How large is one tensor of the residual stream?",
    "pytest perf_tests/test_memory.py --memory --phase forward --precision fp32",
    "Batch times context times width numbers of four bytes; it is float32 under autocast too.",
)
def residual(sources: Sources) -> Answer:
    shapes = sources.shapes.items()
    here = [
        Figure(
            (size, str(context)),
            "here: closed form (MiB)",
            f"{BATCH * context * shape.d_model * FLOAT32_BYTES / MIB:g}",
        )
        for size, shape in shapes
        for context in CONTEXTS
    ]
    found = sources.passed("memory", plain("forward"))
    here += [
        Figure((one.cell.label("size"), one.cell.label("context_length")), "here: recorded (MiB)", f"{value / MIB:g}")
        for one in found
        if (value := finite(one.cell.info.get("residual_tensor_bytes"))) is not None
    ]
    others = [
        Figure((COURSE_SIZE, row["item"]), f"{published.source_of(row)} {row['column']}", row["value"])
        for row in published.said(sources, "residual")
    ]
    return Answer(
        SIZE_CONTEXT, here, others, files=files_of(["published/e2e_timing.csv", SAID, *(one.file for one in found)])
    )


def _blocks(sources: Sources, is_residual: bool) -> list[Figure]:
    figures = []
    for block in sources.played.blocks:
        if block.is_residual == is_residual:
            row = (block.size, str(block.context), block.line)
            figures += [
                Figure(row, "here: one (MiB)", significant(block.bytes / MIB)),
                Figure(row, "here: made", f"{block.count}"),
            ]
    return figures


@question(
    "Which line of code makes a tensor of the residual stream?",
    "python -m perf_tests writeup",
    "Each block adds twice to the stream, after attention and after the feed-forward layer.",
)
def residual_line(sources: Sources) -> Answer:
    others = [
        Figure((COURSE_SIZE, "not stated", row["item"]), published.source_of(row), row["value"])
        for row in published.said(sources, "residual_line")
    ]
    return Answer((*SIZE_CONTEXT, "Line"), _blocks(sources, True), others, (COUNTING, SAID))


@question(
    "Which allocations of a forward pass are the largest, and where are they made?",
    predict("512", "--json"),
    "At short contexts the feed-forward tensors, at long ones the scores of attention.",
)
def largest(sources: Sources) -> Answer:
    rows = published.matching(sources.published("memory.csv"), bool, mode="largest_allocation", size=COURSE_SIZE)
    others = [
        Figure((row["size"], row["context"], "not stated"), published.column(row, row["unit"]), row["value"])
        for row in rows
    ]
    return Answer((*SIZE_CONTEXT, "Line"), _blocks(sources, False), others, (COUNTING, MEMORY))


@question(
    "Which tensor is larger, the scores or the feed-forward's?",
    predict("512"),
    "Scores have heads times context numbers for each token, the other its width; so the context decides.",
)
def crossover_of_tensors(sources: Sources) -> Answer:
    here = []
    for size, shape in sources.shapes.items():
        unit = BATCH * FLOAT32_BYTES / MIB
        for context in CONTEXTS:
            row = (size, str(context))
            here += [
                Figure(row, "here: scores (MiB)", f"{unit * shape.num_heads * context**2:g}"),
                Figure(row, "here: feed-forward (MiB)", f"{unit * shape.d_ff * context:g}"),
                Figure(row, "here: equal at context", f"{crossover(shape):g}"),
            ]
    return Answer(SIZE_CONTEXT, here, files=("published/e2e_timing.csv",))


def crossover(shape: Shape) -> float:
    """The context at which one layer's scores are as large as its feed-forward tensor."""
    return shape.d_ff / shape.num_heads


def _saved(cell: Cell) -> Mapping[str, float]:
    """Bytes by part of the first block."""
    parts: dict[str, float] = {}
    for row in rows_in(cell.info, "saved_bytes_by_part"):
        if row.get("block") == "block 0":
            parts[str(row.get("part"))] = finite(row.get("saved_bytes")) or 0.0
    return parts


@question(
    "How much does one block save for its backward pass?",
    COMMAND,
    "What the allocator holds counts a tensor once; sums over hooks count it as often as it is saved.",
)
def saved_per_block(sources: Sources) -> Answer:
    found = sources.passed("memory", plain("forward"))
    here = [
        Figure(place(one.cell), "here: saved (MiB)", significant(sum(parts.values()) / MIB))
        for one in found
        if (parts := _saved(one.cell))
    ]
    rows = [row for row in sources.published("memory.csv") if row["mode"].startswith("saved_per_block")]
    others = [
        Figure(
            (row["size"], row["context"]),
            published.column(row, row["unit"], row["mode"].partition("(")[2].replace(")", "")),
            row["value"],
        )
        for row in rows
    ]
    return Answer(SIZE_CONTEXT, here, others, files_of([*(one.file for one in found), MEMORY]))


@question(
    "Which operations of a block save most?",
    COMMAND,
    "SwiGLU keeps five tensors of its own width; the softmax keeps its result, which grows with the square.",
)
def saved_by_operation(sources: Sources) -> Answer:
    found = sources.passed("memory", plain("forward"))
    here = []
    for one in found:
        parts = _saved(one.cell)
        for name, amount in sorted(parts.items(), key=lambda item: -item[1])[:5]:
            here += [
                Figure((*place(one.cell), name), "here: saved (MiB)", significant(amount / MIB)),
                Figure((*place(one.cell), name), "here: of the block", f"{amount / sum(parts.values()):.1%}"),
            ]
    return Answer((*SIZE_CONTEXT, "Part"), here, files=files_of(one.file for one in found))


@question(
    "How large are the gradients of one block?",
    "pytest perf_tests/test_memory.py --memory --phase backward --precision fp32",
    "One float32 number for each weight: four square matrices, three of the feed-forward layer, two norms.",
)
def gradients_per_block(sources: Sources) -> Answer:
    here = [
        Figure((size,), "here: closed form (MiB)", significant(FLOAT32_BYTES * block_parameters(shape) / MIB))
        for size, shape in sources.shapes.items()
    ]
    return Answer(("Size",), here, files=("published/e2e_timing.csv",))


def block_parameters(shape: Shape) -> int:
    """4 d^2 + 3 d d_ff + 2 d."""
    return 4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff + 2 * shape.d_model


@question(
    "Which checkpoint has the smallest peak?",
    "python -m perf_tests predict --size 2.7B --context 2048 --gpu H200 --checkpoint all",
    "The interior of one block outweighs the inputs of all, so sharing a checkpoint among blocks only adds.",
)
def checkpoints(sources: Sources) -> Answer:
    here, others = [], []
    for peak in sources.played.peaks:
        if peak.mode.startswith(CHECKPOINT):
            row = (peak.size, str(peak.context), peak.mode.removeprefix(CHECKPOINT))
            here.append(Figure(row, f"here: predicted for {peak.source} ({peak.unit})", f"{peak.predicted:.2f}"))
            others.append(Figure(row, f"{peak.source} ({peak.unit})", peak.published))
    return Answer((*SIZE_CONTEXT, "Blocks that share one"), here, others, (COUNTING, MEMORY) if here else ())


QUESTIONS = (
    residual,
    residual_line,
    largest,
    crossover_of_tensors,
    saved_per_block,
    saved_by_operation,
    gradients_per_block,
    checkpoints,
)
