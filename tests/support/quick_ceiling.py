"""A plugin for launches that look at outcomes and not at figures: a machine and its ceilings in no time.

PLANTED_FLOPS_PER_SECOND is the rate of its matrix products; without it nothing is too fast.
"""

import math
import os

import cpuinfo  # type: ignore[import-untyped]
import pytest

from perf_tests_suite.model.precision import Precision
from perf_tests_suite.perf_tests.hardware import clock as roofline
from perf_tests_suite.perf_tests.hardware.device import Device
from perf_tests_suite.perf_tests.hardware.limits import Ceilings, Rate
from perf_tests_suite.perf_tests.predict import machine as machine_ceilings


def planted() -> float:
    return float(os.environ.get("PLANTED_FLOPS_PER_SECOND", "1e18"))


def matmul_rate(precision: Precision, device: Device, enough: float = math.inf) -> Rate:
    precision.apply()
    return Rate(planted(), planted())


def ceilings_of_now(device: Device) -> Ceilings:
    return Ceilings("a planted machine", {"fp32": planted()}, 1e15, 1e-9, 1e-9, 1e-9, 1e-9, False, "planted")


def pytest_configure(config: pytest.Config) -> None:
    cpuinfo.get_cpu_info = lambda: {"brand_raw": "a planted CPU", "hz_actual": [2, 0]}
    roofline.matmul_rate = matmul_rate
    machine_ceilings.kept_ceilings = lambda device: None
    machine_ceilings.ceilings_of_now = ceilings_of_now
