"""The suite as a user starts it, in a process of its own with a storage folder of its own."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from perf_tests_suite.perf_tests.__main__ import VERBS
from perf_tests_suite.perf_tests.cases.options import OPTIONS
from perf_tests_suite.perf_tests.records.journal import JournalContents, read_journal
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.forked_python import forked_python

ROOT = Path(__file__).parents[2]

MODELS = "tests.support.planted_models"

Verb = Callable[..., tuple[int, str, str]]
"""The fixture `verb`: its words; its exit code, what it prints and what stands beside that."""

SMALL = (
    "--device=cpu", "--size=tiny", "--context=8", "--precision=fp32", "--rounds=2", "--warmup-rounds=1",
    "--head-dim=16", "--sequence-length=16", "--attention=naive", "--threads=1",
)  # fmt: skip
"""The least there is to measure; what follows on the command line overrides it."""


THREE_CASES = ("--context=8,16,24", "--phase=forward", "-k=not attention")


@dataclass(frozen=True)
class Launch:
    """How a process ended, and what it said and left; cases by short name, `test_forward[tiny-ctx8-fp32-own]`."""

    exit_code: int
    output: str
    errors: str
    storage: Path

    @property
    def paths(self) -> list[Path]:
        """Its records, in the order of their numbers."""
        return sorted(self.storage.glob("*/*.json"))

    @property
    def records(self) -> list[Json]:
        return [json.loads(path.read_bytes()) for path in self.paths]

    @property
    def record(self) -> Json:
        (record,) = self.records
        return record

    @property
    def journals(self) -> list[Path]:
        return sorted(self.storage.glob("*/journal-*"))

    @property
    def journal(self) -> JournalContents:
        """What the only journal holds."""
        (path,) = self.journals
        return contents_of(path)

    @property
    def finished(self) -> set[str]:
        """The cases that the only journal holds, by short name."""
        return {short(case_id) for case_id in self.journal.finished_ids}

    @property
    def outcomes(self) -> dict[str, Json]:
        return {short(row["id"]): row for row in self.record["outcomes"]}

    @property
    def passes(self) -> dict[str, Json]:
        """What extra passes found."""
        return {short(row["id"]): row for row in self.record["passes"]}

    @property
    def measured(self) -> dict[str, Json]:
        return {short(row["fullname"]): row for row in self.record["benchmarks"]}

    def copied(self, folder: Path) -> Path:
        """What it left, to go on from without touching it."""
        return Path(shutil.copytree(self.storage, folder / "storage"))


def parsed(verb: str, words: Sequence[str]) -> dict[str, str]:
    """Hold words to what the verb takes; of `run`, each option and what follows it, which its own reader reads."""
    if verb != "run":
        parser, module = ArgumentParser(exit_on_error=False), import_module(VERBS[verb])
        parser.add_argument("--json", action="store_true")  # of every verb
        module.add_arguments(parser)
        if not hasattr(module, "OF_RUN"):
            return vars(parser.parse_args(words))
        own, words = parser.parse_known_args(words)
        assert {word for word in words if word.startswith("--")} <= {*module.OF_RUN}, words
        return vars(own)
    known = {option.name: option.parse for option in OPTIONS}
    typed = {name: value for name, value in pairwise([*words, "--end"]) if name.startswith("--")}
    for name, value in typed.items():
        assert (known[name] is None) == value.startswith("--"), words
        if (parse := known[name]) is not None:
            parse(name, value)
    return typed


def contents_of(journal: Path) -> JournalContents:
    contents = read_journal(journal)
    assert contents is not None
    return contents


def short(case_id: str) -> str:
    return case_id.rpartition("::")[2]


def suite(storage: Path, *arguments: str) -> tuple[str, ...]:
    """The command of a launch that is as short as it can be."""
    plugins = ("-p", "tests.support.quick_ceiling", "-p", "no:cacheprovider")
    # Hypothesis's plugin imports all of Hypothesis at the end of every run.
    without = ("-p", "no:hypothesispytest", f"--benchmark-storage=file://{storage}")
    return forked_python(), "-m", "pytest", str(ROOT / "perf_tests"), *plugins, *without, *SMALL, *arguments


LEFT_OUT = ("PYTEST", "CI", "PLANTED", "PYTHONDONTWRITEBYTECODE")
"""Beginnings of variables that a user's shell does not have."""


def inherited(**environment: str) -> dict[str, str]:
    """This process's variables without those that change a launch, and with `environment`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    return {**kept, **environment}


def path_with(root: Path) -> str:
    """Python's path with the suite of a checkout, and with its tests, for plugins and planted models."""
    return f"{root}/perf_tests/importable:{root}"


def start(storage: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`environment` reaches planted models, which read it when they run."""
    return start_command(suite(storage, *arguments), ROOT, ROOT, **environment)


def start_command(
    command: Sequence[str], cwd: Path = ROOT, root: Path = ROOT, **environment: str
) -> subprocess.Popen[str]:
    variables = inherited(**{"PYTHONPATH": path_with(root), "PYTHONUNBUFFERED": "1", **environment})
    return subprocess.Popen(command, cwd=cwd, env=variables, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True)


def finish(process: subprocess.Popen[str], storage: Path, exits: int | None = None) -> Launch:
    """How it ended; `exits` is the exit code that it must end with."""
    output, errors = process.communicate(timeout=300)
    assert exits in (None, process.returncode), output + errors
    return Launch(process.returncode, output, errors, storage)


def launch(storage: Path, *arguments: str, exits: int | None = None, **environment: str) -> Launch:
    return finish(start(storage, *arguments, **environment), storage, exits)


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120  # beside others on a busy machine; a hang alone reaches it
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


MANY = """
import contextlib, io, json, pytest, sys
ends = []
for words in json.load(sys.stdin):
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        exit_code = pytest.main(words)
    ends.append([int(exit_code), output.getvalue(), errors.getvalue()])
json.dump(ends, sys.stdout)
"""


def launch_all(launches: Iterable[Sequence[str]], cwd: Path = ROOT) -> list[tuple[int, str, str]]:
    """The exit code, output and errors of each, started one after another in one process, which imports torch once."""
    with tempfile.TemporaryDirectory() as folder:  # a gate elsewhere on this machine would be in the way
        process = subprocess.run(
            [forked_python(), "-c", MANY],
            cwd=cwd, env=inherited(PYTHONPATH=path_with(ROOT), TMPDIR=folder), input=json.dumps(list(launches)),
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
    return [(code, output, errors) for code, output, errors in json.loads(process.stdout)]


def launched_once(
    *arguments: str, exits: int | None = None, **environment: str
) -> Callable[[pytest.TempPathFactory], Launch]:
    """A fixture: one launch for all tests of a module."""

    @pytest.fixture(scope="module")
    def launched(tmp_path_factory: pytest.TempPathFactory) -> Launch:
        return launch(tmp_path_factory.mktemp("launched"), *arguments, exits=exits, **environment)

    return launched


# The suite on several ranks, started side by side as torchrun starts them, without its agent.

OF_MODELS = "-k=not attention"


def launch_ranks(
    storage: Path, *arguments: str, world: int = 2, of_rank: Sequence[Sequence[str]] = ((), ()), **environment: str
) -> list[Launch]:
    """How each rank ended; `of_rank` are further arguments of one rank.

    Without the line that gloo writes of each connection before torch 2.11, past Python.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(world)}
    processes = [
        start(storage, OF_MODELS, *arguments, *of_rank[rank], RANK=str(rank), **address, **environment)
        for rank in range(world)
    ]
    ended = [finish(process, storage) for process in processes]
    return [replace(rank, output=re.sub(r"^\[Gloo\] .*\n", "", rank.output, flags=re.MULTILINE)) for rank in ended]
