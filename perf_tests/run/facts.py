"""What a record says of its commit, machine and code."""

import subprocess
from contextlib import chdir

import pytest

from perf_tests.bench.stash import PEERS, REPOSITORY, WORKBENCH
from perf_tests.instruments import machine
from perf_tests.own.named import loaded_below
from perf_tests.own.repository import Repository
from perf_tests.own.source_digest import digest_of, suite_files
from perf_tests.records.record import Json


def commit_info_of(config: pytest.Config) -> Json:
    repository = config.stash[REPOSITORY]
    with chdir(repository.root):  # pytest-benchmark asks git about the folder that pytest was started in
        commit_info: Json = config.hook.pytest_benchmark_generate_commit_info(config=config)
        config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit_info)
    # Git's own word leaves out new files, whose code no commit holds.
    commit_info["dirty"] = bool(commit_info.get("dirty")) or names_untracked(repository)
    return commit_info


def names_untracked(repository: Repository) -> bool:
    """Whether an option names a file that git does not track."""
    if not repository.files:
        return False
    command = ["git", "ls-files", "--error-unmatch", "--", *map(str, repository.files)]
    try:
        return subprocess.run(command, cwd=repository.root, capture_output=True).returncode != 0
    except OSError:  # no git
        return True


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
    ours = suite_files()
    named = [repository.root / file for file in repository.files]
    loaded = loaded_below(repository.root) if named else []
    theirs = {*named, *loaded}.difference(path for _, path in ours)
    return digest_of([*ours, *sorted((path.relative_to(repository.root), path) for path in theirs)])
