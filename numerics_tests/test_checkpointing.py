"""Activation checkpointing computes the same twice instead of keeping it: no bit of a result may change."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import strategies as st
from torch import Tensor

from model.precision import PRECISIONS
from model.training import Training
from model.transformer import TransformerLM
from numerics_tests.harness import tiny
from numerics_tests.harness.checks import assert_same_bits
from numerics_tests.harness.claims import claim
from numerics_tests.harness.strategies import SEEDS
from numerics_tests.machine.environment import device

Build = Callable[[int, str], TransformerLM]
"""(seed, checkpoint) to a model of three layers, so that two blocks per checkpoint leave one over."""

CONFIG = replace(tiny.CONFIG, num_layers=3)


def build_checkpointed(seed: int, checkpoint: str) -> TransformerLM:
    return tiny.model(seed, config=CONFIG, checkpoint=checkpoint)


@claim("build", {"model": build_checkpointed}, cost=4, seed=SEEDS, precision=st.sampled_from(["fp32", "bf16"]))
def test_checkpointing_changes_no_bit(build: Build, seed: int, precision: str) -> None:
    """Logits and every gradient; recomputation runs the same kernels on the same inputs: Chen et al., 2016."""
    tokens = tiny.tokens(seed)

    def results(checkpoint: str) -> Iterator[tuple[str, Tensor]]:
        training = Training(build(seed, checkpoint), PRECISIONS[precision], device())
        logits = training.forward(tokens)
        yield "logits", logits.detach()
        training.backward(training.loss(logits, tokens))
        yield from tiny.gradients(training.model).items()

    kept = dict(results("none"))
    for checkpoint in ("attention", "block", "2", "3", "5"):
        for name, value in results(checkpoint):
            assert_same_bits(value, kept[name], "the same kernels")
