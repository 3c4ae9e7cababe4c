"""Counting any code: launches, blocks, parts and categories, on real tensors and on fake ones alike."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from perf_tests.hardware.torch_private import FakeTensorMode
from perf_tests.predict import counting as counters
from perf_tests.predict.counting import TEMPORARIES

KIB = 1024


def block(kibibytes: int) -> Tensor:
    return torch.empty(kibibytes * KIB, dtype=torch.uint8)


def counted(function: Callable[[], object], target: str = "cpu", **registered: list[Tensor]) -> counters.PartCounters:
    with counters.Counting(target, source=Path(__file__).parent) as counting:
        for category, tensors in registered.items():
            counting.register(tensors, category)
        with counting.part("it"):
            function()
        return counting.finished()["it"]


@pytest.fixture(params=[nullcontext, FakeTensorMode], ids=["real", "fake"], autouse=True)
def kind_of_tensors(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param():
        yield


def test_views_share_one_block() -> None:
    def views() -> None:
        x = block(2)
        kept = [x.view(2, -1), x[5:], x.unsqueeze(0)]
        del x
        block(1)
        del kept

    assert counted(views).peak_bytes == 3 * KIB


def test_what_was_registered_counts_from_the_start_and_is_not_new_when_written() -> None:
    held = torch.zeros(KIB)
    part = counted(lambda: held.add_(1), inputs=[held])
    assert part.held_at_start == Counter({counters.INPUTS: 4 * KIB})
    assert part.peak_bytes == 4 * KIB
    assert part.allocations.total() == 0


def test_a_gpu_hands_out_multiples_of_512_bytes() -> None:
    assert counted(lambda: torch.empty(513, dtype=torch.uint8), "cuda").peak_bytes == 1024
    assert counted(lambda: torch.empty(513, dtype=torch.uint8), "cpu").peak_bytes == 513


def test_a_number_that_stays_on_the_host_costs_a_gpu_nothing() -> None:
    """As AdamW's step counts do."""

    def count_steps() -> None:
        steps = torch.tensor(0.0)
        steps += 1
        steps * 2

    for target, peak_bytes, kernels in (("cuda", 0, 0), ("cpu", 8, 2)):
        part = counted(count_steps, target)
        assert (part.peak_bytes, part.kernels.total()) == (peak_bytes, kernels)


def test_saved_are_the_tensors_that_autograd_keeps_each_block_once_and_no_parameter() -> None:
    weight = torch.zeros(KIB, requires_grad=True)
    kept: list[Tensor] = []

    def forward() -> None:
        y = (weight * weight).exp()  # exp keeps its result; so does the product of it with itself
        kept.append(y * y.view(-1))

    part = counted(forward, parameters=[weight])
    assert part.saved_bytes == 4 * KIB
    assert part.held_at_end == Counter(
        {counters.PARAMETERS: 4 * KIB, counters.ACTIVATIONS: 4 * KIB, TEMPORARIES: 4 * KIB}
    )


def test_a_block_that_two_parts_save_counts_in_the_first() -> None:
    x = torch.zeros(KIB, requires_grad=True)
    with counters.Counting("cpu") as counting:
        counting.register([x], counters.INPUTS)
        with counting.part("first"):
            y = x.exp()
        with counting.part("second"):
            z = y.exp() * y
        saved = {name: part.saved_bytes for name, part in counting.finished().items()}
    assert saved == {"first": 4 * KIB, "second": 4 * KIB}
    assert z.shape == x.shape


def test_what_autograd_adds_up_it_adds_in_place() -> None:
    """Two gradients of one tensor: without a mode looking on, the second goes into the first."""
    x = torch.zeros(KIB, requires_grad=True)
    with counters.Counting("cpu") as counting:
        counting.register([x], counters.INPUTS)
        y = x.exp()
        loss = (y.neg() + y.neg()).sum()
        with counting.part("backward"):
            loss.backward()
        part = counting.finished()["backward"]
    gradient_of_loss_and_loss = 8
    # x, y, and two gradients of y: first those of the two neg, then the sum of both and its product with y.
    assert part.peak_bytes == 4 * 4 * KIB + gradient_of_loss_and_loss


def test_a_sum_of_the_model_itself_is_a_new_block() -> None:
    def add() -> None:
        x = torch.zeros(KIB)
        x = x + x
        del x

    assert counted(add).peak_bytes == 2 * 4 * KIB


def test_autocasts_copies_of_weights_are_told_from_other_casts() -> None:
    weight, x = torch.zeros(64, 64, requires_grad=True), torch.zeros(64, 64)
    kept: list[Tensor] = []

    def forward() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            kept.append(torch.nn.functional.linear(x, weight))

    part = counted(forward, parameters=[weight], inputs=[x])
    # The product keeps the input's cast, whose gradient is the weight's.
    assert part.held_at_end[counters.WEIGHT_COPIES] == 0
    assert part.held_at_peak[counters.WEIGHT_COPIES] == 64 * 64 * 2


def test_a_block_is_named_by_the_line_that_made_it() -> None:
    x = torch.zeros(KIB, requires_grad=True)

    def forward_and_backward() -> None:
        x.exp().sum().backward()

    line = forward_and_backward.__code__.co_firstlineno + 1
    made = counted(forward_and_backward, inputs=[x]).allocations
    places = {operator: place for _, operator, place in made}
    assert places["aten.exp"] == f"rules/test_counting.py:{line}"
    assert places["aten.mul"] == counters.BACKWARD_PASS


def test_an_error_inside_leaves_no_mode_behind() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        counted(fail, "cuda")
    assert gc.isenabled()
    x = torch.ones(2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert x.exp().dtype == torch.bfloat16, "CUDA's rules are still played"
