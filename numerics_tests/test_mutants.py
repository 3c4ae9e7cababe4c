"""The report on planted mutants, on made-up results."""

import pytest

from numerics_tests.harness.mutants import Change, report

DIFF = """--- model/training.py
+++ model/training.py
@@ -1,4 +1,3 @@
 def step():
-    a = f(
-        b, c)
+    a = f(b)
"""
KNOWN = Change.of(DIFF)
CHANGES = {"known": KNOWN, "new": Change("x + 1", "x - 1")}


def statuses(killed: int, **others: str) -> dict[str, str]:
    return {f"killed_{number}": "killed" for number in range(killed)} | others


EQUIVALENT = {"c is 0": (KNOWN,)}


def test_a_change_is_its_lines_without_their_layout() -> None:
    assert Change("a = f( b, c)", "a = f(b)") == KNOWN


@pytest.mark.parametrize("word", ["survived", "no tests", "suspicious"])
@pytest.mark.parametrize("killed, is_good", [(98, True), (31, False)])
def test_few_may_survive_unexplained(word: str, killed: int, is_good: bool) -> None:
    """One of a hundred passes, one of 33 does not; the equivalent one does not count."""
    lines, passes = report(statuses(killed, known="survived", new=word), CHANGES.__getitem__, EQUIVALENT)
    assert passes == is_good
    assert f"  new ({word})\n    - x + 1\n    + x - 1" in lines
    assert "     1 equivalent: c is 0" in lines


def test_an_explanation_without_a_survivor_is_refused() -> None:
    lines, passes = report(statuses(9), CHANGES.__getitem__, EQUIVALENT)
    assert not passes
    assert "take it out of EQUIVALENT" in lines[-1]


def test_no_mutants_prove_nothing() -> None:
    assert not report({}, CHANGES.__getitem__, {})[1]
