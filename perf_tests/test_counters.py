"""The exact counters of every case of the grid equal those of the ledger. Needs no GPU.

Collected only when it is named or with `--update-counters`: it measures nothing and takes a minute.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from perf_tests.bench.stash import LEDGER_LINES
from perf_tests.counting.case_counters import counters_of
from perf_tests.counting.counted_grid import counted_grid, line_of
from perf_tests.records.ledger import LedgerBook

FOLDER = Path(__file__).parent / "counting" / "counters"
GRID = counted_grid()
KEYS = [(case.phase, case_id) for case_id, cases in GRID.items() for case in cases]


@pytest.fixture(scope="module")
def book(request: pytest.FixtureRequest) -> Iterator[LedgerBook]:
    try:
        book = LedgerBook.opened(FOLDER, torch.__version__, request.config.getoption("--update-counters"), KEYS)
    except ValueError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
    yield book
    request.config.stash[LEDGER_LINES] = book.closed(is_complete=not request.session.testsfailed)


@pytest.mark.parametrize("case_id", GRID)
def test_counters_are_those_of_the_ledger(case_id: str, book: LedgerBook) -> None:
    findings = book.compare({(case.phase, case_id): line_of(counters_of(case)) for case in GRID[case_id]})
    if findings:
        pytest.fail("\n".join(findings), pytrace=False)
    if book.why_not_compared:
        pytest.skip(book.why_not_compared)


def test_every_line_of_the_ledger_belongs_to_a_case(book: LedgerBook) -> None:
    strangers = book.strangers()
    if strangers:
        pytest.fail("\n".join(strangers), pytrace=False)
