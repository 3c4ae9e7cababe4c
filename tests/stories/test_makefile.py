"""What `make` plans: both suites, on a GPU too where there is an NVIDIA driver; another torch; all wheels but one."""

import os
import re
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.cases import attention, selected
from tests.rules.test_against import settings
from tests.support.fake_cuda import FakeCuda
from tests.support.launch import ROOT

DRIVER = Path("/proc/driver/nvidia/version")


def make(*words: str, path: str = os.environ["PATH"]) -> str:
    environment = {**os.environ, "PATH": path, "MAKEFLAGS": ""}
    return subprocess.check_output(["make", "--no-print-directory", *words], cwd=ROOT, env=environment, text=True)


def pytests(*variables: str, **named: str) -> list[str]:
    """The arguments of each pytest that `make test-suites` would start."""
    printed = make("--dry-run", "test-suites", *variables, **named)
    return [line.partition("/pytest ")[2] for line in printed.splitlines() if "/pytest " in line]


def test_make_test_says_how_long_it_took_the_last_time_here(tmp_path: Path) -> None:
    (tmp_path / ".installed").touch()
    assert make("how-long", f"VENV={tmp_path}").startswith("make test: not timed here yet")
    (tmp_path / ".test-minutes").write_text("about 7 min, as the last time here\n")
    assert make("how-long", f"VENV={tmp_path}") == "make test: about 7 min, as the last time here\n"


@pytest.mark.parametrize("has_driver", [False, True])
def test_with_a_driver_the_suites_run_on_its_gpu_too(has_driver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There few cases are compiled, each forward and backward."""
    ran = pytests(f"NVIDIA={'yes' if has_driver else ''}")
    devices = [command.split()[-1] for command in ran if command.startswith("numerics_tests")]
    graphs = [command for command in ran if "reduce-overhead" in command]
    (smoke,) = (command for command in ran if command.startswith("perf_tests --phase all"))
    if not has_driver:
        assert (devices, graphs) == (["cpu"], [])
        assert smoke == "perf_tests --phase all --size tiny --benchmark-disable"
        return
    assert devices == ["cpu", "cuda"]
    assert pytests("NVIDIA=yes", "GPU_TESTS=") == ran[:4], "a slice of its own"
    assert [command.split()[0] for command in graphs] == ["perf_tests/test_full_step.py"]
    skipped = re.compile(r"skipif\(not torch\.cuda\.is_available\(\)")
    needs_one = {path for path in (ROOT / "tests").rglob("test_*.py") if skipped.search(path.read_text())}
    assert {ROOT / command.split()[0] for command in ran if command.startswith("tests/")} == needs_one != set()
    FakeCuda(monkeypatch)
    typed = {name[2:]: value for name, value in pairwise(smoke.split()) if name.startswith("--") and value[0] != "-"}
    grids = [settings(device="cuda", **words) for words in (typed, {"size": "tiny", "phase": "all"})]
    compiled = [sum(case[3] == "compiled" for case in attention.AttentionCase.grid(grid)) for grid in grids]
    assert ([selected.selectable_cases(grid) for grid in grids], compiled) == ([36, 288], [4, 40])


@pytest.mark.skipif(DRIVER.exists(), reason="this machine shows its driver's file")
@pytest.mark.parametrize("exit_code, is_found", [(0, True), (9, False)])
def test_a_driver_without_its_file_is_found_by_its_tool(tmp_path: Path, exit_code: int, is_found: bool) -> None:
    """`nvidia-smi` may also be there without a driver; then it fails."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    tool.chmod(0o755)
    assert any("cuda" in command for command in pytests(path=f"{tmp_path}:{os.environ['PATH']}")) is is_found


def test_make_nsys_captures_only_the_measured_rounds_and_without_nsys_says_what_to_do() -> None:
    installed = ("-o", ".venv/.installed", "nsys")  # taken for made
    (command,) = (line for line in make(*installed, "--dry-run").splitlines() if line.startswith("nsys profile"))
    options = {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--sample=none", "--cpuctxsw=none"}
    assert {*options, "--export=sqlite"} <= set(command.split())
    assert not any(costly in command for costly in ("backtrace", "autograd"))
    with pytest.raises(subprocess.CalledProcessError) as ended:
        make(*installed, "NSYS=no-such-nsys")
    assert ended.value.returncode == 2
    assert (
        "(nsys) is not on the PATH. Install it from https://developer.nvidia.com/nsight-systems" in ended.value.output
    )
    assert "make perf ARGS=--kernels" in ended.value.output


def test_another_torch_is_installed_into_a_folder_of_its_own_and_pinned_by_nothing_else() -> None:
    planned = make("--dry-run", "--always-make", "test-suites", "TORCH=2.11.0")
    assert ".venv-2.11.0/bin/pytest perf_tests" in planned
    assert ".venv/" not in planned
    assert "sed '/^torch==/d' constraints.txt" in planned


def test_make_wheels_packs_every_dependency_by_its_exact_version_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["nvidia"]]
    needed = {re.split(r"[^\w-]", line)[0] for line in lines}
    assert needed <= set(re.findall(r"^[\w-]+", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    (left_out,) = re.findall(r"sed -E '/\^\(#\|(.*)=\)/d' constraints\.txt", (ROOT / "Makefile").read_text())
    assert needed & set(left_out.split("=|")) == {"torch"}


def test_make_offline_takes_what_the_machine_has_and_nothing_is_installed_after_it(tmp_path: Path) -> None:
    """A tree that is copied anew is newer than what was installed; there is no network to install it again."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / ".installed").touch()
    os.utime(tmp_path / ".installed", (0, 0))
    planned = ["--dry-run", f"VENV={tmp_path}", f"INSTALLED={tmp_path}/.installed", "expedition", "SLICE=1"]
    assert "pip install" in make(*planned)
    (tmp_path / ".offline").touch()
    assert "pip install" not in make(*planned)
    packed = make("--dry-run", "wheels", "PYTHON=python3")
    assert "rm -f wheels/numpy-*.whl wheels/scipy-*.whl wheels/jinja2-*.whl wheels/markupsafe-*.whl" in packed
    assert "/^numpy=/d; /^scipy=/d; /^jinja2=/d; /^markupsafe=/d;s/==/>=/" in packed
