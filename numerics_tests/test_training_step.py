"""The model as a whole: logits and gradients against float64, and a training step in each precision."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from perf_tests_suite.model.attention import AttentionFunction
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import OPTIMIZERS, ZERO_GRAD, Training
from perf_tests_suite.model.transformer import Embedding, Linear, TransformerLM
from perf_tests_suite.numerics_tests.harness import bounds, oracles, tiny, within
from perf_tests_suite.numerics_tests.harness.checks import (
    assert_at_most_twice,
    assert_same_bits,
    assert_true,
    assert_within,
    operators_of,
)
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import SEEDS
from perf_tests_suite.numerics_tests.machine import environment
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import U32
from perf_tests_suite.numerics_tests.test_optimizer import BETAS, DECAY, EPS, RATE

Build = Callable[[int], TransformerLM]
"""A seed to a tiny model."""
MODELS: dict[str, Build] = {"model": tiny.model}


def tall_model(seed: int) -> TransformerLM:
    """Room for 144 tokens, and embeddings of a hundred, so that sums along the residual stream are large too."""
    made = tiny.model(seed, config=replace(tiny.CONFIG, context_length=144))
    with torch.no_grad():
        made.embedding.weight_VD.mul_(100)
    return made


@claim("build", {"model": tall_model}, cost=4, seed=SEEDS, length=st.sampled_from([1, 65, 130, 144]))
def test_logits_of_a_long_sequence_err_at_most_twice_the_plain_formula(build: Build, seed: int, length: int) -> None:
    """Logits also of a sequence that is shorter than the context, with activations beyond a hundred; the rule as
    below.
    """
    made = build(seed)
    tokens = torch.randint(tiny.CONFIG.vocab_size, (2, length), generator=torch.Generator().manual_seed(seed))
    check_logits(made, tokens.to(device()))


@claim("build", MODELS, cost=2, seed=SEEDS)
def test_logits_err_at_most_twice_the_plain_formula(build: Build, seed: int) -> None:
    """The error against float64 is at most twice the same definition in float32; the floor is a few roundings of a
    logit.
    """
    check_logits(build(seed), tiny.tokens(seed))


def check_logits(made: TransformerLM, tokens: Tensor) -> None:
    (exact, _), (plain, _) = (tiny.by_the_formula(made, tokens, dtype) for dtype in (torch.float64, torch.float32))
    assert_at_most_twice(made(tokens).detach(), plain, exact, roundings=tiny.CONFIG.d_model)


@claim("build", {"model": lambda seed: tiny.model(seed, config=replace(tiny.CONFIG, num_layers=6))})
def test_deep_model_errs_at_most_twice_the_plain_formula(build: Build) -> None:
    """Logits and gradients of six layers on forty sequences, and logits of 1,030 tokens, by the same rule."""
    made, tokens = build(0), tiny.tokens(batch=40)
    check_logits(made, tokens)
    check_gradients(made, tokens)
    check_logits(tiny.model(config=replace(tiny.CONFIG, context_length=1030)), tokens[:, 0].repeat(26)[None, :1030])


@claim("make", tiny.TRAININGS)
def test_each_token_of_a_large_vocabulary_has_its_own_row(make: tiny.MakeTraining) -> None:
    """Logits and gradients of the last of 10,000 words, by the same rule, where the loss is above their logarithm, 9.2.

    No word is clamped or wrapped on its way to the embedding.
    """
    made = tiny.model(config=replace(tiny.CONFIG, vocab_size=10_000))
    words = torch.arange(9976, 10_000, device=device())
    check_gradients(made, words.view(2, -1), make)
    logits = make(made, PRECISIONS["fp32"], device()).forward(words.view(2, -1)).detach()
    (exact, _), (plain, _) = (tiny.by_the_formula(made, words.view(2, -1), d) for d in (torch.float64, torch.float32))
    assert_at_most_twice(logits, plain, exact, roundings=tiny.CONFIG.d_model)


def check_drawn(weight: Tensor, variance: float) -> None:
    """Raise AssertionError where the variance is off by more than 6 sigma, as once in 10^9 draws."""
    ratio = weight.detach().double().square().mean() / variance
    assert_true(bool((ratio - 1).abs() <= 6 * (2 / weight.numel()) ** 0.5), f"the variance is {ratio:.3g} x as large")


@claim("linear", {"model": Linear}, out_width=st.integers(100, 400), in_width=st.integers(100, 400))
def test_weights_are_drawn_as_wide_as_their_matrix_needs(
    linear: Callable[[int, int], Linear], out_width: int, in_width: int
) -> None:
    """Variance 2 / (in + out): Glorot and Bengio, 2010, equation 12."""
    weight = linear(in_width, out_width).weight_OI.detach()
    check_drawn(weight, 2 / (in_width + out_width))
    check_normal(weight)


def check_normal(weight: Tensor) -> None:
    # Normal: of 10 000 and more the largest is beyond 3 deviations but once in 10^11 draws; a uniform one ends at 1.73.
    largest = float(weight.abs().max() / weight.square().mean().sqrt())
    assert_true(largest > 3, f"the largest weight is at {largest:.3g} deviations")


@claim("build", MODELS, cost=4, seed=SEEDS)
def test_every_weight_is_drawn_for_itself(build: Build, seed: int) -> None:
    """Embeddings have variance 1, each matrix what its widths need; no two layers hold the same weights."""
    made = build(seed)
    check_drawn(made.embedding.weight_VD, 1)
    check_normal(Embedding(1000, 16).weight_VD.detach())
    matrices = [parameter.detach() for name, parameter in made.named_parameters() if name.endswith("weight_OI")]
    for matrix in matrices:
        check_drawn(matrix, 2 / sum(matrix.shape))
    alike = sum(torch.equal(a, b) for a, b in combinations(matrices, 2))
    assert_true(not alike, f"{alike} pairs of layers start with equal weights")


@claim("build", MODELS, cost=2, seed=SEEDS)
def test_gradients_err_at_most_twice_the_plain_formula(build: Build, seed: int) -> None:
    """Every parameter's gradient against float64, by the same rule; the floor is n u32 of the largest gradient."""
    check_gradients(build(seed), tiny.tokens(seed))


def check_gradients(made: TransformerLM, tokens: Tensor, make: tiny.MakeTraining = Training) -> None:
    mine = tiny.filled_gradients(make(made, PRECISIONS["fp32"], device()), tokens)
    (_, exact), (_, plain) = (tiny.by_the_formula(made, tokens, dtype) for dtype in (torch.float64, torch.float32))
    for name, gradient in mine.items():
        assert_at_most_twice(gradient, plain[name], exact[name], roundings=tokens.numel())


LOSS_SCALE = 2.0**10
"""Far from overflow in a tiny model, where the scaler's own start may skip the first step."""


def in_training(make: Callable[..., Training], seed: int, precision: str, *how: str) -> Training:
    """The tiny model, with a loss scale of `LOSS_SCALE` where there is one."""
    training = make(tiny.model(seed), PRECISIONS[precision], device(), *how)
    if training.scaler.is_enabled():
        training.scaler.load_state_dict({**training.scaler.state_dict(), "scale": LOSS_SCALE})
    return training


@claim("make", tiny.TRAININGS, cost=2, seed=SEEDS, precision=st.sampled_from(["bf16", "fp16"]))
def test_autocast_errs_at_most_twice_the_plain_formula(make: tiny.MakeTraining, seed: int, precision: str) -> None:
    """Logits, and all gradients relative to their own size, by root mean square against float64.

    At most twice what the plain formula errs under the same autocast; flash-attention, tests/test_flash_attn.py. A
    mean, because the largest of so few errors moves by more than the step from float16 to bfloat16 from seed to seed.
    """
    training, tokens = in_training(make, seed, precision), tiny.tokens(seed)
    exact_logits, exact = tiny.by_the_formula(training.model, tokens)
    with training.precision.autocast(device()):
        plain_logits, plain = tiny.by_the_formula(training.model, tokens, torch.float32, training.loss_scale())
    logits = training.forward(tokens)
    training.backward(training.loss(logits, tiny.targets_of(tokens)))
    scale = training.loss_scale()
    mine = {name: gradient / scale for name, gradient in tiny.gradients(training.model).items()}
    of_logits = [rms(of.detach().double() - exact_logits) for of in (logits, plain_logits)]
    of_gradients = [
        sum((rms(of[name].double() - gradient) / rms(gradient)) ** 2 for name, gradient in exact.items()) ** 0.5
        for of in (mine, plain)
    ]
    for what, (error, of_plain) in (("logits", of_logits), ("gradients", of_gradients)):
        times = error / of_plain
        assert_true(times <= 2, f"{what} err by {error:.3g}, {times:.3g} x the plain formula in {precision}")


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


@claim(
    "make", tiny.TRAININGS, cost=2, seed=SEEDS, precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    optimizer=st.sampled_from(OPTIMIZERS), zero_grad=st.sampled_from(ZERO_GRAD),
)  # fmt: skip
def test_first_step_is_that_of_float64(
    make: Callable[..., Training], seed: int, precision: str, optimizer: str, zero_grad: str
) -> None:
    """Every parameter after one whole step: gradients, clipping and AdamW in float64.

    The first update is lr g / (|g| + eps), so an error e of a gradient, taken as twice the plain formula's in this
    precision, counts where it may change the sign, 2 lr for |g| <= 2 e, and elsewhere by the slope,
    lr eps e / (|g| - e)^2; bounds.adamw comes on top. Gradients cleared before the update leave every weight alone.
    """
    if zero_grad == "before-step" and precision == "fp16":
        precision = "fp16-unscaled"  # torch's scaler refuses to step without gradients
    training, tokens = in_training(make, seed, precision, optimizer, zero_grad), tiny.tokens(seed)
    exact_logits, exact_gradients = tiny.by_the_formula(training.model, tokens)
    with training.precision.autocast(device()):
        _, plain = tiny.by_the_formula(training.model, tokens, torch.float32, training.loss_scale())
    before = tiny.in_float64(training.model)
    loss = training.step(tokens, tiny.targets_of(tokens))
    exact_loss = oracles.token_losses(exact_logits, tiny.targets_of(tokens)).mean()
    u = training.precision.autocast_dtype or torch.float32
    assert_true(bool((loss - exact_loss).abs() <= 64 * bounds.rounding(u)[0]), f"the loss is {loss}, not {exact_loss}")
    norm = torch.cat([gradient.flatten() for gradient in exact_gradients.values()]).norm()
    clipped = float((1 / (norm + 1e-6)).clamp(max=1.0))
    for name, parameter in training.model.named_parameters():
        start = before[name].detach()
        if zero_grad == "before-step":
            assert_same_bits(parameter.detach(), start.float(), "no gradient, no update")
            continue
        gradient = clipped * exact_gradients[name]
        floor = tokens.numel() * U32 * float(gradient.abs().max())
        error = 2 * float((clipped * plain[name].double() - gradient).abs().max()) + floor
        slope = RATE * EPS * error / (gradient.abs() - error).square()
        allowed = torch.where(gradient.abs() <= 2 * error, 2 * RATE, slope) + bounds.adamw(start, 1, RATE)
        exact = oracles.adamw(start, [gradient], RATE, BETAS, EPS, DECAY)
        assert_within(parameter.detach(), exact, allowed, f"{name}: bounds.adamw and the sign of its gradient")
    with torch.no_grad():
        next_loss = training.loss(training.forward(tokens), tiny.targets_of(tokens))
    loss = training.step(tokens, tiny.targets_of(tokens))
    assert_true(bool((loss - next_loss).abs() <= 64 * bounds.rounding(u)[0]), f"the next loss is {loss}")


@claim("make", tiny.TRAININGS)
def test_step_leaves_buffers_and_generator_alone(make: tiny.MakeTraining) -> None:
    """Tables stay float32 to the bit through steps in 16 bits, and nothing is drawn: there is no dropout.

    So evaluation, under the same autocast, gives the bits of training.
    """
    training, tokens = make(tiny.model(), PRECISIONS["bf16"], device()), tiny.tokens()
    before = {name: buffer.clone() for name, buffer in training.model.named_buffers()}
    state = torch.get_rng_state()
    training.step(tokens, tiny.targets_of(tokens))
    assert_true(torch.equal(torch.get_rng_state(), state), "a step draws from torch's generator")
    trained = training.forward(tokens).detach()
    training.model.eval()
    assert_same_bits(training.forward(tokens).detach(), trained, "the mode of evaluation")
    for name, buffer in training.model.named_buffers():
        assert_same_bits(buffer, before[name], f"a table, {name}")


@claim("build", MODELS, cost=4, seed=SEEDS)
def test_gradient_is_the_slope_in_a_random_direction(build: Build, seed: int) -> None:
    """<grad, d> against (L(w + h d) - L(w - h d)) / 2 h in float64, no derivative code on the other side.

    Halving h quarters the truncation error, so the change between h and h / 2 bounds what is left of it. Rounding:
    n u32 sum|g d| with n the longest chain of additions; ASNA 2e, section 4.2.
    """
    made, tokens = build(seed), tiny.tokens(seed)
    gradients = tiny.filled_gradients(Training(made, PRECISIONS["fp32"], device()), tokens)
    weights = {name: weight.detach() for name, weight in tiny.in_float64(made).items()}
    generator = torch.Generator().manual_seed(seed)
    direction = {n: torch.randn(w.shape, generator=generator, dtype=w.dtype).to(device()) for n, w in weights.items()}

    def loss_at(h: float) -> Tensor:
        moved = {name: weight + h * direction[name] for name, weight in weights.items()}
        return oracles.token_losses(tiny.exact_logits(made, moved, tokens), tiny.targets_of(tokens)).mean()

    def slope(h: float) -> Tensor:
        return (loss_at(h) - loss_at(-h)) / (2 * h)

    coarse, fine = slope(2.0**-14), slope(2.0**-15)
    products = torch.cat([(gradients[name].double() * direction[name]).flatten() for name in weights])
    error = (products.sum() - fine).abs()
    longest = tiny.CONFIG.d_model + tiny.CONFIG.vocab_size + tokens.numel()
    allowed = (coarse - fine).abs() + tiny.CONFIG.num_layers * longest * U32 * products.abs().sum()
    assert_true(bool(error <= allowed), f"slope {fine:.6g}, <grad, d> is off by {error:.3g} of {allowed:.3g}")


@claim("build", MODELS, cost=2, of_any_model=True, seed=SEEDS, cut=st.integers(1, tiny.CONFIG.context_length - 1))
def test_logits_do_not_depend_on_later_tokens(build: Build, seed: int, cut: int) -> None:
    """With every token from `cut` on replaced by another: bit for bit, and gradients of 0, because sizes are the same.

    A user's model errs at most twice as much: experts may get other tokens together, and add in another order.
    """
    made, tokens = build(seed), tiny.tokens(seed)
    other = tokens.clone()
    other[:, cut:] = (other[:, cut:] + 1) % tiny.CONFIG.vocab_size
    with_other, with_these = made(other)[:, :cut].detach(), made(tokens)[:, :cut].detach()
    if not isinstance(made, TransformerLM):  # whose embedding is not known by name
        exact, _ = tiny.by_the_formula(made, tokens)
        assert_at_most_twice(with_other, with_these, exact[:, :cut], roundings=tiny.CONFIG.d_model)
        return
    assert_same_bits(with_other, with_these, "causal mask")
    embedded: list[Tensor] = []
    handle = made.embedding.register_forward_hook(lambda module, inputs, output: embedded.append(output))
    early = made(tokens)[:, :cut].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(early, embedded[0])
    assert_true(bool((gradient[:, cut:] == 0).all()), "an early logit has a gradient in a later token")


@claim("build", MODELS, cost=2, of_any_model=True, seed=SEEDS)
def test_sequence_alone_is_as_exact_as_in_a_batch(build: Build, seed: int) -> None:
    """The rule of at most twice, not bits, since kernels add in another order at another size."""
    made, tokens = build(seed), tiny.tokens(seed)
    exact, _ = tiny.by_the_formula(made, tokens[:1])
    together, alone = made(tokens)[:1].detach(), made(tokens[:1]).detach()
    assert_at_most_twice(together, alone, exact, roundings=tiny.CONFIG.d_model)


@pytest.mark.filterwarnings(
    # torch.compile looks at .grad of the queries, which are no leaves here; nothing a user of it can change.
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)
def test_every_attention_gives_the_same_model(attention: AttentionFunction) -> None:
    """Logits of each implementation inside the model, by the rule of at most twice the plain formula's error."""
    tokens = tiny.tokens()
    check_logits(tiny.model(attention=attention), tokens)


@claim(
    "make", tiny.TRAININGS, cost=4, of_any_model=True, seed=SEEDS, precision=st.sampled_from(["fp32", "bf16", "fp16"])
)
def test_step_keeps_parameters_gradients_and_moments_in_float32(
    make: tiny.MakeTraining, seed: int, precision: str
) -> None:
    """Mixed precision covers the forward pass only: what is kept between steps is float32, finite, complete."""
    training = make(tiny.model(seed), PRECISIONS[precision], device())
    tokens = tiny.tokens(seed)
    # From a scale of 2^16 the first float16 steps may be skipped, by design, each at half the scale of the one before.
    scale = math.inf
    while training.loss_scale() < scale or not training.optimizer.state:
        scale = training.loss_scale()
        assert_true(scale >= 1, "every step is skipped down to a scale of 1")
        loss = training.step(tokens, tiny.targets_of(tokens))
    moments = [m for state in training.optimizer.state.values() for m in (state["exp_avg"], state["exp_avg_sq"])]
    kept = [loss, *training.model.parameters(), *tiny.gradients(training.model).values(), *moments]
    assert_true({tensor.dtype for tensor in kept} == {torch.float32}, "something is kept in 16 bits")
    assert_true(all(bool(tensor.isfinite().all()) for tensor in kept), "something is not finite")
    assert_true(len(moments) == 2 * len(list(training.model.parameters())), "a parameter was not stepped")


@claim("make", tiny.TRAININGS, cost=4, of_any_model=True, seed=SEEDS, precision=st.sampled_from(["fp32", "bf16"]))
def test_step_forgets_earlier_gradients_and_repeats(make: tiny.MakeTraining, seed: int, precision: str) -> None:
    """Two steps from one state are equal to the bit, also when the second starts with arbitrary values in .grad."""
    tokens, results = tiny.tokens(seed), []
    for rubbish in (False, True):
        training = make(tiny.model(seed), PRECISIONS[precision], device())
        if rubbish:
            for parameter in training.model.parameters():
                parameter.grad = torch.full_like(parameter, 1e-4)
        training.step(tokens, tiny.targets_of(tokens))
        results.append(nn.utils.parameters_to_vector(training.model.parameters()).detach())
    assert_same_bits(results[1], results[0], "the same step twice")


STEPS = 2
WIDE = ModelConfig(d_model=256, d_ff=512, num_layers=1, num_heads=4, vocab_size=64, context_length=128)
"""Large enough that every kernel of a step divides its work among threads; each word comes often."""


@claim("make", tiny.TRAININGS)
def test_training_repeats_to_the_bit_on_all_threads(make: tiny.MakeTraining) -> None:
    """Two trainings from one seed, on as many threads as this machine has and at least two; on a GPU by its kernels.

    What adds in another order now and then does so where threads meet, which no run has to show: a step must not issue
    it at all. PyTorch, documentation of torch.use_deterministic_algorithms: index_put with accumulate, on a CPU.
    """
    tokens = torch.randint(WIDE.vocab_size, (4, 128), generator=torch.Generator().manual_seed(0)).to(device())

    def losses_and_weights() -> Tensor:
        training = make(tiny.model(config=WIDE), PRECISIONS["fp32"], device())
        losses = [training.step(tokens, tiny.targets_of(tokens)).view(1) for _ in range(STEPS)]
        return torch.cat((*losses, nn.utils.parameters_to_vector(training.model.parameters()).detach()))

    training = make(tiny.model(config=WIDE), PRECISIONS["fp32"], device())
    issued = operators_of(lambda: training.step(tokens, tiny.targets_of(tokens)))
    assert_true(not any("index_put" in name for name in issued), "a step adds rows by index_put")
    with environment.threads(max(2, os.cpu_count() or 1)):
        first, second = losses_and_weights(), losses_and_weights()
    assert_same_bits(second, first, f"{STEPS} steps, twice")


Accumulate = Callable[[Training, list[Tensor]], None]
"""Fill the gradients of the mean loss over all tokens from microbatches (b, T) of unequal size."""


def accumulate_by_tokens(training: Training, microbatches: list[Tensor]) -> None:
    total = sum(tokens.numel() for tokens in microbatches)
    for tokens in microbatches:
        loss = training.loss(training.forward(tokens), tiny.targets_of(tokens))
        training.backward(loss * (tokens.numel() / total))


@claim(
    "accumulate", {"by tokens": accumulate_by_tokens}, cost=4, of_any_model=True, seed=SEEDS, first=st.integers(1, 4)
)
def test_microbatches_accumulate_to_the_whole_batch(accumulate: Accumulate, seed: int, first: int) -> None:
    """Each weighted by its tokens: against float64, at most twice the error of the whole batch at once.

    Means of unequal microbatches do not average to the mean: huggingface/transformers#34191.
    """
    tokens = tiny.tokens(seed, batch=6)
    split = Training(tiny.model(seed), PRECISIONS["fp32"], device())
    accumulate(split, [tokens[:first], tokens[first:]])
    whole = tiny.filled_gradients(Training(tiny.model(seed), PRECISIONS["fp32"], device()), tokens)
    _, exact = tiny.by_the_formula(split.model, tokens)
    for name, gradient in tiny.gradients(split.model).items():
        assert_at_most_twice(gradient, whole[name], exact[name], roundings=tokens.numel())


def losses_of(make: tiny.MakeTraining, precision: str, steps: int = 32) -> list[float]:
    """The loss before each of `steps` steps on one batch."""
    training, tokens = make(tiny.model(), PRECISIONS[precision], device()), tiny.tokens()
    before = [{**group, "params": None} for group in training.optimizer.param_groups]
    losses = [float(training.step(tokens, tiny.targets_of(tokens))) for _ in range(steps)]
    after = [{**group, "params": None} for group in training.optimizer.param_groups]
    assert_true(after == before, f"the optimizer is set to {after} after {steps} steps")
    return losses


@claim("make", tiny.TRAININGS)
def test_autocast_trains_like_float32(make: tiny.MakeTraining) -> None:
    """32 steps in each precision: the losses stay within 0.05 of float32's, and fall.

    A trajectory has no useful worst-case bound; the number is that of Liger-Kernel, test/convergence/bf16.
    """
    in_float32 = losses_of(Training, "fp32")
    assert_true(in_float32[-1] < in_float32[0] - 0.5, f"float32 does not learn: {in_float32[::8]}")
    for precision in ("bf16", "fp16"):
        losses = losses_of(make, precision)
        skipped = sum(a == b for a, b in pairwise(losses))
        gap = max(abs(a - b) for a, b in zip(losses[skipped:], in_float32, strict=False))
        assert_true(gap <= 5e-2, f"{precision} is {gap:.3g} away from float32: {losses[::8]}")
        assert_true(losses[-1] < losses[0] - 0.5, f"{precision} does not learn: {losses[::8]}")


@claim("make", tiny.TRAININGS)
def test_loss_of_a_training_is_within_its_bound(make: tiny.MakeTraining) -> None:
    """Autocast covers the forward pass alone: in each precision the loss is float32, within bounds.cross_entropy."""
    for name in ("fp32", "bf16", "fp16"):
        training, tokens = make(tiny.model(), PRECISIONS[name], device()), tiny.tokens()
        logits = training.forward(tokens).detach()
        assert_true(not torch.is_autocast_enabled(device().type), f"{name} leaves a region open")
        assert_true(logits.dtype == (PRECISIONS[name].autocast_dtype or torch.float32), f"{name} gives {logits.dtype}")
        targets = tiny.targets_of(tokens)
        loss, (exact, allowed) = training.loss(logits, targets), within.cross_entropy(torch.float32, logits, targets)
        assert_true(loss.dtype == torch.float32, f"the loss of {name} is {loss.dtype}")
        assert_within(loss, exact, allowed, "bounds.cross_entropy")


BuildCheckpointed = Callable[[int, str], TransformerLM]
"""(seed, checkpoint) to a model of three layers, so that two blocks per checkpoint leave one over."""

CONFIG = replace(tiny.CONFIG, num_layers=3)


def build_checkpointed(seed: int, checkpoint: str) -> TransformerLM:
    return tiny.model(seed, config=CONFIG, checkpoint=checkpoint)


@claim("build", {"model": build_checkpointed}, cost=8, seed=SEEDS, precision=st.sampled_from(["fp32", "bf16"]))
def test_checkpointing_changes_no_bit(build: BuildCheckpointed, seed: int, precision: str) -> None:
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
