"""Attention by name: the suite's implementations, or a function of the user's as MODULE:FUNCTION or FILE.py:FUNCTION.

The user's is called as PyTorch calls its fused attention: with query, key and value of one dtype, under autocast the
precision's, and without autocast inside."""

import math
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from perf_tests_suite.model.attention import ATTENTION, Attention, AttentionFunction
from perf_tests_suite.model.compilation import forget_compiled
from perf_tests_suite.model.precision import Precision
from perf_tests_suite.perf_tests.hardware.clock import multiplied_dtype, tensor_dtype
from perf_tests_suite.perf_tests.user_code.given import is_user_function
from perf_tests_suite.perf_tests.user_code.guard import LONGEST_SECONDS, UserCodeError, guarded
from perf_tests_suite.perf_tests.user_code.named import load

FAKE_RUN = "_fake_run"
"""Names the second copy of a file whose function gets fake tensors: what it keeps reaches no real call."""


def attention_named(attention: str, copy: str = "") -> Attention:
    """The row of the suite's table, or one for a function of the user's, out of this copy of its file."""
    if not is_user_function(attention):
        return ATTENTION[attention]
    about = f"{attention}, given with --attention"
    return Attention(about, lambda: _as_fused(function_of(attention, copy)), lambda device, head_dim: None)


def function_of(attention: str, copy: str = "") -> AttentionFunction:
    """What the user named, out of this copy of its file. Raises UserCodeError where it cannot be imported or called."""
    with guarded(f"--attention {attention} cannot be imported", LONGEST_SECONDS):
        function = load(attention, copy)
    if not callable(function):
        got = type(function).__name__
        raise UserCodeError(f"--attention {attention} is of type {got}; it must be a function of query, key and value.")
    return cast(AttentionFunction, function)


def _as_fused(function: AttentionFunction) -> AttentionFunction:
    def attend(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        device = q_BHTK.device.type
        if not torch.is_autocast_enabled(device):
            return function(q_BHTK, k_BHTK, v_BHTK)
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return function(q_BHTK.to(dtype), k_BHTK.to(dtype), v_BHTK.to(dtype))

    vars(attend)["multiple_of"] = getattr(function, "multiple_of", 1)
    return attend


LARGEST_MULTIPLE = 1024
"""A function that takes multiples of more tokens could not be held to float64 at any length."""


def multiple_of(attend: AttentionFunction, name: str) -> int:
    """Read the number whose multiples alone the function takes as tokens, its attribute `multiple_of`.

    Raises UserCodeError for what is no such number.
    """
    multiple = getattr(attend, "multiple_of", 1)
    if not isinstance(multiple, int) or not 1 <= multiple <= LARGEST_MULTIPLE:
        raise UserCodeError(f"{name} has multiple_of {multiple!r}; it must be a number from 1 to {LARGEST_MULTIPLE}.")
    return multiple


# How far output and gradients of causal attention may be from float64, element by element, in each precision.
#
# Products: gamma_n of the magnitudes, in any order of summation, Higham, ASNA 2e, section 3.5. Softmax: Blanchard,
# Higham and Higham, IMA JNA 41 (2021); the shift by a row's maximum rounds the gap between them. Each rounding
# multiplies its quantity by a number from exp(-u) to exp(u), so that a probability with roundings of the sum e is
# within expm1(e) of itself, to all orders. Gradients: the same through dS = P (dP - D), D being the row sum of dO O,
# or of P dP.
#
# Shapes: (..., T, K); scores, probabilities P and their gradients (..., T, T).


U32 = 2.0**-24
TENSOR_CORE = 4
"""They align terms and truncate: up to 3.0 n u32, Fasi, Higham, Mikaitis and Pranesh, PeerJ CS 7 (2021)."""

FORWARD_ROUNDINGS, BACKWARD_ROUNDINGS = 8, 10
"""Roundings of a probability and of a score's gradient, the result of each operation being kept in the precision:
exponential, sum, quotient, product, cast; elementary functions err by up to 2 units (CUDA C++ Programming Guide)."""

BLOCK_ROUNDINGS = 3
"""Roundings for each key, at most: a block may be as short as one key, and rescales what was summed before it."""


@dataclass(frozen=True)
class Arithmetic:
    """What is allowed: sums in float32, everything else rounded to `stored`, results to `out`."""

    stored_roundoff: float
    """u of the format in which operands, scores, probabilities and their gradients may be kept."""
    out_roundoff: float
    smallest: float
    """The smallest subnormal of either."""
    sum_factor: int = 1
    """Times float32's roundoff by which a sum errs that tensor cores made elsewhere, where tensors are on the host."""

    @classmethod
    def of(cls, dtype: torch.dtype, is_tf32: bool = False) -> "Arithmetic":
        """Return that of inputs and outputs in `dtype`; TF32 rounds both operands of a product to 11 bits."""
        u = torch.finfo(dtype).eps / 2
        return cls(2.0**-10 if is_tf32 else u, u, torch.finfo(dtype).smallest_normal * 2 * u)


class Attended(NamedTuple):
    """Output and gradients."""

    output: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


NAMES = ("the output", "the gradient of q", "the gradient of k", "the gradient of v")


@torch.no_grad()
def exact_and_bounds(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    arithmetic: Arithmetic,
    positions_R: Tensor | None = None,
    wanted: Container[str] = NAMES,
) -> tuple[Attended, Attended]:
    """Return, for the gradient `do` of the output, the values in float64 and how far each may be from them.

    With `positions_R` the queries and gradients (..., R, K) are those of these tokens alone. Output and dq are then
    complete, while dk and dv, and their bounds, are what these rows add to them: those of all rows add up to a bound.
    What is not `wanted` of NAMES is empty.
    """
    u, u_out, smallest = arithmetic.stored_roundoff, arithmetic.out_roundoff, arithmetic.smallest
    u_sum = U32 * (TENSOR_CORE if q.is_cuda else arithmetic.sum_factor)
    q, k, v, do = (x.double() for x in (q, k, v, do))
    tokens, width = k.shape[-2:]
    scale = 1 / math.sqrt(width)
    token_T = torch.arange(tokens, device=q.device)
    visible = token_T <= (token_T if positions_R is None else positions_R)[:, None]
    count = visible.sum(-1, keepdim=True).double()
    scores = (q @ k.mT * scale).masked_fill(~visible, -math.inf)
    p = scores.softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    factors = ((p, v), (ds, k), (ds.mT, q), (p.mT, do))
    exact = Attended(
        *(x @ y if name in wanted else q.new_empty(0) for name, (x, y) in zip(NAMES, factors, strict=True))
    )

    q, k, v, do = (x.abs() for x in (q, k, v, do))
    # Of a score: the product, and a rounding of it and of its quotient.
    score_error = torch.where(visible, (2 * u + (width + 3) * u_sum) * (q @ k.mT * scale), 0)
    gap = torch.where(visible, scores.amax(-1, keepdim=True) - scores, 0)
    # An error of a score moves its own probability and, through the sum, all of its row.
    moved = score_error + (u + 2 * u_sum) * gap
    moved = moved + (p * moved).sum(-1, keepdim=True)
    roundings = FORWARD_ROUNDINGS * (u + 3 * u_sum) + BLOCK_ROUNDINGS * count * u_sum
    p_error = torch.where(visible, p * torch.expm1(moved + roundings) + 2 * smallest, 0)

    dp = do @ v.mT
    d = (p * dp).sum(-1, keepdim=True)
    magnitude = p * (dp + d)
    dp_error = (u + u_out + (width + 2) * u_sum) * dp
    d_error = (p_error * dp).sum(-1, keepdim=True) + (u + u_out + (count + width + 2) * u_sum) * d
    ds_error = (p + p_error) * (dp_error + d_error) + p_error * (dp + d)
    ds_error = ds_error + BACKWARD_ROUNDINGS * (u + 3 * u_sum) * magnitude + 4 * smallest * (1 + dp + d)
    ds_error = torch.where(visible, ds_error, 0)
    # The gradient through a row's maximum, of which the exact value 0 is the sum of its dS, goes to a highest score.
    slack = score_error + u * gap
    is_highest = scores + slack >= (scores - slack).amax(-1, keepdim=True)
    ds_error = (ds_error + is_highest * ds_error.sum(-1, keepdim=True)) * scale
    ds = magnitude * scale

    def of_sum(error: Tensor, magnitude: Tensor, factor: Tensor, terms: Tensor | int, value: Tensor) -> Tensor:
        """Bound a float32 sum (Higham 3.5) whose terms are off by `error` together, rounded to the output's format.

        Three terms more are for the scale.
        """
        if not value.numel():
            return value
        summed = (error + (terms + 3) * u_sum * magnitude) @ factor
        return (1 + u_out) * summed + u_out * value.abs() + (2 + tokens) * smallest

    return exact, Attended(
        of_sum(p_error, p, v, count, exact.output),
        of_sum(ds_error, ds, k, count, exact.dq),
        of_sum(ds_error.mT, ds.mT, q, tokens, exact.dk),
        of_sum(p_error.mT, p.mT, do, tokens, exact.dv),
    )


@torch.no_grad()
def sums_and_bounds(q: Tensor, k: Tensor, v: Tensor, do: Tensor, arithmetic: Arithmetic) -> tuple[Attended, Attended]:
    """Return what dk and dv add up to over all tokens, in float64, and how far each sum may be from that; (..., K).

    Rows of P sum to 1 and those of dS to 0, so the sum of dv is that of `do` and the sum of dk is 0, in O(T K). Bounds
    are sums of those above, with |q| |k| and |do| |v| at most the products of their norms (Cauchy and Schwarz), and a
    gap at most two scores. Output and dq are empty.
    """
    u, u_out, smallest = arithmetic.stored_roundoff, arithmetic.out_roundoff, arithmetic.smallest
    u_sum = U32 * (TENSOR_CORE if q.is_cuda else arithmetic.sum_factor)
    q, k, v, do = (x.double() for x in (q, k, v, do))
    tokens, width = k.shape[-2:]
    scale = 1 / math.sqrt(width)

    def highest_product(left: Tensor, right: Tensor) -> Tensor:
        return left.norm(dim=-1, keepdim=True) * right.norm(dim=-1).amax(-1)[..., None, None]

    score, dp = scale * highest_product(q, k), highest_product(do, v)
    moved = 2 * (2 * u + (width + 3) * u_sum + 2 * (u + 2 * u_sum)) * score
    roundings = FORWARD_ROUNDINGS * (u + 3 * u_sum) + BLOCK_ROUNDINGS * tokens * u_sum
    p_error = torch.expm1(moved + roundings) + 2 * tokens * smallest
    products = 2 * (u + u_out) + (tokens + 2 * width + 4) * u_sum
    ds_error = ((1 + p_error) * (products + p_error) + 2 * p_error + 2 * BACKWARD_ROUNDINGS * (u + 3 * u_sum)) * dp
    ds_error = 2 * (ds_error + 4 * tokens * smallest * (1 + 2 * dp))  # twice: once more through a row's maximum

    def of_sum(error: Tensor, magnitude: Tensor | int, factor: Tensor) -> Tensor:
        bound = (1 + u_out) * (error + (tokens + 3) * u_sum * magnitude) + u_out * magnitude
        return (factor.abs() * bound).sum(-2) + tokens * (2 + tokens) * smallest

    dv, none = do.sum(-2), q.new_empty(0)
    allowed_dk, allowed_dv = of_sum(scale * ds_error, scale * 2 * dp, q), of_sum(p_error, 1, do)
    return Attended(none, none, torch.zeros_like(dv), dv), Attended(none, none, allowed_dk, allowed_dv)


# Whether a function of the user's computes causal attention: output and gradients against float64, before it is
# timed.
#
# Shapes: B batch, H heads (absent in attention alone), T tokens, K head width.


LENGTHS = (64, 97, 130)
"""One of whole blocks, two that are a multiple of no block, in one block and in two or more."""
MANY_KEYS = 641
"""So many equal weights, of which a sum in bfloat16 stops at 256; of one sequence, which is as good as many."""

BATCH, HEADS = 2, 3
Sizes = tuple[int, ...]
"""Sequences and heads, the latter without effect where there are none."""

LONGEST_CHECK_SECONDS = 180
"""Limit of one pass; the first may compile, for a minute on a busy machine."""


class IncorrectError(ValueError):
    """It runs and computes something else; the message says how far off and where."""


class NoBackwardError(UserCodeError):
    """Its output is right at every length, and its backward pass raises NotImplementedError."""


@dataclass(frozen=True)
class Use:
    """How cases call attention."""

    head_dim: int
    has_heads: bool
    precision: Precision
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return multiplied_dtype(self.precision)


Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def _drawn(use: Use, tokens: int, seed: int, sizes: Sizes = (BATCH, HEADS), are_scores_equal: bool = False) -> Inputs:
    """Query, key and value as the model lays them out, and the gradient of the output: float32, rounded to the dtype.

    Scores of a size at which 16 bits still tell them apart; equal ones with values of one sign.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, *heads = sizes
    shape = (batch, tokens, *(heads if use.has_heads else ()), use.head_dim)
    q, k, v, do = (torch.randn(shape, generator=generator) for _ in range(4))
    q, k, v = (0 * q, k, v.abs() + 0.5) if are_scores_equal else (q / 2, k / 2, v)
    rounded = (x.to(use.dtype).float().to(use.device) for x in (q, k, v, do))
    # (B, T, H, K) as (B, H, T, K), a view, as heads are split in a model.
    q, k, v, do = (x.transpose(1, 2) if use.has_heads else x for x in rounded)
    return q, k, v, do


def check_attention(
    attend: AttentionFunction,
    name: str,
    use: Use,
    lengths: Iterable[int] = (),
    sizes: Iterable[Sizes] = (),
    seed: int = 0,
) -> None:
    """Hold the function to float64; raises IncorrectError where its results are not attention's in this precision,
    UserCodeError where it fails, NoBackwardError where it does so in its backward pass alone, on purpose.

    `lengths` are checked beside LENGTHS, each of `sizes` at one short length: a kernel may leave out the last heads.
    All are the next multiples of what the function takes.
    """
    multiple = multiple_of(attend, name)

    def taken(tokens: int) -> int:
        return -(-tokens // multiple) * multiple

    forget_compiled()  # after eight shapes torch.compile runs a function uncompiled, and that would be checked
    drawn = [_drawn(use, tokens, seed) for tokens in sorted({taken(tokens) for tokens in (*LENGTHS, *lengths)})]
    without_backward = None
    for inputs in (*drawn, _drawn(use, taken(MANY_KEYS), seed, (1, 1), are_scores_equal=True)):
        without_backward = _check(attend, name, use, inputs) or without_backward
    for of_case in sorted(set(sizes)):
        forget_compiled()
        without_backward = _check(attend, name, use, _drawn(use, taken(LENGTHS[0]), seed, of_case)) or without_backward
    if without_backward is not None:
        raise NoBackwardError(str(without_backward)) from without_backward


def _check(attend: AttentionFunction, name: str, use: Use, inputs: Inputs) -> UserCodeError | None:
    """Check one size; returns why gradients were left out, where the backward pass is not implemented."""
    *leaves, gradient = inputs
    words = f"inputs of shape {tuple(gradient.shape)} in {use.precision.name}"
    for leaf in leaves:
        leaf.requires_grad_()
    # Not the leaves themselves: of those alone autograd notices a change in place.
    given = tensor_dtype(use.precision)
    q, k, v, do = passed = (*((leaf * 1).to(given) for leaf in leaves), gradient.clone())
    with _running(name, use, words):
        output = attend(q, k, v)
        # What a call keeps for its backward pass must survive the next one, as that of another layer does.
        attend(*((leaf / 2).to(given) for leaf in leaves))
    _check_output(output, use, gradient.shape, words)
    if not output.requires_grad:
        raise IncorrectError(f"it records no graph for a backward pass, for {words}.")
    without_backward = None
    try:
        with guarded(f"{name} fails in the backward pass of {words}", LONGEST_CHECK_SECONDS):
            # Not `torch.autograd.grad`, which no timed round calls and which reentrant checkpoints refuse.
            output.backward(do.to(output.dtype))
    except UserCodeError as error:
        if not isinstance(error.__cause__, NotImplementedError):
            raise
        without_backward = error
    with torch.no_grad(), _running(name, use, f"{words} under no_grad"):
        without_graph = attend(q, k, v)
    _check_output(without_graph, use, gradient.shape, f"{words} under no_grad")
    for letter, before, now in zip(("q", "k", "v", "the gradient"), inputs, passed, strict=True):
        if not torch.equal(before, now.float()):
            raise IncorrectError(f"it changes {letter} in place, for {words}.")
    gradients = []
    for letter, leaf in zip("qkv" if without_backward is None else "", leaves, strict=without_backward is None):
        if leaf.grad is None:
            raise IncorrectError(f"it gives {letter} no gradient, for {words}.")
        gradients.append(leaf.grad)
    is_tf32 = use.precision.float32_matmul_precision != "highest"
    exact, allowed = exact_and_bounds(*inputs, Arithmetic.of(use.dtype, is_tf32))
    _check_within((output.detach(), *gradients), exact, allowed, words)
    _check_within((without_graph, *gradients), exact, allowed, f"{words} under no_grad")
    return without_backward


@contextmanager
def _running(name: str, use: Use, words: str) -> Iterator[None]:
    """A forward pass in the precision, whose global mode is put back."""
    before = torch.get_float32_matmul_precision()
    use.precision.apply()
    try:
        with guarded(f"{name} fails on {words}", LONGEST_CHECK_SECONDS), use.precision.autocast(use.device):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _check_output(output: object, use: Use, shape: torch.Size, words: str) -> None:
    if not isinstance(output, Tensor):
        raise IncorrectError(f"it returns a {type(output).__name__}, not a tensor, for {words}.")
    wanted = (tuple(shape), use.dtype, use.device.type)
    got = (tuple(output.shape), output.dtype, output.device.type)
    for mine, theirs in zip(wanted, got, strict=True):
        if mine != theirs:
            raise IncorrectError(f"it returns {theirs}, not {mine}, for {words}.")


def _check_within(found: Iterable[Tensor], exact: Attended, allowed: Attended, words: str) -> None:
    """Hold the output to its bound, and the gradients that are there."""
    for name, got, wanted, bound in zip(NAMES, found, exact, allowed, strict=False):
        check_within(got, wanted, bound, name, words)


def check_within(
    got: Tensor,
    wanted: Tensor,
    bound: Tensor,
    name: str,
    words: str,
    place_of: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda place: place,
    source: str = "in float64",
) -> None:
    """Raise IncorrectError with the worst place, by `place_of` where `got` is a slice, unless all is within its bound.

    Written so that NaN fails: every comparison with NaN is false.
    """
    error = (got.double() - wanted).abs()
    outside = ~(error <= bound)
    if not bool(outside.any()):
        return
    ratio = torch.where(outside, (error / bound).nan_to_num(nan=torch.inf, posinf=torch.inf), 0)
    worst = int(ratio.argmax())
    place = tuple(int(number) for number in torch.unravel_index(torch.tensor(worst), error.shape))
    raise IncorrectError(
        f"error {ratio.flatten()[worst]:.3g} x its bound at {place_of(place)} of {name}, for {words}: "
        f"{got[place]:.6g}, {source} {wanted[place]:.6g}, allowed {bound[place]:.3g}."
    )
