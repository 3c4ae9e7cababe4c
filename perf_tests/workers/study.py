"""One task of the warm-up study in a process that has done nothing before: `python -m perf_tests.workers.study`."""

import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from perf_tests.bench.workbench import Workbench
from perf_tests.measures.rounds import Measure
from perf_tests.measures.studied import StudiedMeasure, Study
from perf_tests.options import Settings
from perf_tests.records.record import Json
from perf_tests.workers.channel import ClosedError
from perf_tests.workers.plugin import WorkerPlugin, channel_to_the_suite
from perf_tests.workers.process import inherited_environment, start_worker
from perf_tests.workers.settings import received, sent


class FreshProcessError(Exception):
    """A process of the study died, or never came to its benchmark; the message is one sentence."""


def in_fresh_process(settings: Settings, benchmark: str, study: Study, root: Path) -> Json:
    """Its `values`, or the `outcome` in their place, from a process started in `root`. Raises FreshProcessError."""
    worker = start_worker("perf_tests.workers.study", root, inherited_environment())
    try:
        worker.channel.send({"settings": sent(settings), "benchmark": benchmark, "study": asdict(study)})
        return worker.channel.receive()
    except (ClosedError, ValueError) as error:
        code, words = worker.process.wait(), worker.last_words() or "it said nothing."
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise FreshProcessError(
            f"A fresh process for {benchmark} with {study.warmup_rounds} warm-up rounds {end}: {words}"
        ) from error
    finally:
        worker.end()


@dataclass(eq=False, kw_only=True)
class StudyPlugin(WorkerPlugin):
    study: Study
    studied: StudiedMeasure | None = None

    def measure(self, item: pytest.Item, workbench: Workbench) -> Measure:
        self.studied = StudiedMeasure(self.study, workbench.clock, workbench.device)
        return self.studied


def main() -> int:
    channel = channel_to_the_suite()
    task = channel.receive()
    plugin = StudyPlugin(settings=received(task["settings"]), study=Study(**task["study"]))
    plugin.run([task["benchmark"]])
    if plugin.outcome is not None:
        channel.send({"outcome": plugin.outcome})
    elif plugin.studied is not None and plugin.studied.values:
        channel.send({"values": plugin.studied.values})
    else:  # pytest never came to the benchmark, and has said why
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
