"""A round finds the memory of the round before, whatever ran earlier.

Told by page faults, which a neighbour does not change as it changes times. Each heap is a process of its own.
"""

import json
import subprocess
import sys

import pytest

from perf_tests.meta_tests.launch import ROOT
from perf_tests.records.record import Json

ROUNDS_OF_LARGE_TENSORS = """
import json, sys
from statistics import median_low
import torch
from perf_tests.instruments import heap
from perf_tests.instruments.device import CpuDevice
from perf_tests.instruments.machine import stable_facts
from perf_tests.instruments.page_faults import page_faults

def faults_of_a_round():
    before = page_faults()
    torch.ones(2**24).add(1)  # 64 MiB, twice
    return page_faults() - before

torch.set_num_threads(1)
if "left alone" in sys.argv:
    heap.keep_freed_memory = lambda: None
device = CpuDevice(torch.device("cpu"))
if "after an earlier case" in sys.argv:
    blocks = [torch.ones(2**21) for _ in range(32)]  # of 8 MiB, which come out of the heap either way
    last = torch.ones(1)
    del blocks
faults = [faults_of_a_round() for _ in range(10)]
heap.give_back()
print(json.dumps({
    "faults": median_low(faults[-5:]),
    "faults_once_given_back": faults_of_a_round(),
    "keeps_freed_memory": stable_facts(device.torch_device, 1)["keeps_freed_memory"],
}))
"""

PAGES_OF_A_ROUND = 2**15
"""Of 4 KiB, in two tensors of 64 MiB."""


def rounds(*arguments: str) -> Json:
    command = [sys.executable, "-c", ROUNDS_OF_LARGE_TENSORS, *arguments]
    found: Json = json.loads(subprocess.check_output(command, cwd=ROOT, text=True))
    return found


@pytest.mark.parametrize("history", ["alone", "after an earlier case"])
def test_a_warm_round_takes_no_fresh_pages_whatever_ran_before(history: str) -> None:
    assert rounds(history)["faults"] == 0


def test_kept_memory_can_be_left_to_other_processes() -> None:
    assert rounds()["faults_once_given_back"] >= PAGES_OF_A_ROUND


def test_a_record_says_whether_memory_is_kept_and_without_it_each_round_takes_fresh_pages() -> None:
    kept, left_alone = rounds(), rounds("left alone")
    assert [kept["keeps_freed_memory"], left_alone["keeps_freed_memory"]] == [True, False]
    assert left_alone["faults"] >= PAGES_OF_A_ROUND
