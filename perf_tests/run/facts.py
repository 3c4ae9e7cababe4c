"""What a record says of its commit, machine and code."""

from contextlib import chdir

import pytest

from perf_tests.bench.stash import PEERS, REPOSITORY, WORKBENCH
from perf_tests.instruments import machine
from perf_tests.own.named import loaded_below
from perf_tests.own.repository import Repository
from perf_tests.own.source_digest import digest_of, suite_files
from perf_tests.records.record import Json


def commit_info_of(config: pytest.Config) -> Json:
    with chdir(config.stash[REPOSITORY].root):  # pytest-benchmark asks git about the folder that pytest was started in
        commit_info: Json = config.hook.pytest_benchmark_generate_commit_info(config=config)
        config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit_info)
    return commit_info


def machine_info_of(config: pytest.Config) -> Json:
    machine_info: Json = config.hook.pytest_benchmark_generate_machine_info(config=config)
    config.hook.pytest_benchmark_update_machine_info(config=config, machine_info=machine_info)
    return machine_info


def complete_machine_info(config: pytest.Config, machine_info: Json) -> None:
    """Add what a figure depends on, and drop the current clock rate, which would make any two runs differ."""
    for name in ("hz_actual", "hz_actual_friendly", "hz_advertised", "hz_advertised_friendly"):
        machine_info.get("cpu", {}).pop(name, None)
    workbench = config.stash.get(WORKBENCH, None)
    if workbench is not None:
        machine_info["torch"] = machine.stable_facts(workbench.device.torch_device, workbench.settings.threads)
        if PEERS in config.stash:
            from perf_tests.ranks.devices import facts_of_ranks

            launched = config.stash[PEERS].launched
            machine_info["torch"]["ranks"] = facts_of_ranks(launched, workbench.device.torch_device)


def source_digest(repository: Repository) -> str:
    """A digest of the code that is measured, once it is loaded, and of the code that measures."""
    theirs = {*loaded_below(repository.root), *(repository.root / file for file in repository.files)}
    of_theirs = () if repository.holds_suite else sorted((path.relative_to(repository.root), path) for path in theirs)
    return digest_of([*suite_files(), *of_theirs])
