"""How far output and gradients of causal attention may be from float64, element by element, in each precision.

Products: gamma_n of the magnitudes, in any order of summation, Higham, ASNA 2e, section 3.5. Softmax: Blanchard, Higham
and Higham, IMA JNA 41 (2021); the shift by a row's maximum rounds the gap between them. Each rounding multiplies its
quantity by a number from exp(-u) to exp(u), so that a probability with roundings of the sum e is within expm1(e) of
itself, to all orders. Gradients: the same through dS = P (dP - D), D being the row sum of dO O, or of P dP.

Shapes: (..., T, K); scores, probabilities P and their gradients (..., T, T).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

U32 = 2.0**-24
TENSOR_CORE = 4
"""They align terms and truncate: up to 3.0 n u32, Fasi, Higham, Mikaitis and Pranesh, PeerJ CS 7 (2021)."""

FORWARD_ROUNDINGS, BACKWARD_ROUNDINGS = 8, 10
"""Of a probability and of a score's gradient, where the result of each operation is kept in the precision: exponential,
sum, quotient, product, cast; elementary functions err by up to 2 units (CUDA C++ Programming Guide)."""

BLOCK_ROUNDINGS = 3
"""For each key at most: a block may be as short as one key, and rescales what was summed before it."""


@dataclass(frozen=True)
class Arithmetic:
    """What is allowed: sums in float32, everything else rounded to `stored`, results to `out`."""

    stored_roundoff: float
    """u of the format in which operands, scores, probabilities and their gradients may be kept."""
    out_roundoff: float
    smallest: float
    """The smallest subnormal of either."""

    @classmethod
    def of(cls, dtype: torch.dtype, is_tf32: bool = False) -> "Arithmetic":
        """Of inputs and outputs in `dtype`; TF32 rounds both operands of a product to 11 bits."""
        u = torch.finfo(dtype).eps / 2
        return cls(2.0**-10 if is_tf32 else u, u, torch.finfo(dtype).smallest_normal * 2 * u)


@dataclass(frozen=True)
class Attended:
    """Output and gradients."""

    output: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


@torch.no_grad()
def exact_and_bounds(q: Tensor, k: Tensor, v: Tensor, do: Tensor, arithmetic: Arithmetic) -> tuple[Attended, Attended]:
    """For the gradient `do` of the output: the values in float64, and how far each may be from them."""
    u_sum = U32 * (TENSOR_CORE if q.is_cuda else 1)
    bounds = _Bounds(q.double(), k.double(), v.double(), do.double(), arithmetic, u_sum)
    return bounds.exact, bounds.allowed


class _Bounds:
    """Everything in float64; `u_sum` is the roundoff of sums."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, do: Tensor, arithmetic: Arithmetic, u_sum: float) -> None:
        self.q, self.k, self.v, self.do = q, k, v, do
        self.u, self.u_out, self.smallest = arithmetic.stored_roundoff, arithmetic.out_roundoff, arithmetic.smallest
        self.u_sum, self.width = u_sum, q.shape[-1]
        self.scale = 1 / math.sqrt(self.width)
        self.visible = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
        self.count = self.visible.sum(-1, keepdim=True).double()
        self.scores = (q @ k.mT * self.scale).masked_fill(~self.visible, -math.inf)
        self.p = self.scores.softmax(-1)

    @property
    def exact(self) -> Attended:
        dp = self.do @ self.v.mT
        ds = self.p * (dp - (self.p * dp).sum(-1, keepdim=True)) * self.scale
        return Attended(self.p @ self.v, ds @ self.k, ds.mT @ self.q, self.p.mT @ self.do)

    @property
    def allowed(self) -> Attended:
        q, k, v, do = (x.abs() for x in (self.q, self.k, self.v, self.do))
        p_error = self._of_probabilities()
        ds_error, ds = (x * self.scale for x in self._of_score_gradients(p_error))
        exact, tokens = self.exact, q.shape[-2]
        return Attended(
            self._of_sum(p_error @ v, self.p @ v, self.count, exact.output),
            self._of_sum(ds_error @ k, ds @ k, self.count, exact.dq),
            self._of_sum(ds_error.mT @ q, ds.mT @ q, tokens, exact.dk),
            self._of_sum(p_error.mT @ do, self.p.mT @ do, tokens, exact.dv),
        )

    def _of_sum(self, error: Tensor, magnitude: Tensor, terms: Tensor | int, value: Tensor) -> Tensor:
        """Of a sum whose terms are off by `error` together, rounded to the output's format; 3 more for the scale."""
        summed = error + (terms + 3) * self.u_sum * magnitude
        return (1 + self.u_out) * summed + self.u_out * value.abs() + (2 + self.q.shape[-2]) * self.smallest

    def _of_probabilities(self) -> Tensor:
        """An error of a score moves its own probability and, through the sum, all of its row."""
        moved = self._of_scores() + (self.u + 2 * self.u_sum) * self._gap()
        moved = moved + (self.p * moved).sum(-1, keepdim=True)
        roundings = FORWARD_ROUNDINGS * (self.u + 3 * self.u_sum) + BLOCK_ROUNDINGS * self.count * self.u_sum
        return torch.where(self.visible, self.p * torch.expm1(moved + roundings) + 2 * self.smallest, 0)

    def _of_scores(self) -> Tensor:
        """The product, and a rounding of it and of its quotient."""
        magnitude = self.q.abs() @ self.k.abs().mT * self.scale
        return torch.where(self.visible, (2 * self.u + (self.width + 3) * self.u_sum) * magnitude, 0)

    def _gap(self) -> Tensor:
        return torch.where(self.visible, self.scores.amax(-1, keepdim=True) - self.scores, 0)

    def _of_score_gradients(self, p_error: Tensor) -> tuple[Tensor, Tensor]:
        """How far dS may be, and its magnitude.

        The gradient through a row's maximum, of which the exact value 0 is the sum of its dS, goes to a highest score.
        """
        dp = self.do.abs() @ self.v.abs().mT
        d = (self.p * dp).sum(-1, keepdim=True)
        magnitude, u = self.p * (dp + d), self.u + self.u_out
        dp_error = (u + (self.width + 2) * self.u_sum) * dp
        d_error = (p_error * dp).sum(-1, keepdim=True) + (u + (self.count + self.width + 2) * self.u_sum) * d
        error = (self.p + p_error) * (dp_error + d_error) + p_error * (dp + d)
        error = error + BACKWARD_ROUNDINGS * (self.u + 3 * self.u_sum) * magnitude + 4 * self.smallest * (1 + dp + d)
        error = torch.where(self.visible, error, 0)
        slack = self._of_scores() + self.u * self._gap()
        is_highest = self.scores + slack >= (self.scores - slack).amax(-1, keepdim=True)
        return error + is_highest * error.sum(-1, keepdim=True), magnitude
