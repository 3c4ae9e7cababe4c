"""Small stand-ins for models of public repositories, each with what it does that a suite trips over."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perf_tests_suite.model.sizes import ModelConfig


class Attention(nn.Module):
    """Causal self-attention by PyTorch's fused one; with `mask_TT` the mask is given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, mask_TT: Tensor | None = None) -> Tensor:
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in self.qkv(x_BTD).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_TT, is_causal=mask_TT is None)
        return self.out(out.transpose(1, 2).flatten(-2))


class NanoGpt(nn.Module):
    """karpathy/nanoGPT: ties weights, prints as it is built, and returns a pair whose logits are of all positions only
    with targets.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.wte, self.wpe = (nn.Embedding(n, config.d_model) for n in (config.vocab_size, config.context_length))
        self.attn = Attention(config.d_model, config.num_heads)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, parameter in self.named_parameters():
            if name.endswith("out.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * config.num_layers))
        print(f"number of parameters: {sum(p.numel() for p in self.parameters()) / 1e6:.2f}M")

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        x = x + self.attn(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class NanoGptOfAllPositions(NanoGpt):
    """Give all logits: a user writes it so for the suite."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return super().forward(idx, idx)


class Trunk(nn.Module):
    """Embedding, attention and head of a model whose loss is its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.d_model)
        self.attn = Attention(config.d_model, config.num_heads)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.wte(tokens)
        return x + self.attn(x)


class LossInChunks(Trunk):
    """Liger, torchtitan: head and loss in one, a few rows at a time, so that the logits never exist as a whole."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        rows = zip(self.hidden(tokens).flatten(0, 1).split(4), labels.flatten().split(4), strict=True)
        return (
            torch.stack([F.cross_entropy(self.lm_head(x), y, reduction="sum") for x, y in rows]).sum() / labels.numel()
        )


class LossOfPytorch(Trunk):
    """The same by PyTorch's own function, in chunks."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        # No public name shows a type checker what torch before 2.13 lacks.
        options = vars(torch.nn.modules)["linear_cross_entropy_options"].LinearCrossEntropyOptions()
        x, weight = self.hidden(tokens).flatten(0, 1), self.lm_head.weight
        return vars(F)["linear_cross_entropy"](x, weight, labels.flatten(), options=options)


class LossFirst(Trunk):
    """The trainer's order: the loss, then the logits."""

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.lm_head(self.hidden(tokens))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


@dataclass
class CausalLMOutput:
    """transformers: an object whose logits may be missing."""

    loss: Tensor | None = None
    logits: Tensor | None = None


class LossInAnObject(LossInChunks):
    """A trainer of transformers with Liger: logits without labels, of labels the loss alone."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Any:
        return CausalLMOutput(loss=super().forward(tokens, labels))


class LossOfTheFuture(LossFirst):
    """Sees later tokens, which its logits show."""

    def hidden(self, tokens: Tensor) -> Tensor:
        return super().hidden(tokens) + super().hidden(tokens.flip(1)).flip(1)


class LossOfEach(LossFirst):
    """A loss for each token."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Any:
        return super().forward(tokens, labels)[1].logsumexp(-1)


class LossOfNan(LossInChunks):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return super().forward(tokens, labels) * torch.nan


class LossOfHalf(LossInChunks):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return super().forward(tokens, labels).half()


class Cs336Basics(nn.Module):
    """stanford-cs336: every weight is drawn by `trunc_normal_`, attention is op by op with a mask of its own."""

    embedding: nn.Parameter
    q: nn.Parameter
    head: nn.Parameter
    mask: Tensor

    def __init__(self, vocab_size: int, context_length: int, d_model: int) -> None:
        super().__init__()
        sizes = {"embedding": (vocab_size, d_model), "q": (d_model,) * 2, "head": (vocab_size, d_model)}
        for name, size in sizes.items():
            drawn = nn.init.trunc_normal_(torch.empty(size), std=0.02, a=-0.06, b=0.06)
            self.register_parameter(name, nn.Parameter(drawn))
        self.register_buffer("mask", torch.tril(torch.ones(context_length, context_length, dtype=torch.bool)))

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embedding)
        q = x @ self.q
        scores = (q @ x.mT).masked_fill(~self.mask[: tokens.shape[1], : tokens.shape[1]], float("-inf"))
        return (scores.softmax(-1) @ x) @ self.head.mT


class Nanochat(nn.Module):
    """karpathy/nanochat: built on the meta device, filled later, with rotary tables that are converted on the way.

    Its blocks begin as nothing: their projections are zero.
    """

    cos: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        with torch.device("meta"):
            self.wte = nn.Embedding(config.vocab_size, config.d_model)
            self.attn = Attention(config.d_model, config.num_heads)
            self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.to_empty(device="cpu")
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)
        nn.init.zeros_(self.attn.out.weight)
        nn.init.zeros_(self.attn.out.bias)
        self.wte.to(dtype=torch.bfloat16).to(dtype=torch.float32)
        angle_TD = torch.arange(config.context_length)[:, None] / 1e4 ** (torch.arange(config.d_model) / config.d_model)
        self.register_buffer("cos", angle_TD.cos().bfloat16(), persistent=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = F.rms_norm(self.wte(idx), (self.wte.embedding_dim,)) * self.cos[: idx.shape[1]].float()
        return 15 * torch.tanh(self.lm_head(x + self.attn(x)).float() / 15)


class NanochatOfTheFuture(Nanochat):
    """Sees later tokens, once its projections are no zeros."""

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx)
        return self.lm_head(x + self.attn(x) + self.attn(x.flip(1)).flip(1))


class GptFast(nn.Module):
    """pytorch-labs/gpt-fast: indexes a mask that it keeps, and wants positions."""

    causal_mask: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.d_model)
        self.attention = Attention(config.d_model, config.num_heads)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        square = torch.ones(config.context_length, config.context_length, dtype=torch.bool)
        self.register_buffer("causal_mask", square.tril(), persistent=False)

    def forward(self, idx: Tensor, input_pos: Tensor | None = None) -> Tensor:
        input_pos = torch.arange(idx.shape[1], device=idx.device) if input_pos is None else input_pos
        return self.output(self.attention(self.tok_embeddings(idx), self.causal_mask[None, None, input_pos]))


@dataclass
class LitConfig:
    """Lightning-AI/litgpt: a configuration of its own."""

    padded_vocab_size: int
    n_embd: int
    block_size: int


class LitGpt(nn.Module):
    """Sets its longest sequence by a property that makes its tables."""

    cos: Tensor

    def __init__(self, config: LitConfig) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(config.padded_vocab_size, config.n_embd)})
        self.attn, self.lm_head = Attention(config.n_embd, 2), nn.Linear(config.n_embd, config.padded_vocab_size)
        self.max_seq_length = config.block_size

    @property
    def max_seq_length(self) -> int:
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self._max_seq_length = value
        self.register_buffer("cos", torch.cos(torch.arange(value).float())[:, None], persistent=False)

    def forward(self, idx: Tensor) -> Tensor:
        if idx.shape[1] > self.max_seq_length:
            raise ValueError(f"Cannot forward sequence of length {idx.shape[1]}")
        return self.lm_head(self.attn(self.transformer["wte"](idx) * self.cos[: idx.shape[1]]))


class XTransformers(nn.Module):
    """lucidrains/x-transformers: masks by a finite value of the dtype, and takes options by name alone."""

    def __init__(self, *, num_tokens: int, dim: int) -> None:
        super().__init__()
        self.token_emb, self.to_logits = nn.Embedding(num_tokens, dim), nn.Linear(dim, num_tokens, bias=False)

    def forward(self, x: Tensor, *, return_embeddings: bool = False) -> Tensor:
        x = F.normalize(self.token_emb(x), dim=-1)
        dots = torch.einsum("b i d, b j d -> b i j", x, x)
        causal = torch.ones(dots.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        x = torch.einsum("b i j, b j d -> b i d", dots.masked_fill(causal, -torch.finfo(dots.dtype).max).softmax(-1), x)
        return x if return_embeddings else self.to_logits(x)


def nano_gpt(config: ModelConfig) -> nn.Module:
    return NanoGptOfAllPositions(config)


def cs336_basics(config: ModelConfig) -> nn.Module:
    return Cs336Basics(config.vocab_size, config.context_length, config.d_model)


def nanochat(config: ModelConfig) -> nn.Module:
    return Nanochat(config)


def gpt_fast(config: ModelConfig) -> nn.Module:
    return GptFast(config)


def litgpt(config: ModelConfig) -> nn.Module:
    return LitGpt(LitConfig(config.vocab_size, config.d_model, config.context_length))


def x_transformers(config: ModelConfig) -> nn.Module:
    return XTransformers(num_tokens=config.vocab_size, dim=config.d_model)
