"""Counting any code: launches, blocks, parts and categories, on real tensors and on fake ones alike."""

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from perf_tests_suite.perf_tests.hardware.torch_private import FakeTensorMode, operator
from perf_tests_suite.perf_tests.predict import parts as module
from perf_tests_suite.perf_tests.predict.counting import Counting
from perf_tests_suite.perf_tests.predict.parts import INPUTS, PARAMETERS, PartCounters

KIB = 1024


def block(kibibytes: int) -> Tensor:
    return torch.empty(kibibytes * KIB, dtype=torch.uint8)


def counted(function: Callable[[], object], target: str = "cpu", **registered: list[Tensor]) -> PartCounters:
    with Counting(target, source=Path(__file__).parent) as counting:
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


def test_what_was_registered_counts_from_the_start_and_what_is_claimed_is_what_has_no_category_yet() -> None:
    """And nothing is new when it is written."""
    held = torch.zeros(KIB)
    part = counted(lambda: held.add_(1), inputs=[held])
    assert (part.live_at_start, part.peak_bytes, part.allocations.total()) == ({INPUTS: 4 * KIB}, 4 * KIB, 0)
    with Counting("cpu") as counting:
        blocks = [block(1), block(2)]
        counting.register(blocks[:1], PARAMETERS)
        counting.claim(INPUTS)
        with counting.part("it"):
            pass
        assert counting.finished()["it"].live_at_start == {PARAMETERS: KIB, INPUTS: 2 * KIB}


def test_a_gpu_hands_out_multiples_of_512_bytes_and_a_number_on_the_host_costs_it_nothing() -> None:
    """As AdamW's step counts do."""

    def count_steps() -> None:
        steps = torch.tensor(0.0)
        steps += 1
        steps * 2

    for target, rounded, peak_bytes, kernels in (("cuda", 1024, 0, 0), ("cpu", 513, 8, 2)):
        assert counted(lambda: torch.empty(513, dtype=torch.uint8), target).peak_bytes == rounded
        part = counted(count_steps, target)
        assert (part.peak_bytes, part.kernels.total()) == (peak_bytes, kernels)


def test_saved_are_the_tensors_that_autograd_keeps_each_block_once_and_no_parameter() -> None:
    """In the first part that saves it; exp keeps its result, and so does the product of it with itself."""
    weight = torch.zeros(KIB, requires_grad=True)
    with Counting("cpu") as counting:
        counting.register([weight], PARAMETERS)
        with counting.part("first"):
            y = (weight * weight).exp()
            kept = y * y.view(-1)
        with counting.part("second"):
            more = y.exp() * y
        parts = counting.finished()
    assert {name: part.saved_bytes for name, part in parts.items()} == {"first": 4 * KIB, "second": 4 * KIB}
    assert parts["first"].live_at_end == {PARAMETERS: 4 * KIB, module.ACTIVATIONS: 4 * KIB, module.TEMPORARIES: 4 * KIB}
    assert more.shape == kept.shape


def test_what_autograd_adds_up_it_adds_in_place_and_a_sum_of_the_model_is_a_new_block() -> None:
    """Two gradients of one tensor: without a mode looking on, the second goes into the first."""
    x = torch.zeros(KIB, requires_grad=True)
    with Counting("cpu") as counting:
        counting.register([x], INPUTS)
        y = x.exp()
        loss = (y.neg() + y.neg()).sum()
        with counting.part("backward"):
            loss.backward()
        part = counting.finished()["backward"]
    gradient_of_loss_and_loss = 8
    # x, y, and two gradients of y: first those of the two neg, then the sum of both and its product with y.
    assert part.peak_bytes == 4 * 4 * KIB + gradient_of_loss_and_loss

    def add() -> None:
        z = torch.zeros(KIB)
        z = z + z
        del z

    assert counted(add).peak_bytes == 2 * 4 * KIB


def test_autocasts_copies_of_weights_are_told_from_other_casts() -> None:
    """The product keeps the input's cast, whose gradient is the weight's."""
    weight, x = torch.zeros(64, 64, requires_grad=True), torch.zeros(64, 64)
    kept: list[Tensor] = []

    def forward() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            kept.append(torch.nn.functional.linear(x, weight))

    part = counted(forward, parameters=[weight], inputs=[x])
    assert (part.live_at_end[module.WEIGHT_COPIES], part.live_at_peak[module.WEIGHT_COPIES]) == (0, 64 * 64 * 2)


def test_a_block_is_named_by_the_line_that_made_it() -> None:
    x = torch.zeros(KIB, requires_grad=True)

    def forward_and_backward() -> None:
        x.exp().sum().backward()

    line = forward_and_backward.__code__.co_firstlineno + 1
    places = {operator: place for _, operator, place in counted(forward_and_backward, inputs=[x]).allocations}
    assert (places["aten.exp"], places["aten.mul"]) == (f"rules/test_counting.py:{line}", module.BACKWARD_PASS)


def test_an_error_inside_leaves_no_mode_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        counted(lambda: 1 // 0, "cuda")
    assert gc.isenabled()
    x = torch.ones(2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert x.exp().dtype == torch.bfloat16, "CUDA's rules still hold"


@pytest.mark.parametrize("change", [
    lambda x, y: x.mul_(y), lambda x, y: x.copy_(y), lambda x, y: operator("_foreach_add_")([x, y], [y, x]),
    lambda x, y: x.unsqueeze_(0), lambda x, y: y[:1].add_(1),
])  # fmt: skip
def test_what_is_written_in_place_counts_alike_whether_it_is_run_or_not(
    change: Callable[[Tensor, Tensor], object],
) -> None:
    found = []
    for guesses in (True, False):
        x, y = torch.ones(KIB), torch.ones(KIB)
        with Counting("cuda") as counting:
            counting.guesses_values = guesses
            with counting.part("it"):
                change(x, y)
        found.append((counting.finished()["it"], x.shape))
    assert found[0] == found[1]


def test_code_of_the_users_is_refused_what_does_not_fit() -> None:
    with Counting("cuda") as counting:
        counting.guesses_values = False
        with pytest.raises(RuntimeError, match="expected dtype"):
            torch.ones(3).lerp_(torch.ones(3, dtype=torch.float64), 0.5)
