"""Ranks as one of them sees them: started alike, sharing a case and its fate, and ending together; no process."""

import re
import signal
import socket
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]  # public, made in C++

from model.parallel import Ranks, ddp
from model.precision import PRECISIONS
from model.training import Training
from perf_tests import conftest
from perf_tests.bench import ranks as bench
from perf_tests.bench.ranks import FINISHED, Exchange, Groups, Peers, RankClock, SharedStepMeasure
from perf_tests.bench.session import noted, session_of
from perf_tests.cases.attention import CollectiveCase
from perf_tests.cases.selected import examined_phases, is_inside
from perf_tests.cases.sharing import Launched, Sharing
from perf_tests.hardware.limits import COLLECTIVES, Message
from perf_tests.phases import EXAMINED
from perf_tests.run import ranks
from perf_tests.run.ranks import ONE_DEVICE_ONLY, RankSync, agreed, check_launches, planned, rendezvous
from perf_tests.run.termination import NAME, Termination
from tests.rules.test_against import settings
from tests.support.cheats import in_a_fork
from tests.support.example_cases import CPU, SETTINGS, language_model_case
from tests.support.items import benchmark, stash_of


class WithExtra(nn.Module):
    """Has a parameter that no forward pass uses."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.used, self.extra = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(not frozen)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(rows)
        return result


def said_of_two_steps(frozen: bool) -> str:
    """Return why a rank alone refuses a second step; empty where it does not."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    alone = Ranks(cast(dist.ProcessGroup, dist.group.WORLD), CPU)
    training = ddp(WithExtra(frozen), alone, lambda shared: Training(shared, PRECISIONS["fp32"], CPU))
    try:
        for _ in range(2):
            training.backward(training.model(torch.ones(2, 4)).sum())
    except ValueError as error:
        return str(error)
    return ""


def test_a_parameter_that_no_pass_uses_is_named_with_what_to_do() -> None:
    # Forked: DDP's reducer takes gloo's group along as it is freed, which waits for threads that may wait for Python.
    assert in_a_fork(lambda: said_of_two_steps(frozen=True)) == ""
    said = in_a_fork(lambda: said_of_two_steps(frozen=False))
    assert "extra.weight, extra.bias got no gradient" in said
    assert "choose --parallel fsdp2" in said


ON_TWO = language_model_case(sharing=Sharing("ddp", 2))


class OneOfTwo(Peers):
    """Peers that wait for nothing that was not `said`, by the topics of the other rank, and note what they hear."""

    def __init__(self, rank: int = 0, said: dict[str, Any] | None = None, restarts: int = 0) -> None:
        super().__init__(Launched(rank, 2, restarts=restarts), store := HashStore(), store)
        self.other = Peers(Launched(1 - rank, 2), store, store)
        self.heard: dict[str, float] = {}
        for topic, value in (said or {}).items():
            self.other.send(topic, value)

    def recv(self, topic: str, rank: int, seconds: float) -> Any:
        self.heard[topic] = seconds
        return super().recv(topic, rank, -1.0)


def sync_of(peers: Peers, came: signal.Signals | None = None, groups: Any = None, **known: Any) -> Any:
    plugins = {NAME: Termination(came)}
    config: Any = SimpleNamespace(stash=stash_of(**known), pluginmanager=SimpleNamespace(getplugin=plugins.get))
    return RankSync(peers, config, groups)


def test_what_no_rank_says_in_time_and_a_store_that_is_gone_are_silence() -> None:
    peers = OneOfTwo(said={"topic": [1]})
    assert peers.all_gather("topic", 2) == [2, [1]]
    with pytest.raises(bench.SilentRankError, match="rank 1 said nothing for"):
        Peers.recv(peers, "other", 1, 0.0)
    peers.store = Mock(**{f"{name}.side_effect": RuntimeError("Broken pipe.\nat") for name in ("set", "check")})
    for ask in (lambda: peers.send("topic", 1), lambda: peers.has_sent("topic", 1)):
        with pytest.raises(bench.SilentRankError, match=r"store of rank 0 is gone: Broken pipe\.$"):
            ask()


def test_a_run_is_over_only_for_ranks_that_torchrun_started_again() -> None:
    for restarts in (0, 1):
        peers = OneOfTwo(restarts=restarts)
        assert not peers.has_ended
        peers.end_for_good()
        assert peers.has_ended is bool(restarts)


def test_a_port_in_use_is_named_with_what_to_give_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(bench.RendezvousError, match=f"Port {port} of 127.0.0.1 is in use; .* --master-port"):
            bench.join(Launched(0, 2))


def typed(monkeypatch: pytest.MonkeyPatch, world: int | None, **options: Any) -> Any:
    """A config under so many ranks, of which this is the first."""
    alone = None if world is None else Launched(0, world)
    monkeypatch.setattr(ranks, "launched", lambda: alone)
    monkeypatch.setattr(ranks, "join", lambda here: OneOfTwo(said={"options": None}))
    names = {name.replace("_", "-"): value for name, value in options.items()}
    option = SimpleNamespace(collectonly=False, resume=False, **options)
    words = SimpleNamespace(args=("perf_tests", "--rounds", "3"))
    known = {"stash": stash_of(), "getoption": lambda name: names.get(name.lstrip("-"))}
    return Mock(option=option, invocation_params=words, **known)


TOGETHER: list[tuple[int | None, dict[str, Any], str]] = [
    (None, {"parallel": "ddp"},
     "start them with `torchrun --nproc-per-node 2 --no-python pytest perf_tests --rounds 3`"),
    (2, {}, "2 ranks were started, and would measure beside each other; add --parallel"),
    (2, {"scaling": "weak"}, "--scaling is for ranks that share a model; add --parallel"),
    *((2, {"parallel": "ddp", name[2:].replace("-", "_"): True}, f"{name} cannot be combined with --parallel")
      for name in ONE_DEVICE_ONLY),
]  # fmt: skip


def test_what_ranks_cannot_do_together_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for world, options, words in TOGETHER:
        with pytest.raises(pytest.UsageError, match=words):
            rendezvous(typed(monkeypatch, world, **options))


def test_what_is_only_collected_or_runs_on_one_rank_needs_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for world in (None, 1):
        rendezvous(typed(monkeypatch, world))
    config = typed(monkeypatch, 2)
    config.option.collectonly = True
    rendezvous(config)
    rendezvous(config := typed(monkeypatch, 2, parallel="ddp"))
    assert isinstance(session_of(config).peers, OneOfTwo)


@pytest.mark.parametrize("own, other, words", [
    (None, None, None), (None, "of 1", "Rank 1: of 1"), ("of both", "of both", "of both"),
    ("of 0", "of 1", "of 0\nRank 1: of 1"),
])  # fmt: skip
def test_a_refusal_of_any_rank_ends_all_and_is_said_once(own: str | None, other: str | None, words: str | None) -> None:
    said = None
    try:
        with agreed(OneOfTwo(said={"topic": other, "left": None}), "topic"):
            if own is not None:
                raise pytest.UsageError(own)
    except pytest.UsageError as refusal:
        said = str(refusal)
    assert said == words


def facts(different: dict[str, object], **changes: Any) -> dict[str, object]:
    """What rank 0 says of its start."""
    peers: Any = Mock(others=[1], is_rank0=True)
    peers.all_gather.side_effect = lambda topic, value: [value, value | different if topic == "facts" else None]
    words = SimpleNamespace(args=("perf_tests", "--parallel=ddp"))
    config: Any = SimpleNamespace(stash=stash_of(settings=replace(SETTINGS, **changes)), invocation_params=words)
    check_launches(config, peers, "digest")
    assert peers.gpus == (1 if peers.all_gather.call_args_list[0].args[1]["gpu"] else 0)
    said: dict[str, object] = peers.all_gather.call_args_list[0].args[1]
    return said


DIFFERENT: dict[str, tuple[object, str]] = {
    "options": (["perf_tests", "--rounds", "3"], "options: perf_tests --rounds 3 there"),
    "code": ("another digest", "code: its checkout differs from rank 0's"),
    "torch": ("2.0.0", f"torch: 2.0.0 there, {torch.__version__} on rank 0"),
    "device": ("cuda", "device: cuda there, cpu on rank 0"),
    "settings": ("[]", "settings: what the options leave to the machine differs"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_rank_that_was_started_differently_is_refused_by_what_differs(name: str) -> None:
    other, words = DIFFERENT[name]
    with pytest.raises(pytest.UsageError, match=re.escape(f"Rank 1 was started with different {words};")):
        facts({name: other})


def test_ranks_that_were_started_alike_agree_on_all_but_their_gpus_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "device_label", lambda device: "NVIDIA H100")
    monkeypatch.setattr(ranks, "gpu_of_this_rank", lambda device: f"a machine, {device}")
    started = (("cuda:0", 1), ("cuda:1", 1), ("cuda:0", 2))
    one, other, slower = (facts({}, device=device, threads=threads)["settings"] for device, threads in started)
    assert one == other != slower


def test_all_ranks_take_the_cases_that_rank_0_has_left_and_know_what_went_before() -> None:
    items = [benchmark(ON_TWO, nodeid=name) for name in "abc"]
    contents = SimpleNamespace(outcomes=[])
    workbench = Mock(session=Mock(contents=contents), values_seed=5)
    config = Mock(stash=stash_of(workbench=workbench))
    plan = {"left": ["c", "a"], "outcomes": [{"id": "b"}], "seed": 7}
    assert planned(config, OneOfTwo(1, {"plan": plan}), items) == [items[2], items[0]]
    assert (contents.outcomes, workbench.values_seed) == (plan["outcomes"], 7)
    lead = OneOfTwo(0)
    assert planned(config, lead, items[:2]) == items[:2]
    assert lead.other.recv("plan", 0, 0.0) == {"left": ["a", "b"], "outcomes": [{"id": "b"}], "seed": 7}


def met(outcome: str, reason: str = "boom", is_effect: bool = False) -> dict[str, object]:
    return {"outcome": outcome, "reason": reason, "needed_bytes": None, "available_bytes": None, "is_effect": is_effect}


GLOO = RuntimeError("[gloo/pair.cc] Connection closed by peer")
SILENT: dict[str, object] = {}
GRACE = 60.0


@pytest.mark.parametrize(
    "mine, said, outcome, raises",
    [
        pytest.param(None, None, None, None, id="well on both"),
        pytest.param(None, met("error"), ("error", "rank 1: boom"), pytest.fail.Exception, id="error there"),
        pytest.param(None, met("out_of_memory"), ("out_of_memory", "rank 1: boom"), pytest.skip.Exception, id="memory"),
        pytest.param(None, met("unsupported"), ("unsupported", "rank 1: boom"), pytest.skip.Exception, id="refusal"),
        pytest.param(None, met("error", is_effect=True), ("error", "rank 1: boom"), pytest.fail.Exception, id="effect"),
        pytest.param(None, SILENT, ("timed_out", "rank 1 said nothing"), pytest.fail.Exception, id="hangs"),
        pytest.param(ValueError("x\ny"), met("error"), ("error", "rank 0: ValueError: x"), ValueError, id="error here"),
        pytest.param(pytest.skip.Exception("no GPU"), None, ("unsupported", "no GPU"), pytest.skip.Exception, id="all"),
        pytest.param(GLOO, met("error"), ("error", "rank 1: boom"), pytest.fail.Exception, id="here only an effect"),
        pytest.param(GLOO, met("error", "", True), ("error", "rank 0: RuntimeError"), RuntimeError, id="two effects"),
        pytest.param(GLOO, SILENT, ("error", "rank 1 said nothing"), pytest.fail.Exception, id="it died"),
        pytest.param(KeyboardInterrupt(), None, None, KeyboardInterrupt, id="Ctrl-C is no outcome"),
    ],
)  # fmt: skip
def test_a_case_has_the_outcome_of_the_rank_that_is_its_cause(
    mine: BaseException | None, said: Any, outcome: tuple[str, str] | None, raises: type[BaseException] | None
) -> None:
    item = benchmark(ON_TWO, nodeid="case")
    peers = OneOfTwo(said={} if said is SILENT else {"case/call": said})
    call = sync_of(peers).pytest_runtest_call(item)
    next(call)
    with pytest.raises(raises or StopIteration):
        call.send(7) if mine is None else call.throw(mine)
    found = noted(item).outcome
    assert outcome == (found and (found.outcome, found.reason[: len(outcome[1])] if outcome else ""))
    if not isinstance(mine, KeyboardInterrupt):
        told = peers.other.recv("case/call", 0, 0.0)
        assert told is None if mine is None else told["is_effect"] is (mine is GLOO)
    for seconds in peers.heard.values():
        assert seconds == (GRACE if mine is not None else 4 * GRACE + 300)


@pytest.mark.parametrize("world, is_member", [(0, False), (1, False), (2, True), (3, True)])
def test_a_rank_takes_part_in_cases_of_its_number_and_waits_for_the_end_of_others(world: int, is_member: bool) -> None:
    item = benchmark(language_model_case(sharing=Sharing("ddp", world) if world else None), nodeid="case")
    clock, groups, other = Mock(spec=RankClock), Mock(), {"case/begin": None, "case/end": True}
    sync = sync_of(OneOfTwo(1, other), groups=groups, workbench=SimpleNamespace(clock=clock))
    assert sync.pytest_runtest_protocol(item) is (None if is_member else True)
    assert (clock.group is groups.clock.return_value) is (world == 2)
    assert groups.drop.called is not is_member
    sync.pytest_runtest_logfinish()
    groups.drop.assert_called_once_with()  # the case failed on rank 0, and none of its connections is used again


def test_a_rank_stops_where_rank_0_has() -> None:
    item = benchmark(ON_TWO, nodeid="case")
    item.session = SimpleNamespace(shouldstop=False)
    sync = sync_of(OneOfTwo(1, {FINISHED: 0}))
    assert sync.pytest_runtest_protocol(item) is True
    assert item.session.shouldstop is True
    assert sync_of(OneOfTwo(1)).pytest_runtest_protocol(SimpleNamespace(stash=pytest.Stash())) is True, "of no rank 1"
    call = sync_of(OneOfTwo(1, {FINISHED: 0})).pytest_runtest_call(item)
    next(call)
    with pytest.raises(pytest.exit.Exception, match="Rank 0 has ended"):
        call.send(None)


@pytest.mark.parametrize("rank, came, stopped, hears, exit_code", [
    (1, None, False, [FINISHED], 0), (1, signal.SIGTERM, False, [], 0), (1, None, "its device is lost", [], 1),
    (0, None, False, ["left"], 1), (0, signal.SIGTERM, False, ["left"], 1),
])  # fmt: skip
def test_rank_0_says_how_the_run_ended_and_others_wait_for_it_unless_it_may_be_dead(
    rank: int, came: signal.Signals | None, stopped: bool | str, hears: list[str], exit_code: int
) -> None:
    session: Any = SimpleNamespace(shouldstop=stopped, exitstatus=1)
    peers = OneOfTwo(rank, {FINISHED: 0} if rank else {"left": None}, restarts=1)
    assert len(list(sync_of(peers, came).pytest_sessionfinish(session))) == 1
    assert (list(peers.heard), session.exitstatus) == (hears, exit_code)
    assert peers.has_ended is (rank == 0 and came is None), "torchrun, which sent the signal, starts all again"
    assert peers.other.has_sent(FINISHED, 0)


def test_groups_are_made_anew_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same one a rank would find the addresses of connections that were dropped."""
    made, store = Mock(side_effect=PrefixStore), HashStore()
    monkeypatch.setattr("perf_tests.bench.ranks.PrefixStore", made)
    groups = Groups(Peers(Launched(), store, store), CPU)
    for _ in range(2):
        groups.make(1)
        assert dist.get_world_size(groups.case(1)) == 1
        groups.drop()
        assert not dist.is_initialized()
    assert len({call.args[0] for call in made.call_args_list}) == made.call_count == 2


@pytest.mark.parametrize("scaling, rows_of_each", [("strong", 2), ("weak", 4)])
def test_each_rank_has_its_own_rows_of_the_global_batch(scaling: str, rows_of_each: int) -> None:
    case = language_model_case(batch_size=4, sharing=Sharing("ddp", 2, scaling))
    second_of_two = SimpleNamespace(part_of=lambda batch, sharing: batch.chunk(sharing.world)[1])

    def drawn(groups: object) -> torch.Tensor:
        workbench = SimpleNamespace(settings=SETTINGS, groups=groups, device=SimpleNamespace(torch_device=CPU))
        return conftest.batch.__wrapped__(case, workbench).tokens_BT  # type: ignore[attr-defined]

    assert len(drawn(None)) == 2 * rows_of_each == case.global_batch_size
    assert drawn(second_of_two).equal(drawn(None)[rows_of_each:])


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_an_exchange_that_gives_other_numbers_is_found(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    exchange = Exchange(collective, 4, None, CPU)
    right = torch.tensor([1.0, 2.0]).repeat_interleave(4) if collective == "all_gather" else torch.tensor(3.0)
    exchange.fill()
    exchange.taken.copy_(right.expand_as(exchange.taken))
    exchange.check()
    exchange.taken[-1] = 1.0
    with pytest.raises(AssertionError, match=collective):
        exchange.check()


def of_bytes(message_bytes: int, world: int = 3) -> CollectiveCase:
    return CollectiveCase("collective", "all_reduce", message_bytes, world, 1, "gloo", "float32", "cpu")


def test_a_message_is_cut_to_what_ranks_can_share_and_refused_below_it() -> None:
    assert of_bytes(1_000_000).exchanged_bytes == 999_996
    assert "choose --message-size 12B or more" in str(of_bytes(11).why_unsupported_on_ranks(0))
    sizes = {10**9: "1GB", 64_000: "64KB", 2**20: "1MiB", 2**16: "64KiB", 7: "7B"}
    assert [CollectiveCase.id_of("all_gather", count, 2) for count in sizes] == [
        f"all_gather-{words}-world2" for words in sizes.values()
    ]


def test_collectives_run_alone_where_they_are_asked_for_and_no_way_to_share_a_model_is() -> None:
    asked = replace(SETTINGS, collectives=("all_reduce",), message_sizes=(1000,), worlds=(2,))
    assert is_inside(of_bytes(1000, world=2).identity(), asked)
    assert not is_inside(of_bytes(1000, world=3).identity(), asked)
    assert not is_inside(of_bytes(1000, world=2).identity(), SETTINGS)
    only = settings(collective="all_reduce")
    assert (examined_phases(only), examined_phases(settings()) & {"collective"}) == ({"collective"}, set())


def test_bytes_that_ranks_send_are_a_mean_over_them() -> None:
    """A gather of a 4-byte element on 3 ranks: each sends its third of it to two others."""
    counted = bench.values_by_part({"backward": [Message("all_gather", 4), Message("all_gather", 12)]}, 3)
    assert counted == {"backward": {"collectives": {"all_gather": 2}, "sent_bytes": float(Fraction(32, 3))}}


def test_rounds_with_and_without_exchange_take_turns_at_being_first() -> None:
    """Or the first round of each pair would pay for what the second finds in cache."""
    seconds, row = Mock(side_effect=lambda rounds, exchanges: 3.0 if exchanges else 1.0), EXAMINED["full_step"]
    measure: Any = Mock(case=Mock(row=row), rounds=4, _seconds=seconds, _why_not_without=lambda: None)
    found: Any = SharedStepMeasure._exposed(measure, Mock())
    assert [call.args[1] for call in seconds.call_args_list] == [False, True, True, False] * 2
    assert found["exposed_communication_seconds"] == 2.0
    measure.case.row = EXAMINED["forward"]
    assert SharedStepMeasure._exposed(measure, Mock()) == {}, "no gradients are exchanged"


@pytest.mark.parametrize("parallel, spare_bytes, runs", [("fsdp2", 0, True), ("fsdp2", -1, False), ("ddp", -1, True)])
def test_the_rank_with_least_room_decides_if_all_hold_whole_weights(
    parallel: str, spare_bytes: int, runs: bool
) -> None:
    case = language_model_case(phase="full_step", sharing=Sharing(parallel, 2))
    whole_bytes = 2 * 4 * case.config.parameters
    clock = Mock(spec=RankClock, **{"from_all.return_value": [[1e15], [float(whole_bytes + spare_bytes)]]})
    device = Mock(**{"peaks.return_value": (2_000, None, None)})
    measure: Any = Mock(case=case, sharing=case.sharing, clock=clock, row=Mock(available_bytes=7_000), device=device)
    reason = SharedStepMeasure._why_not_without(measure)
    assert (reason is None) is runs
    assert runs or f"{whole_bytes:,} bytes more than fit" in str(reason)
    assert parallel == "ddp" or clock.from_all.call_args.args == ([5_000.0],)
