"""Records of one case over commits, and what a history reads from them."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from perf_tests_suite.perf_tests.history.commits import CommitLog, machines_of
from perf_tests_suite.perf_tests.history.series import Era, eras_of
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.records.store import StoredRecord
from tests.support.git_repository import git
from tests.support.synthetic import FORWARD, attention_identity, identity, machine, record, timed, untimed, write_record

NO_LOG = CommitLog({}, {}, {})
COUNT, START = 24, 14
NOISE = 1 + 0.01 * np.random.default_rng(1).standard_normal(COUNT)


def name_of(number: int) -> str:
    return f"{number:02x}" * 20


def launch(number: int, seconds: float, commit: str = "", sentinel: float | None = 1e-3, **extra: object) -> Json:
    """A record of one case, of a commit made in minute `number`."""
    day = f"2030-01-01T{number // 60:02}:{number % 60:02}:00+00:00"
    around: Json = {} if sentinel is None else {"sentinel_seconds": [sentinel, sentinel]}
    data = record([timed(FORWARD, [seconds] * 5, **around, **extra)], written=day)
    identifier = commit or name_of(number)
    return {**data, "commit_info": {"id": identifier, "dirty": False, "time": day}}


def history(records: Sequence[Json], log: CommitLog = NO_LOG) -> list[Era]:
    stored = [StoredRecord(Path(f"folder/{place:04}_a.json"), data) for place, data in enumerate(records)]
    return [era for machine in machines_of(stored) for era in eras_of(machine, log)]


def with_step(effect: float, count: int = COUNT) -> list[Json]:
    return [launch(place, NOISE[place] * (1 + effect * (place >= START))) for place in range(count)]


# Eight commits of 5 launches each, in a repository of their own, that have what a history can have.

SUBJECTS = (
    "Start", "Speed up the tokenizer", "Rename a test", "Read the configuration once",
    "Cast attention scores to float32 before the mask", "Log the norm of the gradient", "Keep logits for the loss",
    "Fix a typo in the README",
)  # fmt: skip
SLOWED, COUNTED, LOST = 4, 5, 6
"""Places of the commits with the step of 12 %, the counter that rises and a case that is gone, one out of memory."""
SLOWER = tuple(f"attention_{way} d64-seq1024-fp32-naive" for way in ("forward", "backward"))
GONE, FULL = "attention_backward d16-seq256-fp32-compiled", "full_step small-ctx256-fp32-naive"


def eight_commits(folder: Path, with_losses: bool = True) -> list[str]:
    """Make a repository with records of two machines in `folder`; the commits. Launches scatter by 1 %, days by 1.5 %.

    The second machine has one launch of the last three commits. Without losses it has none, one case alone is slower,
    and the counter rises with it.
    """
    git(folder, "init", "-q", "-b", "main")
    made = {}
    for place in range(len(SUBJECTS)):
        date = f"2030-01-{1 + place:02}T00:00:00+00:00"
        git(folder, "commit", "-q", "--allow-empty", "-m", SUBJECTS[place], date=date)
        made[place] = git(folder, "rev-parse", "HEAD")
    random = np.random.default_rng(11)  # no other step is found
    for place, commit in made.items():
        day = float(np.exp(random.normal(0, 0.015)))
        for number in range(5):
            data = _launch_of_thirty(random, place, commit, day, number, with_losses)
            write_record(folder / f".benchmarks/epyc-2core/{5 * place + number + 1:04}_{commit[:12]}.json", data)
        if place >= 5 and with_losses:
            data = _launch_of_thirty(random, place, commit, 1.4 * day, -1, with_losses)
            data["machine_info"] = machine(brand_raw="Another CPU", threads=8)
            write_record(folder / f".benchmarks/xeon-8core/{place - 4:04}_{commit[:12]}.json", data)
    return list(made.values())


def _launch_of_thirty(
    random: np.random.Generator, place: int, commit: str, day: float, hour: int, with_losses: bool
) -> Json:  # fmt: skip
    counted = COUNTED if with_losses else SLOWED
    models = [(phase, "small", context) for phase in ("forward", "backward", "full_step") for context in (128, 256)]
    alone = product(("forward", "backward"), (16, 64), (256, 1024), ("naive", "compiled", "sdpa"))
    cases: list[tuple[str, str, Json]] = [
        (f"test_{phase}.py::test_{phase}", f"{size}-ctx{context}-fp32-naive",
         {"phase": phase, "size": size, "context_length": context,
          "optimizer": "foreach" if phase == "full_step" else None,
          "kernel_launches": 560 + 2 * (place >= counted and (phase, context) == ("forward", 128))})
        for phase, size, context in models
    ]  # fmt: skip
    cases += [
        (f"test_attention.py::test_attention_{way}", f"d{width}-seq{length}-fp32-{name}",
         attention_identity(phase=f"attention_{way}", head_dim=width, sequence_length=length, attention=name))
        for way, width, length, name in alone
    ]  # fmt: skip
    rows, lost = [], []
    launch_seconds = np.exp(random.normal(0, 0.01, len(cases)))
    sentinel = 1e-3 * day * float(np.exp(random.normal(0, 0.004)))
    for number, ((test, axes, facts), scatter) in enumerate(zip(cases, launch_seconds, strict=True)):
        case_id = f"perf_tests/{test}[{axes}]"
        slower = 1.12 if place >= SLOWED and case_name(case_id) in SLOWER[: 1 + with_losses] else 1.0
        seconds = 0.03 * 1.1**number * day * slower * scatter * np.exp(random.normal(0, 0.005, 10))
        if with_losses and place >= COUNTED and case_name(case_id) == GONE:
            continue
        if with_losses and place >= LOST and case_name(case_id) == FULL:
            reason = "3.1 GiB asked, 0.6 GiB left"
            lost.append(untimed(case_id, reason=reason, **{key: facts[key] for key in identity() if key in facts}))
            continue
        row = timed(case_id, seconds.tolist(), sentinel_seconds=[sentinel, sentinel], **facts)
        row["extra_info"]["matmul_ceiling_tflops_per_second"] = 0.1 / sentinel
        if "context_length" not in facts:  # of attention alone
            measured = {name: value for name, value in row["extra_info"].items() if name not in identity()}
            row["extra_info"] = facts | measured
        rows.append(row)
    day_of = f"2030-01-{1 + place:02}T{1 + hour:02}:00:00+00:00"
    told = {"id": commit, "dirty": False, "time": f"2030-01-{1 + place:02}T00:00:00+00:00"}
    return {**record(rows, lost, written=day_of), "commit_info": told}
