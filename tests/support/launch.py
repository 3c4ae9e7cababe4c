"""The suite as a user starts it, in a process of its own with a storage folder of its own."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from perf_tests.records.journal import JournalContents, read_journal
from perf_tests.records.record import Json
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
ALL_THREE = {f"test_forward[tiny-ctx{context}-fp32-own]" for context in (8, 16, 24)}


@dataclass(frozen=True)
class Launch:
    """How a process ended, and what it said and left; cases by short name, `test_forward[tiny-ctx8-fp32-own]`."""

    exit_code: int
    output: str
    errors: str
    storage: Path

    @property
    def records(self) -> list[Json]:
        return [json.loads(path.read_bytes()) for path in record_files(self.storage)]

    @property
    def record(self) -> Json:
        (record,) = self.records
        return record

    @property
    def journals(self) -> list[Path]:
        return sorted(self.storage.glob("*/journal-*"))

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


def journal_of(launched: Launch) -> JournalContents:
    """What the only journal holds."""
    (journal,) = launched.journals
    contents = read_journal(journal)
    assert contents is not None
    return contents


def finished(launched: Launch) -> set[str]:
    """The cases that the only journal holds, by short name."""
    return {short(case_id) for case_id in journal_of(launched).finished_ids}


def copied(launched: Launch, folder: Path) -> Path:
    """What the launch left, to go on from without touching it."""
    return Path(shutil.copytree(launched.storage, folder / "storage"))


def record_files(storage: Path) -> list[Path]:
    return sorted(storage.glob("*/*.json"))


def short(case_id: str) -> str:
    return case_id.rpartition("::")[2]


def suite(storage: Path, *arguments: str) -> tuple[str, ...]:
    """The command of a launch that is as short as it can be."""
    plugins = ("-p", "tests.support.quick_ceiling", "-p", "no:cacheprovider")
    # Hypothesis's plugin imports all of Hypothesis at the end of every run.
    without = ("-p", "no:hypothesispytest", f"--benchmark-storage=file://{storage}")
    return forked_python(), "-m", "pytest", str(ROOT / "perf_tests"), *plugins, *without, *SMALL, *arguments


def inherited(**environment: str) -> dict[str, str]:
    """This process's variables without those that change a launch, and with `environment`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI", "PLANTED"))}
    return {**kept, **environment}


def start(storage: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`environment` reaches planted models, which read it when they run."""
    return start_command(suite(storage, *arguments), ROOT, ROOT, **environment)


def start_command(
    command: Sequence[str], cwd: Path = ROOT, root: Path = ROOT, **environment: str
) -> subprocess.Popen[str]:
    variables = inherited(**{"PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1", **environment})
    return subprocess.Popen(command, cwd=cwd, env=variables, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True)


def finish(process: subprocess.Popen[str], storage: Path, exits: int | None = None) -> Launch:
    """How it ended; `exits` is the exit code that it must end with."""
    output, errors = process.communicate(timeout=300)
    assert exits in (None, process.returncode), output + errors
    return Launch(process.returncode, output, errors, storage)


def launch(storage: Path, *arguments: str, exits: int | None = None, **environment: str) -> Launch:
    return finish(start(storage, *arguments, **environment), storage, exits)


def launch_all(launches: Iterable[Sequence[str]], cwd: Path = ROOT) -> list[tuple[int, str, str]]:
    """The exit code, output and errors of each, started one after another in one process, which imports torch once."""
    process = subprocess.run(
        [forked_python(), "-m", "tests.support.many_launches"],
        cwd=cwd, env=inherited(PYTHONPATH=str(ROOT)), input=json.dumps(list(launches)), capture_output=True, text=True,
        timeout=300, check=True,
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
