"""One task of the study in a process that has done nothing before."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from perf_tests.measures.study_task import Task
from perf_tests.records.record import Json
from perf_tests.records.store import write_whole

WORKER = "perf_tests.workers.study"

NOT_INHERITED = ("PYTEST_ADDOPTS",)
"""What a user adds to every pytest is meant for the run, not for the processes that the run starts."""


class FreshProcessError(Exception):
    """A process of the study died, or never came to its benchmark; the message is one sentence."""


def in_fresh_process(task: Task, root: Path) -> Json:
    """The answer to `task` of a process started in `root`. Raises FreshProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        task_path, answer_path = Path(folder, "task.json"), Path(folder, "answer.json")
        write_whole(task_path, json.dumps(task.as_json()).encode())
        process = subprocess.run(
            [sys.executable, "-m", WORKER, str(task_path), str(answer_path)],
            cwd=root,
            env={name: value for name, value in os.environ.items() if name not in NOT_INHERITED},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if process.returncode == 0 and answer_path.exists():
            answer: Json = json.loads(answer_path.read_bytes())
            return answer
    raise FreshProcessError(
        f"A fresh process for {task.benchmark} with {task.warmup_rounds} warm-up rounds "
        f"{_end_of(process.returncode)}: {_reason_in(process.stdout.splitlines())}"
    )


def _end_of(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _reason_in(lines: Iterable[str]) -> str:
    """pytest's own word for what went wrong, or else the last line of all."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if line.startswith("ERROR")]
    return (errors or said or ["it said nothing."])[-1]
