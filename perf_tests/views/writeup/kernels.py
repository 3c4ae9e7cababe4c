"""What kernel passes answer: the top kernel, products and everything else, the softmax, the profiler and the clock."""

from statistics import median

from perf_tests.records.record import Json
from perf_tests.views.tables.cells import Cell, finite, inside, name_of, rows_in
from perf_tests.views.writeup.sources import Answer, Source, Sources, question

TOLD_KINDS = 4
NAME_CHARACTERS = 60
COMMAND = "pytest perf_tests --kernels --phase forward,backward,full_step"


@question("Which kernel takes most, and is it the same in the forward and the backward pass?", COMMAND)
def top_kernel(sources: Sources) -> Answer | None:
    found = sources.passed("kernels")
    tops: dict[str, tuple[Cell, Json]] = {}
    for cell in found.models:
        kernel = next(rows_in(cell.info, "kernels"), None)
        if kernel is not None and cell.label("precision") == "fp32":
            tops.setdefault(cell.phase, (cell, kernel))
    if not {"forward", "backward"} <= tops.keys():
        return None
    said = []
    for cell, kernel in tops.values():
        calls, share = finite(kernel.get("calls")) or 0.0, finite(kernel.get("share")) or 0.0
        name = str(kernel.get("name"))[:NAME_CHARACTERS]
        said.append(f"in {name_of(cell)} `{name}`, {calls:g} calls a round, {share:.0%} of the kernel time")
    same = tops["forward"][1].get("name") == tops["backward"][1].get("name")
    return found.says(f"{'Yes, it is the same' if same else 'No, they differ'}: {'; '.join(said)}.")


@question("What takes time beside matrix products?", COMMAND)
def beside_products(sources: Sources) -> Answer | None:
    found = sources.passed("kernels")
    cell = _first(found, "forward")
    if cell is None:
        return None
    kinds = sorted(rows_in(cell.info, "kinds"), key=lambda row: -(finite(row.get("share_of_kernel_time")) or 0.0))
    said = [
        f"{row.get('kind')} {finite(row.get('share_of_kernel_time')) or 0.0:.1%}"
        for row in kinds
        if row.get("kind") != "matrix product"
    ]
    return found.says(f"Of the kernel time of {name_of(cell)}: {', '.join(said[:TOLD_KINDS])}.")


@question("What share do matrix products take in a training step, and in a forward pass?", COMMAND)
def products_in_a_step(sources: Sources) -> Answer | None:
    """Shares here, and in how many published profiles the share falls."""
    falls = [forward > step for forward, step in _published_shares(sources)]
    others = f"The share falls in {sum(falls)} of {len(falls)} published profiles that have both."
    found = sources.passed("kernels")
    forward, step = (_first(found, phase) for phase in ("forward", "full_step"))
    shares = _share(forward), _share(step)
    if forward is None or shares[0] is None or shares[1] is None:
        return Answer(f"{others} The optimizer has no products.", "published/gemm_share.csv") if falls else None
    return Answer(
        f"{shares[0]:.0%} of the kernel time of {name_of(forward)} and {shares[1]:.0%} of its full step, which has an "
        f"optimizer besides. {others}",
        f"{found.name} ({found.machine}), published/gemm_share.csv",
    )


def _published_shares(sources: Sources) -> list[tuple[float, float]]:
    shares: dict[tuple[str, ...], dict[str, float]] = {}
    for row in sources.published("gemm_share.csv"):
        try:
            share = float(row["gemm_pct"])
        except ValueError:
            continue
        key = (row["source"], row["gpu"], row["size"], row["context"], row["precision"])
        shares.setdefault(key, {})[row["scope"]] = share
    return [(of["forward"], of["full_step"]) for of in shares.values() if {"forward", "full_step"} <= of.keys()]


@question("How does the softmax compare with the products of attention?", COMMAND)
def softmax_against_products(sources: Sources) -> Answer | None:
    found = sources.passed("kernels")
    said = []
    for cell in found.models:
        values = inside(cell.info, "attention", "forward")
        time, flops = (finite(values.get(f"softmax_over_products_{what}")) for what in ("time", "flops"))
        if time is not None and flops and cell.phase == "forward":
            said.append(f"{time:.2f} of the products' time with {flops:.1%} of their FLOPs ({name_of(cell)})")
    return found.says(
        f"The softmax of one attention layer takes {', '.join(said)}. It reads and writes every score several times "
        "with few FLOPs, so it is memory-bound.",
        said,
    )


@question("Does a profiler agree with the clock?", COMMAND)
def profiler_and_clock(sources: Sources) -> Answer | None:
    found = sources.passed("kernels")
    ratios = [
        traced / plain
        for cell in found.models
        if (traced := finite(cell.info.get("wall_seconds"))) and (plain := finite(cell.info.get("plain_wall_seconds")))
    ]
    if not ratios:
        return None
    return found.says(
        f"A round under the profiler takes {median(ratios):.2f} x the same round by the clock without it (median of "
        f"{len(ratios)} cases; {min(ratios):.2f} to {max(ratios):.2f} x in all). The profiler adds its overhead to "
        "each launch, so take shares from it and times from the clock.",
    )


def _first(found: Source, phase: str) -> Cell | None:
    return next((cell for cell in found.models if (cell.phase, cell.label("precision")) == (phase, "fp32")), None)


def _share(cell: Cell | None) -> float | None:
    return None if cell is None else finite(inside(cell.info, "matrix_products").get("share_of_kernel_time"))
