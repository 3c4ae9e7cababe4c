"""Which kernel torch.nn.functional.scaled_dot_product_attention uses for given inputs; PyTorch does not report it."""

import torch
from torch.profiler import ProfilerActivity, profile

from model.attention import AttentionFunction

# From the kernel's name in the dispatcher to the backend's in torch.nn.attention.SDPBackend.
_BACKEND_OF_OPERATOR = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "overrideable",
    "aten::_scaled_dot_product_attention_math": "math",
}


def sdpa_backend(
    attention: AttentionFunction, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, records_graph: bool
) -> str | None:
    """The backend of `attention` for inputs of one shape and dtype, found by calling it; None if no known one ran.

    `records_graph` matters, because some kernels have no backward pass.
    """
    q, k, v = (torch.zeros(shape, dtype=dtype, device=device, requires_grad=records_graph) for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        attention(q, k, v)
    seen = (_BACKEND_OF_OPERATOR.get(event.key) for event in profiler.key_averages())
    return next(filter(None, seen), None)
