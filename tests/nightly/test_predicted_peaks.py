"""What is counted of models of transformers on a CPU is what they have, compute and take at their peak."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training, cross_entropy
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.phases import FULL_STEP
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.user_code.given import UserModel
from perf_tests_suite.perf_tests.user_code.model import build_model, configured_shape
from tests.support.allocator_peak import PEAK_LIMIT, above_standing, allocator_peak_bytes, rounds

WIDTH, LAYERS, HEADS, CONTEXT, BATCH_SIZE = 128, 3, 4, 128, 2
LLAMA = {
    "hidden_size": WIDTH, "intermediate_size": 352, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
CONFIGURATIONS: dict[str, dict[str, object]] = {
    "gpt2": {
        "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "llama": {**LLAMA}, "qwen2": {**LLAMA}, "mistral": {**LLAMA},
    "opt": {
        "hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "ffn_dim": 512, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "max_position_embeddings": 256, "dropout": 0.0,
    },
}  # fmt: skip
"""Models have no dropout, which PyTorch's formula of fused attention would show as another kernel."""


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the extra hf")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_model_of_transformers_is_counted_as_it_is(kind: str, attention: str, tmp_path: Path) -> None:
    """Parameters, FLOPs by PyTorch's own counter, and peaks, of small random models in float32."""
    path = tmp_path / f"{kind}.json"
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    path.write_text(json.dumps({"model_type": kind, "vocab_size": 5000, **ends, **CONFIGURATIONS[kind]}))
    own = UserModel(f"hf:{path}", (f"attn_implementation={attention}",))
    of = LanguageModelCase(
        "forward", kind, configured_shape(own, CONTEXT), CONTEXT, BATCH_SIZE, "fp32", "own", "eager", "none", "loop",
        "cpu", own.name, own.arguments,
    )  # fmt: skip
    torch.manual_seed(0)
    model = build_model(own, of.config)
    tokens_BT = torch.randint(of.config.vocab_size, (BATCH_SIZE, CONTEXT))
    counted = {phase: counters_of(replace(of, phase=phase)) for phase in ("forward", "backward", "full_step")}
    assert counted["forward"].parameters == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as forward:
        logits_BTV = model(tokens_BT)
    loss = cross_entropy(logits_BTV, tokens_BT)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    model.zero_grad(set_to_none=True)
    # PyTorch's counter lacks the two T x T products of the CPU's fused kernel, and the four of its gradient.
    square = 4 * BATCH_SIZE * CONTEXT**2 * WIDTH * LAYERS if attention == "sdpa" else 0
    assert counted["forward"].model_flops == forward.get_total_flops() + square
    assert counted["backward"].model_flops == backward.get_total_flops() + 2 * square
    training = Training(model, PRECISIONS["fp32"], torch.device("cpu"), "loop")
    plays, peaks = rounds(training, tokens_BT), []
    for phase in counted:
        if phase == FULL_STEP:
            training.create_optimizer_state()
        peaks.append((above_standing(counted[phase]), allocator_peak_bytes(plays[phase])))
        training.clear_gradients()
    assert max(abs(predicted / measured - 1) for predicted, measured in peaks) <= PEAK_LIMIT
