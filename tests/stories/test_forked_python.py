"""A forked process is what a started one is, as far as its program can tell and its parent can see."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.forked_python import forked_python

SAYS = """
print(os.getcwd(), sys.argv, os.environ["PLANTED"], os.environ["PYTHONPATH"], tempfile.gettempdir())
print([path for path in sys.path if path.startswith("/planted")])
print(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
print(subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True).stdout)
atexit.register(print, "cleaned up")
"""

PROGRAMS = {
    "says where it is and what it holds, starts another and cleans up": SAYS,
    "exits": "sys.exit(3)",
    "exits with words": "sys.exit('why')",
    "raises": "raise ValueError('planted')",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "is interrupted": "os.kill(os.getpid(), signal.SIGINT)",
    "takes all its memory": "resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33)); bytearray(2**34)",
}


def ended(python: str, program: str, folder: Path) -> tuple[int, str, str]:
    """Exit code, output and the last line of errors."""
    imports = "import atexit, os, resource, signal, subprocess, sys, tempfile; "
    process = subprocess.run(
        [python, "-c", imports + program, "a word"], cwd=folder, capture_output=True, text=True, process_group=0,
        env={"PLANTED": "here", "PYTHONPATH": "/planted/one:/planted/two", "TMPDIR": str(folder)},
    )  # fmt: skip
    return process.returncode, process.stdout, process.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_forked_process_does_as_a_started_one(what: str, tmp_path: Path) -> None:
    assert ended(forked_python(), PROGRAMS[what], tmp_path) == ended(sys.executable, PROGRAMS[what], tmp_path)


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["alone", "with its group"])
def test_a_stand_in_that_is_killed_leaves_no_forked_process(kill: Callable[[int, int], None]) -> None:
    program = "print(os.getpid(), 'torch' in sys.modules, 'perf_tests' in sys.modules, flush=True); time.sleep(600)"
    with subprocess.Popen(
        [forked_python(), "-c", f"import os, sys, time; {program}"], stdout=subprocess.PIPE, process_group=0
    ) as process:
        assert process.stdout is not None
        number, has_torch, has_suite = process.stdout.readline().split()
        assert int(number) != process.pid
        assert (has_torch, has_suite) == (b"True", b"False"), "torch is there before the program begins"
        kill(process.pid, signal.SIGKILL)
        assert process.stdout.read() == b"", "which ends with the forked process"
