"""What steps run on the device: checks, `python -m claims.expedition.on_device NAME`, and models that plant faults.

A check prints one line of JSON; a figure that a device has no way to take is null, with `reason` beside it. The models,
for `--model`, are the suite's own Transformer but for what they plant, which the expedition looks for.
"""

import argparse
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.device import device_named
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.hardware.device import Device, open_device
from perf_tests_suite.perf_tests.hardware.limits import Ceilings
from perf_tests_suite.perf_tests.hardware.machine import NoHealthError, drifting_facts, open_gpu_health, stable_facts
from perf_tests_suite.perf_tests.predict.machine import measured_ceilings
from perf_tests_suite.perf_tests.records.record import Json

PROGRAMS = ("git", "gcc", "nsys")

WIDTH = 4096
PRODUCTS = 20
"""Long enough that the gaps between kernels weigh nothing."""

ROUNDS = 20
QUEUED_WIDTH = 8192
QUEUED_PRODUCTS = 10
"""Bf16 products that occupy a large GPU for 14 ms or more, in which a host issues the smaller ones."""


def facts(device: Device) -> Json:
    """What a record of this machine depends on, and its ceilings."""
    health, why_no_health = None, None
    if device.torch_device.type == "cuda":
        try:
            health = open_gpu_health(device.torch_device)
        except NoHealthError as error:
            why_no_health = str(error)
    ceilings: Ceilings = measured_ceilings(device)
    return {
        **stable_facts(device.torch_device, torch.get_num_threads()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "drifting": drifting_facts(device.torch_device, health),
        "why_no_health": why_no_health,
        "copy_bytes_per_second": copy_bytes_per_second(device),
        "ceilings": asdict(ceilings),
    }


def copy_bytes_per_second(device: Device) -> float:
    """The best of a few copies of one large tensor to another, bytes read and written."""
    source = torch.ones(
        2**26 if device.torch_device.type == "cpu" else 2**32, dtype=torch.uint8, device=device.torch_device
    )
    target = torch.empty_like(source)
    best = min(wall_seconds(lambda: target.copy_(source), device) for _ in range(5))
    return 2 * source.numel() / best


def wall_seconds(work: Callable[[], object], device: Device) -> float:
    device.synchronize()
    start = time.perf_counter()
    work()
    device.synchronize()
    return time.perf_counter() - start


def queue(device: Device) -> Json:
    """Seconds of the same products: by events on an idle stream and behind queued work, by the wall, by the profiler.

    An event on an idle stream stamps at once, so events there include the host's launches; behind queued work they
    hold the device's time alone, as the profiler's kernels do.
    """
    if device.torch_device.type == "cpu":
        return {"reason": "not measured on a CPU, which has no queue of work and no clock of its own"}
    small, large = (torch.randn(n, n, device=device.torch_device, dtype=torch.bfloat16) for n in (WIDTH, QUEUED_WIDTH))

    def products() -> None:
        for _ in range(PRODUCTS):
            torch.mm(small, small)

    def fill_queue() -> None:
        for _ in range(QUEUED_PRODUCTS):
            torch.mm(large, large)

    products()
    fill_queue()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        products()
        device.synchronize()
    kernel_us = sum(event.self_device_time_total for event in profiler.key_averages() if not event.self_cpu_time_total)
    return {
        "idle_event_seconds": event_seconds(products, device, lambda: None),
        "queued_event_seconds": event_seconds(products, device, fill_queue),
        "wall_seconds": median(wall_seconds(products, device) for _ in range(ROUNDS)),
        "kernel_seconds": kernel_us / 1e6,
    }


def event_seconds(work: Callable[[], None], device: Device, before: Callable[[], None]) -> float:
    """The median between two events around `work`, issued after `before` to a device that was idle."""
    seconds = []
    for _ in range(ROUNDS):
        device.synchronize()
        before()
        start = device.record_event()
        work()
        stop = device.record_event()
        device.synchronize()
        assert start is not None
        assert stop is not None
        seconds.append(start.seconds_until(stop))
    return median(seconds)


SLEEP_SECONDS = 0.02
"""Seconds that a pass of small takes on a large GPU, and shorter than a queue of work is held."""


class Unknown(TransformerLM):
    """The suite's model, of which no closed form says beforehand that it will not fit."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, ATTENTION["naive"].build())


class Sleeps(Unknown):
    """The host sleeps before each pass over a batch, while the device has nothing to do."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if len(tokens_BT) > 1:  # not while the suite checks the model, on a batch of 1
            time.sleep(SLEEP_SECONDS)
        return super().forward(tokens_BT)


class AssertsAt256(Unknown):
    """An index on the GPU is out of range at context 256, which makes the device unusable for this process."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if tokens_BT.is_cuda and len(tokens_BT) > 1 and self.config.context_length == 256:
            tokens_BT = tokens_BT + torch.full_like(tokens_BT, self.config.vocab_size)
        return super().forward(tokens_BT)


CHECKS: dict[str, Callable[[Device], Json]] = {"facts": facts, "queue": queue}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.expedition.on_device", description=__doc__)
    parser.add_argument("name", choices=CHECKS)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    print(json.dumps(CHECKS[asked.name](open_device(device_named(asked.device)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
