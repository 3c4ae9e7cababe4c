"""Matrix products: their share and number, and the softmax between those of attention."""

from collections.abc import Sequence

from perf_tests.views.tables.cells import finite, inside, rows_in
from perf_tests.views.tables.digits import significant
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, question
from perf_tests.views.writeup.profile import (
    KERNELS,
    NAME_CHARACTERS,
    command,
    files_with,
    first_traced,
    name_of,
    percent,
    traced,
)
from perf_tests.views.writeup.published import SAID
from perf_tests.views.writeup.sources import Sources
from perf_tests.views.writeup.timing import SIZE_CONTEXT, place

TITLE = "Matrix products and the softmax"
SHARES, SOFTMAX = "published/gemm_share.csv", "published/softmax_vs_matmul.csv"


def _words(note: str) -> str:
    """The first part of a note, without quotations."""
    return "" if note.startswith("'") else note.partition(";")[0]


def _product_share(sources: Sources, phases: Sequence[str], scopes: Sequence[str], field: str) -> Answer:
    found = first_traced(sources, *phases)
    here = [
        Figure(
            (one.cell.phase,),
            f"here, {name_of(one.cell)}",
            percent(finite(inside(one.cell.info, "matrix_products").get(field))),
        )
        for one in found
    ]
    rows = published.matching(sources.published("gemm_share.csv"))
    others = [
        Figure(
            (row["scope"].partition(" ")[0],),
            published.column(row, "", row["scope"].partition(" (")[2].rstrip(")")),
            f"{row['gemm_pct']}%",
        )
        for row in rows
        if row["scope"] in scopes
    ]
    return Answer(("Pass",), here, others, files_with(found, SHARES))


@question(
    "What share of a forward pass are matrix products?",
    command("forward"),
    "The rest reads and writes the same tensors without multiplying them.",
)
def products_of_forward(sources: Sources) -> Answer:
    scopes = ("forward", "forward (of GPU kernel time)", "forward (sm80_xmma_gemm, single top kernel)")
    return _product_share(sources, ("forward",), scopes, "share_of_kernel_time")


@question(
    "How does that share change in a full training step?",
    command("forward", "backward", "full_step"),
    "It falls, because the optimizer multiplies no matrices and passes over every weight several times.",
)
def products_of_a_step(sources: Sources) -> Answer:
    phases = ("forward", "backward", "full_step")
    return _product_share(sources, phases, (*phases, "backward (gemm variants)"), "share_of_kernel_time")


@question(
    "What share of the clock's time are matrix products?",
    command("forward"),
    "Between kernels the device waits for the host, so a share of the clock's time is below one of kernel time.",
)
def products_of_wall(sources: Sources) -> Answer:
    return _product_share(sources, ("forward",), ("forward (of wall range)",), "share_of_wall")


@question(
    "How many kernels does a pass launch, by size?",
    "pytest perf_tests/test_counters.py",
    "Each operation written out is a launch, and the number follows the layers and not the width.",
)
def launches(sources: Sources) -> Answer:
    here = [
        Figure(
            (size, phase),
            "here: launches",
            f"{sources.counted(phase, f'{size}-ctx128-fp32-naive', 'kernel_launches'):,}",
        )
        for size in sources.shapes
        for phase in ("forward", "backward", "full_step")
    ]
    rows = published.matching(
        sources.published("kernels.csv"), kernel="ALL kernel launches", scope=("forward", "backward")
    )
    others = [Figure((row["size"], row["scope"]), published.column(row), row["calls"]) for row in rows]
    return Answer(("Size", "Pass"), here, others, (sources.ledger_name, KERNELS))


@question(
    "How many matrix products has a pass?",
    "pytest perf_tests/test_counters.py",
    "Seven linear layers and two products of attention a layer, and the head; a library may use several kernels.",
)
def products(sources: Sources) -> Answer:
    here = [
        Figure(
            (size, phase), "here: products", f"{sources.counted(phase, f'{size}-ctx128-fp32-naive', 'matmul_calls'):,}"
        )
        for size in sources.shapes
        for phase in ("forward", "backward")
    ]
    rows = [
        row
        for row in published.matching(sources.published("kernels.csv"), scope=("forward", "backward"))
        if "gemm" in row["kernel"]
    ]
    others = [
        Figure(
            (published.label(row, "size"), row["scope"]),
            published.column(row, "", "calls of", row["kernel"][:NAME_CHARACTERS]),
            row["calls"],
        )
        for row in rows
        if row["calls"]
    ]
    return Answer(("Size", "Pass"), here, others, (sources.ledger_name, KERNELS))


@question(
    "How does the softmax compare with the products of attention?",
    command("forward", precision="fp32,bf16"),
    "It reads and writes every score several times with few FLOPs, so its time is memory's and its FLOPs say little.",
)
def softmax(sources: Sources) -> Answer:
    found = [*traced(sources, "forward"), *traced(sources, "forward", precision="bf16")]
    here = []
    for one in found:
        layer = inside(one.cell.info, "attention", "forward")
        time, flops = (finite(layer.get(f"softmax_over_products_{what}")) for what in ("time", "flops"))
        if time is not None and flops is not None:
            case = (*place(one.cell), one.cell.label("precision"))
            here += [
                Figure(case, "here: of the products' time", significant(time, 3)),
                Figure(case, "here: of their FLOPs", percent(flops)),
            ]
    others = []
    for row in published.matching(sources.published("softmax_vs_matmul.csv")):
        name = (published.label(row, "size"), published.label(row, "context"), "fp32")
        ratio = row["ratio_softmax_to_matmul"] or significant(
            float(row["softmax_time"]) / (float(row["qk_time"]) + float(row["av_time"] or 0)), 3
        )
        others.append(Figure(name, published.column(row, "", _words(row["note"])), ratio))
    return Answer((*SIZE_CONTEXT, "Precision"), here, others, files_with(found, SOFTMAX))


@question(
    "How long is each part of one attention layer?",
    command("forward"),
    "Times of the host's ranges say when parts were launched, not how long they ran: compare those of the device.",
)
def attention_parts(sources: Sources) -> Answer:
    found = first_traced(sources, "forward")
    here = []
    for one in found:
        for row in rows_in(one.cell.info, "attention", "forward", "parts"):
            launched = f"{finite(row.get('launches')) or 0:g}"
            here.append(Figure((str(row.get("part")),), f"here, {name_of(one.cell)}: launches", launched))
            for field, side in (("device_seconds", "device"), ("host_seconds", "host")):
                seconds = finite(row.get(field))
                if seconds is not None:
                    here.append(
                        Figure(
                            (str(row.get("part")),),
                            f"here, {name_of(one.cell)}: {side} (us)",
                            significant(seconds * 1e6),
                        )
                    )
    parts = {"qk_time": "scores", "softmax_time": "softmax", "av_time": "value_product"}
    others = [
        Figure((part,), published.column(row, row["unit"]), row[field])
        for row in published.matching(sources.published("softmax_vs_matmul.csv"))
        for field, part in parts.items()
        if row[field]
    ]
    others += [
        Figure(
            (row["kernel"].partition(",")[0],),
            published.column(row, "us", row["kernel"].rpartition(", ")[2]),
            row["avg_us"],
        )
        for row in published.matching(sources.published("kernels.csv"), scope="attention, one layer")
    ]
    others += [
        Figure((row["item"],), published.source_of(row, row["column"]), row["value"])
        for row in published.said(sources, "attention_launches")
    ]
    return Answer(("Part",), here, others, files_with(found, SOFTMAX, KERNELS, SAID))


QUESTIONS = (
    products_of_forward,
    products_of_a_step,
    products_of_wall,
    launches,
    products,
    softmax,
    attention_parts,
)
