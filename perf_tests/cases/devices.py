"""The devices of this machine: what a run is to compute on, what a case lacks there, and which one a rank has."""

import socket
from itertools import permutations
from typing import Any

import pytest
import torch

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.compilation import why_cannot_compile
from perf_tests_suite.model.device import device_named
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import OF_ATTENTION_ALONE, LanguageModelCase
from perf_tests_suite.perf_tests.cases.model_names import blocks_per_checkpoint
from perf_tests_suite.perf_tests.cases.options import HasOptions
from perf_tests_suite.perf_tests.cases.settings import Settings, is_on_ranks, settings_on
from perf_tests_suite.perf_tests.cases.sharing import Launched, launched
from perf_tests_suite.perf_tests.hardware.clock import why_no_ranges


def read_settings(config: HasOptions) -> Settings:
    """The options of this run, defaults filled in; raises pytest.UsageError naming the option at fault."""
    try:
        device = device_named(config.getoption("--device"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if device.type == "cuda" and is_on_ranks(config):
        device = rank_gpu()
    native = tuple(name for name in ("fp32", "bf16") if PRECISIONS[name].why_unsupported(device) is None)
    settings = settings_on(str(device), native, config)
    if settings.nvtx and (reason := why_no_ranges()):
        raise pytest.UsageError(reason)
    return settings


def why_unsupported(case: Case, device: torch.device) -> str | None:
    """What the device or the model lacks, in one sentence; None where nothing."""
    if reason := PRECISIONS[case.precision].why_unsupported(device):
        return reason
    if case.attention in ATTENTION and (
        reason := ATTENTION[case.attention].why_unavailable(device, case.query_shape[-1])
    ):
        return reason
    return _why_no_model(case, device) if isinstance(case, LanguageModelCase) else None


def _why_no_model(case: LanguageModelCase, device: torch.device) -> str | None:
    if case.precision.endswith("-tensors"):
        return OF_ATTENTION_ALONE.format(case.precision)
    if case.replays_cuda_graphs and device.type != "cuda":
        has_none = f"a {device.type.upper()} has none; choose compiled"
        return f"--execution {case.execution} replays CUDA graphs, and {has_none}."
    if case.execution != "eager" and (reason := why_cannot_compile(device)):
        return reason
    if case.user_model is None and blocks_per_checkpoint(case.checkpoint) > case.config.num_layers:
        return f"--checkpoint {case.checkpoint} is more blocks than its {case.config.num_layers}."
    if case.phase_row.trains and not case.updates and PRECISIONS[case.precision].scales_loss:
        return f"--zero-grad {case.zero_grad} leaves a loss scaler no gradients; choose another order."
    return None


# Those of ranks: which one each has, and how those of a machine are joined.


def facts_of_ranks(launched: Launched, device: torch.device) -> dict[str, Any]:
    """Facts for the record, None for what a machine without GPUs does not have."""
    if device.type != "cuda":
        return {"ranks_per_node": launched.local_world, "nccl": None, "peer_access": None}
    pairs = permutations(range(torch.cuda.device_count()), 2)
    return {
        "ranks_per_node": launched.local_world,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        # Whether each GPU of this machine reads every other one's memory, by NVLink or PCIe.
        "peer_access": all(torch.cuda.can_device_access_peer(here, there) for here, there in pairs),
    }


def rank_gpu() -> torch.device:
    """Return the GPU of this rank's number among those it sees, or, as under Slurm, the only one."""
    return torch.device("cuda", (launched() or Launched()).local_rank % torch.cuda.device_count())


def device_label(device: torch.device) -> str:
    """What all ranks must share."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def gpu_of_this_rank(device: torch.device) -> str | None:
    """The same for two ranks only where they share a GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
