"""A fresh process of the study: `python -m perf_tests.workers.study TASK ANSWER`, two JSON files.

It runs one benchmark as pytest runs it, with the study's rounds in the place of the timed ones.
"""

import json
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from perf_tests.bench.outcomes import outcome_of_report
from perf_tests.bench.stash import OUTCOME, SERVED_MEASURE, SETTINGS
from perf_tests.bench.workbench import Workbench
from perf_tests.measures.studied import StudiedMeasure
from perf_tests.measures.study_task import Task, task_of
from perf_tests.records.record import Json
from perf_tests.records.store import write_whole

_PYTEST = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--benchmark-disable", "--quiet")


class Server:
    """A plugin of this process's pytest: what the benchmark runs under, and what came of it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.outcome: Json | None = None
        self._measure: StudiedMeasure | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        session.config.stash[SETTINGS] = self.task.settings
        session.config.stash[SERVED_MEASURE] = self._make_measure

    def _make_measure(self, case_id: str, workbench: Workbench) -> StudiedMeasure:
        self._measure = StudiedMeasure(self.task, workbench)
        return self._measure

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self.outcome is None:
            outcome = item.stash.get(OUTCOME, None) or outcome_of_report(report)
            self.outcome = {"outcome": outcome.outcome, "reason": outcome.reason}
        return report

    @property
    def answer(self) -> Json | None:
        """None where pytest never came to the benchmark."""
        if self.outcome is not None:
            return {"outcome": self.outcome}
        return None if self._measure is None else self._measure.answer


def main(task_path: Path, answer_path: Path) -> int:
    task = task_of(json.loads(task_path.read_bytes()))
    server = Server(task)
    pytest.main([*_PYTEST, task.benchmark], plugins=[server])
    if server.answer is None:
        return 1
    write_whole(answer_path, json.dumps(server.answer).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
