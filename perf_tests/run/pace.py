"""How long a run will take here: predicted in closed form, times how much longer than predicted the last run took."""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from perf_tests.bench.stash import CASE
from perf_tests.bench.workbench import Workbench
from perf_tests.instruments.device import Device
from perf_tests.prediction.machine_ceilings import kept_ceilings, machine_identity
from perf_tests.ranks.launched import Launched, launched
from perf_tests.records.cache import cache_folder
from perf_tests.records.store import write_whole
from perf_tests.records.words import how_many
from perf_tests.run.case_time import predicted_seconds

FEWEST_SECONDS = 10.0
"""That cases must have taken for their pace to be kept."""
MOST = 1000.0
"""Times slower or faster than predicted; further off is no pace."""


def predicted_here(items: Iterable[pytest.Item], workbench: Workbench) -> dict[str, float]:
    """Seconds of each case at the ceilings that are kept for this machine, else at round figures; measures nothing."""
    kept = kept_ceilings(workbench.device)
    return {item.nodeid: predicted_seconds(item, workbench.settings, kept) for item in items if CASE in item.stash}


def announcement(predicted: Mapping[str, float], device: Device) -> str:
    """`28 cases, about 3 min` as the last run's pace has it."""
    pace = kept_pace(device)
    seconds = sum(predicted.values()) * (pace or 1.0)
    basis = "" if pace else ", by round figures, as no run has ended here yet"
    return f"{how_many(len(predicted), 'case')}, about {in_words(seconds)}{basis}"


def in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(seconds, 1.0):.0f} s"


def kept_pace(device: Device) -> float | None:
    """None where no run of this machine and build has left one."""
    try:
        data = json.loads(_path(device).read_bytes())
        pace = float(data["pace"])
        is_ours = data["identity"] == json.loads(json.dumps(machine_identity(device.torch_device)))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return pace if is_ours and _is_pace(pace) else None


def keep_pace(device: Device, measured_seconds: float, predicted: float) -> None:
    if measured_seconds < FEWEST_SECONDS or not predicted > 0 or not _is_pace(measured_seconds / predicted):
        return
    content = {"identity": machine_identity(device.torch_device), "pace": measured_seconds / predicted}
    with suppress(OSError):  # or the next run says that it does not know
        path = _path(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content, allow_nan=False, indent=1).encode())


def _is_pace(pace: float) -> bool:
    return math.isfinite(pace) and 1 / MOST < pace < MOST


def _path(device: Device) -> Path:
    """Ranks that share a machine have a pace of their own: an exchange takes what no prediction of a case knows."""
    ranks = (launched() or Launched()).world
    return cache_folder() / f"pace-{device.torch_device.type}{f'-{ranks}-ranks' if ranks > 1 else ''}.json"
