"""The interpreter of base where it is another one: asked what it has, and refused where the suite cannot run in it."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch

from perf_tests.paired.launch_pair import environment_without_the_suite
from perf_tests.workers.process import last_words

SECONDS = 120
"""Time limit of its answer; it imports torch."""

# Prints what it runs, and what of the needs of the project it lacks. Any Python 3 understands it.
QUESTION = """
import json, platform, sys
needs, pythons, device = json.loads(sys.argv[1])
import torch
from importlib import metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
lacking = [] if SpecifierSet(pythons).contains(platform.python_version()) else ["Python " + pythons]
for need in map(Requirement, needs):
    try:
        there = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        there = None
    if there is None or not need.specifier.contains(there, prereleases=True):
        lacking.append("%s (%s there)" % (need, there or "not"))
if device == "cuda" and not torch.cuda.is_available():
    lacking.append("a torch that sees the GPU")
print(json.dumps([platform.python_version(), torch.__version__, lacking]))
"""


class OtherPythonError(Exception):
    """Base cannot run under this interpreter; the message is one sentence."""


@dataclass(frozen=True)
class OtherPython:
    path: str
    """Absolute, links kept: a virtual environment is found by the path that its interpreter is started by."""
    build: str
    """`Python 3.11.7 with torch 2.12.1+cpu`."""


def build_here() -> str:
    return _build(platform.python_version(), torch.__version__)


def other_python(typed: str, device_type: str) -> OtherPython:
    """Raises OtherPythonError with what it lacks and the next step."""
    found = shutil.which(typed)
    if found is None:
        raise OtherPythonError(f"--against-python {shlex.quote(typed)} is no program that can be run.")
    path = os.path.abspath(found)
    python, its_torch, lacking = _answer(typed, path, device_type)
    if lacking:
        raise OtherPythonError(
            f"--against-python {typed} lacks what the suite needs: {', '.join(lacking)}; install it there."
        )
    return OtherPython(path, _build(python, its_torch))


def _answer(typed: str, path: str, device_type: str) -> tuple[str, str, list[str]]:
    """Its Python, its torch, and what it lacks."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    try:
        asked = subprocess.run(
            [path, "-c", QUESTION, json.dumps([project["dependencies"], project["requires-python"], device_type])],
            cwd=os.path.dirname(path), env=environment_without_the_suite(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OtherPythonError(f"--against-python {typed} cannot be run: {error}.") from error
    if asked.returncode or not asked.stdout.startswith("["):
        why = last_words(asked.stderr) or "it is no Python"
        raise OtherPythonError(
            f"--against-python {typed} cannot run the suite: {why}; make an environment of another build with "
            "`make .venv-2.11.0/.installed TORCH=2.11.0`, and give its bin/python."
        )
    python, its_torch, lacking = json.loads(asked.stdout)
    return python, its_torch, lacking


def _build(python: str, its_torch: str) -> str:
    return f"Python {python} with torch {its_torch}"
