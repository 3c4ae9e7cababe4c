"""A worker process: `python -m MODULE SOCKET`, started by the gate inside one side's tree.

It runs the benchmarks as pytest runs them, except that each measured round waits for the gate to ask for it. What it
serves them with, `interleaved.on_demand`, is imported only once the tree is known to be right: of an older tree, whose
`model/` lacks what the benchmarks import, the gate is told why instead.
"""

import importlib.util
import sys
from pathlib import Path

from perf_tests_suite.perf_tests.bench.workers import ClosedError, channel_of_worker
from perf_tests_suite.perf_tests.interleaved.observer import Recorder
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.named import Tree, take_files_from, why_not_there
from perf_tests_suite.perf_tests.user_code.own_names import share_model


def main() -> int:
    # A module loaded from byte code that an earlier process left in a tree is not seen as it is compiled.
    sys.dont_write_bytecode = True
    channel = channel_of_worker()
    try:
        task = channel.receive()
        tree, where = Path(task["tree"]), task["repository"]
        suite = [tree / "perf_tests"] if where["holds_suite"] else []
        recorder = Recorder(tree, suite) if task.get("is_rehearsal") else None
        if "words" in task:  # tests of the user's
            from perf_tests_suite.perf_tests.interleaved.their_side import serve_tests

            take_files_from(Tree.of(tree, where))
            if trouble := serve_tests(channel, task, recorder):
                channel.send({"cannot": trouble})
            return 0
        if absent := _why_not_this_tree(task):
            channel.send({"absent": absent})
            return 0
        try:
            from perf_tests_suite.perf_tests.interleaved.on_demand import serve
        except Exception as error:  # whatever importing an older `model/` raises
            reason: str | None = f"its model/ cannot be used by these benchmarks: {type(error).__name__}: {error}"
        else:
            reason = serve(channel, task, recorder)
        if reason:
            channel.send({"cannot": reason})
    except ClosedError:  # the gate is gone
        return 1
    return 0


def _why_not_this_tree(task: Json) -> str | None:
    """None if what is under test is this tree's own: what is elsewhere on the path would be measured instead."""
    where, tree = task["repository"], Path(task["tree"])
    take_files_from(Tree.of(tree, where))
    if where["holds_suite"]:
        share_model()
        found = importlib.util.find_spec("perf_tests_suite.model")
        if found is None or found.origin is None or not Path(found.origin).is_relative_to(tree):
            return "it has no model/"
    # Of several attentions each is looked for alone.
    return why_not_there(task["settings"]["model"]) or why_not_there(task["settings"]["optimizer"])


if __name__ == "__main__":
    sys.exit(main())
