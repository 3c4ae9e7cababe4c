"""`--nvtx`: the regions of the measured rounds become NVTX ranges in a domain of their own, and nothing is timed."""

import importlib.util
import subprocess
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import nvtx
import pytest
import torch

from model.regions import region, regions_opened_by
from perf_tests.hardware import clock as nvtx_ranges
from perf_tests.hardware.clock import DOMAIN, NvtxRanges, capture
from perf_tests.passes.kernels import ROUND, SET_UP
from perf_tests.traces import trace as chrome_trace
from perf_tests.traces import trace as nsys_sqlite
from tests.support.example_cases import CPU, build, random_tokens
from tests.support.launch import ROOT, launch

ONE_CASE = ("--phase=forward", "-k=not attention", "--threads=1")


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What the package gives for the suite's domain, while a profiler listens."""
    domain = Mock()
    domain.get_event_attributes.side_effect = lambda message: message
    monkeypatch.setattr(nvtx, "get_domain", {DOMAIN: domain}.__getitem__)
    return domain


def told(domain: Mock) -> list[str]:
    ranges = [(name, arguments) for name, arguments, _ in domain.method_calls if name.endswith("_range")]
    return [" ".join([name.removesuffix("_range"), *arguments]) for name, arguments in ranges]


def test_regions_become_nested_ranges_that_end_also_when_the_regions_fail(domain: Mock) -> None:
    opened = regions_opened_by(NvtxRanges())
    with pytest.raises(RuntimeError, match="planted"), opened, region("attention"), region("softmax"):
        raise RuntimeError("planted")
    assert told(domain) == ["push attention", "push softmax", "pop", "pop"]


def test_each_name_is_registered_once_however_many_layers_bear_it(domain: Mock) -> None:
    with regions_opened_by(NvtxRanges()):
        build()(random_tokens())
    registered = [call.kwargs["message"] for call in domain.get_event_attributes.call_args_list]
    assert len(registered) == len(set(registered)) > 5
    assert told(domain).count("push softmax") == 2
    assert told(domain).count("pop") * 2 == len(told(domain))


def test_compiled_code_holds_no_ranges(domain: Mock) -> None:
    with regions_opened_by(NvtxRanges()):
        torch.compile(build(), fullgraph=True, backend="eager", dynamic=False)(random_tokens())
    assert told(domain) == []


def test_the_names_are_those_that_traces_and_reports_are_read_by() -> None:
    assert nsys_sqlite.DOMAIN == DOMAIN
    assert (chrome_trace.ROUND, chrome_trace.SET_UP) == (ROUND, SET_UP)


def test_on_a_gpu_the_capture_encloses_the_measured_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: told.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: told.append("stop"))
    with suppress(RuntimeError), capture(torch.device("cuda")):
        told.append("rounds")
        raise RuntimeError("a planted failure")
    assert told == ["start", "rounds", "stop"]
    with capture(CPU):
        pass
    assert len(told) == 3


def test_a_run_with_ranges_times_and_saves_nothing(tmp_path: Path) -> None:
    ranged = launch(tmp_path / "storage", *ONE_CASE, "--nvtx", "--benchmark-autosave")
    assert ranged.exit_code == 0, ranged.output + ranged.errors
    assert "nothing is timed and nothing is saved" in ranged.output
    assert "Median" not in ranged.output
    assert "Benchmark fixture" not in ranged.output  # what pytest-benchmark warns of
    assert [path for path in ranged.storage.rglob("*") if path.is_file()] == []


def test_ranges_are_refused_together_with_another_profiler(tmp_path: Path) -> None:
    refused = launch(tmp_path / "storage", *ONE_CASE, "--nvtx", "--kernels")
    assert refused.exit_code == 4
    assert "--nvtx is for a run under Nsight Systems and cannot be combined with --kernels." in refused.errors


def test_without_the_package_ranges_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "it is not installed; run `pip install nvtx`" in str(nvtx_ranges.why_no_ranges())


def made(*words: str) -> subprocess.CompletedProcess[str]:
    # The installation is taken for made.
    return subprocess.run(["make", "-o", ".venv/.installed", *words], cwd=ROOT, capture_output=True, text=True)


def test_make_nsys_captures_only_the_measured_rounds_and_samples_nothing() -> None:
    (command,) = (line for line in made("nsys", "--dry-run").stdout.splitlines() if line.startswith("nsys profile"))
    options = {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--sample=none", "--cpuctxsw=none"}
    assert {*options, "--export=sqlite"} <= set(command.split())
    for costly in ("backtrace", "autograd"):
        assert costly not in command


def test_make_nsys_without_nsys_says_so_and_what_to_do() -> None:
    ended = made("nsys", "NSYS=no-such-nsys")
    assert ended.returncode == 2
    assert "(nsys) is not on the PATH. Install it from https://developer.nvidia.com/nsight-systems" in ended.stdout
    assert "make perf ARGS=--kernels" in ended.stdout
