"""Every random choice of a launch pair, a pure function of the run's seed, so that a run can be laid out again."""

import random
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")

ORDERS = ("ABBA", "BAAB")
"""Who works when in a quadruple of rounds, A for base and B for head. Both cancel a steady drift."""

FEWEST_QUADRUPLES, MOST_QUADRUPLES = 4, 64
QUADRUPLES_SECONDS = 1.5
"""What the rounds of one case in one pair should take, those that are not measured included."""

_NAME_LENGTH = 12
_MOST_PADDING_BYTES = 4096


@dataclass(frozen=True)
class Draw:
    """The layout of one launch pair."""

    base_name: str
    head_name: str
    """Folder names of one length. Where code lies in memory depends on its path, and time on where it lies."""
    padding_bytes: int
    """Length of a variable that nobody reads: the environment moves the stack. The same on both sides."""
    hash_seed: int
    head_starts_first: bool


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
        head_starts_first=choose.random() < 0.5,
    )


def draw_order(seed: int, pair: int, groups: Iterable[Sequence[Item]]) -> list[Item]:
    """The cases in the order of this pair. Those of one model stay together, or it would be built for each of them."""
    choose = random.Random(f"{seed} {pair} order")
    shuffled = [choose.sample(group, len(group)) for group in groups]
    choose.shuffle(shuffled)
    return [item for group in shuffled for item in group]


def draw_quadruples(seed: int, pair: int, case: str, count: int) -> list[str]:
    """`count` orders, each of the two equally often, an odd one by coin."""
    choose = random.Random(f"{seed} {pair} {case}")
    orders = [*ORDERS * (count // 2), *choose.sample(ORDERS, count % 2)]
    choose.shuffle(orders)
    return orders


def draw_cores(seed: int, pair: int, case: str, cores: Sequence[int], count: int) -> list[int]:
    """The `count` cores on which both sides work through this case, or all where there are no more."""
    return random.Random(f"{seed} {pair} {case} cores").sample(cores, min(count, len(cores)))


def quadruple_count(quadruple_seconds: float) -> int:
    """How many quadruples of rounds one pair gets; one takes this long, set-ups and unmeasured rounds included.

    Always even: what a round costs that comes after a change of turns cancels between the two orders.
    """
    wanted = 2 * round(QUADRUPLES_SECONDS / quadruple_seconds / 2)
    return max(FEWEST_QUADRUPLES, min(MOST_QUADRUPLES, wanted))
