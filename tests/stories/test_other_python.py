"""Base under another interpreter: found and asked what it has; its rounds and counters are its own."""

import json
import sys
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.interleaved.run import OtherPython, OtherPythonError, build_here, other_python
from tests.support.forked_python import forked_python


def program(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_with_all_that_is_needed_is_named_by_its_build() -> None:
    assert other_python(forked_python(), "cpu") == OtherPython(forked_python(), build_here())


def test_what_an_interpreter_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"dependencies": ["torch>=99", "nothing-of-the-kind", "numpy"], "requires-python": ">=3.99"}
    monkeypatch.setattr(tomllib, "loads", Mock(return_value={"project": needs}))
    lacks = r"needs: Python >=3\.99, torch>=99 \(.* there\), nothing-of-the-kind \(not there\);"
    with pytest.raises(OtherPythonError, match=lacks):
        other_python(forked_python(), "cpu")


def test_what_cannot_run_the_suite_is_refused(tmp_path: Path) -> None:
    for script, words in (
        (None, "is not a program that can be run"),
        ("exit 0", "it is not a Python; make an environment"),
        (f'exec {sys.executable} -IS "$@"', "No module named 'torch'; make an environment of another build"),
    ):
        with pytest.raises(OtherPythonError, match=words):
            other_python(str(tmp_path) if script is None else program(tmp_path, script), "cpu")


def test_a_link_to_an_interpreter_is_kept_because_it_names_the_environment(tmp_path: Path) -> None:
    target = program(tmp_path, f"echo '{json.dumps(['3.12.1', '2.11.0', []])}'")
    (tmp_path / "link").symlink_to(target)
    found = other_python(str(tmp_path / "link"), "cpu")
    assert found == OtherPython(str(tmp_path / "link"), "Python 3.12.1 with torch 2.11.0")
