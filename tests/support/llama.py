"""An independent model of the same shape: `--model tests.support.llama:build`. Needs the extra `hf`."""

import importlib

from torch import nn

from perf_tests_suite.model.sizes import ModelConfig

# Not a dependency, so a type checker may not find it.
transformers = importlib.import_module("transformers")


def build(config: ModelConfig) -> nn.Module:
    """transformers' Llama, whose output holds the logits."""
    shape = transformers.LlamaConfig(
        hidden_size=config.d_model, intermediate_size=config.d_ff, num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads, num_key_value_heads=config.num_heads, vocab_size=config.vocab_size,
        max_position_embeddings=config.context_length, rms_norm_eps=1e-5, attention_bias=False, mlp_bias=False,
        tie_word_embeddings=False, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(shape)
    return model
