"""Small records as the suite writes them, with invented figures."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from perf_tests_suite.perf_tests.phases import identity_in
from perf_tests_suite.perf_tests.records.record import Json, build_record

FORWARD = "perf_tests/test_forward.py::test_forward[tiny-ctx8-fp32-naive]"
BACKWARD = "perf_tests/test_backward.py::test_backward[tiny-ctx8-fp32-naive]"
FULL_STEP = "perf_tests/test_full_step.py::test_full_step[tiny-ctx8-fp32-naive]"

TEN_ROUNDS = (1.00, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09)


def identity(**changes: Any) -> Json:
    known = {
        "phase": "forward", "model": "ours", "size": "tiny", "d_model": 128, "d_ff": 512, "num_layers": 2,
        "num_heads": 4, "vocab_size": 10_000, "context_length": 8, "batch_size": 4, "precision": "fp32",
        "attention": "naive", "execution": "eager", "checkpoint": "none", "optimizer": None, "zero_grad_policy": None,
        "device": "cpu",
    }  # fmt: skip
    return identity_in({**known, **changes})


def attention_identity(**changes: Any) -> Json:
    known = {
        "phase": "attention_forward", "head_dim": 16, "sequence_length": 256, "batch_size": 8, "precision": "fp32",
        "attention": "naive", "device": "cpu",
    }  # fmt: skip
    return identity_in({**known, **changes})


def timed(case_id: str = FORWARD, seconds: Sequence[float] = TEN_ROUNDS, **changes: Any) -> Json:
    """The row of a case that was measured; `changes` go to its identity, other names to its `extra_info`."""
    middle = median(seconds)
    extra = {name: value for name, value in changes.items() if name not in identity()}
    info = {"tokens_per_second": 32 / middle, "tflops_per_second": 0.02, "share_of_matmul_ceiling": 0.25, "flags": []}
    spread = {"min": min(seconds), "max": max(seconds), "mean": mean(seconds), "stddev": 0.03}
    return {
        "group": "forward",
        "name": case_id.rpartition("::")[2],
        "fullname": case_id,
        "params": {"model_size": "tiny"},
        "extra_info": {**identity(**changes), **info, **extra},
        "stats": {**spread, "median": middle, "iqr": 0.05, "rounds": len(seconds), "data": list(seconds)},
    }


def timed_collective(message_bytes: int = 40_000, seconds: Sequence[float] = TEN_ROUNDS, **changes: Any) -> Json:
    """The row of an all-gather on two ranks; `changes` go to its `extra_info`."""
    known: Json = {"collective": "all_gather", "world": 2, "exchanged_bytes": message_bytes, **changes}
    rate = known["exchanged_bytes"] / median(seconds)
    axes = f"{known['collective']}-{message_bytes}B-world{known['world']}"
    labels = {
        "phase": "collective", "message_bytes": message_bytes, "nodes": 1, "backend": "gloo", "dtype": "float32",
        "device": "cpu", **known,
    }  # fmt: skip
    info = {**identity_in(labels), **known, "algorithm_bytes_per_second": rate, "bus_bytes_per_second": rate / 2}
    row = timed(f"perf_tests/test_collectives.py::test_collective[{axes}]", seconds)
    return {**row, "group": "collective", "extra_info": {**info, "flags": []}}


def traced(case_id: str = FORWARD, **changes: Any) -> Json:
    """A kernel pass over a case: two kernels, and one attention layer; `changes` go to its identity."""

    def kernel(name: str, kind: str, share: float) -> Json:
        return {"name": name, "kind": kind, "calls": 10, "total_seconds": share * 0.01, "mean_seconds": share * 0.001,
                "stddev_seconds": share * 0.0001, "share": share, "shapes": []}  # fmt: skip

    def direction(ratio: float) -> Json:
        part = {"part": "scores", "launches": 2.0, "device_seconds": 2e-6, "host_seconds": 8e-6, "flops": 1e6,
                "bytes": 5e5, "bound": "launch"}  # fmt: skip
        softmax = {**part, "part": "softmax", "device_seconds": 4e-6}
        lanes = [
            {"side": side, "part": name, "start_seconds": start * 1e-6, "seconds": 2e-6}
            for side, late in (("host", 0), ("device", 3))
            for name, start in (("scores", late), ("softmax", late + 4))
        ]
        over_products = {"softmax_over_products_time": ratio, "softmax_over_products_flops": 0.02}
        return {"parts": [part, softmax], "lanes": lanes, **over_products}

    values = {
        "launches": 60, "wall_seconds": 0.015, "plain_wall_seconds": 0.0125, "kernel_seconds": 0.01,
        "busy_share": 0.8, "matrix_products": {"share_of_kernel_time": 0.75, "share_of_wall": 0.5},
        "kinds": [{"kind": "matrix product", "share_of_kernel_time": 0.75},
                  {"kind": "elementwise", "share_of_kernel_time": 0.25}],
        "kernels": [kernel("gemm<float>", "matrix product", 0.75), kernel("add", "elementwise", 0.25)],
        "attention": {"forward": direction(0.5), "backward": direction(0.4)},
    }  # fmt: skip
    return passed(case_id, "kernels", values, **changes)


CATEGORIES = ("parameters", "gradients", "optimizer state", "activations", "temporaries")


def remembered(case_id: str = FORWARD, peak_bytes: int = 2**30, moments: int = 12, **changes: Any) -> Json:
    """A memory pass over a case; `changes` go to its identity."""
    sizes = {name: peak_bytes * share // 10 for name, share in zip(CATEGORIES, (3, 1, 2, 3, 1), strict=True)}
    rising = {name: [size * place // (moments - 1) for place in range(moments)] for name, size in sizes.items()}
    values = {
        "peak_allocated_bytes": peak_bytes, "peak_reserved_bytes": None, "predicted_peak_bytes": peak_bytes + 2**20,
        "prediction_reason": None, "prediction_error": -0.001,
        "marks": [{"name": "after init", "allocated_bytes": peak_bytes // 4, "reserved_bytes": None},
                  {"name": "before backward", "allocated_bytes": peak_bytes // 2, "reserved_bytes": None}],
        "parts": [{"phase": "forward", "peak_allocated_bytes": peak_bytes // 2, "peak_reserved_bytes": None,
                   "predicted_peak_bytes": peak_bytes // 2},
                  {"phase": "backward", "peak_allocated_bytes": peak_bytes, "peak_reserved_bytes": None,
                   "predicted_peak_bytes": peak_bytes + 2**20}],
        "peak_by_category_bytes": sizes,
        "saved_bytes_by_part": [{"block": f"block {number}", "part": part, "saved_bytes": size * 2**20}
                                for number in (0, 1) for part, size in (("softmax", 3), ("norm", 1))],
        "residual_tensor_bytes": 2**20,
        "largest_allocations": [{"bytes": 2**22, "line": "model/attention.py:48", "category": "activations"}],
        "timeline": {"category_bytes": rising, "parts": [{"name": "forward", "first": 0, "last": moments // 2 - 1},
                                                         {"name": "backward", "first": moments // 2,
                                                          "last": moments - 1}]},
        "fragmentation": None, "resident_set_peak_bytes": None, "snapshot": None, "flags": [],
    }  # fmt: skip
    return passed(case_id, "memory", values, **changes)


def warmed(case_id: str = FORWARD, seconds: float = 0.01, **changes: Any) -> Json:
    """A warm-up study of a case, whose first round takes five times as long as the others."""

    def series(rounds: int, leaves_out: bool = False) -> Json:
        everything = [5 * seconds, *[seconds * (1 + 0.01 * (place % 3)) for place in range(rounds + 9)]]
        measured = everything[rounds:]
        return {
            "warmup_rounds": rounds, "leaves_out_timed_phase": leaves_out, "warmup_seconds": everything[:rounds],
            "seconds": measured, "mean_seconds": mean(measured), "std_seconds": seconds / 50,
            "first_round_parts": {"module_loading_seconds": 3 * seconds, "allocator_growth_seconds": seconds},
            "steady_from_round": 2 if rounds == 0 else 1, "outliers": [1] if rounds == 0 else [],
        }  # fmt: skip

    values = {
        "series": [*map(series, (0, 1, 2, 5, 10)), series(5, True)], "recommended_warmup_rounds": 1,
        "recommendation": "1 warm-up round is enough here.", "flags": [],
    }  # fmt: skip
    return passed(case_id, "warmup", values, **changes)


def timed_attention(seconds: Sequence[float] = TEN_ROUNDS, **changes: Any) -> Json:
    """The row of attention alone; `changes` go to its identity and its id, other names to its `extra_info`."""
    labels = attention_identity(**changes)
    extra = {name: value for name, value in changes.items() if name not in labels}
    axes = "-".join(str(value) for name, value in changes.items() if name in labels)
    row = timed(f"test_{labels['phase']}[{axes}]", seconds)
    return {**row, "extra_info": {**labels, "flags": [], **extra}}


def untimed(
    case_id: str = FORWARD, outcome: str = "out_of_memory", reason: str = "1.0 GiB asked, 0.5 GiB left", **changes: Any
) -> Json:
    """The row of a case without a timing; `changes` go to its identity."""
    memory = {"needed_bytes": 2**30, "available_bytes": 2**29}
    return {"id": case_id, **identity(**changes), "outcome": outcome, "reason": reason, **memory, "rounds": []}


def passed(case_id: str, extra_pass: str = "kernels", values: Json | None = None, **changes: Any) -> Json:
    """The result of an extra pass; `changes` go to the identity of its case."""
    return {"id": case_id, "identity": identity(**changes), "pass": extra_pass, "values": values or {}}


def machine(**changes: Any) -> Json:
    """A machine as a record describes it; `changes` replace facts of `cpu` and `torch` or the others by name."""
    cpu = {"brand_raw": "Some CPU", "arch": "X86_64", "count": 8, "hz_actual": [2_400_000_000, 0]}
    build = {"torch": "2.13.0+cpu", "torch_git": "abc", "cuda": None, "deterministic_algorithms": False}
    device: Json = {"device": "cpu", "gpu": None, "memory_gib": 16, "threads": 4, "environment": {}}
    system = {"node": "host-1", "system": "Linux", "release": "6.1.0", "python_version": "3.11.7"}
    facts: Json = {**system, "processor": "x86_64", "machine": "x86_64", "cpu": cpu, "torch": {**device, **build}}
    for name, value in changes.items():
        place = next((facts[part] for part in ("cpu", "torch") if name in facts[part]), facts)
        place[name] = value
    return facts


def header(selection: Sequence[str] = (FORWARD,), **machine_changes: Any) -> Json:
    return {
        "settings": {"sizes": ["tiny"], "threads": 4},
        "selection": list(selection),
        "machine_info": machine(**machine_changes),
        "commit_info": {"id": "0123456789abcdef", "dirty": False},
        "source": "digest",
        "command": "pytest perf_tests --size tiny --resume",
        "started": "2030-01-01T00:00:00+00:00",
    }


def record(
    benchmarks: Sequence[Json] = (), outcomes: Sequence[Json] = (), written: str | None = None, **machine_changes: Any
) -> Json:
    """A complete record; `written` is its date."""
    selection = [*(row["fullname"] for row in benchmarks), *(row["id"] for row in outcomes)]
    data = build_record(header(selection, **machine_changes), list(benchmarks), list(outcomes))
    return data if written is None else {**data, "datetime": written}


def with_passes(data: Json, *passes: Json) -> Json:
    """The record with extra passes over its cases."""
    return {**data, "passes": list(passes)}


def write_record(path: Path, data: Json | str) -> Path:
    """The record as a file, and the folders above it; a string is what stands in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path
