"""The model computes what its papers say, whatever attention or checkpoint it is built with."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from model.attention import ATTENTION, AttentionFunction
from model.compilation import forget_compiled
from model.sizes import ModelConfig
from model.training import cross_entropy
from model.transformer import TransformerLM
from perf_tests.meta_tests.example_cases import CPU, TOY, build, random_tokens
from perf_tests.meta_tests.independent_model import logits_of
from perf_tests.meta_tests.saved_tensors import saved_for_backward, storage_bytes

SHAPES = {
    "toy": TOY,
    "one_head": ModelConfig(8, 16, 1, 1, vocab_size=11, context_length=5),
    "one_token": ModelConfig(12, 20, 2, 3, vocab_size=11, context_length=1),
    "narrow_heads": ModelConfig(32, 48, 3, 16, vocab_size=29, context_length=12),
    "long": ModelConfig(24, 32, 2, 2, vocab_size=19, context_length=40),
}


@pytest.fixture(autouse=True)
def _leave_nothing_behind() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    forget_compiled()


def independent_logits(model: TransformerLM, config: ModelConfig) -> Tensor:
    return torch.from_numpy(logits_of(model, config, random_tokens(config).numpy()))


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
    config: ModelConfig, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the norm's own cast to float32 taken out, and the rotary tables made in float64."""
    monkeypatch.setattr(torch.Tensor, "float", lambda tensor: tensor)
    torch.set_default_dtype(torch.float64)
    model = build(config, attention)
    assert_same_to_twelve_digits(model(random_tokens(config)), independent_logits(model, config))


def assert_same_to_twelve_digits(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_later_tokens_do_not_change_earlier_logits(attention: str) -> None:
    model, tokens_BT = build(attention=attention), random_tokens()
    changed_BT = tokens_BT.clone()
    changed_BT[:, 5:] = (changed_BT[:, 5:] + 1) % TOY.vocab_size
    before_BTV, after_BTV = model(tokens_BT), model(changed_BT)
    assert torch.equal(before_BTV[:, :5], after_BTV[:, :5])
    assert not torch.equal(before_BTV[:, 5], after_BTV[:, 5])


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


def attention_query_by_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Equation 1 of the paper for one query after the other, over the keys it may see; no mask anywhere."""
    rows = []
    for position in range(q.shape[-2]):
        seen = slice(0, position + 1)
        scores = (q[..., position, None, :] * k[..., seen, :]).sum(-1) / q.shape[-1] ** 0.5
        rows.append((torch.softmax(scores, -1)[..., None] * v[..., seen, :]).sum(-2))
    return torch.stack(rows, -2)


def output_and_gradients(attend: AttentionFunction, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = attend(*leaves)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    (output * weights).sum().backward()
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return [output.detach(), *gradients]


ALONE, HEADS = (2, 9, 8), (2, 3, 9, 8)
RUNS_HERE = [name for name, attention in ATTENTION.items() if attention.why_unavailable(CPU, 8) is None]


# Compiling takes seconds, so each compiled one is tried with a single shape.
@pytest.mark.parametrize(
    "name, shape",
    [
        (name, shape)
        for name in RUNS_HERE
        for shape in (ALONE, HEADS)
        if shape == HEADS or not ATTENTION[name].is_compiled
    ],
)
def test_an_attention_agrees_with_float64_in_output_and_gradients(name: str, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(2)
    inputs = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    got = output_and_gradients(ATTENTION[name].build(), inputs)
    expected = output_and_gradients(attention_query_by_query, inputs)
    assert len(got) == 4
    for one, other in zip(got, expected, strict=True):
        assert_same_to_twelve_digits(one, other)


CHECKPOINTS = ["attention", "block", "2", "9"]


def gradients_of(model: TransformerLM) -> list[Tensor]:
    tokens_BT = random_tokens()
    cross_entropy(model(tokens_BT), tokens_BT).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_recomputing_activations_changes_no_gradient(checkpoint: str) -> None:
    kept, recomputed = gradients_of(build()), gradients_of(build(checkpoint=checkpoint))
    assert len(kept) == len(recomputed) == len(list(build().parameters()))
    assert all(torch.equal(one, other) for one, other in zip(kept, recomputed, strict=True))


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_recomputing_activations_saves_fewer_bytes(checkpoint: str) -> None:
    def saved(model: TransformerLM) -> int:
        return storage_bytes(saved_for_backward(lambda: model(random_tokens()), leave_out=model.parameters()))

    assert saved(build(checkpoint=checkpoint)) < saved(build())


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
