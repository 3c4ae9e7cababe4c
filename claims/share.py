"""A relative frequency and its uncertainty: the exact limits of Clopper and Pearson (1934)."""

from dataclasses import dataclass

from scipy.stats import beta

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Share:
    """`count` of `of`."""

    count: int
    of: int

    @property
    def limits(self) -> tuple[float, float]:
        """The two-sided interval at 95 %."""
        tail = (1 - CONFIDENCE) / 2
        low = float(beta.ppf(tail, self.count, self.of - self.count + 1)) if self.count else 0.0
        high = float(beta.isf(tail, self.count + 1, self.of - self.count)) if self.count < self.of else 1.0
        return low, high

    @property
    def upper_limit(self) -> float:
        """The one-sided upper limit of the rate at 95 %."""
        missed = self.of - self.count
        return float(beta.isf(1 - CONFIDENCE, self.count + 1, missed)) if missed else 1.0

    def words(self, digits: int = 0) -> str:
        """`8 of 20, 40% (19% to 64%)`, with so many digits after the point."""
        if not self.of:
            return "0 of 0"
        low, high = self.limits
        return f"{self.count} of {self.of}, {self.count / self.of:.{digits}%} ({low:.{digits}%} to {high:.{digits}%})"

    def __str__(self) -> str:
        return self.words()
