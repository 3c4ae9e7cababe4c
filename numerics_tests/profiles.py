"""How many examples Hypothesis draws: `quick` by default, `ci` repeatable, `deep` at night."""

import pytest
import torch
from hypothesis import HealthCheck, settings

PROFILES = {
    # The first call into PyTorch is slow, which says nothing about a property: no deadline anywhere.
    "quick": settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]),
    "ci": settings(
        deadline=None,
        max_examples=60,
        derandomize=True,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    ),
    "deep": settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]),
}
DEFAULT = "quick"


def load(name: str) -> None:
    """Register our profiles and load `name`; raises UsageError that lists the known ones."""
    for known, profile in PROFILES.items():
        settings.register_profile(known, profile)
    if name not in PROFILES:
        raise pytest.UsageError(f"Hypothesis profile {name!r} is not known; choose {', '.join(PROFILES)}.")
    settings.load_profile(name)


class TorchGenerator:
    """torch's global generator, as hypothesis.register_random wants it, so that every example starts from one seed."""

    def seed(self, seed: int) -> None:
        # Not torch.manual_seed: it records a stack trace for each missing backend, and called twice per example it
        # took 40 % of the suite's time.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)
