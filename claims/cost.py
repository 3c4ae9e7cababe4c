"""What the tools cost: seconds, bytes, and what an extra pass does to the timings beside it."""

import gc
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch

from claims.statistics import paired_ratio, paired_ratio_of_turns
from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.regions import region, regions_opened_by
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.ledger import counted_grid
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.browser import chromium, first_paint_seconds
from tests.support.launches import ROOT, launch_suite
from tests.support.synthetic import record, timed
from tests.support.synthetic_grid import grid_record, with_every_pass

CPU = torch.device("cpu")
TIME_LINE = re.compile(r"^(?P<total>\d+) s: (?P<rounds>\d+)% in warm-up and measured rounds", re.MULTILINE)


def collecting_over_importing() -> dict[str, float]:
    """Upper end of the ratio's interval, in fresh processes that take turns; both find their bytecode cached."""
    axes = ("size", "context", "precision", "attention", "execution", "phase", "head-dim", "sequence-length")
    every_case = [word for axis in axes for word in (f"--{axis}", "all")]
    collect = ["-m", "pytest", "perf_tests", "--collect-only", "-q", "--device", "cpu", *every_case]
    seconds: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as bytecode:
        for turn in range(-1, 8):
            sides = list(zip((collect, ["-c", "import torch, pytest"]), seconds, strict=True))
            for command, found in sides if turn % 2 else reversed(sides):
                taken, _ = ended(command, PYTHONPYCACHEPREFIX=bytecode, PYTHONDONTWRITEBYTECODE="")
                if turn >= 0:
                    found.append(taken)
    ratio = paired_ratio(*seconds)
    print(f"collecting {median(seconds[0]):.2f} s, importing {median(seconds[1]):.2f} s, ratio {ratio}")
    return {"collecting over importing, upper end": ratio.high}


def ended(arguments: Sequence[str], **environment: str) -> tuple[float, str]:
    """Seconds and output of a Python process of its own; raises CalledProcessError if it failed."""
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return time.perf_counter() - start, process.stdout


def prediction() -> dict[str, float]:
    """The command that `docs/predict.md` shows first; its fastest turn, since every disturbance makes one slower."""
    case = ["--size", "2.7B", "--context", "512", "--precision", "bf16", "--gpu", "A100-80GB"]
    return {"seconds": min(ended(["-m", "perf_tests", "predict", *case])[0] for _ in range(3))}


def memory_pass() -> dict[str, float]:
    """Seconds of the memory pass of the default grid."""
    launch = launch_suite(["perf_tests", "--device", "cpu", "--memory", "-k", "memory_of"])
    return {"seconds": launch.process_seconds}


def outside_rounds() -> dict[str, float]:
    """The share of `make perf`, by the clock of the process that waits, that is no round and no set-up of one."""
    launch = launch_suite(["perf_tests", "--benchmark-compare"])
    total_seconds, share = parsed_time_line(launch.output)
    print(
        f"{len(launch.benchmarks)} cases in {launch.process_seconds:.0f} s, {total_seconds:.0f} s by the suite's clock"
    )
    return {"share outside of rounds": 1 - share * total_seconds / launch.process_seconds}


def parsed_time_line(output: str) -> tuple[float, float]:
    """Seconds of the run and the share of them in rounds, as the suite prints them; raises ValueError without one."""
    line = TIME_LINE.search(output)
    if line is None:
        raise ValueError("the run printed no line about its time; did it measure anything?")
    return float(line["total"]), int(line["rounds"]) / 100


def ledger() -> dict[str, float]:
    """Seconds to count the whole ledger in one process and one thread."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    for cases in counted_grid().values():
        for case in cases:
            counters_of(case)
    return {"seconds": time.perf_counter() - start}


def page_of_one_run() -> dict[str, float]:
    """Seconds and MB of a page over a run of 300 cases with every extra pass."""
    seconds, page_bytes, _ = page_cost([with_every_pass(grid_record(1))])
    return {"seconds": seconds, "MB": page_bytes / 1e6}


def page_of_many_runs() -> dict[str, float]:
    """Seconds of a page over 200 runs, and GiB of resident memory."""
    seconds, _, peak_bytes = page_cost(grid_record(number) for number in range(1, 201))
    return {"seconds": seconds, "GiB": peak_bytes / 2**30}


REPORT = """
import re
from perf_tests_suite.perf_tests.__main__ import main
assert main() == 0
with open("/proc/self/status") as status:
    print(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1])
"""


def page_cost(records: Iterable[object]) -> tuple[float, int, int]:
    """Seconds, size of the page in bytes, and peak of resident memory in bytes of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        page, storage = Path(folder, "page.html"), Path(folder, "records")
        (storage / "machine").mkdir(parents=True)
        for number, data in enumerate(records, 1):
            (storage / "machine" / f"{number:04}_run.json").write_text(json.dumps(data, indent=1))
        seconds, printed = ended(["-c", REPORT, "report", f"--storage={storage}", f"--output={page}"])
        return seconds, page.stat().st_size, int(printed.split()[-1]) * 1024


def share_of_regions() -> dict[str, float]:
    """The share of a forward pass in one thread, the two timed in turns; so short a pass is nearly all launching."""
    torch.set_num_threads(1)
    model = TransformerLM(SIZES["tiny"].at_context(16), ATTENTION["naive"].build())
    tokens_BT = torch.randint(model.config.vocab_size, (1, 16))
    passes, alone = [], []
    with torch.no_grad():
        names = regions_of(lambda: model(tokens_BT))
        gc.disable()
        for _ in range(200):
            start = time.perf_counter()
            model(tokens_BT)
            between = time.perf_counter()
            for name in names:
                with region(name):
                    pass
            passes.append(between - start)
            alone.append(time.perf_counter() - between)
        gc.enable()
    print(f"a pass takes {median(passes) * 1e3:.2f} ms, its {len(names)} regions {median(alone) * 1e6:.1f} us")
    return {"share of a pass": median(alone) / median(passes)}


def regions_of(work: Callable[[], object]) -> list[str]:
    """The names of the regions that the work goes through."""
    names: list[str] = []

    def note(name: str) -> AbstractContextManager[object]:
        names.append(name)
        return nullcontext()

    with regions_opened_by(note):
        work()
    return names


PAIRS_OF_LAUNCHES = 24
"""Two launches of a side in each: launches differ by more than their rounds do."""


def timings_beside_the_kernel_pass() -> dict[str, float]:
    """The interval of timings with `--kernels` over those without, launch by launch in turns.

    It is that of the clock that scatters less: on a shared machine CPU time is more precise, and wall time is needed
    too, because CPU time misses waiting.
    """
    without: list[dict[str, float]] = []
    with_pass: list[dict[str, float]] = []
    for _ in range(PAIRS_OF_LAUNCHES):
        without.append(typical_seconds())
        with_pass += [typical_seconds("--kernels"), typical_seconds("--kernels")]
        without.append(typical_seconds())
    ratios = [
        paired_ratio_of_turns([row[clock] for row in with_pass], [row[clock] for row in without])
        for clock in ("wall", "CPU")
    ]
    print(f"with over without: wall {ratios[0]}, CPU {ratios[1]}")
    surest = min(ratios, key=lambda ratio: ratio.high - ratio.low)
    return {"with over without, lower end": surest.low, "with over without, upper end": surest.high}


def typical_seconds(*options: str) -> dict[str, float]:
    """Geometric mean of the cases' medians by clock, in one launch of the suite in one thread."""
    words = (
        "perf_tests", "-k", "not attention", "--device", "cpu", "--threads", "1", "--size", "tiny", "--context", "64",
        "--precision", "fp32", "--phase", "forward,backward", "--rounds", "40",
    )  # fmt: skip
    rows = launch_suite([*words, *options]).benchmarks
    rounds = {
        "wall": [row["stats"]["data"] for row in rows],
        "CPU": [row["extra_info"]["cpu_seconds"] for row in rows],
    }
    return {clock: math.exp(fmean(math.log(median(seconds)) for seconds in rounds[clock])) for clock in rounds}


RECORD = ROOT / ".benchmarks/epyc-2core/0001_9e03909d2d18.json.xz"
COMMITS, LAUNCHES, CASES, OPENINGS = 400, 5, 30, 5


def page_in_browser() -> dict[str, float]:
    """MB of the page of one committed record and of 2000 invented ones, and the first one's first paint in seconds.

    The paint is the median of five openings from disk in Chromium; without it nothing is measured.
    """
    if chromium() is None:
        print("no Chromium on this machine")
        return {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "records/machine").mkdir(parents=True)
        for number, data in enumerate(many_records(), 1):
            (folder / f"records/machine/{number:04}_run.json").write_text(json.dumps(data))
        page, many = folder / "page.html", folder / "many.html"
        ended(["-m", "perf_tests", "report", str(RECORD), f"--output={page}"])
        ended(["-m", "perf_tests", "report", f"--storage={folder / 'records'}", f"--output={many}"])
        paints = [first_paint_seconds(page, folder / f"profile{number}") for number in range(OPENINGS)]
        sizes = page.stat().st_size / 1e6, many.stat().st_size / 1e6
    return {"MB of one run": sizes[0], "MB of 2000 runs": sizes[1], "first paint of one run, s": median(paints)}


def many_records() -> Iterator[Json]:
    """Records of 400 commits with five launches each; a case steps at each thirteenth commit."""
    noise = np.random.default_rng(2027)
    for number in range(COMMITS * LAUNCHES):
        commit = number // LAUNCHES
        day = f"{2001 + commit // 28}-01-{1 + commit % 28:02}T{number % LAUNCHES:02}:00:00+00:00"
        rows = [
            timed(f"test_forward[size{case}-ctx8-fp32-naive]",
                  ((1.0 + 0.1 * (commit > 13 * case)) * noise.normal(1, 0.01, 10)).tolist(),
                  size=f"size{case}", sentinel_seconds=[1e-3, 1e-3])
            for case in range(CASES)
        ]  # fmt: skip
        yield {**record(rows, written=day), "commit_info": {"id": f"{commit:040}", "dirty": False, "time": day}}
