"""Whether a kernel of one's own is as exact as its arithmetic allows, against float64, in units in the last place."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from perf_tests_suite.numerics_tests.harness import bounds, oracles
from perf_tests_suite.numerics_tests.machine.formats import FORMAT_OF, U32
from perf_tests_suite.perf_tests.user_code.attention import NAMES, Arithmetic, exact_and_bounds

Judged = tuple[Tensor, Tensor]
"""The result in float64, and how far from it each element may be."""

SILU_SLOPE = 1.1
"""The largest slope of x sigmoid(x) is 1.0998, at x = 2.4."""


def within_bounds(kernel: str, inputs: Mapping[str, Any] | Sequence[Any], got: Tensor) -> None:
    """Raise AssertionError, with the error in units in the last place, unless `got` is what the kernel should give.

    `kernel` is a name in KERNELS, `inputs` what that function takes after the dtype, by name or in its order. What is
    allowed is the bound of that kernel in the dtype of `got`: sums in float32, or in 16 bits rounded once from there.
    Raises ValueError for an unknown kernel and for inputs that it does not take.
    """
    __tracebackhide__ = True
    if kernel not in KERNELS:
        raise ValueError(f"kernel {kernel!r} is unknown; choose {', '.join(KERNELS)}.")
    judge = KERNELS[kernel]
    in_order, by_name = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    try:
        inspect.signature(judge).bind(got.dtype, *in_order, **by_name)
    except TypeError as refusal:
        takes = ", ".join(list(inspect.signature(judge).parameters)[1:])
        raise ValueError(f"{kernel} takes {takes}; {refusal}.") from refusal
    with torch.no_grad():
        exact, allowed = judge(got.dtype, *in_order, **by_name)
    if got.shape != exact.shape:
        raise AssertionError(f"{kernel} gives shape {tuple(got.shape)}, float64 gives {tuple(exact.shape)}.")
    found = got.detach()
    error = (found.double() - exact).abs()
    outside = ~(error <= allowed)  # so that NaN is outside
    if not bool(outside.any()):
        return
    worst = int(torch.where(outside, (error / allowed).nan_to_num(nan=torch.inf), 0).flatten().argmax())
    of_one = float(units_in_the_last_place(exact, got.dtype).flatten()[worst])
    place = [int(index) for index in torch.unravel_index(torch.tensor(worst), exact.shape)]
    raise AssertionError(
        f"{float(error.flatten()[worst]) / of_one:.3g} ulp at {place}, "
        f"allowed {float(allowed.flatten()[worst]) / of_one:.3g} ({kernel} in {str(got.dtype)[6:]}, "
        f"{int(outside.sum())} of {error.numel()} outside): got {float(found.flatten()[worst]):.9g}, "
        f"float64 says {float(exact.flatten()[worst]):.9g}."
    )


def units_in_the_last_place(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbours of a format at each number."""
    known = FORMAT_OF[dtype]
    unit = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - known.precision)
    return torch.where(exact == 0, 0, unit).clamp(min=known.min_subnormal)


def rounded(bound: Tensor, exact: Tensor, dtype: torch.dtype) -> Tensor:
    """A bound of float32, and one rounding more where the result is in 16 bits."""
    u, eta = bounds.rounding(dtype)
    return bound if dtype == torch.float32 else (1 + u) * bound + u * exact.abs() + eta


def matmul(dtype: torch.dtype, a: Tensor, b: Tensor) -> Judged:
    """a (..., M, K) by b (..., K, N): bounds.sum_in_float32."""
    a, b = a.double(), b.double()
    return a @ b, bounds.sum_in_float32(a @ b, a.abs() @ b.abs(), a.shape[-1], dtype)


def softmax(dtype: torch.dtype, x: Tensor) -> Judged:
    """Softmax over the last dimension, in float32: bounds.softmax."""
    exact = oracles.softmax(x)
    return exact, bounds.softmax(x.double(), exact, dtype)


def rms_norm(dtype: torch.dtype, x: Tensor, weight: Tensor, eps: float = 1e-5) -> Judged:
    """RMSNorm over the last dimension, in float32, rounded once or twice: bounds.rms_norm."""
    exact = oracles.rms_norm(x, weight, eps)
    return exact, bounds.rms_norm(exact, dtype, roundings=2)


def layer_norm(dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Judged:
    """LayerNorm over the last dimension, in float32, in two passes or by Welford: bounds.layer_norm."""
    z, kappa = oracles.normalised(x, eps)
    exact = z * weight.double() + bias.double()
    return exact, bounds.layer_norm(exact, z, weight.double(), bias.double(), kappa, dtype)


def cross_entropy(dtype: torch.dtype, logits: Tensor, targets: Tensor) -> Judged:
    """The mean loss, a scalar, of logits (..., V) and targets (...), in float32: bounds.cross_entropy, averaged."""
    losses = oracles.token_losses(logits, targets)
    target_logit = logits.double().gather(-1, targets[..., None])[..., 0]
    each = bounds.cross_entropy(logits.double(), target_logit, losses)
    # The mean of the bounds of tokens, and one more sum over tokens.
    bound = each.mean() + bounds.gamma(losses.numel() + 1) * losses.abs().mean()
    return losses.mean(), rounded(bound, losses.mean(), dtype)


def rotary(
    dtype: torch.dtype, x: Tensor, positions: Tensor | None = None, theta: float = 10_000.0, pairs: str = "neighbours"
) -> Judged:
    """x (..., T, K) turned by `positions`, 0 to T - 1 if None; pairs are `neighbours` or `halves` (i and i + K / 2).

    bounds.rotary.
    """
    if pairs not in ("neighbours", "halves"):
        raise ValueError(f"pairs is {pairs!r}; it must be neighbours or halves.")
    places = torch.arange(x.shape[-2], device=x.device) if positions is None else positions
    wide = x.double()
    if pairs == "halves":
        wide = wide.unflatten(-1, (2, -1)).transpose(-2, -1).flatten(-2)
    exact = oracles.rotary(wide, places, theta=theta)
    lengths = wide.unflatten(-1, (-1, 2)).norm(dim=-1, keepdim=True).expand(*exact.shape[:-1], -1, 2).flatten(-2)
    frequencies = theta ** -(torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=x.device) / x.shape[-1])
    angles = (places.double()[:, None] * frequencies).repeat_interleave(2, -1)
    allowed = bounds.rotary(lengths, angles) + 2.0**-126
    if pairs == "halves":
        exact, allowed = (y.unflatten(-1, (-1, 2)).transpose(-2, -1).flatten(-2) for y in (exact, allowed))
    return exact, rounded(allowed, exact, dtype)


def swiglu(dtype: torch.dtype, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Judged:
    """Weights (out, in). Running error analysis, ASNA 2e, section 3.3: the error that each step adds to its input's.

    In 16 bits each step may be rounded to them.
    """
    u, eta = bounds.rounding(dtype) if dtype != torch.float32 else (0.0, 0.0)
    x, gate, up, down = (tensor.double() for tensor in (x, gate, up, down))
    g, h = x @ gate.T, x @ up.T
    error_g, error_h = (
        bounds.gamma(x.shape[-1]) * (x.abs() @ weight.abs().T) + u * made.abs() + eta
        for weight, made in ((gate, g), (up, h))
    )
    silu = g * g.sigmoid()
    # sigmoid itself is off by a few u32, times its condition |g| where it is small; in 16 bits it is rounded too.
    error_silu = SILU_SLOPE * error_g + ((g.abs() + 8) * U32 + 2 * u) * silu.abs() + 2.0**-126 + eta
    product = silu * h
    error = silu.abs() * error_h + h.abs() * error_silu + error_silu * error_h + (U32 + u) * product.abs() + eta
    bound = error @ down.abs().T + bounds.gamma(len(gate)) * ((product.abs() + error) @ down.abs().T) + 2.0**-126
    exact = product @ down.T
    return exact, rounded(bound, exact, dtype)


def attention(dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor) -> Judged:
    """Causal, of (..., T, K): exact_and_bounds, which a kernel that is timed is held to as well."""
    exact, allowed = exact_and_bounds(q, k, v, torch.zeros_like(v), Arithmetic.of(dtype), wanted=NAMES[:1])
    return exact.output, allowed.output


def adamw(
    dtype: torch.dtype, parameter: Tensor, gradients: Sequence[Tensor], lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
) -> Judged:  # fmt: skip
    """The float32 parameter after one step for each gradient, from moments of 0: bounds.adamw."""
    if dtype != torch.float32:
        raise ValueError(f"adamw has a bound for parameters in float32, not in {dtype}, where most steps are lost.")
    exact = oracles.adamw(parameter, list(gradients), lr, betas, eps, weight_decay)
    return exact, bounds.adamw(parameter.double(), len(gradients), lr)


KERNELS: dict[str, Callable[..., Judged]] = {
    judge.__name__: judge
    for judge in (matmul, softmax, rms_norm, layer_norm, cross_entropy, rotary, swiglu, attention, adamw)
}
"""Each takes the dtype of the result, and the inputs."""
