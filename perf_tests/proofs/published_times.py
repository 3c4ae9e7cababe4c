"""Published times of eager phases beside predictions of them, from `published/e2e_timing.csv`.

What the suite knows of a published cell is its shape, phase, precision and GPU. The host is unknown, so that the time
of a launch is calibrated on one cell for each source, GPU, phase and precision: the smallest. That cell validates
nothing, and no other figure is fitted to any cell here.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from model.sizes import ModelConfig
from perf_tests.cases import LanguageModelCase
from perf_tests.counting.case_counters import Counters, counters_of
from perf_tests.limits.ceilings import Ceilings, ceilings_of
from perf_tests.limits.datasheets import gpu_named
from perf_tests.limits.predicted_time import PredictedTime, predicted_time
from perf_tests.prediction.step import parts_of

TABLE = Path(__file__).parents[2] / "published" / "e2e_timing.csv"

PHASES = {"forward": "forward", "backward": "backward", "fwd_bwd": "forward_backward"}
"""Phases that hold nothing but the model's own work, by their name in the table."""

PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "bf16_amp": "bf16", "fp16_amp": "fp16-unscaled"}

WARMUP_ROUNDS_AT_LEAST = 2
"""Fewer leave the first call's allocations and library loading in a mean of ten."""


@dataclass(frozen=True)
class PublishedTime:
    """One cell of a published table."""

    source: str
    gpu: str
    case: LanguageModelCase
    seconds: float

    @property
    def host(self) -> tuple[str, str, str, str]:
        """Cells that agree in this were launched alike."""
        return self.source, self.gpu, self.case.phase, self.case.precision

    @property
    def name(self) -> str:
        return f"{self.case.phase} {self.case.size}-ctx{self.case.context_length}-{self.case.precision}"


@dataclass(frozen=True)
class Validated:
    """A cell beside what was predicted of it."""

    cell: PublishedTime
    predicted: PredictedTime
    launch_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.seconds / self.cell.seconds - 1


def published_rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as lines:
        return list(csv.DictReader(lines))


def comparable_cells(rows: Iterable[dict[str, str]], gpu: str | None = None) -> list[PublishedTime]:
    """Eager, synchronised, warmed-up cells whose context and precision are known, on `gpu` or the GPU they state."""
    return [
        _cell(row, gpu or gpu_named(row["gpu"]).name)
        for row in rows
        if row["status"] == "ok"
        and row["compiled"] == "no"
        and row["sync"] == "yes"
        and row["context_basis"] == "stated"
        and row["phase"] in PHASES
        and row["precision_that_ran"] in PRECISIONS
        and int(row["warmup"] or 0) >= WARMUP_ROUNDS_AT_LEAST
        and _names_a_shape(row)
        and (gpu is not None or _states_its_gpu(row))
    ]


def _names_a_shape(row: dict[str, str]) -> bool:
    return all(row[name].isdecimal() for name in ("d_model", "d_ff", "n_layers", "n_heads", "vocab", "batch"))


def _states_its_gpu(row: dict[str, str]) -> bool:
    if not row["gpu_basis"].startswith("stated"):
        return False
    try:
        gpu_named(row["gpu"])
    except ValueError:  # a CPU, or a chip that is not named
        return False
    return True


def _cell(row: dict[str, str], gpu: str) -> PublishedTime:
    config = ModelConfig(
        d_model=int(row["d_model"]), d_ff=int(row["d_ff"]), num_layers=int(row["n_layers"]),
        num_heads=int(row["n_heads"]), vocab_size=int(row["vocab"]), context_length=int(row["context"]),
    )  # fmt: skip
    case = LanguageModelCase(
        phase=PHASES[row["phase"]], size=row["size"], config=config, context_length=config.context_length,
        batch_size=int(row["batch"]), precision=PRECISIONS[row["precision_that_ran"]], attention="naive",
        execution="eager", checkpoint="none", optimizer=None, device="cuda", model="ours",
    )  # fmt: skip
    return PublishedTime(row["source"], gpu, case, float(row["mean_ms"]) / 1e3)


@cache
def work_of(case: LanguageModelCase) -> Counters:
    """Counted once for all sources that measured the case."""
    return counters_of(case)


def calibrated(cells: Iterable[PublishedTime]) -> tuple[list[Validated], list[Validated]]:
    """The cells that calibrate a launch, and all others predicted with it."""
    by_host: dict[tuple[str, str, str, str], list[PublishedTime]] = defaultdict(list)
    for cell in cells:
        by_host[cell.host].append(cell)
    calibrating, validated = [], []
    for group in by_host.values():
        smallest, *others = sorted(group, key=lambda cell: (cell.case.config.parameters, cell.case.tokens))
        launch_seconds = smallest.seconds / launches_of(smallest.case)
        calibrating.append(predicted_cell(smallest, launch_seconds))
        validated += [predicted_cell(cell, launch_seconds) for cell in others]
    return calibrating, validated


def predicted_cell(cell: PublishedTime, launch_seconds: float | None) -> Validated:
    """With launches that take `launch_seconds`, or those of a typical host."""
    ceilings = ceilings_of(gpu_named(cell.gpu))
    if launch_seconds is not None:
        ceilings = replace(ceilings, launch_seconds=launch_seconds, backward_launch_seconds=launch_seconds)
    return Validated(cell, _predicted(cell.case, ceilings), ceilings.launch_seconds)


def _predicted(case: LanguageModelCase, ceilings: Ceilings) -> PredictedTime:
    return predicted_time(parts_of(case, work_of(case)), ceilings)


def launches_of(case: LanguageModelCase) -> int:
    launches = work_of(case).kernel_launches
    assert launches is not None
    return launches
