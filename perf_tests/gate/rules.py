"""The thresholds of the gate in one frozen table, kept with every run's samples."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

from perf_tests.records.record import Json

Clock = Literal["wall", "cpu"]
ClockChoice = Literal["auto", "wall", "cpu"]

FEWEST_LOOK = 3
"""Launch pairs of which a spread is estimated."""
MOST_PAIRS = 40
"""The exact sign-flip test lists the sums of half the pairs: 2 ** 20 of them at 40 pairs."""


@dataclass(frozen=True)
class Rules:
    """The thresholds of a run. Slowdowns are shares of base's time: 0.03 takes 3 % longer."""

    alpha: float = 0.01
    """Probability that a run reports SLOWER with nothing slower by more than `margin`: one CI run in a hundred."""
    margin: float = 0.005
    """A slowdown must significantly exceed this: estimates may be biased by as much (`gate_power`)."""
    matters: float = 0.03
    """A case is OK once a slowdown of this size is excluded at `clearing_level`; 36 pairs detect no less reliably."""
    screen_pairs: int = 6
    """Launch pairs of all cases in stage 1; with the first look of stage 2 these screen 20 benchmarks in 3 minutes
    (`gate_cost`)."""
    screen_level: float = 0.1
    """Stage 1 suspects a case that is slower at this level: loose, because stage 2 tests it again and a slowdown that
    goes unsuspected is lost; much looser, and stage 2 would have the time of unchanged cases (`gate_simulation`)."""
    screen_above: float = 0.005
    """Nor does it suspect a case of a smaller estimate: SLOWER takes a slowdown significantly above `margin`. Where
    launches scatter little, as many unchanged cases would be suspected otherwise."""
    faster_screen_level: float = 0.005
    """The same on the faster side: strict, because it decides no exit code and each suspect costs launches."""
    first_look: int | None = 3
    """Launch pairs of stage 1 after which far slower cases are decided (`gate.early_looks`), if that is before its end;
    None for samples that were measured without such a look."""
    first_share: float = 0.05
    """Of `alpha` for the first look: little, because a slowdown that is decided there is far above every level."""
    second_share: float = 0.1
    """The same for the look at the end of stage 1, at cases that are slower by more than `matters` in each launch pair;
    0 for samples that were measured without such a look."""
    far: float = 0.15
    """What every launch pair of a far slower case exceeds; those of the same code do in a very noisy run alone."""
    far_spreads: float = 10.0
    """How many times the spread of launch pairs a far slower case is slower: three times what recorded launches of the
    same code above `far` have reached (`gate_relabelled`)."""
    confirm_looks: tuple[int, ...] = (3, 10, 18, 36)
    """Fresh launch pairs of stage 2 at each look: 3 clear most of what stage 1 suspects by chance, large slowdowns need
    10, the smallest that are claimed 36."""
    look_shares: tuple[float, ...] = (0.01, 0.15, 0.25, 0.59)
    """Of `alpha` for each look: most for the last, where the smallest slowdowns are decided; hardly any for the first,
    which clears."""
    clearing_level: float = 0.05
    """Probability that a case slower by `matters` is called OK, half in each stage; the usual level."""
    suite_share: float = 0.1
    """Of `alpha` for the test of the whole suite: little, because single cases need it."""
    guard_share: float = 0.1
    """Of `alpha` for wall time where CPU time decides: little, because wall time is there for large effects."""
    contamination_level: float = 0.001
    """Over all sentinels; far below `alpha`, because a contaminated run is lost."""
    clock: ClockChoice = "auto"
    """`auto` takes the clock that scatters less in stage 1."""
    undecided: Literal["pass", "fail"] = "pass"

    def __post_init__(self) -> None:
        """Raises ValueError with one sentence for invalid rules."""
        self._check_levels()
        self._check_slowdowns()
        self._check_looks()
        if self.clock not in get_args(ClockChoice) or self.undecided not in ("pass", "fail"):
            raise ValueError(f"The gate's clock {self.clock!r} or undecided {self.undecided!r} is not known.")

    def _check_levels(self) -> None:
        levels = ("alpha", "screen_level", "faster_screen_level", "clearing_level", "contamination_level")
        for name in (*levels, "first_share", "suite_share", "guard_share"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"The gate's {name} is {getattr(self, name)!r}; it must lie between 0 and 0.5.")
        if not 0 <= self.second_share < 0.5:
            raise ValueError(f"The gate's second_share is {self.second_share!r}; it must be 0 or more, below 0.5.")

    def _check_slowdowns(self) -> None:
        if not 0 <= self.margin < self.matters < 1:
            raise ValueError(
                f"The gate's margin {self.margin!r} and matters {self.matters!r} must be 0 <= margin < matters < 1."
            )
        if not 0 <= self.screen_above < self.matters:
            raise ValueError(
                f"The gate's screen_above is {self.screen_above!r}; it must be 0 or more, below matters "
                f"{self.matters!r}."
            )
        if not self.far > 0 or not self.far_spreads >= 1:
            raise ValueError(
                f"The gate's far {self.far!r} and far_spreads {self.far_spreads!r} must be above 0 and at least 1."
            )

    def _check_looks(self) -> None:
        if self.first_look is not None and (not isinstance(self.first_look, int) or self.first_look < FEWEST_LOOK):
            raise ValueError(
                f"The gate's first_look is {self.first_look!r}; it must be {FEWEST_LOOK} or more, or null."
            )
        if not isinstance(self.screen_pairs, int) or not FEWEST_LOOK <= self.screen_pairs <= MOST_PAIRS:
            raise ValueError(
                f"The gate's screen_pairs is {self.screen_pairs!r}; it must be {FEWEST_LOOK} to {MOST_PAIRS}."
            )
        looks = self.confirm_looks
        rise = list(looks) == sorted({look for look in looks if isinstance(look, int)})
        if not looks or not rise or not FEWEST_LOOK <= looks[0] <= looks[-1] <= MOST_PAIRS:
            raise ValueError(
                f"The gate's confirm_looks {looks!r} must rise, from {FEWEST_LOOK} or more to at most {MOST_PAIRS}."
            )
        shares = self.look_shares
        if len(shares) != len(looks) or not math.isclose(sum(shares), 1) or min(shares) <= 0:
            raise ValueError(f"The gate's look_shares {shares!r} must be positive and add up to 1, one for each look.")

    @property
    def log_margin(self) -> float:
        return math.log1p(self.margin)

    @property
    def log_screen_above(self) -> float:
        return math.log1p(self.screen_above)

    @property
    def log_matters(self) -> float:
        return math.log1p(self.matters)

    @property
    def log_far(self) -> float:
        return math.log1p(self.far)

    @property
    def has_first_look(self) -> bool:
        return self.first_look is not None and self.first_look < self.screen_pairs

    @property
    def first_level(self) -> float:
        """Of the first look, over all cases."""
        return self.alpha * self.first_share if self.has_first_look else 0.0

    @property
    def second_level(self) -> float:
        """Of the look at the end of stage 1, over all cases."""
        return self.alpha * self.second_share

    @property
    def stage_two_alpha(self) -> float:
        """What the looks of stage 2 share."""
        return self.alpha * (1 - self.suite_share) - self.first_level - self.second_level

    @property
    def screen_clearing_level(self) -> float:
        return self.clearing_level / 2

    @property
    def look_clearing_level(self) -> float:
        return self.clearing_level / 2 / len(self.confirm_looks)

    def settings(self) -> Json:
        return asdict(self)


def rules_from_settings(settings: Json) -> Rules:
    """The rules of a run; settings of other names belong to the engine. Raises ValueError for invalid values."""
    # Of older samples: nothing was decided in stage 1, and cases were suspected however small their estimate.
    known: Json = {"first_look": None, "second_share": 0.0, "screen_above": 0.0}
    known |= {field.name: settings[field.name] for field in fields(Rules) if field.name in settings}
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    try:
        return Rules(**known)
    except TypeError as error:
        raise ValueError(f"The gate's settings hold a value that is not a number: {error}.") from error
