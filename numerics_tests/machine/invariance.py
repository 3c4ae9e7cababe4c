"""Which results keep their bits when what stands beside them changes: more rows in the batch, more tokens behind.

PyTorch promises neither ("Numerical accuracy", batched computations); a kernel may cut its work differently at another
size. Serving and reinforcement learning need it: He et al., "Defeating Nondeterminism in LLM Inference", 2025.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.model.attention import AttentionFunction
from perf_tests_suite.model.transformer import RMSNorm
from perf_tests_suite.numerics_tests.machine.environment import device

Subject = Callable[[Tensor], Tensor]
"""(B, T, ...) to (B, T, ...); a row does not depend on other rows, nor a token on later ones."""

BATCHES = (1, 2, 3, 4, 8, 16, 33, 64)
KEPT_TOKENS = 8
LENGTHS = (KEPT_TOKENS, 9, 12, 16, 31, 32, 64, 128)
"""A sequence of `KEPT_TOKENS`, and the same with more behind it."""

LEGEND = f"""
Sizes between two bars give equal bits. rows: batches of single tokens; batch: of {KEPT_TOKENS} tokens;
prefix: {KEPT_TOKENS} tokens as the start of more; padding: {KEPT_TOKENS} tokens and zeros behind them."""

WIDTH, HEADS = 256, 4


def by_heads(attention: AttentionFunction, x: Tensor) -> Tensor:
    """Attention of x (B, T, D) to itself, with `HEADS` heads."""
    heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    return attention(heads, heads, heads).transpose(1, 2).flatten(2)


def subjects(dtype: torch.dtype) -> dict[str, Subject]:
    """The layers of a Transformer but attention on inputs of width `WIDTH`, with weights drawn from a seed."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(192, WIDTH, generator=generator).to(device(), dtype)
    norm = RMSNorm(WIDTH).to(device())
    return {
        "F.linear": lambda x: F.linear(x, weight),
        "matmul": lambda x: x @ weight.T,
        "RMSNorm": norm,
        "F.layer_norm": lambda x: F.layer_norm(x, (WIDTH,)),
        "softmax": lambda x: x.softmax(-1),
    }


def inputs(dtype: torch.dtype) -> Tensor:
    """Random (64, 128, D)."""
    shape = (max(BATCHES), max(LENGTHS), WIDTH)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device(), dtype)


def result(subject: Subject, x: Tensor, backward: bool) -> Tensor:
    """The first `KEPT_TOKENS` of row 0: of the output, or of the gradient of x by a loss of those tokens."""
    if not backward:
        return subject(x)[0, :KEPT_TOKENS].detach()
    leaf = x.detach().requires_grad_()
    output = subject(leaf)
    upstream = torch.zeros_like(output)
    upstream[:, :KEPT_TOKENS] = 1 / torch.arange(1, output.shape[-1] + 1, device=x.device)
    (gradient,) = torch.autograd.grad(output, leaf, upstream)
    return gradient[0, :KEPT_TOKENS]


def padded(x: Tensor, length: int) -> Tensor:
    """The first `KEPT_TOKENS` of row 0, and zeros (for tokens: token 0) up to `length`."""
    made = x[:1, :length].clone()
    made[:, KEPT_TOKENS:] = 0
    return made


def groups(sizes: Iterable[int], run: Callable[[int], Tensor]) -> list[list[int]]:
    """The sizes whose results have equal bits stand together, in their order."""
    found: list[tuple[Tensor, list[int]]] = []
    for size in sizes:
        bits = run(size)
        for known, members in found:
            if torch.equal(known, bits):
                members.append(size)
                break
        else:
            found.append((bits, [size]))
    return [members for _, members in found]


def map_of(subject: Subject, x: Tensor, backward: bool, lengths: Sequence[int] = LENGTHS) -> dict[str, list[list[int]]]:
    """Return, by what changes beside row 0, the sizes at which its bits are the same."""
    return {
        "rows": groups(BATCHES, lambda size: result(subject, x[:size, :1], backward)),
        "batch": groups(BATCHES, lambda size: result(subject, x[:size, :KEPT_TOKENS], backward)),
        "prefix": groups(lengths, lambda length: result(subject, x[:1, :length], backward)),
        "padding": groups(lengths, lambda length: result(subject, padded(x, length), backward)),
    }


def written(found: dict[str, list[list[int]]]) -> str:
    """`batch 1 to 3 | 4 to 64, ...`: a bar stands between sizes whose bits differ."""
    sizes = {kind: sorted(size for members in of for size in members) for kind, of in found.items()}
    return ", ".join(f"{kind} {' | '.join(_ranges(of, sizes[kind]))}" for kind, of in found.items())


def _ranges(of: list[list[int]], sizes: list[int]) -> list[str]:
    def is_run(members: list[int]) -> bool:
        first = sizes.index(members[0])
        return members == sizes[first : first + len(members)]

    return [
        f"{members[0]} to {members[-1]}" if len(members) > 1 and is_run(members) else " ".join(map(str, members))
        for members in of
    ]
