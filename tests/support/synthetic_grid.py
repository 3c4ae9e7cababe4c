"""Records of a grid of cases, with invented figures that grow as real ones do."""

import random
from collections.abc import Sequence
from itertools import product

from perf_tests_suite.perf_tests.records.record import Json, identity_of
from tests.support import synthetic

SHAPES = {
    "small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16), "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25), "2.7B": (2560, 10240, 32, 32), "10B": (4608, 12288, 50, 36),
}  # fmt: skip
CONTEXTS, WIDTHS, LENGTHS = (128, 256, 512, 1024), (16, 64), (256, 1024, 4096, 8192, 16384)
RATES = {"fp32": 45e12, "bf16": 300e12}
"""FLOP/s of an invented GPU."""
PHASES = {"inference": 1.0, "forward": 1.1, "backward": 2.1, "forward_backward": 3.2, "full_step": 3.6}
SPEEDS = {"naive": 1.0, "compiled": 2.0, "sdpa": 4.0}
LAUNCHES_PER_LAYER, LAUNCH_SECONDS = 30, 6e-6
CARD_BYTES = 80 * 2**30


def grid_record(
    number: int = 1, sizes: Sequence[str] = tuple(SHAPES), contexts: Sequence[int] = CONTEXTS,
    widths: Sequence[int] = WIDTHS, lengths: Sequence[int] = LENGTHS,
) -> Json:  # fmt: skip
    """Some 300 cases, some of them out of memory; runs of other numbers differ a little, odd ones are 3 % slower."""
    noise = random.Random(number)

    def rounds(seconds: float) -> list[float]:
        return [seconds * (1 + 0.01 * abs(noise.gauss(0, 1)) + 0.03 * (number % 2)) for _ in range(10)]

    def of_model(size: str, context: int, precision: str, phase: str) -> Json:
        width, d_ff, layers, heads = SHAPES[size]
        blocks = layers * (4 * width * width + 3 * width * d_ff)
        flops = (2 * 4 * context * (blocks + width * 10_000) + 4 * 4 * context**2 * width * layers) * PHASES[phase]
        saved = layers * 4 * (10.5 * 4 * context * width + 5 * 4 * context * d_ff + 2 * 4 * heads * context**2)
        parameters = blocks + 2 * width * 10_000
        peak = 4 * parameters * (4 if phase == "full_step" else 1) + (0 if phase == "inference" else saved)
        case_id = f"perf_tests/test_{phase}.py::test_{phase}[{size}-ctx{context}-{precision}-naive]"
        identity: Json = {
            "phase": phase, "size": size, "d_model": width, "d_ff": d_ff, "num_layers": layers, "num_heads": heads,
            "context_length": context, "precision": precision, "device": "cuda",
            "optimizer": "foreach" if phase == "full_step" else None,
        }  # fmt: skip
        if peak > CARD_BYTES:
            return synthetic.untimed(case_id, reason=f"{peak / 2**30:.1f} GiB asked, 79.2 GiB left", **identity)
        floor, least = LAUNCHES_PER_LAYER * layers * LAUNCH_SECONDS * PHASES[phase], flops / RATES[precision]
        seconds = rounds(max(floor, 1.4 * least))
        facts: Json = {
            "parameters": parameters, "model_flops": int(flops), "peak_allocated_bytes": int(peak * 1.01),
            "predicted_peak_bytes": int(peak), "roofline_seconds": least, "launching_seconds": floor,
            "roofline_fraction": least / seconds[0], "mfu": 0.3, "bound": "launch" if floor > least else "compute",
            "kernel_launches": LAUNCHES_PER_LAYER * layers, "bytes_touched": int(peak), "warmup_rounds": 5,
            "float32_matmul_precision": "highest", "cpu_seconds": seconds, "device_seconds": seconds,
        }  # fmt: skip
        return synthetic.timed(case_id, seconds, **identity, **facts)

    def of_attention(width: int, length: int, name: str, way: str) -> Json:
        squares, labels = 8 * length**2 * 4, {"phase": f"attention_{way}", "head_dim": width, "sequence_length": length}
        if name == "naive" and length == 16384 and way == "backward":
            told = {"id": f"lost[{width}]", "outcome": "out_of_memory", "reason": "8.0 GiB asked, 3.1 GiB left"}
            return {**synthetic.attention_identity(**labels, attention=name, device="cuda"), **told}
        slower = (2.4 if way == "backward" else 1.0) / SPEEDS[name]
        seconds = rounds(max(4e-5, squares * (2 + width / 32) / 1.5e12) * slower)
        peak = squares * (2 if name == "naive" else 1) if name != "sdpa" else 8 * length * width * 16
        facts = {"peak_allocated_bytes": peak, "warmup_rounds": 5, "cpu_seconds": seconds, "device_seconds": seconds}
        return synthetic.timed_attention(seconds, **labels, attention=name, device="cuda", **facts)

    cases = [of_model(*one) for one in product(sizes, contexts, RATES, PHASES)]
    cases += [of_attention(*one) for one in product(widths, lengths, SPEEDS, ("forward", "backward"))]
    measured, others = ([case for case in cases if ("stats" in case) == is_timed] for is_timed in (True, False))
    written = f"2030-{1 + number // 28 % 12:02}-{1 + number % 28:02}T{number // 336:02}:00:00+00:00"
    return synthetic.record(measured, others, written, gpu={"name": "Invented GPU", "driver": "1.2"}, device="cuda")


def with_every_pass(data: Json, moments: int = 1000) -> Json:
    """The record with a kernel pass, a memory pass and a warm-up study of each case that was measured."""
    passes = []
    for row in data["benchmarks"]:
        name, peak = row["fullname"], row["extra_info"].get("peak_allocated_bytes") or 2**30
        found = (
            synthetic.traced(name),
            synthetic.remembered(name, peak, moments),
            synthetic.warmed(name, row["stats"]["median"]),
        )
        passes += [{**one, "identity": identity_of(row)} for one in found]
    return {**data, "passes": passes}
