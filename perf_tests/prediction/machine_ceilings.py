"""The ceilings of this machine, measured once and then read from the user's cache.

They belong to the machine and the torch build, not to a checkout or a run, so they lie where the user keeps caches and
not beside the records, and every checkout shares them.
"""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from model.precision import PRECISIONS
from perf_tests.instruments.device import Device
from perf_tests.instruments.host_memory import proc_values
from perf_tests.instruments.machine import stable_facts
from perf_tests.instruments.matmul_rate import matmul_flops_per_second, memory_bytes_per_second
from perf_tests.limits.ceilings import Ceilings
from perf_tests.prediction.launch_overhead import launch_seconds
from perf_tests.records.store import write_whole

FORMAT_VERSION = 1

MEASURED_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def ceilings_here(device: Device) -> Ceilings:
    """This machine's ceilings: from the cache where it holds them, else measured in a few seconds and cached.

    A cache that is broken, of another machine or cannot be written is passed over. What a busy machine measured is not
    kept: its neighbours would slow every later prediction.
    """
    identity = machine_identity(device.torch_device)
    path = cache_path(device.torch_device)
    cached = read_cached(path, identity)
    if cached is not None:
        return cached
    busy = is_busy()
    measured = measured_ceilings(device)
    if busy:
        return replace(measured, source="measured just now on a busy machine, and not kept: an idle one does better")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _encoded(measured, identity))
    except OSError:
        pass  # the next call measures again
    return measured


def is_busy() -> bool:
    """Whether others had more than half a core of this machine in the last minute."""
    one_minute_load, _, _ = os.getloadavg()
    return one_minute_load > 0.5


def measured_ceilings(device: Device) -> Ceilings:
    """Measured now, in a few seconds; the best of several tries each, since disturbances only make things slower."""
    precisions = [name for name in MEASURED_PRECISIONS if PRECISIONS[name].why_unsupported(device.torch_device) is None]
    rates = {name: matmul_flops_per_second(PRECISIONS[name], device) for name in precisions}
    PRECISIONS["fp32"].apply()
    bytes_per_second = memory_bytes_per_second(device)
    device.release_memory()
    forward, backward = launch_seconds(device)
    return Ceilings(
        name=f"this {device.torch_device.type}",
        matmul_flops_per_second=rates,
        bytes_per_second=bytes_per_second,
        launch_seconds=forward,
        backward_launch_seconds=backward,
        launches_overlap=device.torch_device.type != "cpu",
        source=f"measured on this machine on {datetime.now(UTC):%Y-%m-%d}, kept in {cache_path(device.torch_device)}",
    )


def machine_identity(device: torch.device) -> dict[str, Any]:
    """Everything that has to be equal for ceilings measured earlier to hold now."""
    facts = stable_facts(device, torch.get_num_threads())
    return {**facts, "host": platform.node(), "cpu": _cpu_name(), "format_version": FORMAT_VERSION}


def cache_path(device: torch.device) -> Path:
    """In `$XDG_CACHE_HOME`, or `~/.cache` (XDG Base Directory Specification)."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(folder) if Path(folder).is_absolute() else Path.home() / ".cache"
    return home / "transformer-perf-tests" / f"ceilings-{device.type}.json"


def read_cached(path: Path, identity: Mapping[str, Any]) -> Ceilings | None:
    """The ceilings in the file, if it is whole and was measured on the machine of this identity; else None."""
    try:
        data = json.loads(path.read_bytes())
        if data["identity"] != json.loads(json.dumps(identity)):
            return None
        given = data["ceilings"]
        return Ceilings(**{field.name: given[field.name] for field in fields(Ceilings)})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _encoded(ceilings: Ceilings, identity: Mapping[str, Any]) -> bytes:
    return json.dumps({"identity": identity, "ceilings": asdict(ceilings)}, allow_nan=False, indent=1).encode()


def _cpu_name() -> str:
    """As Linux names it; what the platform module knows where it names none."""
    return next(iter(proc_values("cpuinfo", "model name")), platform.processor())
