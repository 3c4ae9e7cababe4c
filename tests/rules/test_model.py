"""The model computes what its papers say, whatever attention or checkpoint it is built with."""

import pytest
import torch
from torch import Tensor

from model.sizes import ModelConfig
from model.training import cross_entropy
from model.transformer import TransformerLM, blocks_per_checkpoint
from numerics_tests.harness.oracles import transformer_logits
from tests.support.example_cases import TOY, build, random_tokens
from tests.support.saved_tensors import saved_for_backward, storage_bytes

SHAPES = {
    "toy": TOY,
    "one_head": ModelConfig(8, 16, 1, 1, vocab_size=11, context_length=5),
    "one_token": ModelConfig(12, 20, 2, 3, vocab_size=11, context_length=1),
    "narrow_heads": ModelConfig(32, 48, 3, 16, vocab_size=29, context_length=12),
    "long": ModelConfig(24, 32, 2, 2, vocab_size=19, context_length=40),
}


def independent_logits(model: TransformerLM, config: ModelConfig) -> Tensor:
    weights = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    return transformer_logits(weights, random_tokens(config), config.num_layers, config.num_heads)


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_logits_agree_with_an_independent_float64_evaluation(config: ModelConfig, attention: str) -> None:
    """Each of some ten roundings in a row per layer may add one part in 2^24 for every term of its longest sum."""
    model = build(config, attention)
    expected = independent_logits(model, config)
    steps = 10 * config.num_layers + 5
    tolerance = steps * max(config.d_ff, config.context_length) * 2**-24 * float(expected.abs().max())
    assert (model(random_tokens(config)).double() - expected).abs().max() <= tolerance


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_in_float64_the_formulas_agree_to_twelve_digits(
    config: ModelConfig, attention: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """With the norm's own cast to float32 taken out, and the rotary tables made in float64."""
    monkeypatch.setattr(torch.Tensor, "float", lambda tensor: tensor)
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    model = build(config, attention)
    expected = independent_logits(model, config)
    torch.testing.assert_close(model(random_tokens(config)), expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


def test_a_shorter_input_gives_the_beginning_of_the_logits() -> None:
    model, tokens_BT = build(), random_tokens()
    torch.testing.assert_close(model(tokens_BT[:, :3]), model(tokens_BT)[:, :3])


def test_every_earlier_token_is_attended_to() -> None:
    """A gradient of the last logits reaches each token's embedding."""
    model = build()
    tokens_BT = torch.arange(TOY.context_length)[None]
    model(tokens_BT)[0, -1].sum().backward()
    gradient_VD = model.embedding.weight_VD.grad
    assert gradient_VD is not None
    assert gradient_VD[: TOY.context_length].abs().sum(-1).min() > 0
    assert gradient_VD[TOY.context_length :].abs().max() == 0


CHECKPOINTS = ["attention", "block", "2", "9"]


def gradients_of(model: TransformerLM) -> tuple[Tensor, ...]:
    """Asked for by themselves, which a reentrant checkpoint refuses."""
    tokens_BT = random_tokens()
    return torch.autograd.grad(cross_entropy(model(tokens_BT), tokens_BT), list(model.parameters()))


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_recomputing_activations_changes_no_gradient(checkpoint: str) -> None:
    kept, recomputed = gradients_of(build()), gradients_of(build(checkpoint=checkpoint))
    assert all(torch.equal(one, other) for one, other in zip(kept, recomputed, strict=True))


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_recomputing_activations_saves_fewer_bytes(checkpoint: str) -> None:
    def saved(model: TransformerLM) -> int:
        return storage_bytes(saved_for_backward(lambda: model(random_tokens()), leave_out=model.parameters()))

    assert saved(build(checkpoint=checkpoint)) < saved(build())


def test_a_model_knows_its_shape_and_saves_its_weights_alone() -> None:
    """The rotary tables are made again from the shape."""
    model = build()
    assert model.config == TOY
    assert [*model.state_dict()] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("checkpoint, blocks", [("none", 0), ("attention", 0), ("block", 1), ("1", 1), ("12", 12)])
def test_a_checkpoint_names_the_blocks_that_share_it(checkpoint: str, blocks: int) -> None:
    assert blocks_per_checkpoint(checkpoint) == blocks


@pytest.mark.parametrize("checkpoint", ["", "0", "-1", "1.5", "blocks", "None"])
def test_an_unknown_checkpoint_is_refused_with_the_known_ones(checkpoint: str) -> None:
    with pytest.raises(ValueError, match=f"'{checkpoint}'.*none, attention, block or a number") as refusal:
        build(checkpoint=checkpoint)
    assert ". " not in str(refusal.value)


def test_resetting_under_the_same_seed_gives_the_first_weights_again() -> None:
    model, first = build(), build()
    torch.nn.init.zeros_(model.norm.weight_D)
    torch.nn.init.zeros_(model.head.weight_OI)
    torch.manual_seed(0)
    model.reset_parameters()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), first.parameters(), strict=True))


@pytest.mark.parametrize("name", [name for name, _ in build().named_parameters()])
def test_a_weight_that_is_not_a_number_shows_in_every_logit(name: str) -> None:
    """Of the reference: PyTorch's fused kernel for the CPU turns NaN queries and keys into finite outputs."""
    model = build()
    torch.nn.init.constant_(model.get_parameter(name), float("nan"))
    assert model(random_tokens()).isnan().all()
