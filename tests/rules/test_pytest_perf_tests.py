"""`pytest ... --against REV` in a repository of the user's becomes `perf-tests run` on what pytest would have run."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pytest_perf_tests
from perf_tests_suite.perf_tests.cases.gate_options import OF_THEIR_TESTS
from tests.support.same_programs import write

CONFTEST = """
import os
os.environ["OF_THEIRS"] = "set"

def pytest_addoption(parser):
    parser.addoption("--theirs")
"""
INI = "[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\ntestpaths = checks\npython_files = bench_*.py\n"

Typed = Callable[..., list[str] | None]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """What this process would become for these words of pytest's; None where it stays pytest."""
    write(tmp_path, {"checks/bench_x.py": "def test_a(): pass\n", "checks/conftest.py": CONFTEST, "pytest.ini": INI})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OF_THEIRS", raising=False)
    became: list[list[str]] = []

    def become(path: str, words: list[str], environment: dict[str, str]) -> None:
        assert (path, words[:5]) == (sys.executable, [sys.executable, "-P", "-m", "perf_tests_suite.perf_tests", "run"])
        assert (environment["PATH"], "OF_THEIRS" in environment, "OF_THEIRS" in os.environ) == (
            os.environ["PATH"], False, True,
        )  # fmt: skip
        became.append([word.replace(f"{tmp_path}/", "./") for word in words[5:]])
        raise SystemExit

    monkeypatch.setattr(os, "execve", become)

    def typed(*words: str) -> list[str] | None:
        became.clear()
        for name in [name for name in sys.modules if name.partition(".")[0] == "checks"]:
            del sys.modules[name]  # of the run before
        try:
            # By itself, however this suite is installed.
            pytest.main(["-p", "no:perf-tests", *words], plugins=[pytest_perf_tests])
        except SystemExit:
            return [word for word in became[0] if word not in ("-p", "no:perf-tests")]
        return None

    return typed


@pytest.mark.parametrize(
    ("words", "then"),
    [
        ("checks/bench_x.py --against main", "./checks/bench_x.py --against main"),
        ("--against=main", "./checks --against=main"),
        ("--theirs checks -k checks checks --against checks -v",
         "./checks --theirs checks -k checks --against checks -v"),
        ("-q checks/bench_x.py::test_a --gate-minutes 3 --against main -x",
         "./checks/bench_x.py::test_a -q --gate-minutes 3 --against main -x"),
    ],
)  # fmt: skip
def test_a_gate_gets_every_word_and_the_places_that_pytest_found(typed: Typed, words: str, then: str) -> None:
    assert typed(*words.split()) == then.split()


def test_what_is_no_gate_stays_with_pytest(typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = "perf_tests_suite.perf_tests.cases.gate_options"
    module = sys.modules.pop(loaded)
    try:
        assert (typed("checks"), loaded in sys.modules) == (None, False)
    finally:
        sys.modules[loaded] = module
    assert "1 passed" in capsys.readouterr().out
    assert typed("--against", "main", "--collect-only", "-q") is None
    assert "checks/bench_x.py::test_a" in capsys.readouterr().out
    assert typed("checks/bench_y.py", "--against", "main") is None
    assert "file or directory not found: checks/bench_y.py" in capsys.readouterr().err
    assert typed("--gate-minutes", "3") is None
    assert "unrecognized arguments: --gate-minutes" in capsys.readouterr().err
    assert typed("--help") is None
    said = capsys.readouterr().out
    assert [option.name for option in OF_THEIR_TESTS if f"  {option.name}" not in said] == []


def test_an_against_of_somebody_elses_is_left_alone(typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    """As that of the suite's own benchmarks is, or of another suite."""
    theirs = CONFTEST + "    parser.addoption('--against', dest='old')\n"
    write(Path(), {"checks/conftest.py": theirs})
    assert typed("checks", "--against", "main") is None
    assert "1 passed" in capsys.readouterr().out
    write(Path(), {"checks/conftest.py": theirs.replace("dest='old'", "action='append'")})
    assert typed("checks", "--against", "main") is None
    assert "1 passed" in capsys.readouterr().out
