"""How launch pairs are measured, with workers that need no torch: turns, cores, progress, and workers that die."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.bench.workers import WorkerEndedError, WorkerProcess, start_worker
from perf_tests_suite.perf_tests.gate import samples as lines
from perf_tests_suite.perf_tests.gate.samples import SIDES, GateSamples, read_samples
from perf_tests_suite.perf_tests.gate.statistics import decide_clock
from perf_tests_suite.perf_tests.interleaved import measuring as module
from perf_tests_suite.perf_tests.interleaved.measuring import Measuring
from perf_tests_suite.perf_tests.interleaved.sides import Trees
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.named import Repository
from tests.support.fake_sides import CASES, logged, tree


def measured(
    folder: Path, base: Json | None = None, head: Json | None = None, pairs: int = 1, counts: bool = False, **more: Any
) -> tuple[GateSamples, Measuring]:
    """Launch pairs of stage 1, as another process reads them, and what measured them."""
    fields = {"phase": "forward"}
    header = {
        "base": {"label": "base"}, "head": {"label": "head"}, "machine_info": {}, "settings": {},
        "cases": [{"id": case, "identity": fields} for case in CASES],
    }  # fmt: skip
    sides = tree(folder / "tree-of-base", base or {}), tree(folder / "tree-of-head", head or {})
    with closing(lines.SamplesFile(folder / "samples.jsonl", header)) as samples_file:
        run = Measuring(
            trees=Trees(folder, *sides, Repository(folder)), tasks={side: {} for side in SIDES},
            ids_on_side={side: {case: case for case in CASES} for side in SIDES},
            identities=dict.fromkeys(CASES, fields), seed=7, samples_file=samples_file, watch=Mock(),
            start_seconds=20, **{"answer_seconds": 1, **more},
        )  # fmt: skip
        if counts:
            run.count(CASES)
        for pair in range(pairs):
            run.measure_pair(1, pair, [CASES])
    return read_samples(folder / "samples.jsonl"), run


def outcomes(samples: GateSamples) -> list[tuple[str, str, str]]:
    return [(row.case, row.side, row.outcome) for row in samples.of(lines.NoTiming)]


def test_every_case_is_measured_on_both_sides_in_turns_and_kept_with_its_raw_rounds(tmp_path: Path) -> None:
    samples, run = measured(tmp_path, {"round_seconds": 0.001}, {"round_seconds": 0.002}, pairs=2)
    assert sorted((line.pair, line.case) for line in samples.measurements) == sorted(product((0, 1), CASES))
    for line in samples.measurements:
        assert line.base_seconds.shape == line.head_seconds.shape == (len(line.orders), 2)
        assert ((line.base_seconds == 0.001) & (line.head_seconds == 0.002)).all()
    sentinels = [(sentinel.pair, sentinel.name, sentinel.side) for sentinel in samples.of(lines.Sentinel)]
    assert sorted(sentinels) == sorted(product((0, 1), module.SENTINELS, SIDES))
    assert {len(sentinel.seconds) for sentinel in samples.of(lines.Sentinel)} == {2 * len(CASES)}
    assert [(time.stage, time.pair) for time in samples.of(lines.PairTime)] == [(1, 0), (1, 1)]
    # One side works at a time. A fake worker logs a request once, so two rounds on end are one letter.
    sides = {"A": run.trees.base, "B": run.trees.head}
    worked = sorted((when, letter) for letter, side in sides.items() for when, _ in logged(side, "worked"))
    letters = "".join(letter for _, letter in worked)
    assert {letters[start : start + 3] for start in range(0, len(letters), 3)} == {"ABA", "BAB"}
    assert module.turns("ABBA") == [("base", 1), ("head", 2), ("base", 1)]
    assert module.turns("BAAB") == [("head", 1), ("base", 2), ("head", 1)]
    # Paths, padding and hash seed are the pair's own, the same on both sides.
    base, head = (logged(side, "environments") for side in (run.trees.base, run.trees.head))
    for of_base, of_head in zip(base, head, strict=True):
        assert of_base["folder"] != of_head["folder"]
        assert len(of_base["folder"]) == len(of_head["folder"])
        assert {**of_base, "folder": ""} == {**of_head, "folder": ""}
    assert all(base[0][name] != base[1][name] for name in ("folder", "PYTHONHASHSEED", "PERF_TESTS_PADDING"))
    assert base[0]["OMP_WAIT_POLICY"] == "PASSIVE"
    # The second launch knows that what the first measured fits in memory.
    assert [sorted(task["measured"]) for task in logged(run.trees.base, "tasks")] == [[], sorted(CASES)]


def test_what_a_pair_takes_is_told_apart_for_its_cases_and_for_what_only_the_first_launch_does(tmp_path: Path) -> None:
    """Later launches find their code in the compiler's cache."""
    compiles = {"faults": {"two": "compiles once"}}
    samples, run = measured(tmp_path, compiles, compiles)
    (seconds,) = [time.seconds for time in samples.of(lines.PairTime)]
    assert (run.once_seconds, set(run.case_seconds)) == (1.0, set(CASES))
    assert 0 < sum(run.case_seconds.values()) == pytest.approx(seconds - 1.0 - run.launch_seconds)
    assert max(run.case_seconds.values()) < 1.0
    assert run.expected_seconds(1, CASES) == pytest.approx(seconds - 1.0)
    assert run.expected_seconds(2, CASES) == pytest.approx(seconds - 1.0 + len(CASES) * (1.5 - 0.5))


def test_base_alone_runs_under_another_interpreter_and_without_sentinels(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\npwd >> {tmp_path}/started\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    no_cpu_time = {"reads_cpu_time": False}
    samples, run = measured(tmp_path, no_cpu_time, no_cpu_time, python_of_base=str(python))
    assert (tmp_path / "started").read_text().splitlines() == [str(run.trees.base)]
    assert (len(samples.measurements), samples.of(lines.Sentinel)) == (len(CASES), [])
    # Where the waiting thread spins no CPU time is kept, and wall time decides.
    assert {line.base_cpu_seconds is line.head_cpu_seconds is None for line in samples.measurements} == {True}
    assert decide_clock(samples, lines.Rules()).clock == "wall"


@pytest.mark.parametrize("threads", [None, 1])
def test_both_sides_share_cores_in_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int | None) -> None:
    asked: list[tuple[str, int, tuple[int, ...]]] = []
    monkeypatch.setattr(module, "processors_for", lambda threads: [3, 5])
    monkeypatch.setattr(module, "keep_on", lambda pid, cores: asked.append(("keep", pid, tuple(cores))))
    monkeypatch.setattr(module, "let_go", lambda pid: asked.append(("let go", pid, ())))
    measured(tmp_path, head={"faults": {"two": "raises in a round"}}, threads=threads)
    assert len(asked) == (0 if threads is None else 4 * (len(CASES) + 1)), "elsewhere the scheduler places them"
    for place in range(0, len(asked), 4):
        (one, two, *_), cores = ([entry[part] for entry in asked[place : place + 4]] for part in (1, 2))
        assert [entry[:2] for entry in asked[place : place + 4]] == [
            ("keep", one), ("keep", two), ("let go", one), ("let go", two)
        ]  # fmt: skip
        assert (one != two, cores[0] == cores[1], cores[0] in ((3,), (5,))) == (True, True, True)


COUNTING: list[tuple[Json, Json, list[str], str | None, str]] = [
    # what each side does, the cases whose counters are compared, and which side says why the others are not
    ({}, {}, sorted(CASES), None, ""),
    ({"absent": ["one"]}, {}, ["three", "two"], None, ""),
    ({"counters": None}, {}, [], "base", "it is compiled."),
    ({}, {"faults": dict.fromkeys(CASES, "dies counting")}, [], "head", "counting "),
]


def test_a_side_that_cannot_count_says_why_and_costs_no_case_its_time(tmp_path: Path) -> None:
    for number, (base, head, counted, side, words) in enumerate(COUNTING):
        head = {"counters": {"kernel_launches": 9}, **head}
        samples, _ = measured(tmp_path / str(number), base, head, counts=True)
        assert {(row.old, row.new) for row in samples.of(lines.ExactFinding)} <= {(7, 9)}
        assert len(samples.measurements) == len(CASES) - len(base.get("absent", []))
        assert sorted(row.case for row in samples.of(lines.ExactFinding)) == counted
        uncounted = samples.of(lines.Uncounted)
        assert sorted(row.case for row in uncounted) == (sorted(CASES) if side else [])
        assert all(row.side == side and words in row.reason for row in uncounted)


def test_the_first_pair_ends_with_the_case_that_does_not_fit(tmp_path: Path) -> None:
    asked: list[tuple[float, int]] = []

    def fits(launch_seconds: float, cases: dict[str, float]) -> bool:
        asked.append((launch_seconds, len(cases)))
        return len(cases) < 2

    samples, _ = measured(tmp_path, pairs=2, fits=fits)
    pairs = [line.pair for line in samples.measurements]
    assert (pairs, len(samples.of(lines.PairTime))) == ([0, 0, 1, 1, 1], 2)
    assert [cases for _, cases in asked] == [1, 2]
    assert all(0 < launch_seconds < 20 for launch_seconds, _ in asked)


def test_a_pair_ends_with_the_minutes_and_what_is_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a round that hangs, which is then no fault of its case, and before a launch has said which cases it has."""
    (last,) = module.draw_order(7, 0, [CASES])[-1:]
    waited, receive = list[float](), WorkerProcess.receive

    def received(worker: WorkerProcess, patience_seconds: float) -> Json:
        waited.append(patience_seconds)
        return receive(worker, patience_seconds)

    monkeypatch.setattr(WorkerProcess, "receive", received)
    end = time.monotonic() + 3
    with pytest.raises(module.MinutesSpentError):
        measured(tmp_path / "a", head={"faults": {last: "hangs in a round"}}, end=end, answer_seconds=9)
    assert (time.monotonic() >= end, max(waited) <= 3) == (True, True)
    samples = read_samples(tmp_path / "a/samples.jsonl")
    assert ({line.case for line in samples.measurements}, outcomes(samples)) == ({*CASES} - {last}, [])
    with pytest.raises(module.MinutesSpentError):
        measured(tmp_path / "b", end=0.0)


def test_both_sides_together_answer_within_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def hangs(patience_seconds: float) -> Json:
        asked.append(patience_seconds)
        raise WorkerEndedError("no answer", None)

    monkeypatch.setattr(module, "time", Mock(monotonic=Mock(side_effect=[0.0, 0.0, 7.0])))
    workers: Any = dict.fromkeys(SIDES, Mock(receive=hangs))
    with pytest.raises(WorkerEndedError):
        module.receive_all(workers, 7.0)
    assert asked == [7.0]


FATAL = {"dies": "SIGKILL", "hangs in a round": "no answer", "raises": "ValueError: planted"}


@pytest.mark.parametrize(
    ("side", "behaviour", "outcome", "words", "relaunches"),
    [
        *(("head", {"faults": {"two": fault}}, "error", words, 1) for fault, words in FATAL.items()),
        ("head", {"faults": {"two": "dies once"}}, None, "SIGKILL", 1),
        ("head", {"faults": {"two": "loses its device once"}}, None, "device-side assert triggered", 1),
        ("head", {"faults": {"two": "fails in a round"}}, "error", "in a round", 0),
        ("base", {"faults": {"two": "out of memory"}}, "out_of_memory", "no room", 0),
        ("base", {"absent": ["two"]}, "absent", "it does not know a value", 0),
        ("base", {"identities": {"two": {"phase": "backward"}}}, "absent", "under this id it measures something", 0),
    ],
)
def test_a_case_that_a_side_cannot_run_is_an_outcome_with_its_reason_and_costs_no_other(
    tmp_path: Path, side: str, behaviour: Json, outcome: str | None, words: str, relaunches: int
) -> None:
    samples, _ = measured(tmp_path, *((behaviour, {}) if side == "base" else ({}, behaviour)))
    assert {line.case for line in samples.measurements} == {*CASES} - ({"two"} if outcome else set())
    assert outcomes(samples) == ([("two", side, outcome)] if outcome else [])
    assert words in (samples.of(lines.NoTiming)[0].reason if outcome else samples.of(lines.Relaunch)[0].reason)
    assert [(row.case, row.side) for row in samples.of(lines.Relaunch)] == [("two", side)] * relaunches


def test_a_base_without_the_code_has_none_of_the_cases_or_else_fails_and_a_head_ends_the_run(tmp_path: Path) -> None:
    for why, outcome in (("lacks", "absent"), ("cannot", "error")):
        samples, _ = measured(tmp_path / why, base={why: "it has no model/"})
        assert (samples.measurements, sorted(outcomes(samples))) == ([], [(c, "base", outcome) for c in sorted(CASES)])
        assert {row.reason for row in samples.of(lines.NoTiming)} == {"it has no model/"}
    for name, base in (("head", {}), ("both", {"cannot": "base is broken"})):
        with pytest.raises(module.UnmeasurableError, match=r"^--model m:f is no language model\.$"):
            measured(tmp_path / name, base, {"cannot": "--model m:f is no language model."})


def test_neither_side_is_let_go_before_the_other(tmp_path: Path) -> None:
    together = {"faults": {"two": "leaves with the other"}}
    samples, _ = measured(tmp_path, together, together)
    assert (samples.of(lines.Relaunch), outcomes(samples)) == ([], [])


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    """Let Python handle it, not the suite's plugin, which would end this run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
@pytest.mark.parametrize("place", [1, 2], ids=["the first worker", "the second"])
def test_a_signal_at_the_start_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    begun: list[WorkerProcess] = []

    def interrupted(*words: Any) -> WorkerProcess:
        begun.append(start_worker(*words))
        if len(begun) == place:
            signal.raise_signal(signal.SIGINT)
        return begun[-1]

    monkeypatch.setattr(module, "start_worker", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path)
    ended = [worker.process.poll() for worker in begun]
    for worker in begun:
        worker.end()
    assert ended == [-signal.SIGKILL] * place


LONG = module.LONG_QUADRUPLE_SECONDS / 4
ROUNDS: dict[str, tuple[float, int, int, float, int | None]] = {
    # seconds of a round, rounds thrown away and kept, how many times as long each is as the last, and quadruples
    "short, the first are thrown away": (0.9 * module.PRIMED_BELOW_SECONDS, 2, 7, 1.0, None),
    "longer": (module.PRIMED_BELOW_SECONDS, 0, 4, 1.0, None),
    "long and calm": (LONG, 0, 4, 1.0, 1),
    "long and disturbed": (LONG, 0, 4, 1.1, module.FEWEST_QUADRUPLES),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_are_measured_by_their_length(tmp_path: Path, name: str) -> None:
    round_seconds, thrown_away, rounds, growth, quadruples = ROUNDS[name]
    behaviour = {"round_seconds": round_seconds}
    samples, run = measured(tmp_path, behaviour, {**behaviour, "growth": growth})
    orders = [len(line.orders) for line in samples.measurements]
    assert set(orders) == {quadruples or module.quadruple_count(1, rounds * round_seconds)}
    worked = sum(len(logged(side, "worked")) for side in (run.trees.base, run.trees.head))
    of_sentinels = 3 * len(module.SENTINELS) * len(CASES)
    assert worked - of_sentinels == sum(3 * (count + thrown_away) for count in orders)
    assert all(line.head_seconds.shape == (len(line.orders), 2) for line in samples.measurements)


def test_who_watches_sees_pair_case_and_time_left_and_a_log_has_a_line_for_each_pair() -> None:
    for line, terminal in ((Mock(), Mock()), (None, Mock())):
        watch = module.GateProgress(terminal, line, screen_pairs=6, most_fresh_pairs=36, seconds=900)
        watch.pair_begins(1, 1, 30)
        watch.case_begins("perf_tests/test_forward.py::test_forward[tiny-ctx8-fp32-naive]", 4)
        watch.pair_begins(2, 8, 1)
        watch.ends()
        if line is not None:
            first, *_, last = (call.args[0] for call in line.rewrite.call_args_list)
            assert first == "launch pair 2 of 6  case 5 of 30  at most 15 min left  forward tiny-ctx8-fp32-naive"
            assert (last, terminal.mock_calls) == ("", [])
    assert [call.args[0] for call in terminal.write_line.call_args_list] == [
        "launch pair 2 of 6: 30 cases, 0 s so far",
        "fresh launch pair 3 of at most 36 to decide the rest: 1 case, 0 s so far",
    ]
