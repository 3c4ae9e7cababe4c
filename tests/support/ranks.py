"""The suite on several ranks, started side by side as torchrun starts them, without its agent."""

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.launch import Launch, finish, start

OF_MODELS = "-k=not attention"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def launch_ranks(
    storage: Path, *arguments: str, world: int = 2, of_rank: Sequence[Sequence[str]] = ((), ()), **environment: str
) -> list[Launch]:
    """How each rank ended; `of_rank` are further arguments of one rank.

    Without the line that gloo writes of each connection before torch 2.11, past Python.
    """
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    processes = []
    for rank in range(world):
        variables = {"RANK": str(rank), **address, **environment}
        processes.append(start(storage, OF_MODELS, *arguments, *of_rank[rank], **variables))
    ended = [finish(process, storage) for process in processes]
    return [replace(rank, output=re.sub(r"^\[Gloo\] .*\n", "", rank.output, flags=re.MULTILINE)) for rank in ended]


def ranks_launched_once(*arguments: str, **environment: str) -> Callable[[pytest.TempPathFactory], list[Launch]]:
    """A fixture: one launch of two ranks for all tests of a module."""

    @pytest.fixture(scope="module")
    def launched(tmp_path_factory: pytest.TempPathFactory) -> list[Launch]:
        return launch_ranks(tmp_path_factory.mktemp("ranks"), *arguments, **environment)  # type: ignore[arg-type]

    return launched
