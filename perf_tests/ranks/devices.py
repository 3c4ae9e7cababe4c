"""The devices of ranks: which one each has, and how those of a machine are joined."""

import socket
from typing import Any

import torch

from perf_tests.ranks.launched import Launched, launched


def facts_of_ranks(launched: Launched, device: torch.device) -> dict[str, Any]:
    """None for what a machine without GPUs does not have."""
    if device.type != "cuda":
        return {"ranks_per_node": launched.local_world, "nccl": None, "peer_access": None}
    return {
        "ranks_per_node": launched.local_world,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "peer_access": _peer_access(torch.cuda.device_count()),
    }


def _peer_access(gpus: int) -> bool:
    """Whether each GPU of this machine reads every other one's memory, by NVLink or PCIe."""
    pairs = [(here, there) for here in range(gpus) for there in range(gpus) if here != there]
    return all(torch.cuda.can_device_access_peer(here, there) for here, there in pairs)


def own_gpu() -> torch.device:
    """Of the GPUs that this rank sees the one of its number, or, as under Slurm, the only one."""
    return torch.device("cuda", (launched() or Launched()).local_rank % torch.cuda.device_count())


def device_in_words(device: torch.device) -> str:
    """What all ranks must share."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def gpu_of_this_rank(device: torch.device) -> str | None:
    """The same for two ranks only where they share a GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
