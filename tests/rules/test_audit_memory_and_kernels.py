"""The audit of peaks of memory and of kernel tables."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS
from perf_tests.audit.tables import audit_file
from perf_tests.hardware.datasheets import gpu_named
from tests.support.audited_tables import audited, rules
from tests.support.foreign_tables import Row, written


def memory_row(**changes: str) -> Row:
    row = {
        "source": "somebody/repository:memory.md", "gpu": "A100-80GB", "object": "model(2025)", "size": "2.7B",
        "d_model": "2560", "n_layers": "32", "batch": "4", "context": "512", "precision": "fp32", "compiled": "no",
        "mode": "full_step_peak", "value": "65.5", "unit": "GiB",
    }  # fmt: skip
    return {**row, **changes}


ATTENTION_MEMORY = {"object": "attention", "d_model": "64", "batch": "8", "context": "8192", "mode": "before_backward"}


def kernel_row(name: str, calls: int, average: float, percent: float) -> Row:
    return {
        "source": "somebody/repository:profile.md", "gpu": "A100-80GB", "size": "small", "context": "128",
        "scope": "forward", "kernel": name, "calls": str(calls), "total_ms": f"{calls * average / 1e3:.6g}",
        "avg_us": str(average), "std_us": "", "pct_of_gpu_time": str(percent),
    }  # fmt: skip


PROFILE = [
    kernel_row("ampere_sgemm", 85, 100.0, 85.0),
    kernel_row("elementwise", 100, 10.0, 10.0),
    kernel_row("reduce", 50, 10.0, 5.0),
]


def beside_profile(row: Row, **changes: str) -> list[Row]:
    return [*PROFILE, {**row, **changes}]


OVER_100_PERCENT = (INCONSISTENT, "sum of shares")


MISTAKES: dict[str, tuple[list[Row], set[tuple[str, str]]]] = {
    "more than the card holds": ([memory_row(value="90")], {(IMPOSSIBLE, "card memory")}),
    "a negative amount": ([memory_row(value="-1")], {(IMPOSSIBLE, "amount")}),
    "less than the weights": ([memory_row(value="9", mode="forward_peak")], {(IMPOSSIBLE, "weights")}),
    "no optimizer state": ([memory_row(value="26", unit="GB")], {(SUSPICIOUS, "optimizer state")}),
    "too little saved": ([memory_row(value="51.4")], {(SUSPICIOUS, "saved tensors")}),
    "more than two squares": ([memory_row(**ATTENTION_MEMORY, value="3.06")], {(SUSPICIOUS, "saved squares")}),
    "no square": ([memory_row(**ATTENTION_MEMORY, value="0.06")], {(SUSPICIOUS, "saved squares")}),
    "a peak that shrinks with the context": (
        [memory_row(), memory_row(context="1024", value="60")],
        {(INCONSISTENT, "shrinking peak"), (SUSPICIOUS, "saved tensors")},
    ),
    "average": (beside_profile(PROFILE[1], avg_us="64.9"), {(INCONSISTENT, "calls x average"), OVER_100_PERCENT}),
    "share": (beside_profile(PROFILE[1], pct_of_gpu_time="23.1"), {(INCONSISTENT, "share"), OVER_100_PERCENT}),
    "a copied cell": (
        beside_profile(kernel_row("copy", 20, 10.0, 10.0)),
        {(INCONSISTENT, "copied cell"), (INCONSISTENT, "share"), OVER_100_PERCENT},
    ),
    "shares of more than all": (beside_profile(kernel_row("twice", 85, 100.0, 85.0)), {OVER_100_PERCENT}),
    "a negative share": (beside_profile(PROFILE[1], pct_of_gpu_time="-10"), {(IMPOSSIBLE, "amount")}),
    "lost products": ([kernel_row("ampere_sgemm", 60, 141.7, 85.0), *PROFILE[1:]], {(SUSPICIOUS, "missing products")}),
    "products faster than the card": ([kernel_row("sgemm", 85, 50.0, 85.0)], {(SUSPICIOUS, "matrix products")}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_memory_or_a_profile_is_found(mistake: str, tmp_path: Path) -> None:
    rows, found = MISTAKES[mistake]
    assert rules(audited(tmp_path, rows)) == found


HONEST = [memory_row(context="128", value="51.4")], [memory_row(**ATTENTION_MEMORY, value="4.06")]


@pytest.mark.parametrize("rows", [[memory_row()], *HONEST, PROFILE], ids=["step", "context", "attention", "profile"])
def test_honest_memory_and_an_honest_profile_are_accused_of_nothing(rows: list[Row], tmp_path: Path) -> None:
    assert audited(tmp_path, rows).findings == []


CHECKPOINTED = [memory_row(checkpoint="none"), memory_row(checkpoint="block", context="1024", value="51.4")]
RECOMPUTED = [memory_row(**ATTENTION_MEMORY, checkpoint="attention", value="0.06")]
COMPILED = [memory_row(checkpoint="No", compiled="yes", value="51.4")]
OF_SGD = [memory_row(optimizer="SGD", value="26", unit="GB"), memory_row(optimizer="adamw", value="65.5")]


OTHER_SET_UPS = {
    "checkpoint": CHECKPOINTED, "attention computed again": RECOMPUTED, "compiled": COMPILED, "optimizer": OF_SGD,
}  # fmt: skip


@pytest.mark.parametrize("rows", OTHER_SET_UPS.values(), ids=OTHER_SET_UPS)
def test_peaks_of_other_set_ups_are_not_held_to_a_step_that_keeps_everything(rows: list[Row], tmp_path: Path) -> None:
    assert audited(tmp_path, [{"checkpoint": "", "optimizer": "", **row} for row in rows]).findings == []


@pytest.mark.parametrize("phase", ["forward", "Full step", "full_step"])
def test_a_peak_is_known_by_its_heading_too(phase: str, tmp_path: Path) -> None:
    row = memory_row(phase=phase, peak_gb="2")
    for name in ("mode", "value", "unit"):
        del row[name]
    assert (IMPOSSIBLE, "weights") in rules(audited(tmp_path, [row]))


def test_a_list_of_the_largest_kernels_is_not_held_to_all_products(tmp_path: Path) -> None:
    """The 25 others fit into the 15 % of the time that are not listed."""
    assert audited(tmp_path, [{**PROFILE[0], "calls": "60", "total_ms": "6.0"}]).findings == []


@pytest.mark.parametrize("row", [memory_row(gpu="", value="90"), {**kernel_row("sgemm", 85, 50.0, 85.0), "gpu": ""}])
def test_a_gpu_given_by_hand_counts_for_memory_and_kernels_too(row: Row, tmp_path: Path) -> None:
    path = written(tmp_path, [row])
    assert audit_file(path).findings == []
    assert audit_file(path, gpu_named("A100-80GB")).findings != []
