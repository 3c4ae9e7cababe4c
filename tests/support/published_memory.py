"""Published peaks of memory beside predictions of them, and why some are further off: `published/memory.csv`.

What was measured is predicted, whatever its label says; a recorded outlier names the condition that explains it. Peaks
of attention alone are compared without and with the workspaces of cuBLAS.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from claims.published import published_rows
from perf_tests_suite.perf_tests.cases.attention import ATTENTION_BATCH_SIZE, AttentionCase
from perf_tests_suite.perf_tests.predict.counters import counters_of
from tests.support.published_peaks import CONDITIONS, TABLE, PublishedPeak, cublas_workspace_bytes, predicted_bytes

OUTLIERS = "memory_outliers.csv"

LEFT_OUT = {
    "fadibenz/systems-transformer-optimizations": "states a batch of 4 and configures 2, and does not say what it read",
    "HanFa/assignment2-systems": "does not state the batch",
    "repository not named": "does not say what it read",
    "danzzzlll/Projects": "states neither GPU nor size",
}
"""Sources of peaks of whole models whose conditions are not stated, and what is missing."""

FORWARD_PASSES_ALONE = "Louisym/Stanford-CS336-spring25"
"""Its loop of forward passes assigns each output to the same name, which holds the former graph meanwhile, and passes
no mask (assignment2-systems/cs336_systems/flash_attention/benchamark_script.py)."""
FIRST_CELL = (16, 256)
"""Head width and length of its first cell; before it no backward pass has run."""

SMALL_CONTEXT = 1024
UNITS = {"GB": 1e9, "MB": 1e6, "MiB": 2**20}


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
        """Return the same error over the nearest bytes that the printed digits can stand for; 0 between them."""
        printed, digit_bytes = self.cell.bytes, self.cell.last_digit_bytes
        assert printed is not None
        least = printed if self.cell.conditions["figures"] == "cut" else printed - digit_bytes / 2
        return self.predicted_bytes / min(max(self.predicted_bytes, least), least + digit_bytes) - 1

    @property
    def is_step(self) -> bool:
        """Whether it is the peak of a full step, whose source states when gradients are cleared."""
        return self.cell.mode.startswith("full_step") and bool(self.cell.conditions["zero_grad"])


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


def compared(cells: Iterable[PublishedPeak]) -> list[ComparedPeak]:
    """Each cell beside the prediction of what was measured, whatever its label."""
    found = []
    for cell in cells:
        known, case = outlier(cell), cell.case
        if known is not None and known.meant_context is not None:
            config = case.config.at_context(known.meant_context)
            case = replace(case, config=config, context_length=known.meant_context)
        found.append(ComparedPeak(cell, predicted_bytes(replace(cell, case=case))))
    return found


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
    return [
        (source, next((reason for name, reason in LEFT_OUT.items() if name in source), "conditions unknown"))
        for source in sources
        if not any(name in source for name in known)
    ]


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
    with_workspaces = tensors + cublas_workspace_bytes(row["gpu"], threads)
    return AttentionPeak(row["source"], row["gpu"], length, tensors / published - 1, with_workspaces / published - 1)
