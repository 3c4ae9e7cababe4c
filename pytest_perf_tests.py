"""`pytest tests/bench_x.py --against REV`, the gate of `perf-tests run` on tests of the user's, as pytest's own option.

pytest finds it as an entry point of the installed suite. It is a module of its own, beside the suite's package, because
pytest rewrites the assertions of whatever such a distribution has at its top. Without the option it loads nothing.
"""

import argparse
import os
import sys
from collections.abc import Generator

import pytest

_ENVIRONMENT = {**os.environ}
"""Variables as they were before a conftest of theirs ran."""

_PARSER = pytest.StashKey[pytest.Parser]()
"""Has the gate's options; without it `--against` is somebody else's."""

_PLACE = "\0"
"""Stands for a word that is no option, and no value of one."""


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser
) -> Generator[None, object, object]:
    """Add the gate's options where they are typed, or help is, unless a conftest has an `--against`, as the suite's."""
    result = yield
    typed = {word.partition("=")[0] for word in early_config.invocation_params.args}
    if typed.isdisjoint(("--against", "-h", "--help")):
        return result
    from perf_tests_suite.perf_tests.cases.gate_options import OF_THEIR_TESTS, argparse_keywords

    group = parser.getgroup("perf-tests", "gate of pytest-benchmark tests (perf-tests)")
    for option in OF_THEIR_TESTS:
        try:
            group.addoption(option.name, **argparse_keywords(option))
        except (ValueError, argparse.ArgumentError):  # the latter of pytest 9.0
            if option.name == "--against":
                return result
    early_config.stash[_PARSER] = parser
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Become `perf-tests run` where a gate is asked for."""
    parser = config.stash.get(_PARSER, None)
    if parser is None or config.option.against is None or config.option.collectonly:
        return
    typed = config.invocation_params.args
    places = [os.path.join(config.invocation_params.dir, place) for place in config.args]
    for place, name in zip(places, config.args, strict=True):
        if not os.path.exists(place.partition("::")[0]):
            raise pytest.UsageError(f"file or directory not found: {name}")

    def is_place(number: int) -> bool:
        words = [*typed[:number], _PLACE, *typed[number + 1 :]]
        return not typed[number].startswith("-") and _PLACE in parser.parse_known_args(words).file_or_dir

    others = [word for number, word in enumerate(typed) if not is_place(number)]
    os.chdir(config.invocation_params.dir)
    sys.stdout.flush()
    run = [sys.executable, "-P", "-m", "perf_tests_suite.perf_tests", "run"]
    os.execve(sys.executable, [*run, *places, *others], _ENVIRONMENT)
