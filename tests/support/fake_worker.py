"""A worker without torch, put in the place of `perf_tests/interleaved/worker.py` in the trees of a test.

`behaviour.json` at the top of its tree says what it does: its cases, how long a round or a sentinel takes, how much
that scatters and how many times as long each is as the last, and by case what it gets wrong.
"""

import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

BEHAVIOUR = json.loads((Path.cwd() / "behaviour.json").read_text())
ROUND_SECONDS = BEHAVIOUR.get("round_seconds", 0.001)
TIMED = itertools.count()


def send(message: dict[str, Any]) -> None:
    os.write(int(sys.argv[1]), json.dumps(message).encode() + b"\n")


def main() -> None:
    requests = os.fdopen(int(sys.argv[1]))

    def request() -> dict[str, Any]:
        line = requests.readline()
        if not line:
            sys.exit(1)
        return dict(json.loads(line))

    request()  # the task, which the behaviour stands for
    log_environment()
    if "cannot" in BEHAVIOUR:
        send({"cannot": BEHAVIOUR["cannot"]})
        return
    absent = BEHAVIOUR.get("absent", ())
    send({"ready": {case: fields for case, fields in BEHAVIOUR["cases"].items() if case not in absent}})
    task = request()
    with (Path.cwd() / "tasks.jsonl").open("a") as file:
        file.write(json.dumps(task) + "\n")
    for case in task["order"]:
        serve(case, request)
    while True:
        case = request()["count"]
        if BEHAVIOUR.get("faults", {}).get(case) == "dies counting":
            os.kill(os.getpid(), 9)
        counters = BEHAVIOUR.get("counters", {"kernel_launches": 7})
        send({"counted": case, "counters": counters, "reason": None if counters else "it is compiled."})


def serve(case: str, request: Any) -> None:
    fault = BEHAVIOUR.get("faults", {}).get(case)
    if fault == "out of memory":
        send({"done": case, "outcome": {"outcome": "out_of_memory", "reason": "no room"}})
        return
    if fault == "dies" or (fault == "dies once" and is_first_time(case)):
        os.kill(os.getpid(), 9)
    if fault == "raises":
        raise ValueError("planted")
    once_seconds = 1.0 if fault == "compiles once" and is_first_time(case) else 0.0
    time.sleep(once_seconds)
    send({"warm": case, "round_seconds": ROUND_SECONDS, "once_seconds": once_seconds})
    while True:
        asked = request()
        if "enough" in asked:
            if fault == "leaves with the other":
                leave_with_the_other()
            send({"done": case, "outcome": None})
            return
        if fault == "hangs":
            time.sleep(600)
        if (end := early_end(case, fault)) is not None:
            send(end)
            return
        log(f"{case} works")
        if "sentinel" in asked:
            send({"seconds": [scattered(BEHAVIOUR.get("sentinel_seconds", 0.002)) for _ in range(asked["count"])]})
        else:
            seconds = [scattered(ROUND_SECONDS) for _ in range(asked["rounds"])]
            cpu_seconds = seconds if BEHAVIOUR.get("reads_cpu_time", True) else None
            idle_cpu_seconds = BEHAVIOUR.get("idle_cpu_seconds", 0.0)
            send({"seconds": seconds, "cpu_seconds": cpu_seconds, "idle_cpu_seconds": idle_cpu_seconds})


def early_end(case: str, fault: str | None) -> dict[str, Any] | None:
    """The answer to a request for rounds that the case does not survive."""
    if fault == "fails in a round":
        return {"done": case, "outcome": {"outcome": "error", "reason": "planted in a round"}}
    if fault == "loses its device once" and is_first_time(case):
        return {"ended": "cuda:0 is unusable after CUDA error: device-side assert triggered"}
    return None


def scattered(seconds: float) -> float:
    growth = BEHAVIOUR.get("growth", 1.0) ** next(TIMED)
    return seconds * growth * random.lognormvariate(0, BEHAVIOUR.get("scatter", 0.0))


def leave_with_the_other() -> None:
    """Wait until the other side was let go too; a worker that waits in vain fails."""
    (Path.cwd() / "let-go").touch()
    deadline = time.monotonic() + 5
    while len(list(Path.cwd().parent.glob("*/let-go"))) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("the other side was not let go")
        time.sleep(0.01)


def is_first_time(case: str) -> bool:
    marker = Path.cwd() / f"died-in-{case}"
    if marker.exists():
        return False
    marker.touch()
    return True


def log(line: str) -> None:
    with (Path.cwd() / "worked.txt").open("a") as file:
        file.write(f"{time.monotonic()} {line}\n")


def log_environment() -> None:
    names = ("PYTHONHASHSEED", "PERF_TESTS_PADDING", "OMP_WAIT_POLICY")
    with (Path.cwd() / "environments.jsonl").open("a") as file:
        file.write(json.dumps({"folder": Path.cwd().name, **{name: os.environ[name] for name in names}}) + "\n")


if __name__ == "__main__":
    main()
