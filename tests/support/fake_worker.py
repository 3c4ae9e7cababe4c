"""A worker without torch, put in the place of `perf_tests/interleaved/worker.py` in the trees of a test.

`behaviour.md` at the top of its tree, JSON, says what it does: its cases, how long a round or a sentinel takes, how
much that scatters and how many times as long each is as the last, and by case what it gets wrong.
"""

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path.cwd()
BEHAVIOUR = json.loads((HERE / "behaviour.md").read_text())
FAULTS = BEHAVIOUR.get("faults", {})
ROUND_SECONDS = BEHAVIOUR.get("round_seconds", 0.001)
TIMED = itertools.count()
LOGGED = ("PYTHONHASHSEED", "PERF_TESTS_PADDING", "OMP_WAIT_POLICY")


def main() -> None:
    requests = map(json.loads, os.fdopen(int(sys.argv[1])))
    is_rehearsal = next(requests).get("is_rehearsal")  # else the task, which the behaviour stands for
    for sibling in HERE.glob(BEHAVIOUR.get("writes", "nothing")):
        sibling.touch()
    log("environments", {"folder": HERE.name, **{name: os.environ[name] for name in LOGGED}})
    for why in ("cannot", "lacks"):
        if why in BEHAVIOUR:
            send({"absent" if why == "lacks" else why: BEHAVIOUR[why]})
            return
    absent = BEHAVIOUR.get("absent", ())
    send({"ready": {case: fields for case, fields in BEHAVIOUR["cases"].items() if case not in absent}})
    task = next(requests)
    if is_rehearsal:
        send({**observed(BEHAVIOUR.get("read", [])), "digests": digests_of(task["order"])})
        log("once", next(requests)["once"])
        if "dies in a round" in FAULTS.values():
            sys.exit(9)
        send({**observed(BEHAVIOUR.get("read_once", [])), "unplayed": BEHAVIOUR.get("unplayed", {})})
        return
    log("tasks", task)
    for case in task["order"]:
        send(answer_to_the_end(case, FAULTS.get(case), requests))
    for request in requests:
        if "compile" in request:
            send(compiled(request["compile"]))
            continue
        if FAULTS.get(request["count"]) == "dies counting":
            os.kill(os.getpid(), 9)
        counters = BEHAVIOUR.get("counters", {"kernel_launches": 7})
        send({"counted": request["count"], "counters": counters, "reason": None if counters else "it is compiled."})


def send(message: dict[str, Any]) -> None:
    os.write(int(sys.argv[1]), json.dumps(message).encode() + b"\n")


def answer_to_the_end(case: str, fault: str | None, requests: Iterator[Any]) -> dict[str, Any]:
    """Serve a case; the message that ends it."""
    if fault == "out of memory":
        return {"done": case, "outcome": {"outcome": "out_of_memory", "reason": "no room"}}
    strike(case, fault)
    once_seconds = 1.0 if fault == "compiles once" and is_first_time(case) else 0.0
    time.sleep(once_seconds)
    send({"warm": case, "round_seconds": ROUND_SECONDS, "once_seconds": once_seconds})
    for asked in requests:
        if "enough" in asked:
            if fault == "leaves with the other":
                leave_with_the_other()
            return {"done": case, "outcome": None}
        strike(case, str(fault).removesuffix(" in a round"))
        if fault == "fails in a round":
            return {"done": case, "outcome": {"outcome": "error", "reason": "planted in a round"}}
        if fault == "loses its device once" and is_first_time(case):
            return {"ended": "cuda:0 is unusable after CUDA error: device-side assert triggered"}
        log("worked", [time.monotonic(), case])
        send(measured(asked))
    sys.exit(1)


def compiled(case: str) -> dict[str, Any]:
    """Answer that it took so long for each part, once the cache is filled a tenth."""
    cache, fault = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]), FAULTS.get(case)
    log("compiled", [time.monotonic(), os.getpid(), str(cache), cache.exists()])
    if fault == "compiles nothing" or (fault == "misses its cache" and cache.exists()):
        return {"compiled": None, "outcome": {"outcome": "error", "reason": fault}}
    seconds = BEHAVIOUR.get("compile_seconds", 20.0) * (0.1 if cache.exists() else 1.0)
    cache.mkdir(exist_ok=True)
    forward, backward = scattered(seconds), scattered(seconds)
    parts = {"forward": forward, "backward": backward, "": forward + backward}
    return {"compiled": {part: [taken, taken] for part, taken in parts.items()}, "outcome": None}


def digests_of(order: list[str]) -> dict[str, Any]:
    """What is said of each case without measuring it."""
    digest = BEHAVIOUR.get("operations", "of all fakes")
    return {
        case: {"digest": digest if FAULTS.get(case) != "reads a value" else None, "reason": "it reads a value."}
        for case in order
    }


def observed(read: list[str]) -> dict[str, Any]:
    """What a side ran, which is nothing, and read."""
    nothing = dict.fromkeys(("listed", "beyond", "modules", "preloaded", "overridden", "of_suite"), ())
    return {**nothing, "ran": {}, "functions": {}, "read": read}


def strike(case: str, fault: str | None) -> None:
    if fault == "dies" or (fault == "dies once" and is_first_time(case)):
        os.kill(os.getpid(), 9)
    if fault == "raises":
        raise ValueError("planted")
    if fault == "hangs":
        time.sleep(600)


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    if "sentinel" in asked:
        return {"seconds": [scattered(BEHAVIOUR.get("sentinel_seconds", 0.002)) for _ in range(asked["count"])]}
    seconds = [scattered(ROUND_SECONDS) for _ in range(asked["rounds"])]
    cpu_seconds = seconds if BEHAVIOUR.get("reads_cpu_time", True) else None
    idle_cpu_seconds = BEHAVIOUR.get("idle_cpu_seconds", 0.0)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "idle_cpu_seconds": idle_cpu_seconds}


def scattered(seconds: float) -> float:
    growth = BEHAVIOUR.get("growth", 1.0) ** next(TIMED)
    return seconds * growth * random.lognormvariate(0, BEHAVIOUR.get("scatter", 0.0))


def leave_with_the_other() -> None:
    """Wait until the other side was let go too; a worker that waits in vain fails."""
    (HERE / "let-go").touch()
    deadline = time.monotonic() + 5
    while len(list(HERE.parent.glob("*/let-go"))) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("the other side was not let go")
        time.sleep(0.01)


def is_first_time(case: str) -> bool:
    marker = HERE / f"died-in-{case}"
    is_first = not marker.exists()
    marker.touch()
    return is_first


def log(what: str, entry: object) -> None:
    with (HERE / f"{what}.md").open("a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
