"""Which file of a catalogue of cheats is refused by what, and what other harnesses record for the same files."""

import json
import runpy
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.benchmark import Timer

from tests.support.cheats import CHEATS, FAMILIES, HERE, in_a_fork, refusal, refusal_of_cheat, warm_up
from tests.support.honest_code import honest, kind_of

SEEDS = 20
"""Runs of each file, in each precision in which a bound can see it; all that is random is drawn anew."""

RECORDED = ("recorded", "")
"""What becomes of a run that nothing refuses."""

HARNESS = """
import runpy, torch
from torch.nn.functional import scaled_dot_product_attention

def test_it(benchmark):
    attend = runpy.run_path({path!r})["attend"]
    inputs = [torch.randn(8, {tokens}, 16, requires_grad=True) for _ in "qkv"]
    assert torch.allclose(attend(*inputs), scaled_dot_product_attention(*inputs, is_causal=True), atol=1e-2)
    benchmark.pedantic(attend, args=inputs, rounds=10, warmup_rounds=3)
"""


def kill_matrix() -> dict[str, float]:
    """Print a line for each file and precision; how many runs record a cheat, and refuse what is honest."""
    warm_up()
    recorded = refused = 0
    print(line("file", "family", "precision", "here", "pytest-benchmark", "torch.utils.benchmark"))
    for name, cheat in CHEATS.items():
        is_attention = cheat.phase.startswith("attention")
        others = [judged(partial(by, name)) for by in (by_pytest_benchmark, by_torch) if is_attention]
        for precision in cheat.precisions if is_attention else ("fp32",):
            found = runs(partial(refusal_of_cheat, name, precision))
            recorded += found.count(RECORDED)
            here = ", ".join(sorted({when for when, _ in found}))
            print(line(name, FAMILIES[cheat.family - 1], precision, here, *others), flush=True)
    codes = list(honest())
    for named, phase in codes:
        for precision in ("fp32", "bf16", "fp16"):
            found = runs(partial(refusal, named, phase, precision, kind=kind_of(named, phase)))
            refused += SEEDS - found.count(RECORDED)
            for when, sentence in set(found) - {RECORDED}:
                print(f"REFUSED {when}: {named} in {phase} {precision}: {sentence}", flush=True)
    print(f"{len({named for named, _ in codes})} honest kernels, models and optimizers: {refused} runs refused")
    return {"cheats that are recorded": recorded, "honest code that is refused": refused, "files": len(CHEATS)}


def line(*cells: str) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, (28, 24, 10, 44, 18, 22), strict=False)).rstrip()


def runs(work: Callable[[], Any]) -> list[tuple[str, str]]:
    """Return what refused each of SEEDS runs, and its sentence, or RECORDED."""
    return [in_a_fork(work) or RECORDED for _ in range(SEEDS)]


def judged(harness: Callable[[], Any]) -> str:
    """Return the milliseconds that it records, or that it refuses."""
    found = in_a_fork(harness)
    return f"{1e3 * found:.3f} ms" if isinstance(found, float) else "refused"


def by_pytest_benchmark(name: str) -> float:
    """Return the median that it records after one check of the output, in seconds; raises where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        test, record = Path(folder, "test_it.py"), Path(folder, "record.json")
        test.write_text(HARNESS.format(path=str(HERE / f"{name}.py"), tokens=CHEATS[name].tokens))
        words = ("-q", "-s", "-pno:cacheprovider", "-pno:perf_tests_suite.perf_tests.plugin", f"--rootdir={folder}")
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            pytest.main([*words, "-c", "/dev/null", f"--benchmark-json={record}", str(test)])
        return float(json.loads(record.read_text())["benchmarks"][0]["stats"]["median"])


def by_torch(name: str) -> float:
    """Return the median that it records, in seconds; it checks nothing."""
    attend = runpy.run_path(str(HERE / f"{name}.py"))["attend"]
    inputs = [torch.randn(8, CHEATS[name].tokens, 16, requires_grad=True) for _ in "qkv"]
    timer = Timer("attend(*inputs)", globals={"attend": attend, "inputs": inputs})
    return float(timer.timeit(10).median)
