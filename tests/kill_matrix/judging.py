"""What becomes of a fault: the claim that it names judges it, and must refuse it."""

import importlib
from dataclasses import dataclass
from typing import Any

from perf_tests_suite.numerics_tests.harness.claims import CLAIMS
from perf_tests_suite.numerics_tests.harness.planting import NoSuchPlaceError, Planted, planted


@dataclass(frozen=True)
class Fault:
    """A wrong implementation, and the claim that must notice."""

    name: str
    caught_by: str
    """Name of the claim's test function, without `test_`."""
    implementation: Any

    def judge(self) -> None:
        """Raise what the claim raises for it."""
        CLAIMS[f"test_{self.caught_by}"].judge(self.implementation)


def judge_planted(fault: Planted, profile: str = "ci") -> None:
    """Raise what the claim raises for the faulty model, over every implementation that the fault may change.

    Raises NoSuchPlaceError where the fault cannot be planted.
    """
    claim = CLAIMS[f"test_{fault.caught_by}"]
    # A claim without references of its own judges every attention.
    references = claim.references or importlib.import_module("perf_tests_suite.numerics_tests.test_attention").EAGER
    with planted(fault) as calls:
        for implementation in references.values() if fault.reference is None else (references[fault.reference],):
            claim.judge(implementation, profile)
    if not calls and claim.area != "ranks":  # whose processes plant it for themselves
        raise NoSuchPlaceError(f"{fault.caught_by} calls no {fault.place}.")
