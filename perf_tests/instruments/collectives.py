"""Which collectives a rank takes part in, with the exact bytes of each, read off as they are issued."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from perf_tests.instruments.torch_private import TorchDispatchMode
from perf_tests.limits.communication import Message

# Where each operator holds the tensor, or list of tensors, of its whole message: what all ranks have together.
_MESSAGES = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::broadcast_": ("broadcast", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
}
_WITHOUT_BYTES = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")


class CollectiveCounter(TorchDispatchMode):
    """Inside, `seen` grows by each message and its dtype. Raises ValueError for a kind whose bytes it does not know."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[Message, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a distributed tensor issues its collectives on plain ones, which come here again
        name = func.name()
        if func.namespace in ("c10d", "_c10d_functional") and name not in _WITHOUT_BYTES:
            self.note(name, args)
        return func(*args, **(kwargs or {}))

    def note(self, name: str, args: tuple[Any, ...]) -> None:
        if name not in _MESSAGES:
            raise ValueError(f"the bytes of {name} are not known; count it in {__name__}.")
        kind, place = _MESSAGES[name]
        tensors: list[Tensor] = [args[place]] if isinstance(args[place], Tensor) else list(args[place])
        for tensor in tensors:
            self.seen.append((Message(kind, tensor.numel() * tensor.element_size()), tensor.dtype))
