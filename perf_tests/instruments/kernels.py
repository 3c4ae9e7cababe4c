"""A few rounds of a case under torch.profiler, as a Chrome trace with the model's regions in it."""

import gc
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from model.regions import regions_opened_by
from perf_tests.instruments.device import Device
from perf_tests.instruments.torch_private import profiler_is_active

PLAIN_ROUNDS = 2
"""Without the profiler: the first is cold, the second is what a round takes without the profiler's overhead."""

WARMUP_ROUNDS = 2
"""Under the profiler, thrown away: its own first use is slow."""

TRACED_ROUNDS = 2
"""Two, so that a count that differs between them is seen."""

ALL_ROUNDS = PLAIN_ROUNDS + WARMUP_ROUNDS + TRACED_ROUNDS

ROUND, SET_UP = "round", "set-up"
"""Regions around what is timed and around what is not; everything else is the model's own."""

NSYS_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NSYS_TARGET_STD_REDIRECT_ACTIVE")
"""Set by Nsight Systems in what it starts."""


class ProfilerBusyError(Exception):
    """Something else profiles this process; the message is one sentence."""


@dataclass(frozen=True)
class TracedRounds:
    """`plain_seconds` is one round without the profiler; `trace` is Kineto's JSON; `result` is the last round's."""

    plain_seconds: float
    trace: bytes
    result: Any


def trace_rounds(target: Callable[..., Any], setup: Callable[[], tuple[Any, ...]], device: Device) -> TracedRounds:
    """Run `target(*setup())` a few times, the last of them traced. Raises ProfilerBusyError."""
    check_no_profiler()
    plain_seconds, result = 0.0, None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with profile(
            activities=_activities(device),
            schedule=schedule(wait=PLAIN_ROUNDS, warmup=WARMUP_ROUNDS, active=TRACED_ROUNDS),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
            record_shapes=True,
        ) as profiler:
            for number in range(ALL_ROUNDS):
                result = None
                is_plain = number < PLAIN_ROUNDS
                with nullcontext() if is_plain else regions_opened_by(_open_region):
                    seconds, result = _round(target, setup, device, nullcontext if is_plain else record_function)
                if is_plain:
                    plain_seconds = seconds
                profiler.step()
        return TracedRounds(plain_seconds, path.read_bytes(), result)


def _round(
    target: Callable[..., Any],
    setup: Callable[[], tuple[Any, ...]],
    device: Device,
    annotate: Callable[[str], AbstractContextManager[object]],
) -> tuple[float, Any]:
    with annotate(SET_UP):
        arguments = setup()
        device.synchronize()
    gc.disable()
    try:
        with annotate(ROUND):
            start = time.perf_counter()
            result = target(*arguments)
            device.synchronize()
            return time.perf_counter() - start, result
    finally:
        gc.enable()


def _open_region(name: str) -> AbstractContextManager[object]:
    # Inside compiled code there is nothing to mark: what the regions held apart is one kernel there.
    return nullcontext() if torch.compiler.is_compiling() else record_function(name)


def _activities(device: Device) -> list[ProfilerActivity]:
    on_gpu = device.torch_device.type == "cuda"
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]


def check_no_profiler(option: str = "--kernels") -> None:
    """Raises ProfilerBusyError where a second profiler, that of `option`, would get nothing or take it from another."""
    running = next((name for name in NSYS_VARIABLES if os.environ.get(name)), None)
    if running is not None:
        raise ProfilerBusyError(
            f"Nsight Systems profiles this process ({running} is set), and only one profiler can watch a device at a "
            f"time; run without {option} under nsys, or with {option} without nsys."
        )
    if profiler_is_active():
        raise ProfilerBusyError(
            "A PyTorch profiler is already active in this process, and two cannot run at once; "
            f"stop it, or run without {option}."
        )
