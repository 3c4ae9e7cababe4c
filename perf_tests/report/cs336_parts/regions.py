"""Which part of the model the time is in: regions, kinds of kernels in each, and the optimizer."""

from collections.abc import Iterator

from perf_tests.records.columns import Cell, inside, rows_in
from perf_tests.records.format import finite
from perf_tests.records.record import Json
from perf_tests.report.cs336_parts.answer import Question
from perf_tests.report.cs336_parts.profile import command, first_traced, share_of
from perf_tests.report.cs336_parts.published import KERNELS, of_table
from perf_tests.report.cs336_parts.recorded import count, of_items, share

TITLE = "Regions"
REGION = ("Direction", "Region")
DIRECTIONS = FORWARD, BACKWARD, UPDATE = ("forward", "backward", "update")
WHOLE = "whole pass"
STEP = first_traced("full_step")


def _regions(cell: Cell) -> list[Json]:
    """In the order of a step."""
    found = [{**row, "direction": _direction(row)} for row in rows_in(cell.info, "regions")]
    return sorted(found, key=lambda row: DIRECTIONS.index(row["direction"]))


def _direction(row: Json) -> str:
    if str(row.get("region")).startswith("optimizer"):
        return UPDATE
    return BACKWARD if row.get("is_backward") is True else FORWARD


def _outer(cell: Cell) -> Iterator[Json]:
    return (row for row in _regions(cell) if " / " not in str(row.get("region")))


def _kinds(cell: Cell) -> Iterator[Json]:
    """Each region's kinds, with the share of its own kernel time."""
    for row in _regions(cell):
        whole = finite(row.get("seconds"))
        for kind, seconds in inside(row, "seconds_by_kind").items():
            known = finite(seconds)
            if whole and known is not None:
                yield {**row, "kind": kind, "share": known / whole}


def _whole_pass(cell: Cell) -> Iterator[Json]:
    for row in rows_in(cell.info, "kinds"):
        yield {**row, "direction": cell.phase, "region": WHOLE, "share": row.get("share_of_kernel_time")}


def _update(cell: Cell) -> Iterator[Json]:
    return (row for row in _regions(cell) if row["direction"] == UPDATE)


QUESTIONS = (
    Question(
        "Which part of the model takes the time of a step?",
        command("full_step"),
        "The feed-forward layers have most of the weights, so most of the FLOPs in both directions.",
        REGION, [of_items(STEP, _outer, {"here, {case}: of kernel time": share("share_of_kernel_time")})],
    ),
    Question(
        "Which kinds of kernels are in each region?",
        command("backward", "full_step"),
        "The backward pass of SwiGLU has two elementwise products and a sigmoid's derivative on its widest tensors.",
        REGION,
        [
            of_items(cases, items, {"here, {case}: {item[kind]}": share("share")})
            for cases, items in ((STEP, _kinds), (first_traced(BACKWARD), _whole_pass))
        ],
        [of_table(
            KERNELS, share_of, "", "elementwise", row=(BACKWARD, WHOLE), scope=BACKWARD,
            kernel="elementwise_kernel",
        )],
    ),
    Question(
        "What does the optimizer add to a step?",
        command("full_step"),
        "Clipping reads every gradient once more, and the update reads four tensors of the weights' size and writes "
        "three.",
        ("Region",),
        [of_items(STEP, _update, {
            "here, {case}: launches": count("launches"), "here, {case}: of kernel time": share("share_of_kernel_time"),
        })],
    ),
)  # fmt: skip
