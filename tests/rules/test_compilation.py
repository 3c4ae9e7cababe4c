"""How torch.compile is called, where it has nothing to generate code with, and the attention that needs it."""

import importlib.util
import shutil
import sys
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from model import attention
from model.attention import ATTENTION, naive_attention
from model.compilation import compiled, forget_compiled, why_cannot_compile


def test_no_dimension_turns_dynamic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", made := Mock())
    assert compiled(abs) is made.return_value
    made.assert_called_once_with(abs, dynamic=False, mode="default")
    compiled(abs, "reduce-overhead")
    made.assert_called_with(abs, dynamic=False, mode="reduce-overhead")


def test_the_compiled_attention_is_the_naive_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "compiled", made := Mock())
    assert ATTENTION["compiled"].build() is made.return_value
    made.assert_called_once_with(naive_attention)
    assert [name for name, known in ATTENTION.items() if known.is_compiled] == ["compiled", "flex"]


@pytest.mark.parametrize("has_compiled", [True, False])
def test_graphs_are_dropped_where_any_were_made(monkeypatch: pytest.MonkeyPatch, has_compiled: bool) -> None:
    reset = Mock()
    monkeypatch.setattr(torch.compiler, "reset", reset)
    monkeypatch.setitem(sys.modules, "torch._dynamo", Mock())
    if not has_compiled:
        monkeypatch.delitem(sys.modules, "torch._dynamo")
    forget_compiled()
    assert reset.called == has_compiled


@pytest.mark.parametrize(
    "device, compiler, installed, missing",
    [
        ("cuda", None, {"triton"}, None),
        ("cuda", None, {"g++"}, "triton"),
        ("cpu", None, {"g++"}, None),
        ("cpu", "clang++", {"clang++"}, None),
        ("cpu", "clang++", {"g++", "triton"}, "'clang++'"),
        ("cpu", None, set(), "'g++'"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, device: str, compiler: str | None, installed: set[str], missing: str | None
) -> None:
    """The compiler is that of CXX, g++ without it."""
    monkeypatch.delenv("CXX", raising=False)
    if compiler is not None:
        monkeypatch.setenv("CXX", compiler)
    for module, function in ((importlib.util, "find_spec"), (shutil, "which")):
        monkeypatch.setattr(module, function, lambda name: name if name in installed else None)
    reason = why_cannot_compile(torch.device(device))
    assert (reason is None) == (missing is None)
    assert (missing or "") in (reason or "")


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_alone(function: Any) -> Any:
        return function

    monkeypatch.setattr(attention, "compiled", leave_alone)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("shape", [(2, 130, 16), (2, 3, 130, 16)], ids=["alone", "heads"])
def test_flex_is_causal_attention(shape: tuple[int, ...], uncompiled: None) -> None:
    """130 tokens: two blocks of the mask, the second all but empty."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    flex = ATTENTION["flex"].build()
    assert torch.allclose(flex(q, k, v), naive_attention(q, k, v), rtol=0, atol=1e-12)


def test_flex_gets_one_dtype_and_a_mask_where_the_queries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast leaves queries and keys in float32; flex_attention refuses mixed dtypes only where it is compiled."""
    attend, make_mask = Mock(), Mock()
    monkeypatch.setattr(attention, "compiled", lambda _: attend)
    monkeypatch.setattr(attention, "create_block_mask", make_mask)
    q = torch.empty(1, 2, 130, 16, device="meta")
    ATTENTION["flex"].build()(q, q, q.bfloat16())
    assert [tensor.dtype for tensor in attend.call_args.args] == 3 * [torch.bfloat16]
    assert attend.call_args.kwargs == {"block_mask": make_mask.return_value}
    assert make_mask.call_args.args[3:] == (130, 130)
    assert make_mask.call_args.kwargs == {"device": "meta"}


def test_what_compiles_runs_where_code_can_be_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the least head width on."""
    monkeypatch.setattr(attention, "why_cannot_compile", lambda device: f"no compiler on {device}")
    for name in ("flex", "compiled"):
        assert ATTENTION[name].why_unavailable(torch.device("cuda"), 16) == "no compiler on cuda"


def test_flex_says_where_it_does_not_run() -> None:
    assert "no backward pass on cpu" in str(ATTENTION["flex"].why_unavailable(torch.device("cpu"), 64))
    assert "at least 16" in str(ATTENTION["flex"].why_unavailable(torch.device("cuda"), 8))
