"""Labelled figures, of tables and of our own records, and what an audit says of them."""

import re
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.perf_tests.hardware.limits import AttentionWork, ModelWork, Work
from perf_tests_suite.perf_tests.phases import has_identity, is_attention, is_collective
from perf_tests_suite.perf_tests.records.columns import inside
from perf_tests_suite.perf_tests.records.record import Json

IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Finding:
    """A figure beyond its limit; both carry their units."""

    rule: str
    places: tuple[str, ...]
    """The place of the one figure."""
    cell: str
    figure: str
    limit: str
    why: str
    series: str
    excess: float
    """How many times its limit the figure is, or its limit the figure."""
    verdict: str = IMPOSSIBLE

    def sentence(self, beside: str = "") -> str:
        """Say figure and limit first, then why, the labels and what is `beside`, and the place last."""
        (place,) = self.places
        labels, source = self.cell.removeprefix(f"{self.series}: "), f", {self.series}" if self.series else ""
        return (
            f"{self.verdict}: {self.figure}, limit {self.limit}: {self.why}. {labels}.{beside} "
            f"{place[:1].upper()}{place[1:]}{source}."
        )


@dataclass(frozen=True)
class NotJudged:
    """A figure that no limit is known for."""

    place: str
    reason: str
    """The same for all figures of which it holds."""
    detail: str = ""

    def sentence(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


NO_PRECISION = "precision not stated"
"""The label of a figure whose table says nothing of it."""

OF_ADAMW = ("adam", "adamw", "default", "loop", "foreach", "fused")
"""Optimizers with two moments of the weights' precision, the suite's own names among them."""

UNFUSED, COMPILED, TILED, UNKNOWN = "unfused", "compiled", "tiled", "unknown"
"""How attention runs: op by op; written out, under torch.compile; in one kernel that never holds the square; unsaid."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """What every row of a table has. None where it leaves a label out; units are SI."""

    place: str
    """`line 7` or a benchmark's name."""
    series: str
    """The figure's source."""
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
    most_seconds: float | None
    """What it may stand for by its digits."""
    matmul_flops_per_second: float | None = None
    """Rate of the best product measured on the same machine, where a record holds it."""
    is_causal: bool = True
    """False where the table says that nothing is masked."""
    optimizer: str = ""
    """The author's words; empty where not stated or not run."""

    @property
    def precision(self) -> str | None:
        return labelled_precision(self.precision_label)

    @property
    def is_update(self) -> bool:
        """Whether it is an optimizer's step alone, on fp32 weights."""
        return self.phase == "optimizer" and self.has_fp32_weights

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
    """An amount of device memory with its labels."""

    labels: str
    """The others, in words."""
    value_bytes: float | None
    """Read with GB as 1e9."""
    most_bytes: float | None
    """Read with GB as 2**30, and what its digits leave open."""
    least_bytes: float | None
    """The weights, where it is the peak of a known shape in a known format."""

    def describe(self) -> str:
        return f"{self.series}: {self.labels}"


Figure = Timing | Memory


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


# The timings of a record of ours.


LARGEST_DIMENSION = 1e9
"""Limit of a model's or batch's dimensions: the products of larger ones are no number of FLOPs."""


def timings_of(record: Json) -> list[Timing]:
    """One timing for each benchmark, by the median of its rounds."""
    gpu = inside(record, "machine_info", "torch", "gpu").get("name")
    return [_timing(row, str(gpu or "")) for row in record["benchmarks"]]


def _timing(row: Json, gpu: str) -> Timing:
    place = str(row.get("fullname") or row.get("name"))
    info, stats = row["extra_info"], row["stats"]
    seconds, work = median(stats.get("data") or [stats["mean"]]), _work(info)
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
        seconds=seconds,
        most_seconds=seconds,
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
