"""Where the time goes: kernels, matrix products, the softmax, regions, gaps, and the profiler against the clock."""

from collections.abc import Callable, Sequence
from itertools import islice

from perf_tests.records.record import Json
from perf_tests.views.tables.cells import Cell, finite, inside, rows_in
from perf_tests.views.tables.digits import significant
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import HERE, Answer, Figure, files_of, question
from perf_tests.views.writeup.sources import Found, Sources
from perf_tests.views.writeup.timing import E2E, SIZE_CONTEXT, place, plain

TITLE = "Profile"
TOP = 3
NAME_CHARACTERS = 60
KERNELS = "published/kernels.csv"
PUBLISHED_KINDS = {
    "elementwise + vectorized elementwise kernels": "elementwise",
    "reduce kernels (norm and softmax)": "reduction",
    "elementwise kernels with MulFunctor": "elementwise",
    "elementwise kernel DivFunctor": "elementwise",
}
"""What write-ups call kernels, and the kind here."""
MEMORY_OPERATIONS = "CUDA HW memory operations share of device time"
GAPS = ("gap between kernels", "gap between CUDA API calls")


def command(*phases: str, precision: str = "fp32") -> str:
    return f"pytest perf_tests/test_kernels.py --kernels --phase {','.join(phases)} --precision {precision}"


def traced(sources: Sources, *phases: str, precision: str = "fp32") -> list[Found]:
    return sources.passed("kernels", plain(*phases, precision=precision))


def first_traced(sources: Sources, *phases: str) -> list[Found]:
    """Of each phase the smallest case."""
    found: dict[str, Found] = {}
    for one in traced(sources, *phases):
        kept = found.get(one.cell.phase)
        if kept is None or _work(one.cell) < _work(kept.cell):
            found[one.cell.phase] = one
    return [found[phase] for phase in phases if phase in found]


def _work(cell: Cell) -> tuple[float, float]:
    return cell.number("d_model") or 0.0, cell.number("context_length") or 0.0


def name_of(cell: Cell) -> str:
    return f"{cell.label('size')} {cell.label('context_length')}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def files_with(found: Sequence[Found], *others: str) -> list[str]:
    return files_of([*(one.file for one in found), *others])


@question(
    "Does the profiler agree with the clock?",
    command("forward", "backward", "full_step"),
    "A profiler adds its overhead to each launch, so shares come from it and times from the clock.",
)
def profiler_and_clock(sources: Sources) -> Answer:
    found = traced(sources)
    here = []
    for one in found:
        under, plain_seconds = (finite(one.cell.info.get(name)) for name in ("wall_seconds", "plain_wall_seconds"))
        if under and plain_seconds:
            row = (*place(one.cell), one.cell.phase)
            here.append(Figure(row, "here: profiled (ms)", significant(under * 1e3)))
            here.append(Figure(row, "here: profiled / timed", significant(under / plain_seconds, 3)))
    rows = published.warmed_up(sources, phase="forward", precision="fp32")
    profiled = {(row["source"], row["gpu"], row["size"]) for row in rows if row["n_measured"] == "1"}
    others = [
        Figure(
            (published.label(row, "size"), published.label(row, "context"), "forward"),
            published.column(row, "ms", "profiled" if row["n_measured"] == "1" else "timed"), published.time_text(row),
        )
        for row in rows
        if (row["source"], row["gpu"], row["size"]) in profiled
    ]  # fmt: skip
    return Answer((*SIZE_CONTEXT, "Phase"), here, others, files_with(found, E2E))


WHOSE_KERNEL = ("Whose", "Case", "Kernel")


def _top_kernels(sources: Sources, phase: str, fits: Callable[[Json], bool]) -> Answer:
    found = first_traced(sources, phase)
    here = []
    for one in found:
        for kernel in islice(filter(fits, rows_in(one.cell.info, "kernels")), TOP):
            row = (HERE, name_of(one.cell), str(kernel.get("name"))[:NAME_CHARACTERS])
            calls, mean = (finite(kernel.get(name)) or 0.0 for name in ("calls", "mean_seconds"))
            share = percent(finite(kernel.get("share")))
            here += _row_of(row, f"{calls:g}", significant(mean * 1e6), share)
    return Answer(WHOSE_KERNEL, here, _published_kernels(sources, phase, fits), files_with(found, KERNELS))


def _row_of(row: tuple[str, ...], calls: str, mean: str, share: str) -> list[Figure]:
    texts = {"calls": calls, "mean (us)": mean, "of kernel time": share}
    return [Figure(row, column, text) for column, text in texts.items() if text]


def _published_kernels(sources: Sources, phase: str, fits: Callable[[Json], bool]) -> list[Figure]:
    figures = []
    for row in published.matching(sources.published("kernels.csv"), scope=phase):
        is_listed = not row["kernel"].startswith(("ALL", "gap", "CUDA"))
        kind = "matrix product" if "gemm" in row["kernel"] else "other"
        if is_listed and fits({"kind": kind}):
            case = f"{row['size'] or published.NOT_STATED} {row['context']}".strip()
            name = (published.column(row), case, row["kernel"][:NAME_CHARACTERS])
            share = row["pct_of_gpu_time"]
            figures += _row_of(name, row["calls"], row["avg_us"], f"{share}%" if share else "")
    return figures


def _any_kernel(_: Json) -> bool:
    return True


def _no_product(kernel: Json) -> bool:
    return kernel.get("kind") != "matrix product"


@question(
    "Which kernel takes most of a forward pass, and how often is it called?",
    command("forward"),
    "Nearly all FLOPs are those of the linear layers, whose products share one kernel or a few.",
)
def top_of_forward(sources: Sources) -> Answer:
    return _top_kernels(sources, "forward", _any_kernel)


@question(
    "And of a backward pass?",
    command("backward"),
    "Products again, with one operand or the other transposed, which a GPU's library may give another kernel.",
)
def top_of_backward(sources: Sources) -> Answer:
    return _top_kernels(sources, "backward", _any_kernel)


@question(
    "Does the same kernel take most in the forward pass and in the whole step?",
    command("forward", "backward", "full_step"),
    "On a CPU every product is one operator; on a GPU the layout of the operands chooses the kernel.",
)
def same_kernel(sources: Sources) -> Answer:
    found = first_traced(sources, "forward", "backward", "full_step")
    tops = {one.cell.phase: next(rows_in(one.cell.info, "kernels"), {}) for one in found}
    names = {str(kernel.get("name")) for kernel in tops.values()}
    here = [Figure((phase,), "here", str(kernel.get("name"))[:NAME_CHARACTERS]) for phase, kernel in tops.items()]
    said = "" if len(tops) < 2 else "Here it is the same." if len(names) == 1 else "Here they differ."
    rows = [row for row in sources.published("kernels.csv") if published.is_write_up(row) and "gemm" in row["kernel"]]
    others = [Figure((row["scope"],), published.column(row), row["kernel"][:NAME_CHARACTERS]) for row in rows]
    return Answer(("Pass",), here, others, files_with(found, KERNELS), said)


@question(
    "Which kernels besides matrix products take time in a forward pass?",
    command("forward"),
    "Norms, rotations, masks and activations read and write whole tensors with few FLOPs.",
)
def besides_products(sources: Sources) -> Answer:
    return _top_kernels(sources, "forward", _no_product)


@question(
    "How is a pass divided among kinds of kernels?",
    command("forward", "backward", "full_step"),
    "Written out op by op, one formula is many elementwise kernels; fusing removes their traffic and not the products.",
)
def kinds(sources: Sources) -> Answer:
    found = first_traced(sources, "forward", "backward", "full_step")
    here = [
        Figure(
            (one.cell.phase, str(kind.get("kind"))),
            f"here, {name_of(one.cell)}",
            percent(finite(kind.get("share_of_kernel_time"))),
        )
        for one in found
        for kind in rows_in(one.cell.info, "kinds")
    ]
    rows = published.matching(sources.published("kernels.csv"), kernel=tuple(PUBLISHED_KINDS))
    others = [
        Figure(
            (row["scope"], PUBLISHED_KINDS[row["kernel"]]),
            published.column(row, "", row["kernel"]),
            f"{row['pct_of_gpu_time']}%",
        )
        for row in rows
    ]
    return Answer(("Pass", "Kind"), here, others, files_with(found, KERNELS))


@question(
    "How long does the device wait between kernels?",
    command("forward"),
    "A gap is the host's time for a launch where kernels are shorter than it.",
)
def gaps(sources: Sources) -> Answer:
    found = first_traced(sources, "forward")
    here = []
    for one in found:
        for field, name in (("idle_gaps", GAPS[0]), ("api_gaps", GAPS[1])):
            spread = inside(one.cell.info, field)
            for what in ("median", "p95", "max"):
                seconds = finite(spread.get(f"{what}_seconds"))
                if seconds is not None:
                    here.append(
                        Figure((name,), f"here, {name_of(one.cell)}: {what} (us)", significant(seconds * 1e6, 3))
                    )
    rows = published.matching(sources.published("kernels.csv"), kernel=GAPS)
    others = [Figure((row["kernel"],), published.column(row, "us"), row["avg_us"]) for row in rows]
    return Answer(("Gap",), here, others, files_with(found, KERNELS))


@question(
    "What share are copies between memories?",
    command("forward", "full_step"),
    "Weights and activations stay where they are; only a batch is copied, and nothing on a CPU.",
)
def copies(sources: Sources) -> Answer:
    found = first_traced(sources, "forward", "full_step")
    here = [
        Figure(
            (one.cell.phase,),
            f"here, {name_of(one.cell)}",
            percent(
                sum(finite(row.get("share_of_wall")) or 0.0 for row in rows_in(one.cell.info, "memory_operations"))
            ),
        )
        for one in found
    ]
    rows = published.matching(sources.published("kernels.csv"), kernel=MEMORY_OPERATIONS)
    others = [
        Figure((row["scope"].replace("full pass", "full_step"),), published.column(row), f"{row['pct_of_gpu_time']}%")
        for row in rows
    ]
    return Answer(("Pass",), here, others, files_with(found, KERNELS))


QUESTIONS = (
    profiler_and_clock,
    top_of_forward,
    top_of_backward,
    same_kernel,
    besides_products,
    kinds,
    gaps,
    copies,
)
