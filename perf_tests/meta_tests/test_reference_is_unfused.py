"""The reference (naive, eager, loop) is what the write-ups measured, op by op: no fused kernel hides in it."""

from collections import Counter
from typing import Any

import pytest
import torch

from model.attention import softmax
from model.precision import PRECISIONS
from model.sizes import SIZES
from model.training import Training
from perf_tests.instruments.torch_private import TorchDispatchMode
from perf_tests.meta_tests.example_cases import CPU, TOY, build, random_tokens
from perf_tests.meta_tests.saved_tensors import saved_for_backward

CONFIG = SIZES["tiny"].at_context(16)
LAYERS = CONFIG.num_layers
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul")
FUSED = (
    "scaled_dot_product", "rms_norm", "layer_norm", "silu", "softmax", "cross_entropy", "nll_loss", "_foreach_",
    "fused", "rope", "addmm", "baddbmm", "embedding",
)  # fmt: skip

Step = dict[str, Counter[str]]


class Dispatched(TorchDispatchMode):
    """Counts the kernels that PyTorch dispatches, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def step() -> Step:
    """How often each kernel was dispatched in each part of one training step of the reference."""
    training = Training(build(CONFIG), PRECISIONS["fp32"], CPU, "loop")
    training.create_optimizer_state()
    parts: Step = {}
    with Dispatched() as dispatched:

        def mark(part: str) -> None:
            parts[part], dispatched.seen = dispatched.seen, Counter()

        tokens_BT = random_tokens(CONFIG)
        training.step(tokens_BT, tokens_BT, mark)
    return parts


def products(kernels: Counter[str]) -> int:
    return sum(kernels[name] for name in PRODUCTS)


def test_a_forward_pass_is_nine_products_per_layer_and_the_head(step: Step) -> None:
    """Query, key, value, output, gate, up and down; scores and their product with the values."""
    assert products(step["forward"]) == 9 * LAYERS + 1


def test_a_backward_pass_is_twice_as_many_products(step: Step) -> None:
    assert products(step["backward"]) == 18 * LAYERS + 2


def test_no_other_part_multiplies_matrices(step: Step) -> None:
    assert sum(products(step[part]) for part in ("zero_grad", "loss", "optimizer")) == 0


def test_no_kernel_is_a_fused_one(step: Step) -> None:
    dispatched = {name for part in step.values() for name in part}
    assert not [name for name in dispatched if any(word in name for word in FUSED)]


def test_the_softmax_is_written_out_once_per_layer(step: Step) -> None:
    forward = step["forward"]
    assert [forward[name] for name in ("max", "exp", "sum", "where")] == [LAYERS] * 4


def test_the_norm_is_written_out_twice_per_layer_and_once_after(step: Step) -> None:
    forward = step["forward"]
    assert [forward[name] for name in ("pow", "mean", "rsqrt")] == [2 * LAYERS + 1] * 3


def test_the_mask_is_built_in_every_layer(step: Step) -> None:
    assert (step["forward"]["arange"], step["forward"]["ge"]) == (LAYERS, LAYERS)


def test_the_loss_is_written_out(step: Step) -> None:
    assert [step["loss"][name] for name in ("max", "exp", "sum", "log", "gather", "mean")] == [1] * 6


def test_the_optimizer_updates_one_parameter_at_a_time(step: Step) -> None:
    parameters = len(list(build(CONFIG).parameters()))
    assert [step["optimizer"][name] for name in ("lerp_", "addcmul_", "addcdiv_", "sqrt")] == [parameters] * 4


def test_naive_attention_keeps_two_squares_per_block() -> None:
    """The exponentials and the probabilities; a third would show in every published memory figure."""
    config = TOY.at_context(13)  # so that no other tensor has as many elements
    model = build(config)
    saved = saved_for_backward(lambda: model(random_tokens(config)), leave_out=model.parameters())
    square = 2 * config.num_heads * config.context_length**2
    squares = [tensor for tensor in saved if tensor.is_floating_point() and tensor.numel() == square]
    assert len(squares) == 2 * config.num_layers


def test_the_maximum_of_the_softmax_keeps_no_copy_of_the_scores() -> None:
    """Their storage is not kept: what is kept are the exponentials, their sum and the index of the maximum."""
    scores = torch.randn(3, 5, requires_grad=True)
    saved = saved_for_backward(lambda: softmax(scores), leave_out=[scores])
    assert sorted(tensor.numel() for tensor in saved) == [3, 3, 15]
