"""The ceilings of a machine are measured once and kept; a cache that cannot be trusted is measured over."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.precision import PRECISIONS
from perf_tests.instruments import matmul_rate as roofline
from perf_tests.instruments.device import CpuDevice
from perf_tests.limits.ceilings import Ceilings
from perf_tests.meta_tests.example_cases import CEILINGS
from perf_tests.prediction import machine_ceilings
from perf_tests.prediction.machine_ceilings import cache_path, ceilings_here

CPU = CpuDevice(torch.device("cpu"))


@pytest.fixture
def measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Ceilings]:
    """How often the machine was measured, with a cache of the test's own and a measurement that takes no time."""
    done: list[Ceilings] = []

    def measured(device: object) -> Ceilings:
        done.append(replace(CEILINGS, launch_seconds=1e-5 * (len(done) + 1)))
        return done[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_ceilings, "measured_ceilings", measured)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 9.0, 9.0))
    return done


def test_the_second_time_nothing_is_measured(measurements: list[Ceilings]) -> None:
    first, second = ceilings_here(CPU), ceilings_here(CPU)
    assert first == second == measurements[0]
    assert len(measurements) == 1


def test_what_a_busy_machine_measured_is_said_to_be_so_and_not_kept(
    measurements: list[Ceilings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 0.0, 0.0))
    assert "busy machine" in ceilings_here(CPU).source
    assert not cache_path(CPU.torch_device).exists()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 1.0, 0.0))
    assert ceilings_here(CPU) == measurements[1]


def edited(cached: bytes, name: str, value: Any) -> bytes:
    data = json.loads(cached)
    return json.dumps({**data, name: {**data[name], **value} if isinstance(value, dict) else value}).encode()


@pytest.mark.parametrize(
    "edit",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000),
        {"identity": {"cpu": "another"}},
        {"identity": {"torch": "1.0"}},
        {"identity": {"threads": 99}},
        {"identity": None},
        {"ceilings": None},
        {"ceilings": {"bytes_per_second": -1}},
        {"ceilings": {"bytes_per_second": "fast"}},
        {"ceilings": {"launch_seconds": None}},
        {"ceilings": {"matmul_flops_per_second": [1]}},
        {"ceilings": {"matmul_flops_per_second": {"fp32": 0}}},
    ],
)
def test_a_cache_that_is_corrupt_of_another_machine_or_without_sense_is_measured_over(
    measurements: list[Ceilings], edit: bytes | dict[str, Any]
) -> None:
    ceilings_here(CPU)
    path = cache_path(CPU.torch_device)
    path.write_bytes(edit if isinstance(edit, bytes) else edited(path.read_bytes(), *next(iter(edit.items()))))
    assert ceilings_here(CPU) == measurements[1]
    assert ceilings_here(CPU) == measurements[1]


def test_a_folder_that_cannot_be_written_costs_the_cache_and_nothing_else(
    measurements: list[Ceilings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert [ceilings_here(CPU), ceilings_here(CPU)] == measurements
    assert len(measurements) == 2


@pytest.mark.parametrize("folder", ["", "relative/to/anything"])
def test_without_an_absolute_cache_folder_the_home_is_taken(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    assert cache_path(torch.device("cpu")).is_relative_to(Path.home() / ".cache")


def test_the_instruments_find_ceilings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take no time; the figures are real, and only their signs are certain."""
    monkeypatch.setattr(roofline, "_ROUNDS", 2)
    monkeypatch.setattr(roofline, "_WIDTH", {"cpu": 64})
    monkeypatch.setattr(roofline, "_ARRAY_BYTES", {"cpu": 2**20})
    found = machine_ceilings.measured_ceilings(CPU)
    known = machine_ceilings.MEASURED_PRECISIONS
    native = {name for name in known if not PRECISIONS[name].why_unsupported(CPU.torch_device)}
    assert set(found.matmul_flops_per_second) == native
    assert not found.launches_overlap
    assert torch.get_float32_matmul_precision() == "highest"
