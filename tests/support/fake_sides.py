"""Trees whose worker is `fake_worker`, and what processes and folders of a gate are left."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from perf_tests_suite.perf_tests import IMPORTABLE
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.launch import ROOT

CASES = ("one", "two", "three")


def tree(folder: Path, behaviour: Json) -> Path:
    """A side whose worker behaves so."""
    room = folder / "perf_tests/interleaved"
    room.mkdir(parents=True)
    for package in (room, room.parent):
        (package / "__init__.py").touch()
    shutil.copy(ROOT / "tests/support/fake_worker.py", room / "worker.py")
    shutil.copytree(IMPORTABLE, room.parent / IMPORTABLE.name)
    cases = {case: {"phase": "forward"} for case in CASES} | behaviour.get("identities", {})
    (folder / "behaviour.md").write_text(json.dumps({"cases": cases, **behaviour}))
    return folder


def logged(folder: Path, what: str) -> list[Any]:
    """What the side's fake worker logged of this kind: `tasks`, `environments`, or moments at which it `worked`."""
    return [json.loads(line) for line in (folder / f"{what}.md").read_text().splitlines()]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def workers_in(folder: Path) -> list[str]:
    """Processes whose working folder is below `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = os.readlink(process / "cwd")
        except OSError:
            continue
        if here.startswith(str(folder)):
            found.append(here)
    return found
