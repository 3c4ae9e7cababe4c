"""Where a precision counts as supported, and what it leaves set."""

import re
from collections.abc import Iterator
from io import StringIO
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from model import precision
from model.precision import PRECISIONS, cpu_capabilities
from model.training import Training
from tests.support.example_cases import CPU

GPU = torch.device("cuda", 0)
SAPPHIRE_RAPIDS = {"avx512_bf16": True, "amx_bf16": True, "avx512_fp16": True}
GRAVITON_3 = {"arm_bf16": True, "arm_fp16": True}
HALF = {"fp16", "fp16-unscaled"}

MACHINES: dict[str, tuple[torch.device, object, set[str]]] = {
    "Pascal": (GPU, (6, 1), {"fp32"}),
    "Volta": (GPU, (7, 0), {"fp32", *HALF}),
    "Turing": (GPU, (7, 5), {"fp32", *HALF}),
    "Ampere": (GPU, (8, 0), {"fp32", "tf32", "bf16", *HALF}),
    "Hopper": (GPU, (9, 0), {"fp32", "tf32", "bf16", *HALF}),
    "plain CPU": (CPU, {}, {"fp32"}),
    "Cooper Lake": (CPU, {"avx512_bf16": True}, {"fp32", "bf16"}),
    "Sapphire Rapids": (CPU, SAPPHIRE_RAPIDS, {"fp32", "bf16", *HALF}),
    "Graviton 3": (CPU, GRAVITON_3, {"fp32", "bf16", *HALF}),
    "AMX for bfloat16 alone": (CPU, {"amx_bf16": True}, {"fp32", "bf16"}),
    "AMX for float16 alone": (CPU, {"amx_fp16": True}, {"fp32", *HALF}),
    "Arm without bfloat16": (CPU, {"arm_fp16": True}, {"fp32", *HALF}),
}
"""Device, what it says of itself, and the precisions that its tensor cores or instructions compute in."""


def reasons_on(machine: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    device, capability, _ = MACHINES[machine]
    monkeypatch.setattr(torch.cuda, "get_device_capability", {GPU: capability}.get)
    monkeypatch.setattr("model.precision.cpu_capabilities", lambda: capability)
    return {name: known.why_unsupported(device) for name, known in PRECISIONS.items()}


@pytest.fixture(autouse=True)
def _restore_matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_a_machine_supports_what_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, (_, _, computes) in MACHINES.items():
        reasons = reasons_on(machine, monkeypatch)
        assert {name for name, reason in reasons.items() if reason is None} == computes, machine


@pytest.mark.parametrize("machine", ["Pascal", "plain CPU"])
def test_a_reason_is_one_sentence_with_the_next_step(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = reasons_on(machine, monkeypatch)
    for name in ("tf32", "bf16", "fp16", "fp16-unscaled"):
        assert re.fullmatch(rf"{name} [^\n]*measure fp32 here\.", reasons[name] or "")
        assert ". " not in str(reasons[name])


@pytest.mark.parametrize(
    "cpuinfo, expected",
    [
        ("model name : an avx512_fp16\nflags\t\t: fpu avx512_bf16 amx_bf16\n", {"avx512_bf16", "amx_bf16"}),
        ("flags\t\t: avx512_fp16 amx_fp16 sse2\n", {"avx512_fp16", "amx_fp16"}),
        ("Features\t: fp asimd asimdhp\n", {"arm_fp16"}),
        ("Features\t: fp asimd bf16\n", {"arm_bf16"}),
    ],
)
def test_instruction_sets_are_those_that_linux_lists(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, expected: set[str]
) -> None:
    files = {"/proc/cpuinfo": StringIO(cpuinfo)}
    monkeypatch.setattr(precision, "open", files.get, raising=False)
    capabilities = cpu_capabilities()
    assert {name for name, has in capabilities.items() if has} == expected
    assert capabilities.keys() == {*SAPPHIRE_RAPIDS, *GRAVITON_3, "amx_fp16"}


def test_without_that_list_no_instruction_set_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "open", Mock(side_effect=FileNotFoundError), raising=False)
    assert cpu_capabilities() == {}


@pytest.mark.parametrize("name", PRECISIONS)
def test_applying_sets_the_matmul_mode_whatever_came_before(name: str) -> None:
    torch.set_float32_matmul_precision("medium")
    PRECISIONS[name].apply()
    assert torch.get_float32_matmul_precision() == ("high" if name == "tf32" else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 == (name == "tf32")


@pytest.mark.parametrize("name, in_forward", [("fp32", False), ("tf32", False), ("bf16", True), ("fp16", True)])
def test_autocast_is_on_in_the_forward_pass_of_half_precisions_and_nowhere_else(name: str, in_forward: bool) -> None:
    seen: dict[str, bool] = {}

    class Watching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen["forward"] = torch.is_autocast_enabled("cpu")
            logits = super().forward(x)
            logits.register_hook(lambda gradient: seen.update(backward=torch.is_autocast_enabled("cpu")))
            return logits

    training = Training(Watching(3, 3), PRECISIONS[name], CPU)
    training.backward(training.loss(training.forward(torch.randn(2, 3)), torch.tensor([0, 1])))
    assert seen == {"forward": in_forward, "backward": False}
