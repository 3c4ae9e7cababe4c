"""The reference is written out op by op, with no fused kernel, keeps no square too many, and still compiles."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from perf_tests_suite.model.attention import softmax
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.hardware.torch_private import TorchDispatchMode
from tests.support.example_cases import CPU, TOY, build, random_tokens


class Dispatched(TorchDispatchMode):
    """A list of the operations that PyTorch dispatches: `aten.mm.default`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_whole_model_still_compiles_into_one_graph() -> None:
    model, tokens = build(), random_tokens()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    assert torch.equal(compiled(tokens), model(tokens))


CONFIG = SIZES["tiny"].at_context(16)
LAYERS = CONFIG.num_layers
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul")
FUSED = (
    "scaled_dot_product", "rms_norm", "layer_norm", "silu", "softmax", "cross_entropy", "nll_loss", "_foreach_",
    "fused", "rope", "addmm", "baddbmm",
)  # fmt: skip

Step = dict[str, Counter[str]]


@pytest.fixture(scope="module")
def step() -> Step:
    """How often each kernel was dispatched in each part of one training step of the reference."""
    training = Training(build(CONFIG), PRECISIONS["fp32"], CPU, "loop")
    training.create_optimizer_state()
    parts: Step = {}
    with Dispatched() as dispatched:

        def mark(part: str) -> None:
            parts[part], dispatched.seen = Counter(name.split(".")[1] for name in dispatched.seen), []

        tokens_BT = random_tokens(CONFIG)
        training.step(tokens_BT, tokens_BT, mark)
    return parts


def test_a_forward_pass_is_nine_products_a_layer_and_the_head_and_a_backward_pass_twice_as_many(step: Step) -> None:
    """Query, key, value, output, gate, up and down; scores and their product with the values."""
    forward = 9 * LAYERS + 1
    expected = {"zero_grad": 0, "forward": forward, "loss": 0, "backward": 2 * forward, "optimizer": 0}
    assert {part: sum(kernels[name] for name in PRODUCTS) for part, kernels in step.items()} == expected


def test_no_kernel_is_a_fused_one_and_each_part_is_written_out(step: Step) -> None:
    dispatched = {name for part in step.values() for name in part}
    assert not [name for name in dispatched if any(word in name for word in FUSED)]
    parameters = len(list(build(CONFIG).parameters()))
    written_out = {
        "the softmax once per layer": ("forward", ("max", "exp", "sum", "where"), LAYERS),
        "the norm twice per layer and once after": ("forward", ("pow", "mean", "rsqrt"), 2 * LAYERS + 1),
        "the mask in every layer": ("forward", ("arange", "ge"), LAYERS),
        "the loss": ("loss", ("max", "exp", "sum", "log", "gather", "mean"), 1),
        "the optimizer one parameter at a time": ("optimizer", ("lerp_", "addcmul_", "addcdiv_", "sqrt"), parameters),
    }
    for what, (part, kernels, times) in written_out.items():
        assert {name: step[part][name] for name in kernels} == dict.fromkeys(kernels, times), what


def saved_for_backward(forward: Callable[[], object], leave_out: Iterable[Tensor] = ()) -> list[Tensor]:
    """The tensors that `forward` saves, one of each storage; `leave_out` names those that exist anyway."""
    known = {tensor.untyped_storage().data_ptr() for tensor in leave_out}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        # Detached, or an output saved by its own operation would hold the graph that holds it.
        detached = tensor.detach()
        if detached.untyped_storage().data_ptr() not in known:
            saved.setdefault(detached.untyped_storage().data_ptr(), detached)
        return detached

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return list(saved.values())


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
