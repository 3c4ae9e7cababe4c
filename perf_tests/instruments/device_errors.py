"""What the error of a device says: memory ran out, or a kernel needs more than the device has."""

import torch

_OUT_OF_MEMORY = (
    "can't allocate memory",  # PyTorch on a CPU
    "std::bad_alloc",
    "CUDA out of memory",  # PyTorch's allocator
    "NVML_SUCCESS == ",  # the same, where NVML refuses to list processes, as in a MIG slice (pytorch/pytorch#112377)
    "CUDA error: out of memory",  # the rest need memory beside it: the runtime for kernels that it loads late
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",  # since cuDNN 9, and in its frontend's errors
)

_BEYOND_DEVICE = ("out of resource: ",)
"""Triton's; what follows is, for example, "shared memory, Required: 327680, Hardware limit: 232448"."""

_NEEDS_GPU = (
    "0 active drivers",  # Triton's, without a GPU
    "(cpu tensor?)",  # Triton's, of tensors on the host
    "not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: on the GPU or, through the limited address space, on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _telling_line(error, _OUT_OF_MEMORY) is not None


def is_beyond_device(error: BaseException) -> bool:
    """Whether a kernel needs more of a fixed resource, such as shared memory, than any launch on this device gets."""
    return _telling_line(error, _BEYOND_DEVICE) is not None


def needs_gpu(error: BaseException) -> bool:
    """Whether a kernel was called on a CPU that runs on GPUs alone."""
    return _telling_line(error, _NEEDS_GPU) is not None


def words_of(error: BaseException) -> str:
    """The line that says what happened: errors of a compiler begin with others."""
    lines = str(error).splitlines()
    return _telling_line(error, (*_OUT_OF_MEMORY, *_BEYOND_DEVICE)) or (lines[0] if lines else type(error).__name__)


def _telling_line(error: BaseException, texts: tuple[str, ...]) -> str | None:
    return next((line for line in str(error).splitlines() if any(text in line for text in texts)), None)
