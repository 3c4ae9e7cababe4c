"""How torch.compile is called, and where it has nothing to generate code with."""

import importlib.util
import shutil
import sys
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
