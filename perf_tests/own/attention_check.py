"""Whether a function of the user's computes causal attention: output and gradients against float64, before it is timed.

Shapes: B batch, H heads (absent in attention alone), T tokens, K head width.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from model.attention import AttentionFunction
from model.compilation import forget_compiled
from model.precision import Precision
from perf_tests.own.attention_bounds import Arithmetic, Attended, exact_and_bounds
from perf_tests.own.guard import guarded

LENGTHS = (64, 97, 130)
"""One of whole blocks, two that are a multiple of no block, in one block and in two or more."""
MANY_KEYS = 641
"""So many equal weights, of which a sum in bfloat16 stops at 256; of one sequence, which is as good as many."""

BATCH, HEADS = 2, 3
Sizes = tuple[int, ...]
"""Sequences and heads, the latter without effect where there are none."""

LONGEST_SECONDS = 180
"""For one pass; the first may compile, for a minute on a busy machine."""

NAMES = {"output": "the output", "dq": "the gradient of q", "dk": "the gradient of k", "dv": "the gradient of v"}


class IncorrectError(ValueError):
    """It runs and computes something else; the message says how far off and where."""


@dataclass(frozen=True)
class Use:
    """How cases call attention."""

    head_dim: int
    has_heads: bool
    precision: Precision
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return self.precision.autocast_dtype or torch.float32

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic.of(self.dtype, is_tf32=self.precision.float32_matmul_precision != "highest")


@dataclass(frozen=True)
class Inputs:
    """Query, key and value as the model lays them out, and the gradient of the output; float32, rounded to a dtype."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor

    @classmethod
    def drawn(
        cls, use: Use, tokens: int, seed: int, sizes: Sizes = (BATCH, HEADS), are_scores_equal: bool = False
    ) -> "Inputs":
        """Scores of a size at which 16 bits still tell them apart; equal ones with values of one sign."""
        generator = torch.Generator().manual_seed(seed)
        batch, *heads = sizes
        shape = (batch, tokens, *(heads if use.has_heads else ()), use.head_dim)
        q, k, v, do = (torch.randn(shape, generator=generator) for _ in range(4))
        q, k, v = (0 * q, k, v.abs() + 0.5) if are_scores_equal else (q / 2, k / 2, v)
        return cls(*(_laid_out(x.to(use.dtype).float().to(use.device), use.has_heads) for x in (q, k, v, do)))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v, self.do


def _laid_out(x: Tensor, has_heads: bool) -> Tensor:
    """(B, T, H, K) as (B, H, T, K), a view, as heads are split in a model."""
    return x.transpose(1, 2) if has_heads else x


def check_attention(
    attend: AttentionFunction,
    name: str,
    use: Use,
    lengths: Iterable[int] = (),
    sizes: Iterable[Sizes] = (),
    seed: int = 0,
) -> None:
    """Raises IncorrectError where its results are not attention's in this precision, OwnModelError where it fails.

    `lengths` are checked beside LENGTHS, each of `sizes` at one short length: a kernel may leave out the last heads.
    """
    forget_compiled()  # after eight shapes torch.compile runs a function uncompiled, and that would be checked
    for tokens in sorted({*LENGTHS, *lengths}):
        _check(attend, name, use, Inputs.drawn(use, tokens, seed))
    _check(attend, name, use, Inputs.drawn(use, MANY_KEYS, seed, (1, 1), are_scores_equal=True))
    for of_case in sorted(set(sizes)):
        forget_compiled()
        _check(attend, name, use, Inputs.drawn(use, LENGTHS[0], seed, of_case))


def _check(attend: AttentionFunction, name: str, use: Use, inputs: Inputs) -> None:
    words = f"inputs of shape {tuple(inputs.q.shape)} in {use.precision.name}"
    leaves = [x.requires_grad_() for x in inputs.tensors[:3]]
    # Not the leaves themselves: of those alone autograd notices a change in place.
    passed = Inputs(inputs.q * 1, inputs.k * 1, inputs.v * 1, inputs.do.clone())
    with _running(name, use, words):
        output = attend(passed.q, passed.k, passed.v)
        # What a call keeps for its backward pass must survive the next one, as that of another layer does.
        attend(*(leaf / 2 for leaf in leaves))
    _check_output(output, use, inputs.q.shape, words)
    if not output.requires_grad:
        raise IncorrectError(f"it records no graph for a backward pass, for {words}.")
    with guarded(f"{name} fails in the backward pass of {words}", LONGEST_SECONDS):
        gradients = torch.autograd.grad(output, leaves, passed.do.to(output.dtype), allow_unused=True)
    with torch.no_grad(), _running(name, use, f"{words} under no_grad"):
        without_graph = attend(passed.q, passed.k, passed.v)
    _check_output(without_graph, use, inputs.q.shape, f"{words} under no_grad")
    for letter, before, now in zip(("q", "k", "v", "the gradient"), inputs.tensors, passed.tensors, strict=True):
        if not torch.equal(before, now):
            raise IncorrectError(f"it changes {letter} in place, for {words}.")
    for letter, gradient in zip("qkv", gradients, strict=True):
        if gradient is None:
            raise IncorrectError(f"it gives {letter} no gradient, for {words}.")
    exact, allowed = exact_and_bounds(*inputs.tensors, use.arithmetic)
    found = Attended(output.detach(), *gradients)
    _check_within(found, exact, allowed, words)
    _check_within(replace(found, output=without_graph), exact, allowed, f"{words} under no_grad")


@contextmanager
def _running(name: str, use: Use, words: str) -> Iterator[None]:
    """A forward pass in the precision, whose global mode is put back."""
    before = torch.get_float32_matmul_precision()
    use.precision.apply()
    try:
        with guarded(f"{name} fails on {words}", LONGEST_SECONDS), use.precision.autocast(use.device):
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


def _check_within(found: Attended, exact: Attended, allowed: Attended, words: str) -> None:
    """Written so that NaN fails: every comparison with NaN is false."""
    for field in fields(Attended):
        got, wanted, bound = (getattr(values, field.name) for values in (found, exact, allowed))
        error = (got.double() - wanted).abs()
        outside = ~(error <= bound)
        if not bool(outside.any()):
            continue
        ratio = torch.where(outside, (error / bound).nan_to_num(nan=torch.inf, posinf=torch.inf), 0)
        worst = int(ratio.argmax())
        place = tuple(int(number) for number in torch.unravel_index(torch.tensor(worst), error.shape))
        raise IncorrectError(
            f"error {ratio.flatten()[worst]:.3g} x its bound at {place} of {NAMES[field.name]}, for {words}: "
            f"{got[place]:.6g}, in float64 {wanted[place]:.6g}, allowed {bound[place]:.3g}."
        )
