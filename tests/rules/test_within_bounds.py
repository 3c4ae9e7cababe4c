"""A kernel of the user's is held to its bound: wrong ones are refused in units in the last place, right ones not."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from perf_tests_suite.model.attention import naive_attention, softmax, softmax_attention
from perf_tests_suite.model.training import cross_entropy
from perf_tests_suite.numerics_tests import within_bounds
from perf_tests_suite.numerics_tests.harness import within
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


def faults() -> Iterator[tuple[str, str, Kernel]]:
    for fault in (*layers.FAULTS, *training.FAULTS):
        if kind := KIND_OF.get(fault.caught_by):
            yield fault.name, kind, stepped(fault.implementation) if kind == "adamw" else fault.implementation


FAULTS = [fault for fault in faults() if fault[0] != "rotary that casts back"][:40]
"""The one left out is none here: the result of a kernel may be in 16 bits."""
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


def test_forty_faults_are_refused_and_twenty_honest_kernels_are_not() -> None:
    """Printed with -s, beside torch.testing.assert_close: its default tolerances refuse what is right too."""
    counted: dict[str, list[int]] = {}
    for title, kernels in (("fault", FAULTS), ("honest", HONEST)):
        refused = [[refuses(judge, kind, kernel) for judge in (within_bounds, close)] for _, kind, kernel in kernels]
        for (name, kind, _), ends in zip(kernels, refused, strict=True):
            words = ("refused" if end else "accepted" for end in ends)
            print(f"{title:7} {kind:14} {name:45}", *(f"{word:9}" for word in words))
        counted[title] = [sum(column) for column in zip(*refused, strict=True)]
    print(f"refused by within_bounds and by assert_close: {counted}")
    assert (len(FAULTS), len(HONEST)) == (40, 20)
    assert (counted["fault"][0], counted["honest"][0]) == (40, 0)
    assert counted["honest"][1] > 0


def test_a_refusal_says_the_error_in_units_in_the_last_place_and_where() -> None:
    x, weight = torch.ones(4, 20, dtype=torch.bfloat16), torch.ones(20)
    got = model_rms_norm(x, weight, 1e-5)
    within_bounds("rms_norm", {"x": x, "weight": weight}, got)
    got[3, 17] += 4 * 2.0**-7
    told = "8 ulp at [3, 17], allowed 2 (rms_norm in bfloat16, 1 of 80 outside): got 1.03125, float64 says 0.999995."
    with pytest.raises(AssertionError, match=f"^{re.escape(told)}$"):
        within_bounds("rms_norm", [x, weight], got)


@pytest.mark.parametrize(
    ("kernel", "inputs", "words"),
    [
        ("rmsnorm", {}, "kernel 'rmsnorm' is unknown; choose matmul, softmax, rms_norm"),
        ("rms_norm", {"x": torch.ones(2)}, "rms_norm takes x, weight, eps; missing a required argument: 'weight'."),
        ("softmax", [torch.ones(2), 1], "softmax takes x; too many positional arguments."),
        ("rotary", {"x": torch.ones(1, 2), "pairs": "odd"}, "pairs is 'odd'; it must be neighbours or halves."),
    ],
)
def test_what_it_does_not_take_is_refused_in_one_sentence(kernel: str, inputs: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        within_bounds(kernel, inputs, torch.ones(2))


def test_another_shape_and_what_is_no_number_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"gives shape \(3,\), float64 gives \(2,\)"):
        within_bounds("softmax", [torch.zeros(2)], torch.zeros(3))
    with pytest.raises(AssertionError, match="got nan"):
        within_bounds("softmax", [torch.zeros(2)], torch.tensor([0.5, torch.nan]))


def test_halves_are_the_other_convention_of_pairs() -> None:
    """Feature i and i + K / 2, as published Llama weights have them: the same turn of features in another order."""
    x = torch.randn(30, 8)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    got = model_rotary(x[:, order])[:, order.argsort()]
    within_bounds("rotary", {"x": x, "pairs": "halves"}, got)
    with pytest.raises(AssertionError, match="ulp"):
        within_bounds("rotary", [x], got)


def test_units_in_the_last_place_are_distances_to_the_next_number() -> None:
    x = torch.tensor([1.0, 1.5, 2.0, 0.0, 2.0**-14, 2.0**-30], dtype=torch.float64)
    expected = torch.tensor([2.0**-10, 2.0**-10, 2.0**-9, 2.0**-24, 2.0**-24, 2.0**-24], dtype=torch.float64)
    assert torch.equal(within.units_in_the_last_place(x, torch.float16), expected)
