"""Published peaks of memory beside predictions of them, from `published/memory.csv`.

The same cell is published with 26, 51, 60 and 64 GB, each right for its code. So each source has its conditions, read
from its code, in `published/memory_conditions.csv`: when it clears gradients, how its optimizer runs, what it still
holds from the pass before, how far autocast reaches. Every condition is one that a person chose, and none is fitted.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from model.sizes import SIZES
from perf_tests.cases import ATTENTION_BATCH_SIZE, AttentionCase, LanguageModelCase
from perf_tests.counting.case_counters import Counters, PartPeak, counters_of
from perf_tests.instruments.counters import WEIGHT_COPIES
from perf_tests.limits.cuda_libraries import HOPPER, libraries_on
from perf_tests.phases import FIRST_STEP

PUBLISHED = Path(__file__).parents[2] / "published"
TABLE = PUBLISHED / "memory.csv"
CONDITIONS = PUBLISHED / "memory_conditions.csv"
OUTLIERS = PUBLISHED / "memory_outliers.csv"

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

TORCH_THEN = "2.9"
"""Any version before 2.12 has the same rule of workspaces; the tables name none."""

_HOPPER = ("H100", "H200", "H800", "H20")

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
    conditions: dict[str, str]

    @property
    def name(self) -> str:
        case = self.case
        return f"{self.source.partition(':')[0]} {self.mode} {case.size}-ctx{case.context_length}-{case.precision}"


@dataclass(frozen=True)
class ComparedPeak:
    cell: PublishedPeak
    predicted_bytes: int

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        assert self.cell.bytes is not None
        return self.predicted_bytes / self.cell.bytes - 1


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


def published_peaks() -> list[PublishedPeak]:
    """Every row of the table whose conditions are known, empty cells included."""
    conditions = _rows(CONDITIONS)
    cells = []
    for row in _rows(TABLE):
        found = next((known for known in conditions if _is_under(row, known)), None)
        if found is not None and not row["mode"].endswith("nested"):
            cells.append(_cell(row, found))
    return cells


def outlier(cell: PublishedPeak) -> Outlier | None:
    """The known reason why this cell differs from its source's others; None without one."""
    for row in _rows(OUTLIERS):
        if (
            row["source"] in cell.source
            and (cell.mode, cell.precision) == (row["mode"], row["precision"])
            and str(cell.case.context_length) == row["context"]
        ):
            return Outlier(row["condition"], float(row["recorded_bytes"]) if row["recorded_bytes"] else None)
    return None


def left_out_sources() -> list[tuple[str, str]]:
    """Sources that have peaks of whole models and no conditions, each with what is missing."""
    sources = sorted(
        {row["source"] for row in _rows(TABLE) if row["object"].startswith("model") and "peak" in row["mode"]}
    )
    known = {row["source"] for row in _rows(CONDITIONS)}
    return [(source, _what_is_missing(source)) for source in sources if not any(name in source for name in known)]


def _what_is_missing(source: str) -> str:
    return next((reason for name, reason in LEFT_OUT.items() if name in source), "conditions unknown")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


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
        conditions=conditions,
    )


def _phase(mode: str) -> str:
    if mode == "forward_peak(no_grad)":
        return "inference"
    return "forward_backward" if mode == "forward_peak(with grad)" else "full_step"


def _checkpoint(mode: str) -> str:
    return mode.removeprefix(CHECKPOINT) if mode.startswith(CHECKPOINT) else "none"


def compared(cells: Iterable[PublishedPeak]) -> list[ComparedPeak]:
    return [ComparedPeak(cell, predicted_bytes(cell)) for cell in cells]


def predicted_bytes(cell: PublishedPeak) -> int:
    """The peak of the published code: the suite's own, under the conditions of the cell."""
    conditions = cell.conditions
    zero_grad = (conditions["zero_grad"] or "before_forward").replace("_", "-")
    phase = FIRST_STEP if conditions["first_step"] == "yes" else cell.case.phase
    counters = counters_of(replace(cell.case, phase=phase, zero_grad=zero_grad))
    parts = _parts_of_mode(cell, counters)
    if conditions["autocast_until"] == "step":
        parts = _with_weight_copies_to_the_end(parts)
    threads = 1 if "forward" in cell.mode else 2
    beside = _held_beside_bytes(cell) + _cublas_workspace_bytes(cell.gpu, threads)
    return max(part.peak_bytes for part in parts) + beside


def _cublas_workspace_bytes(gpu_name: str, threads: int) -> int:
    """cuBLAS's own memory from the same allocator; forward and backward pass run in a thread each."""
    major = HOPPER if gpu_name.startswith(_HOPPER) else None
    return threads * libraries_on(major, TORCH_THEN, {}).workspace_bytes


def small_attention_peaks() -> list[AttentionPeak]:
    """Peaks of eager attention alone at short sequences, of a forward pass in a loop over both passes.

    So both threads' workspaces are there. Left out are tables whose GPU or batch is not known.
    """
    return [
        _attention_peak(row)
        for row in _rows(TABLE)
        if (row["object"], row["compiled"], row["status"]) == ("attention", "no", "ok")
        and row["mode"] in ("peak", "peak_forward")
        and int(row["context"]) <= SMALL_CONTEXT
        and (row["precision"], row["batch"]) == ("fp32", str(ATTENTION_BATCH_SIZE))
        and "unknown" not in row["gpu"]
    ]


def _attention_peak(row: dict[str, str]) -> AttentionPeak:
    width, length = int(row["d_model"]), int(row["context"])
    case = AttentionCase("attention_forward", width, length, ATTENTION_BATCH_SIZE, "fp32", "naive", "cuda")
    tensors = counters_of(case).peak_bytes
    published = float(row["value"]) * UNITS[row["unit"]]
    with_workspaces = tensors + _cublas_workspace_bytes(row["gpu"], threads=2)
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


def _held_beside_bytes(cell: PublishedPeak) -> int:
    """What the code still holds from the pass before."""
    case = cell.case
    logits_bytes = case.tokens * case.config.vocab_size * (4 if case.precision == "fp32" else 2)
    held = cell.conditions["held_beside"]
    if held == "former pass":
        return counters_of(replace(case, phase="forward", optimizer=None)).saved_bytes + logits_bytes
    return logits_bytes if held == "former logits" else 0
