"""What rules need around them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests_suite.perf_tests.records.journal import Journal, JournalContents
from perf_tests_suite.perf_tests.records.store import machine_folder
from perf_tests_suite.perf_tests.report import page
from tests.support.fake_cuda import FakeCuda
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, header


@pytest.fixture(scope="module")
def no_plotly() -> Iterator[None]:
    """Leave Plotly out of pages: its megabyte says nothing about the page that holds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "plotly", lambda: "/* what draws */")
        yield


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[MeasuringSession]:
    """A run of three cases that has begun, with its journal below `tmp_path`."""
    facts = header([FORWARD, BACKWARD, FULL_STEP])
    journal = Journal.create(machine_folder(tmp_path), facts)
    yield MeasuringSession(journal, JournalContents(facts), Progress(None))
    journal.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the suite's own figures."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A GPU as far as torch tells of it."""
    return FakeCuda(monkeypatch)
