"""What measured passes of a host and its card say of others there: how long its launches take, how fast its kernels.

A pass that takes clearly longer than its kernels tells the host's launches, any other the device's kernels. Launches
differ by phase and precision, so those of a like pass are known better than others. The shares are read off published
tables: each cell calibrates, and the others of its table are judged (`python -m claims calibrated`)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.perf_tests.cases import options
from perf_tests_suite.perf_tests.cases.gate_options import one_of
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.datasheets import gpu_named
from perf_tests_suite.perf_tests.hardware.limits import Ceilings, Part, PredictedTime, Spread, predicted_time
from perf_tests_suite.perf_tests.phases import LANGUAGE_MODEL, phases_of
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.step import TargetMachine, parts_of
from perf_tests_suite.perf_tests.records.columns import CaseRow, cells_of, machine_name
from perf_tests_suite.perf_tests.records.format import duration
from perf_tests_suite.perf_tests.records.store import read_record
from perf_tests_suite.perf_tests.user_code.given import SHAPE

CLEARLY = 1.35
"""A host decides the time of a pass that takes this many times as long as its kernels."""

LIKE_HOST, HOST_OF_PRECISION, OTHER_HOST = (0.8, 1.25), (0.6, 1.6), (0.45, 2.2)
"""Multiples of a measured launch between which those of the same phase and precision lie, of the same precision, and
others."""
KNOWN_DEVICE, OTHER_DEVICE = (0.8, 1.2), (0.8, 1.35)
"""Multiples of a measured device's kernels, and of those of a device of which only launches were measured."""

HOSTS, DEVICES = (0.3, 8.0), (0.6, 2.5)
"""Multiples of a fast host's launches, and of predicted kernels, beyond which a figure is not explained."""

CALIBRATED_IN_RANGE = (16206, 18660)
"""How many of how many published times lie in the range that another one of their table gives; printed by
`python -m claims calibrated`."""
CALIBRATED_WORDS = "{} of {} published times lie in the range that another one of their table gives".format(
    *CALIBRATED_IN_RANGE
)

CALIBRATES = ("forward", "backward", "forward_backward", "full_step", "inference")

T = TypeVar("T")


@dataclass(frozen=True)
class MeasuredPass:
    """One pass of a whole model and the seconds that it took."""

    case: LanguageModelCase
    seconds: float
    name: str
    """Its name and time, for sentences."""


@dataclass(frozen=True)
class Calibration:
    """What measured passes tell: multiples of a fast host's launches, by phase and precision, and of its kernels."""

    hosts: dict[tuple[str, str], float]
    device: float | None
    by: tuple[str, ...]

    def spread(self, phase: str, precision: str) -> Spread | None:
        """The range for a pass like this; None for a host of which nothing is known, whose range is that of any."""
        around = KNOWN_DEVICE if self.device else OTHER_DEVICE
        middle = self.device or 1.0
        device = middle * around[0], middle, middle * around[1]
        if not self.hosts:
            return Spread(None, device)
        of_precision = [host for (_, known), host in self.hosts.items() if known == precision]
        if like := self.hosts.get((phase, precision)):
            host, (low, high) = like, LIKE_HOST
        elif of_precision:
            host, (low, high) = median(of_precision), HOST_OF_PRECISION
        else:
            host, (low, high) = median(self.hosts.values()), OTHER_HOST
        return Spread((host * low, host, host * high), device)


def calibration_of(measured: Sequence[MeasuredPass], machine: TargetMachine) -> Calibration:
    """Return what they tell together. Raises ValueError, with one sentence, where no host explains them."""
    if not machine.ceilings.launches_overlap:
        raise ValueError(f"{machine.name} computes while it launches, so that one figure tells neither; use a GPU.")
    hosts, devices = list[tuple[MeasuredPass, float]](), list[tuple[MeasuredPass, float]]()
    for one in measured:
        parts = parts_of(one.case, counters_of(one.case, libraries=machine.libraries))
        told, figure = told_by(one.seconds, parts, machine.ceilings)
        least, most = HOSTS if told == "host" else DEVICES
        if not least <= figure <= most:
            predicted = predicted_time(parts, machine.ceilings)
            near = f"{duration(predicted.low_seconds)} to {duration(predicted.high_seconds)}"
            cause = "a busy machine, or another pass" if figure > most else "another card or precision, or less work"
            raise ValueError(
                f"{one.name} calibrates nothing: {machine.name} is predicted to take {near}. Most likely {cause}."
            )
        (hosts if told == "host" else devices).append((one, figure))
    for found, key, widest in (
        ([(one, one.seconds) for one in measured], lambda one: one.case, LIKE_HOST[1] / LIKE_HOST[0]),
        (hosts, lambda one: (one.case.phase, one.case.precision), LIKE_HOST[1] / LIKE_HOST[0]),
        (devices, lambda one: "", KNOWN_DEVICE[1] / KNOWN_DEVICE[0]),
    ):
        _refuse_contradiction(found, key, widest)
    by_kind: dict[tuple[str, str], list[float]] = {}
    for one, figure in hosts:
        by_kind.setdefault((one.case.phase, one.case.precision), []).append(figure)
    return Calibration(
        {kind: median(figures) for kind, figures in by_kind.items()},
        median(figure for _, figure in devices) if devices else None,
        tuple(one.name for one in measured),
    )


def told_by(seconds: float, parts: Sequence[Part], ceilings: Ceilings) -> tuple[str, float]:
    """`host` or `device`, and by what multiple its launches or kernels explain the time."""
    kernels = predicted_time(parts, ceilings).kernel_seconds
    one = (1.0, 1.0, 1.0)
    if seconds > CLEARLY * kernels:
        return "host", _solved(seconds, lambda x: predicted_time(parts, ceilings, spread=Spread((x, x, x), one)))
    return "device", _solved(seconds, lambda x: predicted_time(parts, ceilings, spread=Spread(one, (x, x, x))))


def _solved(seconds: float, predict: Callable[[float], PredictedTime]) -> float:
    """The multiple at which the predicted time, which grows with it, is `seconds`."""
    low, high = 0.01, 100.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if predict(middle).seconds < seconds else (low, middle)
    return high


def _refuse_contradiction(
    found: Sequence[tuple[MeasuredPass, float]], key: Callable[[MeasuredPass], object], widest: float
) -> None:
    for number, (one, figure) in enumerate(found):
        for other, second in found[:number]:
            if key(one) == key(other) and max(figure / second, second / figure) > widest:
                raise ValueError(
                    f"{other.name} and {one.name} contradict each other: launches or kernels of the one take "
                    f"{max(figure / second, second / figure):.1f} x as long; leave out the one that is wrong."
                )


# The measured passes that are given: records, and what is typed.


TYPED = re.compile(r"(\w+)\s+(\S+)\s+(\d+)\s+([\w-]+)\s*=\s*(\d+(?:\.\d+)?)\s*(ms|s|us)")


def typed_pass(text: str, machine: TargetMachine, optimizer: str = "foreach") -> MeasuredPass:
    """A pass of `full_step small 512 bf16=41.2ms`: phase, size, context, precision and time, of a batch of 4.

    Raises ValueError with one sentence.
    """
    found = TYPED.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"--measured {text!r} is not of the form 'full_step small 512 bf16=41.2ms': "
            "phase, size, context, precision, and the time in ms."
        )
    phase, size, context, precision, figure, unit = found.groups()
    _check_phase(phase, f"--measured {text!r}")
    one_of(machine.ceilings.matmul_flops_per_second, "--measured: precision", precision)
    config = options.shape_named(options.sizes("--measured", size)[0]).at_context(int(context))
    seconds = float(figure) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]
    trains = phase == "full_step"
    case = LanguageModelCase(
        phase=phase, size=size, config=config, context_length=int(context), batch_size=4, precision=precision,
        attention="naive", execution="eager", checkpoint="none", optimizer=optimizer if trains else None,
        device=machine.device, model="ours",
    )  # fmt: skip
    return MeasuredPass(case, seconds, f"{phase} {size} {context} {precision} in {duration(seconds)}")


def recorded_passes(path: Path, machine: TargetMachine) -> list[MeasuredPass]:
    """The passes of a record that calibrate. Raises ValueError with one sentence, also where there is none."""
    record = read_record(path)
    card = machine_name(record.data)
    if record.data["machine_info"].get("torch", {}).get("gpu") is None:
        raise ValueError(f"{path} was recorded on a CPU, {card}; calibrate {machine.name} with a record of that card.")
    try:
        same = gpu_named(card).name == machine.name
    except ValueError:
        same = card == machine.name
    if not same:
        raise ValueError(f"{path} was recorded on {card}; calibrate {machine.name} with a record of that card.")
    cells = [cell for cell in cells_of(record.data) if cell.is_timed]
    used = [cell for cell in cells if _calibrates(cell)]
    flagged = [cell for cell in used if cell.flags]
    if flagged:
        why = flagged[0].flags[0].replace("_", " ")
        raise ValueError(f"{path}: {flagged[0].id} is flagged ({why}); measure it again on an idle machine.")
    if not used:
        raise ValueError(
            f"{path} has no row that calibrates, which is {', '.join(CALIBRATES)} of a size of the suite's, eager, "
            "on one device; rows of attention alone, of an optimizer or of collectives say nothing of its launches."
        )
    return [_recorded(cell, machine) for cell in used]


def _calibrates(cell: CaseRow) -> bool:
    fields = ("model", "execution", "device", "parallel")
    values = [cell.identity.get(name) for name in fields]
    optimizer = str(cell.identity.get("optimizer"))
    return values == ["ours", "eager", "cuda", None] and cell.phase in CALIBRATES and ":" not in optimizer


def _recorded(cell: CaseRow, machine: TargetMachine) -> MeasuredPass:
    known = cell.identity
    shape = {name: known[name] for name in (*SHAPE, "vocab_size", "context_length")}
    same = ("phase", "size", "context_length", "batch_size", "precision", "attention", "execution", "checkpoint",
            "optimizer", "device", "model")  # fmt: skip
    case = LanguageModelCase(config=ModelConfig(**shape), **{name: known[name] for name in same})
    seconds = cell.rounds.median
    return MeasuredPass(case, seconds, f"{cell.id} in {duration(seconds)}")


def _check_phase(phase: str, given: str) -> None:
    if phase not in CALIBRATES:
        known = [row.name for row in phases_of(LANGUAGE_MODEL)]
        why = "says nothing of a model's launches" if phase in known or phase.startswith("attention") else "is unknown"
        raise ValueError(f"{given}: {phase} {why}; calibrate with {', '.join(CALIBRATES)}.")
