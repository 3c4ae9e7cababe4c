"""Labelled figures, of tables and of pytest-benchmark files, and what an audit says of them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

from model.sizes import ModelConfig
from perf_tests.hardware.limits import AttentionWork, ModelWork, Work
from perf_tests.phases import has_identity, is_attention, is_collective
from perf_tests.records.columns import inside
from perf_tests.records.format import finite
from perf_tests.records.record import Json, unpacked, without_path
from perf_tests.records.store import MOST_UNPACKED_BYTES

IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, NOTICE = "impossible", "inconsistent", "suspicious", "notice"
VERDICTS = {
    IMPOSSIBLE: "breaks physics under its own labels",
    INCONSISTENT: "contradicts other figures of the same table",
    SUSPICIOUS: "may be right, but resembles a known mistake",
    NOTICE: "is correct, but shows less than it seems to",
}
"""Gravest first."""

ACCUSING = (IMPOSSIBLE, INCONSISTENT)
"""Verdicts that call a figure wrong."""


@dataclass(frozen=True)
class Finding:
    """One rule that fired. `figure` and `limit` carry their units."""

    verdict: str
    rule: str
    places: tuple[str, ...]
    """The figures that are accused, or that a notice is about."""
    cell: str
    figure: str
    limit: str
    why: str
    likely_cause: str
    series: str = ""
    excess: float = 1.0
    """How many times its limit the figure is, or its limit the figure."""

    def sentence(self, beside: str = "") -> str:
        """Say verdict, figure and limit first, then the labels, the cause and what is `beside`, and the place last."""
        where = self.places[0] if len(self.places) == 1 else f"{self.places[0]} and {len(self.places) - 1} more"
        labels = self.cell.removeprefix(f"{self.series}: ")
        return (
            f"{self.verdict}: {self.figure}, limit {self.limit}: {self.why}. {labels}. Most likely: "
            f"{self.likely_cause}.{beside} {where[:1].upper()}{where[1:]}{', ' if self.series else ''}{self.series}."
        )


@dataclass(frozen=True)
class NotJudged:
    """A figure that could not be judged by the physics of its row."""

    place: str
    reason: str
    """The same for all figures of which it holds."""
    detail: str = ""

    def sentence(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


NO_PRECISION = "precision not stated"
"""The label of a figure whose table says nothing of it."""

OF_ADAMW = ("", "adam", "adamw", "default", "loop", "foreach", "fused")
"""Optimizers with two moments of the weights' precision: one that is not stated, and the suite's own names."""

UNFUSED, COMPILED, TILED, UNKNOWN = "unfused", "compiled", "tiled", "unknown"
"""How attention runs: op by op; written out, under torch.compile; in one kernel that never holds the square; unsaid."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """What every row of a table has. None where it leaves a label out; units are SI."""

    place: str
    """`line 7` or a benchmark's name."""
    series: str
    """The figure's source; figures of one series were measured together."""
    gpu: str


@dataclass(frozen=True, slots=True)
class Timing(Labelled):
    """A time with its labels."""

    gpu_is_inferred: bool
    work: Work | None
    without_work: str
    """The reason where `work` is None."""
    precision_label: str
    has_fp32_weights: bool
    """True under autocast too."""
    implementation: str
    """`eager`, `compiled`, or another in the table's words."""
    phase: str
    """A name in `phases.PHASES` or `PHASES_OF_OTHERS`, or the table's own word."""
    seconds: float | None
    """None where the table has no figure."""
    std_seconds: float | None
    rounds: int | None
    matmul_flops_per_second: float | None = None
    """Rate of the best product measured on the same machine, where a record holds it."""
    peak_bytes: float | None = None
    warmup_rounds: int | None = None
    is_causal: bool = True
    """False where the table says that nothing is masked."""
    rounding_seconds: float = 0.0
    """The most that was cut or rounded off the figure, by its digits."""
    optimizer: str = ""
    """The author's words; empty where not stated or not run."""
    shape_is_by_name: bool = False
    """Whether the table names the size alone, so that it may mean another shape or batch than the course's."""
    mean_seconds: float | None = None
    """The mean of the rounds, where `seconds` is known to be another figure of them."""

    @property
    def precision(self) -> str | None:
        return labelled_precision(self.precision_label)

    @property
    def is_update(self) -> bool:
        """Whether it is an AdamW step alone, on fp32 weights."""
        return self.phase == "optimizer" and self.has_fp32_weights and self.optimizer in OF_ADAMW

    @property
    def is_eager(self) -> bool:
        """Whether each operation is a kernel of its own: no compiler, no fused attention."""
        return self.implementation == "eager"

    @property
    def attention(self) -> str:
        """`UNFUSED`, `COMPILED`, `TILED` or `UNKNOWN`."""
        return attention_of(self.implementation)

    def describe(self) -> str:
        work = self.work.describe() if self.work else self.without_work
        implementation = "" if self.is_eager else f" {self.implementation}"
        return f"{self.series}: {work} {self.precision_label}{implementation} {self.phase}"


@dataclass(frozen=True, slots=True)
class Memory(Labelled):
    """An amount of device memory with its labels; `value_bytes` reads GB as 1e9, `most_bytes` as 2**30."""

    kind: str
    """`model` or `attention`."""
    size: str
    width: int | None
    layers: int | None
    batch_size: int | None
    length: int | None
    """Context or sequence in tokens."""
    precision_label: str
    is_compiled: bool
    mode: str
    value_bytes: float | None
    most_bytes: float | None
    d_ff: int | None = None
    rounding_bytes: float = 0.0
    checkpoint: str = "none"
    """What of a pass is computed again instead of kept, in the author's words; `none` where they mean none."""
    optimizer: str = ""
    """The author's words; empty where not stated, and then judged as AdamW."""

    def describe(self) -> str:
        what = self.size if self.kind == "model" else f"attention d {self.width}"
        return f"{self.series}: {what} length {self.length} batch {self.batch_size} {self.precision_label} {self.mode}"


@dataclass(frozen=True, slots=True)
class Kernel(Labelled):
    """A line of a profile: all calls of one kernel. `percent` is of the profile's GPU time."""

    size: str
    context_length: int | None
    scope: str
    name: str
    calls: int | None
    total_seconds: float | None
    average_seconds: float | None
    percent: float | None
    batch_size: int | None = None

    def describe(self) -> str:
        return f"{self.series}: {self.size} ctx {self.context_length} {self.scope}: {self.name[:60]}"


Figure = Timing | Memory | Kernel


def found(
    verdict: str, rule: str, rows: Sequence[Figure], figure: str, limit: str, why: str, cause: str, excess: float = 1.0
) -> Finding:
    """A finding on these rows, described by the first."""
    places, first = tuple(row.place for row in rows), rows[0]
    cell = first.describe().removeprefix(": ")
    return Finding(verdict, rule, places, cell, figure, limit, why, cause, first.series, excess)


# What labels mean. Tables of 100,000s of rows repeat a few of them, so that each is read once.


_TILED = re.compile(r"flash|fa[23]|triton|sdpa|scaled_dot|flex|xformers|mem\w*_?eff|cudnn|tiled|fused")
_COMPILED = re.compile(r"compile|inductor|jit|reduce-overhead|max-autotune")
_UNFUSED = re.compile(r"naive|eager|pytorch|vanilla|reference|standard|manual|written_out")
_PART_OF_THE_SQUARE = re.compile(
    r"linear|linformer|performer|longformer|bigbird|reformer|window|sliding|local|sparse|dilated|mamba|ssm|hyena"
    r"|rwkv|retnet|retention|nsa|lsh"
)
_ANOTHER_MODEL = re.compile(
    r"gpt|opt-|pythia|bert|llama|mistral|mixtral|qwen|gemma|phi-|falcon|bloom|deepseek|olmo|mamba|vit|(?<![a-z])t5"
)
_WITHOUT_TF32 = re.compile(
    r"(?:no|not|non|without)[\s_-]*(?:allow_)?tf32|tf32[\s_=:-]*(?:off|no|not|false|0|disabled)(?![a-z0-9])"
)
_TF32_BY_ITS_SETTING = re.compile(r"(?<![a-z])(?:high|medium)(?![a-z])")
"""Values of torch.set_float32_matmul_precision."""
_OTHER_FORMATS = re.compile(r"fp(?:4|6|8|64)(?![0-9])|int\d|nf4|e4m3|e5m2|[48][ _-]?bit|w\d+a\d+|double|acc(?!e)")
"""Narrower and wider ones, and sums in 16 bits, which GeForce cards form at twice the rate."""


@lru_cache(maxsize=4096)
def attention_of(implementation: str) -> str:
    """How attention runs, by the words of `Timing.implementation`; of several names the one that does less counts."""
    attention, _, execution = implementation.casefold().rpartition(" ")
    words = attention.replace(" ", "_") or execution
    if "checkpoint" in attention or ":" in words:  # recomputation, and somebody's own function
        return UNKNOWN
    known = ((TILED, _TILED), (COMPILED, _COMPILED), (UNFUSED, _UNFUSED))
    return next((way for way, pattern in known if pattern.search(words)), UNKNOWN)


@lru_cache(maxsize=4096)
def covers_the_square(attention: str) -> bool:
    """Whether no word of it says that a query meets some keys alone."""
    return not _PART_OF_THE_SQUARE.search(attention.casefold())


@lru_cache(maxsize=4096)
def is_another_model(size: str) -> bool:
    """Whether its name is of an architecture with fewer weights and less arithmetic under the same columns: two
    matrices in the feed-forward, tied embeddings, fewer heads of keys."""
    return _ANOTHER_MODEL.search(size.casefold()) is not None


@lru_cache(maxsize=4096)
def labelled_precision(text: str) -> str | None:
    """`fp32`, `tf32`, `bf16` or `fp16`, of several the fastest (`fp32, TF32 on`); None where the label is none of them
    for certain."""
    label = text.casefold().replace("bfloat16", "bf16").replace("float", "fp")
    named = set(re.findall(r"(fp32|tf32|bf16|fp16)(?![0-9])", _WITHOUT_TF32.sub(" ", label)))
    if not named or "?" in label or _OTHER_FORMATS.search(label):
        return None
    if named == {"fp32"} and _TF32_BY_ITS_SETTING.search(label):
        return "tf32"
    return max(named, key=("fp32", "tf32", "bf16", "fp16").index)


def implementation_named(attention: str, execution: str, checkpoint: str, model: str = "ours") -> str:
    """`eager` and `compiled` as in everybody's tables; any other set of axes by their names."""
    if model != "ours" or checkpoint != "none":
        return f"{attention} {execution} {model} checkpoint {checkpoint}"
    if attention == "naive":
        return execution
    return "compiled" if attention == "compiled" else f"{attention} {execution}"


# The timings of a pytest-benchmark file; only ours have an identity, and only rows with one can be judged.


MOST_SECONDS = 1e15
LARGEST_DIMENSION = 1e9
"""Limit of a model's or batch's dimensions: the products of larger ones are no number of FLOPs."""


def read_benchmarks(path: Path) -> list[Timing]:
    """The timings of the file. Raises ValueError with one sentence if it is no pytest-benchmark JSON with timings."""
    packed = unpacked(path, MOST_UNPACKED_BYTES) if path.suffix == ".xz" else None
    try:
        data = json.loads(path.read_bytes() if packed is None else packed)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {without_path(error)}.") from error
    rows = data.get("benchmarks") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} is not a pytest-benchmark file: it has no list of benchmarks.")
    if not rows:
        raise ValueError(f"{path} holds no benchmark.")
    try:
        return timings_of(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def timings_of(record: Json) -> list[Timing]:
    """One timing for each benchmark, by the median of its rounds. Raises ValueError for a row without a timing."""
    gpu = inside(record, "machine_info", "torch", "gpu").get("name")
    return [_timing(row, str(gpu or "")) for row in record["benchmarks"]]


def _timing(row: Json, gpu: str) -> Timing:
    place = str(row.get("fullname") or row.get("name"))
    stats = row.get("stats")
    rounds = (stats.get("data") or [stats.get("mean")]) if isinstance(stats, dict) else None
    if not isinstance(rounds, list) or not all(isinstance(s, int | float) and abs(s) < MOST_SECONDS for s in rounds):
        raise ValueError(f"Benchmark {place} has no timing in its stats.")
    seconds = [float(one) for one in rounds]
    mean = fmean(seconds)
    info = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
    work = _work(info)
    axes = (("attention", None), ("execution", "eager"), ("checkpoint", "none"), ("model", "ours"))
    ceiling = info.get("matmul_ceiling_tflops_per_second")
    return Timing(
        place=place.rpartition("::")[2],
        series="",
        gpu=gpu,
        gpu_is_inferred=False,
        work=None if isinstance(work, str) else work,
        without_work=work if isinstance(work, str) else "",
        precision_label=str(info.get("precision") or NO_PRECISION),
        has_fp32_weights=not isinstance(work, str),
        implementation=implementation_named(*(str(info.get(name, default)) for name, default in axes)),
        phase=str(info.get("phase")),
        optimizer=str(info.get("optimizer") or ""),
        seconds=median(seconds),
        # Of the population; `statistics.pstdev` computes in fractions, which takes a minute for millions of rounds.
        std_seconds=sqrt(fmean((one - mean) ** 2 for one in seconds)),
        rounds=len(seconds),
        mean_seconds=mean,
        peak_bytes=finite(info.get("peak_allocated_bytes")),
        # For CPUs; on a GPU the datasheet's peak is better than a product measured in the same noise.
        matmul_flops_per_second=ceiling * 1e12 if isinstance(ceiling, float) and not gpu else None,
    )


def _work(info: dict[str, Any]) -> Work | str:
    """The shape in the identity, or why there is none."""

    def counts(*names: str) -> list[int]:
        values = [int(info[name]) for name in names]
        if not all(0 < value < LARGEST_DIMENSION for value in values):
            raise ValueError(f"{', '.join(names)} must lie between 1 and {LARGEST_DIMENSION:g}")
        return values

    if not has_identity(info):
        return "no identity: neither phase nor shape of what was timed"
    if info.get("model", "ours") != "ours":
        return "a model of one's own, whose work no formula knows"
    if is_collective(info):
        return "an exchange between ranks, which computes nothing"
    if info.get("parallel") is not None:
        return "shared by several ranks, whose time is no single device's"
    try:
        if is_attention(info):
            return AttentionWork(*counts("batch_size", "sequence_length", "head_dim"))
        config = ModelConfig(*counts("d_model", "d_ff", "num_layers", "num_heads", "vocab_size"))
        return ModelWork(str(info["size"]), config, *counts("batch_size", "context_length"))
    except (OverflowError, TypeError, ValueError) as error:
        return f"an identity that is not a shape: {error}"
