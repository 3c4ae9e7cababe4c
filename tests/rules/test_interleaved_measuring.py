"""How launch pairs are measured, with workers that need no torch: turns, cores, progress, and workers that die."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests.bench.workers import WorkerProcess, start_worker
from perf_tests.gate.samples import (
    ExactFinding,
    GateSamples,
    NoTiming,
    Relaunch,
    Rules,
    SamplesFile,
    Sentinel,
    Uncounted,
    read_samples,
)
from perf_tests.gate.statistics import decide_clock
from perf_tests.interleaved import measuring as measuring_module
from perf_tests.interleaved.draws import FEWEST_QUADRUPLES, LONG_QUADRUPLE_SECONDS, quadruple_count
from perf_tests.interleaved.measuring import (
    PRIMED_BELOW_SECONDS,
    SETTLING_QUADRUPLES,
    Measuring,
    UnmeasurableError,
    Watch,
    turns,
)
from perf_tests.interleaved.sides import Trees
from perf_tests.records.record import Json
from perf_tests.user_code.named import Repository
from tests.support.fake_sides import CASES, tree


@contextmanager
def measuring(tmp_path: Path, base: Json, head: Json, threads: int | None = None) -> Iterator[Measuring]:
    fields = {"phase": "forward"}
    header = {
        "base": {"label": "base"}, "head": {"label": "head"}, "machine_info": {}, "settings": {},
        "cases": [{"id": case, "identity": fields} for case in CASES],
    }  # fmt: skip
    tmp_path.mkdir(exist_ok=True)
    with closing(SamplesFile(tmp_path / "samples.jsonl", header)) as samples_file:
        yield Measuring(
            trees=Trees(
                tmp_path,
                tree(tmp_path / "tree-of-base", base),
                tree(tmp_path / "tree-of-head", head),
                Repository(tmp_path),
            ),
            tasks={"base": {}, "head": {}},
            own_ids={side: {case: case for case in CASES} for side in ("base", "head")},
            identities=dict.fromkeys(CASES, fields),
            seed=7,
            samples_file=samples_file,
            watch=Mock(),
            threads=threads,
            start_seconds=20,
            answer_seconds=1,
        )


def measured(
    tmp_path: Path, base: Json | None = None, head: Json | None = None, pairs: int = 1, threads: int | None = None
) -> GateSamples:
    """Launch pairs of stage 1, as another process reads them; two of them count as well."""
    with measuring(tmp_path, base or {}, head or {}, threads) as run:
        run.counts = pairs == 2
        for pair in range(pairs):
            run.measure_pair(1, pair, [CASES])
    return read_samples(tmp_path / "samples.jsonl")


def outcomes(samples: GateSamples) -> list[tuple[str, str, str]]:
    return [(row.case, row.side, row.outcome) for row in samples.of(NoTiming)]


def test_every_case_is_measured_on_both_sides_and_kept_with_its_raw_rounds(tmp_path: Path) -> None:
    samples = measured(tmp_path, {"round_seconds": 0.001}, {"round_seconds": 0.002})
    assert sorted(line.case for line in samples.measurements) == sorted(CASES)
    for line in samples.measurements:
        assert line.base_seconds.shape == line.head_seconds.shape == (len(line.orders), 2)
        assert (line.base_seconds == 0.001).all()
        assert (line.head_seconds == 0.002).all()
    assert {(sentinel.name, sentinel.side) for sentinel in samples.of(Sentinel)} == {
        (name, side) for name in ("arithmetic", "memory", "interpreter") for side in ("base", "head")
    }


def test_the_second_launch_pair_knows_that_what_the_first_measured_fits_in_memory(tmp_path: Path) -> None:
    with measuring(tmp_path, {}, {"faults": {"two": "out of memory"}}) as run:
        run.measure_pair(1, 0, [("one", "two")])
        run.measure_pair(1, 1, [CASES])
    for side in (run.trees.base, run.trees.head):
        tasks = (side / "tasks.jsonl").read_text().splitlines()
        assert [sorted(json.loads(task)["measured"]) for task in tasks] == [[], ["one"]]


def test_what_a_pair_takes_is_told_apart_for_its_cases_and_for_what_only_the_first_launch_does(tmp_path: Path) -> None:
    """Later launches find their code in the compiler's cache."""
    compiles = {"faults": {"two": "compiles once"}}
    with measuring(tmp_path, compiles, compiles) as run:
        seconds = run.measure_pair(1, 0, [CASES])
    assert run.once_seconds == 1.0
    assert set(run.case_seconds) == set(CASES)
    assert 0 < sum(run.case_seconds.values()) == pytest.approx(seconds - 1.0 - run.launch_seconds)
    assert max(run.case_seconds.values()) < 1.0


def test_base_alone_runs_under_another_interpreter_and_sentinels_which_it_would_change_are_left_out(
    tmp_path: Path,
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\npwd >> {tmp_path}/started\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with measuring(tmp_path, {}, {}) as run:
        run.python_of_base = str(python)
        run.measure_pair(1, 0, [CASES])
        base = run.trees.base
    samples = read_samples(tmp_path / "samples.jsonl")
    assert (tmp_path / "started").read_text().splitlines() == [str(base)]
    assert len(samples.measurements) == len(CASES)
    assert samples.of(Sentinel) == []


def test_where_the_waiting_thread_spins_no_cpu_time_is_kept_and_wall_time_decides(tmp_path: Path) -> None:
    samples = measured(tmp_path, {"reads_cpu_time": False}, {"reads_cpu_time": False})
    assert {line.base_cpu_seconds is line.head_cpu_seconds is None for line in samples.measurements} == {True}
    assert decide_clock(samples, Rules()).clock == "wall"
    with pytest.raises(ValueError, match="have no CPU time"):
        decide_clock(samples, Rules(clock="cpu"))


def test_both_sides_work_through_a_case_on_the_same_cores_and_are_let_go_whatever_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int, tuple[int, ...]]] = []
    monkeypatch.setattr(measuring_module, "processors_for", lambda threads: [3, 5])
    monkeypatch.setattr(measuring_module, "keep_on", lambda pid, cores: asked.append(("keep", pid, tuple(cores))))
    monkeypatch.setattr(measuring_module, "let_go", lambda pid: asked.append(("let go", pid, ())))
    measured(tmp_path / "elsewhere")
    assert asked == [], "workers that compute elsewhere are left to the scheduler"
    measured(tmp_path / "here", head={"faults": {"two": "hangs"}}, threads=1)
    for place in range(0, len(asked), 4):
        what, process_ids, cores = zip(*asked[place : place + 4], strict=True)
        assert what == ("keep", "keep", "let go", "let go")
        assert len(set(process_ids)) == 2
        assert process_ids[:2] == process_ids[2:]
        assert cores[0] == cores[1]
        assert cores[0] in ((3,), (5,))
    assert len(asked) >= 4 * len(CASES)


def test_exact_counters_of_both_sides_are_kept_once_but_of_a_case_that_one_side_lacks(tmp_path: Path) -> None:
    base = {"counters": {"kernel_launches": 7}, "absent": ["one"]}
    samples = measured(tmp_path, base, {"counters": {"kernel_launches": 9}}, pairs=2)
    assert [row.case for row in samples.of(ExactFinding)] == [*dict.fromkeys(m.case for m in samples.measurements)]
    assert {(row.counter, row.old, row.new) for row in samples.of(ExactFinding)} == {("kernel_launches", 7, 9)}
    assert (len(samples.measurements), samples.of(Uncounted)) == (4, [])


def test_a_side_without_counters_is_kept_with_its_reason_and_takes_no_case_its_time(tmp_path: Path) -> None:
    samples = measured(tmp_path / "none", {"counters": None}, pairs=2)
    assert {(row.side, row.reason) for row in samples.of(Uncounted)} == {("base", "it is compiled.")}
    assert samples.of(ExactFinding) == []
    samples = measured(tmp_path / "dies", head={"faults": {"two": "dies counting"}}, pairs=2)
    assert (len(samples.measurements), samples.of(NoTiming)) == (6, [])
    uncounted = {row.case for row in samples.of(Uncounted)}
    assert "two" in uncounted
    assert {row.case for row in samples.of(ExactFinding)} | uncounted == set(CASES)


def test_only_one_side_works_at_a_time_and_in_the_order_drawn(tmp_path: Path) -> None:
    with measuring(tmp_path, {}, {}) as run:
        run.measure_pair(1, 0, [CASES])
    worked = [
        (float(line.split()[0]), side)
        for side, folder in (("A", run.trees.base), ("B", run.trees.head))
        for line in (folder / "worked.txt").read_text().splitlines()
    ]
    sides = "".join(side for _, side in sorted(worked))
    assert set(sides) == {"A", "B"}
    # A fake worker logs a request once, so two rounds on end are one letter.
    assert {sides[start : start + 3] for start in range(0, len(sides), 3)} == {"ABA", "BAB"}


def test_neither_side_is_let_go_before_the_other(tmp_path: Path) -> None:
    together = {"faults": {"two": "leaves with the other"}}
    samples = measured(tmp_path, together, together)
    assert (samples.of(Relaunch), outcomes(samples)) == ([], [])


@pytest.mark.parametrize(
    "fault, words", [("dies once", "SIGKILL"), ("loses its device once", "device-side assert triggered")]
)
def test_a_worker_that_dies_once_is_launched_again_and_no_case_is_lost(tmp_path: Path, fault: str, words: str) -> None:
    samples = measured(tmp_path, head={"faults": {"two": fault}})
    assert sorted(line.case for line in samples.measurements) == sorted(CASES)
    (relaunch,) = samples.of(Relaunch)
    assert (relaunch.side, relaunch.case) == ("head", "two")
    assert words in relaunch.reason
    assert samples.of(NoTiming) == []


@pytest.mark.parametrize(
    "side, behaviour, outcome, words, relaunches",
    [
        pytest.param("head", {"faults": {"two": "dies"}}, "error", "SIGKILL", 1, id="dies twice"),
        pytest.param("head", {"faults": {"two": "hangs"}}, "error", "no answer", 1, id="hangs twice"),
        pytest.param("head", {"faults": {"two": "raises"}}, "error", "ValueError: planted", 1, id="raises twice"),
        pytest.param("head", {"faults": {"two": "fails in a round"}}, "error", "in a round", 0, id="fails in a round"),
        pytest.param("base", {"faults": {"two": "out of memory"}}, "out_of_memory", "no room", 0, id="out of memory"),
        pytest.param("base", {"absent": ["two"]}, "absent", "", 0, id="is not known"),
    ],
)
def test_a_case_that_a_side_cannot_run_is_an_outcome_with_its_reason_and_costs_no_other(
    tmp_path: Path, side: str, behaviour: Json, outcome: str, words: str, relaunches: int
) -> None:
    samples = measured(tmp_path, *((behaviour, {}) if side == "base" else ({}, behaviour)))
    assert sorted(line.case for line in samples.measurements) == ["one", "three"]
    assert outcomes(samples) == [("two", side, outcome)]
    assert words in samples.of(NoTiming)[0].reason
    assert len(samples.of(Relaunch)) == relaunches


def test_a_base_that_cannot_be_loaded_has_none_of_the_cases(tmp_path: Path) -> None:
    samples = measured(tmp_path, base={"cannot": "it has no model/"})
    assert samples.measurements == []
    assert sorted(outcomes(samples)) == sorted((case, "base", "absent") for case in CASES)
    assert {row.reason for row in samples.of(NoTiming)} == {"it has no model/"}


@pytest.mark.parametrize("base", [{}, {"cannot": "base is broken"}], ids=["base can", "base cannot either"])
def test_a_head_that_cannot_be_loaded_ends_the_run(tmp_path: Path, base: Json) -> None:
    with pytest.raises(UnmeasurableError, match=r"^--model m:f is no language model\.$"):
        measured(tmp_path, base, {"cannot": "--model m:f is no language model."})


def test_each_pair_has_paths_padding_and_hash_seed_of_its_own_the_same_on_both_sides(tmp_path: Path) -> None:
    with measuring(tmp_path, {}, {}) as run:
        for pair in range(2):
            run.measure_pair(1, pair, [CASES])
    base, head = (
        [json.loads(line) for line in (folder / "environments.jsonl").read_text().splitlines()]
        for folder in (run.trees.base, run.trees.head)
    )
    for of_base, of_head in zip(base, head, strict=True):
        assert of_base["folder"] != of_head["folder"]
        assert len(of_base["folder"]) == len(of_head["folder"])
        assert {**of_base, "folder": ""} == {**of_head, "folder": ""}
        assert of_base["OMP_WAIT_POLICY"] == "PASSIVE"
    assert base[0]["folder"] != base[1]["folder"]
    assert base[0]["PYTHONHASHSEED"] != base[1]["PYTHONHASHSEED"]
    assert base[0]["PERF_TESTS_PADDING"] != base[1]["PERF_TESTS_PADDING"]


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    """Not the suite's plugin, which would end this run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
@pytest.mark.parametrize("place", [1, 2], ids=["the first worker", "the second"])
def test_a_signal_that_comes_while_a_worker_starts_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    begun: list[WorkerProcess] = []

    def interrupted(*words: Any) -> WorkerProcess:
        begun.append(start_worker(*words))
        if len(begun) == place:
            signal.raise_signal(signal.SIGINT)
        return begun[-1]

    monkeypatch.setattr(measuring_module, "start_worker", interrupted)
    with measuring(tmp_path, {}, {}) as run, pytest.raises(KeyboardInterrupt):
        run.measure_pair(1, 0, [CASES])
    ended = [worker.process.poll() for worker in begun]
    for worker in begun:
        worker.end()
    assert ended == [-signal.SIGKILL] * place


def test_a_quadruple_gives_each_side_two_rounds() -> None:
    assert turns("ABBA") == [("base", 1), ("head", 2), ("base", 1)]
    assert turns("BAAB") == [("head", 1), ("base", 2), ("head", 1)]


@pytest.mark.parametrize(
    "round_seconds, thrown_away, rounds",
    [(0.9 * PRIMED_BELOW_SECONDS, SETTLING_QUADRUPLES, 7), (PRIMED_BELOW_SECONDS, 0, 4)],
)
def test_the_first_quadruples_of_short_rounds_are_thrown_away_and_count_as_time_of_their_case(
    tmp_path: Path, round_seconds: float, thrown_away: int, rounds: int
) -> None:
    behaviour = {"round_seconds": round_seconds}
    with measuring(tmp_path, behaviour, behaviour) as run:
        run.measure_pair(1, 0, [CASES])
        worked = [(folder / "worked.txt").read_text().splitlines() for folder in (run.trees.base, run.trees.head)]
    orders = [len(line.orders) for line in read_samples(tmp_path / "samples.jsonl").measurements]
    assert set(orders) == {quadruple_count(1, rounds * round_seconds)}
    of_sentinels = 3 * len(measuring_module.SENTINELS) * len(CASES)
    assert sum(map(len, worked)) - of_sentinels == sum(3 * (count + thrown_away) for count in orders)


@pytest.mark.parametrize("growth, quadruples", [(1.0, 1), (1.1, FEWEST_QUADRUPLES)], ids=["calm", "disturbed"])
def test_a_long_round_that_is_disturbed_is_measured_as_often_as_shorter_ones(
    tmp_path: Path, growth: float, quadruples: int
) -> None:
    long = {"round_seconds": LONG_QUADRUPLE_SECONDS / 4}
    lines = measured(tmp_path, long, {**long, "growth": growth}, pairs=2).measurements
    assert {len(line.orders) for line in lines} == {quadruples}
    assert {line.orders[0] for line in lines} == {"ABBA", "BAAB"}
    assert all(line.head_seconds.shape == (quadruples, 2) for line in lines)


def written(method: Mock) -> list[str]:
    return [call.args[0] for call in method.call_args_list]


def test_who_watches_sees_pair_case_and_time_left_and_a_log_has_a_line_for_each_pair() -> None:
    for line, terminal in ((Mock(), Mock()), (None, Mock())):
        watch = Watch(terminal, line, screen_pairs=6, seconds=900)
        watch.pair_begins(1, 1, 30)
        watch.case_begins("perf_tests/test_forward.py::test_forward[tiny-ctx8-fp32-naive]", 4)
        watch.pair_begins(2, 8, 1)
        watch.ends()
        if line is not None:
            first, *_, last = written(line.rewrite)
            assert first == "launch pair 2 of 6  case 5 of 30  at most 15 min left  forward tiny-ctx8-fp32-naive"
            assert (last, terminal.mock_calls) == ("", [])
    assert written(terminal.write_line) == [
        "launch pair 2 of 6: 30 cases, 0 s so far",
        "launch pair 3 of the undecided cases: 1 case, 0 s so far",
    ]
