"""How often something happened, and how sure that is."""

from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True)
class Share:
    """So many of so many, with Clopper and Pearson's 95 % limits."""

    count: int
    of: int

    @property
    def limits(self) -> tuple[float, float]:
        found = stats.binomtest(self.count, self.of).proportion_ci(0.95, method="exact")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = self.limits
        return f"{self.count}/{self.of} = {self.count / self.of:.2%} ({low:.2%} to {high:.2%})"
