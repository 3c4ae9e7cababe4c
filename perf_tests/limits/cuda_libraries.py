"""What CUDA's libraries add to a case: cuBLAS's workspaces, and the kernel of scaled_dot_product_attention in 16 bits.

In: a card's compute capability, the versions of torch and cuDNN, the environment. Out: `CudaLibraries`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perf_tests.limits.datasheets import Gpu

HOPPER, BLACKWELL = 9, (10, 12)
"""Major compute capabilities; 10 in data centres, 12 in GeForce and workstation cards."""

WORKSPACE_BYTES, LARGE_WORKSPACE_BYTES = 8320 * 1024, 32 * 2**20
LARGE_ON_BLACKWELL_SINCE = (2, 12)

FLASH, CUDNN, EFFICIENT = "flash", "cudnn", "memory-efficient"
FLASH_SINCE = 8
"""Major compute capability of the first cards with a flash kernel in torch."""
CUDNN_AFTER = 91500
"""cuDNN's version number above which torch prefers its kernel, and the first torch whose wheels bring such a cuDNN."""
BUNDLED_SINCE = (2, 11)

CONFIG, DEPRIORITIZED = "CUBLAS_WORKSPACE_CONFIG", "TORCH_CUDNN_SDPA_DEPRIORITIZED"


@dataclass(frozen=True)
class CudaLibraries:
    """What of a case's counters depends on the card and its libraries."""

    sdpa: str
    """The kernel that torch tries first in 16 bits, `flash`, `cudnn` or `memory-efficient`."""
    workspace_bytes: int
    """Of cuBLAS, for each thread that launches matrix products: from the caching allocator, kept until cleared."""
    workspace_rule: str
    """Where `workspace_bytes` comes from, in words."""
    sdpa_rule: str
    """Why it is `sdpa`, in words."""


def libraries_on(
    compute_major: int | None, torch_version: str, environment: Mapping[str, str], cudnn_version: int | None = None
) -> CudaLibraries:
    """By torch's rules; an unknown card counts as Ampere, an unknown cuDNN as the one that torch's wheel brings."""
    major, minor = torch_version.split(".")[:2]
    version = int(major), int(minor)
    sdpa, sdpa_rule = _first_kernel(compute_major, version, environment, cudnn_version)
    workspace_bytes, workspace_rule = _default_bytes(compute_major, version), "torch's default on this card"
    configured_bytes = _configured_bytes(environment)
    if configured_bytes is not None:
        workspace_bytes, workspace_rule = configured_bytes, f"{CONFIG}={environment[CONFIG]}"
    return CudaLibraries(sdpa, workspace_bytes, workspace_rule, sdpa_rule)


def libraries_of(gpu: Gpu, torch_version: str, environment: Mapping[str, str]) -> CudaLibraries:
    return libraries_on(gpu.compute_major, torch_version, environment)


def _configured_bytes(environment: Mapping[str, str]) -> int | None:
    """PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp: pools as `:KIB:COUNT`; any other text means the default.

    Products with a bias take cuBLASLt's workspace (CUBLASLT_WORKSPACE_SIZE) out of the same block.
    """
    pools = re.findall(r":(\d+):(\d+)", environment.get(CONFIG, ""))
    return sum(int(kib) * 1024 * int(count) for kib, count in pools) if pools else None


def _default_bytes(compute_major: int | None, version: tuple[int, int]) -> int:
    """PyTorch, the same file: as NVIDIA recommends for cublasSetWorkspace."""
    on_blackwell = compute_major in BLACKWELL and version >= LARGE_ON_BLACKWELL_SINCE
    return LARGE_WORKSPACE_BYTES if compute_major == HOPPER or on_blackwell else WORKSPACE_BYTES


def _first_kernel(
    compute_major: int | None, version: tuple[int, int], environment: Mapping[str, str], cudnn_version: int | None
) -> tuple[str, str]:
    """And why: PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `check_prefer_cudnn_attention`."""
    if compute_major is not None and compute_major < FLASH_SINCE:
        return EFFICIENT, "torch has no flash kernel for this card"
    if compute_major not in (HOPPER, BLACKWELL[0]):
        return FLASH, "torch's first choice"
    if environment.get(DEPRIORITIZED) == "1":
        return FLASH, f"{DEPRIORITIZED}=1"
    if cudnn_version is not None:
        return (CUDNN if cudnn_version > CUDNN_AFTER else FLASH), f"by cuDNN {cudnn_version}"
    return (CUDNN if version >= BUNDLED_SINCE else FLASH), f"by the cuDNN of torch {version[0]}.{version[1]}'s wheel"
