"""The phases, one row each: what its set-up runs, what is timed, and what follows. No torch."""

from dataclasses import dataclass
from functools import cached_property

LANGUAGE_MODEL, ATTENTION_ALONE, COLLECTIVE_ALONE = "language model", "attention alone", "collective alone"

FORWARD_PASSES = {"inference": 1, "forward": 1, "backward": 2}
"""FLOPs of a part over those of a forward pass: backward, each product costs one product for each of its inputs."""

ZERO_GRAD = ("before-forward", "after-forward", "before-step")
"""When a full step clears gradients, as `model.training` says; earlier revisions of it know the first alone."""

SHORT_PARTS = ("zero_grad", "loss")
"""Parts with little of a step's time."""


@dataclass(frozen=True)
class Phase:
    """Its parts: `zero_grad`, `inference` (forward without a graph), `forward`, `loss`, `backward`, `optimizer`."""

    name: str
    family: str
    setup: tuple[str, ...]
    """Parts that run before the clock starts, in every round."""
    timed: tuple[str, ...]
    published_as: str = ""
    """Its name in published tables, if not `label`."""
    is_timed: bool = True
    """Whether benchmarks time it; the others are examined by the memory pass alone."""

    @property
    def label(self) -> str:
        """Its name in `--phase` and in tables, the same for both families."""
        return self.name.removeprefix("attention_")

    @property
    def parts(self) -> tuple[str, ...]:
        """Everything that a round computes; the round's peak is the highest of theirs."""
        return tuple(part for part in (*self.setup, *self.timed) if part != "zero_grad")

    @cached_property
    def main_parts(self) -> tuple[str, ...]:
        """Timed parts with most of the time."""
        return tuple(part for part in self.timed if part not in SHORT_PARTS)

    @cached_property
    def forward_multiple(self) -> int | None:
        """FLOPs of the timed parts over those of a forward pass; None without matrix products."""
        return sum(FORWARD_PASSES.get(part, 0) for part in self.timed) or None

    @property
    def records_graph(self) -> bool:
        return "inference" not in self.parts

    @property
    def has_backward(self) -> bool:
        return "backward" in self.parts

    @property
    def is_backward(self) -> bool:
        """Whether only a backward pass is timed, which another thread launches."""
        return self.timed == ("backward",)

    @property
    def holds_logits(self) -> bool:
        """Whether the logits live until the end of the round; those of a set-up are freed when it returns."""
        return "forward" in self.timed and "backward" in self.timed

    @property
    def trains(self) -> bool:
        """Whether a round updates the weights."""
        return "optimizer" in self.parts

    @property
    def setup_computes(self) -> bool:
        """Whether the set-up does more than clear gradients."""
        return any(part != "zero_grad" for part in self.setup)


_FORWARD = ("forward", "loss")
_STEP = ("zero_grad", "forward", "loss", "backward", "optimizer")

FIRST_STEP, FULL_STEP = "first_step", "full_step"
"""The step that makes the optimizer's state, and every later one, which finds it."""

EXAMINED = {
    phase.name: phase
    for phase in (
        Phase("inference", LANGUAGE_MODEL, (), ("inference",)),
        Phase("forward", LANGUAGE_MODEL, (), ("forward",)),
        Phase("backward", LANGUAGE_MODEL, ("zero_grad", *_FORWARD), ("backward",)),
        Phase("forward_backward", LANGUAGE_MODEL, ("zero_grad",), (*_FORWARD, "backward"), published_as="fwd_bwd"),
        Phase("optimizer", LANGUAGE_MODEL, ("zero_grad", *_FORWARD, "backward"), ("optimizer",)),
        Phase(FIRST_STEP, LANGUAGE_MODEL, (), _STEP, is_timed=False),
        Phase(FULL_STEP, LANGUAGE_MODEL, (), _STEP),
        Phase("attention_forward", ATTENTION_ALONE, (), ("forward",)),
        Phase("attention_backward", ATTENTION_ALONE, ("zero_grad", "forward"), ("backward",)),
        Phase("collective", COLLECTIVE_ALONE, (), ("collective",)),
    )
}
"""What is measured, by name, in the order of a training step."""

PHASES = {name: phase for name, phase in EXAMINED.items() if phase.is_timed}
"""What is timed."""

LABELS = tuple(dict.fromkeys(phase.label for phase in PHASES.values() if phase.family != COLLECTIVE_ALONE))
"""What `--phase` selects; a collective has no phases."""

PHASES_OF_OTHERS = {
    "backward_and_optimizer": Phase(
        "backward_and_optimizer", LANGUAGE_MODEL, ("zero_grad", *_FORWARD), ("backward", "optimizer"),
        published_as="backward+optimizer",
    ),
    "attention_forward_backward": Phase(
        "attention_forward_backward", ATTENTION_ALONE, ("zero_grad",), ("forward", "backward"),
    ),
}  # fmt: skip
"""Phases of published tables that this suite does not measure."""


def phases_of(family: str) -> tuple[Phase, ...]:
    """Those that are timed."""
    return tuple(phase for phase in PHASES.values() if phase.family == family)


def phase_named(name: str) -> Phase | None:
    """The phase of this name, published ones included; None if there is none."""
    return PHASES.get(name) or PHASES_OF_OTHERS.get(name)


def label_of(name: str) -> str:
    """The label of a phase; an unknown name unchanged."""
    return EXAMINED[name].label if name in EXAMINED else name


def place_of(name: str) -> tuple[bool, int]:
    """Sort key of measuring and showing: phases that leave the weights alone first, unknown ones last."""
    if name not in EXAMINED:
        return True, len(EXAMINED)
    return EXAMINED[name].trains, list(EXAMINED).index(name)
