"""A run on several ranks: each runs pytest, and all of them take the same cases and the same decisions.

Rank 0 plans, prints and saves. The others print nothing unless rank 0 cannot hear them, and each learns why a case
failed on another. Imported only where ranks are asked for.
"""

import io
import os
import shlex
import signal
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product

import pytest
import torch
import torch.distributed as dist

from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.bench.ranks import (
    FINISHED,
    RENDEZVOUS_SECONDS,
    SHUTDOWN_SECONDS,
    Groups,
    Peers,
    Rank0EndedError,
    RankClock,
    RendezvousError,
    SilentRankError,
    join,
)
from perf_tests_suite.perf_tests.bench.session import benchmark_of, is_benchmark, session_of
from perf_tests_suite.perf_tests.cases.devices import device_label, gpu_of_this_rank
from perf_tests_suite.perf_tests.cases.settings import OF_RANKS, ON_RANKS, is_on_ranks
from perf_tests_suite.perf_tests.cases.sharing import Launched, launched
from perf_tests_suite.perf_tests.run.ends import GRACE_SECONDS, LEAST_SECONDS
from perf_tests_suite.perf_tests.run.termination import termination_of
from perf_tests_suite.perf_tests.user_code.named import as_typed_here

ONE_DEVICE_ONLY = {
    "--against": "the gate measures base and head in turns on one device",
    "--against-option": "the gate measures base and head in turns on one device",
    "--memory": "the pass measures in a process of its own, which has no other ranks",
    "--memory-snapshot": "the pass measures in a process of its own, which has no other ranks",
    "--warmup-study": "the pass measures in processes of their own, which have no other ranks",
    "--nvtx": "each rank would be captured; start nsys inside of one rank instead",
}


# Rendezvous: each rank stays silent but rank 0, and what one of them refuses ends all.


def rendezvous(config: pytest.Config) -> None:
    """Join the other ranks. Raises pytest.UsageError, on rank 0 alone with words where the others have the same."""
    here = launched()
    if not is_on_ranks(config):
        given = next((option for option in OF_RANKS if config.getoption(option) is not None), None)
        if given is not None:
            words = f"{given} is for ranks that share a model; add --parallel, for example ddp."
        elif here is None or here.world == 1 or config.option.collectonly:
            return
        else:
            words = (
                f"{here.world} ranks were started, and would measure beside each other; add --parallel, for example "
                "ddp, or start one process."
            )
        if here is not None and not here.is_rank0:
            _let_rank_0_end_first()  # after which this rank alone was started so, and says it
        raise pytest.UsageError(words)
    typed = next(option for option in ON_RANKS if config.getoption(option) is not None)
    if here is None:
        command = " ".join([*Launched(world=2, local_world=2).command, as_typed_here(config.invocation_params.args)])
        raise pytest.UsageError(
            f"{typed} needs ranks, and this process was started alone; start them with `{command}`."
        )
    if not here.is_rank0:  # what this rank would print, and the files that rank 0 writes
        sys.stdout = io.StringIO()  # of which pytest's reporter makes its terminal
        config.option.xmlpath = config.option.benchmark_histogram = None
    config.option.resume |= here.restarts > 0
    try:
        session_of(config).peers = peers = join(here)
    except RendezvousError as error:
        raise pytest.UsageError(str(error)) from error
    config.add_cleanup(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
    if peers.has_ended:
        with agreed(peers, "ended"):
            raise pytest.UsageError("torchrun restarted a run that had ended already; what it said is above.")
    with agreed(peers, "options"):
        for option, reason in ONE_DEVICE_ONLY.items():
            if config.getoption(option):
                raise pytest.UsageError(f"{option} cannot be combined with {typed}: {reason}.")


@contextmanager
def agreed(peers: Peers, topic: str) -> Iterator[None]:
    """Let a usage error inside on any rank end all of them; rank 0 says which rank met it."""
    error = None
    try:
        yield
    except pytest.UsageError as raised:
        error = raised
    try:
        words = peers.all_gather(topic, None if error is None else str(error))
    except SilentRankError as silent:
        raise error or pytest.UsageError(f"{silent} Its own words are above, or in the log of its node.") from None
    if not any(words):
        return
    peers.shutdown()
    if not peers.is_rank0:
        _let_rank_0_end_first()
        os._exit(pytest.ExitCode.USAGE_ERROR)  # pytest would print what rank 0 says
    # Rank 0's own sentence as it is, and what another rank alone has to say with its number.
    answers = dict.fromkeys(
        word if rank == 0 or word == words[0] else f"Rank {rank}: {word}" for rank, word in enumerate(words) if word
    )
    raise pytest.UsageError("\n".join(answers))


def _let_rank_0_end_first() -> None:
    """Wait until torchrun ends this process, once rank 0 has ended: its report names the first that failed.

    The ranks of other machines end by themselves.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # our own handler may wait for a file
        time.sleep(SHUTDOWN_SECONDS)


# Rank sync: all begin each case together, learn how it went, and end together.


NOT_TRIED = ("unsupported", "would_not_fit")


def planned(config: pytest.Config, peers: Peers, benchmarks: list[pytest.Item]) -> list[pytest.Item]:
    """The cases that rank 0 still has to measure, in its order; registers what keeps the ranks together."""
    workbench = session_of(config).workbench
    if peers.is_rank0:
        outcomes = workbench.session.contents.outcomes if workbench.session else []
        plan = {"left": [item.nodeid for item in benchmarks], "outcomes": outcomes, "seed": workbench.values_seed}
        peers.send("plan", plan)
    else:
        plan = peers.recv("plan", 0, RENDEZVOUS_SECONDS)
        by_id = {item.nodeid: item for item in benchmarks}
        benchmarks, workbench.values_seed = [by_id[case_id] for case_id in plan["left"]], plan["seed"]
        if workbench.session is not None:
            workbench.session.contents.outcomes[:] = plan["outcomes"]
    assert workbench.groups is not None
    config.pluginmanager.register(RankSync(peers, config, workbench.groups), "ranks")
    return benchmarks


@dataclass(eq=False)  # pytest keeps its plugins in sets
class RankSync:
    """The plugin that keeps the ranks together."""

    peers: Peers
    config: pytest.Config
    groups: Groups
    grace_seconds: float = GRACE_SECONDS
    _failed: bool = field(default=False, init=False)
    """Whether the current case failed on this rank."""
    _rank0_stopped: bool = field(default=False, init=False)
    _current: pytest.Item | None = field(default=None, init=False)
    """The case in flight on this rank."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True on a rank that has no part in the case: pytest then takes the item as done, without a report."""
        self._current = None
        if not is_benchmark(item):
            # True tells pytest that the item has run: the other ranks pass over it without a report.
            return None if self.peers.is_rank0 else True
        if self.peers.is_rank0:
            self.peers.send(f"{item.nodeid}/begin", None)
        else:
            try:
                self.peers.recv(f"{item.nodeid}/begin", 0, RENDEZVOUS_SECONDS)
            except Rank0EndedError:  # it has stopped before this case
                item.session.shouldstop = self._rank0_stopped = True
                return True
        world = benchmark_of(item).case.ranks
        members = min(world or 1, self.peers.launched.world)
        if world == members:
            self.groups.make(world)
        clock = session_of(self.config).workbench.clock
        assert isinstance(clock, RankClock)
        self._failed, is_member = False, self.peers.launched.rank < members
        clock.group = self.groups.clock(members) if is_member and world == members else None
        if is_member:
            self._current = item
            return None
        self._meet(item)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._synced(item, "set-up"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._synced(item, "call"))

    def pytest_runtest_logfinish(self) -> None:
        """Meet the other ranks: only here pytest has let go of the case's fixtures, and with them of its groups."""
        if self._current is not None:
            self._meet(self._current)

    def _synced(self, item: pytest.Item, when: str) -> Generator[None, object, object]:
        """Let what another rank met end the case here too, with its words."""
        world = benchmark_of(item).case.ranks if is_benchmark(item) else None
        topic = f"{item.nodeid}/{when}"
        if world is None or world > self.peers.launched.world:
            return (yield)
        try:
            result = yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as error:  # pytest's Skipped and Failed are no Exception
            # Said at once: others may wait in a collective until this case is torn down.
            self._failed = True
            kind = "unsupported" if isinstance(error, pytest.skip.Exception) else "error"
            said = (str(error).splitlines() or [""])[0]
            words = str(error) if kind == "unsupported" else f"{type(error).__name__}: {said}"
            mine = benchmark_of(item).outcome or Outcome(kind, words)
            # Torch raises a plain RuntimeError for what gloo meets, so its words are all there is to know it by.
            of_gloo = any(words in str(error) for words in ("gloo", "Connection closed by peer"))
            is_effect = of_gloo or isinstance(error, dist.DistError)
            self.peers.send(topic, {**asdict(mine), "is_effect": is_effect})
            # What is refused before it is tried is refused on all ranks alike.
            benchmark_of(item).outcome = mine if mine.outcome in NOT_TRIED else _by(self.peers.launched.rank, mine)
            cause = self._cause(item, topic, mine) if is_effect else None
            if cause is None:
                raise
        else:
            self.peers.send(topic, None)
            cause = self._cause(item, topic, None)
            if cause is None:
                return result
        self._failed = True
        benchmark_of(item).outcome = cause
        if cause.outcome in NOT_TRIED or cause.outcome == "out_of_memory":
            pytest.skip(cause.sentence)
        pytest.fail(cause.sentence, pytrace=False)

    def _cause(self, item: pytest.Item, topic: str, mine: Outcome | None) -> Outcome | None:
        """What the first other rank met that was no effect of another's failure; None where none failed."""
        world, effect = benchmark_of(item).case.ranks, None
        assert world is not None
        for rank in (rank for rank in self.peers.others if rank < world):
            try:
                said = self.peers.recv(topic, rank, self._patience(item, mine))
            except Rank0EndedError:
                pytest.exit("Rank 0 has ended.", returncode=pytest.ExitCode.INTERRUPTED)
            except SilentRankError as silent:
                return Outcome("timed_out" if mine is None else "error", f"{silent} It hangs, or has died.")
            if said is not None:
                is_effect = said.pop("is_effect")
                if not is_effect:
                    return _by(rank, Outcome(**said))
                effect = effect or _by(rank, Outcome(**said))
        return effect if mine is None else None

    def _patience(self, item: pytest.Item, mine: Outcome | None) -> float:
        """Seconds to wait for another rank: longer than its own time for the case, short once this rank has failed."""
        if mine is not None:
            return self.grace_seconds
        timeout = self.config.pluginmanager.getplugin("case timeout")
        return 4 * self.grace_seconds + (LEAST_SECONDS if timeout is None else timeout.limit_seconds(item))

    def _meet(self, item: pytest.Item) -> None:
        """Meet after the case. Where it failed on any rank, none of its connections is used again.

        A rank that failed drops them first, so that those who still wait in them go on.
        """
        if self._failed:
            self.groups.drop()
        try:
            failures = self.peers.all_gather(f"{item.nodeid}/end", self._failed, self._patience(item, None))
        except Rank0EndedError:
            return
        if any(failures) and not self._failed:
            self.groups.drop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Let rank 0 save and say how the run ended; torchrun shows a failure of the others only where it is theirs."""
        try:
            result = yield
        finally:  # also where this rank fails to save: the others wait for its word
            with suppress(SilentRankError):
                if self.peers.is_rank0:
                    if termination_of(self.config).came is None:
                        # Otherwise the run goes on: torchrun sends a signal where another rank died, and restarts all.
                        self.peers.end_for_good()
                    self.peers.send(FINISHED, int(session.exitstatus))
                elif termination_of(self.config).came is None and (not session.shouldstop or self._rank0_stopped):
                    # Not after a signal: rank 0 may be the one that died, and torchrun waits for this process to end.
                    self.peers.recv(FINISHED, 0, RENDEZVOUS_SECONDS)
                self.peers.shutdown()
        if not self.peers.is_rank0 and (not session.shouldstop or self._rank0_stopped):
            session.exitstatus = pytest.ExitCode.OK
        return result


def _by(rank: int, outcome: Outcome) -> Outcome:
    return replace(outcome, reason=f"rank {rank}: {outcome.reason}")


# Launch check: how each rank was started, compared before anything is measured.


def check_launches(config: pytest.Config, peers: Peers, source: str) -> None:
    """Compare the ranks; raises pytest.UsageError where they were started with different options, code, torch or
    devices.
    """
    settings = session_of(config).settings
    facts = {
        "options": list(config.invocation_params.args),
        "code": source,
        "torch": torch.__version__,
        "device": device_label(torch.device(settings.device)),
        "settings": repr(sorted((name, value) for name, value in asdict(settings).items() if name != "device")),
    }
    all_facts = peers.all_gather("facts", {**facts, "gpu": gpu_of_this_rank(torch.device(settings.device))})
    peers.gpus = len({found["gpu"] for found in all_facts} - {None})
    with agreed(peers, "compared"):
        for name, rank in product(facts, peers.others if peers.is_rank0 else ()):
            lead, other = all_facts[0][name], all_facts[rank][name]
            if lead == other:
                continue
            words = {
                "options": f"options: {shlex.join(other)} there" if name == "options" else "",
                "code": "code: its checkout differs from rank 0's",
                "settings": "settings: what the options leave to the machine differs",
            }.get(name, f"{name}: {other} there, {lead} on rank 0")
            raise pytest.UsageError(f"Rank {rank} was started with different {words}; start all ranks alike.")
