"""What authors of public pull requests counted by hand is counted in small stand-ins, and the same in each process."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rules.test_compiling import PLANTED, Function, found_of, grows_a_list
from tests.support.documents import ROOT

ITEM = "x = x * int(x.max().item() > 0)"
BINCOUNT = "x = x + torch.bincount(x.flatten().long()).float()[0]"
PRINT = "print('', end='')"
PROBE = """
def probe():
    try:
        import no_such_module
    except ImportError:
        return
"""
STEPS = """
class Step:
    number = 0
STEP = Step()
"""


@dataclass(frozen=True)
class Side:
    """Lines of what is compiled, each function apart, and what is counted of all of them."""

    bodies: tuple[tuple[str, ...], ...]
    graphs: int
    breaks: int
    host_reads: int = 0
    recompiles: int | None = None
    """Those of the same shape; None where they do not matter."""
    above: str = ""


PULL_REQUESTS: dict[str, tuple[Side, Side]] = {
    # "42 graphs with 41 breaks ... Graphs 42 -> 4, breaks 41 -> 3"; 137 of 144 of `.item()`, those left of bincount.
    "isayevlab/aimnetcentral #109": (
        Side(((*(ITEM,) * 38, *(BINCOUNT,) * 3),), 42, 41, 38), Side(((BINCOUNT,) * 3,), 4, 3),
    ),
    # Goes on to a whole graph, for any number of atoms.
    "isayevlab/aimnetcentral #135": (
        Side(((BINCOUNT,) * 3,), 4, 3),
        Side((("x = x + torch.zeros(3).scatter_add(0, x.flatten().long().clamp(0, 2), x.flatten())[0]",) * 3,), 1, 0),
    ),
    # "43 compiled fragments instead of 2 whole graphs", by a probe that imports inside of each attention stage.
    "PriorLabs/TabPFN #1166": (
        Side((("x = x + 1", "probe()") * 20, ("x = x + 1", "probe()") * 21), 43, 41, above=PROBE),
        Side((("x = x + 1",) * 20, ("x = x + 1",) * 21), 2, 0, above=PROBE),
    ),
    # Tests that a second step neither breaks, nor compiles again, nor waits for the device.
    "huggingface/diffusers #11085": (
        Side((("STEP.number += 1", ITEM),), 2, 1, 1, 2, above=STEPS),
        Side((("x = x * (x.max() > 0)",),), 1, 0, recompiles=0),
    ),
    # Tests that a model is compiled without a break.
    "Lightning-AI/litgpt #533": (Side((("if x.max() > 0:", "    x = x + 1"),), 2, 1, 1), Side((("x = x + 1",),), 1, 0)),
    # "PyTorch 2.1.1 produces 2 graph breaks, PyTorch nightly produces 4".
    "pyg-team/pytorch-frame #256": (
        Side((("x = x + 1", PRINT) * 4,), 5, 4), Side((("x = x + 1", PRINT) * 2,), 3, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PULL_REQUESTS)
def test_base_and_head_say_what_the_author_of_the_change_counted_by_hand(name: str, tmp_path: Path) -> None:
    for number, side in enumerate(PULL_REQUESTS[name]):
        found = [found_of(function) for function in written(side, tmp_path / f"side{number}_")]
        assert (sum(one.graphs for one in found), sum(len(one.breaks) for one in found)) == (side.graphs, side.breaks)
        assert sum(one.host_reads for one in found) == side.host_reads
        again = [each for one in found for each in one.recompiles or () if each.call == "the same shape again"]
        assert side.recompiles in (None, len(again))
        lines = [f"{place.file}:{place.line}" for one in found for place in one.breaks]
        assert side.above == PROBE or len(set(lines)) == side.breaks  # a probe has one line


def written(side: Side, stem: Path) -> list[Function]:
    functions = []
    for number, body in enumerate(side.bodies):
        path, scope = Path(f"{stem}{number}.py"), dict[str, Any]()
        lines = "".join(f"    {line}\n" for line in body)
        path.write_text(f"import torch\n{side.above}\ndef run(x):\n{lines}    return x.relu()\n")
        exec(compile(path.read_text(), path, "exec"), scope)
        functions.append(scope["run"])
    return functions


SEEDS, FORKS = range(4), 5
"""Hash seeds, each of an interpreter of its own, and processes of each."""
COUNT = f"""
import json, os
from dataclasses import asdict
from perf_tests_suite.perf_tests.hardware.torch_private import load_code_generator
from tests.rules.test_compiling import PLANTED, found_of, grows_a_list
load_code_generator()  # most of what a process takes
for _ in range({FORKS}):
    if not os.fork():
        print(json.dumps([asdict(found_of(function)) for function in (*PLANTED, grows_a_list)]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_the_counts_and_their_lines_are_the_same_in_20_processes() -> None:
    def count(seed: int) -> list[str]:
        variables = {**os.environ, "PYTHONHASHSEED": str(seed)}
        words = [sys.executable, "-c", COUNT]
        done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if line.startswith("[{")]

    with ThreadPoolExecutor(2) as pool:
        outputs = [line for lines in pool.map(count, SEEDS) for line in lines]
    assert len(outputs) == len(SEEDS) * FORKS
    assert len(set(outputs)) == 1
    assert [len(one["breaks"]) for one in json.loads(outputs[0])] == [0, 1, 2, 7, 1, 0]
    assert len(json.loads(outputs[0])) == len([*PLANTED, grows_a_list])
