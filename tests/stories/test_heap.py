"""A round finds the memory of the round before, whatever ran earlier.

Told by page faults, which a neighbour does not change as it changes times. Each heap is a process: six in all.
"""

import json
import subprocess
from functools import cache

from perf_tests_suite.perf_tests.hardware.device import KEPT_BLOCKS_IN_BUDGET
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.documents import page
from tests.support.forked_python import forked_python
from tests.support.launch import ROOT

BEGINNING = """
import json, sys
from statistics import median_low
import torch
from perf_tests_suite.perf_tests.hardware import device as heap
from perf_tests_suite.perf_tests.hardware.device import CpuDevice, is_kept, page_faults

def faults_of(work):
    before = page_faults()
    work()
    return page_faults() - before

torch.set_num_threads(1)
if "left alone" in sys.argv:
    heap.keep_freed_memory = lambda budget_bytes: None
device = CpuDevice(torch.device("cpu"))
"""

LARGE_TENSORS = """
def two_of_64_MiB():
    torch.ones(2**24).add(1)

if "after an earlier case" in sys.argv:
    blocks = [torch.ones(2**21) for _ in range(32)]  # of 8 MiB, which come out of the heap either way
    last = torch.ones(1)
    del blocks
faults = [faults_of(two_of_64_MiB) for _ in range(10)]
heap.give_back()
print(json.dumps({
    "faults": median_low(faults[-5:]), "faults_once_given_back": faults_of(two_of_64_MiB), "is_kept": is_kept(),
}))
"""
PAGES_OF_LARGE_TENSORS = 2**15
"""Pages of 4 KiB."""

A_HEAP_THAT_GROWS = """
tensors = []

def one_more():
    tensors.append(torch.ones(2**21))

for _ in range(5):
    one_more()
if "with room" in sys.argv:
    device.make_room()
print(json.dumps({"faults": [faults_of(one_more) for _ in range(4)]}))
"""

BLOCKS_OF_8_MiB = """
def faults_within(budget_bytes):
    heap.keep_freed_memory(budget_bytes)
    return [faults_of(lambda: torch.ones(2**21)) for _ in range(10)][-5:]

found = {"within 64 MiB": faults_within(2**26), "within 1 GiB": faults_within(2**30)}
torch.set_num_threads(2)
device.limit_memory(4 * 2**20)
print(json.dumps({**found, "two threads": torch.zeros(2**17).add_(1).max().item()}))
"""
PAGES_OF_8_MiB = 2**11


@cache
def told(program: str, *arguments: str) -> Json:
    command = [forked_python(), "-c", BEGINNING + program, *arguments]
    found: Json = json.loads(subprocess.check_output(command, cwd=ROOT, text=True, timeout=120))
    return found


def test_a_warm_round_takes_no_fresh_pages_whatever_ran_before_until_they_are_given_back() -> None:
    """A loaded machine takes a page or two away; without kept memory it would be all pages of the tensors.

    Nearly all: where a mapping begins beside a page that is there already, the kernel draws one page fewer.
    """
    kept, after_another = told(LARGE_TENSORS), told(LARGE_TENSORS, "after an earlier case")
    left_alone = told(LARGE_TENSORS, "left alone")
    assert max(kept["faults"], after_another["faults"]) < PAGES_OF_LARGE_TENSORS / 1000
    assert min(kept["faults_once_given_back"], left_alone["faults"]) > PAGES_OF_LARGE_TENSORS * 0.99
    assert (kept["is_kept"], left_alone["is_kept"]) == (True, False)


def test_a_heap_that_still_grows_after_the_warm_up_grows_into_room_made_before() -> None:
    without, with_room = (told(A_HEAP_THAT_GROWS, *words)["faults"] for words in ((), ("with room",)))
    assert min(without) > PAGES_OF_8_MiB * 0.99
    assert max(with_room) < PAGES_OF_8_MiB / 100


def test_a_block_that_takes_a_large_part_of_the_budget_goes_back_when_it_is_freed() -> None:
    """Places that are a little too small could otherwise take a case the memory that it had alone.

    Threads are there before a budget leaves no room for their stacks. Where the kernel drew an address just above the
    heap, it cannot grow, and each block is mapped anew: another process has other addresses.
    """
    tries = [told(BLOCKS_OF_8_MiB)]
    while min(tries[-1]["within 1 GiB"]) and len(tries) < 3:
        tries.append(told(BLOCKS_OF_8_MiB, f"try {len(tries)}"))
    assert all(min(found["within 64 MiB"]) > PAGES_OF_8_MiB * 0.99 and found["two threads"] == 1.0 for found in tries)
    assert min(tries[-1]["within 1 GiB"]) == 0
    assert f"above 1/{KEPT_BLOCKS_IN_BUDGET} of the memory budget" in " ".join(page("measuring").split())
