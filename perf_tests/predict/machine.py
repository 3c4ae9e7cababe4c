"""The ceilings of this machine, measured once and then read from the user's cache, which all checkouts share."""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.device import device_named
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.bound import time
from perf_tests_suite.perf_tests.hardware.clock import matmul_rate, memory_rate, strided_rate
from perf_tests_suite.perf_tests.hardware.cores import physical_cores
from perf_tests_suite.perf_tests.hardware.datasheets import Room
from perf_tests_suite.perf_tests.hardware.device import Device, open_device, proc_values
from perf_tests_suite.perf_tests.hardware.limits import KERNEL_SECONDS, LAST_WAVE_ELEMENTS, Ceilings
from perf_tests_suite.perf_tests.hardware.machine import OtherProcesses, stable_facts
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.cuda_rules import libraries_here
from perf_tests_suite.perf_tests.predict.kept import keep, kept
from perf_tests_suite.perf_tests.predict.step import TargetMachine
from perf_tests_suite.perf_tests.records.record import Json, cache_folder

FORMAT_VERSION = 4


MOST_OTHER_CORES = 0.5
"""Processors that other processes may use, on average, while ceilings are measured that are to be kept."""


MEASURED_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


NARROW = ModelConfig(d_model=16, d_ff=16, num_layers=8, num_heads=2, vocab_size=16, context_length=4)


_ROUNDS = 20


def this_machine() -> TargetMachine:
    """The GPU if there is one, else the CPU with all its cores."""
    torch.set_num_threads(physical_cores())
    device = open_device(device_named("auto"))
    kind = device.torch_device.type
    room = Room(device.available_bytes(), "free now")
    on_gpu = kind == "cuda"
    name = torch.cuda.get_device_name(device.torch_device) if on_gpu else "this CPU"
    ceilings = replace(ceilings_here(device), name=name)
    # All published times are of GPUs.
    return TargetMachine(name, kind, room, ceilings, on_gpu, libraries_here(device.torch_device))


def ceilings_here(device: Device) -> Ceilings:
    """This machine's ceilings: from the cache if it holds them, else measured in a few seconds and cached."""
    return kept_ceilings(device) or ceilings_of_now(device)


def kept_ceilings(device: Device) -> Ceilings | None:
    """Read the ceilings from the cache; None where it is broken, of another machine, or empty."""

    def built(given: Json) -> Ceilings | None:
        found = Ceilings(**{field.name: given[field.name] for field in fields(Ceilings)})
        return found if "fp32" in found.matmul_flops_per_second else None

    return kept(cache_path(device.torch_device).name, machine_identity(device.torch_device), "ceilings", built)


def ceilings_of_now(device: Device) -> Ceilings:
    """Measured in a few seconds, and cached where that is allowed.

    Ceilings of a busy machine are not, or every later prediction would be too slow.
    """
    identity, others = machine_identity(device.torch_device), OtherProcesses()
    measured = measured_ceilings(device)
    cores = others.cores()
    if (os.getloadavg()[0] if cores is None else cores) > MOST_OTHER_CORES:
        return replace(measured, source="measured now on a busy machine and not cached; measure again on an idle one")
    keep(cache_path(device.torch_device).name, identity, "ceilings", asdict(measured))
    return measured


def measured_ceilings(device: Device) -> Ceilings:
    """Measured now, in a few seconds, and memory given back."""
    precisions = [name for name in MEASURED_PRECISIONS if PRECISIONS[name].why_unsupported(device.torch_device) is None]
    rates = {name: matmul_rate(PRECISIONS[name], device) for name in precisions}
    PRECISIONS["fp32"].apply()
    bytes_per_second, (forward, backward, bare) = memory_rate(device).sustained, launch_seconds(device)
    on_gpu = device.torch_device.type != "cpu"
    device.release_memory()
    return Ceilings(
        name=f"this {device.torch_device.type}",
        matmul_flops_per_second={name: rate.sustained for name, rate in rates.items()},
        bytes_per_second=bytes_per_second,
        launch_seconds=forward,
        backward_launch_seconds=backward,
        bare_launch_seconds=bare,
        loop_launch_seconds=bare,
        launches_overlap=on_gpu,
        source=f"measured on this machine on {datetime.now(UTC):%Y-%m-%d}, cached in {cache_path(device.torch_device)}",
        burst_flops_per_second={name: rate.burst for name, rate in rates.items()},
        strided_elements_per_second=strided_rate(device).sustained if on_gpu else None,
        last_wave_elements=LAST_WAVE_ELEMENTS if on_gpu else 0,
        kernel_seconds=KERNEL_SECONDS if on_gpu else 0.0,
        multiprocessors=torch.cuda.get_device_properties(device.torch_device).multi_processor_count if on_gpu else 0,
    )


def machine_identity(device: torch.device) -> dict[str, Any]:
    """Everything that must be equal for earlier ceilings to hold."""
    facts = stable_facts(device, torch.get_num_threads())
    cpu = next(iter(proc_values("cpuinfo", "model name")), platform.processor())
    return {**facts, "host": platform.node(), "cpu": cpu, "format_version": FORMAT_VERSION}


def cache_path(device: torch.device) -> Path:
    return cache_folder() / f"ceilings-{device.type}.json"


def launch_seconds(device: Device) -> tuple[float, float, float]:
    """Host seconds per launch of an eager forward pass, of an eager backward pass and of AdamW as a loop.

    The model is so narrow that its kernels take no time. A chain of bare operations would understate the overhead:
    between two launches of a model run its modules, views and autograd's bookkeeping.
    """
    model = TransformerLM(NARROW, ATTENTION["naive"].build()).to(device.torch_device)
    training = Training(model, PRECISIONS["fp32"], device.torch_device, "loop")
    tokens_BT = torch.zeros(1, NARROW.context_length, dtype=torch.int64, device=device.torch_device)
    rounds = []
    for _ in range(_ROUNDS):
        training.clear_gradients()
        device.synchronize()
        moments = [time.perf_counter()]
        output = training.forward(tokens_BT).sum()
        works: tuple[Callable[[], object], ...] = (lambda: None, partial(training.backward, output), training.update)
        for work in works:
            work()
            device.synchronize()
            moments.append(time.perf_counter())
        rounds.append([end - start for start, end in pairwise(moments)])
    case = LanguageModelCase(
        phase="forward", size="narrow", config=NARROW, context_length=NARROW.context_length, batch_size=1,
        precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer=None,
        device=device.torch_device.type, model="ours",
    )  # fmt: skip
    cases = case, replace(case, phase="backward"), replace(case, phase="optimizer", optimizer="loop")
    # The least and not the median of the rounds: what disturbs launching only adds to it.
    forward, backward, update = (
        min(seconds) / counters_of(one).kernel_launches
        for seconds, one in zip(zip(*rounds, strict=True), cases, strict=True)
    )
    return forward, backward, update
