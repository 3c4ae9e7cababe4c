"""A few rounds of a case under torch.profiler, as a Chrome trace with the model's regions in it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from model.regions import regions_opened_by
from perf_tests.instruments.device import Device
from perf_tests.instruments.exported_trace import exported_trace
from perf_tests.instruments.garbage import no_collections
from perf_tests.instruments.torch_private import profiler_is_active

PLAIN_ROUNDS = 2
"""Without the profiler: the first is cold, the second gives the time of a round without the profiler's overhead."""

WARMUP_ROUNDS = 2
"""Under the profiler and discarded, because its first use is slow."""

TRACED_ROUNDS = 2
"""Two, to detect a count that differs between them."""

ALL_ROUNDS = PLAIN_ROUNDS + WARMUP_ROUNDS + TRACED_ROUNDS

ROUND, SET_UP = "round", "set-up"
"""Regions around what is timed and around its set-up; all others are the model's."""

NSYS_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NSYS_TARGET_STD_REDIRECT_ACTIVE")
"""Set by Nsight Systems in processes that it starts."""


class ProfilerBusyError(Exception):
    """Something else profiles this process; the message is one sentence."""


@dataclass(frozen=True)
class TracedRounds:
    """`plain_seconds` is one round without the profiler; `trace` is Kineto's JSON."""

    plain_seconds: float
    trace: bytes


Around = Callable[[], AbstractContextManager[object]]
"""Makes the context that half a round runs in."""

PlayRound = Callable[[Around, Around], None]
"""Runs one round, its set-up inside the first context and its target inside the second."""


def trace_rounds(play: PlayRound, device: Device) -> TracedRounds:
    """Run a few rounds and trace the last ones. Raises ProfilerBusyError."""
    check_no_profiler()
    plain_seconds = 0.0
    traces: list[bytes] = []
    on_gpu = device.torch_device.type == "cuda"
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
        schedule=schedule(wait=PLAIN_ROUNDS, warmup=WARMUP_ROUNDS, active=TRACED_ROUNDS),
        on_trace_ready=lambda profiler: traces.append(exported_trace(profiler.export_chrome_trace)),
        record_shapes=True,
    ) as profiler:
        for number in range(ALL_ROUNDS):
            is_plain = number < PLAIN_ROUNDS
            halves = _Halves(device, nullcontext if is_plain else record_function)
            with nullcontext() if is_plain else regions_opened_by(_open_region):
                play(halves.set_up, halves.target)
            if is_plain:
                plain_seconds = halves.target_seconds
            profiler.step()
    return TracedRounds(plain_seconds, traces[0])


@dataclass
class _Halves:
    """The contexts of set-up and target; each waits for the device."""

    device: Device
    annotate: Callable[[str], AbstractContextManager[object]]
    target_seconds: float = 0.0

    @contextmanager
    def set_up(self) -> Iterator[None]:
        with self.annotate(SET_UP):
            yield
            self.device.synchronize()

    @contextmanager
    def target(self) -> Iterator[None]:
        with no_collections(), self.annotate(ROUND):
            start = time.perf_counter()
            yield
            self.device.synchronize()
            self.target_seconds = time.perf_counter() - start


def _open_region(name: str) -> AbstractContextManager[object]:
    # Inside compiled code there is nothing to mark: the regions are fused into one kernel.
    return nullcontext() if torch.compiler.is_compiling() else record_function(name)


def check_no_profiler(option: str = "--kernels") -> None:
    """Raises ProfilerBusyError where another profiler is active, so that that of `option` would conflict with it."""
    running = next((name for name in NSYS_VARIABLES if os.environ.get(name)), None)
    if running is not None:
        raise ProfilerBusyError(
            f"Nsight Systems profiles this process ({running} is set), and a device allows one profiler at a time; "
            f"run without {option} under nsys, or with {option} without nsys."
        )
    if profiler_is_active():
        raise ProfilerBusyError(
            "A PyTorch profiler is already active in this process, and two cannot run at once; "
            f"stop it, or run without {option}."
        )
