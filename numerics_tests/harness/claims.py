"""A claim: a test that takes the implementation it judges as an argument.

pytest runs it on the real implementations, the kill matrix (tests/kill_matrix) runs the very same function on faults.
"""

import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from perf_tests_suite.numerics_tests.harness import bounds
from perf_tests_suite.numerics_tests.harness.strategies import Recipe
from perf_tests_suite.numerics_tests.machine.environment import device

SUITE = Path(__file__).parents[1]
MODEL = Path(__file__).parents[2] / "model"
REGIONS = MODEL / "regions.py"
"""Names parts of the model and computes nothing."""


def _profile(examples: int, **more: Any) -> settings:
    # The first call into PyTorch is slow, which says nothing about a property: no deadline anywhere.
    return settings(deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow], **more)


PROFILES = {
    "quick": _profile(20),
    "ci": _profile(60, derandomize=True, database=None, print_blob=True),
    "deep": _profile(300),
}
"""How many examples Hypothesis draws: `ci` always the same ones, `deep` at night."""

DEFAULT_PROFILE = "quick"

NOT_JUDGED = (
    *(SUITE, SUITE.parent / "perf_tests", Path(sys.prefix), Path(sys.base_prefix)),
    *(Path(folder).parent for folder in torch.__path__),  # other packages too, and outside of sys.prefix beside a venv
)
"""Code of the harness and of libraries."""

REFUSALS = (AssertionError, ValueError)
"""What a claim raises for an implementation that it refuses: its own words, or those of a check on the way to them."""

MOST_NUMBERS = 8
"""Numbers of an input that a failure shows; Hypothesis has made it as small as it could."""


def load_profile(name: str) -> None:
    """Register our profiles and load `name`; raises UsageError that lists the known ones."""
    for known, profile in PROFILES.items():
        settings.register_profile(known, profile)
    if name not in PROFILES:
        raise pytest.UsageError(f"Hypothesis profile {name!r} is not known; choose {', '.join(PROFILES)}.")
    settings.load_profile(name)


@dataclass(frozen=True)
class Claim:
    """What must hold for every correct implementation and for no faulty one."""

    name: str
    argument: str
    """Name of the parameter that takes the implementation."""
    references: Mapping[str, Any]
    """The implementations for which it must hold; empty where a fixture called `argument` gives them."""
    strategies: Mapping[str, SearchStrategy[Any]]
    check: Callable[..., None]
    cost: int
    """Runs 1/cost of the profile's examples: 2 or 4 where an example builds a model or is a long loop."""
    of_any_model: bool = False
    """Whether it holds for every language model, and not for the suite's alone."""

    @property
    def area(self) -> str:
        """The test file without `test_`."""
        return self.check.__module__.rpartition(".test_")[2]

    def examples(self, profile: settings) -> int:
        """Number of examples under `profile`."""
        return max(2, profile.max_examples // self.cost)

    @property
    def checked(self) -> Callable[..., None]:
        """The check; its failure notes the lines that repeat it in a Python prompt at the repository root."""

        @wraps(self.check)
        def checked(**arguments: object) -> None:
            try:
                self.check(**arguments)
            except REFUSALS as error:
                for note in (_formula_in(str(error)), _numbers_in(arguments), self._last_frame(arguments)):
                    if note:
                        error.add_note(note)
                error.add_note(self._lines_to_paste(arguments))
                raise

        return checked

    def _last_frame(self, arguments: Mapping[str, object]) -> str:
        """The last line of `model/` or of the user's own that ran, seen by failing once more; none of the harness."""
        seen: tuple[str, int, str] | None = None

        def watch(frame: FrameType, event: str, argument: object) -> None:
            nonlocal seen
            if event == "return" and _is_judged(frame.f_code.co_filename):
                seen = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname

        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            self.check(**arguments)
        except Exception:  # whatever it raises this time, the first one is told
            pass
        finally:
            sys.setprofile(before)
        return "" if seen is None else f"Judged: {os.path.relpath(seen[0])}:{seen[1]}, in {seen[2]}"

    def _lines_to_paste(self, arguments: Mapping[str, object]) -> str:
        known = {id(value): f"claim.references[{name!r}]" for name, value in self.references.items()}
        # A fixture's implementation has no name here; the test's id says which it is.
        written = {self.argument: known.get(id(arguments[self.argument]), "implementation")}
        for name, value in arguments.items():
            written.setdefault(name, repr(value))
        call = ", ".join(f"{name}={text}" for name, text in written.items())
        lines = (
            "from perf_tests_suite.numerics_tests.harness.claims import all_claims",
            "from perf_tests_suite.numerics_tests.harness.strategies import *",
            "from perf_tests_suite.numerics_tests.machine.environment import compute_on",
            f"compute_on(torch.{device()!r})",
            f"claim = all_claims()[{self.name!r}]",
            f"claim.check({call})",
        )
        return "\n".join(("Paste:", *(f"    {line}" for line in lines)))

    def judge(self, implementation: object, profile: str = "ci") -> None:
        """Raise what the claim raises for `implementation`.

        Draws as many examples as the profile, by default `ci`, because these must be enough to see a fault: with those
        of `quick`, one fault in twenty survives one seed in six. Always the same ones, unshrunk and from no database.
        """
        arguments = {self.argument: implementation}
        if not self.strategies:
            self.check(**arguments)
            return
        hurried = settings(
            max_examples=self.examples(PROFILES[profile]),
            phases=[Phase.generate],
            database=None,
            derandomize=True,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        hurried(given(**self.strategies)(self.check))(**arguments)


@cache  # asked at each return of a check that Hypothesis makes fail hundreds of times
def _is_judged(file: str) -> bool:
    path = Path(file)
    # An installed suite, with its model, lies among the libraries.
    is_theirs = path.parent == MODEL or not any(path.is_relative_to(folder) for folder in NOT_JUDGED)
    return is_theirs and path != REGIONS and path.is_file()


def _formula_in(message: str) -> str:
    """The docstring of a bound that the message names in brackets, `[bounds.rms_norm]`."""
    named = re.search(r"bounds\.(\w+)", message)
    bound = getattr(bounds, named[1], None) if named else None
    return f"The bound: {inspect.cleandoc(bound.__doc__)}" if callable(bound) and bound.__doc__ else ""


def _numbers_in(arguments: Mapping[str, object]) -> str:
    """The first numbers of each input that was drawn as a recipe."""
    lines = []
    for name, value in arguments.items():
        if isinstance(value, Recipe):
            numbers = value.tensor().flatten()
            shown = ", ".join(f"{number:.9g}" for number in numbers[:MOST_NUMBERS].tolist())
            lines.append(f"{name}: {shown}{', ...' if len(numbers) > MOST_NUMBERS else ''}")
    return "\n".join(("Inputs:", *(f"    {line}" for line in lines))) if lines else ""


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


def all_claims() -> dict[str, Claim]:
    """`CLAIMS` with every test file imported, also those that pytest has not collected."""
    for module in pkgutil.iter_modules([str(SUITE)]):
        if module.name.startswith("test_"):
            importlib.import_module(f"perf_tests_suite.numerics_tests.{module.name}")
    return CLAIMS
