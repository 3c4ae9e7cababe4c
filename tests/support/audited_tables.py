"""Tables as somebody else may have measured them: honest ones from a simple machine, to plant mistakes in and audit."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from perf_tests.audit.tables import Audit, audit_file
from perf_tests.hardware.limits import SIZES, AttentionWork, ModelWork

Row = dict[str, str]

PEAK = {"fp32": 19.5e12, "bf16_amp": 312e12}
EFFICIENCY = {"fp32": 0.75, "bf16_amp": 0.4}
LAUNCH_SECONDS_PER_LAYER = 1.6e-3
SHARES_OF_FORWARD = {"forward": 1.0, "backward": 2.0, "fwd_bwd": 3.0}


def model_row(
    size: str = "large", context: int = 512, precision: str = "fp32", phase: str = "forward", **changes: str
) -> Row:
    """An A100's time at three quarters of its peak, or at the pace of its launches where that is slower."""
    config = SIZES[size]
    flops = ModelWork(size, config, 4, context).least_flops("forward", leaves_masked_half=False)
    assert flops is not None
    launch = LAUNCH_SECONDS_PER_LAYER * config.num_layers * (1.05 if precision == "bf16_amp" else 1)
    forward = max(flops / (EFFICIENCY[precision] * PEAK[precision]), launch)
    row = {
        "source": "somebody/repository:table.md",
        "gpu": "A100-80GB",
        "gpu_basis": "stated",
        "size": size,
        "d_model": str(config.d_model),
        "d_ff": str(config.d_ff),
        "n_layers": str(config.num_layers),
        "n_heads": str(config.num_heads),
        "vocab": str(config.vocab_size),
        "batch": "4",
        "context": str(context),
        "precision": precision,
        "compiled": "no",
        "phase": phase,
        "mean_ms": f"{SHARES_OF_FORWARD[phase] * forward * 1e3:.6g}",
        "std_ms": "0.1",
        "n_measured": "10",
        "warmup": "5",
    }
    return {**row, **changes}


def model_table() -> list[Row]:
    """All that an honest write-up has."""
    return [
        model_row(size, context, precision, phase)
        for size in ("small", "medium", "large", "xl")
        for context in (128, 512)
        for precision in ("fp32", "bf16_amp")
        for phase in ("forward", "backward", "fwd_bwd")
    ]


def attention_row(sequence: int = 8192, phase: str = "forward", compiled: str = "no", **changes: str) -> Row:
    """Attention alone on an A100: products at four fifths of its peak, and passes over the square through its memory,
    10 of them op by op and 3 compiled."""
    square = AttentionWork(8, sequence, 64).batch_size * sequence**2
    products = 4 * square * 64 / (0.8 * PEAK["fp32"])
    passes = (3 if compiled == "yes" else 10) * 4 * square / 2.0e12
    seconds = (2.2 if phase == "backward" else 1.0) * (products + passes)
    row = {
        "source": "somebody/repository:attention.md",
        "gpu": "A100-80GB",
        "batch": "8",
        "d_model": "64",
        "seq_len": str(sequence),
        "precision": "fp32",
        "compiled": compiled,
        "phase": phase,
        "mean_ms": f"{seconds * 1e3:.6g}",
        "n_measured": "100",
    }
    return {**row, **changes}


def attention_table() -> list[Row]:
    return [
        attention_row(sequence, phase, compiled)
        for sequence in (4096, 8192, 16384)
        for phase in ("forward", "backward")
        for compiled in ("no", "yes")
    ]


def written(folder: Path, rows: Sequence[Row], name: str = "table.csv") -> Path:
    path = folder / name
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def audited(*rows: Row) -> Audit:
    """The audit of a table of these rows."""
    with TemporaryDirectory() as folder:
        return audit_file(written(Path(folder), rows))


def audited_record(data: object) -> Audit:
    """The audit of a pytest-benchmark file with this content."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        path.write_text(json.dumps(data))
        return audit_file(path)


def rules(*rows: Row) -> set[tuple[str, str]]:
    """Verdicts and names of the rules that find something in a table of these rows."""
    return {(finding.verdict, finding.rule) for finding in audited(*rows).findings}


def without(row: Row, *names: str) -> Row:
    return {name: text for name, text in row.items() if name not in names}
