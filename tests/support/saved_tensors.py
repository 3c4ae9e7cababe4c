"""What autograd really keeps: the oracle for closed forms of saved memory."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def saved_for_backward(forward: Callable[[], object], leave_out: Iterable[Tensor] = ()) -> list[Tensor]:
    """The tensors that `forward` saves, one of each storage; `leave_out` names those that exist anyway."""
    known = {tensor.untyped_storage().data_ptr() for tensor in leave_out}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        # Detached, or an output saved by its own operation would hold the graph that holds it.
        detached = tensor.detach()
        if detached.untyped_storage().data_ptr() not in known:
            saved.setdefault(detached.untyped_storage().data_ptr(), detached)
        return detached

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return list(saved.values())


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
