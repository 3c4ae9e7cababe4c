"""Exact counters against closed forms, published figures, the step itself, the allocator's peak and traced launches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from model.attention import ATTENTION, naive_attention
from model.precision import PRECISIONS
from model.sizes import SIZES, ModelConfig
from model.training import Training
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import libraries_on
from perf_tests.phases import FIRST_STEP, LANGUAGE_MODEL, PHASES, phases_of
from perf_tests.predict.counters import Counters, NotCountedError, counters_of, needed_bytes
from perf_tests.predict.counting import GRADIENTS, OPTIMIZER_STATE, TEMPORARIES, WORKSPACES
from perf_tests.predict.fake_run import attention_passes, passes
from tests.support.allocator_peak import PHASES as PEAK_PHASES
from tests.support.allocator_peak import above_standing, allocator_peak_bytes
from tests.support.allocator_peak import rounds as whole_rounds
from tests.support.example_cases import CPU, TOY, attention_case, build, language_model_case, random_tokens
from tests.support.launch import MODELS, ROOT
from tests.support.played_step import played_step
from tests.support.traced_rounds import Round, rounds, traced_values

NARROW = ModelConfig(d_model=64, d_ff=192, num_layers=2, num_heads=4, vocab_size=100, context_length=64)
"""Where attention and feed-forward weigh as much as the vocabulary."""

CHECKPOINTS = {"none": 0, "attention": 2, "block": 2, "2": 1}
"""Of two layers, and how many checkpoints a pass has."""
RANDOM_STATE_BYTES = 5056
"""Each checkpoint keeps the generator's state, which a GPU has on the host: counters leave it out."""
OWN_MODELS = [f"{MODELS}:{name}" for name in ("GroupedHeads", "Tied", "OutputObject")]
OWN_MODELS.append("tests.support.planted_parts:FrozenEmbedding")
OPTIMIZERS = ["loop", "foreach", "fused", f"{ROOT}/examples/muon.py:build", "tests.support.planted_optimizers:Nested",
              "torch.optim:Adagrad", "torch.optim:SGD"]  # fmt: skip
MODELS_AND_CHECKPOINTS = st.one_of(
    st.tuples(st.sampled_from(["naive", "sdpa"]), st.sampled_from(list(CHECKPOINTS))),
    st.tuples(st.sampled_from(OWN_MODELS), st.just("none")),
)


def drawn_case(model: tuple[str, str], config: ModelConfig, phase: str, **changes: object) -> LanguageModelCase:
    name, checkpoint = model
    is_users = name in OWN_MODELS
    return language_model_case(
        config, phase=phase, model=name if is_users else "ours", attention="own" if is_users else name,
        checkpoint=checkpoint, **changes,
    )  # fmt: skip


def training_of(case: LanguageModelCase, optimizer: str) -> Training:
    model = (
        build(case.config, case.attention, case.checkpoint)
        if case.user_model is None
        else case.user_model.build(case.config)
    )
    own = replace(case, optimizer=optimizer).user_optimizer
    training = Training(model, PRECISIONS[case.precision], CPU, optimizer if own is None else "default")
    if own is not None:
        own.put_into(training, model)
    return training


@settings(max_examples=8, deadline=None)
@given(model=MODELS_AND_CHECKPOINTS, phase=st.sampled_from(PEAK_PHASES), optimizer=st.sampled_from(OPTIMIZERS))
@example(model=("naive", "none"), phase="full_step", optimizer="loop")
@example(model=("sdpa", "none"), phase="full_step", optimizer="fused")
@example(model=("naive", "block"), phase="backward", optimizer="loop")
@example(model=("naive", "none"), phase="full_step", optimizer=OPTIMIZERS[3])
@example(model=(OWN_MODELS[-1], "none"), phase="full_step", optimizer="loop")
def test_the_predicted_peak_is_the_allocators(model: tuple[str, str], phase: str, optimizer: str) -> None:
    """A round as a loop plays it, after its first where state and gradients come from it."""
    trains = phase in (FIRST_STEP, "full_step")
    case = drawn_case(model, NARROW, phase, batch_size=3, optimizer=optimizer if trains else None)
    training, tokens_BT = training_of(case, optimizer), torch.zeros(3, NARROW.context_length, dtype=torch.int64)
    play = whole_rounds(training, tokens_BT)[phase]
    if phase != FIRST_STEP:
        training.create_optimizer_state()
        play()
        training.clear_gradients()
    slack = 64 + RANDOM_STATE_BYTES * CHECKPOINTS[case.checkpoint]
    assert above_standing(counters_of(case)) == pytest.approx(allocator_peak_bytes(play), rel=0.001, abs=slack)


@settings(max_examples=6, deadline=None)
@given(
    model=MODELS_AND_CHECKPOINTS,
    phase=st.sampled_from([phase.name for phase in phases_of(LANGUAGE_MODEL)]),
    precision=st.sampled_from(["fp32", "bf16"]),
)
@example(model=("naive", "none"), phase="full_step", precision="bf16")
@example(model=("sdpa", "block"), phase="backward", precision="fp32")
def test_the_launches_of_a_traced_phase_are_those_counted(model: tuple[str, str], phase: str, precision: str) -> None:
    """And a copy of the generator's state where a checkpoint is played again."""
    case = drawn_case(model, TOY, phase, precision=precision, optimizer="loop" if PHASES[phase].trains else None)
    training = training_of(case, "loop")
    training.create_optimizer_state()
    again = CHECKPOINTS[case.checkpoint] if PHASES[phase].has_backward and phase != "optimizer" else 0
    traced = traced_values(case, *rounds(training, random_tokens())[phase])
    assert traced["launches"] == counters_of(case).kernel_launches + again


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("phase", ["attention_forward", "attention_backward"])
def test_the_launches_of_traced_attention_are_those_counted(phase: str, attention: str) -> None:
    case = attention_case(phase=phase, attention=attention, sequence_length=16, batch_size=2)
    attend = ATTENTION[attention].build()
    leaves = [torch.randn(2, 16, 16, requires_grad=True) for _ in range(3)]

    def graph() -> tuple[Any, ...]:
        for leaf in leaves:
            leaf.grad = None
        output_BTK = attend(*leaves)
        return output_BTK, torch.ones_like(output_BTK)

    forward: Round = (lambda: attend(*leaves), tuple)
    backward: Round = (lambda output_BTK, gradient_BTK: output_BTK.backward(gradient_BTK), graph)
    traced = traced_values(case, *(forward if phase == "attention_forward" else backward))
    assert traced["launches"] == counters_of(case).kernel_launches


def case_of(size: str, context: int = 128, **changes: object) -> LanguageModelCase:
    """A forward pass of a real size on an imaginary GPU."""
    config = SIZES[size].at_context(context)
    return language_model_case(config, size=size, batch_size=4, device="cuda", **changes)


def on_cpu(**changes: object) -> LanguageModelCase:
    return language_model_case(NARROW, batch_size=3, **changes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_naive_attention_multiplies_9_times_a_layer_and_its_backward_pass_18_times(precision: str) -> None:
    calls = (counters_of(case_of("small", precision=precision, phase=p)).matmul_calls for p in ("forward", "backward"))
    assert tuple(calls) == (9 * 12 + 1, 18 * 12 + 2)


@pytest.mark.parametrize("phase, times", [("inference", 1), ("forward", 1), ("backward", 2), ("full_step", 3)])
def test_naive_attention_executes_its_model_flops(phase: str, times: int) -> None:
    case = case_of("small", phase=phase, optimizer="foreach")
    counters = counters_of(case)
    assert counters.executed_flops == counters.model_flops == times * case.forward_flops


def test_flops_are_those_of_pytorchs_counter() -> None:
    case = on_cpu(phase="forward_backward")
    training = Training(build(NARROW), PRECISIONS["fp32"], CPU)
    tokens_BT = torch.zeros(3, 64, dtype=torch.int64)
    with FlopCounterMode(display=False) as reference:
        training.backward(training.loss(training.forward(tokens_BT), tokens_BT))
    assert counters_of(case).executed_flops == reference.get_total_flops()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fused_attention_executes_half_the_square_and_five_products_back(device: str) -> None:
    tokens, layers, width = 4 * 128, 12, 768
    linear = case_of("small").forward_flops - 4 * tokens * 128 * width * layers
    square_product = 2 * tokens * width * layers * (128 + 1) // 2
    case = replace(case_of("small", attention="sdpa"), device=device)
    forward, backward = (counters_of(replace(case, phase=phase)) for phase in ("forward", "backward"))
    assert forward.executed_flops == linear + 2 * square_product
    assert backward.executed_flops == 2 * linear + 5 * square_product
    assert forward.matmul_calls == 7 * layers + 1


def test_a_checkpointed_block_is_computed_once_more() -> None:
    """All products of a block but its last, whose result nobody needs again."""
    none, block = (counters_of(on_cpu(phase="backward", checkpoint=checkpoint)) for checkpoint in ("none", "block"))
    blocks = 2 * 3 * 64 * NARROW.num_layers * (4 * 64**2 + 3 * 64 * 192) + 4 * 3 * 64**2 * 64 * NARROW.num_layers
    last_products = NARROW.num_layers * 2 * 3 * 64 * 64 * 192
    assert block.executed_flops is not None
    assert none.executed_flops is not None
    assert block.executed_flops - none.executed_flops == blocks - last_products
    assert block.model_flops == none.model_flops


def saved_by_a_block(config: ModelConfig, batch_size: int) -> int:
    """What one block of the reference keeps in float32, tensor by tensor."""
    context = config.context_length
    tokens = batch_size * context
    norms = 2 * (3 * tokens * config.d_model + tokens) * 4  # input, normalised, scaled; one number a row
    attention = 4 * tokens * config.d_model * 4  # query and key turned, value, output
    squares = 2 * tokens * config.num_heads * context * 4  # exponentials and probabilities
    rows = tokens * config.num_heads * (4 + 8) + context**2  # sums, places of the maxima; the mask
    feed_forward = 5 * tokens * config.d_ff * 4  # gate, sigmoid, product, up, product of both
    return norms + attention + squares + rows + feed_forward


@pytest.mark.parametrize("size, context", [("small", 128), ("2.7B", 512)])
def test_saved_bytes_grow_by_the_tensors_of_a_block_which_are_the_published_ones(size: str, context: int) -> None:
    """10.5 B T d + 5 B T d_ff + 2 B H T^2 numbers a block, as others fitted to an equal model."""
    config = SIZES[size].at_context(context)
    two, three = (
        counters_of(language_model_case(replace(config, num_layers=layers), batch_size=4)).saved_bytes
        for layers in (2, 3)
    )
    assert three - two == saved_by_a_block(config, 4)
    published = 16 * context * (10.5 * config.d_model + 5 * config.d_ff + 2 * config.num_heads * context)
    assert three - two == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
@pytest.mark.parametrize(
    "zero_grad, first_step",
    [("before-forward", False), ("before-forward", True), ("after-forward", False), ("before-step", False)],
)
def test_peaks_of_a_step_are_those_of_the_step_written_out(optimizer: str, zero_grad: str, first_step: bool) -> None:
    case = replace(on_cpu(phase="full_step", optimizer=optimizer, precision="bf16"), device="cuda")
    literal = {name: part.peak_bytes for name, part in played_step(case, zero_grad, first_step).items()}
    phase = "first_step" if first_step else "full_step"
    counters = counters_of(replace(case, phase=phase, zero_grad=zero_grad))
    told = {part.part: part.peak_bytes for part in counters.parts}
    assert told == {name: literal[name] for name in told}
    assert counters.peak_bytes == max(literal.values())


def test_mixed_precision_saves_memory_of_the_2_7b_shape_from_512_tokens_on_and_none_where_nothing_is_kept() -> None:
    """As others measured. Autocast copies the weights, 2 bytes each; what it halves grows with the tokens."""

    def saves(case: LanguageModelCase) -> bool:
        single, mixed = (counters_of(replace(case, precision=name)).peak_bytes for name in ("fp32", "bf16"))
        return mixed < single

    long = SIZES["small"].at_context(8192)
    inference = language_model_case(long, phase="inference", batch_size=1, device="cuda", attention="sdpa")
    assert [saves(case) for case in (case_of("2.7B", 256), case_of("2.7B", 512), inference)] == [False, True, False]


def test_the_parts_of_a_peak_add_up_and_are_named() -> None:
    counters = counters_of(replace(on_cpu(phase="full_step", optimizer="loop"), device="cuda"))
    for part in counters.parts:
        assert sum(part.bytes_by_category.values()) == part.peak_bytes
    held = counters.parts[-1].bytes_by_category
    assert held[GRADIENTS] >= 4 * NARROW.parameters
    assert held[OPTIMIZER_STATE] >= 8 * NARROW.parameters
    assert held[TEMPORARIES] < 4 * NARROW.parameters


@pytest.mark.parametrize("context, operator", [(256, "mm"), (512, "div")])
def test_the_largest_block_is_the_feed_forwards_until_the_scores_outgrow_it(context: int, operator: str) -> None:
    """B T d_ff against B H T^2: they cross at d_ff / H = 320 tokens for the 2.7B shape."""
    largest = counters_of(case_of("2.7B", context)).largest_allocations[0]
    config = SIZES["2.7B"]
    assert largest.bytes == 4 * 4 * context * max(config.d_ff, config.num_heads * context)
    assert largest.place.startswith("model/attention.py" if context == 512 else "model/transformer.py")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"execution": "compiled"}, "compiled model fuses"),
        ({"attention": "flex"}, "flex attention fuses"),
        ({"model": f"{MODELS}:ReadsAValue", "attention": "own"}, "cannot be played .*it reads a value of one"),
    ],
)
def test_a_case_that_cannot_be_counted_says_why(changes: dict[str, str], words: str) -> None:
    with pytest.raises(NotCountedError, match=words):
        counters_of(language_model_case(**changes))  # type: ignore[arg-type]


HOPPER = libraries_on(9, "2.13.0", {})


@pytest.mark.parametrize(
    "case, workspaces",
    [
        (attention_case(device="cuda"), 1),
        (attention_case(device="cuda", phase="attention_backward"), 2),  # autograd's thread has one of its own
        (attention_case(device="cuda", phase="attention_backward", attention="sdpa"), 0),
        (language_model_case(device="cuda", phase="inference"), 1),
        (language_model_case(device="cuda", phase="optimizer", optimizer="foreach"), 2),
    ],
)
def test_on_a_known_card_each_thread_that_multiplies_holds_a_workspace(case: Case, workspaces: int) -> None:
    imaginary, real = counters_of(case), counters_of(case, libraries=HOPPER)
    assert real.peak_bytes == imaginary.peak_bytes + workspaces * 32 * 2**20
    for part in real.parts:
        assert part.bytes_by_category.get(WORKSPACES, 0) == workspaces * 32 * 2**20
        assert sum(part.bytes_by_category.values()) == part.peak_bytes


def test_fused_attention_in_16_bits_accumulates_a_gradient_in_float32_for_itself() -> None:
    """Beside query, key, value and output in 16 bits, their four gradients, and what autocast cast."""
    case = attention_case(device="cuda", phase="attention_backward", attention="sdpa", precision="bf16", head_dim=64)
    (backward,) = (part for part in counters_of(case).parts if part.part == "attention_backward")
    rows = 8 * 256
    assert backward.bytes_by_category["temporaries"] >= 4 * rows * (64 + 1) + 3 * 2 * rows * 64


@pytest.mark.parametrize("checkpoint", ["attention", "block"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recomputed_pass_takes_the_kernel_that_the_first_took(precision: str, checkpoint: str) -> None:
    """By the rules of the device that was asked for."""

    def attention_kernels(**changes: object) -> set[str]:
        counters = counters_of(case_of("tiny", 64, attention="sdpa", precision=precision, **changes))
        return {kernel.name for kernel in counters.kernels if "attention" in kernel.name}

    forward, backward = attention_kernels(), attention_kernels(phase="backward")
    assert forward
    assert attention_kernels(phase="backward", checkpoint=checkpoint) == backward | forward


def test_a_recomputed_exponential_runs_in_float32() -> None:
    """Autocast on CUDA keeps exp in float32; the CPU's would halve the bytes."""
    ways: list[dict[str, str]] = [{}, {"phase": "backward", "checkpoint": "attention"}]
    cases = (case_of("tiny", 64, precision="bf16", **changes) for changes in ways)
    forward, recomputed = ({k.bytes for k in counters_of(case).kernels if k.name == "aten.exp"} for case in cases)
    assert forward
    assert recomputed == forward


def test_counting_draws_no_random_number_and_leaves_no_fake_tensor_behind() -> None:
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    counters_of(language_model_case(replace(TOY, vocab_size=41), phase="full_step", optimizer="loop"))
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads
    assert type(torch.zeros(1)) is torch.Tensor


def counted_afresh(
    change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch, phase: str = "attention_backward"
) -> Counters:
    """The counters of a case whose attention passes its query through `change`."""
    naive = naive_attention
    planted = replace(ATTENTION["naive"], build=lambda: lambda q, k, v: naive(change(q), k, v))
    monkeypatch.setitem(ATTENTION, "naive", planted)
    attention_passes.cache_clear()
    counters = counters_of(attention_case(phase=phase, sequence_length=64))
    attention_passes.cache_clear()
    return counters


def test_a_tensor_more_for_the_backward_pass_moves_saved_bytes_and_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    before = counted_afresh(lambda query: query, monkeypatch)
    after = counted_afresh(lambda query: query.exp(), monkeypatch)
    one_tensor = 8 * 64 * 16 * 4
    assert after.saved_bytes == before.saved_bytes + one_tensor
    assert after.peak_bytes == before.peak_bytes + one_tensor


def test_a_copy_is_read_and_written_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (counted_afresh(of, monkeypatch, "attention_forward") for of in (lambda query: query, torch.clone))
    assert after.bytes_touched == before.bytes_touched + 2 * 8 * 64 * 16 * 4


def test_a_tensor_kept_by_the_model_moves_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Tensor] = []

    def keep(query: Tensor) -> Tensor:
        kept.append(query.detach().clone())
        return query

    before = counted_afresh(lambda query: query, monkeypatch)
    assert counted_afresh(keep, monkeypatch).peak_bytes == before.peak_bytes + 8 * 64 * 16 * 4


def test_a_value_read_back_is_counted_where_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(query: Tensor) -> Tensor:
        query.sum().item()
        return query

    assert counted_afresh(lambda query: query, monkeypatch, "attention_forward").host_reads == 0
    assert counted_afresh(read, monkeypatch, "attention_forward").host_reads == 1
    assert counted_afresh(read, monkeypatch, "attention_backward").host_reads == 0


def test_a_loss_read_back_in_a_step_is_one_more_value_that_the_host_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = language_model_case(replace(TOY, vocab_size=43), phase="full_step", optimizer="loop")
    before, backward = counters_of(case).host_reads, Training.backward

    def reading(self: Training, loss: Tensor) -> None:
        loss.item()
        backward(self, loss)

    monkeypatch.setattr(Training, "backward", reading)
    passes.cache_clear()
    after = counters_of(case).host_reads
    passes.cache_clear()
    assert after == before + 1


WIDE = SIZES["2.7B"]
UNPLAYED = {"model": f"{MODELS}:ReadsAValue", "attention": "own"}


@pytest.mark.parametrize("checkpoint", ["none", "block"])
def test_an_eager_case_needs_its_exact_peak(checkpoint: str) -> None:
    case = language_model_case(SIZES["tiny"].at_context(64), phase="full_step", checkpoint=checkpoint)
    assert needed_bytes(case) == counters_of(case).peak_bytes


@pytest.mark.parametrize("changes", [{"execution": "compiled"}, {"attention": "compiled"}, UNPLAYED])
@pytest.mark.parametrize("phase", ["inference", "forward", "backward", "optimizer", "full_step"])
def test_what_no_counter_covers_needs_no_more_than_the_eager_case(phase: str, changes: dict[str, str]) -> None:
    eager = language_model_case(SIZES["small"].at_context(512), phase=phase)
    assert 0 < needed_bytes(replace(eager, **changes)) <= needed_bytes(eager)  # type: ignore[arg-type]


def test_a_model_of_ones_own_needs_its_own_peak_with_shared_weights_once() -> None:
    case = language_model_case(model=f"{MODELS}:Tied", attention="own", phase="full_step", optimizer="loop")
    matrix = 4 * TOY.vocab_size * 4
    assert counters_of(case).parameters == matrix / 4
    assert 4 * matrix < needed_bytes(case) == counters_of(case).peak_bytes


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_a_full_step_needs_the_published_16_bytes_per_parameter(execution: str) -> None:
    """Weights, gradients and AdamW's moments of the 2.7B shape: 50.77 GiB."""
    static = 16 * WIDE.parameters
    assert round(static / 2**30, 2) == 50.77
    assert needed_bytes(language_model_case(WIDE.at_context(128), phase="full_step", execution=execution)) >= static


def test_compiled_attention_alone_needs_less_than_the_naive_one() -> None:
    naive = attention_case(sequence_length=64, attention="naive")
    assert needed_bytes(replace(naive, attention="compiled")) < needed_bytes(naive)
