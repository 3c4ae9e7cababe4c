"""The memory estimate is what autograd really keeps, and never more than a case needs."""

import pytest
import torch

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES, ModelConfig
from perf_tests.cases import LanguageModelCase
from perf_tests.counting.memory_estimate import needed_bytes, saved_bytes
from perf_tests.meta_tests.example_cases import CPU, attention_case, build, language_model_case, random_tokens
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


def assert_close_from_below(case: LanguageModelCase) -> None:
    """Left out are the mask and the tensors of one number per row; nothing is counted that is not kept."""
    measured = saved_in_reality(case)
    assert 0.97 * measured <= saved_bytes(case) <= measured


@pytest.mark.parametrize("checkpoint", ["none", "attention", "block", "2"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("config", [SIZES["tiny"], WIDER], ids=["tiny", "wider"])
def test_saved_bytes_are_what_autograd_keeps(
    config: ModelConfig, precision: str, attention: str, checkpoint: str
) -> None:
    case = language_model_case(config.at_context(64), precision=precision, attention=attention, checkpoint=checkpoint)
    assert_close_from_below(case)


@pytest.mark.parametrize("context", [16, 128, 320])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_saved_bytes_follow_the_context(attention: str, context: int) -> None:
    assert_close_from_below(language_model_case(DEEPER.at_context(context), attention=attention))


@pytest.mark.parametrize("checkpoint", ["2", "3", "9"])
def test_a_last_group_with_fewer_blocks_is_counted_as_one(checkpoint: str) -> None:
    assert_close_from_below(language_model_case(DEEPER.at_context(64), checkpoint=checkpoint))


@pytest.mark.parametrize("phase", ["inference", "forward", "backward", "optimizer", "full_step"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", "compiled"])
@pytest.mark.parametrize("checkpoint", ["none", "attention", "block"])
def test_longer_contexts_and_larger_batches_never_need_less(phase: str, attention: str, checkpoint: str) -> None:
    def needed(context: int, batch_size: int) -> int:
        config = SIZES["small"].at_context(context)
        return needed_bytes(
            language_model_case(config, batch_size=batch_size, phase=phase, attention=attention, checkpoint=checkpoint)
        )

    by_context = [needed(context, 4) for context in (64, 128, 512, 4096)]
    by_batch = [needed(128, batch_size) for batch_size in (1, 4, 16, 256)]
    assert by_context == sorted(by_context)
    assert by_batch == sorted(by_batch)


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


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_attention_alone_needs_more_for_longer_sequences(attention: str) -> None:
    needed = [needed_bytes(attention_case(sequence_length=length, attention=attention)) for length in (256, 1024, 4096)]
    assert needed[0] < needed[1] < needed[2]


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


def test_a_checkpointed_forward_needs_only_the_inputs_of_the_checkpoints() -> None:
    """Else a case that fits would be refused."""
    config = SIZES["small"].at_context(1024)
    none, block = (language_model_case(config, checkpoint=checkpoint) for checkpoint in ("none", "block"))
    assert needed_bytes(block) < 0.5 * needed_bytes(none)


def test_going_back_through_a_checkpoint_needs_the_block_recomputed() -> None:
    config = SIZES["small"].at_context(4096)
    forward, backward = (
        language_model_case(config, checkpoint="block", phase=phase) for phase in ("forward", "backward")
    )
    assert needed_bytes(backward) > needed_bytes(forward)


def test_nothing_is_said_of_the_activations_of_a_foreign_model() -> None:
    assert saved_bytes(language_model_case(model="somebody:model", attention="own")) == 0
