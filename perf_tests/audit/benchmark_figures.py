"""The timings of a pytest-benchmark file as labelled figures; only ours have an identity."""

import json
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

from perf_tests.audit.figures import NO_PRECISION, Timing, implementation_named
from perf_tests.identity import has_identity, is_attention, is_collective
from perf_tests.limits.least_work import AttentionWork, ModelConfig, ModelWork, Work
from perf_tests.records.record import Json
from perf_tests.records.words import without_path

MOST_SECONDS = 1e15
TOO_LARGE = 1e9
"""For a dimension of a model or a batch."""

_AXES = (("attention", None), ("execution", "eager"), ("checkpoint", "none"), ("model", "ours"))


def read_benchmarks(path: Path) -> list[Timing]:
    """Raises ValueError with one sentence when the file is no pytest-benchmark JSON with timings."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {without_path(error)}.") from error
    rows = data.get("benchmarks") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} is no pytest-benchmark file: it has no list of benchmarks.")
    if not rows:
        raise ValueError(f"{path} holds no benchmark.")
    try:
        return timings_of(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def timings_of(record: Json) -> list[Timing]:
    """One timing for each benchmark, by the median of its rounds. Raises ValueError for a row without a timing."""
    gpu: Any = record
    for name in ("machine_info", "torch", "gpu", "name"):
        gpu = gpu.get(name) if isinstance(gpu, dict) else None
    return [_timing(row, str(gpu or "")) for row in record["benchmarks"]]


def _timing(row: Json, gpu: str) -> Timing:
    place = str(row.get("fullname") or row.get("name"))
    rounds = rounds_of(row, place)
    info = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
    work, why = _work(info)
    ceiling = info.get("matmul_ceiling_tflops_per_second")
    return Timing(
        place=place.rpartition("::")[2],
        series="",
        gpu=gpu,
        gpu_is_inferred=False,
        work=work,
        without_work=why,
        precision_label=str(info.get("precision") or NO_PRECISION),
        has_fp32_weights=work is not None,
        implementation=implementation_named(*(str(info.get(name, default)) for name, default in _AXES)),
        phase=str(info.get("phase")),
        optimizer=str(info.get("optimizer") or ""),
        seconds=median(rounds),
        std_seconds=_deviation(rounds),
        rounds=len(rounds),
        peak_bytes=info.get("peak_allocated_bytes"),
        # For CPUs; on a GPU the datasheet's peak is better than a product measured in the same noise.
        matmul_flops_per_second=ceiling * 1e12 if isinstance(ceiling, float) and not gpu else None,
    )


def _deviation(rounds: list[float]) -> float:
    """Of the population; `statistics.pstdev` computes in fractions, which takes a minute for millions of rounds."""
    mean = fmean(rounds)
    return sqrt(fmean((one - mean) ** 2 for one in rounds))


def rounds_of(row: Json, place: str) -> list[float]:
    """Seconds of each round, or the mean alone where the file has no rounds."""
    stats = row.get("stats")
    rounds = (stats.get("data") or [stats.get("mean")]) if isinstance(stats, dict) else None
    if not isinstance(rounds, list) or not rounds or not all(map(_is_time, rounds)):
        raise ValueError(f"Benchmark {place} has no timing in its stats.")
    return [float(value) for value in rounds]


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < MOST_SECONDS


def _work(info: dict[str, Any]) -> tuple[Work | None, str]:
    """The shape in the identity, or why there is none."""
    if not has_identity(info):
        return None, "no identity: neither phase nor shape of what was timed"
    if info.get("model", "ours") != "ours":
        return None, "a model of one's own, whose work no formula knows"
    if is_collective(info):
        return None, "an exchange between ranks, which computes nothing"
    if info.get("parallel") is not None:
        return None, "shared by several ranks, whose time is no single device's"
    try:
        if is_attention(info):
            return AttentionWork(*_counts(info, "batch_size", "sequence_length", "head_dim")), ""
        config = ModelConfig(*_counts(info, "d_model", "d_ff", "num_layers", "num_heads", "vocab_size"))
        return ModelWork(str(info["size"]), config, *_counts(info, "batch_size", "context_length")), ""
    except (OverflowError, TypeError, ValueError) as error:
        return None, f"an identity that is no shape: {error}"


def _counts(info: dict[str, Any], *names: str) -> list[int]:
    values = [int(info[name]) for name in names]
    if not all(0 < value < TOO_LARGE for value in values):
        raise ValueError(f"{', '.join(names)} must lie between 1 and {TOO_LARGE:g}")
    return values
