"""Every random choice of a launch pair, a pure function of the run's seed, so that a run's layout can be repeated."""

import math
import random
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf_tests.gate.samples import ORDERS

# At least 4 quadruples, because the Hodges-Lehmann centre of fewer withstands no wild value. At most 64, because
# launches differ by more than further rounds of one launch would sharpen.
FEWEST_QUADRUPLES, MOST_QUADRUPLES = 4, 64
QUADRUPLES_SECONDS = {1: 0.5, 2: 1.5}
"""Seconds by stage: the time that all rounds of one case in one pair should take, unmeasured ones included.

Stage 1 only selects, and most of its time goes into cases that do not differ. Stage 2 has few cases, of which each
launch costs more than the rounds.
"""
LONG_QUADRUPLE_SECONDS = 1.0
"""A quadruple this long is the only one of its case in a launch, in a drawn order, where nothing disturbs it: another
launch says more."""
DISTURBED = 0.05
"""A log ratio: in a calm quadruple two rounds of one side differ by less. A case whose long quadruple is disturbed gets
the fewest that others get, whose centre withstands one wild value. That favours no side: the two are not compared."""

_NAME_LENGTH = 12
_MOST_PADDING_BYTES = 4096
"""A page: beyond it the stack's alignments repeat."""


@dataclass(frozen=True)
class Draw:
    """The layout of a launch pair."""

    base_name: str
    head_name: str
    """Folder names of one length: the path of code affects where it lies in memory, and that its time."""
    padding_bytes: int
    """Length of an unused environment variable, which moves the stack by as much on both sides."""
    hash_seed: int
    head_starts_first: bool
    """Whether head starts first, as in one of two pairs in a row, so that what favours the side that starts first
    favours neither in all of a few."""


def draw_pair(seed: int, pair: int) -> Draw:
    """The layout of launch pair `pair` of the run with this seed.

    Mytkowicz et al., "Producing wrong data without doing anything obviously wrong!", ASPLOS 2009, show by how much an
    unrandomised layout favours one of two equal programs.
    """
    choose = random.Random(f"{seed} {pair}")
    base_name, head_name = ("".join(choose.choices(string.ascii_lowercase, k=_NAME_LENGTH)) for _ in range(2))
    return Draw(
        base_name=base_name,
        head_name=head_name,
        padding_bytes=choose.randrange(_MOST_PADDING_BYTES),
        hash_seed=choose.randrange(1 << 32),
        head_starts_first=(random.Random(f"{seed} {pair // 2} starts").random() < 0.5) != bool(pair % 2),
    )


def draw_order(seed: int, pair: int, groups: Iterable[Sequence[str]]) -> list[str]:
    """The cases in the order of this pair; those of one model stay together, so that it is built once."""
    choose = random.Random(f"{seed} {pair} order")
    shuffled = [choose.sample(group, len(group)) for group in groups]
    choose.shuffle(shuffled)
    return [item for group in shuffled for item in group]


def draw_quadruples(seed: int, pair: int, case: str, count: int) -> list[str]:
    """`count` orders, both equally often; the last of an odd count at random."""
    choose = random.Random(f"{seed} {pair} {case}")
    orders = [*ORDERS * (count // 2), *choose.sample(ORDERS, count % 2)]
    choose.shuffle(orders)
    return orders


def draw_cores(seed: int, pair: int, case: str, cores: Sequence[int], count: int) -> list[int]:
    """The `count` cores on which both sides run this case; all where there are no more."""
    return random.Random(f"{seed} {pair} {case} cores").sample(cores, min(count, len(cores)))


def quadruple_count(stage: int, quadruple_seconds: float) -> int:
    """How many quadruples, of this duration with set-ups and unmeasured rounds, one pair of this stage gets.

    Even, so that the cost of a change of turns cancels between the two orders; of a long one, where it is small, it
    cancels between the pairs.
    """
    if quadruple_seconds >= LONG_QUADRUPLE_SECONDS:
        return 1
    wanted = 2 * round(QUADRUPLES_SECONDS[stage] / quadruple_seconds / 2)
    return max(FEWEST_QUADRUPLES, min(MOST_QUADRUPLES, wanted))


def is_disturbed(seconds: Iterable[Sequence[float]]) -> bool:
    """Whether the rounds of a quadruple, those of each side apart, differ by more than calm ones do."""
    return any(math.log(max(of_side) / min(of_side)) > DISTURBED for of_side in seconds)
