"""Formats of 8 and 4 bits, and tensors that share scales by block: PyTorch's casts, and the microscaling formats.

Sources: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433 (e4m3fn, e5m2); Open Compute Project,
"Microscaling Formats (MX) Specification", 1.0, sections 5 and 6 (MXFP8, e8m0, e2m1); NVIDIA, "Pretraining LLMs with
NVFP4", arXiv:2509.25149, section 2 (NVFP4).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
E4M3_MAX = 448.0
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The magnitudes of FP4, in the order of their codes."""


def codes_of(dtype: torch.dtype) -> Tensor:
    """The finite magnitudes of an 8-bit format in the order of their codes, float64."""
    values = torch.arange(128, dtype=torch.uint8).view(dtype).double()
    return values[values.isfinite()]


def nearest(x: Tensor, magnitudes: Tensor) -> Tensor:
    """Each number of x at the nearest magnitude with its sign, ties to the even code; beyond the last, the last.

    IEEE 754-2019, section 4.3.1, over a table instead of bits. x and the result are float64.
    """
    magnitudes = magnitudes.to(x)
    above = torch.searchsorted(magnitudes, x.abs().contiguous()).clamp(1, len(magnitudes) - 1)
    low, high = magnitudes[above - 1], magnitudes[above]
    to_low, to_high = x.abs() - low, high - x.abs()
    takes_high = (to_high < to_low) | ((to_high == to_low) & (above % 2 == 0))
    return torch.where(takes_high, high, low).copysign(x)


@dataclass(frozen=True)
class Blocked:
    """A tensor as it is after quantization: elements (..., N) times the scale of their block and of the tensor."""

    elements: Tensor
    scales: Tensor
    """(..., N / block), broadcast over a block."""
    tensor_scale: float = 1.0

    def value(self) -> Tensor:
        blocks = self.elements.double().unflatten(-1, (self.scales.shape[-1], -1))
        return (blocks * self.scales.double()[..., None] * self.tensor_scale).flatten(-2)


def mxfp8(x: Tensor) -> Blocked:
    """Blocks of 32: a power of two per block, 2^(floor(log2 max|x|) - 8), elements in e4m3fn that saturate; MX, 6.3."""
    blocks = x.unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(-1)
    exponents = torch.where(largest > 0, torch.frexp(largest).exponent - 1 - 8, 0)
    scales = torch.ldexp(torch.ones_like(largest), exponents)
    elements = (blocks / scales[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)
    return Blocked(elements.float().flatten(-2), scales.to(E8M0).float())


def nvfp4(x: Tensor) -> Blocked:
    """Blocks of 16: an e4m3fn scale max|x| / 6 per block, relative to a float32 one per tensor, elements in e2m1."""
    tensor_scale = float(x.abs().max()) / (E4M3_MAX * 6) or 1.0
    blocks = x.double().unflatten(-1, (-1, 16)) / tensor_scale
    scales = (blocks.abs().amax(-1) / 6).float().clamp(max=E4M3_MAX).to(E4M3).double()
    elements = nearest(blocks / torch.where(scales > 0, scales, 1.0)[..., None], E2M1)
    return Blocked(elements.flatten(-2), scales, tensor_scale)
