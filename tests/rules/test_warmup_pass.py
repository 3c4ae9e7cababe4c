"""The warm-up study: what rounds a process runs, where its first one goes, and what to set."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from perf_tests_suite.perf_tests.audit.rounds import STUDIED_WARMUP_ROUNDS, study_rounds, warmup_values
from perf_tests_suite.perf_tests.bench.worker_plugin import received, sent
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.passes import warmup
from perf_tests_suite.perf_tests.passes.warmup import ROUNDS_BETWEEN, Study, WarmupStudyMeasure, traced_call
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.traces.kernels import TracedRound, first_round_parts
from tests.support.example_cases import CPU, SETTINGS

FALLING = [9.0, 7.0, 5.0, 3.0, 2.5, 2.0]
FIRST_ROUND: Json = {
    "first_round_parts": {"steady_round_seconds": 1.0, "allocator_growth_seconds": 3.0, "unexplained_seconds": 1.0},
    "first_round": {"modules_loaded": 0, "page_faults": 9000, "largest_growth": []},
}


def series(slow: list[float], rounds: int = 10, drift: float = 0.0) -> list[Json]:
    """Every process of a study, each beginning with the `slow` rounds."""
    found = []
    for count in STUDIED_WARMUP_ROUNDS:
        usual = [1.0 + 0.001 * (place % 3) + drift * place for place in range(count + rounds)]
        whole = [*slow, *usual][: count + rounds]
        measured = {"warmup_seconds": whole[:count], "seconds": whole[count:]}
        found.append({"warmup_rounds": count, "leaves_out_timed_phase": False, **measured})
    return found


def without_timed_phase(slow: list[float]) -> Json:
    seconds = [*slow, *[1.0, 1.001, 1.002, 1.0] * 3][:10]
    return {"warmup_rounds": 5, "leaves_out_timed_phase": True, "warmup_seconds": [0.5] * 5, "seconds": seconds}


RECOMMENDED: dict[str, tuple[list[Json], int, str]] = {
    "those slow": (series([5.0, 2.0]), 2, "in all 5 processes; --warmup-rounds 5 covers that."),
    "more than were set": (series(FALLING), 6, "in all 5 processes; set --warmup-rounds 6."),
    "one never settles": ([*series([], drift=0.05)[:1], *series([5.0])[1:]], 1,
                          "1 warm-up round is enough in 4 of 5 processes, those that became steady; "),
    "a machine that drifts": (series([], drift=0.05), max(STUDIED_WARMUP_ROUNDS),
                              "No process became steady within 20 rounds"),
    "too few rounds": (series([2.0], rounds=2)[:1], 5, "give at least --rounds 5"),
    "without the timed phase": ([*series([5.0]), without_timed_phase([3.0])], 1,
                                "After a warm-up without the timed phase, 1 measured round was slow."),
}  # fmt: skip


@pytest.mark.parametrize("what", RECOMMENDED)
def test_as_many_rounds_are_recommended_as_were_slow(what: str) -> None:
    found, rounds, said = RECOMMENDED[what]
    values = warmup_values(found, FIRST_ROUND, 5)
    assert values["recommended_warmup_rounds"] == rounds
    assert values["flags"] == (["short_warmup"] if rounds > 5 else [])
    assert said in values["recommendation"]
    assert ("without the timed phase" in values["recommendation"]) == ("without the timed phase" in said)


def test_rounds_are_numbered_through_the_process_and_the_first_has_its_parts_where_none_warmed_up() -> None:
    rows = warmup_values([*series([5.0, 2.0]), without_timed_phase([3.0])], FIRST_ROUND, 5)["series"]
    assert [row["steady_from_round"] for row in rows] == [3, 3, 3, 3, 3, 7]
    assert [bool(row["first_round_parts"]) for row in rows] == [True, *[False] * 5]
    for process in (series([])[STUDIED_WARMUP_ROUNDS.index(5)], without_timed_phase([])):
        seconds = [*process["seconds"][:3], 9.0, *process["seconds"][4:]]
        for outliers, one in (([], process), ([9], {**process, "seconds": seconds})):
            assert warmup_values([one], FIRST_ROUND, 5)["series"][0]["outliers"] == outliers


def test_a_study_is_as_many_rounds_as_it_says() -> None:
    assert study_rounds("forward", 10) == sum(len(one["warmup_seconds"] + one["seconds"]) for one in series([]))
    assert study_rounds("backward", 10) == study_rounds("forward", 10) + 15


def test_settings_survive_their_way_to_a_worker_without_passes_of_its_own() -> None:
    there = received(json.loads(json.dumps(sent(replace(SETTINGS, passes=("warmup",), memory_snapshot=True)))))
    assert there == SETTINGS


ROUND = ["set-up", "timed"]


def test_a_process_runs_whole_rounds_or_their_set_up_and_makes_room_after_a_warm_up() -> None:
    """Without a warm-up nothing is known of what a round needs."""
    for study, expected in (
        (Study(0, 2), ROUND * 2),
        (Study(2, 1), [*ROUND * 2, "room", *ROUND]),
        (Study(2, 2, leaves_out_timed_phase=True), ["set-up", "set-up", "room", *ROUND * 2]),
        (Study(0, 1, traces_first_round=True), ROUND * (2 + ROUNDS_BETWEEN)),
    ):
        device, ran = CpuDevice(CPU), list[str]()
        vars(device)["make_room"] = partial(ran.append, "room")
        measure = WarmupStudyMeasure(study, Clock(device), device)
        measure(partial(ran.append, "timed"), setup=partial(ran.append, "set-up"))
        assert ran == expected
        if study.traces_first_round:
            assert measure.values["first_round"]["seconds_per_page_fault"] > 0
        else:
            counts = [len(measure.values[name]) for name in ("warmup_seconds", "seconds")]
            assert counts == [study.warmup_rounds, study.rounds]


def test_an_import_inside_a_traced_call_is_its_module_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults: Any = ModuleType("planted_faults")
    faults.count = 0
    monkeypatch.setitem(sys.modules, "planted_faults", faults)
    monkeypatch.setattr(warmup, "page_faults", lambda: faults.count)
    touch = "import time, planted_faults\ntime.sleep(0.02)\nplanted_faults.count += 1000\n"
    (tmp_path / "planted_inner.py").write_text(touch)
    (tmp_path / "planted_outer.py").write_text(f"import planted_inner\n{touch}")
    monkeypatch.syspath_prepend(str(tmp_path))

    def function() -> torch.Tensor:
        __import__("planted_outer")
        faults.count += 7
        return torch.ones(8) + 1

    device, finders = CpuDevice(CPU), list(sys.meta_path)
    first, later = traced_call(function, device), traced_call(function, device)
    assert sys.meta_path == finders
    for name in ("planted_outer", "planted_inner"):
        del sys.modules[name]
    assert (first.modules_loaded, later.modules_loaded) == (2, 0)
    parts = first_round_parts(TracedRound(first.events, 0, 0.0), TracedRound(later.events, 0, 0.0), None)
    assert parts["module_loading_seconds"] >= 0.02
    assert (first.page_faults, later.page_faults) == (7, 7), "those of imports are their own"
    imports = [event["name"] for event in first.events if event.get("name", "").startswith("import of planted")]
    assert imports == ["import of planted_outer"]
