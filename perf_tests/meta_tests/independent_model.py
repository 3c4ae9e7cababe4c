"""The language model once more, in NumPy and float64, head by head and query by query, sharing no code with `model/`.

Shapes: B batch, T tokens, D model width, H heads, K head width, V vocabulary.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from model.sizes import ModelConfig

Array = NDArray[np.float64]


def logits_of(model: nn.Module, config: ModelConfig, tokens_BT: NDArray[Any]) -> Array:
    """Logits (B, T, V) of the language model whose weights `model` holds."""
    weights = {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}
    return np.stack([_one_sequence(weights, config, tokens_T) for tokens_T in tokens_BT])


def _one_sequence(weights: dict[str, Array], config: ModelConfig, tokens_T: NDArray[Any]) -> Array:
    x_TD = weights["embedding.weight_VD"][tokens_T]
    for layer in range(config.num_layers):
        block = {
            name.removeprefix(f"blocks.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"blocks.{layer}.")
        }
        x_TD = x_TD + _attention(block, config, _normalised(x_TD, block["attention_norm.weight_D"]))
        x_TD = x_TD + _feed_forward(block, _normalised(x_TD, block["feed_forward_norm.weight_D"]))
    return _normalised(x_TD, weights["norm.weight_D"]) @ weights["head.weight_OI"].T


def _normalised(x_TD: Array, gain_D: Array) -> Array:
    rows = [x_D / np.sqrt(np.dot(x_D, x_D) / len(x_D) + 1e-5) for x_D in x_TD]
    return np.stack(rows) * gain_D


def _feed_forward(block: dict[str, Array], x_TD: Array) -> Array:
    gate = x_TD @ block["feed_forward.gate.weight_OI"].T
    up = x_TD @ block["feed_forward.up.weight_OI"].T
    return (gate / (1 + np.exp(-gate)) * up) @ block["feed_forward.down.weight_OI"].T


def _attention(block: dict[str, Array], config: ModelConfig, x_TD: Array) -> Array:
    query, key, value = (x_TD @ block[f"attention.{name}.weight_OI"].T for name in ("query", "key", "value"))
    width = config.d_model // config.num_heads
    heads = []
    for start in range(0, config.d_model, width):
        columns = slice(start, start + width)
        heads.append(_one_head(_turned(query[:, columns]), _turned(key[:, columns]), value[:, columns]))
    return np.concatenate(heads, axis=1) @ block["attention.output.weight_OI"].T


def _one_head(query_TK: Array, key_TK: Array, value_TK: Array) -> Array:
    attended = []
    for position, query_K in enumerate(query_TK):
        scores = key_TK[: position + 1] @ query_K / np.sqrt(len(query_K))
        shares = np.exp(scores - scores.max())
        attended.append(shares @ value_TK[: position + 1] / shares.sum())
    return np.stack(attended)


def _turned(x_TK: Array) -> Array:
    """Rotary embedding: neighbouring features are one complex number, turned by position x 10 000^(-2p/K)."""
    pairs = x_TK[:, 0::2] + 1j * x_TK[:, 1::2]
    width = x_TK.shape[1]
    for position in range(len(x_TK)):
        for pair in range(width // 2):
            pairs[position, pair] *= np.exp(1j * position * 10_000.0 ** (-2 * pair / width))
    turned = np.empty_like(x_TK)
    turned[:, 0::2], turned[:, 1::2] = pairs.real, pairs.imag
    return turned
