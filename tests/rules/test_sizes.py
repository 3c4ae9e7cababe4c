"""Parameter count and FLOPs, closed forms both, against models that are built and products that are counted."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.attention import naive_attention
from model.sizes import SIZES, ModelConfig
from model.transformer import TransformerLM

# Course handout, Stanford CS336, assignment 2 (editions 2025 and 2026): parameters, and forward TFLOP by context.
PUBLISHED = {
    "small": (128_625_408, {128: 0.126, 256: 0.257, 512: 0.534, 1024: 1.145}),
    "medium": (423_183_360, {128: 0.429, 256: 0.871, 512: 1.794, 1024: 3.795}),
    "large": (969_411_840, {128: 0.992, 256: 2.007, 512: 4.111, 1024: 8.609}),
    "xl": (1_998_235_200, {128: 2.050, 256: 4.140, 512: 8.441, 1024: 17.526}),
    "2.7B": (3_406_809_600, {128: 3.484, 256: 7.010, 512: 14.192, 1024: 29.072}),
    "10B": (12_832_823_808, {128: 13.15, 512: 53.34}),
}


@pytest.mark.parametrize("config", SIZES.values(), ids=SIZES)
def test_parameters_are_those_of_the_model(config: ModelConfig) -> None:
    with torch.device("meta"):
        model = TransformerLM(config, naive_attention)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize("context", [32, 96])
def test_forward_flops_are_those_of_the_products(size: str, context: int) -> None:
    config = SIZES[size].at_context(context)
    with torch.device("meta"):
        model = TransformerLM(config, naive_attention)
        tokens_BT = torch.zeros(3, context, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(tokens_BT)
    assert counter.get_total_flops() == config.forward_flops(batch_size=3, context_length=context)


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameters_and_forward_flops_are_the_published_ones(size: str) -> None:
    """To the last digit printed: three decimals, two for 10B. So is the longest context."""
    assert SIZES[size].context_length == max(PUBLISHED["small"][1])
    parameters, teraflops = PUBLISHED[size]
    assert SIZES[size].parameters == parameters
    digits = 2 if size == "10B" else 3
    assert {context: round(SIZES[size].forward_flops(4, context) / 1e12, digits) for context in teraflops} == teraflops


IMPOSSIBLE: dict[str, dict[str, int]] = {
    "d_model 100 is not divisible by num_heads 3": {"d_model": 100, "num_heads": 3},
    "odd head width 3": {"d_model": 12, "num_heads": 4},
    "num_layers is 0": {"num_layers": 0},
    "vocab_size is -1": {"vocab_size": -1},
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_an_impossible_shape_is_refused_in_one_sentence(words: str) -> None:
    with pytest.raises(ValueError, match=rf"^[^.]*{words}[^.]*\.$"):
        ModelConfig(**{"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, **IMPOSSIBLE[words]})


def test_the_least_shape_is_accepted_and_its_context_can_grow() -> None:
    least = ModelConfig(d_model=2, d_ff=1, num_layers=1, num_heads=1, vocab_size=1, context_length=1)
    assert least.at_context(7) == ModelConfig(2, 1, 1, 1, vocab_size=1, context_length=7)


def test_tiny_is_the_smallest_and_first() -> None:
    counts = [config.parameters for config in SIZES.values()]
    assert counts == sorted(counts)
    assert next(iter(SIZES)) == "tiny"
