"""One process of the warm-up study, which has run no round before: `python -m perf_tests.workers.study SOCKET`."""

import sys
from dataclasses import asdict
from pathlib import Path

from perf_tests.measures.studied import StudiedMeasure, Study
from perf_tests.options.settings import Settings
from perf_tests.records.record import Json
from perf_tests.workers.channel import channel_of_worker
from perf_tests.workers.plugin import examined
from perf_tests.workers.process import WorkerEndedError, inherited_environment, start_worker
from perf_tests.workers.settings import sent_elsewhere


def in_fresh_process(settings: Settings, benchmark: str, study: Study, root: Path) -> Json:
    """The `values` or the `outcome` of a process started in `root`. Raises WorkerEndedError with one sentence."""
    worker = start_worker("perf_tests.workers.study", root, inherited_environment())
    try:
        return worker.ask({"settings": sent_elsewhere(settings), "benchmark": benchmark, "study": asdict(study)})
    except WorkerEndedError as error:
        raise WorkerEndedError(
            f"A fresh process for {benchmark} with {study.warmup_rounds} warm-up rounds failed: {error}."
        ) from error
    finally:
        worker.end()


def main() -> int:
    channel = channel_of_worker()
    task = channel.receive()
    study = Study(**task["study"])
    answer = examined(task, lambda item, workbench: StudiedMeasure(study, workbench.clock, workbench.device))
    if answer is None:  # pytest has printed why
        return 1
    channel.send(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
