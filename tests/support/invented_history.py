"""Histories whose steps are known: an invented machine's, and launches of one code in drawn orders.

The invented machine drifts by a random walk, its launches scatter by 2 % with heavy tails, and 3 of 100 are disturbed
by 5 to 40 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from claims.statistics import Share
from perf_tests.history.commits import Figure, Launch, Log, Machine
from perf_tests.history.series import Series, eras_of
from tests.support.synthetic import identity, record

COMMITS, CASES, PLANTED = 400, 30, 40
SMALLEST, LARGEST, SURE = 0.05, 0.30, 0.10
"""Steps drawn, and those of which nearly all must be found."""
APART, NEAR = 10, 3
"""Commits between two steps of a case, and between a step and the commit that is named."""
SCATTER, SENTINEL_SCATTER, DRIFT, DISTURBED = 0.02, 0.005, 0.003, 0.03
ORDERS = 200
"""Orders in which recorded launches are drawn."""

NO_LOG = Log({}, {}, {})


@dataclass(frozen=True)
class Score:
    sure: Share
    all: Share
    false: int
    of: int


def invented(random: np.random.Generator, commits: int = COMMITS, cases: int = CASES, planted: int = PLANTED) -> Score:
    """One invented history of one launch a commit, and what its steps say of the planted ones."""
    truth: list[tuple[int, int, float]] = []
    while len(truth) < planted:
        case, start = int(random.integers(cases)), int(random.integers(APART, commits - NEAR))
        if all(other != case or abs(start - at) >= APART for other, at, _ in truth):
            size = random.uniform(SMALLEST, LARGEST)
            truth.append((case, start, size if random.random() < 0.5 else 1 / (1 + size) - 1))
    drift = np.exp(np.cumsum(random.normal(0, DRIFT, commits)))
    seconds = np.ones((cases, commits))
    for case, start, effect in truth:
        seconds[case, start:] *= 1 + effect
    noise = np.exp(random.standard_t(4, (cases, commits)) / 2**0.5 * SCATTER)
    noise *= 1 + (random.random((cases, commits)) < DISTURBED) * random.uniform(0.05, 0.4, (cases, commits))
    sentinel_seconds = drift * np.exp(random.normal(0, SENTINEL_SCATTER, commits))
    seconds *= noise * drift
    of = tuple(identity().items())
    launches = [
        Launch(f"{place:04}", f"{place:040}", f"{place:040}", False, f"{2000 + place}-01-01", f"{2000 + place}-01-01",
               {f"{case}": Figure(of, float(seconds[case, place]), float(sentinel_seconds[place]), {})
                for case in range(cases)})
        for place in range(commits)
    ]  # fmt: skip
    (era,) = eras_of(Machine(record(), launches), NO_LOG)
    found = {int(one.case): [step.start for step in one.steps] for one in era.series}
    hits = []
    for case, start, effect in truth:
        near = [at for at in found[case] if abs(at - start) <= NEAR]
        hits.append((max(effect, 1 / (1 + effect) - 1) >= SURE, bool(near)))
        if near:
            found[case].remove(near[0])
    sure = [hit for is_sure, hit in hits if is_sure]
    every = Share(sum(hit for _, hit in hits), len(hits))
    return Score(Share(sum(sure), len(sure)), every, sum(map(len, found.values())), _size(era.series))


def _size(series: Sequence[Series]) -> int:
    return sum(len(one.points) for one in series)


def relabelled(machine: Machine, random: np.random.Generator, orders: int = ORDERS) -> tuple[int, int]:
    """Steps named over recorded launches of one code, each taken for a commit of its own, and the commits and cases."""
    false = of = 0
    for _ in range(orders):
        places = random.permutation(len(machine.launches))
        launches = [
            replace(launch, code=f"{place}", commit=f"{place}", committed=f"{2000 + place}-01-01")
            for launch, place in zip(machine.launches, places, strict=True)
        ]
        for era in eras_of(Machine(machine.record, launches), NO_LOG):
            false += sum(len(one.steps) for one in era.series)
            of += _size(era.series)
    return false, of
