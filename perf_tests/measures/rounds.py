"""The rounds of a benchmark: an untimed set-up, then its target. A measure decides what happens around them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from perf_tests.instruments.compilation import begin_round
from perf_tests.instruments.kernels import Around
from perf_tests.records.record import Json

SetUp = Callable[[], tuple[Any, ...] | None]
"""Returns the arguments of the target."""


@dataclass
class Rounds:
    """`target(*setup())`, once per round; `result` is what the last round returned."""

    target: Callable[..., Any]
    setup: SetUp | None = None
    loss_scale: Callable[[], float] | None = None
    """When it falls between two rounds, the optimizer skipped a step."""
    forget_more: Callable[[], None] | None = None
    """Frees what a round leaves beside its result and the next must not find."""
    result: Any = None
    _arguments: tuple[Any, ...] = ()

    def forget(self) -> None:
        """Free what the last round left: its graph beside that of the next would double the peak."""
        self._arguments, self.result = (), None
        if self.forget_more is not None:
            self.forget_more()

    def prepare(self) -> None:
        """The set-up. The arguments are kept here, because pytest-benchmark would hold them until it has new ones."""
        self.forget()
        begin_round()
        self._arguments = (self.setup() if self.setup is not None else None) or ()

    def run(self) -> None:
        self.result = self.target(*self._arguments)

    def play(self, around_setup: Around = nullcontext, around_target: Around = nullcontext) -> None:
        """One round; only its result outlives it."""
        self.forget()
        with around_setup():
            self.prepare()
        with around_target():
            self.run()
        self._arguments = ()


@dataclass
class Measure(ABC):
    """What a benchmark calls once, with its rounds."""

    values: Json = field(default_factory=dict, init=False)
    """What `look` returned."""

    def __call__(
        self,
        target: Callable[..., Any],
        setup: SetUp | None = None,
        loss_scale: Callable[[], float] | None = None,
        forget_more: Callable[[], None] | None = None,
    ) -> Any:
        """The result of the last round of `target(*setup())`; see `Rounds`."""
        rounds = Rounds(target, setup, loss_scale, forget_more)
        self.values = self.look(rounds) or {}
        return rounds.result

    @abstractmethod
    def look(self, rounds: Rounds) -> Json | None:
        """Run the rounds; returns what they showed where a pass keeps it."""
