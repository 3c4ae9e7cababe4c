"""A plugin, `-p tests.support.struck`: counts the moments of a run, and sends it a signal at one of them.

Each moment is a line of the file STRUCK_LOG, `stage: name`. At STRUCK_AT, `stage:number` or `first:name`, the process
sends itself the signal STRUCK_WITH. `kept: ID` says that a case's row is on disk.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from perf_tests_suite.perf_tests.bench.workers import Channel
from perf_tests_suite.perf_tests.gate.samples import SamplesFile
from perf_tests_suite.perf_tests.records.journal import Journal

STAGES = ("start", "collection", "warm-up", "rounds", "between cases", "saving")

_BEGINS = {"pytest_collection": "collection", "pytest_runtestloop": "between cases", "pytest_sessionfinish": "saving"}

_ON_DISK = ("fsync", "link", "replace", "unlink")
"""Functions of `os` before and after which a file is whole or not."""


class Struck:
    def __init__(self) -> None:
        self.log = open(os.environ["STRUCK_LOG"], "ab", buffering=0)  # noqa: SIM115  # until the process dies
        self.at, self.counts, self.stage, self.passes = os.environ.get("STRUCK_AT"), Counter[str](), "start", 0

    def moment(self, name: str) -> None:
        self.stage = _BEGINS.get(name, self.stage)
        if name == "pytest_runtest_setup":
            self.passes = 0
        stage = self.stage
        if name == "forward pass":
            self.passes += 1
            stage = "warm-up" if self.passes == 1 else "rounds"
        self.counts[stage] += 1
        self.log.write(f"{stage}: {name}\n".encode())
        if self.at in (f"{stage}:{self.counts[stage]}", f"first:{name}"):
            os.kill(os.getpid(), signal.Signals[os.environ["STRUCK_WITH"]])

    def around(self, holder: Any, name: str) -> None:
        inner: Callable[..., Any] = getattr(holder, name)

        def outer(*arguments: Any, **named: Any) -> Any:
            self.moment(f"before {name}")
            result = inner(*arguments, **named)
            self.moment(f"after {name}")
            return result

        setattr(holder, name, outer)

    def around_rows(self) -> None:
        inner = Journal.write

        def write(journal: Journal, kind: str, row: Any) -> None:
            inner(journal, kind, row)
            if kind in ("benchmark", "outcome", "pass"):
                self.log.write(f"kept: {row['fullname' if kind == 'benchmark' else 'id']}\n".encode())
            self.moment(f"{kind} written")

        Journal.write = write  # type: ignore[assignment,method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    struck = Struck()
    struck.around_rows()
    for name in _ON_DISK:
        struck.around(os, name)
    struck.around(SamplesFile, "append")
    struck.around(Channel, "send")
    is_model = "TransformerLM"
    torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: struck.moment("forward pass") if type(module).__name__ == is_model else None
    )
    stop = config.pluginmanager.add_hookcall_monitoring(
        before=lambda name, implementations, arguments: struck.moment(name), after=lambda *anything: None
    )
    config.add_cleanup(stop)


def moments(log: Path, stage: str) -> list[str]:
    """The names of a stage's moments, in order; of the stage "kept" the cases whose rows are on disk."""
    split = (line.partition(": ") for line in log.read_text().splitlines())
    return [name for of_stage, _, name in split if of_stage == stage]
