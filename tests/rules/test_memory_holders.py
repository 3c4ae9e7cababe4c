"""Who holds what in a round: blocks by category, the line that made them, and the region that saved them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.regions import region
from perf_tests.passes.memory import Held, HolderWatch
from perf_tests.predict.counting import ACTIVATIONS, BACKWARD_PASS, GRADIENTS, PARAMETERS, TEMPORARIES, WEIGHT_COPIES

KIB = 1024


def weight(kibibytes: int) -> Tensor:
    return torch.ones(kibibytes * KIB // 4, requires_grad=True)


def held(function: Callable[[], object], *parameters: Tensor, sees_operations: bool = True) -> Held:
    watch = HolderWatch("cpu", Path(__file__).parent, "", sees_operations, parts=("forward", "backward"))
    watch.register(parameters, PARAMETERS)
    with watch.round():
        function()
    watch.register((leaf.grad for leaf in parameters if leaf.grad is not None), GRADIENTS)
    return watch.finished()


def test_the_peak_is_told_by_category() -> None:
    w = weight(4)

    def step() -> None:
        with region("forward"):
            loss = w.exp().sum()
        with region("backward"):
            loss.backward()

    at_peak = held(step, w).held_at_peak()
    assert {at_peak[category] for category in (PARAMETERS, ACTIVATIONS, GRADIENTS)} == {4 * KIB}


def test_what_autograd_keeps_belongs_to_the_regions_that_were_open() -> None:
    w = weight(4)

    def forward() -> Tensor:
        with region("forward"), region("block 0"), region("softmax"):
            return w.exp()

    assert held(forward, w).saved_bytes == Counter({("forward", "block 0", "softmax"): 4 * KIB})


def test_a_block_that_is_saved_twice_and_a_parameter_count_once_and_never() -> None:
    w = weight(4)

    def forward() -> None:
        e = w.exp()
        kept = e * e * w
        del e
        kept.sum()

    assert held(forward, w).saved_bytes.total() == 8 * KIB


def test_a_large_block_has_the_line_that_made_it_and_a_bounded_stack() -> None:
    found = held(lambda: torch.zeros(KIB))
    (block,) = found.allocations()
    assert block.place.startswith("rules/test_memory_holders.py:")
    frames = found.frames[id(block)]
    assert frames[0].filename == __file__
    assert len(frames) <= 32


def test_blocks_of_the_backward_pass_have_no_line_of_the_model() -> None:
    w = weight(4)
    made = held(lambda: w.exp().sum().backward(), w).allocations()
    assert (made[-1].place, made[-1].category) == (BACKWARD_PASS, GRADIENTS)


def test_gradients_of_the_round_before_are_gone_once_they_are_let_go_of() -> None:
    w = weight(4)
    w.sum().backward()
    watch = HolderWatch("cpu", Path(__file__).parent, "", True)
    watch.register([w], PARAMETERS)
    assert w.grad is not None
    watch.register([w.grad], GRADIENTS)
    with watch.round():
        w.grad = None
        torch.zeros(KIB)
    assert watch.finished().held_at_peak() == Counter({PARAMETERS: 4 * KIB, GRADIENTS: 4 * KIB})


def test_autocasts_copies_of_the_weights_have_a_category_of_their_own() -> None:
    """The one copy is saved by both products, counts once and stays what it is."""
    w, x = torch.ones(32, 32, requires_grad=True), torch.ones(32, 32, requires_grad=True)

    def forward() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w) @ w

    found = held(forward, w)
    assert found.saved_bytes.total() == 3 * 32 * 32 * 2
    assert {block.category for block in found.allocations()} == {WEIGHT_COPIES, ACTIVATIONS, TEMPORARIES}


def test_parts_are_the_regions_named_so_and_say_which_changes_are_theirs() -> None:
    def step() -> None:
        with region("forward"):
            torch.zeros(KIB)
        torch.zeros(KIB)
        with region("backward"):
            torch.zeros(KIB)

    assert [(part.name, part.first, part.end) for part in held(step).parts] == [("forward", 0, 2), ("backward", 4, 6)]


@pytest.mark.parametrize("sees_operations", [True, False])
def test_what_is_saved_is_told_of_compiled_code_too(sees_operations: bool) -> None:
    w = weight(4)
    found = held(lambda: w.exp().sum(), w, sees_operations=sees_operations)
    assert found.saved_bytes.total() == 4 * KIB
