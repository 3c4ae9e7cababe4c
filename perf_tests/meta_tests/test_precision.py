"""Where a precision counts as supported, and what it leaves set."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model.precision import PRECISIONS, cpu_capabilities
from model.training import Training
from perf_tests.meta_tests.example_cases import CPU

GPU = torch.device("cuda", 0)
PASCAL, VOLTA, TURING, AMPERE, HOPPER = (6, 1), (7, 0), (7, 5), (8, 0), (9, 0)
PLAIN_CPU: dict[str, bool] = {}
COOPER_LAKE = {"avx512_bf16": True}
SAPPHIRE_RAPIDS = {"avx512_bf16": True, "amx_bf16": True, "avx512_fp16": True}
GRAVITON_3 = {"arm_bf16": True, "arm_fp16": True}


@pytest.fixture(autouse=True)
def _restore_matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "name, capability, supported",
    [
        ("fp32", PASCAL, True),
        ("tf32", TURING, False),
        ("tf32", AMPERE, True),
        ("bf16", TURING, False),
        ("bf16", AMPERE, True),
        ("bf16", HOPPER, True),
        ("fp16", PASCAL, False),
        ("fp16", VOLTA, True),
        ("fp16-unscaled", PASCAL, False),
        ("fp16-unscaled", TURING, True),
    ],
)
def test_a_gpu_supports_what_its_tensor_cores_compute(
    name: str, capability: tuple[int, int], supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert (PRECISIONS[name].why_unsupported(GPU) is None) == supported


@pytest.mark.parametrize(
    "name, capabilities, supported",
    [
        ("fp32", PLAIN_CPU, True),
        ("tf32", SAPPHIRE_RAPIDS, False),
        ("bf16", PLAIN_CPU, False),
        ("bf16", COOPER_LAKE, True),
        ("bf16", GRAVITON_3, True),
        ("fp16", COOPER_LAKE, False),
        ("fp16", SAPPHIRE_RAPIDS, True),
        ("fp16-unscaled", COOPER_LAKE, False),
        ("fp16-unscaled", GRAVITON_3, True),
    ],
)
def test_a_cpu_supports_what_its_instructions_compute(
    name: str, capabilities: dict[str, bool], supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.precision.cpu_capabilities", lambda: capabilities)
    assert (PRECISIONS[name].why_unsupported(CPU) is None) == supported


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "fp16-unscaled"])
@pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_reason_is_one_sentence_with_the_next_step(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: PASCAL)
    monkeypatch.setattr("model.precision.cpu_capabilities", lambda: PLAIN_CPU)
    reason = PRECISIONS[name].why_unsupported(device)
    assert reason is not None
    assert reason.startswith(f"{name} ")
    assert reason.endswith("measure fp32 here.")
    assert ". " not in reason


def test_this_cpu_is_asked_for_every_instruction_set_that_a_precision_needs() -> None:
    names = {name for capabilities in (SAPPHIRE_RAPIDS, GRAVITON_3) for name in capabilities}
    assert names < cpu_capabilities().keys()


@pytest.mark.parametrize("name", PRECISIONS)
def test_applying_sets_the_matmul_mode_whatever_came_before(name: str) -> None:
    torch.set_float32_matmul_precision("medium")
    PRECISIONS[name].apply()
    assert torch.get_float32_matmul_precision() == ("high" if name == "tf32" else "highest")


def test_fp32_after_tf32_leaves_no_tf32_behind() -> None:
    PRECISIONS["tf32"].apply()
    assert torch.backends.cuda.matmul.allow_tf32
    PRECISIONS["fp32"].apply()
    assert not torch.backends.cuda.matmul.allow_tf32


class WatchingProduct(torch.autograd.Function):
    """A product that notes whether autocast is on, in either direction."""

    seen: dict[str, bool]

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        WatchingProduct.seen = {"forward": torch.is_autocast_enabled("cpu")}
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        WatchingProduct.seen["backward"] = torch.is_autocast_enabled("cpu")
        (x,) = ctx.saved_tensors
        return None, (gradient * x).sum(0)


class WatchingModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return WatchingProduct.apply(x, self.weight)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name, in_forward", [("fp32", False), ("tf32", False), ("bf16", True), ("fp16", True)])
def test_autocast_is_on_in_the_forward_pass_of_half_precisions_and_nowhere_else(name: str, in_forward: bool) -> None:
    training = Training(WatchingModel(), PRECISIONS[name], CPU)
    logits = training.forward(torch.randn(2, 3))
    training.backward(training.loss(logits, torch.tensor([0, 1])))
    assert WatchingProduct.seen == {"forward": in_forward, "backward": False}
