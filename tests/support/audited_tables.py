"""Tables as somebody else may have measured them: honest ones from a simple machine, to plant mistakes in and audit."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perf_tests_suite.perf_tests.audit.figures import Figure, Finding, NotJudged
from perf_tests_suite.perf_tests.audit.physics import judge
from perf_tests_suite.perf_tests.audit.tables import open_figures, with_gpu
from perf_tests_suite.perf_tests.hardware.datasheets import Gpu
from perf_tests_suite.perf_tests.hardware.limits import SIZES, ModelWork

Row = dict[str, str]

PEAK = {"fp32": 19.5e12, "bf16_amp": 312e12}
EFFICIENCY = {"fp32": 0.75, "bf16_amp": 0.4}
LAUNCHING_SECONDS = {"fp32": 1.6e-3, "bf16_amp": 1.68e-3}
"""Seconds of one layer."""
SHARES_OF_FORWARD = {"forward": 1.0, "backward": 2.0, "fwd_bwd": 3.0}


def model_row(
    size: str = "large", context: int = 512, precision: str = "fp32", phase: str = "forward", **changes: str
) -> Row:
    """An A100's time at three quarters of its peak, or at the pace of its launches where that is slower."""
    config = SIZES[size]
    flops = ModelWork(size, config, 4, context).least_flops("forward", leaves_masked_half=False) or 0
    kernels, launches = flops / EFFICIENCY[precision] / PEAK[precision], LAUNCHING_SECONDS[precision]
    row = {
        "source": "somebody/repository:table.md", "gpu": "A100-80GB", "gpu_basis": "stated", "size": size,
        "d_model": str(config.d_model), "d_ff": str(config.d_ff), "n_layers": str(config.num_layers),
        "n_heads": str(config.num_heads), "vocab": str(config.vocab_size), "batch": "4", "context": str(context),
        "precision": precision, "compiled": "no", "phase": phase,
        "mean_ms": f"{SHARES_OF_FORWARD[phase] * max(kernels, launches * config.num_layers) * 1e3:.6g}",
        "std_ms": "0.1", "n_measured": "10", "warmup": "5",
    }  # fmt: skip
    return {**row, **changes}


TOO_FAST = model_row(mean_ms="90")
"""Impossible under its labels: fp32 on one A100."""


def model_table() -> list[Row]:
    """All that an honest write-up has."""
    return [model_row(*of) for of in product(("small", "medium", "large", "xl"), (128, 512), PEAK, SHARES_OF_FORWARD)]


def attention_row(sequence: int = 8192, phase: str = "forward", compiled: str = "no", **changes: str) -> Row:
    """Attention alone on an A100: products at four fifths of its peak, and passes over the square through its memory,
    10 of them op by op and 3 compiled."""
    square = 8 * sequence**2
    passes = (3 if compiled == "yes" else 10) * 4 * square / 2.0e12
    seconds = (2.2 if phase == "backward" else 1.0) * (4 * square * 64 / (0.8 * PEAK["fp32"]) + passes)
    row = {
        "source": "somebody/repository:attention.md", "gpu": "A100-80GB", "batch": "8", "d_model": "64",
        "seq_len": str(sequence), "precision": "fp32", "compiled": compiled, "phase": phase,
        "mean_ms": f"{seconds * 1e3:.6g}", "n_measured": "100",
    }  # fmt: skip
    return {**row, **changes}


def written(folder: Path, rows: Sequence[Row], name: str = "table.csv") -> Path:
    with open(folder / name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(column for row in rows for column in row)))
        writer.writeheader()
        writer.writerows(rows)
    return folder / name


def read_table(path: Path) -> tuple[str, list[Any]]:
    """The kind and all figures of a table at once."""
    with open_figures(path) as (kind, figures):
        return kind, list(figures)


@dataclass(frozen=True)
class Audit:
    """What is said of a file, and the places of its figures."""

    kind: str
    places: list[str]
    findings: list[Finding]
    not_judged: list[NotJudged]


def audit_file(path: Path, gpu: Gpu | None = None) -> Audit:
    with open_figures(path) as (kind, figures):
        read: list[Figure | NotJudged] = [with_gpu(figure, gpu) for figure in figures]
    said = [one for figure in read for one in judge(figure)]
    findings = [one for one in said if isinstance(one, Finding)]
    not_judged = [one for one in said if isinstance(one, NotJudged)]
    return Audit(kind, [figure.place for figure in read], findings, not_judged)


def audited(*rows: Row) -> Audit:
    """The audit of a table of these rows."""
    with TemporaryDirectory() as folder:
        return audit_file(written(Path(folder), rows))


def rules(*rows: Row) -> set[str]:
    """Rules that a table of these rows breaks."""
    return {finding.rule for finding in audited(*rows).findings}


def without(row: Row, *names: str) -> Row:
    return {name: text for name, text in row.items() if name not in names}
