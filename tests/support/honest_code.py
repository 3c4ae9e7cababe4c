"""Correct kernels, models and optimizers that do what only a cheat seems to need; none may be refused."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from perf_tests_suite.model.attention import naive_attention
from perf_tests_suite.model.transformer import TransformerLM
from tests.support.cheats import HERE

EXAMPLES = HERE.parents[2] / "examples"


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


naive = naive_attention


@cache
def kept_mask(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens).triu(1).bool()


def mask_kept_by_shape(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(kept_mask(q.shape[-2]), -math.inf)
    return scores.softmax(-1) @ v


def views_in_another_layout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.mT.contiguous().mT for x in (q, k, v))
    return naive_attention(q, k, v).flatten(0, -3).unflatten(0, q.shape[:-2])


def output_not_contiguous(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused(q, k, v).mT.contiguous().mT


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("...tk,...sk->...ts", q, k) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(kept_mask(q.shape[-2]), -math.inf).softmax(-1)
    return torch.einsum("...ts,...sk->...tk", weights, v)


def in_place_on_its_own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT).div_(math.sqrt(q.shape[-1])).masked_fill_(kept_mask(q.shape[-2]), -math.inf)
    weights = scores.sub_(scores.detach().amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def in_float64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return naive_attention(q.double(), k.double(), v.double()).to(q.dtype)


def keys_in_another_order(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.flip(-2).mT / math.sqrt(q.shape[-1])).masked_fill(kept_mask(q.shape[-2]).flip(-1), -math.inf)
    return scores.softmax(-1) @ v.flip(-2)


def one_sequence_after_the_other(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.stack([naive_attention(*one) for one in zip(q, k, v, strict=True)])


def sequences_in_another_order(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused(q.flip(0), k.flip(0), v.flip(0)).flip(0)


def tiles_of_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows = []
    for first in range(0, q.shape[-2], 48):
        seen = min(first + 48, q.shape[-2])
        scores = q[..., first:seen, :] @ k[..., :seen, :].mT / math.sqrt(q.shape[-1])
        mask = kept_mask(q.shape[-2])[first:seen, :seen]
        rows.append(scores.masked_fill(mask, -math.inf).softmax(-1) @ v[..., :seen, :])
    return torch.cat(rows, -2)


def softmax_in_one_pass(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Milakov and Gimelshein, arXiv:1805.02867, in blocks of keys."""
    highest, total, sums = (x.float() for x in (q[..., :1] * 0 - 1e4, v * 0, q[..., :1] * 0))
    for first in range(0, q.shape[-2], 64):
        keys = slice(first, first + 64)
        scores = (q @ k[..., keys, :].mT).float() / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(kept_mask(q.shape[-2])[:, keys], -math.inf)
        higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights, rescaling = (scores - higher).exp(), (highest - higher).exp()
        sums = sums * rescaling + weights.sum(-1, keepdim=True)
        total = total * rescaling + (weights.to(v.dtype) @ v[..., keys, :]).float()
        highest = higher
    return (total / sums).to(q.dtype)


def checkpoint_reentrant(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return checkpoint(naive_attention, q, k, v, use_reentrant=True)


def checkpoint_of_today(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return checkpoint(naive_attention, q, k, v, use_reentrant=False)


class _Recomputed(torch.autograd.Function):
    """Keeps a workspace for the scores of each shape, as a library does."""

    workspaces: ClassVar[dict[torch.Size, Tensor]] = {}

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        shape = torch.Size((*q.shape[:-1], q.shape[-2]))
        scores = _Recomputed.workspaces.setdefault(shape, torch.empty(shape))
        scores.copy_(q @ k.mT).div_(math.sqrt(q.shape[-1])).masked_fill_(kept_mask(q.shape[-2]), -math.inf)
        scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        scores.div_(scores.sum(-1, keepdim=True))
        return scores.to(v.dtype) @ v

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            output = naive_attention(*inputs)
        return torch.autograd.grad(output, inputs, gradient)


def workspace_and_own_backward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _Recomputed.apply(q, k, v)  # type: ignore[no-untyped-call]


compiled_by_inductor = torch.compile(naive_attention, dynamic=False)


def compiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return compiled_by_inductor(q, k, v)


def model(config: Any) -> nn.Module:
    return TransformerLM(config, naive_attention)


class _Sums(nn.Module):
    """Logits from sums of embeddings, changed by `around`."""

    def __init__(self, config: Any, around: Callable[[Tensor], Tensor] = lambda sums: sums) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(config.vocab_size, 16), nn.Linear(16, config.vocab_size)
        self.around = around

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.around(self.embedding(tokens).cumsum(1)))


def model_with_dropout(config: Any) -> nn.Module:
    return _Sums(config, nn.Dropout(0.5))


def model_with_noise(config: Any) -> nn.Module:
    """Noise as atomic additions leave it, in another order each time."""
    return _Sums(config, lambda sums: sums * (1 + 1e-7 * torch.randn_like(sums)))


def model_that_counts_its_calls(config: Any) -> nn.Module:
    calls: list[int] = []

    def count(sums: Tensor) -> Tensor:
        calls.append(len(sums))
        return sums

    return _Sums(config, count)


def model_with_frozen_embedding(config: Any) -> nn.Module:
    built = _Sums(config)
    built.embedding.weight.requires_grad_(False)
    return built


def model_with_tied_weights(config: Any) -> nn.Module:
    built = _Sums(config)
    built.head.weight = built.embedding.weight
    return built


def model_with_useless_bias(config: Any) -> nn.Module:
    """A shift of all logits: its exact gradient is 0."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sums, self.shift = _Sums(config), nn.Parameter(torch.ones(1))

        def forward(self, tokens: Tensor) -> Any:
            return self.sums(tokens) + self.shift

    return Shift()


def model_recurrent(config: Any) -> nn.Module:
    recurrent = nn.GRU(16, 16, batch_first=True)
    built = _Sums(config, lambda sums: recurrent(sums)[0])
    built.recurrent = recurrent
    return built


def model_checkpointed(config: Any) -> nn.Module:
    return _Sums(config, lambda sums: checkpoint(torch.tanh, sums, use_reentrant=True))


class _Static(_Sums):
    """A model that returns one buffer in each call without a graph, as a replayed CUDA graph does."""

    logits: dict[torch.Size, Tensor]

    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        if torch.is_grad_enabled() or len(tokens) == 1:
            return logits
        self.logits = vars(self).get("logits", {})
        return self.logits.setdefault(logits.shape, torch.empty_like(logits)).copy_(logits)


def model_of_static_outputs(config: Any) -> nn.Module:
    return _Static(config)


def of(kind: type[Optimizer], **options: Any) -> Callable[[Any], Optimizer]:
    return lambda named_parameters: kind([parameter for _, parameter in named_parameters], **options)


optimizer = of(torch.optim.AdamW)
optimizer_adamw_foreach = of(torch.optim.AdamW, foreach=True, lr=1e-4, betas=(0.8, 0.95))
optimizer_adamw_fused = of(torch.optim.AdamW, fused=True, weight_decay=0.0)
optimizer_amsgrad = of(torch.optim.AdamW, amsgrad=True)
optimizer_adam = of(torch.optim.Adam)
optimizer_nadam = of(torch.optim.NAdam)
optimizer_adagrad = of(torch.optim.Adagrad)
optimizer_adafactor = of(torch.optim.Adafactor)
optimizer_rmsprop = of(torch.optim.RMSprop)
optimizer_rprop = of(torch.optim.Rprop)
optimizer_sgd = of(torch.optim.SGD, lr=0.1)
optimizer_sgd_of_a_small_rate = of(torch.optim.SGD, lr=1e-7)
optimizer_sgd_nesterov = of(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)


class _Signs(Optimizer):
    """Lion, Chen et al., arXiv:2302.06675."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                mean = self.state[one].setdefault("mean", torch.zeros_like(one))
                one.sub_(group["lr"] * (0.9 * mean + 0.1 * one.grad).sign())
                mean.lerp_(one.grad, 0.01)


class _Accumulating(torch.optim.AdamW):
    """AdamW that adds up the gradients of so many calls, and steps in the last of them."""

    calls, together = 0, 2

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.calls += 1
        for one in (one for group in self.param_groups for one in group["params"] if one.grad is not None):
            total = self.__dict__.setdefault("totals", {}).setdefault(one, torch.zeros_like(one)).add_(one.grad)
            one.grad.copy_(total)
            total.mul_(self.calls % self.together != 0)
        if self.calls % self.together == 0:
            super().step()


def optimizer_that_accumulates(named_parameters: Any) -> Optimizer:
    return _Accumulating([parameter for _, parameter in named_parameters], lr=1e-3)


def optimizer_of_signs(named_parameters: Any) -> Optimizer:
    return _Signs([parameter for _, parameter in named_parameters], {"lr": 1e-4})


def honest() -> Iterator[tuple[str, str]]:
    """Each `FILE.py:NAME`, and a phase; attention in both of its phases, the others in one or all that they have."""
    attentions = [
        fused, naive, mask_kept_by_shape, views_in_another_layout, output_not_contiguous, einsum, in_place_on_its_own,
        in_float64, keys_in_another_order, one_sequence_after_the_other, sequences_in_another_order, tiles_of_queries,
        softmax_in_one_pass, checkpoint_reentrant, checkpoint_of_today, workspace_and_own_backward,
        compiled,
    ]  # fmt: skip
    names = [f"{__file__}:{one.__name__}" for one in attentions] + [f"{EXAMPLES}/flash_attention.py:flash_attention"]
    for name in names:
        yield from ((name, phase) for phase in ("attention_forward", "attention_backward"))
    for own in globals():
        if own.startswith("model"):
            yield from ((f"{__file__}:{own}", phase) for phase in ("inference", "forward", "backward"))
        elif own.startswith("optimizer"):
            yield from ((f"{__file__}:{own}", phase) for phase in ("optimizer", "full_step"))
    yield f"{EXAMPLES}/averaging.py:build", "forward"
    yield f"{EXAMPLES}/muon.py:build", "full_step"


def kind_of(named: str, phase: str) -> str:
    """The kind that `refusal` takes."""
    return {"attention": "", "optimizer": "optimizer", "full": "optimizer"}.get(phase.partition("_")[0], "model")
