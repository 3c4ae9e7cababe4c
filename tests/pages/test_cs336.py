"""docs/cs336.md: what each command collects, and the table for each figure that a write-up shows."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.record import Json
from tests.support import synthetic
from tests.support.documents import block, page
from tests.support.launch import Verb, launch_all
from tests.support.synthetic import BACKWARD, record, timed, timed_attention, with_passes, write_record

PAGE = page("cs336")
KERNEL = "examples/flash_attention.py:flash_attention"
RANKS = "torchrun --standalone --nproc-per-node 2 --no-python "
ON_A_CPU = ["--message-size", "64KB,1MB"]


@dataclass(frozen=True)
class Problem:
    name: str
    command: str
    tables: list[str]
    """What to type for its tables."""


def problems() -> list[Problem]:
    found = []
    for part in PAGE.split("\n## ")[1:]:
        command, *tables = (line.strip() for line in part.splitlines() if line.startswith("    "))
        found.append(
            Problem(part.split("\n")[0].partition(". ")[2], command.replace("FILE.py:FUNCTION", KERNEL), tables)
        )
    return found


PROBLEMS = problems()


def trial() -> list[str]:
    """What the page says to append on a CPU."""
    words = [shlex.split(code) for code in re.findall(r"`(--[^`]+)`", PAGE.partition("\n## ")[0])]
    assert ON_A_CPU in words
    return next(one for one in words if "tiny" in one)


def test_each_problem_says_which_figure_to_show_what_to_write_and_what_goes_wrong() -> None:
    assert len(PROBLEMS) == 30
    for part in PAGE.split("\n## ")[1:]:
        assert re.findall(r"^\*(.+?)\.\*", part, re.MULTILINE) == ["Figure", "Write", "Goes wrong"], part


SHOWN: dict[str, tuple[str, ...]] = {
    "mean and deviation by size and phase": ("Size", "Context", "forward (ms)", "backward (ms)", " ± "),
    "after 0, 1, 2 and 5 warm-up rounds": (*(f"after {rounds} (ms)" for rounds in (0, 1, 2, 5)), " ± "),
    "fp32 beside mixed precision, with its speed-up": ("fp32 (ms)", "bf16 (ms)", "fp32 / bf16"),
    "kernels with calls and share": ("Kernel", "calls", "share"),
    "share of matrix products, softmax over products": ("products of kernel time (%)", "softmax / products, forward"),
    "memory by size and context": ("Size", "Context", "forward (MiB)"),
    "each peak beside its prediction, memory before the backward pass": ("peak (MiB)", "predicted", "before"),
    "attention by width and length": ("d", "Sequence", "naive forward (ms)", "naive backward (ms)"),
}
"""What write-ups show, and words of the table that has it."""


def measured() -> Json:
    grid = [timed(f"{name}-{phase}", phase=phase, precision=name, peak_allocated_bytes=2**20)
            for name in ("fp32", "bf16") for phase in ("forward", "backward")]  # fmt: skip
    alone = [timed_attention(phase=f"attention_{way}", sequence_length=length)
             for way in ("forward", "backward") for length in (256, 1024)]  # fmt: skip
    passes = synthetic.traced(), synthetic.remembered(BACKWARD, phase="backward"), synthetic.warmed()
    return with_passes(record([*grid, *alone]), *passes)


def test_each_figure_that_write_ups_show_is_one_table_in_markdown(tmp_path: Path, verb: Verb) -> None:
    path = write_record(tmp_path / "0001_a.json", measured())
    rows = [line.strip("| ").split(" | ") for line in block(PAGE, "kinds").splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == [*SHOWN]
    for what, _, command in rows:
        code, shown, _ = verb(*shlex.split(command.strip("`"))[1:], "--format", "markdown", path)
        header, body = shown.partition("\n| ")[2].partition("\n| :---")[::2]
        plain = f"{header}{body}".replace("\\", "")
        assert (code, shown.count("\n| :---"), [one for one in SHOWN[what] if one not in plain]) == (0, 1, []), plain
    named = {table for one in PROBLEMS for table in re.findall(r"--only (\w+)", " ".join(one.tables))}
    assert named >= {row[2].strip("`").rpartition(" ")[2] for row in rows}, "each table answers a problem"


COLLECTED = {
    "benchmarking_script": "forward backward full_step optimizer warmup_of_forward warmup_of_backward "
                           "warmup_of_full_step warmup_of_optimizer",
    "nsys_profile": "forward backward full_step kernels_of_forward kernels_of_backward kernels_of_full_step",
    "benchmarking_mixed_precision": "forward backward full_step",
    "memory_profiling": "forward full_step memory_of_forward memory_of_full_step memory_of_first_step",
    "pytorch_attention": "attention_forward attention_backward "
                         "memory_of_attention_forward memory_of_attention_backward",
    "torch_compile": "forward backward full_step attention_forward attention_backward",
    "flash_forward": "attention_forward",
    "flash_backward": "attention_backward memory_of_attention_backward",
    "flash_benchmarking": "attention_forward attention_backward",
    "distributed_communication_single_node": "collective", "alternate_ring_all_reduce": "collective",
    "tp_calcs": "collective", "fsdp_tp_calcs": "collective",
    "naive_ddp_benchmarking": "full_step kernels_of_full_step",
    "minimal_ddp_flat_benchmarking": "full_step kernels_of_full_step",
    "ddp_overlap_individual_parameters_benchmarking": "full_step kernels_of_full_step",
}  # fmt: skip
"""Benchmarks of each problem's answer; those that share a model among ranks measure full steps."""


def test_each_command_collects_the_cases_of_its_answer_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's own name may have `attention` in it. Ranks are collected as one of one; port 0 is any free one."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    measured = {
        one.name: shlex.split(one.command.partition("perf-tests run ")[2])
        for one in PROBLEMS
        if "perf-tests run -" in one.command
    }
    words = [*measured.values(), [*measured["benchmarking_script"], *trial()]]
    ends = launch_all(["perf_tests", *typed, "--collect-only", "-q", "-p", "no:cacheprovider"] for typed in words)
    for name, (code, output, errors) in zip([*measured, "benchmarking_script"], ends, strict=True):
        found = re.findall(r"::test_(\w+)\[(.+)\]", output)
        assert (code, {benchmark for benchmark, _ in found}) == (0, {*COLLECTED.get(name, "full_step").split()}), (
            name, output, errors,
        )  # fmt: skip
        assert name != "torch_compile" or {"naive" in case for test, case in found if "attention" not in test} == {True}
    assert set(re.findall(r"\[(\w+)-ctx(\d+)", ends[-1][1])) == {("tiny", "128")}


def test_the_default_optimizer_of_a_gpu_holds_more_at_its_peak_than_a_loop_as_the_page_says(verb: Verb) -> None:
    assert "default on a GPU holds more at its peak than a loop" in " ".join(PAGE.split())
    peaks = []
    for optimizer in ((), ("--optimizer", "loop")):
        words = ("predict", "--json", "--size", "tiny", "--context", "16", "--gpu", "H100", *optimizer)
        peaks.append(json.loads(verb(*words)[1])["phases"]["full_step"]["peak_bytes"])
    assert peaks[0] > peaks[1]
