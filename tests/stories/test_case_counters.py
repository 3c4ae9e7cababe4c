"""The counters of a case against closed forms, published figures, the step itself and the CPU allocator's own peak."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES, ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.bench.loop import Rounds
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.datasheets import libraries_on
from perf_tests.predict.counters import NotCountedError, counters_of
from perf_tests.predict.counting import GRADIENTS, INPUTS, OPTIMIZER_STATE, PARAMETERS, TEMPORARIES, WORKSPACES
from tests.support.allocator_peak import allocator_peak_bytes
from tests.support.example_cases import CPU, TOY, attention_case, language_model_case
from tests.support.launch import MODELS, ROOT
from tests.support.played_step import played_step
from tests.support.traced_rounds import rounds

NARROW = ModelConfig(d_model=64, d_ff=192, num_layers=2, num_heads=4, vocab_size=100, context_length=64)
"""Where attention and feed-forward weigh as much as the vocabulary."""


def case_of(size: str, context: int = 128, **changes: object) -> LanguageModelCase:
    """A forward pass of a real size on an imaginary GPU."""
    config = SIZES[size].at_context(context)
    return language_model_case(config, size=size, batch_size=4, device="cuda", **changes)


def on_cpu(**changes: object) -> LanguageModelCase:
    return language_model_case(NARROW, batch_size=3, **changes)


@pytest.mark.parametrize("size", ["small", "2.7B"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_naive_attention_multiplies_9_times_a_layer_and_its_backward_pass_18_times(size: str, precision: str) -> None:
    forward, backward = (counters_of(case_of(size, precision=precision, phase=p)) for p in ("forward", "backward"))
    layers = SIZES[size].num_layers
    assert forward.matmul_calls == 9 * layers + 1
    assert backward.matmul_calls == 18 * layers + 2


@pytest.mark.parametrize("phase, times", [("inference", 1), ("forward", 1), ("backward", 2), ("full_step", 3)])
def test_naive_attention_executes_its_model_flops(phase: str, times: int) -> None:
    case = case_of("small", phase=phase, optimizer="foreach")
    counters = counters_of(case)
    assert counters.executed_flops == counters.model_flops == times * case.forward_flops


def test_flops_are_those_of_pytorchs_counter() -> None:
    case = on_cpu(phase="forward_backward")
    training = Training(TransformerLM(NARROW, ATTENTION["naive"].build()), PRECISIONS["fp32"], CPU)
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


@pytest.mark.parametrize("size, context", [("small", 128), ("2.7B", 128), ("2.7B", 256), ("2.7B", 512)])
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


@pytest.mark.parametrize(
    "precision, context, forward_gb, full_step_gb",
    [("fp32", 128, 19.3, 60.0), ("fp32", 256, 26.0, 67.0), ("bf16", 128, 24.0, 65.0), ("bf16", 256, 28.3, 69.0)],
)
def test_peaks_of_the_2_7b_shape_are_those_others_measured(
    precision: str, context: int, forward_gb: float, full_step_gb: float
) -> None:
    """On an A100: forward and loss; a step that clears old gradients after the forward pass, AdamW in a loop."""
    case = case_of("2.7B", context, precision=precision, phase="full_step", optimizer="loop")
    _, forward, _ = counters_of(replace(case, phase="forward_backward", optimizer=None)).parts
    assert forward.part == "loss"
    assert forward.peak_bytes / 1e9 == pytest.approx(forward_gb, rel=0.01)
    late = replace(case, zero_grad="after-forward")
    assert counters_of(late).peak_bytes / 1e9 == pytest.approx(full_step_gb, rel=0.01)


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


@pytest.mark.parametrize("context, saves", [(256, False), (512, True)])
def test_mixed_precision_saves_memory_of_the_2_7b_shape_from_512_tokens_on(context: int, saves: bool) -> None:
    """As others measured. Autocast copies the weights, 2 bytes each; what it halves grows with the tokens."""
    single, mixed = (counters_of(case_of("2.7B", context, precision=name)).peak_bytes for name in ("fp32", "bf16"))
    assert (mixed < single) is saves


def test_mixed_precision_saves_no_memory_where_nothing_is_kept() -> None:
    """Inference holds few activations at a time, and all the copies of the weights."""
    config = SIZES["small"].at_context(8192)
    cases = (
        language_model_case(config, phase="inference", batch_size=1, device="cuda", attention="sdpa", precision=name)
        for name in ("fp32", "bf16")
    )
    single, mixed = (counters_of(case).peak_bytes for case in cases)
    assert mixed >= single


@pytest.mark.parametrize("phase", ["inference", "forward", "backward", "full_step"])
@pytest.mark.parametrize("attention, optimizer", [("naive", "loop"), ("naive", "foreach"), ("sdpa", "fused")])
def test_the_peak_on_a_cpu_is_its_allocators(phase: str, attention: str, optimizer: str) -> None:
    case = on_cpu(phase=phase, attention=attention, optimizer=optimizer)
    training = Training(TransformerLM(NARROW, ATTENTION[attention].build()), PRECISIONS["fp32"], CPU, optimizer)
    training.create_optimizer_state()
    counters, tokens_BT = counters_of(case), torch.zeros(3, 64, dtype=torch.int64)
    measured = allocator_peak_bytes(Rounds(*rounds(training, tokens_BT)[phase]).play)
    # What is there before a round is none of its allocations.
    before = sum(counters.parts[0].bytes_by_category.get(name, 0) for name in (PARAMETERS, INPUTS, OPTIMIZER_STATE))
    assert counters.peak_bytes - before == pytest.approx(measured, rel=0.001)


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


DIGEST = """
import hashlib
from perf_tests.predict.counters import counters_of
from tests.support.example_cases import attention_case, language_model_case
cases = [language_model_case(phase="full_step", optimizer="loop", precision=p, attention=a, device="cuda")
         for p in ("fp32", "bf16") for a in ("naive", "sdpa")] + [attention_case(sequence_length=64)]
print(hashlib.sha256(repr([counters_of(case) for case in cases]).encode()).hexdigest())
"""


def test_counters_are_the_same_whatever_the_hash_seed() -> None:
    def said(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        return subprocess.check_output([sys.executable, "-c", DIGEST], cwd=ROOT, env=environment, text=True)

    assert said("1") == said("2")


def test_counting_draws_no_random_number_and_leaves_no_fake_tensor_behind() -> None:
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    counters_of(language_model_case(replace(TOY, vocab_size=41), phase="full_step", optimizer="loop"))
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads
    assert type(torch.zeros(1)) is torch.Tensor
