"""Which cases of its axes a run leaves out: by what was typed, by pytest's cache or by another plugin."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from perf_tests.bench.session import newest_selection
from perf_tests.bench.stash import SAVING

LEFT_OUT = pytest.StashKey[bool]()
"""On the config, once a case is deselected: by an option such as --stepwise, or by any plugin."""

OF_INTERRUPTED_RUN = pytest.StashKey[bool]()
"""On the config, where the cases are those that an interrupted run chose by how they had ended before."""


def note_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT] = True


def is_restricted(config: pytest.Config) -> bool:
    """Whether cases were selected by more than the axes, so that a missing case is not gone."""
    option = config.option
    words = (option.keyword, option.markexpr, option.deselect, option.ignore, option.ignore_glob)
    if any(words) or getattr(option, "lf", False) or config.stash.get(LEFT_OUT, False):
        return True
    here = Path(__file__).parents[1]
    folders = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    whole = any(folder == here or folder in here.parents for folder in folders)
    return not whole or any("::" in argument for argument in config.args)


def choose_nothing_anew(config: pytest.Config) -> None:
    """With --resume, --lf and --stepwise would choose other cases than when the run began; call before pytest does."""
    option = config.option
    if option.resume and (getattr(option, "lf", False) or getattr(option, "stepwise", False)):
        config.stash[OF_INTERRUPTED_RUN] = True
        option.lf, option.stepwise_reset = False, True  # it still stops at a failure


def of_interrupted_run(config: pytest.Config, benchmarks: list[pytest.Item]) -> list[pytest.Item]:
    """Those that the interrupted run had chosen, where it chose by pytest's cache."""
    if not config.stash.get(OF_INTERRUPTED_RUN, False):
        return benchmarks
    chosen = newest_selection(config.stash[SAVING].storage)
    left_out = [item for item in benchmarks if item.nodeid not in chosen]
    if len(left_out) in (0, len(benchmarks)):
        return benchmarks
    config.hook.pytest_deselected(items=left_out)
    return [item for item in benchmarks if item.nodeid in chosen]
