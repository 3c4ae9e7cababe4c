"""Each command of docs/cs336.md runs on the tiny size, and what the page says to type for its tables has rows."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.test_cs336 import ON_A_CPU, PROBLEMS, RANKS, trial
from tests.support.documents import ROOT
from tests.support.launch import Verb, launch, launch_ranks

COMMANDS = {one.command: one for one in PROBLEMS}
"""Several problems share one."""


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs_on_the_tiny_size_and_its_tables_have_rows(command: str, tmp_path: Path, verb: Verb) -> None:
    program, _, words = command.partition("perf-tests ")
    first, *typed = shlex.split(words)
    if first == "predict":
        assert verb(first, *typed)[0] in (0, 1), "1 is a step that does not fit"
        return
    if typed[0].startswith("numerics_tests"):
        ended = subprocess.run([sys.executable, "-m", "perf_tests", first, *typed], cwd=ROOT, capture_output=True)
        assert ended.returncode == 0
        return
    typed += [*trial(), *(ON_A_CPU if "--collective" in typed else [])]
    if program:
        assert program == RANKS
        lead, other = launch_ranks(tmp_path, *typed)
        assert (lead.exit_code, other.exit_code) == (0, 0), lead.output + other.errors
    else:
        launch(tmp_path, *typed, exits=0)
    for tables in COMMANDS[command].tables:
        code, shown, said = verb(*shlex.split(tables)[1:], f"--storage={tmp_path}")
        assert (code, "\n| :---" in shown or "\n| ---:" in shown) == (0, True), (tables, said)
