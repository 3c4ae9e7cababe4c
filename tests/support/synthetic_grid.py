"""Records of the whole grid, with invented figures that grow as real ones do."""

import random
from itertools import product

from perf_tests.records.record import Json, identity_of
from tests.support.synthetic import attention_identity, record, remembered, timed, traced, untimed, warmed

SHAPES = {
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25),
    "2.7B": (2560, 10240, 32, 32),
    "10B": (4608, 12288, 50, 36),
}
CONTEXTS = (128, 256, 512, 1024)
PARTS = ("zero_grad", "forward", "loss", "backward", "optimizer")
RATES = {"fp32": 45e12, "bf16": 300e12}
"""FLOP/s of an invented GPU."""
PHASES = {"inference": 1.0, "forward": 1.1, "backward": 2.1, "forward_backward": 3.2, "full_step": 3.6}
LAUNCHES_PER_LAYER, LAUNCH_SECONDS = 30, 6e-6
CARD_BYTES = 80 * 2**30
SECOND_OF_TWO = 1.03
"""How much slower an odd run is than an even one."""


def grid_record(number: int = 1, rounds: int = 10, **machine_changes: object) -> Json:
    """About 300 cases of models and attention, some of them out of memory; runs of other numbers differ a little."""
    noise = random.Random(number)
    cases = [
        _model_case(size, context, precision, phase, rounds, noise, SECOND_OF_TWO if number % 2 else 1.0)
        for size, context, precision, phase in product(SHAPES, CONTEXTS, RATES, PHASES)
    ]
    cases += [
        _attention_case(width, length, name, direction, rounds, noise)
        for width, length, name, direction in product(
            (16, 64), (256, 1024, 4096, 8192, 16384), ("naive", "compiled", "sdpa"), ("forward", "backward")
        )
    ]
    changes = {"gpu": {"name": "Invented GPU", "driver": "1.2"}, "device": "cuda", **machine_changes}
    measured = [case for case in cases if "stats" in case]
    written = f"2030-{1 + number // 28 % 12:02}-{1 + number % 28:02}T{number // 336:02}:00:00+00:00"
    return record(measured, [case for case in cases if "stats" not in case], written=written, **changes)


def with_every_pass(data: Json, moments: int = 1000) -> Json:
    """The record with a kernel pass, a memory pass and a warm-up study of each case that was measured."""
    passes = []
    for row in data["benchmarks"]:
        found = (
            traced(row["fullname"]),
            remembered(row["fullname"], row["extra_info"].get("peak_allocated_bytes") or 2**30, moments),
            warmed(row["fullname"], row["stats"]["median"]),
        )
        passes += [{**one, "identity": identity_of(row)} for one in found]
    return {**data, "passes": passes}


def _rounds(seconds: float, count: int, noise: random.Random) -> list[float]:
    return [seconds * (1 + 0.01 * abs(noise.gauss(0, 1))) for _ in range(count)]


def _model_case(
    size: str, context: int, precision: str, phase: str, rounds: int, noise: random.Random, slower: float
) -> Json:
    width, d_ff, layers, heads = SHAPES[size]
    blocks = layers * (4 * width * width + 3 * width * d_ff)
    flops = 2 * 4 * context * (blocks + width * 10_000) + 4 * 4 * context**2 * width * layers
    case_id = f"perf_tests/test_{phase}.py::test_{phase}[{size}-ctx{context}-{precision}-naive]"
    identity: Json = {
        "phase": phase, "size": size, "d_model": width, "d_ff": d_ff, "num_layers": layers, "num_heads": heads,
        "context_length": context, "precision": precision, "device": "cuda",
        "optimizer": "foreach" if phase == "full_step" else None,
    }  # fmt: skip
    parameters = blocks + 2 * width * 10_000
    saved = layers * (10.5 * 4 * context * width * 4 + 5 * 4 * context * d_ff * 4 + 2 * 4 * heads * context**2 * 4)
    peak = 4 * parameters + (0 if phase == "inference" else saved) + (12 * parameters if phase == "full_step" else 0)
    if peak > CARD_BYTES:
        return untimed(case_id, reason=f"{peak / 2**30:.1f} GiB asked, 79.2 GiB left", **identity)
    floor = LAUNCHES_PER_LAYER * layers * LAUNCH_SECONDS * PHASES[phase]
    least = flops * PHASES[phase] / RATES[precision]
    seconds = _rounds(slower * max(floor, 1.4 * least), rounds, noise)
    facts: Json = {
        "parameters": parameters, "model_flops": int(flops * PHASES[phase]), "peak_allocated_bytes": int(peak * 1.01),
        "predicted_peak_bytes": int(peak), "roofline_seconds": least, "launching_seconds": floor,
        "roofline_fraction": least / seconds[0],
        "mfu": 0.3, "bound": "launch" if floor > least else "compute", "kernel_launches": LAUNCHES_PER_LAYER * layers,
        "bytes_touched": int(peak), "warmup_rounds": 5, "float32_matmul_precision": "highest",
        "cpu_seconds": seconds, "device_seconds": seconds, "part_seconds": dict.fromkeys(PARTS, seconds),
    }  # fmt: skip
    return timed(case_id, seconds, **identity, **facts)


def _attention_case(width: int, length: int, name: str, direction: str, rounds: int, noise: random.Random) -> Json:
    case_id = f"perf_tests/test_attention.py::test_attention_{direction}[d{width}-seq{length}-fp32-{name}]"
    identity = attention_identity(
        phase=f"attention_{direction}", head_dim=width, sequence_length=length, attention=name, device="cuda"
    )
    squares = 8 * length**2 * 4
    if name == "naive" and length == 16384 and direction == "backward":
        lost = untimed(case_id, reason="8.0 GiB asked, 3.1 GiB left")
        return {**identity, **{key: lost[key] for key in ("id", "outcome", "reason", "rounds")}}
    speed = {"naive": 1.0, "compiled": 2.0, "sdpa": 4.0}[name] / (2.4 if direction == "backward" else 1.0)
    seconds = _rounds(max(4e-5, squares * (2 + width / 32) / 1.5e12) / speed, rounds, noise)
    row = timed(case_id, seconds)
    peak = int(squares * (2 if name == "naive" else 1)) if name != "sdpa" else 8 * length * width * 16
    return {**row, "extra_info": {**identity, "peak_allocated_bytes": peak, "warmup_rounds": 5, "flags": [],
                                   "cpu_seconds": seconds, "device_seconds": seconds}}  # fmt: skip
