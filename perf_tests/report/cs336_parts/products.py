"""Matrix products: their share and number, and the softmax between those of attention."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from perf_tests.records.columns import Cell, inside, rows_in
from perf_tests.records.record import Json
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.answer import Question
from perf_tests.report.cs336_parts.counted import of_ledger, thousands
from perf_tests.report.cs336_parts.profile import PASSES, command, first_traced, is_product, kernel_name, traced
from perf_tests.report.cs336_parts.published import KERNELS, of_answers, of_table
from perf_tests.report.cs336_parts.recorded import count, in_digits, item, of_cases, of_items, percent
from perf_tests.report.cs336_parts.timing import PLACE

TITLE = "Matrix products and the softmax"
SHARES, SOFTMAX = "gemm_share.csv", "softmax_vs_matmul.csv"
PARTS = {"qk_time": "scores", "softmax_time": "softmax", "av_time": "value_product"}
COUNTED = "pytest perf_tests/test_counters.py"


def _share_question(asked: str, why: str, phases: Sequence[str], scopes: Sequence[str], field: str) -> Question:
    here = {"here, {case}": lambda cell: percent(inside(cell.info, "matrix_products").get(field))}
    theirs = [
        of_table(
            SHARES, lambda row: f"{row['gemm_pct']}%", "", scope.partition(" (")[2].rstrip(")"),
            row=(scope.partition(" ")[0],), scope=scope,
        )
        for scope in scopes
    ]  # fmt: skip
    return Question(asked, command(*phases), why, ("Pass",), [of_cases(traced(*phases), here)], theirs)


def _softmax(cell: Cell) -> Json:
    return inside(cell.info, "attention", "forward")


def _published_softmax(row: published.Row) -> str:
    products = float(row["qk_time"] or 0) + float(row["av_time"] or 0)
    return row["ratio_softmax_to_matmul"] or in_digits(float(row["softmax_time"]) / products, digits=3)


def _words(row: published.Row) -> str:
    """The first part of a note, without quotations."""
    return "" if row["note"].startswith("'") else row["note"].partition(";")[0]


def _parts(cell: Cell) -> Iterator[Json]:
    return rows_in(cell.info, "attention", "forward", "parts")


QUESTIONS = (
    _share_question(
        "What share of a forward pass are matrix products?",
        "The rest reads and writes the same tensors without multiplying them.",
        ("forward",), ("forward (of GPU kernel time)", "forward (sm80_xmma_gemm, single top kernel)", "forward"),
        "share_of_kernel_time",
    ),
    _share_question(
        "How does that share change in a full training step?",
        "It falls, because the optimizer multiplies no matrices and passes over every weight several times.",
        PASSES, (*PASSES, "backward (gemm variants)"), "share_of_kernel_time",
    ),
    _share_question(
        "What share of the clock's time are matrix products?",
        "Between kernels the device waits for the host, so a share of the clock's time is below one of kernel time.",
        ("forward",), ("forward (of wall range)",), "share_of_wall",
    ),
    Question(
        "How many kernels does a pass launch, by size?",
        COUNTED,
        "Each operation written out is a launch, and the number follows the layers and not the width.",
        ("Size", "Pass"),
        [of_ledger("kernel_launches", "here: launches", thousands, phase=PASSES)],
        [of_table(KERNELS, "calls", kernel="ALL kernel launches", scope=("forward", "backward"))],
    ),
    Question(
        "How many matrix products has a pass?",
        COUNTED,
        "Seven linear layers and two products of attention a layer, and the head; a library may use several kernels.",
        ("Size", "Pass"),
        [of_ledger("matmul_calls", "here: products", thousands, phase=("forward", "backward"))],
        [of_table(
            KERNELS, "calls", "", lambda row: f"calls of {kernel_name(row)}", fits=is_product,
            scope=("forward", "backward"),
        )],
    ),
    Question(
        "How does the softmax compare with the products of attention?",
        command("forward", precision="fp32,bf16"),
        "It reads and writes every score several times with few FLOPs, so its time is memory's and its FLOPs say "
        "little.",
        (*PLACE, "Precision"),
        [
            of_cases(traced("forward", precision=("fp32", "bf16")), {
                "here: of the products' time": lambda cell: item("softmax_over_products_time", 1, 3)(_softmax(cell)),
                "here: of their FLOPs": lambda cell: percent(_softmax(cell).get("softmax_over_products_flops")),
            })
        ],
        [of_table(SOFTMAX, _published_softmax, "", _words, row=(*PLACE, "fp32"))],
    ),
    Question(
        "How long is each part of one attention layer?",
        command("forward"),
        "Times of the host's ranges say when parts were launched, not how long they ran: compare those of the device.",
        ("Part",),
        [
            of_items(first_traced("forward"), _parts, {
                "here, {case}: launches": count("launches"), "here, {case}: device (us)": item("device_seconds", 1e6),
                "here, {case}: host (us)": item("host_seconds", 1e6),
            })
        ],
        [
            *(of_table(SOFTMAX, field, itemgetter("unit"), row=(part,)) for field, part in PARTS.items()),
            of_table(
                KERNELS, "avg_us", "us", lambda row: row["kernel"].rpartition(", ")[2],
                row=(lambda row: row["kernel"].partition(", ")[0],), scope="attention, one layer",
            ),
            of_answers("attention_launches"),
        ],
    ),
)  # fmt: skip
