"""The write-up's sources in a test: the repository's tables beside records that are made up."""

from pathlib import Path

from perf_tests.records.record import Json
from perf_tests.report.cs336_parts.answer import table_of
from perf_tests.report.cs336_parts.page import SECTIONS, Entry
from perf_tests.report.cs336_parts.played import Block, FirstStep, OrderPeak, PeakBeside, Played
from perf_tests.report.cs336_parts.sources import Sources
from tests.support.synthetic import (
    BACKWARD,
    FORWARD,
    FULL_STEP,
    record,
    remembered,
    timed,
    timed_attention,
    traced,
    warmed,
    write_record,
)

QUESTIONS = [question for of in SECTIONS.values() for question in of]
TIMES = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
PLAYED = Played(
    peaks=(PeakBeside("write-up 003", "2.7B", 128, "fp32", "full_step_peak", "60.0", "GB", 60.25),),
    first_steps=(FirstStep("medium", 128, 2, "fp32", 7 * 10**9, 8 * 10**9),),
    orders=(OrderPeak(128, "before-step", 27 * 10**9),),
    blocks=(Block("2.7B", 128, 2**20, 3, "model/transformer.py:100", True),),
    exercises={"norms": (("Input", "low", "high"), ("about 1000", "all zero", "within"))},
)


def with_record(root: Path, data: Json, machine: str = "some-machine", number: int = 1) -> Sources:
    """The tables beside one record, or beside one more."""
    write_record(root / ".benchmarks" / machine / f"{number:04}_run.json", data)
    return Sources(root, PLAYED)


def entry(sources: Sources, words: str) -> Entry:
    """Of the one question with these words."""
    ((section, asked),) = [(title, one) for title, of in SECTIONS.items() for one in of if words in one.asked]
    answer = asked.answer(sources)
    return Entry(section, asked, answer, table_of(answer))


def here(sources: Sources, words: str) -> dict[tuple[str, ...], dict[str, str]]:
    """Our figures by row and column."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for figure in entry(sources, words).answer.here:
        found.setdefault(figure.row, {})[figure.column] = figure.text
    return found


def everything() -> Json:
    """A record of every case and pass that a question asks for, of a size of the course."""
    course: Json = {"size": "small", "context_length": 128, "num_layers": 12, "d_model": 768}
    rows = [
        timed(
            f"{phase}-{name}-{execution}", [seconds * factor for seconds in TIMES], phase=phase, precision=name,
            execution=execution, first_round_seconds=2.5, tflops_per_second=0.5,
            part_seconds={"forward": [2.0] * 6, "backward": [1.5] * 6, "optimizer": [0.25 * factor] * 6}, **course,
        )
        for phase, factor in (("forward", 1.0), ("backward", 2.0), ("forward_backward", 3.0), ("full_step", 4.0))
        for name in ("fp32", "bf16")
        for execution in ("eager", "compiled")
    ]  # fmt: skip
    rows += [timed("forward-256", TIMES, **{**course, "context_length": 256})]
    rows += [
        timed_attention([seconds * factor * length for seconds in TIMES], phase=f"attention_{phase}", attention=name,
                        head_dim=16, sequence_length=length, first_round_seconds=9.0)
        for phase, factor in (("forward", 1.0), ("backward", 2.0))
        for name in ("naive", "compiled", "sdpa")
        for length in (256, 1024)
    ]  # fmt: skip
    of_step = traced(FULL_STEP, phase="full_step", **course)
    region = {"launches": 4, "share_of_kernel_time": 0.5, "seconds": 2.0, "is_backward": True}
    of_step["values"]["regions"] = [
        {"region": "feed_forward", "seconds_by_kind": {"elementwise": 0.46, "matrix product": 1.54}, **region},
        {"region": "optimizer", "seconds_by_kind": {"elementwise": 2.0}, **region},
    ]
    of_forward = traced(FORWARD, **course)
    of_forward["values"]["idle_gaps"] = {"median_seconds": 3e-6}
    passes = [of_forward, traced(BACKWARD, phase="backward", **course), of_step, remembered(**course), warmed(**course)]
    return {**record(rows), "passes": passes}
