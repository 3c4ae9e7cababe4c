"""How often a history names a step that is one, and one that is none.

    python -m claims.history_steps            # 400 invented commits x 30 cases with 40 planted steps
    python -m claims.history_steps FOLDER     # also recorded launches without a change, in drawn orders
    python -m claims.history_steps FOLDER --record 20     # record them first, in a quiet hour

Recording may be stopped at any moment and started again: each launch is saved whole, and those there are not repeated.

The invented machine drifts by a random walk, its launches scatter by 2 % with heavy tails, and 3 of 100 are disturbed
by 5 to 40 %.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from claims.share import Share
from claims.verdict import conclude, gravest
from perf_tests.history.commits import Figure, Launch, Log, Machine, machines_of
from perf_tests.history.series import Era, Series, eras_of
from perf_tests.records.store import chosen_paths, each_readable
from tests.support.launches import ROOT
from tests.support.synthetic import identity, record

COMMITS, CASES, PLANTED = 400, 30, 40
SMALLEST, LARGEST, SURE = 0.05, 0.30, 0.10
"""Steps drawn, and those of which nearly all must be found."""
APART, NEAR = 10, 3
"""Commits between two steps of a case, and between a step and the commit that is named."""
SCATTER, SENTINEL_SCATTER, DRIFT, DISTURBED = 0.02, 0.005, 0.003, 0.03
MOST_FALSE = 1e-3
"""Steps named where none is, for each commit and case."""
LEAST_FOUND = 0.95
ORDERS = 200
"""In which recorded launches are drawn."""

NO_LOG = Log({}, {}, {})


@dataclass(frozen=True)
class Score:
    sure: Share
    all: Share
    false: int
    of: int


def invented(random: np.random.Generator, commits: int = COMMITS, cases: int = CASES, planted: int = PLANTED) -> Score:
    """One invented history, and what its steps say of the planted ones."""
    truth = _drawn_steps(random, commits, cases, planted)
    drift = np.exp(np.cumsum(random.normal(0, DRIFT, commits)))
    levels = np.ones((cases, commits))
    for case, start, effect in truth:
        levels[case, start:] *= 1 + effect
    noise = np.exp(random.standard_t(4, (cases, commits)) / 2**0.5 * SCATTER)
    noise *= 1 + (random.random((cases, commits)) < DISTURBED) * random.uniform(0.05, 0.4, (cases, commits))
    sentinel_seconds = drift * np.exp(random.normal(0, SENTINEL_SCATTER, commits))
    return _score(_era(levels * noise * drift, sentinel_seconds), truth)


def _drawn_steps(random: np.random.Generator, commits: int, cases: int, planted: int) -> list[tuple[int, int, float]]:
    found: list[tuple[int, int, float]] = []
    while len(found) < planted:
        case, start = int(random.integers(cases)), int(random.integers(APART, commits - NEAR))
        if all(other != case or abs(start - at) >= APART for other, at, _ in found):
            size = random.uniform(SMALLEST, LARGEST)
            found.append((case, start, size if random.random() < 0.5 else 1 / (1 + size) - 1))
    return found


def _era(seconds: np.ndarray, sentinel_seconds: np.ndarray) -> Era:
    """By case and commit; one launch of each commit."""
    of = tuple(identity().items())
    launches = [
        Launch(f"{place:04}", f"{place:040}", f"{place:040}", False, f"{2000 + place}-01-01", f"{2000 + place}-01-01",
               {f"{case}": Figure(of, float(seconds[case, place]), float(sentinel_seconds[place]), {})
                for case in range(len(seconds))})
        for place in range(seconds.shape[1])
    ]  # fmt: skip
    return eras_of(Machine(record(), launches), NO_LOG)[0]


def _score(era: Era, truth: Sequence[tuple[int, int, float]]) -> Score:
    found: dict[int, list[int]] = {int(one.case): [step.start for step in one.steps] for one in era.series}
    hits = []
    for case, start, effect in truth:
        near = [at for at in found[case] if abs(at - start) <= NEAR]
        hits.append((max(effect, 1 / (1 + effect) - 1) >= SURE, bool(near)))
        if near:
            found[case].remove(near[0])
    sure = [hit for is_sure, hit in hits if is_sure]
    false = sum(map(len, found.values()))
    return Score(Share(sum(sure), len(sure)), Share(sum(hit for _, hit in hits), len(hits)), false, _size(era.series))


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


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="records of launches of one code")
    parser.add_argument("--record", type=int, metavar="N", help="record the tiny grid until FOLDER holds N launches")
    parser.add_argument("--histories", type=int, default=5, help="invented ones (5)")
    arguments = parser.parse_args(words)
    if arguments.record is not None:
        if arguments.folder is None:
            parser.error("--record needs the FOLDER that keeps the launches.")
        if not recorded(arguments.folder, arguments.record, tiny_launch):
            return 2
    random = np.random.default_rng(2027)
    exit_code = _invented_verdict([invented(random) for _ in range(arguments.histories)])
    if arguments.folder is None:
        return exit_code
    for machine in machines_of(each_readable(chosen_paths(arguments.folder, ()), [])):
        false, of = relabelled(machine, random)
        print(f"{len(machine.launches)} recorded launches in {ORDERS} orders: {false} false steps in {of:,} cells")
        claim = "recorded launches without a change: at most 1 false step per 1000 commits and cases"
        exit_code = gravest(exit_code, conclude(claim, false <= MOST_FALSE * of))
    return exit_code


def recorded(folder: Path, most: int, launch: Callable[[Path], int]) -> bool:
    """Whether the folder holds `most` launches in the end; the first one that fails is the last."""
    folder.mkdir(parents=True, exist_ok=True)
    while (there := len(list(folder.glob("*/*.json")))) < most:
        if exit_code := launch(folder):
            print(f"Launch {there + 1} exited with {exit_code}; the same command resumes.")
            return False
        print(f"Launch {there + 1} of {most} is in {folder}.", flush=True)
    return True


def tiny_launch(folder: Path) -> int:
    """The default grid at size tiny, saved in the folder; its output goes to the terminal."""
    command = [sys.executable, "-m", "pytest", "perf_tests", "--size", "tiny"]
    return subprocess.run([*command, f"--benchmark-storage=file://{folder.absolute()}"], cwd=ROOT).returncode


def _invented_verdict(scores: Sequence[Score]) -> int:
    sure = Share(sum(score.sure.count for score in scores), sum(score.sure.of for score in scores))
    every = Share(sum(score.all.count for score in scores), sum(score.all.of for score in scores))
    false, of = sum(score.false for score in scores), sum(score.of for score in scores)
    print(f"steps of at least {SURE:.0%} found within {NEAR} commits: {sure}; of all from {SMALLEST:.0%} on: {every}")
    print(f"false steps: {false} in {of:,} commits and cases")
    holds = sure.count >= LEAST_FOUND * sure.of and false <= MOST_FALSE * of
    return conclude("95 % of steps of 10 % are found, with at most 1 false step per 1000 commits and cases", holds)


if __name__ == "__main__":
    sys.exit(main())
