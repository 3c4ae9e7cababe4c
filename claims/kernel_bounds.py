"""Bounds of a kernel of one's own beside `torch.testing.assert_close`, on the same wrong and right kernels."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.model.attention import naive_attention, softmax, softmax_attention
from perf_tests_suite.model.training import cross_entropy
from perf_tests_suite.numerics_tests import within_bounds
from perf_tests_suite.numerics_tests.harness.exercises import model_rms_norm
from perf_tests_suite.numerics_tests.harness.within import KERNELS
from perf_tests_suite.numerics_tests.test_feed_forward import model_swiglu
from perf_tests_suite.numerics_tests.test_optimizer import ADAMWS
from perf_tests_suite.numerics_tests.test_rotary import model_rotary
from tests.kill_matrix import layers, training

Kernel = Callable[..., Tensor]
KIND_OF = {
    "rms_norm_is_within_its_bound": "rms_norm", "layer_norm_is_within_its_bound": "layer_norm",
    "softmax_is_within_its_bound": "softmax", "loss_is_within_its_bound": "cross_entropy",
    "rotary_is_a_turn_in_the_complex_plane": "rotary", "attention_is_within_its_bound": "attention",
    "past_does_not_depend_on_the_future": "attention", "swiglu_is_within_its_running_bound": "swiglu",
    "adamw_is_within_its_bound": "adamw",
}  # fmt: skip
"""Kernels by the claims that judge them."""


def stepped(adamw: Any) -> Kernel:
    return lambda parameter, gradients: adamw(parameter, gradients, 0)


def given(kind: str, dtype: torch.dtype, size: float) -> dict[str, Any]:
    """What a user would try a kernel on: random numbers, rows and logits of a `size`, float32 weights."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, generator=generator)).to(dtype)

    row = {"x": draw(33, 64, scale=size), "weight": draw(64).float()}
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "matmul": lambda: {"a": draw(9, 130), "b": draw(130, 7)},
        "softmax": lambda: {"x": draw(9, 300, scale=4 * size)},
        "rms_norm": lambda: {**row, "eps": 1e-6},
        "layer_norm": lambda: {**row, "bias": draw(64).float(), "eps": 1e-5},
        "cross_entropy": lambda: {
            "logits": draw(40, 1000, scale=8 * size),
            "targets": torch.randint(1000, (40,), generator=generator),
        },
        "rotary": lambda: {"x": draw(200, 64)},
        "swiglu": lambda: {"x": draw(9, 32), "gate": draw(48, 32), "up": draw(48, 32), "down": draw(32, 48)},
        "attention": lambda: {"q": draw(2, 3, 70, 16), "k": draw(2, 3, 70, 16), "v": draw(2, 3, 70, 16)},
        "adamw": lambda: {"parameter": draw(300), "gradients": [draw(300, scale=1e-3) for _ in range(3)]},
    }
    return made[kind]()


TRIED = ((torch.float32, 1.0), (torch.float32, 2.0**-8), (torch.float32, 20.0), (torch.bfloat16, 1.0),
         (torch.float16, 300.0))  # fmt: skip
"""Dtypes, and sizes of rows and logits."""


def refuses(judge: Callable[[str, dict[str, Any], Tensor], object], kind: str, kernel: Kernel) -> bool:
    """Whether the result of any inputs is refused, where the kernel takes them."""
    for dtype, size in TRIED:
        inputs = given(kind, dtype, size)
        try:
            judge(kind, inputs, kernel(*inputs.values()))
        except (RuntimeError, ValueError):  # of a kernel without 16 bits
            continue
        except AssertionError:
            return True
    return False


def close(kind: str, inputs: dict[str, Any], got: Tensor) -> None:
    """PyTorch's default tolerances, against the same float64."""
    torch.testing.assert_close(got, KERNELS[kind](got.dtype, **inputs)[0].to(got.dtype))


def in_ten_bits(x: Tensor) -> Tensor:
    """Factors as TF32 takes them."""
    return (x.float().view(torch.int32) & -0x2000).view(torch.float32).to(x.dtype)


def parts_in_16_bits(a: Tensor, b: Tensor) -> Tensor:
    """A sum in two halves, each rounded before they are added."""
    half = a.shape[-1] // 2
    first, second = ((a[..., of] @ b[of]).bfloat16() for of in (slice(half), slice(half, None)))
    return (first + second).to(a.dtype)


OF_PRODUCTS: list[tuple[str, str, Kernel]] = [
    ("factors in ten bits", "matmul", lambda a, b: in_ten_bits(a) @ in_ten_bits(b)),
    ("parts rounded to 16 bits", "matmul", parts_in_16_bits),
    ("terms behind the last tile dropped", "matmul", lambda a, b: a[..., :128] @ b[:128]),
]


def faults() -> Iterator[tuple[str, str, Kernel]]:
    """Those of products, and the first five that the kill matrix has of each other kernel."""
    yield from OF_PRODUCTS
    counted: Counter[str] = Counter()
    for fault in (*layers.FAULTS, *training.FAULTS):
        kind = KIND_OF.get(fault.caught_by, "")
        counted[kind] += 1
        if kind and counted[kind] <= 5:
            yield fault.name, kind, stepped(fault.implementation) if kind == "adamw" else fault.implementation


FAULTS = list(faults())
HONEST: list[tuple[str, str, Kernel]] = [
    ("torch", "matmul", torch.matmul), ("einsum", "matmul", lambda a, b: torch.einsum("ik,kj->ij", a, b)),
    ("in float64", "matmul", lambda a, b: (a.double() @ b.double()).to(a.dtype)),
    ("model", "softmax", lambda x: softmax(x.float()).to(x.dtype)), ("torch", "softmax", lambda x: x.softmax(-1)),
    ("by its logarithm", "softmax", lambda x: x.float().log_softmax(-1).exp().to(x.dtype)),
    ("model", "rms_norm", model_rms_norm),
    ("torch", "rms_norm", lambda x, w, eps: F.rms_norm(x.float(), x.shape[-1:], w, eps).to(x.dtype)),
    ("cast before the weight", "rms_norm",
     lambda x, w, eps: (w.to(x.dtype) * model_rms_norm(x, torch.ones_like(w), eps))),
    ("torch", "layer_norm", lambda x, w, b, eps: F.layer_norm(x.float(), x.shape[-1:], w, b, eps).to(x.dtype)),
    ("model", "cross_entropy", cross_entropy), ("torch", "cross_entropy", lambda z, t: F.cross_entropy(z.float(), t)),
    ("by log_softmax", "cross_entropy", lambda z, t: F.nll_loss(z.float().log_softmax(-1), t)),
    ("model", "rotary", model_rotary), ("model, cast back", "rotary", lambda x: model_rotary(x).to(x.dtype)),
    ("model", "swiglu", model_swiglu),
    ("model", "attention", naive_attention), ("torch's softmax", "attention", softmax_attention),
    ("torch", "attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    ("torch", "adamw", stepped(ADAMWS["foreach"])),
]  # fmt: skip


def beside_assert_close() -> dict[str, float]:
    """Print what either says of each kernel; how many there are, wrong ones accepted by it, right ones refused."""
    judges = {"bounds": within_bounds, "assert_close": close}
    figures: dict[str, float] = {}
    for title, kernels, mistake in (("wrong", FAULTS, "accepted"), ("right", HONEST, "refused")):
        found = {by: [refuses(judge, kind, kernel) for _, kind, kernel in kernels] for by, judge in judges.items()}
        print(f"  {title} kernel", *found, sep="\t")
        for (name, kind, _), *ends in zip(kernels, *found.values(), strict=True):
            print(f"  {kind}: {name}", *("refused" if end else "accepted" for end in ends), sep="\t")
        figures[f"{title} kernels"] = len(kernels)
        for by, ends in found.items():
            figures[f"{title} ones {mistake} by {by}"] = ends.count(mistake == "refused")
    return figures
