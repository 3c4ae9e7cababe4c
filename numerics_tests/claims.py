"""A claim: a test that takes the implementation it judges as an argument.

pytest runs it on the real implementations, the kill matrix runs the very same function on planted faults.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from numerics_tests.profiles import PROFILES
from numerics_tests.under_test import Given


@dataclass(frozen=True)
class Claim:
    """What must hold for every correct implementation and for no faulty one."""

    name: str
    argument: str
    """Name of the parameter that takes the implementation."""
    references: Mapping[str, Any]
    """The implementations for which it must hold."""
    strategies: Mapping[str, SearchStrategy[Any]]
    check: Callable[..., None]
    cost: int
    """Runs 1/cost of the profile's examples: 2 or 4 where an example builds a model or is a long loop."""
    of_any_model: bool = False
    """Whether it holds for every language model, and not for the suite's alone."""

    @property
    def area(self) -> str:
        return self.check.__module__.rpartition(".test_")[2]

    def examples(self, profile: settings) -> int:
        return max(2, profile.max_examples // self.cost)

    @property
    def checked(self) -> Callable[..., None]:
        """The check; its failure notes the lines that repeat it in a Python prompt at the repository root."""

        @wraps(self.check)
        def checked(**arguments: object) -> None:
            try:
                self.check(**arguments)
            except AssertionError as error:
                error.add_note(self.lines_to_paste(arguments))
                raise

        return checked

    def lines_to_paste(self, arguments: Mapping[str, object]) -> str:
        """Every drawn value, and the call of this claim."""
        known = {id(value): f"claim.references[{name!r}]" for name, value in self.references.items()}
        # A fixture's implementation has no name here; the test's id says which it is.
        written = {self.argument: known.get(id(arguments[self.argument]), "implementation")}
        for name, value in arguments.items():
            written.setdefault(name, f"torch.{value!r}" if isinstance(value, torch.device) else repr(value))
        call = ", ".join(f"{name}={text}" for name, text in written.items())
        lines = (
            "import torch",
            "from numerics_tests.claims import all_claims",
            "from numerics_tests.strategies import *",
            f"claim = all_claims()[{self.name!r}]",
            f"claim.check({call})",
        )
        return "\n".join(("Paste:", *(f"    {line}" for line in lines)))

    def judge(self, implementation: object, device: torch.device) -> None:
        """Raise what the claim raises for `implementation`.

        Draws as many examples as `ci` under every profile, because these must be enough to see a fault: with those of
        `quick`, one fault in twenty survives one seed in six. Always the same ones, unshrunk and from no database.
        """
        arguments = {self.argument: implementation, "device": device}
        if not self.strategies:
            self.check(**arguments)
            return
        hurried = settings(
            max_examples=self.examples(PROFILES["ci"]),
            phases=[Phase.generate],
            database=None,
            derandomize=True,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        hurried(given(**self.strategies)(self.check))(**arguments)


@dataclass(frozen=True)
class Fault:
    """A wrong implementation, and the claim that must notice."""

    name: str
    caught_by: str
    """Name of the claim's test function, without `test_`."""
    implementation: Any

    @property
    def claim(self) -> Claim:
        return CLAIMS[f"test_{self.caught_by}"]


CLAIMS: dict[str, Claim] = {}
"""Every claim by the name of its test function, filled as the test files are imported."""


def claim(
    argument: str,
    references: Mapping[str, Any] | None = None,
    cost: int = 1,
    of_any_model: bool = False,
    **strategies: SearchStrategy[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test function a claim over `references`, or over the fixture called `argument` where there are none.

    pytest's hook in conftest spreads the test over them.
    """

    def register(check: Callable[..., None]) -> Callable[..., None]:
        made = Claim(check.__name__, argument, references or {}, strategies, check, cost, of_any_model)
        assert made.name not in CLAIMS, f"two claims are called {made.name}"
        CLAIMS[made.name] = made
        test = made.checked
        if strategies:
            test = settings(max_examples=made.examples(settings()))(given(**strategies)(test))
        return test

    return register


def applies_to(item: Any, given: Given) -> bool:
    """Whether a test judges what the user gave: one that takes attention, or a claim on any model."""
    if given.attentions:
        return "attention" in item.fixturenames
    made = CLAIMS.get(item.originalname)
    return made is not None and made.of_any_model


def all_claims() -> dict[str, Claim]:
    """`CLAIMS` with every test file beside this one imported, also those that pytest has not collected."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        # The kill matrix itself asks for this, and makes no claims.
        if module.name.startswith("test_") and module.name != "test_kill_matrix":
            importlib.import_module(f"numerics_tests.{module.name}")
    return CLAIMS
