"""How a GPU fared through the rounds of one case: the rounds it was held down in, and the energy of one."""

import time
from dataclasses import dataclass, field
from typing import Any

from perf_tests.instruments.gpu_health import ENERGY_LEAST_SECONDS, GpuHealth


@dataclass
class RoundHealth:
    """Asked between rounds, never inside one. `health` is None where there is nothing to ask, and so are the facts."""

    health: GpuHealth | None
    throttled_rounds: list[int] = field(default_factory=list)
    """Measured rounds, counted from 1, at whose end power or heat held the clocks down."""
    _rounds: int = 0
    _start_joules: float | None = None
    _start: float = 0.0

    def begin(self) -> None:
        """The next round is the first measured one."""
        self.throttled_rounds, self._rounds = [], 0
        self._start_joules = None if self.health is None else self.health.energy_joules()
        self._start = time.perf_counter()

    def end_of_round(self) -> None:
        """A measured round is over, and the device has just become idle: its clocks are still those of the round."""
        self._rounds += 1
        if self.health is not None and self.health.is_throttled():
            self.throttled_rounds.append(self._rounds)

    def facts(self) -> dict[str, Any]:
        """`energy_joules_per_round` includes the set-up of a round, which the card pays for too."""
        if self.health is None:
            return {"throttled_rounds": None, "energy_joules_per_round": None}
        return {"throttled_rounds": self.throttled_rounds, "energy_joules_per_round": self._energy_per_round()}

    def _energy_per_round(self) -> float | None:
        assert self.health is not None
        stop_joules, seconds = self.health.energy_joules(), time.perf_counter() - self._start
        if stop_joules is None or self._start_joules is None or not self._rounds or seconds < ENERGY_LEAST_SECONDS:
            return None
        return (stop_joules - self._start_joules) / self._rounds
