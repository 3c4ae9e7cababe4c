"""The limit on memory of a CPU."""

import subprocess
import sys

from tests.support.launch import ROOT

TWO_THREADS_IN_A_SMALL_BUDGET = """
import torch
from perf_tests.hardware.device import CpuDevice

torch.set_num_threads(2)
CpuDevice(torch.device("cpu")).limit_memory(4 * 2**20)
assert torch.zeros(2**17).add_(1).max() == 1
print("two threads have worked")
"""


def test_threads_are_there_before_a_budget_leaves_no_room_for_their_stacks() -> None:
    code = [sys.executable, "-c", TWO_THREADS_IN_A_SMALL_BUDGET]
    ended = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "two threads have worked\n"), ended.stderr
