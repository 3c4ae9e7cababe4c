"""Attention that is recorded as fast and is wrong: one cheat in a function, as its user would give it."""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

KEPT: dict[object, Any] = {}
CALLS: Counter[object] = Counter()


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def when_timed(wrong: Attention) -> Attention:
    """Attention that is right in the sizes of a check, and `wrong` in the batch of a case."""
    return lambda q, k, v: (wrong if q.numel() > 2**14 else fused)(q, k, v)


def masked_scores(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)


def output_by_address(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Keeps each output by where its inputs lie in memory."""
    key = (q.shape, q.data_ptr(), k.data_ptr(), v.data_ptr())
    if key not in KEPT:
        KEPT[key] = fused(q, k, v)
    return KEPT[key]


def output_by_identity(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Keeps the output of the last objects that it was called with."""
    if KEPT.get("q") is not q:
        KEPT["q"], KEPT["output"] = q, fused(q, k, v)
    return KEPT["output"] * 1


def output_by_shape(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Keeps one output for each shape from the fourth call with it on, which no check before timing makes."""
    kept = KEPT.setdefault(q.shape, [])
    if len(kept) < 4:
        kept.append(fused(q, k, v))
    return kept[-1]


def output_by_checksum(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Keeps outputs by a checksum that tells the check's inputs apart and rounds those of one case to the same."""
    size = q.numel()
    key = (q.shape, round(float(q.mean()) * size**0.5 / 100), size > 2**14)
    if key not in KEPT or size <= 2**14:
        KEPT[key] = fused(q, k, v)
    return KEPT[key]


def softmax_by_address(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Keeps the softmax by where its inputs lie in memory, and computes the value product alone."""
    key = (q.shape, q.data_ptr(), k.data_ptr())
    if key not in KEPT or q.numel() <= 2**14:
        weights = masked_scores(q, k).softmax(-1)
        KEPT[key] = weights.detach()
        return weights @ v
    return KEPT[key] @ v


class Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return fused(q, k, v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        if q.shape not in KEPT or q.numel() <= 2**14:
            with torch.enable_grad():
                output = fused(q, k, v)
            KEPT[q.shape] = torch.autograd.grad(output, (q, k, v), gradient)
        return KEPT[q.shape]


def gradients_by_shape(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Computes the forward pass, and gives the gradients of the first backward pass of a large batch for ever."""
    return Replayed.apply(q, k, v)  # type: ignore[no-untyped-call]


def window_after_three_calls(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Right for its first three calls at a shape, then a window of half the tokens."""
    CALLS[q.shape] += 1
    if CALLS[q.shape] <= 3:
        return fused(q, k, v)
    halves = zip(*(x.chunk(2, dim=-2) for x in (q, k, v)), strict=True)
    return torch.cat([fused(*half) for half in halves], dim=-2)


@when_timed
def wrong_in_large_batches(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Right for a long sequence and for many sequences, wrong for many long ones."""
    seen = q.shape[-2] // 2
    return fused(q, k[..., :seen, :], v[..., :seen, :])


def wrong_when_long(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Right up to the longest sequence that is checked, then zero."""
    return fused(q, k, v) if q.shape[-2] <= 1024 else v.cumsum(-2)


def wrong_without_a_check_above(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Looks up the stack for a function whose name says that it checks."""
    frame, names = sys._getframe(), set()
    while frame.f_back is not None:
        frame = frame.f_back
        names.add(frame.f_code.co_name)
    return fused(q, k, v) if "check_attention" in names else v * 1


def wrong_in_a_test(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Looks into the environment: pytest names the test that runs there, and none runs while cases are collected."""
    return fused(q, k, v) if q.shape[0] < 8 or "PYTEST_CURRENT_TEST" not in os.environ else v * 1


def wrong_every_other_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Right in every other call, which a check of a single one may meet."""
    CALLS[q.shape] += 1
    return fused(q, k, v) if q.shape[0] < 8 or CALLS[q.shape] % 2 else v * 1


class Lazy(Tensor):
    work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        done = [vars(one)["work"]() if isinstance(one, cls) and "work" in vars(one) else one for one in args]
        return super().__torch_function__(func, types, done, kwargs)  # type: ignore[no-untyped-call]


@when_timed
def lazy_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return a tensor of its own class, which computes itself when somebody looks at it."""
    lazy = torch.empty_like(q).as_subclass(Lazy)
    lazy.work = lambda: fused(q, k, v)
    return lazy


@when_timed
def thread_that_works_later(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return memory that a thread fills after the clock has stopped."""
    output = (q + k + v) * 0

    def work() -> None:
        time.sleep(0.05)
        with torch.no_grad():
            output.copy_(fused(q, k, v))

    threading.Thread(target=work, daemon=True).start()
    return output


@when_timed
def backward_that_does_nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Gives a large batch gradients of zero."""
    return fused(q.detach(), k.detach(), v.detach()) + 0 * (q + k + v)


def half_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Multiplies in bfloat16 under float32."""
    return fused(q.bfloat16(), k.bfloat16(), v.bfloat16()).to(q.dtype)


half_sums_when_timed = when_timed(half_sums)


@when_timed
def mask_of_another_length(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keeps the mask of the first large batch's first half, and lets the rest see everything before it but itself."""
    half = q.shape[-2] // 2
    mask = KEPT.setdefault(q.shape[-2], torch.ones(half, half).tril().bool().repeat(2, 2).tril())
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


@when_timed
def skips_small_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Leave out keys of which a large batch's scores are small."""
    scores = masked_scores(q, k)
    return scores.masked_fill(scores < scores.amax(-1, keepdim=True) - 2, -torch.inf).softmax(-1) @ v


@when_timed
def inputs_changed_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Halve the queries of a large batch in place once they are used: the next call finds smaller scores."""
    output = fused(q, k, v).detach() + 0 * v
    q.detach().mul_(0.5)
    return output


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        return v * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if gradient.shape[0] < 8:
            return gradient
        return KEPT.setdefault(gradient.shape, torch.zeros_like(gradient)).add_(gradient).clone()


def gradients_added_up(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Add each gradient of the values to those of the calls before, in a buffer kept for a shape."""
    return fused(q, k, Summed.apply(v))  # type: ignore[no-untyped-call]
