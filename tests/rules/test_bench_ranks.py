"""Ranks as one of them sees them: started alike, ending together, and sharing a case; no process."""

import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]  # public, made in C++

from perf_tests import conftest
from perf_tests.bench.outcomes import Outcome
from perf_tests.bench.ranks import FINISHED, Groups, Peers, RankClock, SharedStepMeasure
from perf_tests.bench.session import noted
from perf_tests.cases.settings import Settings
from perf_tests.cases.sharing import Launched, Sharing
from perf_tests.phases import EXAMINED
from perf_tests.run import ranks
from perf_tests.run.ranks import RankSync, check_launches
from perf_tests.run.termination import NAME, Termination
from tests.support.example_cases import CPU, SETTINGS, language_model_case
from tests.support.items import benchmark, stash_of


class FakePeers:
    """Seen from one of two ranks; the other says the same but for `different`. Notes what is sent and waited for."""

    def __init__(self, is_rank0: bool, different: dict[str, object] | None = None) -> None:
        self.is_rank0, self.others = is_rank0, [int(is_rank0)]
        self.launched = Launched(0 if is_rank0 else 1, 2)
        self.different = different or {}
        self.sent: list[Any] = []
        self.waited_for: list[str] = []

    def send(self, topic: str, value: Any) -> None:
        self.sent.append(value)

    def recv(self, topic: str, rank: int, seconds: float) -> None:
        self.waited_for.append(topic)

    def all_gather(self, topic: str, value: Any) -> list[Any]:
        self.sent.append(value)
        return [value, value | self.different if topic == "facts" else None]

    def shutdown(self) -> None:
        pass


def facts(settings: Settings, different: dict[str, object]) -> dict[str, object]:
    """What rank 0 says of its start."""
    peers = FakePeers(True, different)
    words = SimpleNamespace(args=("perf_tests", "--parallel=ddp"))
    config: Any = SimpleNamespace(stash=stash_of(settings=settings), invocation_params=words)
    check_launches(config, cast(Peers, peers), "digest")
    said: dict[str, object] = peers.sent[0]
    return said


@pytest.mark.parametrize(
    "name, other, words",
    [
        ("options", ["perf_tests", "--rounds", "3"], "options: perf_tests --rounds 3 there"),
        ("code", "another digest", "code: its checkout differs from rank 0's"),
        ("torch", "2.0.0", f"torch: 2.0.0 there, {torch.__version__} on rank 0"),
        ("device", "cuda", "device: cuda there, cpu on rank 0"),
        ("settings", "[]", "settings: what the options leave to the machine differs"),
    ],
)
def test_a_rank_that_was_started_differently_is_refused_by_what_differs(name: str, other: object, words: str) -> None:
    with pytest.raises(pytest.UsageError) as refusal:
        facts(SETTINGS, {name: other})
    assert f"Rank 1 was started with different {words};" in str(refusal.value)


def test_ranks_that_were_started_alike_agree_on_all_settings_but_the_number_of_their_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "device_in_words", lambda device: "NVIDIA H100")
    monkeypatch.setattr(ranks, "gpu_of_this_rank", lambda device: f"a machine, {device}")
    one, other, slower = (
        facts(replace(SETTINGS, device=device, threads=threads), {})
        for device, threads in (("cuda:0", 1), ("cuda:1", 1), ("cuda:0", 2))
    )
    assert one["settings"] == other["settings"] != slower["settings"]


@pytest.mark.parametrize(
    "came, waits", [pytest.param(None, [FINISHED], id="none"), pytest.param(signal.SIGTERM, [], id="SIGTERM")]
)
def test_a_rank_waits_for_rank_0_unless_a_signal_says_that_it_may_be_dead(
    came: signal.Signals | None, waits: list[str]
) -> None:
    peers, plugins = FakePeers(False), SimpleNamespace(getplugin={NAME: Termination(came)}.get)
    sync = RankSync(cast(Peers, peers), cast(pytest.Config, SimpleNamespace(pluginmanager=plugins)))
    session: Any = SimpleNamespace(shouldstop=False, exitstatus=0)
    ending = sync.pytest_sessionfinish(session)
    next(ending)
    with pytest.raises(StopIteration):
        ending.send(None)
    assert peers.waited_for == waits


@pytest.mark.parametrize(
    "error, outcome",
    [
        pytest.param(RuntimeError("planted"), Outcome("error", "rank 0: RuntimeError: planted"), id="error"),
        pytest.param(pytest.skip.Exception("no GPU"), Outcome("unsupported", "no GPU"), id="refused on all alike"),
    ],
)
def test_what_rank_0_itself_met_has_its_number_unless_all_ranks_refuse_it(
    error: BaseException, outcome: Outcome
) -> None:
    peers, item = FakePeers(True), benchmark(language_model_case(sharing=Sharing("ddp", 1)))
    call = RankSync(cast(Peers, peers), cast(pytest.Config, SimpleNamespace())).pytest_runtest_call(item)
    next(call)
    with pytest.raises(type(error)):
        call.throw(error)
    assert noted(item).outcome == outcome
    assert [said["is_effect"] for said in peers.sent] == [False]


def test_groups_are_made_anew_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same one a rank would find the addresses of connections that were dropped."""
    topics, store = [], HashStore()

    def store_of(topic: str, whole: HashStore) -> PrefixStore:
        topics.append(topic)
        return PrefixStore(topic, whole)

    monkeypatch.setattr("perf_tests.bench.ranks.PrefixStore", store_of)
    groups = Groups(Peers(Launched(), store, store), torch.device("cpu"))
    for _ in range(2):
        groups.make(1)
        assert dist.get_world_size(groups.case(1)) == 1
        groups.drop()
        assert not dist.is_initialized()
    assert len(set(topics)) == len(topics) == 2


class SecondOfTwo:
    """Groups of two ranks, seen from the second."""

    def part_of(self, batch: torch.Tensor, sharing: Sharing) -> torch.Tensor:
        return batch.chunk(sharing.world)[1]


@pytest.mark.parametrize("scaling, rows_of_each", [("strong", 2), ("weak", 4)])
def test_each_rank_has_its_own_rows_of_the_global_batch(scaling: str, rows_of_each: int) -> None:
    case = language_model_case(batch_size=4, sharing=Sharing("ddp", 2, scaling))

    def drawn(groups: SecondOfTwo | None) -> torch.Tensor:
        workbench = SimpleNamespace(settings=SETTINGS, groups=groups, device=SimpleNamespace(torch_device=CPU))
        return conftest.batch.__wrapped__(case, workbench).tokens_BT  # type: ignore[attr-defined]

    assert len(drawn(None)) == 2 * rows_of_each == case.global_batch_size
    assert drawn(SecondOfTwo()).equal(drawn(None)[rows_of_each:])


def test_rounds_with_and_without_exchange_take_turns_at_being_first() -> None:
    """Or the first round of each pair would pay for what the second finds in cache."""
    order: list[bool] = []

    def seconds(rounds: object, exchanges: bool) -> float:
        order.append(exchanges)
        return 3.0 if exchanges else 1.0

    case = SimpleNamespace(row=EXAMINED["full_step"])
    measure: Any = SimpleNamespace(case=case, rounds=4, _seconds=seconds, _why_not_without=lambda: None)
    found: Any = SharedStepMeasure._exposed(measure, Mock())
    assert order == [False, True, True, False] * 2
    assert found["exposed_communication_seconds"] == 2.0


@pytest.mark.parametrize("spare_bytes, runs", [(0, True), (-1, False)])
def test_the_rank_with_the_least_room_decides_whether_all_hold_whole_weights_and_gradients(
    spare_bytes: int, runs: bool
) -> None:
    case = language_model_case(phase="full_step", sharing=Sharing("fsdp2", 2))
    whole_bytes = 2 * 4 * case.config.parameters
    clock = Mock(spec=RankClock, **{"from_all.return_value": [[1e15], [float(whole_bytes + spare_bytes)]]})
    measure: Any = SimpleNamespace(
        case=case, sharing=case.sharing, clock=clock, row=SimpleNamespace(available_bytes=7_000),
        device=SimpleNamespace(peak_allocated_bytes=lambda: 2_000),
    )  # fmt: skip
    reason = SharedStepMeasure._why_not_without(measure)
    clock.from_all.assert_called_once_with([5_000.0])
    assert (reason is None) is runs
    assert runs or f"{whole_bytes:,} bytes more than fit" in str(reason)
