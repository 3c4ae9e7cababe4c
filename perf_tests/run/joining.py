"""The ranks of a run join: each stays silent but rank 0, and what one of them refuses ends all."""

import io
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch.distributed as dist

from perf_tests.bench.stash import PEERS
from perf_tests.options.settings import OF_RANKS, ON_RANKS, is_on_ranks
from perf_tests.ranks.launched import Launched, launched
from perf_tests.ranks.peers import PARTING_SECONDS, JoiningError, Peers, SilentRankError, join

ONE_DEVICE_ONLY = {
    "--against": "the gate measures base and head in turns on one device",
    "--against-option": "the gate measures base and head in turns on one device",
    "--memory": "the pass measures in a process of its own, which has no other ranks",
    "--memory-snapshot": "the pass measures in a process of its own, which has no other ranks",
    "--warmup-study": "the pass measures in processes of their own, which have no other ranks",
    "--nvtx": "each rank would be captured; start nsys inside of one rank instead",
}


def begin(config: pytest.Config) -> None:
    """Join the other ranks. Raises pytest.UsageError, on rank 0 alone with words where the others have the same."""
    here = launched()
    if not is_on_ranks(config):
        try:
            _refuse_without_parallel(config)
        except pytest.UsageError:
            if here is not None and not here.leads:
                _let_rank_0_end_first()  # after which this rank alone was started so, and says it
            raise
        return
    typed = next(option for option in ON_RANKS if config.getoption(option) is not None)
    if here is None:
        command = shlex.join([*Launched(world=2, local_world=2).command, *config.invocation_params.args])
        raise pytest.UsageError(
            f"{typed} needs ranks, and this process was started alone; start them with `{command}`."
        )
    if not here.leads:
        _be_silent(config)
    config.option.resume |= here.restarts > 0
    try:
        config.stash[PEERS] = peers = join(here)
    except JoiningError as error:
        raise pytest.UsageError(str(error)) from error
    config.add_cleanup(_leave)
    if peers.has_ended:
        with agreed(peers, "ended"):
            raise pytest.UsageError("torchrun restarted a run that had ended already; what it said is above.")
    with agreed(peers, "options"):
        for option, reason in ONE_DEVICE_ONLY.items():
            if config.getoption(option):
                raise pytest.UsageError(f"{option} cannot be combined with {typed}: {reason}.")


def _refuse_without_parallel(config: pytest.Config) -> None:
    for option in OF_RANKS:
        if config.getoption(option) is not None:
            raise pytest.UsageError(f"{option} is for ranks that share a model; add --parallel, for example ddp.")
    here = launched()
    if here is not None and here.world > 1 and not config.option.collectonly:
        raise pytest.UsageError(
            f"{here.world} ranks were started, and would measure beside each other; add --parallel, for example ddp, "
            "or start one process."
        )


def _be_silent(config: pytest.Config) -> None:
    """What this rank would print, and the files that rank 0 writes."""
    sys.stdout = io.StringIO()  # of which pytest's reporter makes its terminal
    config.option.xmlpath = config.option.benchmark_histogram = None


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def agreed(peers: Peers, topic: str) -> Iterator[None]:
    """A usage error inside on any rank ends all of them, and rank 0 says which rank met it."""
    error = None
    try:
        yield
    except pytest.UsageError as raised:
        error = raised
    try:
        words = peers.share(topic, None if error is None else str(error))
    except SilentRankError as silent:
        raise error or pytest.UsageError(f"{silent} Its own words are above, or in the log of its node.") from None
    if any(words):
        _end_all(peers, words)


def _end_all(peers: Peers, words: list[str | None]) -> None:
    """Rank 0's own sentence as it is, and what another rank alone has to say with its number."""
    peers.part()
    if not peers.leads:
        _let_rank_0_end_first()
        os._exit(pytest.ExitCode.USAGE_ERROR)  # pytest would print what rank 0 says
    heard = dict.fromkeys(
        word if rank == 0 or word == words[0] else f"Rank {rank}: {word}" for rank, word in enumerate(words) if word
    )
    raise pytest.UsageError("\n".join(heard))


def _let_rank_0_end_first() -> None:
    """torchrun ends all ranks of its machine when one has failed, and its report names that one.

    So it ends this process when rank 0 has ended. The ranks of other machines end by themselves.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # our own handler may wait for a file
        time.sleep(PARTING_SECONDS)
