"""The float formats as data: what each can hold, from which every tolerance here is derived.

Source: IEEE 754-2019, table 3.5 (binary16, binary32, binary64); bfloat16 is binary32 with its last 16 bits cut off.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """A binary floating-point format that rounds to nearest, ties to even, and has subnormal numbers."""

    name: str
    dtype: torch.dtype
    precision: int
    """Bits of the significand, the hidden one included."""
    min_exponent: int
    """Exponent of the smallest normal number."""
    max_exponent: int

    @property
    def unit_roundoff(self) -> float:
        """u: the largest relative error of rounding one number to this format."""
        return 2.0**-self.precision

    @property
    def max(self) -> float:
        """The largest finite number: a significand of ones."""
        return (2 - 2 * self.unit_roundoff) * 2.0**self.max_exponent

    @property
    def overflows_from(self) -> float:
        """The smallest magnitude that rounds to infinity: half a unit beyond the maximum."""
        return (2 - self.unit_roundoff) * 2.0**self.max_exponent

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number: the last bit of the significand at the smallest exponent."""
        return 2.0 ** (self.min_exponent - self.precision + 1)

    @property
    def consecutive_integers_to(self) -> int:
        """The last integer n such that 0, 1, ... n are all in the format; n + 1 rounds back to n."""
        return int(2**self.precision)


FP16 = Format("fp16", torch.float16, precision=11, min_exponent=-14, max_exponent=15)
BF16 = Format("bf16", torch.bfloat16, precision=8, min_exponent=-126, max_exponent=127)
FP32 = Format("fp32", torch.float32, precision=24, min_exponent=-126, max_exponent=127)
FP64 = Format("fp64", torch.float64, precision=53, min_exponent=-1022, max_exponent=1023)

LOW = (FP16, BF16)
"""The formats of 16 bits: what autocast casts to."""
FORMATS = (FP16, BF16, FP32, FP64)
FORMAT_OF = {a_format.dtype: a_format for a_format in FORMATS}

U32 = FP32.unit_roundoff
"""Unit roundoff of float32, in which every kernel here should accumulate."""
