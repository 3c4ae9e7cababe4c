"""Single tensors, the lines that make them, and one block: what it saves, its gradients, its checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter

from perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests.records.columns import Cell, rows_in
from perf_tests.records.format import MIB, finite, significant
from perf_tests.records.record import Json
from perf_tests.report.cs336_parts.answer import Figure, Figures, Labels, Question
from perf_tests.report.cs336_parts.counted import SHAPES, mebibytes, of_shapes
from perf_tests.report.cs336_parts.memory import COUNTING, COURSE_SIZE, of_peaks, predict
from perf_tests.report.cs336_parts.published import MEMORY, NOT_STATED, SAID, of_answers, of_table
from perf_tests.report.cs336_parts.recorded import item, of_cases, of_items, passed, plain, share
from perf_tests.report.cs336_parts.sources import Shape, Sources
from perf_tests.report.cs336_parts.timing import PLACE

TITLE = "Tensors and blocks"
BATCH = 4
COMMAND = "pytest perf_tests/test_memory.py --memory --phase forward --precision fp32"
FORWARD = passed("memory", plain("forward"))
CHECKPOINTS = of_peaks("full_step_peak:checkpoint group", digits=2)
MOST = 5


def _tensor(numbers: Callable[[Shape, int], int]) -> Callable[[Shape, int], str]:
    """MiB of a batch of float32 numbers, so many for each sequence."""
    return lambda shape, context: f"{BATCH * numbers(shape, context) * FLOAT32_BYTES / MIB:g}"


def crossover(shape: Shape) -> float:
    """The context at which one layer's scores are as large as its feed-forward tensor."""
    return shape.d_ff / shape.num_heads


def block_parameters(shape: Shape) -> int:
    """4 d^2 + 3 d d_ff + 2 d."""
    return 4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff + 2 * shape.d_model


def _recorded_residual(cell: Cell) -> str:
    value = cell.number("residual_tensor_bytes")
    return "" if value is None else f"{value / MIB:g}"


def _lines(is_residual: bool) -> Figures:
    """Blocks of memory by the line that makes them."""

    def figures(sources: Sources, _: Labels) -> Iterator[Figure]:
        for block in sources.played.blocks:
            if block.is_residual == is_residual:
                row = (block.size, str(block.context), block.line)
                yield Figure(row, "here: one (MiB)", mebibytes(block.bytes), COUNTING)
                yield Figure(row, "here: made", f"{block.count}", COUNTING)

    return figures


def _saved(cell: Cell) -> Mapping[str, float]:
    """Bytes by part of the first block."""
    rows = (row for row in rows_in(cell.info, "saved_bytes_by_part") if row.get("block") == "block 0")
    return {str(row.get("part")): finite(row.get("saved_bytes")) or 0.0 for row in rows}


def _saved_by_block(cell: Cell) -> str:
    return mebibytes(sum(_saved(cell).values())) if _saved(cell) else ""


def _saved_most(cell: Cell) -> Iterator[Json]:
    parts = sorted(_saved(cell).items(), key=itemgetter(1), reverse=True)
    whole = sum(amount for _, amount in parts)
    return ({"part": name, "bytes": amount, "share": amount / whole} for name, amount in parts[:MOST])


def _gradients(sources: Sources, _: Labels) -> Iterator[Figure]:
    for size, shape in sources.shapes.items():
        amount = significant(FLOAT32_BYTES * block_parameters(shape) / MIB)
        yield Figure((size,), "here: closed form (MiB)", amount, SHAPES)


QUESTIONS = (
    Question(
        "How large is one tensor of the residual stream?",
        COMMAND,
        "Batch times context times width numbers of four bytes; it is float32 under autocast too.",
        PLACE,
        [
            of_shapes({"here: closed form (MiB)": _tensor(lambda shape, context: context * shape.d_model)}),
            of_cases(FORWARD, {"here: recorded (MiB)": _recorded_residual}),
        ],
        [of_table(SAID, "value", itemgetter("column"), row=(COURSE_SIZE, "item"), question="residual")],
    ),
    Question(
        "Which line of code makes a tensor of the residual stream?",
        "python -m perf_tests writeup",
        "Each block adds twice to the stream, after attention and after the feed-forward layer.",
        (*PLACE, "Line"), [_lines(True)], [of_answers("residual_line", (COURSE_SIZE, NOT_STATED, "item"))],
    ),
    Question(
        "Which allocations of a forward pass are the largest, and where are they made?",
        predict("512", "--json"),
        "At short contexts the feed-forward tensors, at long ones the scores of attention.",
        (*PLACE, "Line"), [_lines(False)],
        [of_table(
            MEMORY, "value", itemgetter("unit"), row=(*PLACE, NOT_STATED), fits=bool, mode="largest_allocation",
            size=COURSE_SIZE,
        )],
    ),
    Question(
        "Which tensor is larger, the scores or the feed-forward's?",
        predict("512"),
        "Scores have heads times context numbers for each token, the other its width; so the context decides.",
        PLACE,
        [of_shapes({
            "here: scores (MiB)": _tensor(lambda shape, context: shape.num_heads * context**2),
            "here: feed-forward (MiB)": _tensor(lambda shape, context: context * shape.d_ff),
            "here: equal at context": lambda shape, _: f"{crossover(shape):g}",
        })],
    ),
    Question(
        "How much does one block save for its backward pass?",
        COMMAND,
        "What the allocator holds counts a tensor once; sums over hooks count it as often as it is saved.",
        PLACE, [of_cases(FORWARD, {"here: saved (MiB)": _saved_by_block})],
        [of_table(
            MEMORY, "value", itemgetter("unit"), lambda row: row["mode"].partition("(")[2].replace(")", ""),
            fits=lambda row: row["mode"].startswith("saved_per_block"),
        )],
    ),
    Question(
        "Which operations of a block save most?",
        COMMAND,
        "SwiGLU keeps five tensors of its own width; the softmax keeps its result, which grows with the square.",
        (*PLACE, "Part"),
        [of_items(FORWARD, _saved_most, {
            "here: saved (MiB)": item("bytes", 1 / MIB), "here: of the block": share("share"),
        })],
    ),
    Question(
        "How large are the gradients of one block?",
        "pytest perf_tests/test_memory.py --memory --phase backward --precision fp32",
        "One float32 number for each weight: four square matrices, three of the feed-forward layer, two norms.",
        ("Size",), [_gradients],
    ),
    Question(
        "Which checkpoint has the smallest peak?",
        "python -m perf_tests predict --size 2.7B --context 2048 --gpu H200 --checkpoint all",
        "The interior of one block outweighs the inputs of all, so sharing a checkpoint among blocks only adds.",
        (*PLACE, "Blocks that share one"), [CHECKPOINTS[0]], [CHECKPOINTS[1]],
    ),
)  # fmt: skip
