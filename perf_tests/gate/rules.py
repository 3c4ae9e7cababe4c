"""What the gate decides by: its thresholds, all in one frozen table, kept with every run's samples."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from perf_tests.records.record import Json

Clock = Literal["wall", "cpu"]
ClockChoice = Literal["auto", "wall", "cpu"]

MOST_PAIRS = 40
"""The exact sign-flip test lists the sums of half the pairs: 2 ** 20 of them at 40 pairs."""


@dataclass(frozen=True)
class Rules:
    """The thresholds of a run. Slowdowns are shares of base's time: 0.03 takes 3 % longer."""

    alpha: float = 0.01
    """Significant: the chance that a run calls anything SLOWER although nothing is slower by more than `margin`."""
    margin: float = 0.005
    """Significant: a slowdown must be shown to exceed this. Up to here nothing is ever called SLOWER but by chance."""
    matters: float = 0.03
    """What matters: a case is OK once a slowdown of this size is ruled out, at `clearing_level`."""
    screen_pairs: int = 6
    """Launch pairs of the whole suite in stage 1."""
    screen_level: float = 0.03
    """A case goes on to stage 2 when stage 1 would call it slower at this level. What matters goes on without it."""
    faster_screen_level: float = 0.005
    """The same on the faster side. Stricter: it decides no exit code, and each case that goes on costs launches."""
    confirm_looks: tuple[int, ...] = (10, 18, 30)
    """After how many fresh launch pairs of stage 2 the suspects are looked at."""
    look_shares: tuple[float, ...] = (0.15, 0.25, 0.60)
    """How `alpha` is spent on the looks."""
    clearing_level: float = 0.05
    """The chance that a case which is slower by what matters is called OK: half in stage 1, half over the looks."""
    suite_share: float = 0.1
    """The part of `alpha` that goes to the test of the suite as a whole."""
    guard_share: float = 0.1
    """The part of `alpha` that goes to wall time where CPU time decides."""
    contamination_level: float = 0.001
    """At this level, over all sentinels, a difference between the sides declares the run contaminated."""
    clock: ClockChoice = "auto"
    """Which clock decides; `auto` takes the one that scatters less in stage 1."""
    undecided: Literal["pass", "fail"] = "pass"

    def __post_init__(self) -> None:
        """Raises ValueError with one sentence for rules that make no sense."""
        for name in ("alpha", "screen_level", "faster_screen_level", "clearing_level", "contamination_level"):
            _check(name, getattr(self, name), 0, 0.5)
        for name in ("suite_share", "guard_share"):
            _check(name, getattr(self, name), 0, 0.5)
        if not 0 <= self.margin < self.matters < 1:
            raise ValueError(
                f"The gate's margin {self.margin!r} and matters {self.matters!r} must be 0 <= margin < matters < 1."
            )
        if not isinstance(self.screen_pairs, int) or not 3 <= self.screen_pairs <= MOST_PAIRS:
            raise ValueError(f"The gate's screen_pairs is {self.screen_pairs!r}; it must be 3 to {MOST_PAIRS}.")
        looks = self.confirm_looks
        rise = list(looks) == sorted({look for look in looks if isinstance(look, int)})
        if not looks or not rise or not 5 <= looks[0] <= looks[-1] <= MOST_PAIRS:
            raise ValueError(f"The gate's confirm_looks {looks!r} must rise, from 5 or more to at most {MOST_PAIRS}.")
        shares = self.look_shares
        if len(shares) != len(looks) or not math.isclose(sum(shares), 1) or min(shares) <= 0:
            raise ValueError(f"The gate's look_shares {shares!r} must be positive and add up to 1, one for each look.")
        if self.clock not in get_args(ClockChoice) or self.undecided not in ("pass", "fail"):
            raise ValueError(f"The gate's clock {self.clock!r} or undecided {self.undecided!r} is not known.")

    @property
    def log_margin(self) -> float:
        return math.log1p(self.margin)

    @property
    def log_matters(self) -> float:
        return math.log1p(self.matters)

    @property
    def screen_clearing_level(self) -> float:
        return self.clearing_level / 2

    @property
    def look_clearing_level(self) -> float:
        return self.clearing_level / 2 / len(self.confirm_looks)

    def settings(self) -> Json:
        """As the header of a samples file keeps them."""
        return asdict(self)


def rules_from_settings(settings: Json) -> Rules:
    """The rules that a run was decided by; settings of other names are the engine's own, and are left alone.

    Raises ValueError with one sentence for values that are none.
    """
    known: Json = {field.name: settings[field.name] for field in fields(Rules) if field.name in settings}
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    try:
        return Rules(**known)
    except TypeError as error:
        raise ValueError(f"The gate's settings hold something that is no number: {error}.") from error


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low < value < high:
        raise ValueError(f"The gate's {name} is {value!r}; it must lie between {low} and {high}.")
