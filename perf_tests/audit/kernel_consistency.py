"""Properties of every kernel table: one sentence for each that is violated."""

from collections.abc import Sequence
from math import isclose

from perf_tests.identity import OF_A_PHASE
from perf_tests.records.record import Json

TOLERANCE = 1e-6
"""Of two computations of one number: rounding alone."""


def inconsistencies(values: Json) -> list[str]:
    found = []
    counts = values.get("launches_of_rounds") or []
    if len(set(counts)) > 1:
        found.append(f"two rounds of the same work launch {' and '.join(map(str, counts))} kernels")
    products = values["matrix_products"]
    if products.get("expected_count") is not None and products["count"] != products["expected_count"]:
        found.append(f"{products['count']} matrix products ran, and the model has {products['expected_count']}")
    for kernel in values["kernels"]:
        if not isclose(kernel["calls"] * kernel["mean_seconds"], kernel["total_seconds"], rel_tol=TOLERANCE):
            calls, mean, total = kernel["calls"], kernel["mean_seconds"], kernel["total_seconds"]
            found.append(f"{kernel['name']}: {calls} calls x mean is {calls * mean:.4g} s, its total {total:.4g} s")
    of_kernels = sum(kernel["share"] for kernel in values["kernels"]) + values["other_kernels"]["share"]
    of_kinds = sum(row["share_of_kernel_time"] for row in values["kinds"])
    for what, share in (("kernels", of_kernels), ("kinds", of_kinds)):
        if not isclose(share, 1.0, rel_tol=TOLERANCE):
            found.append(f"the shares of all {what} add up to {share:.4f}")
    if values["busy_share"] is not None and values["busy_share"] > 1 + TOLERANCE:
        found.append(f"the device is busy for {values['busy_share']:.1%} of the time")
    counts = [row["count"] for row in values["memory_operations"] if row["kind"] == "host-to-device" and row["count"]]
    return found + [f"{n:g} copies from the host to the device ran inside a round, and none should" for n in counts]


def product_shares_that_do_not_fall(passes: Sequence[Json]) -> list[str]:
    """Matrix products take a smaller share of a full step, which includes the optimizer, than of a forward pass."""
    shares: dict[tuple[object, ...], dict[str, float]] = {}
    for row in passes:
        identity = row["identity"]
        cell = tuple(value for name, value in identity.items() if name not in OF_A_PHASE)
        share = row["values"]["matrix_products"]["share_of_kernel_time"]
        shares.setdefault(cell, {})[identity["phase"]] = share
        if identity["phase"] == "full_step":
            shares[cell]["id"] = row["id"]
    return [
        f"{of_phase['id']}: matrix products take {of_phase['full_step']:.1%} of a full step and "
        f"{of_phase['forward']:.1%} of a forward pass; the share should fall"
        for of_phase in shares.values()
        if {"forward", "full_step"} <= of_phase.keys() and of_phase["full_step"] >= of_phase["forward"]
    ]
