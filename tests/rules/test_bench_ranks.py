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

from perf_tests_suite.model.parallel import Ranks, ddp
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests import conftest
from perf_tests_suite.perf_tests.bench import ranks as bench
from perf_tests_suite.perf_tests.bench.ranks import FINISHED, Peers, RankClock, SharedStepMeasure
from perf_tests_suite.perf_tests.bench.session import benchmark_of, session_of
from perf_tests_suite.perf_tests.cases.attention import CollectiveCase
from perf_tests_suite.perf_tests.cases.selected import examined_phases, is_inside
from perf_tests_suite.perf_tests.cases.sharing import Launched, Sharing
from perf_tests_suite.perf_tests.hardware.limits import COLLECTIVES, Message
from perf_tests_suite.perf_tests.phases import EXAMINED
from perf_tests_suite.perf_tests.records.measured import Measured
from perf_tests_suite.perf_tests.run import ranks
from perf_tests_suite.perf_tests.run.termination import NAME, Termination
from tests.rules.test_against import settings
from tests.support.cheats import in_a_fork
from tests.support.example_cases import CPU, SETTINGS, language_model_case
from tests.support.items import benchmark, stash_of


def said_of_two_steps(frozen: bool) -> str:
    """Return why a rank alone, whose model has a parameter that no pass uses, refuses a second step; empty if not."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    alone, model = Ranks(cast(dist.ProcessGroup, dist.group.WORLD), CPU), nn.Linear(4, 4)
    model.extra = nn.Linear(4, 4).requires_grad_(not frozen)
    training = ddp(model, alone, lambda shared: Training(shared, PRECISIONS["fp32"], CPU))
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
    assert re.search("extra.weight, extra.bias got no gradient.*choose --parallel fsdp2", said)


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
    plugins = SimpleNamespace(getplugin={NAME: Termination(came)}.get)
    config: Any = SimpleNamespace(stash=stash_of(**known), pluginmanager=plugins)
    return ranks.RankSync(peers, config, groups)


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
      for name in ranks.ONE_DEVICE_ONLY),
]  # fmt: skip


def test_what_ranks_cannot_do_together_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is only collected, or runs on one rank, needs no others."""
    for world, options, words in TOGETHER:
        with pytest.raises(pytest.UsageError, match=words):
            ranks.rendezvous(typed(monkeypatch, world, **options))
    for world in (None, 1):
        ranks.rendezvous(typed(monkeypatch, world))
    config = typed(monkeypatch, 2)
    config.option.collectonly = True
    ranks.rendezvous(config)
    ranks.rendezvous(config := typed(monkeypatch, 2, parallel="ddp"))
    assert isinstance(session_of(config).peers, OneOfTwo)


def test_a_refusal_of_any_rank_ends_all_and_is_said_once() -> None:
    for own, other, words in (
        (None, None, None), (None, "of 1", "Rank 1: of 1"), ("both", "both", "both"), ("0", "1", "0\nRank 1: 1"),
    ):  # fmt: skip
        said = None
        try:
            with ranks.agreed(OneOfTwo(said={"topic": other, "left": None}), "topic"):
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
    ranks.check_launches(config, peers, "digest")
    said: dict[str, object] = peers.all_gather.call_args_list[0].args[1]
    assert peers.gpus == (1 if said["gpu"] else 0)
    return said


DIFFERENT: dict[str, tuple[object, str]] = {
    "options": (["perf_tests", "--rounds", "3"], "options: perf_tests --rounds 3 there"),
    "code": ("another digest", "code: its checkout differs from rank 0's"),
    "torch": ("2.0.0", f"torch: 2.0.0 there, {torch.__version__} on rank 0"),
    "device": ("cuda", "device: cuda there, cpu on rank 0"),
    "settings": ("[]", "settings: what the options leave to the machine differs"),
}


def test_a_rank_that_was_started_differently_is_refused_by_what_differs() -> None:
    for name, (other, words) in DIFFERENT.items():
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
    assert ranks.planned(config, OneOfTwo(1, {"plan": plan}), items) == [items[2], items[0]]
    assert (contents.outcomes, workbench.values_seed) == (plan["outcomes"], 7)
    lead = OneOfTwo(0)
    assert ranks.planned(config, lead, items[:2]) == items[:2]
    assert lead.other.recv("plan", 0, 0.0) == {"left": ["a", "b"], "outcomes": [{"id": "b"}], "seed": 7}


def met(outcome: str, reason: str = "boom", is_effect: bool = False) -> dict[str, object]:
    return {"outcome": outcome, "reason": reason, "needed_bytes": None, "available_bytes": None, "is_effect": is_effect}


GLOO = RuntimeError("[gloo/pair.cc] Connection closed by peer")
SILENT: dict[str, object] = {}


FAIL, SKIP = pytest.fail.Exception, pytest.skip.Exception
FATES: dict[str, tuple[BaseException | None, Any, tuple[str, str] | None, type[BaseException] | None]] = {
    # what this rank meets and the other one says, the outcome, and what is raised
    "well on both": (None, None, None, None),
    "error there": (None, met("error"), ("error", "rank 1: boom"), FAIL),
    "memory": (None, met("out_of_memory"), ("out_of_memory", "rank 1: boom"), SKIP),
    "refusal": (None, met("unsupported"), ("unsupported", "rank 1: boom"), SKIP),
    "effect": (None, met("error", is_effect=True), ("error", "rank 1: boom"), FAIL),
    "hangs": (None, SILENT, ("timed_out", "rank 1 said nothing"), FAIL),
    "error here": (ValueError("x\ny"), met("error"), ("error", "rank 0: ValueError: x"), ValueError),
    "refused on all": (SKIP("no GPU"), None, ("unsupported", "no GPU"), SKIP),
    "here only an effect": (GLOO, met("error"), ("error", "rank 1: boom"), FAIL),
    "two effects": (GLOO, met("error", "", True), ("error", "rank 0: RuntimeError"), RuntimeError),
    "it died": (GLOO, SILENT, ("error", "rank 1 said nothing"), FAIL),
    "Ctrl-C is no outcome": (KeyboardInterrupt(), None, None, KeyboardInterrupt),
}


@pytest.mark.parametrize("fate", FATES)
def test_a_case_has_the_outcome_of_the_rank_that_is_its_cause(fate: str) -> None:
    mine, said, outcome, raises = FATES[fate]
    item = benchmark(ON_TWO, nodeid="case")
    peers = OneOfTwo(said={} if said is SILENT else {"case/call": said})
    call = sync_of(peers).pytest_runtest_call(item)
    next(call)
    with pytest.raises(raises or StopIteration):
        call.send(7) if mine is None else call.throw(mine)
    found = benchmark_of(item).outcome
    assert outcome == (found and (found.outcome, found.reason[: len(outcome[1])] if outcome else ""))
    if not isinstance(mine, KeyboardInterrupt):
        told = peers.other.recv("case/call", 0, 0.0)
        assert told is None if mine is None else told["is_effect"] is (mine is GLOO)
    assert {*peers.heard.values()} <= {60.0 if mine is not None else 4 * 60.0 + 300}


def test_a_rank_takes_part_in_cases_of_its_number_and_waits_for_the_end_of_others() -> None:
    for world in (0, 1, 2, 3):
        item = benchmark(language_model_case(sharing=Sharing("ddp", world) if world else None), nodeid="case")
        clock, groups, other = Mock(spec=RankClock), Mock(), {"case/begin": None, "case/end": True}
        sync = sync_of(OneOfTwo(1, other), groups=groups, workbench=SimpleNamespace(clock=clock))
        assert sync.pytest_runtest_protocol(item) is (None if world >= 2 else True)
        assert (clock.group is groups.clock.return_value) is (world == 2)
        assert groups.drop.called is (world < 2)
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


def test_rank_0_says_how_the_run_ended_and_others_wait_for_it_unless_it_may_be_dead() -> None:
    for rank, came, stopped, hears, exit_code in (
        (1, None, False, [FINISHED], 0), (1, signal.SIGTERM, False, [], 0), (1, None, "its device is lost", [], 1),
        (0, None, False, ["left"], 1), (0, signal.SIGTERM, False, ["left"], 1),
    ):  # fmt: skip
        session: Any = SimpleNamespace(shouldstop=stopped, exitstatus=1)
        peers = OneOfTwo(rank, {FINISHED: 0} if rank else {"left": None}, restarts=1)
        assert len(list(sync_of(peers, came).pytest_sessionfinish(session))) == 1
        assert (list(peers.heard), session.exitstatus) == (hears, exit_code)
        assert peers.has_ended is (rank == 0 and came is None), "torchrun, which sent the signal, starts all again"
        assert peers.other.has_sent(FINISHED, 0)


def test_groups_are_made_anew_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same one a rank would find the addresses of connections that were dropped."""
    made, store = Mock(side_effect=PrefixStore), HashStore()
    monkeypatch.setattr(bench, "PrefixStore", made)
    groups = bench.Groups(Peers(Launched(), store, store), CPU)
    for _ in range(2):
        groups.make(1)
        assert dist.get_world_size(groups.case(1)) == 1
        groups.drop()
        assert not dist.is_initialized()
    assert len({call.args[0] for call in made.call_args_list}) == made.call_count == 2


def test_each_rank_has_its_own_rows_of_the_global_batch() -> None:
    second_of_two = SimpleNamespace(part_of=lambda batch, sharing: batch.chunk(sharing.world)[1])
    for scaling, rows_of_each in (("strong", 2), ("weak", 4)):
        case = language_model_case(batch_size=4, sharing=Sharing("ddp", 2, scaling))
        workbench = Mock(settings=SETTINGS, **{"device.torch_device": CPU})
        drawn = []
        for workbench.groups in (None, second_of_two):
            drawn.append(conftest.batch.__wrapped__(case, workbench).tokens_BT)  # type: ignore[attr-defined]
        assert len(drawn[0]) == 2 * rows_of_each == case.global_batch_size
        assert drawn[1].equal(drawn[0][rows_of_each:])


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_an_exchange_that_gives_other_numbers_is_found(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    exchange = bench.Exchange(collective, 4, None, CPU)
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
    for count, words in {10**9: "1GB", 64_000: "64KB", 2**20: "1MiB", 2**16: "64KiB", 7: "7B"}.items():
        assert CollectiveCase.id_of("all_gather", count, 2) == f"all_gather-{words}-world2"


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
    measure: Any = Mock(case=Mock(phase_row=row), rounds=4, _seconds=seconds, _why_not_without=lambda: None)
    found = SharedStepMeasure._with_exposed(measure, Measured(), Mock())
    assert [call.args[1] for call in seconds.call_args_list] == [False, True, True, False] * 2
    assert found.exposed_communication_seconds == 2.0
    measure.case.phase_row = EXAMINED["forward"]
    assert SharedStepMeasure._with_exposed(measure, Measured(), Mock()) == Measured(), "no gradients are exchanged"


def test_the_rank_with_least_room_decides_if_all_hold_whole_weights() -> None:
    for parallel, spare_bytes, runs in (("fsdp2", 0, True), ("fsdp2", -1, False), ("ddp", -1, True)):
        case = language_model_case(phase="full_step", sharing=Sharing(parallel, 2))
        whole_bytes = 2 * 4 * case.config.parameters
        clock = Mock(spec=RankClock, **{"from_all.return_value": [[1e15], [float(whole_bytes + spare_bytes)]]})
        known = {"device.peaks.return_value": (2_000, None, None), "row.conditions.available_bytes": 7_000}
        reason = SharedStepMeasure._why_not_without(Mock(case=case, sharing=case.sharing, clock=clock, **known))
        assert (reason is None) is runs
        assert runs or f"{whole_bytes:,} bytes more than fit" in str(reason)
        assert parallel == "ddp" or clock.from_all.call_args.args == ([5_000.0],)
