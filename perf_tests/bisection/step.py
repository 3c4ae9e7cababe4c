"""One commit of a search: `python -P -m perf_tests.bisection.step FOLDER [COMMIT]`, started by `git bisect run`.

Its exit code is the verdict. It ends with the search that started git, whatever ends that.
"""

import sys
import traceback
from pathlib import Path

from perf_tests.bisection.clone import SearchError, git
from perf_tests.bisection.judge import judged
from perf_tests.bisection.task import EXIT_CODES, Judged, Task
from perf_tests.workers.lifeline import end_with_starter


def main(folder: str, commit: str | None = None) -> int:
    end_with_starter()
    task = Task.read(Path(folder))
    commit = commit or git(Path(task.clone), "rev-parse", "BISECT_HEAD")
    try:
        found = judged(task, commit)
    except (OSError, SearchError, ValueError) as error:
        found = Judged(commit, "", "stopped", str(error).rstrip("."))
    found.keep(task)
    return EXIT_CODES[found.state]


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except Exception:  # Python's own exit code would call the commit slower
        traceback.print_exc()
        sys.exit(EXIT_CODES["stopped"])
