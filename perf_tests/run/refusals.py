"""What cannot run, or would say nothing, is refused before the first case."""

import math
import os
from pathlib import Path

import pytest
import torch

from perf_tests.bench.stash import CASE, SAVING, SETTINGS
from perf_tests.cases.case import Case
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.own.check import check_before_measuring, check_optimizer_before_measuring
from perf_tests.run.time_limit import TIME_LIMIT, read_time_limit


def read_run_options(config: pytest.Config) -> None:
    """Raises pytest.UsageError for a time limit, a way of resuming, or another plugin, that makes no sense here."""
    option = config.option
    if _may_measure(config):
        refuse_other_ways_to_run(config)
    for name, value in {"--retry": option.retry, "--resume-any-driver": option.resume_any_driver}.items():
        if value and not option.resume:
            raise pytest.UsageError(f"{name} is for an interrupted run; add --resume.")
    config.stash[TIME_LIMIT] = limit = read_time_limit(config)
    if limit.minutes < math.inf and (config.stash[SAVING].disabled or config.stash[SETTINGS].nvtx):
        raise pytest.UsageError("--time-limit keeps what is measured, and this run keeps nothing; drop one of the two.")


def refuse_other_ways_to_run(config: pytest.Config) -> None:
    """Raises pytest.UsageError where another plugin would run the benchmarks, and this one measures nothing."""
    if getattr(config.option, "dist", "no") != "no":
        raise pytest.UsageError(
            "Cases that run side by side, as pytest-xdist runs them, disturb each other's times; drop -n."
        )
    codspeed = getattr(config.option, "codspeed", None)
    if codspeed or (codspeed is not None and "CODSPEED_ENV" in os.environ):
        raise pytest.UsageError(
            "pytest-codspeed replaces pytest-benchmark, with which perf_tests measures; drop --codspeed, or"
            " unset CODSPEED_ENV."
        )


def _may_measure(config: pytest.Config) -> bool:
    """Whether an argument is a benchmark's file, or a folder with such files."""
    here = Path(__file__).parents[1]
    paths = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    return any(path == here or path in here.parents or (path.parent == here and path.suffix == ".py") for path in paths)


def check_cold_cache(benchmarks: list[pytest.Item]) -> None:
    if not any(item.stash[CASE].cache for item in benchmarks):
        raise pytest.UsageError(
            "--cold-cache is for timings of attention alone, and none is selected; drop it or add test_attention.py."
        )


def too_small(config: pytest.Config) -> pytest.UsageError:
    """The refusal of a budget that is used up before the first case."""
    budget = config.getoption("--memory-budget")
    words = "The memory that is free" if budget is None else f"--memory-budget {budget}"
    return pytest.UsageError(f"{words} is less than the run needs before its first case; give it at least 256MiB.")


def check_what_is_own(cases: list[Case], device: torch.device) -> None:
    """Raises OwnModelError for a model or an optimizer of the user's that cannot be measured."""
    of_models = [case for case in cases if isinstance(case, LanguageModelCase)]
    own = next((case.own for case in of_models), None)
    if own is not None:
        check_before_measuring(own, list(dict.fromkeys(case.config for case in of_models)), device)
    trained = next((case for case in of_models if case.own_optimizer is not None), None)
    if trained is not None and trained.own_optimizer is not None:
        check_optimizer_before_measuring(trained.own_optimizer, own, trained.config, device)
