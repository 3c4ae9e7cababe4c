"""Which part of the model the time is in: regions, kinds of kernels in each, and the optimizer."""

from perf_tests.records.record import Json
from perf_tests.views.tables.cells import finite, inside, rows_in
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import Answer, Figure, files_of, question
from perf_tests.views.writeup.profile import KERNELS, command, first_traced, name_of, percent
from perf_tests.views.writeup.sources import Sources

TITLE = "Regions"
REGION = ("Direction", "Region")


def _direction(row: Json) -> str:
    if str(row.get("region")).startswith("optimizer"):
        return "update"
    return "backward" if row.get("is_backward") is True else "forward"


@question(
    "Which part of the model takes the time of a step?",
    command("full_step"),
    "The feed-forward layers have most of the weights, so most of the FLOPs in both directions.",
)
def regions(sources: Sources) -> Answer:
    found = first_traced(sources, "full_step")
    here = [
        Figure(
            (_direction(row), str(row.get("region"))),
            f"here, {name_of(one.cell)}: of kernel time",
            percent(finite(row.get("share_of_kernel_time"))),
        )
        for one in found
        for row in rows_in(one.cell.info, "regions")
        if " / " not in str(row.get("region"))
    ]
    return Answer(REGION, here, files=files_of(one.file for one in found))


@question(
    "Which kinds of kernels are in each region?",
    command("full_step"),
    "The backward pass of SwiGLU has two elementwise products and a sigmoid's derivative on its widest tensors.",
)
def kinds_by_region(sources: Sources) -> Answer:
    """Shares of the region's own kernel time."""
    found = first_traced(sources, "full_step")
    here = []
    for one in found:
        for row in rows_in(one.cell.info, "regions"):
            whole = finite(row.get("seconds"))
            for kind, seconds in inside(row, "seconds_by_kind").items():
                if whole and finite(seconds) is not None:
                    share = percent((finite(seconds) or 0.0) / whole)
                    here.append(
                        Figure((_direction(row), str(row.get("region"))), f"here, {name_of(one.cell)}: {kind}", share)
                    )
    rows = published.matching(sources.published("kernels.csv"), scope="backward", kernel="elementwise_kernel")
    others = [
        Figure(("backward", "whole pass"), published.column(row, "", "elementwise"), f"{row['pct_of_gpu_time']}%")
        for row in rows
    ]
    return Answer(REGION, here, others, files_of([*(one.file for one in found if here), KERNELS]))


@question(
    "What does the optimizer add to a step?",
    command("full_step"),
    "Clipping reads every gradient once more, and the update reads and writes four tensors of the weights' size.",
)
def optimizer_regions(sources: Sources) -> Answer:
    found = first_traced(sources, "full_step")
    here = []
    for one in found:
        for row in rows_in(one.cell.info, "regions"):
            name = str(row.get("region"))
            if name.startswith("optimizer"):
                where = (name,)
                here.append(
                    Figure(where, f"here, {name_of(one.cell)}: launches", f"{finite(row.get('launches')) or 0:g}")
                )
                here.append(
                    Figure(
                        where,
                        f"here, {name_of(one.cell)}: of kernel time",
                        percent(finite(row.get("share_of_kernel_time"))),
                    )
                )
    return Answer(("Region",), here, files=files_of(one.file for one in found))


QUESTIONS = (regions, kinds_by_region, optimizer_regions)
