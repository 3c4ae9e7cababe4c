"""A worker process: `python -m perf_tests.paired.worker SOCKET`, started by the gate inside one side's tree.

It runs the benchmarks as pytest runs them, except that each measured round waits for the gate to ask for it.
"""

import importlib.util
import sys
from pathlib import Path

from perf_tests.workers.channel import Channel, ClosedError, channel_of_worker


def main() -> int:
    channel = channel_of_worker()
    try:
        reason = _why_no_model() or _serve(channel)
        if reason:
            channel.send({"cannot": reason})
    except ClosedError:  # the gate is gone
        return 1
    return 0


def _serve(channel: Channel) -> str | None:
    """Why nothing was served, as when an older `model/` lacks what the benchmarks import; None when all was served."""
    task = channel.receive()
    try:
        from perf_tests.workers.gate import serve
    except Exception as error:
        return f"its model/ cannot be used by these benchmarks: {type(error).__name__}: {error}"
    return serve(channel, task)


def _why_no_model() -> str | None:
    """None if `model` is this tree's own: another one on the path would be measured instead."""
    found = importlib.util.find_spec("model")
    if found is None or found.origin is None or not Path(found.origin).is_relative_to(Path.cwd()):
        return "it has no model/"
    return None


if __name__ == "__main__":
    sys.exit(main())
