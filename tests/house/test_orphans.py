"""A process that a test leaves running is found by its mark, also when its parent is gone."""

import os
import signal
import subprocess
import sys

from tests.support.orphans import VARIABLE, orphans

STARTS_AND_LEAVES = """
import subprocess, sys
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **quiet).pid)
"""


def test_a_grandchild_that_outlives_its_parent_is_named_and_one_that_ended_is_not() -> None:
    command, environment = [sys.executable, "-c", STARTS_AND_LEAVES], {VARIABLE: "a test of this"}
    left = int(subprocess.check_output(command, env=environment))
    try:
        (found,) = orphans("a test of this", patience_seconds=0)
        assert found.startswith(f"{left} ")
        assert "time.sleep(60)" in found
    finally:
        os.kill(left, signal.SIGKILL)
    assert orphans("a test of this") == []
