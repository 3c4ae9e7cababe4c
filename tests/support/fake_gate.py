"""Stands in for pytest in a search: `model/case.json` of the commit at hand says what the gate does.

`{"run": name of the samples that it leaves, in the folder RUNS}`, `{"cannot": why it is not collected}`, `{"refuses":
why there is no run}`, or `{"hangs": true}`; `{"forgets": true}` beside a run, that git bisects. What was asked for is
appended to the file that FAKE_GATE_LOG names. Uses the standard library alone, because it starts often.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

COMMAND = (sys.executable, "-IS", __file__)


def main(words: list[str]) -> int:
    behaviour = json.loads(Path("model/case.json").read_text())
    if "--collect-only" in words and "cannot" not in behaviour:
        return 0
    if "cannot" not in behaviour:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        asked = {"commit": commit, "by": Path("perf_tests/measuring.py").read_text(), "words": words}
        with Path(os.environ["FAKE_GATE_LOG"]).open("a") as file:
            file.write(json.dumps(asked) + "\n")
    if why := behaviour.get("cannot", behaviour.get("refuses")):
        print(f"ERROR: {why}.")
        return 4
    if "hangs" in behaviour:
        time.sleep(600)
    if "forgets" in behaviour:
        Path(".git/BISECT_START").unlink(missing_ok=True)
    (storage,) = (word.partition("file://")[2] for word in words if word.startswith("--benchmark-storage="))
    Path(storage, "gate").mkdir()
    shutil.copy(Path(os.environ["RUNS"], behaviour["run"]), Path(storage, "gate/samples.jsonl"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
