"""Precisions: what is cast where, and whether a device computes in them natively."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    """How a training step computes; parameters, gradients and optimizer state are always float32.

    A precision of tensors in 16 bits, which autocast does not touch, is one of attention alone.
    """

    name: str
    autocast_dtype: torch.dtype | None = None
    """What `torch.autocast` casts matrix products to; None means no autocast."""
    float32_matmul_precision: str = "highest"
    """Argument of `torch.set_float32_matmul_precision`: "high" lets float32 products run as TF32."""
    scales_loss: bool = False
    """Whether a `GradScaler` keeps small float16 gradients from vanishing (Micikevicius et al., arXiv:1710.03740)."""
    tensor_dtype: torch.dtype = torch.float32
    """Dtype of query, key and value of attention alone, as they are given."""

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of one forward pass. Its cache of cast weights ends with it, so enter it once per pass."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast_dtype)

    def apply(self) -> None:
        """Set the process-wide mode of float32 matrix products; no other place does."""
        torch.set_float32_matmul_precision(self.float32_matmul_precision)

    def why_unsupported(self, device: torch.device) -> str | None:
        """None if `device` computes in this precision natively, else one sentence that names what is missing."""
        if device.type == "cuda":
            return _why_unsupported_on_cuda(self, torch.cuda.get_device_capability(device))
        return _why_unsupported_on_cpu(self, cpu_capabilities())


PRECISIONS = {
    "fp32": Precision("fp32"),
    "tf32": Precision("tf32", float32_matmul_precision="high"),
    "bf16": Precision("bf16", autocast_dtype=torch.bfloat16),
    "fp16": Precision("fp16", autocast_dtype=torch.float16, scales_loss=True),
    "fp16-unscaled": Precision("fp16-unscaled", autocast_dtype=torch.float16),
    "bf16-tensors": Precision("bf16-tensors", tensor_dtype=torch.bfloat16),
}

# NVIDIA, CUDA C++ Programming Guide, "Arithmetic Instructions" and "Tensor Cores": float16 tensor cores
# since compute capability 7.0, TF32 and bfloat16 since 8.0. Below that they are emulated or slower than float32.
_CUDA_CAPABILITY_NEEDED = {torch.float32: (0, 0), torch.float16: (7, 0), torch.bfloat16: (8, 0)}


def _why_unsupported_on_cuda(precision: Precision, capability: tuple[int, int]) -> str | None:
    needed = _CUDA_CAPABILITY_NEEDED[precision.autocast_dtype or precision.tensor_dtype]
    if precision.float32_matmul_precision != "highest":
        needed = (8, 0)
    if capability >= needed:
        return None
    return (
        f"{precision.name} needs compute capability {needed[0]}.{needed[1]}, this GPU has "
        f"{capability[0]}.{capability[1]} and would only emulate it; measure fp32 here."
    )


def _why_unsupported_on_cpu(precision: Precision, capabilities: dict[str, bool]) -> str | None:
    if precision.float32_matmul_precision != "highest":
        return f"{precision.name} is a mode of NVIDIA tensor cores; a CPU has none, so measure fp32 here."
    needed = {
        torch.float32: (),
        torch.bfloat16: ("avx512_bf16", "amx_bf16", "arm_bf16"),
        torch.float16: ("avx512_fp16", "amx_fp16", "arm_fp16"),
    }[precision.autocast_dtype or precision.tensor_dtype]
    if not needed or any(capabilities.get(name) for name in needed):
        return None
    return (
        f"{precision.name} needs a CPU with {' or '.join(needed)}; this one only emulates it, "
        "so its time would be meaningless; measure fp32 here."
    )


def cpu_capabilities() -> dict[str, bool]:
    """Read which 16-bit instruction sets this CPU has according to Linux; empty if it does not say."""
    try:
        with open("/proc/cpuinfo") as lines:
            flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    except OSError:
        return {}
    linux_names = {"arm_bf16": "bf16", "arm_fp16": "asimdhp"}
    names = ("avx512_bf16", "amx_bf16", "arm_bf16", "avx512_fp16", "amx_fp16", "arm_fp16")
    return {name: linux_names.get(name, name) in flags for name in names}
