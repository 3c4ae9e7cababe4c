"""Which kernel torch.nn.functional.scaled_dot_product_attention takes for given inputs; it does not say."""

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from model.attention import AttentionFunction

# Kernel name in the dispatcher to the backend's name in torch.nn.attention.SDPBackend.
_BACKEND_OF_OPERATOR = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "overrideable",
    "aten::_scaled_dot_product_attention_math": "math",
}


def sdpa_backend(attention: AttentionFunction, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """The backend of one call of `attention`, which is made for this; None if no known one was seen."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        attention(q, k, v)
    for event in profiler.key_averages():
        if event.key in _BACKEND_OF_OPERATOR:
            return _BACKEND_OF_OPERATOR[event.key]
    return None


def sdpa_backend_for_shape(
    attention: AttentionFunction, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, records_graph: bool
) -> str | None:
    """The same for inputs of one shape and dtype; `records_graph` matters, since some kernels have no backward."""
    q, k, v = (torch.zeros(shape, dtype=dtype, device=device, requires_grad=records_graph) for _ in range(3))
    return sdpa_backend(attention, q, k, v)
