"""The memory estimate is what autograd really keeps, and never more than a case needs."""

from dataclasses import replace

import pytest
import torch

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES, ModelConfig
from perf_tests.cases import LanguageModelCase
from perf_tests.counting.memory_estimate import needed_bytes, parameters_of, saved_bytes
from perf_tests.meta_tests.example_cases import CPU, TOY, attention_case, build, language_model_case, random_tokens
from perf_tests.meta_tests.launch import MODELS
from perf_tests.meta_tests.saved_tensors import saved_for_backward, storage_bytes

WIDER = ModelConfig(d_model=256, d_ff=1024, num_layers=2, num_heads=4, vocab_size=500)
DEEPER = ModelConfig(d_model=128, d_ff=512, num_layers=3, num_heads=4, vocab_size=100)


def saved_in_reality(case: LanguageModelCase) -> int:
    model = build(case.config, case.attention, case.checkpoint)
    tokens_BT = random_tokens(case.config, case.batch_size)

    def forward() -> None:
        with PRECISIONS[case.precision].autocast(CPU):
            model(tokens_BT)

    return storage_bytes(saved_for_backward(forward, leave_out=model.parameters()))


def in_short(case: LanguageModelCase) -> str:
    return f"{case.config.d_model}-{case.context_length}-{case.precision}-{case.attention}-{case.checkpoint}"


OF_EVERY_KIND = [
    language_model_case(config.at_context(64), precision=precision, attention=attention, checkpoint=checkpoint)
    for config in (SIZES["tiny"], WIDER)
    for precision in ("fp32", "bf16")
    for attention in ("naive", "sdpa")
    for checkpoint in ("none", "attention", "block", "2")
]
OF_EVERY_LENGTH = [
    language_model_case(DEEPER.at_context(context), attention=attention)
    for attention in ("naive", "sdpa")
    for context in (16, 128, 320)
]
WITH_A_SMALLER_LAST_GROUP = [language_model_case(DEEPER.at_context(64), checkpoint=count) for count in ("2", "3", "9")]


@pytest.mark.parametrize("case", [*OF_EVERY_KIND, *OF_EVERY_LENGTH, *WITH_A_SMALLER_LAST_GROUP], ids=in_short)
def test_saved_bytes_are_what_autograd_keeps(case: LanguageModelCase) -> None:
    """Left out are the mask and the tensors of one number per row; nothing is counted that is not kept."""
    measured = saved_in_reality(case)
    assert 0.97 * measured <= saved_bytes(case) <= measured


@pytest.mark.parametrize("phase", ["inference", "forward", "backward", "optimizer", "full_step"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", "compiled"])
@pytest.mark.parametrize("checkpoint", ["none", "attention", "block"])
def test_longer_contexts_and_larger_batches_never_need_less(phase: str, attention: str, checkpoint: str) -> None:
    axes = {"phase": phase, "attention": attention, "checkpoint": checkpoint}
    for grown in ([(64, 4), (128, 4), (512, 4), (4096, 4)], [(128, 1), (128, 4), (128, 16), (128, 256)]):
        configs = [(SIZES["small"].at_context(context), count) for context, count in grown]
        needed = [needed_bytes(language_model_case(config, batch_size=count, **axes)) for config, count in configs]
        assert needed == sorted(needed)


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_alone_needs_no_more_than_its_inputs_output_and_saved_tensors(attention: str, precision: str) -> None:
    case = attention_case(sequence_length=64, attention=attention, precision=precision)
    inputs = [torch.randn(8, 64, case.head_dim, requires_grad=True) for _ in range(3)]
    outputs = []

    def forward() -> None:
        with PRECISIONS[precision].autocast(CPU):
            outputs.append(ATTENTION[attention].build()(*inputs))

    saved = saved_for_backward(forward, leave_out=inputs)
    gradient = inputs[0]  # of the output, which is there from the start, in float32
    assert needed_bytes(case) <= storage_bytes([*inputs, gradient, *outputs, *saved])
    assert needed_bytes(case) < needed_bytes(replace(case, sequence_length=256))


def test_a_full_step_needs_the_published_16_bytes_per_parameter() -> None:
    """Weights, gradients and AdamW's moments of the 2.7B shape: 50.77 GiB."""
    case = language_model_case(SIZES["2.7B"].at_context(128), batch_size=4, phase="full_step")
    static = 16 * case.config.parameters
    assert round(static / 2**30, 2) == 50.77
    assert needed_bytes(case) >= static


@pytest.mark.parametrize("context, published_gib", [(128, 18.05), (256, 24.31), (512, 39.75)])
def test_a_forward_pass_needs_a_little_less_than_the_published_peaks(context: int, published_gib: float) -> None:
    """Of the 2.7B shape with its graph recorded, as measured by others on GPUs: temporaries come on top."""
    needed = needed_bytes(language_model_case(SIZES["2.7B"].at_context(context), batch_size=4))
    assert 0.97 * published_gib <= needed / 2**30 <= published_gib


def test_a_checkpointed_forward_needs_only_the_inputs_of_the_checkpoints_and_going_back_the_block_too() -> None:
    """Else a case that fits would be refused."""
    config = SIZES["small"].at_context(4096)
    none, block = (needed_bytes(language_model_case(config, checkpoint=kind)) for kind in ("none", "block"))
    assert block < 0.5 * none
    assert needed_bytes(language_model_case(config, checkpoint="block", phase="backward")) > block


def test_of_a_model_of_ones_own_its_own_parameters_are_certain_and_nothing_of_our_form() -> None:
    case = language_model_case(model=f"{MODELS}:Tied", attention="own", phase="full_step", optimizer="loop")
    assert parameters_of(case) == TOY.vocab_size * 4
    logits = case.tokens * TOY.vocab_size
    assert needed_bytes(case) == 4 * (3 * TOY.vocab_size * 4 + max(TOY.vocab_size * 4, logits))
