"""`--nvtx`: the regions of the measured rounds become NVTX ranges in a domain of their own, and nothing is timed."""

import importlib.util
import subprocess
from contextlib import suppress
from pathlib import Path

import nvtx
import pytest
import torch

from model.regions import region, regions_opened_by
from perf_tests.instruments import nvtx_ranges
from perf_tests.instruments.kernels import ROUND, SET_UP
from perf_tests.instruments.nvtx_ranges import DOMAIN, NvtxRanges, capture
from perf_tests.meta_tests.example_cases import CPU, build, random_tokens
from perf_tests.meta_tests.launch import ROOT, Launch, launch
from perf_tests.traces import chrome_trace, nsys_sqlite

ONE_CASE = ("--phase=forward", "-k=not attention", "--threads=1")


class Domain:
    """What the package gives for a domain, while a profiler listens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.registered: list[str] = []
        self.told: list[str] = []

    def get_event_attributes(self, message: str) -> str:
        self.registered.append(message)
        return message

    def push_range(self, attributes: str) -> None:
        self.told.append(f"push {attributes}")

    def pop_range(self) -> None:
        self.told.append("pop")


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Domain:
    domain = Domain("")

    def get_domain(name: str) -> Domain:
        domain.name = name
        return domain

    monkeypatch.setattr(nvtx, "get_domain", get_domain)
    return domain


def test_regions_become_nested_ranges_of_the_suites_domain(domain: Domain) -> None:
    with regions_opened_by(NvtxRanges()), region("attention"), region("softmax"):
        pass
    assert domain.name == DOMAIN
    assert domain.told == ["push attention", "push softmax", "pop", "pop"]


def test_a_range_ends_when_its_region_fails(domain: Domain) -> None:
    with pytest.raises(RuntimeError, match="planted"), regions_opened_by(NvtxRanges()), region("softmax"):
        raise RuntimeError("planted")
    assert domain.told == ["push softmax", "pop"]


def test_each_name_is_registered_once_however_many_layers_bear_it(domain: Domain) -> None:
    with regions_opened_by(NvtxRanges()):
        build()(random_tokens())
    assert len(domain.registered) == len(set(domain.registered)) > 5
    assert domain.told.count("push softmax") == 2


def test_compiled_code_holds_no_ranges(domain: Domain) -> None:
    with regions_opened_by(NvtxRanges()):
        model, tokens = build(), random_tokens()
        compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
        compiled(tokens)
    assert domain.told == []


def test_the_names_are_those_that_traces_and_reports_are_read_by() -> None:
    assert nsys_sqlite.DOMAIN == DOMAIN
    assert (chrome_trace.ROUND, chrome_trace.SET_UP) == (ROUND, SET_UP)


def test_on_a_gpu_the_capture_starts_before_the_measured_rounds_and_stops_after_them(
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


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return launch(tmp_path_factory.mktemp("ranged") / "storage", *ONE_CASE, "--nvtx", "--benchmark-autosave")


def test_a_run_with_ranges_times_and_saves_nothing(ranged: Launch) -> None:
    assert ranged.exit_code == 0, ranged.output + ranged.errors
    assert "nothing is timed and nothing is saved" in ranged.output
    assert "Median" not in ranged.output
    assert "warning" not in ranged.output
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
    for option in (
        "cudaProfilerApi",
        "--capture-range-end=stop",
        "--sample=none",
        "--cpuctxsw=none",
        "--export=sqlite",
    ):
        assert option in command
    for costly in ("backtrace", "autograd"):
        assert costly not in command


def test_make_nsys_without_nsys_says_so_and_what_to_do() -> None:
    ended = made("nsys", "NSYS=no-such-nsys")
    assert ended.returncode == 2
    assert "(nsys) is not on the PATH. Install it from https://developer.nvidia.com/nsight-systems" in ended.stdout
    assert "make perf ARGS=--kernels" in ended.stdout
