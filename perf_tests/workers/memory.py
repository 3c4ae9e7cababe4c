"""Processes of their own for the cases of the memory pass: `python -m perf_tests.workers.memory READ WRITE`.

Started by the suite, it imports what a case needs, touches no device and starts no thread, and forks for each case.
In: the case's benchmark and the run's settings, as JSON. Out: what its rounds say of memory, or why there is nothing to
say. The benchmark runs as pytest runs it, so that its rounds are the timings'.
"""

import gc
import json
import os
import signal
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from perf_tests.bench.outcomes import outcome_of_report
from perf_tests.bench.stash import CASE, OUTCOME, SERVED_MEASURE, SETTINGS
from perf_tests.bench.workbench import Workbench
from perf_tests.instruments.torch_private import load_compiler
from perf_tests.measures.held import MemoryMeasure, Standing
from perf_tests.records.record import Json
from perf_tests.workers.channel import Channel, ClosedError
from perf_tests.workers.gate import settings_of

# Hypothesis's plugin imports all of Hypothesis at the end of every run.
_PYTEST = ("-q", "--benchmark-disable", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def main() -> int:
    channel = Channel(int(sys.argv[1]), int(sys.argv[2]))
    if torch.version.cuda is None:
        # AdamW and torch.compile import it; a build with CUDA may ask the driver meanwhile, and no fork survives that.
        load_compiler()
    gc.freeze()  # what is imported is nobody's memory, and no collection of a case need walk it
    while True:
        try:
            channel.send(in_a_process_of_its_own(channel.receive()))
        except ClosedError:  # the suite is done, or gone
            return 0


def in_a_process_of_its_own(task: Json) -> Json:
    """The answer of a fork of this process; `died` says of what, where it gave none."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read)
        _answer_and_end(task, write)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        content = answers.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return {"died": signal.Signals(os.WTERMSIG(status)).name}
    try:
        answer: Json = json.loads(content)
    except ValueError:
        return {"died": f"exit code {os.WEXITSTATUS(status)}"}
    return answer


def _answer_and_end(task: Json, write: int) -> NoReturn:
    """Ends without the clean-up that belongs to the process which was forked."""
    try:
        content = json.dumps(examine(task)).encode()
        with os.fdopen(write, "wb") as answers:
            answers.write(content)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def examine(task: Json) -> Json:
    """Runs the task's benchmark in this process: `values`, or the `outcome` that takes their place."""
    examined = Examined(task)
    pytest.main([*_PYTEST, "-W", "ignore::pytest.PytestAssertRewriteWarning", task["benchmark"]], plugins=[examined])
    return examined.answer()


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Examined:
    """A plugin of the worker's pytest: what to run, and what became of it."""

    task: Json
    _item: Any = None
    _measure: MemoryMeasure | None = None
    _outcome: Json | None = None
    _trouble: str = "pytest did not run it"

    def answer(self) -> Json:
        if self._outcome is not None:
            return {"outcome": self._outcome}
        if self._measure is None or not self._measure.values:
            return {"outcome": {"outcome": "error", "reason": self._trouble}}
        return {"values": self._measure.values}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        session.config.stash[SETTINGS] = settings_of(self.task["settings"])
        session.config.stash[SERVED_MEASURE] = self._make_measure

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._trouble = report.longreprtext.strip().splitlines()[-1]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._item = item

    def _make_measure(self, case_id: str, workbench: Workbench) -> MemoryMeasure:
        snapshot = self.task["snapshot"]
        case = self._item.stash[CASE]
        device = workbench.device.torch_device
        self._measure = MemoryMeasure(case, device, self._what_stands, None if snapshot is None else Path(snapshot))
        return self._measure

    def _what_stands(self) -> Standing:
        """The tensors that the benchmark's fixtures made."""
        fixtures = self._item.funcargs
        if "training" in fixtures:
            return Standing(fixtures["training"], tuple(vars(fixtures["batch"]).values()))
        return Standing(None, tuple(vars(fixtures["inputs"]).values()))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """`pytest.exit` comes here too: what --model names is no language model."""
        self._outcome = {"outcome": "error", "reason": str(excinfo.value)}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self._outcome is None:
            outcome = item.stash.get(OUTCOME, None) or outcome_of_report(report)
            self._outcome = dict(vars(outcome))
        return report


if __name__ == "__main__":
    sys.exit(main())
