"""A region is nothing until an instrument opens it, and then it names the parts of a step in their order."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from model.precision import PRECISIONS
from model.regions import region, regions_opened_by
from model.training import Training
from perf_tests.hardware.torch_private import TorchDispatchMode
from tests.support.example_cases import CPU, TOY, build, random_tokens


class Opener:
    """Writes down every region with the regions around it."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, ...]] = []
        self._around: tuple[str, ...] = ()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        before, self._around = self._around, (*self._around, name)
        self.opened.append(self._around)
        try:
            yield
        finally:
            self._around = before


class Dispatched(TorchDispatchMode):
    """Writes down the operations that PyTorch dispatches: `aten.mm.default`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def training() -> Training:
    return Training(build(), PRECISIONS["fp32"], CPU)


def test_the_regions_of_a_step_nest_as_the_model_does() -> None:
    opener, step = Opener(), training()
    with regions_opened_by(opener):
        step.step(random_tokens(), random_tokens())
    attention = [path[4:] for path in opener.opened if path[:4] == ("full_step", "forward", "block 1", "attention")]
    assert attention == [(), ("rotary",), ("rotary",), ("scores",), ("mask",), ("softmax",), ("value_product",)]
    assert Counter(path[1] for path in opener.opened if len(path) == 2) == dict.fromkeys(
        ("zero_grad", "forward", "loss", "backward", "optimizer"), 1
    )
    assert [path[2:] for path in opener.opened if path[1:2] == ("optimizer",)] == [
        (), ("unscale",), ("clip",), ("adamw",)
    ]  # fmt: skip


def test_every_layer_has_a_region_with_its_number_and_ten_inside() -> None:
    """What bounds the price of regions that do nothing: two calls and a context each, on 52 launches a layer."""
    opener, step = Opener(), training()
    with regions_opened_by(opener):
        step.forward(random_tokens())
    assert [path[-1] for path in opener.opened if len(path) == 2] == ["embedding", "block 0", "block 1", "norm", "head"]
    inside = [path[2] for path in opener.opened if path[1:2] == ("block 1",) and len(path) == 3]
    assert inside == ["norm", "attention", "norm", "feed_forward"]
    assert sum(len(path) > 2 for path in opener.opened) == 10 * TOY.num_layers


@pytest.mark.parametrize("checkpoint", ["attention", "block"])
def test_what_is_recomputed_opens_its_regions_again_in_the_backward_pass(checkpoint: str) -> None:
    opener = Opener()
    step = Training(build(checkpoint=checkpoint), PRECISIONS["fp32"], CPU)
    with regions_opened_by(opener):
        step.step(random_tokens(), random_tokens())
    assert sum(path[1] == "backward" and path[-1] == "softmax" for path in opener.opened if len(path) > 1) == 2


def test_an_opener_is_gone_after_its_context_even_when_that_fails() -> None:
    opener = Opener()
    with pytest.raises(RuntimeError, match="planted"), regions_opened_by(opener):
        raise RuntimeError("planted")
    with region("softmax"):
        pass
    assert opener.opened == []


def test_an_opener_changes_no_operation_of_a_step() -> None:
    step = training()
    step.create_optimizer_state()
    with Dispatched() as plain:
        step.step(random_tokens(), random_tokens())
    with Dispatched() as watched, regions_opened_by(Opener()):
        step.step(random_tokens(), random_tokens())
    assert watched.seen == plain.seen


def test_the_whole_model_still_compiles_into_one_graph() -> None:
    model, tokens = build(), random_tokens()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    assert torch.equal(compiled(tokens), model(tokens))
