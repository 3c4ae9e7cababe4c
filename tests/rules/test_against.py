"""What the gate is asked for: its default selection, and base under another option of the same revision."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perf_tests_suite.perf_tests.bench.options import OTHER_VALUES, OtherOption
from perf_tests_suite.perf_tests.cases.devices import read_settings
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.phases import LanguageModelIdentity
from tests.support.fake_cuda import FakeCuda


def settings(**typed: str) -> Settings:
    """What these options come to on a CPU."""
    options = {f"--{name.replace('_', '-')}": value for name, value in {"device": "cpu", **typed}.items()}
    return read_settings(cast(pytest.Config, SimpleNamespace(getoption=options.get)))


def test_a_gate_on_a_cpu_measures_what_any_run_does_but_of_a_model_of_two_layers() -> None:
    for typed in ({"against": "main"}, {"against_option": "attention=sdpa"}):
        assert settings().sizes == settings(size="small", **typed).sizes == ("small",)
        assert vars(settings(**typed)) == {**vars(settings()), "sizes": ("small-2layers",)}
    assert settings(size="all").sizes == ("small", "medium", "large", "xl", "2.7B", "10B")
    assert settings(size="small-2layers").sizes == ("small-2layers",)


def test_on_a_gpu_attention_alone_is_measured_in_bf16_too(cuda: FakeCuda) -> None:
    for typed, capability, precisions in (
        ({"device": "cuda"}, (9, 0), ("fp32", "bf16")),
        ({"device": "cuda"}, (7, 5), ("fp32",)),  # emulates bf16
        ({"device": "cuda", "precision": "tf32"}, (9, 0), ("tf32",)),
        ({"device": "cpu"}, (9, 0), ("fp32",)),
    ):
        cuda.sees(capability)
        chosen = settings(**typed)
        assert chosen.attention_alone_precisions == precisions, typed
        assert chosen.precisions == precisions or typed["device"] == "cpu"


CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("sdpa", {"attentions": ("sdpa",), "attention_alone_implementations": ("sdpa",)}),
    "precision": ("bf16", {"precisions": ("bf16",), "attention_alone_precisions": ("bf16",)}),
    "execution": ("compiled", {"executions": ("compiled",)}),
    "checkpoint": ("block", {"checkpoints": ("block",)}),
    "optimizer": ("fused", {"optimizer": "fused"}),
}


def test_another_option_changes_its_axis_of_base_alone_and_names_the_field_of_a_case() -> None:
    assert OTHER_VALUES.keys() >= CHANGED.keys()
    head = settings(attention="naive", precision="fp32")
    for axis, (value, changed) in CHANGED.items():
        assert vars(OtherOption(axis, value).applied_to(head)) == {**vars(head), **changed}
    named = {field.name for field in fields(LanguageModelIdentity)}
    assert {OtherOption(axis, "value").identity_field for axis in OTHER_VALUES} <= named
