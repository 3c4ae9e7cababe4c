"""What all tensors hold that Python can reach: the allocator's own sum, counted from the other end."""

import gc

import torch
from torch import Tensor

from perf_tests.instruments.torch_private import FakeTensor


def live_tensor_bytes(device_type: str) -> int:
    """Bytes of every storage on the device under a tensor or a gradient, each once.

    Call it where no graph is alive: what only autograd's own code holds cannot be reached from here.
    """
    gc.collect()
    storages: dict[int, int] = {}
    for found in gc.get_objects():
        if issubclass(type(found), Tensor) and not isinstance(found, FakeTensor):
            for tensor in (found, found.grad if found.is_leaf else None):
                if tensor is not None and tensor.layout == torch.strided and tensor.device.type == device_type:
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
