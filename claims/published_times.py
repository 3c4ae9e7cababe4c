"""Published times beside predictions of them: eager phases, `published/e2e_timing.csv`, and attention alone.

What the suite knows of a published cell is its shape, phase, precision and GPU. The host is unknown, so that the time
of a launch is calibrated on one cell for each source, GPU, phase and precision: the smallest. That cell validates
nothing, and no other figure is fitted to any cell here.

Under one heading the sources of attention alone time different things: with or without a mask, the backward pass alone
or behind a forward pass. What each does is read from its code, in `published/attention_conditions.csv`. Sources that
leave out kernels of the suite's own attention are compared without them; those with other kernels are left out.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from model.sizes import ModelConfig
from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import gpu_named
from perf_tests.hardware.limits import Ceilings, KernelGroup, Part, PredictedTime, ceilings_of, predicted_time
from perf_tests.phases import label_of
from perf_tests.predict.counters import Counters as CaseCounters
from perf_tests.predict.counters import counters_of
from perf_tests.predict.step import kind_of_launches, parts_of
from perf_tests.records.published import published_rows

E2E = "e2e_timing.csv"

PHASES = {"forward": "forward", "backward": "backward", "fwd_bwd": "forward_backward"}
"""Phases that hold nothing but the model's own work, by their name in the table."""

PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "bf16_amp": "bf16", "fp16_amp": "fp16-unscaled"}

WARMUP_ROUNDS_AT_LEAST = 2
"""Fewer leave the first call's allocations and library loading in a mean of ten."""

LARGEST_SPREAD = 0.1
"""Standard deviation over mean of a case that did not pause, page or share its card."""

LOOPS = ("yyin-dev/", "sandrewxu/", "brandon-snider/")
"""Sources whose AdamW is a loop over the parameters, by `published/memory_conditions.csv`, and that print its time."""

CONDITIONS = "model_conditions.csv"
"""Sources whose models launch other kernels than the reference, by their code."""

JUDGED = "judged_e2e_timing.csv"
_JUDGED_BY = ("source", "gpu", "size", "batch", "context", "precision", "compiled", "phase", "mean_ms")

Row = Mapping[str, str]


@dataclass(frozen=True)
class PublishedTime:
    """One cell of a published table."""

    source: str
    gpu: str
    case: LanguageModelCase
    seconds: float
    rounding_seconds: float = 0.0
    """The most that lies between what was measured and what is printed."""

    @property
    def host(self) -> tuple[str, str, str, str]:
        """Cells that agree in this were launched alike."""
        return self.source, self.gpu, self.case.phase, self.case.precision

    @property
    def author(self) -> str:
        """Owner of the repository, whose tables share code and machine."""
        return re.sub(r"^write-up \d+ \(?", "", self.source).partition("/")[0]


@dataclass(frozen=True)
class PublishedAttention:
    """One published time, and what its source's code does."""

    author: str
    gpu: str
    case: AttentionCase
    seconds: float
    has_mask: bool
    backward: str
    """`alone`, `with forward` or `with forward of query`."""
    rounding_seconds: float = 0.0

    @property
    def host(self) -> tuple[str, str, str, str]:
        """Author, GPU, part and length of attention alone."""
        tokens = f"from {LONG} tokens" if self.is_long else f"below {LONG} tokens"
        return self.author, self.gpu, label_of(self.case.phase), tokens

    @property
    def is_long(self) -> bool:
        return self.case.sequence_length >= LONG


@dataclass(frozen=True)
class Compared:
    """A published time beside its prediction."""

    cell: PublishedTime | PublishedAttention
    predicted: PredictedTime

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.seconds / self.cell.seconds - 1

    @property
    def is_held(self) -> bool:
        """Whether what was measured may lie in the range, as far as the digits printed say."""
        low, high = self.predicted.low_seconds, self.predicted.high_seconds
        return low - self.cell.rounding_seconds <= self.cell.seconds <= high + self.cell.rounding_seconds


def comparable_cells(rows: Iterable[Row], gpu: str | None = None) -> list[PublishedTime]:
    """Eager, synchronised, warmed-up cells whose context and precision are known, on `gpu` or the GPU they state."""
    return [
        _cell(row, PHASES[row["phase"]], gpu or gpu_named(row["gpu"]).name)
        for row in rows
        if _is_measured_well(row)
        and row["phase"] in PHASES
        and (gpu is not None or (row["gpu_basis"].startswith("stated") and _has_a_gpu(row)))
    ]


def everything(rows: Sequence[Row]) -> tuple[list[PublishedTime], Counter[str]]:
    """Comparable cells of every source, an inferred GPU or context included, and how many are left out for what."""
    cells, left_out = [], Counter[str]()
    wrong = {tuple(row[name] for name in _JUDGED_BY) for row in published_rows(JUDGED)}
    rounding = rounding_seconds(rows)
    for row in rows:
        if not (_is_measured_well(row, ("stated", "script default")) and row["phase"] in PHASES):
            continue
        if not _has_a_gpu(row):
            left_out["no GPU of a datasheet is named"] += 1
        elif tuple(row[name] for name in _JUDGED_BY) in wrong:
            left_out["breaks physics, or has another batch"] += 1
        elif row["std_ms"] and float(row["std_ms"]) > LARGEST_SPREAD * float(row["mean_ms"]):
            left_out[f"its rounds spread by more than {LARGEST_SPREAD:.0%}"] += 1
        else:
            cell = _cell(row, PHASES[row["phase"]], gpu_named(row["gpu"]).name)
            cells.append(replace(cell, rounding_seconds=rounding[row["source"]]))
    return cells, left_out


def rounding_seconds(rows: Iterable[Row]) -> dict[str, float]:
    """Half of the finest digit among the times of a source in ms, by source: 78 beside 82.4 is 78.0."""
    decimals: Counter[str] = Counter()
    for row in rows:
        decimals[row["source"]] = max(decimals[row["source"]], len(row["mean_ms"].partition(".")[2]))
    return {source: 0.5e-3 * 10**-count for source, count in decimals.items()}


def optimizer_loops(rows: Sequence[Row]) -> list[PublishedTime]:
    """Updates by a loop over the parameters: printed, or a step less its passes, in sources known to run one."""
    known = [row for row in rows if _is_measured_well(row) and row["source"].startswith(LOOPS) and _has_a_gpu(row)]
    passes = {_configuration(row): row for row in known if row["phase"] == "fwd_bwd"}
    cells = [_cell(row, "optimizer", gpu_named(row["gpu"]).name) for row in known if row["phase"] == "optimizer"]
    for row in known:
        of_passes = passes.get(_configuration(row)) if row["phase"] == "full_step" else None
        if of_passes is not None:
            less = f"{float(row['mean_ms']) - float(of_passes['mean_ms'])}"
            cells.append(_cell({**row, "mean_ms": less}, "optimizer", gpu_named(row["gpu"]).name))
    return cells


def _configuration(row: Row) -> tuple[str, ...]:
    shape = ("gpu", "d_model", "n_layers", "batch", "context", "precision_that_ran", "warmup")
    return row["source"].partition("/")[0], *(row[name] for name in shape)


def launches_otherwise(source: str) -> bool:
    """Whether the code of this source is known to launch other kernels than the reference model."""
    return any(source.startswith(row["source"]) for row in published_rows(CONDITIONS))


def _is_measured_well(row: Row, contexts: tuple[str, ...] = ("stated",)) -> bool:
    return (
        (row["status"], row["compiled"], row["sync"]) == ("ok", "no", "yes")
        and row["context_basis"] in contexts
        and row["precision_that_ran"] in PRECISIONS
        and int(row["warmup"] or 0) >= WARMUP_ROUNDS_AT_LEAST
        and all(row[name].isdecimal() for name in ("d_model", "d_ff", "n_layers", "n_heads", "vocab", "batch"))
    )


def _has_a_gpu(row: Row) -> bool:
    try:
        gpu_named(row["gpu"])
    except ValueError:  # a CPU, or a chip that is not named
        return False
    return True


def _cell(row: Row, phase: str, gpu: str) -> PublishedTime:
    config = ModelConfig(
        d_model=int(row["d_model"]), d_ff=int(row["d_ff"]), num_layers=int(row["n_layers"]),
        num_heads=int(row["n_heads"]), vocab_size=int(row["vocab"]), context_length=int(row["context"]),
    )  # fmt: skip
    case = LanguageModelCase(
        phase=phase, size=row["size"], config=config, context_length=config.context_length,
        batch_size=int(row["batch"]), precision=PRECISIONS[row["precision_that_ran"]], attention="naive",
        execution="eager", checkpoint="none", optimizer="loop" if phase == "optimizer" else None, device="cuda",
        model="ours",
    )  # fmt: skip
    return PublishedTime(row["source"], gpu, case, float(row["mean_ms"]) / 1e3)


@cache
def work_of(case: Case) -> CaseCounters:
    """Count work once for all sources that measured the case."""
    return counters_of(case)


def calibrated(cells: Iterable[PublishedTime]) -> tuple[list[Compared], list[Compared]]:
    """The cells that calibrate a launch, and all others predicted with it."""
    by_host: dict[tuple[str, str, str, str], list[PublishedTime]] = defaultdict(list)
    for cell in cells:
        by_host[cell.host].append(cell)
    calibrating, validated = [], []
    for group in by_host.values():
        smallest, *others = sorted(group, key=lambda cell: (cell.case.config.parameters, cell.case.tokens))
        launch_seconds = smallest.seconds / launches_of(smallest)
        calibrating.append(predicted_cell(smallest, launch_seconds))
        validated += [predicted_cell(cell, launch_seconds) for cell in others]
    return calibrating, validated


def predicted_cell(cell: PublishedTime, launch_seconds: float) -> Compared:
    """The prediction where every launch takes so long."""
    host = {"launch_seconds": launch_seconds, "backward_launch_seconds": launch_seconds, "host_spread": 1.0}
    ceilings = replace(ceilings_of(gpu_named(cell.gpu)), **host)  # type: ignore[arg-type]
    return Compared(cell, predicted(cell.case, ceilings))


def predicted(case: Case, ceilings: Ceilings) -> PredictedTime:
    return predicted_time(parts_of(case, work_of(case)), ceilings)


def launches_of(cell: PublishedTime | PublishedAttention) -> int:
    """Count the launches of what the source timed, which may leave out the mask's."""
    if isinstance(cell, PublishedAttention):
        return _part(cell.case, cell).launches
    launches = work_of(cell.case).kernel_launches
    assert launches is not None
    return launches


ATTENTION, ATTENTION_CONDITIONS = "attention_timing.csv", "attention_conditions.csv"

LONG = 4096
"""Tokens from which the device bounds attention alone on every card."""

ATTENTION_PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "tf32?": "tf32"}

OF_THE_MASK = ("aten.arange", "aten.ge", "aten.where", "aten.scalar_tensor")
OF_KEY_AND_VALUE = 2
"""Products, of the four backward: the gradients of key and value."""


def published_attention() -> tuple[list[PublishedAttention], Counter[str]]:
    """Every comparable cell, and how many others there are for what reason."""
    rows = [row for row in published_rows(ATTENTION) if (row["status"], row["compiled"]) == ("ok", "no")]
    conditions = published_rows(ATTENTION_CONDITIONS)
    cells, left_out, rounding = [], Counter[str](), rounding_seconds(rows)
    for row in rows:
        known = next(one for one in conditions if one["source"] in row["source"])
        if known["is_comparable"] == "no":
            left_out[f"{known['source']}: {known['stated_in']}"] += 1
        elif float(row["mean_ms"]):
            cells.append(replace(_attention_cell(row, known), rounding_seconds=rounding[row["source"]]))
    return cells, left_out


def _attention_cell(row: dict[str, str], known: dict[str, str]) -> PublishedAttention:
    case = AttentionCase(
        f"attention_{row['phase']}", int(row["d_model"]), int(row["seq_len"]), int(row["batch"]),
        ATTENTION_PRECISIONS[row["precision_that_ran"]], "naive", "cuda",
    )  # fmt: skip
    seconds, has_mask = float(row["mean_ms"]) / 1e3, known["mask"] == "yes"
    author = known["source"].partition("/")[0]
    return PublishedAttention(author, gpu_named(row["gpu"]).name, case, seconds, has_mask, known["backward"])


def predicted_attention(cell: PublishedAttention, ceilings: Ceilings) -> PredictedTime:
    """The time of what the source timed."""
    cases = [cell.case]
    if cell.case.row.is_backward and cell.backward != "alone":
        cases = [replace(cell.case, phase="attention_forward"), cell.case]
    return predicted_time([_part(case, cell) for case in cases], ceilings)


def _part(case: AttentionCase, cell: PublishedAttention) -> Part:
    kernels = list(work_of(case).kernels)
    if not cell.has_mask:
        kernels = [kernel for kernel in kernels if kernel.name not in OF_THE_MASK]
    if case.row.is_backward and cell.backward == "with forward of query":
        kernels = list(_without_key_and_value(kernels))
    return Part(sum(kernel.calls for kernel in kernels), kernels, kind_of_launches(case))


def _without_key_and_value(kernels: Iterable[KernelGroup]) -> Iterable[KernelGroup]:
    left = OF_KEY_AND_VALUE
    for kernel in kernels:
        dropped = min(left, kernel.calls) if kernel.flops else 0
        left -= dropped
        if kernel.calls > dropped:
            yield replace(kernel, calls=kernel.calls - dropped)
