"""What `model/` promises beside its numbers: sizes, checkpoints, regions, parts of a step, which kernels attend."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perf_tests_suite.model import attention
from perf_tests_suite.model.attention import ATTENTION, naive_attention, sdpa_attention
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.regions import region, regions_opened_by
from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.model.training import OPTIMIZERS, Training, optimizer_that_runs
from perf_tests_suite.model.transformer import TransformerLM, blocks_per_checkpoint
from perf_tests_suite.numerics_tests.harness import oracles, tiny
from perf_tests_suite.numerics_tests.harness.checks import operators_of
from perf_tests_suite.numerics_tests.machine import environment

CPU = torch.device("cpu")
TOKENS = tiny.tokens().cpu()


@pytest.fixture(autouse=True)
def flags_are_put_back() -> Iterator[None]:
    """Let each test begin and end with PyTorch's defaults."""
    with environment.pinned():
        yield


def on_meta(config: ModelConfig) -> TransformerLM:
    """A model whose tensors have no content."""
    with torch.device("meta"):
        return TransformerLM(config, naive_attention)


@pytest.mark.parametrize("config", SIZES.values(), ids=SIZES)
def test_parameters_are_those_of_the_model(config: ModelConfig) -> None:
    assert sum(parameter.numel() for parameter in on_meta(config).parameters()) == config.parameters


@pytest.mark.parametrize("context", [32, 96])
def test_forward_flops_are_those_of_the_products(context: int) -> None:
    config = SIZES["small"].at_context(context)
    model = on_meta(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, context, dtype=torch.int64, device="meta"))
    assert counter.get_total_flops() == config.forward_flops(batch_size=3, context_length=context)


# Course handout, Stanford CS336, assignment 2 (editions 2025 and 2026): parameters, and forward TFLOP by context.
PUBLISHED = {
    "small": (128_625_408, {128: 0.126, 256: 0.257, 512: 0.534, 1024: 1.145}),
    "medium": (423_183_360, {128: 0.429, 256: 0.871, 512: 1.794, 1024: 3.795}),
    "large": (969_411_840, {128: 0.992, 256: 2.007, 512: 4.111, 1024: 8.609}),
    "xl": (1_998_235_200, {128: 2.050, 256: 4.140, 512: 8.441, 1024: 17.526}),
    "2.7B": (3_406_809_600, {128: 3.484, 256: 7.010, 512: 14.192, 1024: 29.072}),
    "10B": (12_832_823_808, {128: 13.15, 512: 53.34}),
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameters_and_forward_flops_are_the_published_ones(size: str) -> None:
    """The last digit printed agrees: three decimals, two for 10B. So does the longest context."""
    assert SIZES[size].context_length == max(PUBLISHED["small"][1])
    parameters, teraflops = PUBLISHED[size]
    assert SIZES[size].parameters == parameters
    digits = 2 if size == "10B" else 3
    assert {context: round(SIZES[size].forward_flops(4, context) / 1e12, digits) for context in teraflops} == teraflops


IMPOSSIBLE: dict[str, dict[str, int]] = {
    "d_model 100 is not divisible by num_heads 3": {"d_model": 100, "num_heads": 3},
    "odd head width 3": {"d_model": 12, "num_heads": 4},
    "vocab_size is -1": {"vocab_size": -1},
    **{f"{name} is 0": {name: 0} for name in ("d_model", "d_ff", "num_layers", "num_heads", "context_length")},
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_an_impossible_shape_is_refused_in_one_sentence(words: str) -> None:
    with pytest.raises(ValueError, match=rf"^[^.]*{words}[^.]*\.$"):
        ModelConfig(**{"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, **IMPOSSIBLE[words]})


def test_sizes_grow_from_tiny_and_the_least_shape_is_accepted() -> None:
    counts = [config.parameters for config in SIZES.values()]
    assert counts == sorted(counts)
    assert next(iter(SIZES)) == "tiny"
    least = ModelConfig(d_model=2, d_ff=1, num_layers=1, num_heads=1, vocab_size=1, context_length=1)
    assert least.at_context(7) == ModelConfig(2, 1, 1, 1, vocab_size=1, context_length=7)


SHAPES = {
    "tiny": tiny.CONFIG,
    "one_head": ModelConfig(8, 16, 1, 1, vocab_size=11, context_length=5),
    "one_token": ModelConfig(12, 20, 2, 3, vocab_size=11, context_length=1),
    "narrow_heads": ModelConfig(32, 48, 3, 16, vocab_size=29, context_length=12),
    "long": ModelConfig(24, 32, 2, 2, vocab_size=19, context_length=40),
}


@pytest.mark.parametrize("name", ["naive", "sdpa"])
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_in_float64_the_formulas_agree_to_twelve_digits(
    config: ModelConfig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm's own cast is taken out and the rotary tables are float64. Shorter inputs give the first logits."""
    monkeypatch.setattr(torch.Tensor, "float", lambda tensor: tensor)
    torch.set_default_dtype(torch.float64)  # the fixture puts it back
    model = tiny.model(attention=ATTENTION[name].build(), config=config)
    tokens = torch.randint(config.vocab_size, (2, config.context_length), generator=torch.Generator().manual_seed(1))
    state = {parameter: weight.detach() for parameter, weight in model.named_parameters()}
    exact = oracles.transformer_logits(state, tokens, config.num_layers, config.num_heads)
    for length in {config.context_length, (config.context_length + 1) // 2}:
        logits, expected = model(tokens[:, :length]).detach(), exact[:, :length]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12 * float(exact.abs().max()))


def test_a_weight_that_is_not_a_number_shows_in_every_logit() -> None:
    """PyTorch's fused attention on a CPU turns NaN queries and keys into finite outputs; the naive one does not."""
    for name, _ in tiny.model().named_parameters():
        model = tiny.model()
        torch.nn.init.constant_(model.get_parameter(name), float("nan"))
        assert model(TOKENS).isnan().all(), name


def test_tokens_and_lengths_beyond_the_shape_are_refused() -> None:
    """Never clamped or wrapped, which would train on other tokens and positions in silence."""
    model = tiny.model()
    with pytest.raises(IndexError):
        model(torch.full((1, 2), tiny.CONFIG.vocab_size))
    with pytest.raises(RuntimeError, match="must match the size"):
        model(torch.zeros(1, tiny.CONFIG.context_length + 1, dtype=torch.int64))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_forward_pass_without_a_graph_computes_the_same(precision: str) -> None:
    """Autocast included, to the bit: on a CPU it takes the same kernels. Evaluation mode changes nothing either."""
    training = tiny.training(precision)
    expected = training.forward(TOKENS).detach()
    training.model.eval()
    with torch.no_grad():
        logits = training.forward(TOKENS)
    assert torch.equal(logits, expected)
    assert logits.dtype == (PRECISIONS[precision].autocast_dtype or torch.float32)


@pytest.mark.parametrize("checkpoint, blocks", [("none", 0), ("attention", 0), ("block", 1), ("1", 1), ("12", 12)])
def test_a_checkpoint_names_the_blocks_that_share_it(checkpoint: str, blocks: int) -> None:
    assert blocks_per_checkpoint(checkpoint) == blocks


@pytest.mark.parametrize("checkpoint", ["", "0", "-1", "1.5", "blocks", "None"])
def test_an_unknown_checkpoint_is_refused_with_the_known_ones(checkpoint: str) -> None:
    with pytest.raises(ValueError, match=f"'{checkpoint}'.*none, attention, block or a number[^.]*.$"):
        tiny.model(checkpoint=checkpoint)


@pytest.mark.parametrize("checkpoint, softmaxes", [("none", 0), ("attention", 2), ("block", 2), ("2", 2), ("9", 2)])
def test_activations_of_a_checkpoint_are_computed_again(checkpoint: str, softmaxes: int) -> None:
    """Their regions open again in the backward pass, and their gradients may be asked for by themselves."""
    model, opener = tiny.model(checkpoint=checkpoint), Opener()
    loss = model(TOKENS).sum()
    with regions_opened_by(opener):
        torch.autograd.grad(loss, list(model.parameters()))  # a reentrant checkpoint refuses this
    assert sum(path[-1] == "softmax" for path in opener.opened) == softmaxes


def test_a_model_knows_its_shape_and_saves_and_resets_its_weights_alone() -> None:
    """The rotary tables are made again from the shape; the same seed gives the first weights again."""
    torch.manual_seed(0)
    model = TransformerLM(tiny.CONFIG, naive_attention)
    assert model.config == tiny.CONFIG
    assert [*model.state_dict()] == [name for name, _ in model.named_parameters()]
    first = {name: weight.clone() for name, weight in model.state_dict().items()}
    for weight in model.parameters():
        torch.nn.init.zeros_(weight)
    torch.manual_seed(0)
    model.reset_parameters()
    assert all(torch.equal(weight, first[name]) for name, weight in model.state_dict().items())


class Opener:
    """Write down every region with the regions around it."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, ...]] = []
        self.around: tuple[str, ...] = ()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        before, self.around = self.around, (*self.around, name)
        self.opened.append(self.around)
        try:
            yield
        finally:
            self.around = before


def test_the_regions_of_a_step_nest_as_the_model_does() -> None:
    """The suite prints these names; ten regions a layer bound the price of regions that do nothing."""
    opener, training = Opener(), tiny.training()
    with regions_opened_by(opener):
        training.step(TOKENS, TOKENS)

    def inside(*path: str) -> list[str]:
        return [each[-1] for each in opener.opened if each[:-1] == path]

    assert inside() == ["full_step"]
    assert inside("full_step") == ["zero_grad", "forward", "loss", "backward", "optimizer"]
    assert inside("full_step", "optimizer") == ["unscale", "clip", "adamw"]
    forward = ("full_step", "forward")
    assert inside(*forward) == ["embedding", "block 0", "block 1", "norm", "head"]
    assert inside(*forward, "block 1") == ["norm", "attention", "norm", "feed_forward"]
    parts = ["rotary", "rotary", "scores", "mask", "softmax", "value_product"]
    assert inside(*forward, "block 1", "attention") == parts
    assert sum(path[:2] == forward and len(path) > 3 for path in opener.opened) == 10 * tiny.CONFIG.num_layers


def test_an_opener_changes_no_operation_and_is_gone_after_its_context_even_when_that_fails() -> None:
    training, opener = tiny.training(), Opener()
    training.create_optimizer_state()
    plain = operators_of(lambda: training.step(TOKENS, TOKENS))
    with regions_opened_by(opener):
        assert operators_of(lambda: training.step(TOKENS, TOKENS)) == plain
    opener.opened.clear()
    with pytest.raises(RuntimeError, match="planted"), regions_opened_by(opener):
        raise RuntimeError("planted")
    with region("softmax"):
        pass
    assert opener.opened == []


@pytest.mark.parametrize(
    "zero_grad, before", [("before-forward", "forward"), ("after-forward", "backward"), ("before-step", "optimizer")]
)
def test_a_step_marks_its_parts_in_order_and_clears_gradients_where_told(zero_grad: str, before: str) -> None:
    """Gradients cleared before the update leave it nothing to do. The loss has no graph."""
    training = tiny.training(zero_grad=zero_grad)
    marks: list[str] = []
    assert not training.step(TOKENS, TOKENS, marks.append).requires_grad
    assert marks.pop(marks.index("zero_grad")) == "zero_grad"
    assert marks == ["forward", "loss", "backward", "optimizer"]
    training.step(TOKENS, TOKENS, marks.append)
    assert marks[marks.index("zero_grad") + 1] == before
    assert bool(training.optimizer.state) == (zero_grad != "before-step")


def test_an_unknown_order_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="before-forward, after-forward, before-step"):
        tiny.training(zero_grad="never")


@pytest.mark.parametrize("precision, scale", [("fp16", 65536), ("fp16-unscaled", 1)])
def test_without_a_scaler_the_scale_is_one(precision: str, scale: int) -> None:
    training = tiny.training(precision)
    tiny.filled_gradients(training, TOKENS)
    assert training.loss_scale() == scale


def test_the_scaler_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.amp.GradScaler turns itself off on a GPU that is not there, and says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not Training(tiny.model(), PRECISIONS["fp16"], torch.device("cuda")).scaler.is_enabled()


def test_releasing_frees_gradients_and_optimizer_state() -> None:
    training = tiny.training()
    training.step(TOKENS, TOKENS)
    parameter = next(training.model.parameters())
    assert parameter.grad is not None
    freed = [weakref.ref(parameter.grad), *map(weakref.ref, training.optimizer.state[parameter].values())]
    training.release()
    gc.collect()
    assert [reference() for reference in freed] == [None] * len(freed)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizer_that_runs_is_the_one_recorded(optimizer: str) -> None:
    """`default` is PyTorch's own choice: foreach on a GPU, a loop on a CPU."""
    here, on_gpu = ("loop", "foreach") if optimizer == "default" else (optimizer, optimizer)
    assert optimizer_that_runs(optimizer, CPU) == here
    assert optimizer_that_runs(optimizer, torch.device("cuda", 0)) == on_gpu


@pytest.mark.parametrize("shape", [(2, 64, 16), (2, 4, 64, 16)], ids=["alone", "heads"])
def test_sdpa_takes_a_fused_kernel(shape: tuple[int, ...]) -> None:
    """PyTorch silently takes its math path without the dimension that `sdpa_attention` adds."""
    q = torch.zeros(shape)
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert flash in operators_of(lambda: sdpa_attention(q, q, q))


@pytest.mark.parametrize("name, softmax", [("naive", "aten::exp"), ("softmax", "aten::_softmax")])
def test_softmax_is_written_out_or_one_kernel(name: str, softmax: str) -> None:
    """The two give the same numbers, and differ in what is measured."""
    q = torch.zeros(1, 2, 4, 16)
    issued = operators_of(lambda: ATTENTION[name].build()(q, q, q))
    assert {"aten::exp", "aten::_softmax"}.intersection(issued) == {softmax}


def test_flex_gets_one_dtype_and_a_mask_where_the_queries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast leaves queries and keys in float32; flex_attention refuses mixed dtypes only where it is compiled."""
    attend, make_mask = Mock(), Mock()
    monkeypatch.setattr(attention, "compiled", lambda _: attend)
    monkeypatch.setattr(attention, "create_block_mask", make_mask)
    q = torch.empty(1, 2, 130, 16, device="meta")
    ATTENTION["flex"].build()(q, q, q.bfloat16())
    assert [tensor.dtype for tensor in attend.call_args.args] == 3 * [torch.bfloat16]
    assert attend.call_args.kwargs == {"block_mask": make_mask.return_value}
    assert make_mask.call_args.args[3:] == (130, 130)
    assert make_mask.call_args.kwargs == {"device": "meta"}
