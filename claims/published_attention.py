"""Published times of eager attention alone beside predictions of them, from `published/attention_timing.csv`.

Under one heading the sources time different things: with or without a mask, the backward pass alone or behind a forward
pass. What each does is read from its code, in `published/attention_conditions.csv`. Sources that leave out kernels of
the suite's own attention are compared without them; those with other kernels are left out.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from claims.published_times import rounding_seconds, work_of
from perf_tests.cases.attention import AttentionCase
from perf_tests.hardware.datasheets import gpu_named
from perf_tests.hardware.limits import Ceilings, KernelGroup, Part, PredictedTime, predicted_time
from perf_tests.predict.step import kind_of_launches
from perf_tests.records.published import published_rows

TIMES, CONDITIONS = "attention_timing.csv", "attention_conditions.csv"

LONG = 4096
"""Tokens from which the device bounds attention alone on every card."""

PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "tf32?": "tf32"}

OF_THE_MASK = ("aten.arange", "aten.ge", "aten.where", "aten.scalar_tensor")
OF_KEY_AND_VALUE = 2
"""Of the four products backward: the gradients of key and value."""


@dataclass(frozen=True)
class PublishedAttention:
    """One published time, and what its source's code does."""

    author: str
    gpu: str
    case: AttentionCase
    seconds: float
    has_mask: bool
    backward: str
    """`alone`, `with forward` or `with forward of query`."""
    rounding_seconds: float = 0.0

    @property
    def is_long(self) -> bool:
        return self.case.sequence_length >= LONG


def published_attention() -> tuple[list[PublishedAttention], Counter[str]]:
    """Every comparable cell, and how many others there are for what reason."""
    rows = [row for row in published_rows(TIMES) if (row["status"], row["compiled"]) == ("ok", "no")]
    conditions = published_rows(CONDITIONS)
    cells, left_out, rounding = [], Counter[str](), rounding_seconds(rows)
    for row in rows:
        known = next(one for one in conditions if one["source"] in row["source"])
        if known["is_comparable"] == "no":
            left_out[f"{known['source']}: {known['stated_in']}"] += 1
        elif float(row["mean_ms"]):
            cells.append(replace(_cell(row, known), rounding_seconds=rounding[row["source"]]))
    return cells, left_out


def _cell(row: dict[str, str], known: dict[str, str]) -> PublishedAttention:
    case = AttentionCase(
        f"attention_{row['phase']}", int(row["d_model"]), int(row["seq_len"]), int(row["batch"]),
        PRECISIONS[row["precision_that_ran"]], "naive", "cuda",
    )  # fmt: skip
    seconds, has_mask = float(row["mean_ms"]) / 1e3, known["mask"] == "yes"
    author = known["source"].partition("/")[0]
    return PublishedAttention(author, gpu_named(row["gpu"]).name, case, seconds, has_mask, known["backward"])


def predicted_attention(cell: PublishedAttention, ceilings: Ceilings) -> PredictedTime:
    """Of what the source timed."""
    cases = [cell.case]
    if cell.case.row.is_backward and cell.backward != "alone":
        cases = [replace(cell.case, phase="attention_forward"), cell.case]
    return predicted_time([_part(case, cell) for case in cases], ceilings)


def _part(case: AttentionCase, cell: PublishedAttention) -> Part:
    kernels = list(work_of(case).kernels)
    if not cell.has_mask:
        kernels = [kernel for kernel in kernels if kernel.name not in OF_THE_MASK]
    if case.row.is_backward and cell.backward == "with forward of query":
        kernels = list(_without_key_and_value(kernels))
    return Part(sum(kernel.calls for kernel in kernels), kernels, kind_of_launches(case))


def _without_key_and_value(kernels: Iterable[KernelGroup]) -> Iterable[KernelGroup]:
    left = OF_KEY_AND_VALUE
    for kernel in kernels:
        dropped = min(left, kernel.calls) if kernel.flops else 0
        left -= dropped
        if kernel.calls > dropped:
            yield replace(kernel, calls=kernel.calls - dropped)
