"""The device of a run, and process-wide switches that change results: what each must be here, and who changed it.

PyTorch, "Numerical accuracy" (pytorch.org/docs/stable/notes/numerical_accuracy.html), names them.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_device = torch.device("cpu")


def device() -> torch.device:
    """Return the device that tests compute on: the CPU unless --device names another."""
    return _device


def compute_on(chosen: torch.device) -> None:
    """Let `device` return it from now on."""
    global _device
    _device = chosen


@dataclass(frozen=True)
class Flag:
    """One switch; `pinned` is the value every bound here assumes."""

    name: str
    pinned: Any
    read: Callable[[], Any]
    write: Callable[[Any], object]
    torch_default: Any = None
    """PyTorch's default where it differs; it is not reported."""

    def set(self, value: Any) -> None:
        """Write only what differs: setting deterministic_algorithms to any value imports all of Inductor."""
        if self.read() != value:
            self.write(value)


REDUCED_REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
"""Whether cuBLAS may round the partial sums of a split product to 16 bits."""


def _backend_flag(backend: Any, name: str, pinned: bool = True) -> Flag:
    """A switch of `torch.backends` that PyTorch turns on."""
    path = name.rpartition(".")[2]
    return Flag(name, pinned, lambda: getattr(backend, path), lambda value: setattr(backend, path, value), True)


@dataclass(frozen=True)
class MixedPrecisions:
    """The precision of float32 products by backend; torch's single getter raises where the backends differ."""

    mkldnn: str
    cuda: str


def _read_matmul_precision() -> str | MixedPrecisions:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        # Raised where a single backend was set; then each is asked.
        # The stubs of torch do not know mkldnn.matmul.
        matmuls = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # type: ignore[attr-defined]
        return MixedPrecisions(*(matmul.fp32_precision for matmul in matmuls))


def _write_matmul_precision(value: str | MixedPrecisions) -> None:
    if isinstance(value, str):
        torch.set_float32_matmul_precision(value)
        return
    torch.backends.mkldnn.matmul.fp32_precision = value.mkldnn  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = value.cuda


def flushes_subnormals() -> bool:
    """Whether this thread turns results below the smallest normal number into 0; torch has no getter."""
    return bool(torch.tensor(2.0**-149) * 1 == 0)


FLAGS = (
    Flag("float32_matmul_precision", "highest", _read_matmul_precision, _write_matmul_precision),
    Flag("default_dtype", torch.float32, torch.get_default_dtype, torch.set_default_dtype),
    Flag(
        "deterministic_algorithms",
        False,
        torch.are_deterministic_algorithms_enabled,
        lambda value: torch.use_deterministic_algorithms(value),
    ),
    Flag("flush_denormal", False, flushes_subnormals, torch.set_flush_denormal),
    Flag("grad_enabled", True, torch.is_grad_enabled, torch.set_grad_enabled),
    _backend_flag(torch.backends.cudnn, "cudnn.allow_tf32", pinned=False),
    # On, as PyTorch has them and as benchmarks and users run; bounds.sum_in_float32 allows for what they do.
    *(_backend_flag(torch.backends.cuda.matmul, f"cuda.matmul.{name}") for name in REDUCED_REDUCTIONS),
)

VARIABLES = {
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "lets float32 products run as TF32; reset here",
    "NVIDIA_TF32_OVERRIDE": "forces TF32 inside cuBLAS and cuDNN, out of reach of PyTorch; unset it",
    "ONEDNN_DEFAULT_FPMATH_MODE": "lets oneDNN compute float32 products in fewer bits; unset it",
    "DNNL_DEFAULT_FPMATH_MODE": "lets oneDNN compute float32 products in fewer bits; unset it",
}


def changed(environment: Mapping[str, str] = os.environ) -> list[str]:
    """One sentence for each flag or variable with a value that these tests cannot use."""
    sentences = []
    for flag in FLAGS:
        value = flag.read()
        if value not in (flag.pinned, flag.torch_default):
            sentences.append(f"{flag.name} is {value!r} in this environment; reset to {flag.pinned!r} for each test.")
    for name, effect in VARIABLES.items():
        if environment.get(name):
            sentences.append(f"{name}={environment[name]} is set: it {effect}.")
    return sentences


def of_gpu_products() -> str:
    """One line on the state in which 16-bit products are tested."""
    states = [f"{name} {getattr(torch.backends.cuda.matmul, name)}" for name in REDUCED_REDUCTIONS]
    return f"numerics: {', '.join(states)}; tested with True, PyTorch's default, as benchmarks run"


@contextmanager
def pinned() -> Iterator[None]:
    """Every flag at its pinned value inside, and restored afterwards, also after an error."""
    before = [(flag, flag.read()) for flag in FLAGS]
    try:
        for flag in FLAGS:
            flag.set(flag.pinned)
        yield
    finally:
        for flag, value in before:
            flag.set(value)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let PyTorch use that many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
