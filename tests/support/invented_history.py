"""Histories whose steps are known, of a machine that drifts by a random walk.

Its launches scatter by 2 % with heavy tails, and 3 of 100 are disturbed by 5 to 40 %.
"""

from dataclasses import dataclass

import numpy as np

from claims.histories import history_of, starts_in
from claims.statistics import Share

COMMITS, CASES, PLANTED = 400, 30, 40
SMALLEST, LARGEST, SURE = 0.05, 0.30, 0.10
"""Steps drawn, and those of which nearly all must be found."""
APART, NEAR = 10, 3
"""Commits between two steps of a case, and between a step and the commit that is named."""
SCATTER, SENTINEL_SCATTER, DRIFT, DISTURBED = 0.02, 0.005, 0.003, 0.03


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
            truth.append((case, start, random.uniform(SMALLEST, LARGEST)))
    drift = np.cumsum(random.normal(0, DRIFT, commits))
    logs = drift + random.standard_t(4, (cases, commits)) / 2**0.5 * SCATTER
    logs += np.log1p((random.random((cases, commits)) < DISTURBED) * random.uniform(0.05, 0.4, (cases, commits)))
    for case, start, size in truth:
        logs[case, start:] += np.log1p(size) * random.choice((-1, 1))
    sentinel = drift + random.normal(0, SENTINEL_SCATTER, commits)
    found = starts_in(history_of(logs[..., None], sentinel[:, None]))
    hits = []
    for case, start, size in truth:
        near = [at for at in found[case] if abs(at - start) <= NEAR]
        hits.append((size >= SURE, bool(near)))
        if near:
            found[case].remove(near[0])
    sure = [hit for is_sure, hit in hits if is_sure]
    every = Share(sum(hit for _, hit in hits), len(hits))
    return Score(Share(sum(sure), len(sure)), every, sum(map(len, found)), commits * cases)
