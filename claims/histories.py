"""What a history finds: planted steps and false ones, in invented histories of 30 cases and 5 launches a commit."""

import math
from collections import Counter
from functools import partial
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from claims.gate import KEPT, trials_under
from perf_tests_suite.perf_tests.gate.samples import rules_from_settings
from perf_tests_suite.perf_tests.gate.stages import screening_of
from perf_tests_suite.perf_tests.history.commits import CommitLog, Figure, Launch
from perf_tests_suite.perf_tests.history.commits import Machine as RecordedMachine
from perf_tests_suite.perf_tests.history.relative import EXACT, FIRST_ENGINE, RunRatios, ratios_of, relative_of
from perf_tests_suite.perf_tests.history.series import Era, eras_of
from tests.support.simulated_launches import RULES
from tests.support.simulated_suites import Machine, judged, looked_early
from tests.support.synthetic import record

Floats = NDArray[np.float64]

CASES, LAUNCHES = 30, 5
LAUNCH, DAY, MACHINES_DAY, SENTINEL = 0.01, 0.003, 0.015, 0.004
"""Standard deviations of a launch, of a case's day, and of the machine's day, which a sentinel follows this closely."""
KINDS = ("normal", "t", "cases differ", "machine's days")
"""How they scatter; t: with 4 degrees of freedom; cases differ: by a lognormal factor of 0.5."""
LENGTHS = (5, 6, 8, 12, 20, 50, 100, 200, 400)
SEED = 2027


def drawn(random: np.random.Generator, commits: int, kind: str) -> tuple[Floats, Floats]:
    """Log times of unchanged cases, (cases, commits, launches), and of the sentinel, (commits, launches)."""

    def scattered(*shape: int) -> Floats:
        return random.standard_t(4, shape) / 2**0.5 if kind == "t" else random.normal(size=shape)

    own = np.exp(0.5 * random.normal(size=(CASES, 1, 1))) if kind == "cases differ" else 1.0
    logs = own * (LAUNCH * scattered(CASES, commits, LAUNCHES) + DAY * scattered(CASES, commits, 1))
    day = MACHINES_DAY * scattered(commits, 1) if kind == "machine's days" else np.zeros((commits, 1))
    return logs + day, day + SENTINEL * random.normal(size=(commits, LAUNCHES))


def history_of(logs: Floats, sentinel: Floats) -> Era:
    """What `history` reads out of these launches; cases are named by their place."""
    seconds, around = np.exp(logs), np.exp(sentinel)
    launches = [
        Launch(f"{commit:04}_{launch}", f"{commit:040}", f"{commit:040}", False, "", f"{2000 + commit}-01-01",
               {f"{case}": Figure((), float(seconds[case, commit, launch]), float(around[commit, launch]), {})
                for case in range(len(seconds))})
        for commit in range(seconds.shape[1]) for launch in range(seconds.shape[2])
    ]  # fmt: skip
    (era,) = eras_of(RecordedMachine(record(), launches), CommitLog({}, {}, {}))
    return era


def starts_in(era: Era) -> list[list[int]]:
    """Commits at which steps begin, by case."""
    found = {one.case: [step.start for step in one.steps] for one in era.series}
    return [found[f"{case}"] for case in range(len(found))]


def share_found(commits: int, step: float, draws: int) -> tuple[float, float]:
    """How many steps are found of those in the middle, a commit early or late where there are many, and at the newest.

    Each history has one of both, in two cases.
    """
    random, counts, middle = np.random.default_rng(SEED + commits), Counter[str](), commits // 2
    for _ in range(draws):
        logs, sentinel = drawn(random, commits, "normal")
        logs[0, middle:] += math.log1p(step)
        logs[1, -1:] += math.log1p(step)
        starts = starts_in(history_of(logs, sentinel))
        counts["middle"] += any(abs(start - middle) <= (commits >= 100) for start in starts[0])
        counts["newest"] += commits - 1 in starts[1]
    return counts["middle"] / draws, counts["newest"] / draws


def false_steps(commits: int, kind: str, histories: int) -> tuple[int, int]:
    """(steps, commits times cases) of unchanged histories."""
    random, steps = np.random.default_rng(SEED + commits), 0
    for _ in range(histories):
        steps += sum(map(len, starts_in(history_of(*drawn(random, commits, kind)))))
    return steps, histories * commits * CASES


def figures(draws: int = 200, of: int = 20_000) -> dict[str, float]:
    """Shares found at the worst length, and false steps per 1000 commits and cases at the worst length and kind."""
    tenth = [share_found(commits, 0.12, draws) for commits in (5, 8, 20, 400)]
    small = share_found(12, 0.05, draws)
    false = {}
    for commits in LENGTHS:
        for kind in KINDS:
            steps, tried = false_steps(commits, kind, math.ceil(of / (commits * CASES)))
            false[commits, kind] = 1000 * steps / tried
    return {
        "found of 12%": min(middle for middle, _ in tenth),
        "found of 12% at the newest commit": min(newest for _, newest in tenth),
        "found of 5% by 12 commits": min(small),
        "false steps in 1000 commits and cases": max(false.values()),
        "of all lengths and kinds": sum(false.values()) / len(false),
    }


# A history without a machine: gate runs of parent against commit, on five kinds of CPU.

CPUS = (
    Machine(0.004), Machine(0.008, case_spread=0.3), Machine(0.01, heavy_tails=True), Machine(0.012, common_share=0.3),
    Machine(0.025),
)  # fmt: skip
"""How launch pairs scatter on each."""
RUNS, RUN_CASES, STEP, APART = 400, 20, 0.05, 40
"""Commits of a history, its cases, the size of a step up or down, and the commits from one to the next of a case."""


def _wanted(second: Floats, wanted: NDArray[np.bool_]) -> Floats:
    return np.where(wanted[..., None], second, np.nan)


def gate_runs(random: np.random.Generator, truth: Floats, same: float) -> list[RunRatios]:
    """A run for each commit, on a drawn kind of CPU; `truth` are log ratios, (commits, cases).

    Where it is 0, a share of `same` are the same program.
    """
    kinds, runs = random.integers(0, len(CPUS), len(truth)), dict[int, RunRatios]()
    is_same = (truth == 0) & (random.random(truth.shape) < same)
    for kind, cpu in enumerate(CPUS):
        (commits,) = np.nonzero(kinds == kind)
        spreads, moved = cpu.spreads(random, len(commits), truth.shape[1]), truth[commits][..., None]
        zero, last = np.zeros(truth.shape[1]), RULES.confirm_looks[-1]
        first, second = (
            moved + cpu.pair_values(random, zero, spreads, spreads > 0, n) for n in (RULES.screen_pairs, last)
        )
        first = looked_early(first)[0]
        fresh = judged(first, partial(_wanted, second)).pairs - np.sum(~np.isnan(first), axis=-1)
        of_case = ratios_of(first, np.where(np.arange(last) < fresh[..., None], second, np.nan))
        for row, commit in enumerate(commits):
            found = {
                case: (EXACT, EXACT) if is_same[commit, case] else of_case(row, case) for case in range(truth.shape[1])
            }
            cases = {(f"{case}", "null"): ratios for case, ratios in found.items() if ratios is not None}
            runs[int(commit)] = RunRatios(f"{commit}", f"{commit + 1}", f"CPU {kind}", cases, [])
    return [runs[commit] for commit in range(len(truth))]


def relative_figures(histories: int = 10) -> dict[str, float]:
    """Steps found, false ones and intervals of the chain that hold its truth, by half without the same programs."""
    random, counts = np.random.default_rng(SEED), Counter[str]()
    line = [f"{commit}" for commit in range(RUNS + 1)]
    log = CommitLog({commit: place for place, commit in enumerate(line)}, {}, {})
    for number in range(histories):
        truth = np.zeros((RUNS, RUN_CASES))
        for case in range(RUN_CASES):
            at = np.arange(random.integers(APART), RUNS, APART)
            truth[at, case] = random.choice((-1, 1), len(at)) * math.log1p(STEP)
        runs = gate_runs(random, truth, same=0.5 * (number % 2))
        for since in (0, RUNS // 2, RUNS - 10):
            for one in relative_of(runs, line, log, since)["cases"]:
                of_case, (low, high) = truth[:, int(one["case"])], one["interval"]
                counts["covered"] += low <= math.expm1(of_case[since:].sum()) <= high
                counts["intervals"] += 1
                if since == 0:
                    planted, places = set(np.flatnonzero(of_case)), {int(step["since"]) - 1 for step in one["steps"]}
                    counts.update(planted=len(planted), found=len(planted & places), false=len(places - planted))
    commits = histories * RUNS * RUN_CASES
    return {
        "found of 5%": counts["found"] / counts["planted"],
        "false steps in 1000 commits and cases": 1000 * counts["false"] / commits,
        "the chain's interval covers": counts["covered"] / counts["intervals"],
        "a run of equal code is off by at most": most_bias(),
    }


def most_bias() -> float:
    """The upper end, at 95 %, of what stage 1 of the kept trials of equal code is off by on average."""
    trials = [
        one.samples for one in trials_under(KEPT)["false-alarms"] if one.samples.header.get("engine", 1) >= FIRST_ENGINE
    ]
    logs = [
        float(np.nanmean(screening_of(one, rules_from_settings(one.header["settings"])).screened.estimate.mean))
        for one in trials
    ]
    return abs(fmean(logs)) + 1.96 * stdev(logs) / len(logs) ** 0.5
