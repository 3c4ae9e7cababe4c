"""Whether an error says that memory ran out."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: on the GPU or, through the limited address space, on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "std::bad_alloc" in text or "CUDA out of memory" in text
    )
