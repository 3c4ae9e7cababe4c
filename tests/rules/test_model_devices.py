"""Which devices, precisions and compilers `model/` takes for able, against fakes of torch.cuda and of this machine."""

import importlib.util
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from io import StringIO
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.model import attention, precision
from perf_tests_suite.model.attention import ATTENTION, naive_attention
from perf_tests_suite.model.compilation import compiled, forget_compiled, why_cannot_compile
from perf_tests_suite.model.device import device_named, why_gpu_cannot_run, why_gpu_is_passed_over
from perf_tests_suite.model.precision import PRECISIONS, cpu_capabilities

WHEEL = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
HOPPER, PASCAL, RELIC = (9, 0), (6, 1), (1, 0)

Sees = Callable[..., None]
"""Compute capabilities, one a GPU, to a torch.cuda that tells of these."""


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch) -> Sees:
    """A fake torch.cuda, of one Hopper at first."""

    def see(
        *capabilities: tuple[int, int], built_for: Sequence[str] = WHEEL, words: str = "No CUDA GPUs are available"
    ) -> None:
        answers = {
            "is_available": lambda: bool(capabilities),
            "device_count": lambda: len(capabilities),
            "get_device_capability": lambda device: capabilities[torch.device("cuda", device).index],
            "get_device_name": lambda device: f"NVIDIA {'.'.join(map(str, capabilities[device]))}",
            "get_arch_list": lambda: list(built_for),
            "init": Mock(side_effect=RuntimeError(words)),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    see(HOPPER)
    return see


@pytest.mark.parametrize(
    "text, gpus, name",
    [
        *(("auto", [HOPPER], "cuda:0"), ("cuda", [HOPPER], "cuda:0"), ("cuda:0", [HOPPER], "cuda:0")),
        *(("cuda:1", [HOPPER, HOPPER], "cuda:1"), ("cpu", [HOPPER], "cpu"), ("auto", [], "cpu")),
        ("auto", [PASCAL], "cpu"),  # this build has no kernels for it
    ],
)
def test_a_name_becomes_a_device(sees: Sees, text: str, gpus: list[tuple[int, int]], name: str) -> None:
    sees(*gpus)
    assert str(device_named(text)) == name


@pytest.mark.parametrize(
    "text, gpus, words",
    [
        ("cuda:9", [HOPPER], r"'cuda:9' does not exist; torch sees cuda:0 \(NVIDIA 9\.0\)\.$"),
        ("cuda:1", [HOPPER], "'cuda:1' does not exist"),
        ("cuda:2", [HOPPER, PASCAL], r"cuda:0 \(NVIDIA 9\.0\), cuda:1 \(NVIDIA 6\.1\)\.$"),
        ("cuda:1", [HOPPER, RELIC], r"compute capability 1\.0"),  # the named one must run
        ("cuda", [PASCAL], r"^GPU NVIDIA 6\.1 has compute capability 6\.1.*sm_70 sm_75.*install the wheel"),
        ("cuda", [], "^device 'cuda' needs an NVIDIA GPU"),
        *((text, [HOPPER], f"^device '{text}' is unknown; ") for text in ("gpu", "cuda:", "cuda:-1", "cuda:x", "")),
    ],
)
def test_another_name_is_refused_in_one_sentence(
    sees: Sees, text: str, gpus: list[tuple[int, int]], words: str
) -> None:
    sees(*gpus)
    with pytest.raises(ValueError, match=words) as refusal:
        device_named(text)
    assert ". " not in str(refusal.value)


# c10/cuda/CUDAFunctions.cpp
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
NOT_READY = "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized.\nMore of it."
NONE_VISIBLE = "No CUDA GPUs are available"


@pytest.mark.parametrize(
    "words, visible, told, is_passed_over",
    [
        (TOO_OLD, None, r"too old \(found version 12080\); update the driver, install torch for an older CUDA", True),
        (NOT_READY, None, "Error 802: system not yet initialized; use cpu", True),
        (NO_DRIVER, None, "no NVIDIA driver on your system; use cpu", False),
        (NONE_VISIBLE, None, "available; use cpu", False),
        (NONE_VISIBLE, "", "CUDA_VISIBLE_DEVICES='' hides them: unset it", False),
        (NONE_VISIBLE, "GPU-0af3", "CUDA_VISIBLE_DEVICES='GPU-0af3' hides them", False),
    ],
)
def test_a_gpu_that_does_not_start_is_refused_with_why_and_not_passed_over_in_silence(
    sees: Sees, monkeypatch: pytest.MonkeyPatch, words: str, visible: str | None, told: str, is_passed_over: bool
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sees(words=words)
    with pytest.raises(ValueError, match=told) as refusal:
        device_named("cuda")
    assert "Please" not in str(refusal.value)
    reason = why_gpu_is_passed_over("cpu")
    assert (reason is not None and bool(re.search(f"^No GPU is used: .*{told}", reason))) == is_passed_over


def test_the_gpu_that_auto_passes_over_is_named(sees: Sees, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that could run, or one that the user took, has no reason; torch's own warning of a driver is no error."""

    def warn() -> bool:
        warnings.warn("CUDA initialization: the driver is too old", stacklevel=1)
        return False

    assert why_gpu_is_passed_over("cpu") is None
    sees(PASCAL)
    assert "6.1" in (why_gpu_is_passed_over("cpu") or "")
    assert why_gpu_is_passed_over("cuda:0") is None
    monkeypatch.setattr(torch.cuda, "is_available", warn)
    assert str(device_named("auto")) == "cpu"


BUILDS: dict[tuple[str, ...], tuple[set[tuple[int, int]], set[tuple[int, int]]]] = {
    ("sm_80",): ({(8, 0)}, set()),
    ("sm_86",): ({(8, 9)}, {(8, 0)}),  # a later minor revision, not an earlier one
    ("sm_80", "sm_86"): (set(), {(9, 0)}),  # machine code stays within its major revision
    ("sm_90a",): ({(9, 0)}, set()),
    ("sm_100a",): ({(10, 0)}, {(10, 3)}),  # code of one architecture runs on that one
    ("sm_100f",): ({(10, 3)}, {(12, 0)}),  # code of a family runs on its later members
    ("compute_80",): ({(8, 0), (9, 0)}, {(7, 5)}),  # PTX is translated for later ones
    ("compute_100f",): (set(), {(12, 0)}),
    ("compute_90a",): (set(), {(10, 0)}),
    ("sm_75", "compute_120"): ({(12, 1)}, set()),
    ("sm_90", "sm_120"): ({(12, 0)}, set()),
    WHEEL: (set(), {(6, 1)}),
    (): (set(), {(9, 0)}),
}
"""Compute capabilities on which a build runs, and on which it does not, by the architectures it is made for."""


@pytest.mark.parametrize("built_for", BUILDS, ids=" ".join)
def test_a_build_serves_the_gpus_that_cuda_says_it_does(sees: Sees, built_for: Sequence[str]) -> None:
    """CUDA C++ Programming Guide, "Compute Compatibility"."""
    for runs, capabilities in zip((True, False), BUILDS[tuple(built_for)], strict=True):
        for capability in capabilities:
            sees(capability, built_for=built_for)
            assert (why_gpu_cannot_run(0) is None) == runs, capability


HALF, BF16 = {"fp16", "fp16-unscaled"}, {"bf16", "bf16-tensors"}
MACHINES: dict[str, tuple[torch.device, object, set[str]]] = {
    "Pascal": (GPU, PASCAL, {"fp32"}),
    "Volta": (GPU, (7, 0), {"fp32", *HALF}),
    "Turing": (GPU, (7, 5), {"fp32", *HALF}),
    "Ampere": (GPU, (8, 0), {"fp32", "tf32", *BF16, *HALF}),
    "Hopper": (GPU, HOPPER, {"fp32", "tf32", *BF16, *HALF}),
    "plain CPU": (CPU, {}, {"fp32"}),
    "Cooper Lake": (CPU, {"avx512_bf16": True}, {"fp32", *BF16}),
    "Sapphire Rapids": (CPU, {"avx512_bf16": True, "amx_bf16": True, "avx512_fp16": True}, {"fp32", *BF16, *HALF}),
    "Graviton 3": (CPU, {"arm_bf16": True, "arm_fp16": True}, {"fp32", *BF16, *HALF}),
    "AMX for bfloat16 alone": (CPU, {"amx_bf16": True}, {"fp32", *BF16}),
    "AMX for float16 alone": (CPU, {"amx_fp16": True}, {"fp32", *HALF}),
    "Arm without bfloat16": (CPU, {"arm_fp16": True}, {"fp32", *HALF}),
}
"""Device, what it says of itself, and the precisions that its tensor cores or instructions compute in."""


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_supports_what_it_computes(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other precision has a reason, one sentence with the next step."""
    device, capability, supported = MACHINES[machine]
    monkeypatch.setattr(torch.cuda, "get_device_capability", {GPU: capability}.get)
    monkeypatch.setattr(precision, "cpu_capabilities", lambda: capability)
    for name, known in PRECISIONS.items():
        reason = known.why_unsupported(device)
        assert (reason is None) == (name in supported)
        assert reason is None or re.fullmatch(rf"{name} (?!.*\. )[^\n]*measure fp32 here\.", reason)


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
    """None is known where there is no such list."""
    monkeypatch.setattr(precision, "open", {"/proc/cpuinfo": StringIO(cpuinfo)}.get, raising=False)
    found = cpu_capabilities()
    assert {name for name, has in found.items() if has} == expected
    assert found.keys() == {"avx512_bf16", "amx_bf16", "arm_bf16", "avx512_fp16", "amx_fp16", "arm_fp16"}
    monkeypatch.setattr(precision, "open", Mock(side_effect=FileNotFoundError), raising=False)
    assert cpu_capabilities() == {}


def test_no_dimension_turns_dynamic_in_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are static in every mode, and the compiled attention is the naive one."""
    monkeypatch.setattr(torch, "compile", made := Mock())
    compiled(abs)
    made.assert_called_once_with(abs, dynamic=False, mode="default")
    compiled(abs, "reduce-overhead")
    made.assert_called_with(abs, dynamic=False, mode="reduce-overhead")
    assert ATTENTION["compiled"].build() is made.return_value
    made.assert_called_with(naive_attention, dynamic=False, mode="default")
    assert [name for name, known in ATTENTION.items() if known.is_compiled] == ["compiled", "flex"]


@pytest.mark.parametrize("has_compiled", [True, False])
def test_graphs_are_dropped_where_any_were_made(monkeypatch: pytest.MonkeyPatch, has_compiled: bool) -> None:
    monkeypatch.setattr(torch.compiler, "reset", reset := Mock())
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
def test_a_missing_compiler_is_named(
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


def test_an_attention_says_where_it_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled ones need a compiler; flex_attention has no backward pass on a CPU and takes no narrow heads."""
    monkeypatch.setattr(attention, "why_cannot_compile", lambda device: f"no compiler on {device}")
    assert [ATTENTION[name].why_unavailable(GPU, 16) for name in ("naive", "sdpa")] == [None, None]
    for name in ("flex", "compiled"):
        assert ATTENTION[name].why_unavailable(GPU, 16) == "no compiler on cuda:0"
    assert "no backward pass on cpu" in str(ATTENTION["flex"].why_unavailable(CPU, 64))
    assert "at least 16" in str(ATTENTION["flex"].why_unavailable(GPU, 8))
