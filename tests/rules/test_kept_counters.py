"""Counters kept between runs are those that counting gives, and are counted again when anything changes."""

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perf_tests.hardware.datasheets import CudaLibraries
from perf_tests.predict import counters as kept_counters
from perf_tests.predict.counters import MOST_FOLDERS, Counters, counters_or_reason, kept_counters_or_reason
from tests.support.example_cases import attention_case, language_model_case

CASE = language_model_case()
LIBRARIES = CudaLibraries("flash", 8_519_680, "a rule", "a rule")


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The cases that were counted, with a cache of the test's own."""
    done: list[object] = []

    def count(case: object, libraries: object = None) -> tuple[Counters | None, str | None]:
        done.append(case)
        return counters_or_reason(case, libraries)  # type: ignore[arg-type]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept_counters, "counters_or_reason", count)
    return done


@pytest.mark.parametrize("case", [CASE, language_model_case(phase="full_step", optimizer="foreach"), attention_case()])
def test_the_second_run_reads_what_the_first_counted(case: object, counted: list[object]) -> None:
    first, second = kept_counters_or_reason(case), kept_counters_or_reason(case)  # type: ignore[arg-type]
    assert first == second == counters_or_reason(case)  # type: ignore[arg-type]
    assert len(counted) == 1
    assert first[0] is not None


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "the source": lambda patch: patch.setattr(kept_counters, "digest_of_suite", lambda: "another"),
    "torch": lambda patch: patch.setattr(torch, "__version__", "9.9.9"),
    "Python": lambda patch: patch.setattr("sys.version", "another"),
    "a variable of torch": lambda patch: patch.setenv("TORCH_SOMETHING", "1"),
    "deterministic algorithms": lambda patch: patch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: 1),
}


def test_a_change_of_what_a_count_depends_on_counts_again(counted: list[object]) -> None:
    kept_counters_or_reason(CASE)
    for number, change in enumerate(CHANGES.values(), 2):
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            kept_counters_or_reason(CASE)
        assert len(counted) == number


def test_each_case_and_each_library_has_counters_of_its_own(counted: list[object]) -> None:
    on_gpu = replace(CASE, device="cuda")
    for case, libraries in ((CASE, None), (on_gpu, None), (on_gpu, LIBRARIES), (replace(CASE, batch_size=3), None)):
        assert kept_counters_or_reason(case, libraries) == counters_or_reason(case, libraries)
    assert len(counted) == 4


@pytest.mark.parametrize("changes", [{"attention": "mine.py:attention"}, {"execution": "compiled"}])
def test_what_is_the_users_own_or_has_no_counters_is_asked_for_in_every_run(
    changes: dict[str, str], counted: list[object], tmp_path: Path
) -> None:
    case = replace(CASE, **changes)  # type: ignore[arg-type]
    assert kept_counters_or_reason(case) == kept_counters_or_reason(case)
    assert len(counted) == 2
    assert list(tmp_path.rglob("*.json")) == []


def test_a_broken_file_is_counted_and_written_again(counted: list[object], tmp_path: Path) -> None:
    whole = kept_counters_or_reason(CASE)
    (path,) = tmp_path.rglob("*.json")
    good = json.loads(path.read_text())
    kept = good["counters"]
    broken = [{**good, "counters": {name: kept[name] for name in kept.keys() - {"kernels"}}},
              {**good, "counters": {**kept, "unknown": 1}}, {**good, "case": "another"}]  # fmt: skip
    for content in ("", "{", "[]", "null", '{"case": "another", "counters": {}}', *map(json.dumps, broken)):
        done = len(counted)
        path.write_text(content)
        assert kept_counters_or_reason(CASE) == kept_counters_or_reason(CASE) == whole
        assert len(counted) == done + 1, content


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    counted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert kept_counters_or_reason(CASE) == kept_counters_or_reason(CASE) == counters_or_reason(CASE)


def test_the_oldest_states_of_the_code_are_removed(
    counted: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(MOST_FOLDERS + 3):
        monkeypatch.setattr(kept_counters, "digest_of_suite", lambda number=number: str(number))
        kept_counters_or_reason(CASE)
    assert len(list((tmp_path / "transformer-perf-tests/counters").iterdir())) == MOST_FOLDERS


def _count_in_a_process(folder: str) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        return all(kept_counters_or_reason(CASE) == counters_or_reason(CASE) for _ in range(3))


def test_two_runs_at_once_read_whole_files(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all(pool.map(_count_in_a_process, [str(tmp_path)] * 4))
    assert [path.name for path in tmp_path.rglob(".unfinished*")] == []
