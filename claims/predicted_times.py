"""Predicted times against published ones: on hosts whose launches are known, and of each source fitted without it.

`known_hosts` calibrates a host's launches on one cell for each source, phase and precision, which validates nothing.
`left_out` fits from the other sources alone: the host's launches by kind and the share of the FP32 peak. What whole
models do not decide is stated and the same for all: the shares of the tensor cores' peak and of the bandwidth, strided
kernels, the last wave of tiles, an empty kernel, and how wide the ranges are.

What the suite knows of a published cell is its shape, phase, precision and GPU. The host is unknown, so that the time
of a launch is calibrated on one cell for each source, GPU, phase and precision: the smallest. That cell validates
nothing, and no other figure is fitted to any cell here.

Under one heading the sources of attention alone time different things: with or without a mask, the backward pass alone
or behind a forward pass. What each does is read from its code, in `published/attention_conditions.csv`. Sources that
leave out kernels of the suite's own attention are compared without them; those with other kernels are left out.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import hypot, isnan, nan
from statistics import mean, median, median_low
from typing import Any

from claims.published import published_rows
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware import limits
from perf_tests_suite.perf_tests.hardware.datasheets import gpu_named
from perf_tests_suite.perf_tests.phases import label_of
from perf_tests_suite.perf_tests.predict.calibration import CALIBRATED_IN_RANGE, DEVICES, HOSTS, Calibration, told_by
from perf_tests_suite.perf_tests.predict.counters import Counters as CaseCounters
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.difference import (
    CHANGES_IN_RANGE,
    OF_ATTENTION,
    OF_CHECKPOINTS,
    OF_PRECISION,
    Change,
    predicted_change,
)
from perf_tests_suite.perf_tests.predict.step import kind_of_launches, parts_of
from perf_tests_suite.perf_tests.records.format import DASH, table

E2E = "e2e_timing.csv"

PHASES = {"forward": "forward", "backward": "backward", "fwd_bwd": "forward_backward"}
"""Phases that hold nothing but the model's own work, by their name in the table."""

PRECISIONS = {
    "fp32": "fp32", "tf32": "tf32", "bf16_amp": "bf16", "fp16_amp": "fp16-unscaled", "fp16": "fp16-unscaled",
}  # fmt: skip

WARMUP_ROUNDS_AT_LEAST = 2
"""Fewer leave the first call's allocations and library loading in a mean of ten."""

LARGEST_SPREAD = 0.1
"""Standard deviation over mean of a case that did not pause, page or share its card."""

STEP_CONDITIONS = "step_conditions.csv"
"""How AdamW runs in a source that prints times of whole steps, by its code."""

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
    mask: str
    """`no`, `before` the timed function, or `yes`."""
    backward: str
    """`alone`, `with forward` or `with forward of query`."""
    rounding_seconds: float = 0.0
    is_by_do_bench: bool = False

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
    predicted: limits.PredictedTime

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.seconds / self.cell.seconds - 1

    @property
    def is_in_range(self) -> bool:
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


def everything(rows: Sequence[Row], phases: Mapping[str, str] = PHASES) -> tuple[list[PublishedTime], Counter[str]]:
    """Comparable cells of every source, an inferred GPU or context included, and how many are left out for what."""
    cells, left_out = [], Counter[str]()
    wrong = {tuple(row[name] for name in _JUDGED_BY) for row in published_rows(JUDGED)}
    rounding = rounding_seconds(rows)
    for row in rows:
        if not (_is_measured_well(row, ("stated", "script default")) and row["phase"] in phases):
            continue
        if not _has_a_gpu(row):
            left_out["no GPU of a datasheet is named"] += 1
        elif tuple(row[name] for name in _JUDGED_BY) in wrong:
            left_out["breaks physics, or has another batch"] += 1
        elif row["std_ms"] and float(row["std_ms"]) > LARGEST_SPREAD * float(row["mean_ms"]):
            left_out[f"its rounds spread by more than {LARGEST_SPREAD:.0%}"] += 1
        else:
            cell = _cell(row, phases[row["phase"]], gpu_named(row["gpu"]).name)
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
    known = [row for row in rows if _is_measured_well(row) and _optimizer(row) == "loop" and _has_a_gpu(row)]
    passes = {_configuration(row): row for row in known if row["phase"] == "fwd_bwd"}
    cells = [_cell(row, "optimizer", gpu_named(row["gpu"]).name) for row in known if row["phase"] == "optimizer"]
    for row in known:
        of_passes = passes.get(_configuration(row)) if row["phase"] == "full_step" else None
        if of_passes is not None:
            less = float(row["mean_ms"]) - float(of_passes["mean_ms"])
            if hypot(*(float(one["std_ms"] or 0) for one in (row, of_passes))) <= LARGEST_SPREAD * less:
                cells.append(_cell({**row, "mean_ms": f"{less}"}, "optimizer", gpu_named(row["gpu"]).name))
    return cells


def full_steps(rows: Sequence[Row]) -> list[PublishedTime]:
    """Whole steps of sources whose code says how their AdamW runs."""
    cells, _ = everything([row for row in rows if _optimizer(row)], {"full_step": "full_step"})
    return [replace(cell, case=replace(cell.case, optimizer=_optimizer({"source": cell.source}))) for cell in cells]


def _optimizer(row: Row) -> str:
    """How AdamW runs in the source of a row; empty where its steps have none, or it is not known."""
    known = (one["optimizer"] for one in published_rows(STEP_CONDITIONS) if row["source"].startswith(one["source"]))
    return next(known, "")


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
    ceilings = replace(limits.ceilings_of(gpu_named(cell.gpu)), **host)  # type: ignore[arg-type]
    return Compared(cell, predicted(cell.case, ceilings))


def predicted(case: Case, ceilings: limits.Ceilings) -> limits.PredictedTime:
    return limits.predicted_time(parts_of(case, work_of(case)), ceilings)


def launches_of(cell: PublishedTime | PublishedAttention) -> int:
    """Count the launches of what the source timed, which may leave out the mask's."""
    if isinstance(cell, PublishedAttention):
        return _part(cell.case, cell).launches
    launches = work_of(cell.case).kernel_launches
    assert launches is not None
    return launches


ATTENTION, ATTENTION_CONDITIONS = "attention_timing.csv", "attention_conditions.csv"
FLASH, SOFTMAX, FLASH_CONDITIONS = "flash_attention.csv.xz", "softmax_by_do_bench.csv", "flash_conditions.csv"
"""Tables of one sequence by `triton.testing.do_bench`; they judge predictions and no constant is fitted to them."""

LONG = 4096
"""Tokens from which the device bounds attention alone on every card."""

ATTENTION_PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "tf32?": "tf32", "bf16": "bf16-tensors"}

MADE_BEFORE = ("aten.arange", "aten.ge")
OF_THE_MASK = {"yes": (), "before": MADE_BEFORE, "no": (*MADE_BEFORE, "aten.where", "aten.scalar_tensor")}
"""Kernels that a source does not time, by when it makes the mask."""
OF_KEY_AND_VALUE = 2
"""Products, of the four backward: the gradients of key and value."""


def published_by_do_bench() -> tuple[list[PublishedAttention], Counter[str]]:
    """The same of attention on one sequence."""
    conditions = published_rows(FLASH_CONDITIONS)
    both = [row for name in (FLASH, SOFTMAX) for row in published_rows(name)]
    rows = [row for row in both if row["attention"] in ("naive", "softmax") and row["phase"] != "fwd_bwd"]
    float32 = {known["source"]: known["fp32_is"] for known in conditions}
    ran = ({"fp32": float32[row["source"].partition(":")[0]]}.get(row["precision"], "bf16") for row in rows)
    typed = [{**row, "precision_that_ran": precision} for row, precision in zip(rows, ran, strict=True)]
    cells, left_out = published_attention(typed, conditions)
    return [replace(cell, is_by_do_bench=True) for cell in cells], left_out


def published_attention(
    rows: Iterable[Row] = (), conditions: Sequence[Row] = ()
) -> tuple[list[PublishedAttention], Counter[str]]:
    """Every comparable cell, and how many others there are for what reason."""
    rows = [row for row in rows or published_rows(ATTENTION) if (row["status"], row["compiled"]) == ("ok", "no")]
    conditions = conditions or published_rows(ATTENTION_CONDITIONS)
    cells, left_out, rounding = [], Counter[str](), rounding_seconds(rows)
    for row in rows:
        known = next(one for one in conditions if one["source"] in row["source"])
        if known["is_comparable"] == "no":
            left_out[f"{known['source']}: {known['stated_in']}"] += 1
        elif float(row["mean_ms"]):
            cells.append(replace(_attention_cell(row, known), rounding_seconds=rounding[row["source"]]))
    return cells, left_out


def _attention_cell(row: Row, known: Row) -> PublishedAttention:
    case = AttentionCase(
        f"attention_{row['phase']}", int(row["d_model"]), int(row["seq_len"]), int(row["batch"]),
        ATTENTION_PRECISIONS[row["precision_that_ran"]], known["attention"], "cuda",
    )  # fmt: skip
    author, seconds = known["source"].partition("/")[0], float(row["mean_ms"]) / 1e3
    return PublishedAttention(author, gpu_named(row["gpu"]).name, case, seconds, known["mask"], known["backward"])


def predicted_attention(cell: PublishedAttention, ceilings: limits.Ceilings) -> limits.PredictedTime:
    """The time of what the source timed."""
    cases = [cell.case]
    if cell.case.phase_row.is_backward and cell.backward != "alone":
        cases = [replace(cell.case, phase="attention_forward"), cell.case]
    ahead_seconds = limits.DO_BENCH_BYTES / ceilings.bytes_per_second if cell.is_by_do_bench else 0.0
    return limits.predicted_time([_part(case, cell) for case in cases], ceilings, ahead_seconds)


def _part(case: AttentionCase, cell: PublishedAttention) -> limits.Part:
    kernels = [kernel for kernel in work_of(case).kernels if kernel.name not in OF_THE_MASK[cell.mask]]
    if case.phase_row.is_backward and cell.backward == "with forward of query":
        kernels = list(_without_key_and_value(kernels))
    return limits.Part(sum(kernel.calls for kernel in kernels), kernels, kind_of_launches(case))


def _without_key_and_value(kernels: Iterable[limits.KernelGroup]) -> Iterable[limits.KernelGroup]:
    left = OF_KEY_AND_VALUE
    for kernel in kernels:
        dropped = min(left, kernel.calls) if kernel.flops else 0
        left -= dropped
        if kernel.calls > dropped:
            yield replace(kernel, calls=kernel.calls - dropped)


LAUNCH_KINDS = {"forward": limits.FORWARD, "backward": limits.BACKWARD, "attention_forward": limits.BARE}
"""The kind of launches by phase. A pass there and back has launches of two kinds and decides neither."""

REFERENCE_IN_RANGE = {
    limits.LAUNCH: (76, 77), limits.LAUNCH_ON_A_TYPICAL_HOST: (140, 145),
    limits.COMPUTE: (101, 101), limits.MEMORY: (22, 22),
}  # fmt: skip
"""`IN_RANGE` of sources whose models are not known to launch other kernels than the reference."""

CLEARLY = 1.35
"""A host decides the time of a case that takes this many times as long as its kernels."""

NEARLY = 0.9

# The whole table of one source. It names no GPU; 31.8 TFLOP/s in fp32 are beyond every card of its time but the H100.
TABLE_OF_48, GPU_OF_TABLE = "charliesabino/cs336-assignment2", "H100-SXM"


@dataclass(frozen=True)
class Fit:
    """What some sources say."""

    fp32_shares: Mapping[bool, float]
    """Shares of the datasheet's peak, by whether a multiprocessor has 64 FP32 lanes."""
    launch_seconds: Mapping[str, float]
    """Seconds on a fast host, by kind."""

    def ceilings_of(self, gpu_name: str) -> limits.Ceilings:
        gpu = gpu_named(gpu_name)
        ceilings, host = limits.ceilings_of(gpu), limits.host_share(gpu)
        fp32 = gpu.rates["fp32"] * self.fp32_shares[limits.has_64_lanes(gpu)]
        rates = {**ceilings.matmul_flops_per_second, "fp32": fp32}
        return replace(
            ceilings,
            matmul_flops_per_second=rates,
            launch_seconds=host * self.launch_seconds[limits.FORWARD],
            backward_launch_seconds=host * self.launch_seconds[limits.BACKWARD],
            bare_launch_seconds=host * self.launch_seconds[limits.BARE],
            loop_launch_seconds=host * limits.LOOP_SHARE * self.launch_seconds[limits.BARE],
        )


SHIPPED = Fit(
    {False: limits.FP32_EFFICIENCY, True: limits.FP32_EFFICIENCY_WITH_64_LANES}, limits.FAST_HOST_LAUNCH_SECONDS
)


def known_hosts() -> dict[str, float]:
    """Print the table of 48 and every other synchronised eager source; their errors, and the share in range."""
    rows = published_rows(E2E)
    cells = comparable_cells((row for row in rows if TABLE_OF_48 in row["source"]), GPU_OF_TABLE)
    of_48 = calibrated(cells)
    print_groups((TABLE_OF_48, "GPU", "phase", "precision"), of_48[1], lambda one: one.cell.host)
    _, validated = calibrated(comparable_cells(row for row in rows if TABLE_OF_48 not in row["source"]))
    print_groups(("source", "GPU", "phase", "precision"), validated, lambda one: one.cell.host)
    return {
        "mean error of the table of 48": mean(abs(one.error) for found in of_48 for one in found),
        "median error of the others": median_error(validated),
        "others in their range": mean(one.is_in_range for one in validated),
    }


def left_out() -> dict[str, float]:
    """Print each source beside predictions fitted without it; how far off these are, by what bounds the time."""
    rows = published_rows(E2E)
    models, why_not = everything(rows)
    loops, (alone, why_no_attention) = optimizer_loops(rows), published_attention()
    by_do_bench, why_no_do_bench = published_by_do_bench()
    for reason, count in (why_not + why_no_attention + why_no_do_bench).items():
        print(f"not compared: {count} cells, {reason}")
    fits = _print_fits([*models, *loops, *alone])
    print("\nfitted to all sources, which validates nothing")
    print_by_bound([predicted_by(fits[""], cell) for cell in models])
    print("\neach source left out")
    found = [predicted_by(fits[cell.author], cell) for cell in models]
    print_groups(("left out", "bound by"), found, lambda one: (one.cell.author, one.predicted.bound))
    held = print_by_bound(found)
    print("\nof these, without models known to launch other kernels than the reference")
    of_the_reference = [one for one, cell in zip(found, models, strict=True) if not launches_otherwise(cell.source)]
    of_the_reference_held = print_by_bound(of_the_reference)
    updates = [predicted_by(fits[cell.author], cell) for cell in loops]
    attention = [predicted_by(fits[cell.author], cell) for cell in alone if cell.case.attention == "naive"]
    on_one_sequence = [predicted_by(fits.get(cell.author, fits[""]), cell) for cell in by_do_bench]
    others = {
        limits.FULL_STEPS: [predicted_by(fits[cell.author], cell) for cell in full_steps(rows)],
        limits.UPDATES: updates,
        limits.ALONE: attention,
        limits.SOFTMAX_ALONE: [
            predicted_by(fits[cell.author], cell) for cell in alone if cell.case.attention != "naive"
        ],
        limits.BY_DO_BENCH[limits.ALONE]: [one for one in on_one_sequence if one.cell.case.attention == "naive"],
        limits.BY_DO_BENCH[limits.SOFTMAX_ALONE]: [
            one for one in on_one_sequence if one.cell.case.attention != "naive"
        ],
    }
    by_class = {limits.WHOLE_MODELS: held}
    for name, found_of_class in others.items():
        print(f"\n{name}")
        print_groups(("left out", "GPU", "phase", "tokens or precision"), found_of_class, lambda one: one.cell.host)
        by_class[name] = print_by_bound(found_of_class)
    stated = [
        *((by_class[name], counts) for name, counts in limits.IN_RANGE.items()),
        (of_the_reference_held, REFERENCE_IN_RANGE),
    ]
    device = [one for one in found if one.predicted.bound in (limits.COMPUTE, limits.MEMORY)]
    host = [one for one in found if one.predicted.bound in (limits.LAUNCH, limits.LAUNCH_ON_A_TYPICAL_HOST)]
    return {
        "constants in use, furthest from their fit": furthest_constant(fits[""]),
        "counts in range other than stated": sum(there != here for there, here in stated),
        **{
            f"bound by {words}, median error": median_error(one for one in device if one.predicted.bound == bound)
            for words, bound in (("arithmetic", limits.COMPUTE), ("bandwidth", limits.MEMORY))
        },
        "bound by the device, in range": mean(one.is_in_range for one in device),
        "bound by launches, in range": mean(one.is_in_range for one in host),
        "attention alone, in range": mean(one.is_in_range for one in attention),
        "attention alone by do_bench, in range": mean(one.is_in_range for one in on_one_sequence),
        "updates by a loop, in range": mean(one.is_in_range for one in updates),
        "widest range": max(one.predicted.high_seconds / one.predicted.low_seconds for one in host),
        "updates by a loop, median error": median_error(updates),
        **{
            f"attention alone {part} from {LONG} tokens, median error": median_error(
                one for one in attention if one.cell.host[2:] == (part, f"from {LONG} tokens")
            )
            for part in ("forward", "backward")
        },
    }


def calibrated_by_one() -> dict[str, float]:
    """Print how many times of each table lie in the range that another one of it gives, each calibrating in turn, by
    constants fitted without the source; what no host or device explains calibrates nothing and counts as a miss."""
    rows = published_rows(E2E)
    models, loops, alone = everything(rows)[0], optimizer_loops(rows), published_attention()[0]
    fits = _print_fits([*models, *loops, *alone])
    tables: dict[tuple[str, str], list[PublishedTime]] = defaultdict(list)
    for cell in [*models, *full_steps(rows)]:
        tables[cell.source, cell.gpu].append(cell)
    found, widths, without = list[tuple[str, str, bool]](), list[float](), list[float]()
    for (_, gpu), cells in tables.items():
        ceilings = fits[cells[0].author].ceilings_of(gpu)
        parts = {id(cell): parts_of(cell.case, work_of(cell.case)) for cell in cells}
        any_host = {id(cell): limits.predicted_time(parts[id(cell)], ceilings) for cell in cells}
        for one in cells:
            told, figure = told_by(one.seconds, parts[id(one)], ceilings)
            least, most = HOSTS if told == "host" else DEVICES
            known = Calibration({(one.case.phase, one.case.precision): figure} if told == "host" else {},
                                figure if told == "device" else None, ())  # fmt: skip
            for cell in cells:
                if cell is one:
                    continue
                spread = known.spread(cell.case.phase, cell.case.precision)
                time = limits.predicted_time(parts[id(cell)], ceilings, spread=spread)
                is_held = least <= figure <= most and Compared(cell, time).is_in_range
                found.append((cell.author, told, is_held))
                widths.append(time.high_seconds / time.low_seconds)
                without.append(any_host[id(cell)].high_seconds / any_host[id(cell)].low_seconds)
    groups: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for author, told, is_held in found:
        groups[author, told].append(is_held)
    held = [(*group, f"{sum(every)} of {len(every)}") for group, every in sorted(groups.items())]
    print("\n".join(table(("left out", "one time tells", "others in range"), held, left=("one time tells",))))
    counts = sum(is_held for *_, is_held in found), len(found)
    print(f"{counts[0]} of {counts[1]} in range; ranges {median(widths):.2f} x wide, {median(without):.2f} x without")
    return {
        "in the range that another time of the table gives": counts[0] / counts[1],
        "width of a range, median": median(widths),
        "counts in range other than stated": counts != CALIBRATED_IN_RANGE,
    }


SETTINGS = {OF_PRECISION: "precision", OF_ATTENTION: "attention", OF_CHECKPOINTS: "checkpoint"}
"""The setting of a case that a published change of each kind changes."""


@dataclass(frozen=True)
class PublishedChange:
    """Two times of one source that differ in one setting alone."""

    base: PublishedTime
    head: PublishedTime
    peak_bytes: tuple[int, ...] = ()
    """Peaks of base and head, where they are published."""

    @property
    def kind(self) -> str:
        (kind,) = (one for one in SETTINGS if len(set(self.settings(one))) == 2)
        return kind

    def settings(self, kind: str) -> tuple[str, ...]:
        return tuple(getattr(cell.case, SETTINGS[kind]) for cell in (self.base, self.head))

    def predicted(self, fit: Fit) -> Change:
        base, head = (parts_of(cell.case, work_of(cell.case)) for cell in (self.base, self.head))
        return predicted_change(base, head, fit.ceilings_of(self.base.gpu))

    def is_in(self, change: Change) -> bool:
        """Whether the ratio may lie in the range, as far as the digits printed say."""
        ratio = self.head.seconds / self.base.seconds
        digits = sum(cell.rounding_seconds / cell.seconds for cell in (self.base, self.head))
        return change.low * (1 - digits) <= ratio <= change.high * (1 + digits)

    def predicted_fall(self) -> float:
        """How far the peak falls, predicted over published; NaN where it hardly does or none is published."""
        if not self.peak_bytes or self.peak_bytes[1] > HARDLY * self.peak_bytes[0]:
            return nan
        base, head = (work_of(cell.case).peak_bytes for cell in (self.base, self.head))
        return (base - head) / (self.peak_bytes[0] - self.peak_bytes[1])


HARDLY = 0.9
"""A head's share of base's peak, above which libraries and rounding may be what differs."""


def changes_of_precision(models: Iterable[PublishedTime]) -> list[PublishedChange]:
    """Each time in FP32 beside those of the same cell in other precisions."""
    alike: dict[tuple[str, str, LanguageModelCase], list[PublishedTime]] = defaultdict(list)
    for cell in models:
        alike[cell.source, cell.gpu, replace(cell.case, precision="")].append(cell)
    return [
        PublishedChange(base, head)
        for cells in alike.values()
        for base, head in product(cells, cells)
        if base.case.precision == "fp32" != head.case.precision
    ]


def published_changes() -> tuple[list[PublishedChange], Counter[str]]:
    """Pairs of naive and fused attention and of no and some checkpoints, and how many others there are for what reason.

    What is predicted is the reference model in the source's shape, its feed-forward of as many FLOPs. The models of
    transformers differ from it: layer norms, biases, dropout, GELU or ReLU, a softmax in FP32, and weights of 16 bits
    where the reference has autocast.
    """
    rows = published_rows("changes.csv")
    sides = ("base", "head")
    rounding = rounding_seconds({**row, "mean_ms": row[f"{side}_ms"]} for row in rows for side in sides)
    found, left_out = [], Counter(row["left_out"] for row in rows if row["left_out"])
    for row in rows:
        if not row["left_out"]:
            base, head = (replace(_side(row, side), rounding_seconds=rounding[row["source"]]) for side in sides)
            found.append(PublishedChange(base, head, tuple(int(row[f"{side}_peak_bytes"]) for side in sides)))
    return found, left_out


def _side(row: Row, side: str) -> PublishedTime:
    d_ff = int(row["d_ff"]) * int(row["ff_matrices"]) // 3
    shape = {"size": "", "d_ff": str(d_ff), "precision_that_ran": row["precision"], "mean_ms": row[f"{side}_ms"]}
    cell = _cell({**row, **shape}, row["phase"], row["peaks"] or gpu_named(row["gpu"]).name)
    setting = "attention" if row["base"] == "naive" else "checkpoint"
    changed: dict[str, Any] = {"optimizer": row["optimizer"] or None, setting: row[side]}
    return replace(cell, case=replace(cell.case, **changed))


def changes() -> dict[str, float]:
    """Print how many published ratios lie in the range that is predicted by constants fitted without their source, by
    kind of change, and how the peak's fall was predicted."""
    rows = published_rows(E2E)
    models, _ = everything(rows)
    fits = _print_fits([*models, *optimizer_loops(rows), *published_attention()[0]])
    others, left_out = published_changes()
    for reason, count in left_out.items():
        print(f"not compared: {count} pairs, {reason}")
    held: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    falls: dict[tuple[str, ...], list[float]] = defaultdict(list)
    mistaken = 0
    for pair in [*changes_of_precision(models), *others]:
        change = pair.predicted(fits.get(pair.base.author, fits[""]))
        mistaken += change.kind != pair.kind
        source = pair.base.author if pair.kind == OF_PRECISION else pair.base.source.partition(",")[0]
        group = pair.kind, source, " to ".join(pair.settings(pair.kind))
        held[group].append(pair.is_in(change))
        falls[group] += [fall for fall in [pair.predicted_fall()] if not isnan(fall)]
    found = [
        (*group, f"{sum(held[group])} of {len(held[group])}", f"{median(falls[group]):.2f}" if falls[group] else DASH)
        for group in sorted(held)
    ]
    header = ("change of", "left out", "from and to", "in range", "fall of peak over published")
    print("\n".join(table(header, found, left=header[1:3])))
    by_kind = {
        kind: [one for group, every in held.items() if group[0] == kind for one in every] for kind in CHANGES_IN_RANGE
    }
    return {
        **{f"changes of {kind} in range": mean(every) for kind, every in by_kind.items()},
        "counts in range other than stated": sum(
            (sum(every), len(every)) != CHANGES_IN_RANGE[kind] for kind, every in by_kind.items()
        ),
        "changes taken for another kind": mistaken,
    }


def median_error(found: Iterable[Compared]) -> float:
    return median(abs(one.error) for one in found)


def furthest_constant(fit: Fit) -> float:
    """How far the constants that the suite predicts with are from what all sources give, as a share."""
    in_use, of_all = ([*one.fp32_shares.values(), *one.launch_seconds.values()] for one in (SHIPPED, fit))
    return max(abs(one / other - 1) for one, other in zip(in_use, of_all, strict=True))


def fits_without(cells: Sequence[PublishedTime | PublishedAttention]) -> dict[str, Fit]:
    """Fits by the author left out; "" is nobody."""
    authors = sorted({cell.author for cell in cells})
    return {out: fitted([cell for cell in cells if cell.author != out]) for out in ("", *authors)}


def _print_fits(cells: Sequence[PublishedTime | PublishedAttention]) -> dict[str, Fit]:
    fits = fits_without(cells)
    rows = [
        (
            out or "nobody",
            *(f"{share:.2f}" for share in fit.fp32_shares.values()),
            *(f"{fit.launch_seconds[kind] * 1e6:.0f} us" for kind in LAUNCH_KINDS.values()),
        )
        for out, fit in fits.items()
    ]
    print("\n".join(table(("left out", "FP32 share", "of 64 lanes", *LAUNCH_KINDS.values()), rows)))
    return fits


def fitted(cells: Sequence[PublishedTime | PublishedAttention]) -> Fit:
    first = [predicted_by(SHIPPED, cell) for cell in cells]
    return Fit(
        {lanes: _fp32_share(first, lanes) for lanes in (False, True)},
        fast_launches(first),
    )


def _fp32_share(found: Iterable[Compared], with_64_lanes: bool) -> float:
    """The median over authors, of each the median over the cells that arithmetic bounds."""
    ratios = defaultdict(list)
    for one in found:
        is_of_kind = limits.has_64_lanes(gpu_named(one.cell.gpu)) is with_64_lanes and one.cell.case.precision == "fp32"
        if is_of_kind and one.predicted.bound == limits.COMPUTE:
            ratios[one.cell.author].append(one.predicted.seconds / one.cell.seconds)
    return SHIPPED.fp32_shares[with_64_lanes] * median(median(of_author) for of_author in ratios.values())


def fast_launches(found: Iterable[Compared]) -> dict[str, float]:
    """Seconds of a forward pass by `start_of_range`; other kinds are as much less as where one author shows both."""
    launches: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in LAUNCH_KINDS.values()}
    for one in found:
        kind = LAUNCH_KINDS.get(one.cell.case.phase)
        if kind is not None and one.cell.seconds > CLEARLY * one.predicted.kernel_seconds:
            launches[kind][one.cell.author].append(one.cell.seconds / launches_of(one.cell))
    ahead = launches[limits.FORWARD]
    start = start_of_range(list(ahead.values()))
    shares = {
        kind: median_low(min(group) / min(ahead[author]) for author, group in by_author.items() if author in ahead)
        for kind, by_author in launches.items()
    }
    return {kind: start * share for kind, share in shares.items()}


def start_of_range(groups: Sequence[Sequence[float]]) -> float:
    """The fastest start, in whole microseconds, of a range that holds nearly the most launches, each group counting
    once: the best start would hang on the fastest launch of one group."""
    held = {
        us: sum(mean(us * 1e-6 <= one <= us * 1e-6 * limits.HOST_SPREAD for one in group) for group in groups)
        for us in range(1, 100)
    }
    return min(us for us, count in held.items() if count >= NEARLY * max(held.values())) * 1e-6


def predicted_by(fit: Fit, cell: PublishedTime | PublishedAttention) -> Compared:
    ceilings = fit.ceilings_of(cell.gpu)
    if isinstance(cell, PublishedAttention):
        return Compared(cell, predicted_attention(cell, ceilings))
    return Compared(cell, predicted(cell.case, ceilings))


def print_groups(names: Sequence[str], found: Iterable[Compared], key: Callable[[Compared], tuple[str, ...]]) -> None:
    """Print a line for each key: its cells, their median error, and how many lie in their range."""
    groups: dict[tuple[str, ...], list[Compared]] = defaultdict(list)
    for one in found:
        groups[key(one)].append(one)
    rows = [(*group, *_row(groups[group])) for group in sorted(groups)]
    print("\n".join(table((*names, "cells", "median error", "in range"), rows, left=names[1:])))


def print_by_bound(found: Sequence[Compared]) -> dict[str, tuple[int, int]]:
    """How many of how many lie in their range, by bound."""
    groups: dict[str, list[Compared]] = defaultdict(list)
    for one in found:
        groups[one.predicted.bound].append(one)
    print(
        "\n".join(table(("bound by", "cells", "median error", "in range"), [(b, *_row(g)) for b, g in groups.items()]))
    )
    return {bound: (sum(one.is_in_range for one in group), len(group)) for bound, group in groups.items()}


def _row(group: Sequence[Compared]) -> tuple[str, str, str]:
    held = sum(one.is_in_range for one in group)
    return str(len(group)), f"{median(abs(one.error) for one in group):.0%}", f"{held} of {len(group)}"
