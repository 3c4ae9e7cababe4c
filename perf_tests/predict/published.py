"""Published peaks of memory beside predictions of them, from `published/memory.csv`.

The same cell is published with 26, 51, 60 and 64 GB, each right for its code. So each source has its conditions, read
from its code, in `published/memory_conditions.csv`: when it clears gradients, how its optimizer runs, whether its
figure is of the first step, what it still holds from the pass before, how far autocast reaches, what its own model
saves more, and how many copies of the weights its figure counts as whole blocks of the allocator. None is fitted."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from model.sizes import SIZES, ModelConfig
from perf_tests.cases.attention import ATTENTION_BATCH_SIZE, AttentionCase
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import HOPPER_MAJOR, libraries_on
from perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests.phases import FIRST_STEP
from perf_tests.predict.counters import Counters, PartPeak, counters_of
from perf_tests.predict.counting import WEIGHT_COPIES
from perf_tests.records.published import published_rows

# What PyTorch's caching allocator hands out beyond what is asked for: blocks whose rest is too small to be split
# off.
#
# Its rules, from c10/cuda/CUDACachingAllocator.cpp, for tensors that come one after the other and stay, as weights
# do.


MIB = 2**20
SMALL_BYTES = 1 * MIB
"""Up to here a tensor shares a small segment, which is split to the last 512 bytes; larger rests are split off."""
LARGE_BYTES, SHARED_SEGMENT_BYTES = 10 * MIB, 20 * MIB
"""Below the first a tensor shares a segment of the second size, from there on it has one of its own."""
SEGMENT_STEP_BYTES = 2 * MIB


def unsplit_weight_bytes(config: ModelConfig) -> int:
    """Beyond the weights themselves, on a GPU, once they are there."""
    d_model, d_ff, tables = config.d_model, config.d_ff, [config.vocab_size * config.d_model]
    block = 4 * [d_model * d_model] + 3 * [d_model * d_ff]
    sizes = [FLOAT32_BYTES * numbers for numbers in (*tables, *(config.num_layers * block), *tables)]
    return whole_block_bytes(sizes) - sum(sizes)


def whole_block_bytes(sizes: Iterable[int]) -> int:
    """Return the bytes of the blocks that hold tensors of these sizes, made in this order."""
    rests: list[int] = []
    total_bytes = 0
    for size in sizes:
        if size <= SMALL_BYTES:
            total_bytes += size
            continue
        block = min((rest for rest in rests if rest >= size), default=0)
        if block:
            rests.remove(block)
        else:
            block = SHARED_SEGMENT_BYTES if size < LARGE_BYTES else -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
        if block - size > SMALL_BYTES:
            rests.append(block - size)
            block = size
        total_bytes += block
    return total_bytes


TABLE, CONDITIONS, OUTLIERS = "memory.csv", "memory_conditions.csv", "memory_outliers.csv"

LEFT_OUT = {
    "fadibenz/systems-transformer-optimizations": "states a batch of 4 and configures 2, and does not say what it read",
    "HanFa/assignment2-systems": "does not state the batch",
    "repository not named": "does not say what it read",
    "danzzzlll/Projects": "states neither GPU nor size",
}
"""Sources of peaks of whole models whose conditions are not stated, and what is missing."""

# The bytes of float16 are those of bfloat16; TF32 is a mode of float32.
PRECISIONS = {"fp32": "fp32", "tf32(labelled fp32)": "fp32", "bf16_amp": "bf16", "fp16_amp": "bf16"}

CHECKPOINT = "full_step_peak:checkpoint group="

ANGLES_AND_MASK = "angles of each head and the mask of each score"
"""What one source's model saves beside the course's, as its conditions name it."""

TORCH_THEN = "2.9"
"""Any version before 2.12 has the same rule of workspaces; the tables name none."""

_HOPPER = ("H100", "H200", "H800", "H20")

FORWARD_PASSES_ALONE = "Louisym/Stanford-CS336-spring25"
"""Its loop of forward passes assigns each output to the same name, which holds the former graph meanwhile, and passes
no mask (assignment2-systems/cs336_systems/flash_attention/benchamark_script.py)."""
FIRST_CELL = (16, 256)
"""Head width and length of its first cell; before it no backward pass has run."""

SMALL_CONTEXT = 1024
UNITS = {"GB": 1e9, "MB": 1e6, "MiB": 2**20}


@dataclass(frozen=True)
class PublishedPeak:
    """One cell of a published table, and the conditions of its code. `bytes` is None for an empty cell."""

    source: str
    gpu: str
    mode: str
    precision: str
    """As the source calls it."""
    case: LanguageModelCase
    bytes: float | None
    last_digit_bytes: float
    """What one more in the last printed digit is."""
    conditions: dict[str, str]

    @property
    def name(self) -> str:
        case = self.case
        return f"{self.source.partition(':')[0]} {self.mode} {case.size}-ctx{case.context_length}-{case.precision}"

    @property
    def stated_bytes(self) -> tuple[float, float]:
        """The least and the most that the printed figure can stand for. Raises TypeError for an empty cell."""
        if self.bytes is None:
            raise TypeError(f"{self.name} has no figure.")
        if self.conditions["figures"] == "cut":
            return self.bytes, self.bytes + self.last_digit_bytes
        return self.bytes - self.last_digit_bytes / 2, self.bytes + self.last_digit_bytes / 2

    @property
    def is_step(self) -> bool:
        """Whether it is the peak of a full step, whose source states when gradients are cleared."""
        return self.mode.startswith("full_step") and bool(self.conditions["zero_grad"])


@dataclass(frozen=True)
class ComparedPeak:
    cell: PublishedPeak
    predicted_bytes: int

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        assert self.cell.bytes is not None
        return self.predicted_bytes / self.cell.bytes - 1

    @property
    def error_of_stated(self) -> float:
        """Likewise, over the nearest bytes that the printed digits can stand for; 0 between them."""
        least, most = self.cell.stated_bytes
        return self.predicted_bytes / min(max(self.predicted_bytes, least), most) - 1


@dataclass(frozen=True)
class AttentionPeak:
    """A published peak of attention alone beside its predictions, without and with cuBLAS's workspaces."""

    source: str
    gpu: str
    sequence_length: int
    error_without: float
    """Predicted over published, less 1; likewise the next."""
    error_with: float


@dataclass(frozen=True)
class Outlier:
    """Why one cell differs from its source's others."""

    condition: str
    recorded_bytes: float | None
    """What the source's own log or plot of the run says instead of the table; None where there is none."""
    meant_context: int | None = None
    """The context that was measured, where the table names another."""


def published_peaks() -> list[PublishedPeak]:
    """Every row of the table whose conditions are known, empty cells included."""
    conditions = published_rows(CONDITIONS)
    cells = []
    for row in published_rows(TABLE):
        found = next((known for known in conditions if _is_under(row, known)), None)
        if found is not None and not row["mode"].endswith("nested"):
            cells.append(_cell(row, found))
    return cells


def outlier(cell: PublishedPeak) -> Outlier | None:
    """The known reason why this cell differs from its source's others; None without one."""
    for row in published_rows(OUTLIERS):
        if (
            row["source"] in cell.source
            and (cell.mode, cell.precision) == (row["mode"], row["precision"])
            and str(cell.case.context_length) == row["context"]
        ):
            recorded, meant = row["recorded_bytes"], row["meant_context"]
            return Outlier(row["condition"], float(recorded) if recorded else None, int(meant) if meant else None)
    return None


def left_out_sources() -> list[tuple[str, str]]:
    """Sources that have peaks of whole models and no conditions, each with what is missing."""
    sources = sorted(
        {row["source"] for row in published_rows(TABLE) if row["object"].startswith("model") and "peak" in row["mode"]}
    )
    known = {row["source"] for row in published_rows(CONDITIONS)}
    return [(source, _what_is_missing(source)) for source in sources if not any(name in source for name in known)]


def _what_is_missing(source: str) -> str:
    return next((reason for name, reason in LEFT_OUT.items() if name in source), "conditions unknown")


def _is_under(row: dict[str, str], conditions: dict[str, str]) -> bool:
    return (
        row["object"].startswith("model")
        and row["compiled"] == "no"
        and conditions["source"] in row["source"]
        and row["mode"].partition(":")[0] == conditions["mode"]
    )


def _cell(row: dict[str, str], conditions: dict[str, str]) -> PublishedPeak:
    shape = int(row["d_model"]), int(row["n_layers"])
    size, config = next((name, c) for name, c in SIZES.items() if (c.d_model, c.num_layers) == shape)
    trains = row["mode"].startswith("full_step") or "in training" in row["mode"]
    case = LanguageModelCase(
        phase=_phase(row["mode"]), size=size, config=config.at_context(int(row["context"])),
        context_length=int(row["context"]), batch_size=int(conditions["batch"]), precision=PRECISIONS[row["precision"]],
        attention="naive", execution="eager", checkpoint=_checkpoint(row["mode"]),
        optimizer=conditions["optimizer"] if trains else None, device="cuda", model="ours",
    )  # fmt: skip
    return PublishedPeak(
        source=row["source"],
        gpu=row["gpu"],
        mode=row["mode"],
        precision=row["precision"],
        case=case,
        bytes=float(row["value"]) * int(conditions["unit_bytes"]) if row["value"] else None,
        last_digit_bytes=int(conditions["unit_bytes"]) / 10 ** len(row["value"].partition(".")[2]),
        conditions=conditions,
    )


def _phase(mode: str) -> str:
    if mode == "forward_peak(no_grad)":
        return "inference"
    return "forward_backward" if mode == "forward_peak(with grad)" else "full_step"


def _checkpoint(mode: str) -> str:
    return mode.removeprefix(CHECKPOINT) if mode.startswith(CHECKPOINT) else "none"


def compared(cells: Iterable[PublishedPeak]) -> list[ComparedPeak]:
    """Each cell beside the prediction of what was measured, whatever its label."""
    return [ComparedPeak(cell, predicted_bytes(_as_measured(cell))) for cell in cells]


def _as_measured(cell: PublishedPeak) -> PublishedPeak:
    known = outlier(cell)
    if known is None or known.meant_context is None:
        return cell
    config = cell.case.config.at_context(known.meant_context)
    return replace(cell, case=replace(cell.case, config=config, context_length=known.meant_context))


def predicted_bytes(cell: PublishedPeak) -> int:
    """The peak of the published code: the suite's own, under the conditions of the cell."""
    conditions = cell.conditions
    zero_grad = (conditions["zero_grad"] or "before_forward").replace("_", "-")
    phase = FIRST_STEP if conditions["first_step"] == "yes" else cell.case.phase
    counters = counters_of(replace(cell.case, phase=phase, zero_grad=zero_grad))
    parts = _parts_of_mode(cell, counters)
    if conditions["autocast_until"] == "step":
        parts = _with_weight_copies_to_the_end(parts)
    if conditions["saves_more"] == ANGLES_AND_MASK:
        parts = _with_angles_and_mask(cell.case, parts)
    threads = 1 if "forward" in cell.mode else 2
    beside = _held_beside_bytes(cell) + _cublas_workspace_bytes(cell.gpu, threads)
    beside += int(conditions["whole_blocks"]) * unsplit_weight_bytes(cell.case.config)
    return max(part.peak_bytes for part in parts) + beside


def _cublas_workspace_bytes(gpu_name: str, threads: int) -> int:
    """cuBLAS's own memory from the same allocator; forward and backward pass run in a thread each."""
    major = HOPPER_MAJOR if gpu_name.startswith(_HOPPER) else None
    return threads * libraries_on(major, TORCH_THEN, {}).workspace_bytes


def small_attention_peaks() -> list[AttentionPeak]:
    """Peaks of eager attention alone at short sequences, of a forward pass in a loop over both passes.

    So both threads' workspaces are there, but in the first cell of a source whose forward passes come before any
    backward pass. Left out are tables whose GPU or batch is not known.
    """
    return [
        _attention_peak(row)
        for row in published_rows(TABLE)
        if (row["object"], row["compiled"], row["status"]) == ("attention", "no", "ok")
        and row["mode"] in ("peak", "peak_forward")
        and int(row["context"]) <= SMALL_CONTEXT
        and (row["precision"], row["batch"]) == ("fp32", str(ATTENTION_BATCH_SIZE))
        and "unknown" not in row["gpu"]
    ]


def _attention_peak(row: dict[str, str]) -> AttentionPeak:
    width, length = int(row["d_model"]), int(row["context"])
    case = AttentionCase("attention_forward", width, length, ATTENTION_BATCH_SIZE, "fp32", "naive", "cuda")
    counters, threads = counters_of(case), 2
    tensors = counters.peak_bytes
    if row["source"].startswith(FORWARD_PASSES_ALONE):
        mask_bytes = length * length
        tensors += counters.saved_bytes - 2 * mask_bytes  # the former graph is held, and neither pass has a mask
        threads = 1 if (width, length) == FIRST_CELL else 2
    published = float(row["value"]) * UNITS[row["unit"]]
    with_workspaces = tensors + _cublas_workspace_bytes(row["gpu"], threads)
    return AttentionPeak(row["source"], row["gpu"], length, tensors / published - 1, with_workspaces / published - 1)


def _parts_of_mode(cell: PublishedPeak, counters: Counters) -> list[PartPeak]:
    if not cell.mode.startswith("forward"):
        return list(counters.parts)
    names = {"inference", "forward"} | ({"loss"} if cell.conditions["loss"] == "in forward" else set())
    return [part for part in counters.parts if part.part in names]


def _with_weight_copies_to_the_end(parts: list[PartPeak]) -> list[PartPeak]:
    """Inside of autocast its copies of the weights live until it is left."""
    copies = max(part.bytes_by_category.get(WEIGHT_COPIES, 0) for part in parts)
    return [
        replace(part, peak_bytes=part.peak_bytes + copies - part.bytes_by_category.get(WEIGHT_COPIES, 0))
        for part in parts
    ]


def _with_angles_and_mask(case: LanguageModelCase, parts: list[PartPeak]) -> list[PartPeak]:
    """Each block also saves cos and sin for each head's queries and keys, and a Boolean for each score."""
    angles_bytes = 2 * case.tokens * case.config.d_model * FLOAT32_BYTES
    mask_bytes = case.tokens * case.config.num_heads * case.context_length
    saved_bytes = case.config.num_layers * (angles_bytes + mask_bytes)
    return [
        part if part.part == "optimizer" else replace(part, peak_bytes=part.peak_bytes + saved_bytes) for part in parts
    ]


def _held_beside_bytes(cell: PublishedPeak) -> int:
    """What the code still holds from the pass before."""
    case = cell.case
    logits_bytes = case.tokens * case.config.vocab_size * (4 if case.precision == "fp32" else 2)
    held = cell.conditions["held_beside"]
    if held == "former pass":
        return counters_of(replace(case, phase="forward", optimizer=None)).saved_bytes + logits_bytes
    return logits_bytes if held == "former logits" else 0
