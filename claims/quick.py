"""That the tools are quick and small: each row of `CLAIMS` measured on this machine and compared with its limits.

`python -m claims.quick` tries all of them, `... quick page ledger` those that are named.
"""

import argparse
import gc
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from claims.paired_ratio import paired_ratio
from claims.verdict import conclude, conditions
from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.regions import region, regions_opened_by
from model.sizes import SIZES, ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.bench.loop import Rounds
from perf_tests.hardware.device import CpuDevice
from perf_tests.passes.kernels import COMPRESSION_LEVEL, trace_rounds
from perf_tests.predict.counters import counters_of
from perf_tests.predict.ledger import counted_grid
from tests.support.launches import ROOT, launch_suite
from tests.support.synthetic_grid import grid_record, with_every_pass

CPU = torch.device("cpu")
TIME_LINE = re.compile(r"^(?P<total>\d+) s: (?P<rounds>\d+)% in warm-up and measured rounds", re.MULTILINE)


@dataclass(frozen=True)
class Claim:
    """The figures that `measured` returns are below `limits`, in the units of the sentence."""

    sentence: str
    limits: tuple[float, ...]
    measured: Callable[[], tuple[float, ...]]

    def is_shown(self) -> bool:
        """Measure, and print the figures beside their limits."""
        figures = self.measured()
        pairs = list(zip(figures, self.limits, strict=True))
        print(", ".join(f"{figure:.4g} (limit {limit:g})" for figure, limit in pairs))
        return all(figure < limit for figure, limit in pairs)


def collecting_over_importing() -> tuple[float]:
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
    return (ratio.high,)


def ended(arguments: Sequence[str], **environment: str) -> tuple[float, str]:
    """Seconds and output of a Python process of its own; raises CalledProcessError if it failed."""
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return time.perf_counter() - start, process.stdout


def prediction() -> tuple[float]:
    """The command that `docs/predict.md` shows first; its fastest turn, since every disturbance makes one slower."""
    case = ["--size", "2.7B", "--context", "512", "--precision", "bf16", "--gpu", "A100-80GB"]
    return (min(ended(["-m", "perf_tests", "predict", *case])[0] for _ in range(3)),)


def memory_pass() -> tuple[float]:
    return (launch_suite(["perf_tests", "--device", "cpu", "--memory", "-k", "memory_of"]).process_seconds,)


def outside_rounds() -> tuple[float]:
    """The share of `make perf`, by the clock of the process that waits, that is no round and no set-up of one."""
    launch = launch_suite(["perf_tests", "--benchmark-compare"])
    total_seconds, share = parsed_time_line(launch.output)
    print(
        f"{len(launch.benchmarks)} cases in {launch.process_seconds:.0f} s, {total_seconds:.0f} s by the suite's clock"
    )
    return (1 - share * total_seconds / launch.process_seconds,)


def parsed_time_line(output: str) -> tuple[float, float]:
    """Seconds of the run and the share of them in rounds, as the suite prints them; raises ValueError without one."""
    line = TIME_LINE.search(output)
    if line is None:
        raise ValueError("the run printed no line about its time; did it measure anything?")
    return float(line["total"]), int(line["rounds"]) / 100


def ledger() -> tuple[float]:
    """In one process and one thread."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    for cases in counted_grid().values():
        for case in cases:
            counters_of(case)
    return (time.perf_counter() - start,)


def page_of_one_run() -> tuple[float, float]:
    """Seconds and MB over a run with every extra pass."""
    seconds, page_bytes, _ = page_cost([with_every_pass(grid_record(1))])
    return seconds, page_bytes / 1e6


def page_of_many_runs() -> tuple[float, float]:
    """Seconds and GiB of resident memory."""
    seconds, _, peak_bytes = page_cost(grid_record(number) for number in range(1, 201))
    return seconds, peak_bytes / 2**30


REPORT = """
import re
from perf_tests.__main__ import main
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


def share_of_regions() -> tuple[float]:
    """Of a forward pass in one thread, the two timed in turns; so short a pass is nearly all launching."""
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
    return (median(alone) / median(passes),)


def regions_of(work: Callable[[], object]) -> list[str]:
    """The names of the regions that the work goes through."""
    names: list[str] = []

    def note(name: str) -> AbstractContextManager[object]:
        names.append(name)
        return nullcontext()

    with regions_opened_by(note):
        work()
    return names


def trace_of_large() -> tuple[float]:
    """MB of the traced full steps.

    A trace has its events by operation, not by element. So `large` is traced with all its layers and heads and a
    fraction of its width, which takes little memory; what narrow shapes leave out, digits, is the ratio of the trace of
    `small` to that of `small` made as narrow. A GPU's trace has its kernels and calls besides.
    """
    small, large = (SIZES[size].at_context(128) for size in ("small", "large"))
    narrow_bytes, whole_bytes = trace_bytes(narrow(small)), trace_bytes(small)
    return (trace_bytes(narrow(large)) * whole_bytes / narrow_bytes / 1e6,)


def narrow(config: ModelConfig) -> ModelConfig:
    """The same layers and heads, two elements to a head."""
    return replace(config, d_model=2 * config.num_heads, d_ff=8 * config.num_heads)


def trace_bytes(config: ModelConfig) -> int:
    """Of the traced rounds of a full step, compressed as the kernel pass does."""
    torch.manual_seed(0)
    training = Training(TransformerLM(config, ATTENTION["naive"].build()), PRECISIONS["fp32"], CPU)
    tokens_BT = torch.randint(config.vocab_size, (4, config.context_length))
    training.create_optimizer_state()
    traced = trace_rounds(Rounds(lambda: training.step(tokens_BT, tokens_BT)).play, CpuDevice(CPU))
    return len(gzip.compress(traced.trace, COMPRESSION_LEVEL))


CLAIMS = {
    "collecting": Claim(
        "collecting the whole grid takes less than 1.5 x importing torch and pytest", (1.5,), collecting_over_importing
    ),
    "rounds": Claim(
        "less than 20 % of a run is outside of warm-up and measured rounds with their set-up",
        (0.2,), outside_rounds,
    ),
    "prediction": Claim("one prediction takes less than 5 s", (5,), prediction),
    "memory-pass": Claim("the memory pass of the default grid takes less than 180 s", (180,), memory_pass),
    "ledger": Claim("the whole ledger is counted in less than 180 s", (180,), ledger),
    "page": Claim(
        "a page over 300 cases, each with every extra pass, takes less than 10 s and 8 MB", (10, 8), page_of_one_run
    ),
    "pages": Claim("a page over 200 runs takes less than 30 s and 1 GiB of memory", (30, 1), page_of_many_runs),
    "regions": Claim("unobserved regions cost less than 1 % of a pass", (0.01,), share_of_regions),
    "trace": Claim("the trace of the kernel pass of a full step of large is below 20 MB", (20,), trace_of_large),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLAIMS)} (default: all)")
    names = parser.parse_args().names or list(CLAIMS)
    unknown = [name for name in names if name not in CLAIMS]
    if unknown:
        parser.error(f"no claim is named {unknown[0]!r}; the known ones are {', '.join(CLAIMS)}.")
    print(conditions())
    return max(conclude(CLAIMS[name].sentence, CLAIMS[name].is_shown()) for name in names)


if __name__ == "__main__":
    sys.exit(main())
