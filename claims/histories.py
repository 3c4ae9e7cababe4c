"""What a history finds: planted steps and false ones, in invented histories of 30 cases and 5 launches a commit."""

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from perf_tests.history.commits import Figure, Launch, Log, Machine
from perf_tests.history.series import Era, eras_of
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
    (era,) = eras_of(Machine(record(), launches), Log({}, {}, {}))
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
