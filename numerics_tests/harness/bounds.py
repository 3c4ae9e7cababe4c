"""How large an error may be: each bound with its source, evaluated in float64 on the very inputs of the kernel.

Constants beyond the theorem's leave room for elementary functions: the CUDA C++ Programming Guide lists
exp, log, sin, cos and rsqrt at 1 to 2 units in the last place.
ASNA is Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, SIAM 2002.
"""

import math

import torch
from torch import Tensor

from perf_tests_suite.numerics_tests.machine.formats import FORMAT_OF, U32

ASNA = "Higham, ASNA 2e, section 4.2"


def gamma(n: float, u: float = U32) -> float:
    """n u / (1 - n u), the growth of n roundings: ASNA 2e, lemma 3.1. Raises ValueError where it says nothing."""
    if n * u >= 1:
        raise ValueError(f"gamma_{n} is void at u = {u}: n u must be below 1; accumulate in a wider format.")
    return n * u / (1 - n * u)


def rounding(dtype: torch.dtype) -> tuple[float, float]:
    """(relative, absolute) error of one rounding to `dtype`: u, and half the smallest subnormal, taken whole."""
    out = FORMAT_OF[dtype]
    return out.unit_roundoff, out.min_subnormal


TERMS_OF_A_PART = 32
"""The fewest terms that a GPU's product gives to one part when it splits a sum."""


def sum_in_float32(total: Tensor, magnitudes: Tensor, n: int, dtype: torch.dtype, on_gpu: bool | None = None) -> Tensor:
    """Sum or dot product of n terms in any order, accumulated in float32, then rounded to `dtype`.

    ASNA 2e, section 4.2 with (3.4): gamma_n sum|terms|, n and not n - 1 because a product of two float32 numbers
    rounds as well; the last rounding adds u |sum|. `magnitudes` is sum|terms| in float64. Tensor cores align terms
    and truncate instead of rounding, up to 3.0 n u32 on the first of them: Fasi, Higham, Mikaitis and Pranesh, PeerJ
    Computer Science 7 (2021); hence 4 on a GPU. There a long sum may be split, and each part rounded to a 16-bit
    dtype before they are added: PyTorch, "Numerical accuracy", reduced precision reduction; u of all terms a part.
    """
    u, eta = rounding(dtype)
    on_gpu = magnitudes.is_cuda if on_gpu is None else on_gpu
    accumulated = gamma(n) * magnitudes * (4 if on_gpu else 1)
    if on_gpu and dtype != torch.float32:
        accumulated = accumulated + (n // TERMS_OF_A_PART) * u * magnitudes
    if dtype == torch.float32:
        # Products below the smallest normal lose up to one subnormal each.
        return accumulated + n * eta
    return u * total.abs() + (1 + u) * accumulated + eta


def rms_norm(exact: Tensor, dtype: torch.dtype, roundings: int = 1) -> Tensor:
    """RMSNorm computed in float32 and rounded `roundings` times to the output.

    Squares of width numbers are all positive, so their sum is relatively exact to gamma_width (ASNA 2e, 4.2), its
    root halves that, and eight more operations follow: |y| ((width / 2 + 8) u32 + k u) + 2 eta.
    """
    u, eta = rounding(dtype)
    return exact.abs() * ((exact.shape[-1] / 2 + 8) * U32 + roundings * u) + 2 * eta


def layer_norm(exact: Tensor, z: Tensor, weight: Tensor, bias: Tensor, kappa: Tensor, dtype: torch.dtype) -> Tensor:
    """LayerNorm in float32: u |y| + (n + 10) u32 [(1 + |z|) (1 + kappa) |w| + |b|] + eta.

    z is the normalised row and kappa = rms(x) / sqrt(var + eps) its condition. Both the two-pass formula and
    Welford's stay within it (ASNA 2e, section 1.9); E[x^2] - E[x]^2 carries kappa^2 and does not.
    """
    u, eta = rounding(dtype)
    n = exact.shape[-1]
    return u * exact.abs() + (n + 10) * U32 * ((1 + z.abs()) * (1 + kappa) * weight.abs() + bias.abs()) + eta


def softmax(x: Tensor, exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Softmax with the maximum subtracted, in float32: relative ((m - x_i) + log n + n + 8) u32 + u.

    Blanchard, D. Higham and N. Higham, IMA J. Numer. Anal. 41 (2021): the shift costs its own rounding
    error times the gap m - x_i. What underflows is off by at most one smallest normal number.
    """
    u, eta = rounding(dtype)
    n = x.shape[-1]
    gap = x.amax(-1, keepdim=True) - x
    return exact * ((gap + math.log(n) + n + 8) * U32 + u) + 2.0**-126 + eta


def cross_entropy(z: Tensor, target_logit: Tensor, loss: Tensor) -> Tensor:
    """Return the bound of a token's loss in float32: u32 (V + 10 + log V + 2 |m - z_t| + 2 |loss|). Same source as
    `softmax`.

    Absolute on purpose: near 0 the relative error of a loss is unbounded.
    """
    vocabulary = z.shape[-1]
    gap = z.amax(-1) - target_logit
    return U32 * (vocabulary + 10 + math.log(vocabulary) + 2 * gap + 2 * loss.abs())


def rotary(pair_length: Tensor, angle: Tensor) -> Tensor:
    """|pair| 8 u32 (1 + angle): the angle itself is rounded, so the error grows with the position.

    ASNA 2e, section 3.1 for the two products and the sum; sin and cos have derivative at most 1.
    """
    return pair_length * 8 * U32 * (1 + angle)


def adamw(parameters: Tensor, steps: int, learning_rate: float) -> Tensor:
    """t (4 u |p| + lr 4096 u32): each step rounds the parameter and a quotient of two averages of t terms.

    First-order from Kingma and Ba, arXiv:1412.6980, algorithm 1: the update is at most lr (1 - b1) / sqrt(1 - b2)
    in size, about 3.2 lr, so 4096 u32 of it is some 1300 roundings per step, loose in t but not in the formula.
    """
    return steps * (4 * U32 * parameters.abs() + learning_rate * 4096 * U32)
