"""Runs of the suite as a user starts it, each in a process of its own, read from the record that it writes."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class LaunchError(Exception):
    """A run of the suite failed; the message ends with its output."""


@dataclass(frozen=True)
class Launch:
    """One finished run."""

    benchmarks: list[dict[str, Any]]
    output: str
    process_seconds: float
    """Seconds from starting the interpreter to its end."""


def launch_suite(arguments: Sequence[str], pytest: Sequence[str] = ("-m", "pytest")) -> Launch:
    """Run pytest at the repository root with these arguments, its record kept apart. Raises LaunchError."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record.json")
        command = [sys.executable, *pytest, *arguments]
        command += [f"--benchmark-storage=file://{folder}", f"--benchmark-json={record}"]
        start = time.perf_counter()
        process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        process_seconds = time.perf_counter() - start
        if process.returncode or not record.exists():
            words = " ".join(arguments)
            raise LaunchError(f"`pytest {words}` exited with {process.returncode}:\n{process.stdout[-3000:]}")
        return Launch(json.loads(record.read_bytes())["benchmarks"], process.stdout, process_seconds)
