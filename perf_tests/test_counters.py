"""The exact counters of every case of the grid equal those of the ledger. Needs no GPU.

Collected only when it is named or with `--update-counters`: it measures nothing and takes a minute.
"""

from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

from perf_tests_suite.perf_tests.bench.session import session_of
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import user_model
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.predict import recorded, recording
from perf_tests_suite.perf_tests.predict.counters import NotCountedError, counters_of
from perf_tests_suite.perf_tests.predict.ledger import compiled_lines, counted_grid, line_of, sent_lines, user_grid
from perf_tests_suite.perf_tests.records.ledger import COMMAND, LedgerBook, LedgerKey, Line
from perf_tests_suite.perf_tests.records.store import write_whole
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError

FOLDER = Path(__file__).parent / "predict" / "exact_counters"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case_id" in metafunc.fixturenames:
        metafunc.parametrize("case_id", grid_of(session_of(metafunc.config).settings))


@cache
def grid_of(settings: Settings) -> dict[str, list[Case]]:
    """Ours, or with --model that of the model under test."""
    try:
        return counted_grid() if settings.model is None else user_grid(settings)
    except UserCodeError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="module")
def grid(pytestconfig: pytest.Config) -> dict[str, list[Case]]:
    return grid_of(session_of(pytestconfig).settings)


@pytest.fixture(scope="module")
def book(request: pytest.FixtureRequest, grid: dict[str, list[Case]]) -> Iterator[LedgerBook]:
    config, suite = request.config, session_of(request.config)
    own = user_model(suite.settings)
    folder = FOLDER if own is None else suite.saving.storage / "counters" / own.in_a_path
    options = "" if own is None else f" {own.as_options}"
    keys = [(case.phase, case_id) for case_id, cases in grid.items() for case in cases]
    try:
        book = LedgerBook.opened(folder, torch.__version__, config.getoption("--update-counters"), keys, options)
    except ValueError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
    yield book
    suite.ledger_lines = book.closed(is_complete=not request.session.testsfailed)


def test_counters_are_those_of_the_ledger(case_id: str, grid: dict[str, list[Case]], book: LedgerBook) -> None:
    counted: dict[LedgerKey, Line]
    try:
        counted = {(case.phase, case_id): line_of(counters_of(case)) for case in grid[case_id]}
    except NotCountedError as error:
        pytest.fail(str(error), pytrace=False)
    findings = book.compare(counted)
    if findings:
        pytest.fail("\n".join(findings), pytrace=False)
    if book.why_not_compared:
        pytest.skip(book.why_not_compared)


def test_every_line_of_the_ledger_belongs_to_a_case(book: LedgerBook) -> None:
    strangers = book.strangers()
    if strangers:
        pytest.fail("\n".join(strangers), pytrace=False)


def test_bytes_that_ranks_send_are_those_of_the_ledger(pytestconfig: pytest.Config) -> None:
    if session_of(pytestconfig).settings.model is not None:
        pytest.skip("only the suite's own models have messages in a ledger.")
    hold_to(FOLDER / "sent.csv", sent_lines(), pytestconfig)


def test_what_torch_compiles_is_that_of_the_ledger(pytestconfig: pytest.Config) -> None:
    """One torch compiles otherwise than another, so each minor version has its own file."""
    if session_of(pytestconfig).settings.model is not None:
        pytest.skip("only the suite's own models are compiled for a ledger.")
    version = ".".join(torch.__version__.split(".")[:2])
    path = FOLDER / f"torch-{version}-compiled.csv"
    if not (path.exists() or pytestconfig.getoption("--update-counters")):
        pytest.skip(f"torch {version} has no {path.name}; record one with `{COMMAND}`")
    try:
        lines = compiled_lines()
    except ValueError as error:
        pytest.skip(str(error))
    hold_to(path, lines, pytestconfig)


def test_operations_are_those_of_the_record(pytestconfig: pytest.Config) -> None:
    """Write the record that `predict` replays, or hold the one that is there to this `model/`."""
    if session_of(pytestconfig).settings.model is not None:
        pytest.skip("only the suite's own models are recorded.")
    path = recorded.path_of(torch.__version__)
    if pytestconfig.getoption("--update-counters"):
        write_whole(path, recording.record())
        recorded.opened.cache_clear()
    elif not path.exists():
        pytest.skip(f"torch {torch.__version__} has no {path.name}; record one with `{COMMAND}`")
    if recorded.opened() is None:
        pytest.fail(
            f"{path.name} is of another model/, and predict counts anew; record it with `{COMMAND}`", pytrace=False
        )


def hold_to(path: Path, lines: list[str], config: pytest.Config) -> None:
    """Write the lines to the ledger where it is updated; fail where they are not those of the ledger."""
    if config.getoption("--update-counters"):
        write_whole(path, "".join(f"{line}\n" for line in lines).encode())
    known = path.read_text().splitlines()
    other = [f"{old} -> {new}" for old, new in zip_longest(known, lines, fillvalue="none") if old != new]
    if other:
        pytest.fail("\n".join([*other, f"accept with `{COMMAND}`"]), pytrace=False)
