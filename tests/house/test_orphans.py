"""A process that a test leaves running is found by its mark, also when its parent is gone."""

import subprocess
import sys

from tests.support.orphans import VARIABLE, orphans

STARTS_AND_LEAVES = """
import subprocess, sys
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **quiet).pid)
"""


def test_a_grandchild_that_outlives_its_parent_is_named_and_one_that_ended_is_not() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STARTS_AND_LEAVES], env={VARIABLE: "a test of this"}, capture_output=True, text=True
    )
    left = int(ended.stdout)
    try:
        (found,) = orphans("a test of this", patience_seconds=0)
        assert found.startswith(f"{left} ")
        assert "time.sleep(60)" in found
    finally:
        subprocess.run(["kill", "-9", str(left)], check=True)
    assert orphans("a test of this") == []
