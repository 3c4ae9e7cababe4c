"""Functions of `model/` with a part that may be put in another way: what planted faults are made of."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from perf_tests_suite.model.regions import region
from perf_tests_suite.model.training import MAX_GRADIENT_NORM
from perf_tests_suite.numerics_tests.harness.planting import Wrong

Map = Callable[[Any], Any]
SOFTMAX, NAIVE, SDPA = "attention.softmax", "attention.naive_attention", "attention.sdpa_attention"
TABLES, TURN = "transformer.RotaryEmbedding.__init__", "transformer.RotaryEmbedding.forward"
NORM, LINEAR, EMBED = "transformer.RMSNorm.forward", "transformer.Linear.forward", "transformer.Embedding.forward"
SWIGLU, BLOCK, MODEL = "transformer.SwiGLU.forward", "transformer.Block.forward", "transformer.TransformerLM.forward"
BLOCKS, LOSS, TRAINING = "transformer.run_blocks", "training.cross_entropy", "training.Training."
UPDATE, STEP, FORWARD, BACKWARD = (f"{TRAINING}{name}" for name in ("update", "step", "forward", "backward"))
MADE, STATE = f"{TRAINING}__init__", f"{TRAINING}create_optimizer_state"


def causal(distance: Tensor) -> Tensor:
    return distance >= 0


def window(width: int) -> Map:
    """A mask that sees the last `width` keys alone."""
    return lambda distance: causal(distance) & (distance < width)


def naive(
    scale: Callable[[Tensor], float] = lambda q: 1 / math.sqrt(q.shape[-1]),
    visible: Map = causal,
    hidden: float = -math.inf,
    softmax: Map = lambda scores: torch.softmax(scores, -1),
    scored: Callable[[Tensor, Tensor], Tensor] = lambda q, k: q @ k.mT,
) -> Wrong:
    """Plant attention by another scale of scores, mask of (query - key), hidden score, softmax or product."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *of_its_own: Any) -> Tensor:
        place = torch.arange(q.shape[-2], device=q.device)
        scores = scored(q, k) * scale(q)
        weights: Tensor = softmax(torch.where(visible(place[:, None] - place), scores, hidden)) @ v
        return weights

    return lambda real: attend


def fused(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Wrong:
    """Plant another fused attention; without heads it gets one."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.ndim == 3:
            return attend(q[:, None], k[:, None], v[:, None])[:, 0]
        return change(q, k, v)

    return lambda real: attend


def of_attention(change: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> Wrong:
    """Plant attention made of the right one: `change(attend, q, k, v)`."""
    return lambda real: lambda q, k, v, *more: change(lambda *given: real(*given, *more), q, k, v)


def with_gradient(change: Map) -> Map:
    """The same tensor, whose gradient is changed on its way back."""

    def hooked(x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x
        y = x * 1
        y.register_hook(change)
        return y

    return hooked


def from_place(start: int, change: Map, dim: int = -2) -> Map:
    """The tensor with a change from one place of a dimension on."""

    def changed(x: Tensor) -> Tensor:
        if x.shape[dim] <= start:
            return x
        return torch.cat((x.narrow(dim, 0, start), change(x.narrow(dim, start, x.shape[dim] - start))), dim)

    return changed


def first_repeated(most: int, dim: int) -> Map:
    """The first `most` places of a dimension, again and again."""
    return lambda x: x.index_select(dim, torch.arange(x.shape[dim], device=x.device) % most)


def rotary_tables(change: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """Plant rotary tables of other angles: `change(frequencies, positions)` gives (T, P)."""

    def made(real: Any) -> Any:
        def make(self: Any, head_dim: int, context_length: int, theta: float = 10_000.0) -> None:
            real(self, head_dim, context_length, theta)
            frequency = theta ** -(torch.arange(0, head_dim, 2) / head_dim)
            angle = change(frequency, torch.arange(context_length))
            self.cos_TK = angle.cos().float().repeat_interleave(2, -1)
            sign = torch.tensor([-1.0, 1.0]).repeat(head_dim // 2)
            self.signed_sin_TK = angle.sin().float().repeat_interleave(2, -1) * sign

        return make

    return made


def turned(change: Callable[[Any, Any, Tensor], Tensor]) -> Wrong:
    """Plant rotary embedding made of the right one: `change(turn, module, x)`."""
    return lambda real: lambda self, x: change(real, self, x)


def turn_by(self: Any, x: Tensor, rows: slice) -> Tensor:
    """Turn by these rows of the tables."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    swapped = torch.stack((second, first), -1).flatten(-2)
    return swapped * self.signed_sin_TK[rows] + x * self.cos_TK[rows]


def inverse_root(x: Tensor, eps: float) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def norm(
    inverse: Callable[[Tensor, float], Tensor] = inverse_root, weight: Map = lambda w: w, wide: Map = Tensor.float
) -> Wrong:
    """Plant RMSNorm by another inverse root of (x, eps), with other weights, or computed in another format."""
    return lambda real: lambda self, x: (weight(self.weight_D) * (wide(x) * inverse(wide(x), self.eps))).to(x.dtype)


def linear(product: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """Plant a matrix by another product of (x, weight)."""
    return lambda real: lambda self, x: product(x, self.weight_OI)


def swiglu(gated: Map, hidden: Callable[[Tensor, Tensor], Tensor] = lambda g, h: g * h) -> Wrong:
    """Plant the feed-forward layer with another function of its gate, or another meeting of gate and input."""
    return lambda real: lambda self, x: self.down(hidden(gated(self.gate(x)), self.up(x)))


def block(add: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """Plant a block that adds to the residual stream in another way."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with region(self.region):
            x = add(x, self.attention(self.attention_norm(x)))
            return x + self.feed_forward(self.feed_forward_norm(x))

    return lambda real: forward


def model(groups: Callable[[list[Any], int], list[Any]] = lambda parts, size: parts, embedded: Map = lambda x: x,
          run: Callable[[Sequence[Any], Tensor], Tensor] | None = None) -> Wrong:  # fmt: skip
    """Plant a model that runs other groups of blocks, given theirs and their size, or has another first stream."""

    def one_by_one(blocks: Sequence[Any], x: Tensor) -> Tensor:
        for each in blocks:
            x = each(x)
        return x

    def forward(self: Any, tokens: Tensor) -> Tensor:
        x, blocks, size = embedded(self.embedding(tokens)), list(self.blocks), self.blocks_per_group
        if size:
            for part in groups([blocks[start : start + size] for start in range(0, len(blocks), size)], size):
                x = recomputed(run or one_by_one, part, x, use_reentrant=False)
        else:
            x = (run or one_by_one)(blocks, x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    return lambda real: forward


def clip_all(parameters: Sequence[nn.Parameter], foreach: bool | None) -> None:
    nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM, foreach=foreach)


def update(
    clip: Callable[[Sequence[nn.Parameter], bool | None], None] = clip_all,
    before: Map = lambda parameters: None,
    unscale: bool = True,
    step: Map = lambda training: training.scaler.step(training.optimizer),
    rescale: Map = lambda scaler: scaler.update(),
) -> Wrong:
    """Plant an update with another clipping, step or change of the scale, or with something before it."""

    def of_training(self: Any) -> None:
        parameters = list(self.model.parameters())
        before(parameters)
        if unscale:
            self.scaler.unscale_(self.optimizer)
        clip(parameters, self.optimizer_implementation != "loop")
        step(self)
        rescale(self.scaler)

    return lambda real: of_training


def losses(change: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """Plant a loss made of the losses of tokens (B, T) and float32 logits."""

    def of_logits(logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.float()
        return change(logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0], logits)

    return lambda real: of_logits


def embedding(rows: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """Plant another look-up of (tokens, table)."""
    return lambda real: lambda self, tokens: rows(tokens, self.weight_VD)


def full_step(
    order: Sequence[str] = ("before-forward", "forward", "after-forward", "backward", "before-step", "update"),
    inside: Callable[[Any], Any] = lambda training: region("full_step"),
) -> Wrong:
    """Plant a training step whose parts come in another order; a moment clears gradients where it is the chosen one."""

    def step(self: Any, tokens: Tensor, targets: Tensor, mark: Map = lambda part: None) -> Tensor:
        loss = tokens.new_zeros((), dtype=torch.float32)
        with inside(self):
            for part in order:
                if part == "forward":
                    loss = self.loss(self.forward(tokens), targets)
                elif part == "backward":
                    self.backward(loss)
                elif part == "update":
                    self.update()
                elif self.zero_grad == part:
                    self.clear_gradients()
        return loss.detach()

    return lambda real: step
