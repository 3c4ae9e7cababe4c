"""Attention by name: the suite's implementations, or a function of the user's as MODULE:FUNCTION or FILE.py:FUNCTION.

The user's is called as PyTorch calls its fused attention: with query, key and value of one dtype, under autocast the
precision's, and without autocast inside.
"""

from collections.abc import Container
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from model.attention import ATTENTION, Attention, AttentionFunction
from perf_tests.own.guard import LONGEST_SECONDS, OwnModelError, guarded
from perf_tests.own.named import load

PLAYED = "_played"
"""Names the second copy of a file whose function gets tensors without content: what it keeps reaches no real call."""


def is_own(attention: str) -> bool:
    return ":" in attention


def label(attention: str) -> str:
    """In ids: `flash.attend` of `kernels/flash.py:attend` and of `kernels.flash:attend`."""
    place, _, function = attention.rpartition(":")
    module = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return f"{module}.{function}" if place else attention


def is_known(attention: str, known: Container[str] = ATTENTION) -> bool:
    return is_own(attention) or attention in known


def attention_named(attention: str, copy: str = "") -> Attention:
    """The row of the suite's table, or one for a function of the user's, out of this copy of its file."""
    if not is_own(attention):
        return ATTENTION[attention]
    about = f"{attention}, given with --attention"
    return Attention(about, lambda: _as_fused(function_of(attention, copy)), lambda device, head_dim: None)


def function_of(attention: str, copy: str = "") -> AttentionFunction:
    """What the user named, out of this copy of its file. Raises OwnModelError where it cannot be imported or called."""
    with guarded(f"--attention {attention} cannot be imported", LONGEST_SECONDS):
        function = load(attention, copy)
    if not callable(function):
        got = type(function).__name__
        raise OwnModelError(f"--attention {attention} is of type {got}; it must be a function of query, key and value.")
    return cast(AttentionFunction, function)


def _as_fused(function: AttentionFunction) -> AttentionFunction:
    def attend(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        device = q_BHTK.device.type
        if not torch.is_autocast_enabled(device):
            return function(q_BHTK, k_BHTK, v_BHTK)
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return function(q_BHTK.to(dtype), k_BHTK.to(dtype), v_BHTK.to(dtype))

    return attend
