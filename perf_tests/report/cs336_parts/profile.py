"""Where the time goes: kernels and their kinds, gaps, and the profiler against the clock."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from perf_tests.records.columns import Cell, inside, rows_in
from perf_tests.records.format import finite
from perf_tests.records.record import Json
from perf_tests.report.cs336_parts import published
from perf_tests.report.cs336_parts.answer import HERE, Figure, Figures, Labels, Question
from perf_tests.report.cs336_parts.published import E2E, KERNELS, is_warm, of_table, time_text
from perf_tests.report.cs336_parts.recorded import (
    Cases,
    count,
    in_digits,
    item,
    number,
    of_cases,
    of_items,
    percent,
    plain,
    share,
)
from perf_tests.report.cs336_parts.sources import Found, Sources
from perf_tests.report.cs336_parts.timing import PLACE

TITLE = "Profile"
TOP = 3
NAME_CHARACTERS = 60
PASSES = ("forward", "backward", "full_step")
WHOSE = ("Whose", "Case", "Kernel")
PUBLISHED_KINDS = {
    "elementwise + vectorized elementwise kernels": "elementwise",
    "reduce kernels (norm and softmax)": "reduction",
    "elementwise kernels with MulFunctor": "elementwise",
    "elementwise kernel DivFunctor": "elementwise",
}
"""What write-ups call kernels, and the kind here."""
MEMORY_OPERATIONS = "CUDA HW memory operations share of device time"
GAPS = {"idle_gaps": "gap between kernels", "api_gaps": "gap between CUDA API calls"}


def command(*phases: str, precision: str = "fp32") -> str:
    return f"pytest perf_tests/test_kernels.py --kernels --phase {','.join(phases)} --precision {precision}"


def traced(*phases: str, precision: Sequence[str] = ("fp32",)) -> Cases:
    """Smallest case first."""
    fits = plain(*phases, precision=precision)
    return lambda sources: sorted(sources.passed("kernels", fits), key=lambda one: _work(one.cell))


def first_traced(*phases: str) -> Cases:
    """Of each phase the smallest case."""

    def cases(sources: Sources) -> list[Found]:
        first: dict[str, Found] = {}
        for one in traced(*phases)(sources):
            first.setdefault(one.cell.phase, one)
        return [first[phase] for phase in phases if phase in first]

    return cases


def _work(cell: Cell) -> tuple[float, float]:
    return cell.number("d_model") or 0.0, cell.number("context_length") or 0.0


def _profiled_over_timed(cell: Cell) -> str:
    profiled, timed = cell.number("wall_seconds"), cell.number("plain_wall_seconds")
    return in_digits(profiled / timed, digits=3) if profiled and timed else ""


def _published_profiled(sources: Sources, labels: Labels) -> Iterator[Figure]:
    """Times under a profiler, which have one round, and those of the same model without."""
    rows = published.matching(sources.published(E2E), is_warm, phase="forward", precision="fp32")
    profiled = {(row["source"], row["gpu"], row["size"]) for row in rows if row["n_measured"] == "1"}
    for row in rows:
        if (row["source"], row["gpu"], row["size"]) in profiled:
            head = published.column(row, "ms", "profiled" if row["n_measured"] == "1" else "timed")
            yield Figure(published.place(row, labels), head, time_text(row), f"published/{E2E}")


def kernel_name(row: Mapping[str, object]) -> str:
    return str(row.get("kernel") or row.get("name"))[:NAME_CHARACTERS]


OfKernel = Callable[[Mapping[str, object]], bool]


def _is_any(_: Mapping[str, object]) -> bool:
    return True


def _is_no_product(row: Mapping[str, object]) -> bool:
    return row.get("kind") != "matrix product" and "gemm" not in kernel_name(row)


def is_product(row: published.Row) -> bool:
    return published.is_write_up(row) and not _is_no_product(row)


def _kernels(cell: Cell) -> Iterator[Json]:
    return ({**row, "kernel": kernel_name(row), "whose": HERE} for row in rows_in(cell.info, "kernels"))


def _top_kernels(phase: str, fits: OfKernel = _is_any) -> tuple[list[Figures], list[Figures]]:
    """The kernels with most of the time: ours, and theirs."""
    columns = {"calls": count("calls"), "mean (us)": item("mean_seconds", 1e6), "of kernel time": share("share")}
    ours = of_items(traced(phase), lambda cell: islice(filter(fits, _kernels(cell)), TOP), columns)

    def theirs(sources: Sources, _: Labels) -> Iterator[Figure]:
        for row in filter(fits, published.matching(sources.published(KERNELS), scope=phase)):
            if not row["kernel"].startswith(("ALL", "gap", "CUDA")):
                case = f"{published.label(row, 'size')} {row['context']}".strip()
                place = (published.column(row), case, kernel_name(row))
                for column, text in (
                    ("calls", row["calls"]),
                    ("mean (us)", row["avg_us"]),
                    ("of kernel time", share_of(row)),
                ):
                    yield Figure(place, column, text, f"published/{KERNELS}")

    return [ours], [theirs]


def _same(here: Sequence[Figure], _: Sequence[Figure]) -> str:
    names = {figure.text for figure in here}
    return "" if len(here) < 2 else "Here it is the same." if len(names) == 1 else "Here they differ."


def _gaps(cell: Cell) -> Iterator[Json]:
    return ({"gap": name, **inside(cell.info, field)} for field, name in GAPS.items())


def _copies(cell: Cell) -> str:
    return percent(sum(finite(row.get("share_of_wall")) or 0.0 for row in rows_in(cell.info, "memory_operations")))


def share_of(row: published.Row) -> str:
    return row["pct_of_gpu_time"] and f"{row['pct_of_gpu_time']}%"


def listed(name: str) -> Callable[[Cell], Iterable[Json]]:
    """The rows of a pass under that name."""
    return lambda cell: rows_in(cell.info, name)


QUESTIONS = (
    Question(
        "Does the profiler agree with the clock?",
        command(*PASSES),
        "A profiler adds its overhead to each launch, so shares come from it and times from the clock.",
        (*PLACE, "Phase"),
        [
            of_cases(traced(), {
                "here: profiled (ms)": number("wall_seconds", 1e3), "here: profiled / timed": _profiled_over_timed,
            })
        ],
        [_published_profiled],
    ),
    Question(
        "Which kernel takes most of a forward pass, and how often is it called?",
        command("forward"),
        "Nearly all FLOPs are those of the linear layers, whose products share one kernel or a few.",
        WHOSE, *_top_kernels("forward"),
    ),
    Question(
        "And of a backward pass?",
        command("backward"),
        "Products again, with one operand or the other transposed, which a GPU's library may give another kernel.",
        WHOSE, *_top_kernels("backward"),
    ),
    Question(
        "Does the same kernel take most in the forward pass and in the whole step?",
        command(*PASSES),
        "On a CPU every product is one operator; on a GPU the layout of the operands chooses the kernel.",
        ("Pass",),
        [of_cases(traced(*PASSES), {"here": lambda cell: next(map(kernel_name, _kernels(cell)), "")})],
        [of_table(KERNELS, kernel_name, fits=is_product)],
        _same,
    ),
    Question(
        "Which kernels besides matrix products take time in a forward pass?",
        command("forward"),
        "Norms, rotations, masks and activations read and write whole tensors with few FLOPs.",
        WHOSE, *_top_kernels("forward", _is_no_product),
    ),
    Question(
        "How is a pass divided among kinds of kernels?",
        command(*PASSES),
        "Written out op by op, one formula is many elementwise kernels; fusing removes their traffic and not the "
        "products.",
        ("Pass", "Kind"),
        [of_items(traced(*PASSES), listed("kinds"), {"here, {case}": share("share_of_kernel_time")})],
        [
            of_table(KERNELS, share_of, "", name, row=("Pass", kind), kernel=name)
            for name, kind in PUBLISHED_KINDS.items()
        ],
    ),
    Question(
        "How long does the device wait between kernels?",
        command("forward"),
        "A gap is the host's time for a launch where kernels are shorter than it.",
        ("Gap",),
        [
            of_items(traced("forward"), _gaps, {
                f"here, {{case}}: {what} (us)": item(f"{what}_seconds", 1e6, 3) for what in ("median", "p95", "max")
            })
        ],
        [of_table(KERNELS, "avg_us", "us", row=("kernel",), kernel=tuple(GAPS.values()))],
    ),
    Question(
        "What share are copies between memories?",
        command("forward", "full_step"),
        "A pass copies only its batch, and on a CPU nothing; a profiler's memory operations include fills and "
        "copies on the device.",
        ("Pass",),
        [of_cases(traced("forward", "full_step"), {"here, {case}": _copies})],
        [of_table(KERNELS, share_of, kernel=MEMORY_OPERATIONS)],
    ),
)  # fmt: skip
