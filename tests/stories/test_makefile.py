"""What `make test` runs of both suites: everywhere on the CPU, and where there is an NVIDIA driver on its GPU too."""

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.selected import selectable_cases
from perf_tests.cases.settings import Settings
from tests.rules.test_against import settings
from tests.support.fake_cuda import FakeCuda
from tests.support.launch import ROOT

DRIVER = Path("/proc/driver/nvidia/version")


def commands(*variables: str, path: str = os.environ["PATH"]) -> list[str]:
    """The arguments of each pytest that `make test-suites` would start."""
    environment = {**os.environ, "PATH": path, "MAKEFLAGS": ""}
    words = ["make", "--dry-run", "test-suites", *variables]
    printed = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    return [line.partition("/pytest ")[2] for line in printed.splitlines() if "/pytest " in line]


def said_of_the_tests(venv: Path) -> str:
    words = ["make", "--no-print-directory", "how-long", f"VENV={venv}"]
    environment = {**os.environ, "MAKEFLAGS": ""}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_make_test_says_how_long_it_took_the_last_time_here(tmp_path: Path) -> None:
    (tmp_path / ".installed").touch()
    assert said_of_the_tests(tmp_path) == "make test: not timed here yet; the next one says how long it takes"
    (tmp_path / ".test-minutes").write_text("about 7 min, as the last time here\n")
    assert said_of_the_tests(tmp_path) == "make test: about 7 min, as the last time here"


def on_a_gpu(command: str) -> Settings:
    typed = {name[2:]: value for name, value in pairwise(command.split()) if name.startswith("--") and value[0] != "-"}
    return settings(device="cuda", **typed)


def test_without_a_driver_the_numerics_run_on_the_cpu_alone_and_the_default_grid_as_it_is() -> None:
    ran = commands("NVIDIA=")
    assert [command.split()[-1] for command in ran if command.startswith("numerics_tests")] == ["cpu"]
    assert "perf_tests --phase all --size tiny --benchmark-disable" in ran


def test_with_one_the_numerics_run_on_both_and_a_cuda_graph_is_replayed() -> None:
    ran = commands("NVIDIA=yes")
    assert [command.split()[-1] for command in ran if command.startswith("numerics_tests")] == ["cpu", "cuda"]
    (graphs,) = (command for command in ran if "reduce-overhead" in command)
    assert graphs.startswith("perf_tests/test_full_step.py ")


def test_with_one_each_benchmark_runs_at_a_few_shapes_and_few_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    (command,) = (command for command in commands("NVIDIA=yes") if command.startswith("perf_tests --phase all"))
    smoke, default = on_a_gpu(command), settings(device="cuda", size="tiny", phase="all")
    assert (selectable_cases(smoke), selectable_cases(default)) == (36, 288)
    compiled = [sum(case[3] == "compiled" for case in AttentionCase.grid(grid)) for grid in (smoke, default)]
    assert compiled == [4, 40]  # each forward and backward


@pytest.mark.skipif(DRIVER.exists(), reason="this machine shows its driver's file")
@pytest.mark.parametrize("exit_code, is_found", [(0, True), (9, False)])
def test_a_driver_without_its_file_is_found_by_its_tool(tmp_path: Path, exit_code: int, is_found: bool) -> None:
    """`nvidia-smi` may also be there without a driver; then it fails."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    tool.chmod(0o755)
    assert any("cuda" in command for command in commands(path=f"{tmp_path}:{os.environ['PATH']}")) is is_found
