"""A worker of the gate on a device with a queue of work: its turns, and the end of a process whose device is lost."""

import gc
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from _pytest.compat import NOTSET  # what it gives an axis without values

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.bench.checked_rounds import Check, Draws, Kept
from perf_tests_suite.perf_tests.bench.outcomes import SuspiciousError
from perf_tests_suite.perf_tests.bench.workbench import Workbench
from perf_tests_suite.perf_tests.bench.worker_plugin import sent
from perf_tests_suite.perf_tests.bench.workers import Channel
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.hardware import clock as clock_module
from perf_tests_suite.perf_tests.hardware.clock import Clock, sentinel_bytes, sentinels
from perf_tests_suite.perf_tests.hardware.device import CpuDevice, Device
from perf_tests_suite.perf_tests.interleaved import on_demand as module
from perf_tests_suite.perf_tests.interleaved.observer import Observation
from perf_tests_suite.perf_tests.interleaved.on_demand import (
    LONG_ROUND_SECONDS,
    GatePlugin,
    RoundsOnDemand,
    counted,
    digests_of_operations,
    one_of_each,
)
from perf_tests_suite.perf_tests.predict.compiling import Compilation
from perf_tests_suite.perf_tests.user_code.attention import IncorrectError
from tests.support.example_cases import CPU, SETTINGS, attention_case, language_model_case
from tests.support.fake_device import QueueDevice
from tests.support.items import benchmark, stash_of

GPU = torch.device("cuda", 0)


class RecordingChannel(Channel):
    """Asks for these requests; `sent` holds what the worker said, and whether its device was idle then."""

    def __init__(self, *requests: dict[str, Any], device: QueueDevice | None = None) -> None:
        self.requests, self.device = [*requests], device
        self.sent: list[dict[str, Any]] = []
        self.idle: list[bool] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.idle.append(self.device is None or self.device.now >= self.device.done_at)

    def receive(self, patience_seconds: float | None = None) -> dict[str, Any]:
        return self.requests.pop(0)


def plugin_on(*requests: dict[str, Any], device: QueueDevice | None = None) -> tuple[GatePlugin, RecordingChannel]:
    channel = RecordingChannel(*requests, device=device)
    return GatePlugin(settings=SETTINGS, channel=channel), channel


def served(monkeypatch: pytest.MonkeyPatch, device: QueueDevice) -> RecordingChannel:
    """What a worker answers to a turn of two rounds and to a sentinel; a round launches a second of work."""
    monkeypatch.setattr(clock_module, "time", device)
    clock = Clock(device)
    requests = ({"unmeasured": 1, "rounds": 2}, {"sentinel": "arithmetic", "count": 1}, {"enough": True})
    plugin, channel = plugin_on(*requests, device=device)
    plugin._sentinels = {"arithmetic": lambda: device.launch(3.0)}
    measure = RoundsOnDemand(lambda *round: plugin.serve_rounds("case", clock, 0.0, *round), clock, device, 1)
    measure(lambda: device.launch(1.0), lambda: device.launch(5.0))
    return channel


def test_a_turn_ends_once_the_device_is_idle_and_spinning_takes_no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, cpu_seconds in ((CPU, (0.5, 0.5)), (GPU, None)):
        device = QueueDevice()
        device.torch_device = where
        channel = served(monkeypatch, device)
        assert [list(answer["seconds"]) for answer in channel.sent[1:]] == [[1.0, 1.0], [3.0]]
        assert (channel.sent[1]["cpu_seconds"], all(channel.idle)) == (cpu_seconds, True)
    # Each round waits twice; without the second wait of the last round, work is left to the other side's turn.
    assert not all(served(monkeypatch, QueueDevice(deaf_to=8)).idle)


def test_a_case_of_long_rounds_is_warm_after_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the device is loaded, and not after fewer than the case takes."""
    for fewest, rounds in ((2, 4), (6, 6)):
        device, warm = QueueDevice(), Mock()
        device.warm_up_seconds = 5 * LONG_ROUND_SECONDS
        for used in (clock_module, module):
            monkeypatch.setattr(used, "time", device)
        work = partial(device.launch, 2 * LONG_ROUND_SECONDS)
        RoundsOnDemand(warm, Clock(device), device, 9, fewest)(work, lambda: None)
        ((_, warmup_seconds),) = [call.args for call in warm.call_args_list]
        assert warmup_seconds == pytest.approx([2 * LONG_ROUND_SECONDS] * rounds)


def test_both_sides_get_the_same_new_values_and_what_is_wrong_in_a_round_ends_the_case() -> None:
    """However long each warms up; once the gate has enough, for until then its rounds are on request."""

    class Wrong(Check):
        about, reruns = "all", 0

        def after(self, result: Any) -> dict[str, torch.Tensor]:
            return {}

        def check(self, kept: Kept) -> None:
            raise IncorrectError(f"nothing is right in {kept.name}")

    served: list[list[int]] = []
    seeds: list[int] = []

    def serve(one_round: Any, warmup_seconds: Any) -> None:
        seeds.clear()
        for _ in range(3):
            one_round()
        served.append(list(seeds))

    for warmup_rounds in (1, 4):
        device = CpuDevice(CPU)
        measure = RoundsOnDemand(serve, Clock(device), device, warmup_rounds, draws=Draws(7, "0", 2))
        measure(lambda: None, renew=lambda generator: seeds.append(generator.initial_seed()))
        with pytest.raises(IncorrectError, match=r"nothing is right in measured round [123]"):
            measure(lambda: None, check=Wrong)
    assert (served[0], len(set(served[0]))) == (served[2], 3)


def test_what_only_the_first_launch_takes_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generating code and counting."""
    for miss, seconds in ((0, 0.0), (1, 3.0)):
        monkeypatch.setattr(module, "count_compilations", lambda miss=miss: Counter(cache_hits=1, cache_misses=miss))
        plugin, channel = plugin_on({"enough": True})
        plugin.serve_rounds("case", Mock(spec=Clock), 0.25, Mock(), [5.0, 2.5, 2.0])
        assert channel.sent == [{"warm": "case", "round_seconds": 2.0, "once_seconds": 0.25 + seconds}]


def workbench_on(device: Device, **changes: Any) -> Workbench:
    return Workbench(SETTINGS, device, Mock(spec=Clock), 2**40, **changes)


def test_a_worker_whose_device_is_lost_says_so_instead_of_serving_the_next_case() -> None:
    for stops, key in ((False, "done"), ("cuda:0 is unusable", "ended")):
        config = Mock(stash=stash_of(workbench=workbench_on(Mock(spec=Device, torch_device=GPU))))
        item = Mock(config=config, stash=benchmark(attention_case()).stash, session=Mock(shouldstop=stops), nodeid="a")
        plugin, channel = plugin_on()
        protocol: Any = plugin.pytest_runtest_protocol(item)
        next(protocol)
        plugin.outcome = {"outcome": "error", "reason": "CUDA error: device-side assert triggered"}
        assert next(protocol, None) is None
        (message,) = channel.sent
        assert (key in message, "device-side assert triggered" in str(message)) == (True, True)


def test_why_the_suite_refuses_to_measure_reaches_the_gate() -> None:
    plugin, _ = plugin_on()
    collection = plugin.pytest_collection()
    next(collection)
    with pytest.raises(pytest.UsageError):
        collection.throw(pytest.UsageError("cuda:0 cannot be used."))
    assert plugin.trouble == "cuda:0 cannot be used."


def test_each_side_has_half_the_memory_with_room_for_its_sentinels_and_says_so() -> None:
    assert (sentinel_bytes(GPU), sentinel_bytes(CPU)) == (3 * 4 * 4096**2 + 2 * 2**30, 0)
    workbench = workbench_on(Mock(spec=Device, torch_device=GPU, kept_free_bytes=2 * 2**30))
    half_bytes = workbench.halve_memory()
    assert half_bytes == (2**40 - 2 * 2**30) // 2
    assert workbench.budget_bytes == half_bytes - sentinel_bytes(GPU)
    known = attention_case()
    workbench = workbench_on(CpuDevice(CPU), known_to_fit=frozenset([known]))
    workbench.budget_bytes = 2
    workbench.halve_memory()
    assert workbench.why_not(known) is None, "an earlier launch measured it"
    refusal = workbench.why_not(attention_case(head_dim=32))
    assert refusal is not None
    assert "may be used by each of base and head, which are in memory at the same time; choose" in refusal.reason


def test_a_worker_takes_the_gates_order_and_what_an_earlier_launch_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)  # for good, and this process goes on
    workbench = workbench_on(CpuDevice(CPU))
    cases = {"a": attention_case(), "b": attention_case(head_dim=32)}
    items: list[Any] = [benchmark(case, nodeid=name) for name, case in cases.items()]
    plugin, channel = plugin_on({"order": ["b", "a"], "measured": ["b"], "seed": 7, "pair": 1})
    config = Mock(stash=stash_of(workbench=workbench))
    hook = plugin.pytest_collection_modifyitems(Mock(testsfailed=0), config, items)
    assert [*hook] == [None]
    assert channel.sent == [{"ready": {name: case.identity() for name, case in cases.items()}}]
    assert [item.nodeid for item in items] == ["b", "a"]
    assert workbench.known_to_fit == {cases["b"]}
    assert plugin._draws == {"b": Draws(7, "0", 1), "a": Draws(7, "1", 1)}


@pytest.mark.parametrize("known", [True, False])
def test_an_axis_of_which_a_side_knows_no_value_has_no_case_there(known: bool) -> None:
    case = benchmark(attention_case(), nodeid="known")
    unknown = Mock(nodeid="unknown", stash=pytest.Stash(), callspec=Mock(params={"attention": NOTSET}))
    plugin, channel = plugin_on({"order": [], "measured": [], "seed": 7, "pair": 1})
    items, workbench = [unknown, *[case] * known], Mock(spec=Workbench, device=CpuDevice(CPU))
    hook = plugin.pytest_collection_modifyitems(Mock(testsfailed=0), Mock(stash=stash_of(workbench=workbench)), items)
    next(hook)
    assert items == [case] * known, "before the plugin makes cases of them"
    assert [*hook] == []
    (answer,) = channel.sent
    assert [*answer] == (["ready"] if known else ["absent"])


def test_the_sentinels_run_without_tf32_and_leave_the_mode_of_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case in TF32 has sentinels before its rounds."""
    modes: list[str] = []
    product = sentinels(CPU)["arithmetic"]
    monkeypatch.setattr(torch, "mm", lambda left, right: modes.append(torch.get_float32_matmul_precision()))
    torch.set_float32_matmul_precision("high")
    try:
        product()
        assert (modes, torch.get_float32_matmul_precision()) == (["highest"], "high")
    finally:
        torch.set_float32_matmul_precision("highest")


def test_code_of_the_users_that_changes_the_conditions_of_its_rounds_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's own has no row that could carry a flag, and is held to that in a timing."""
    device = QueueDevice()
    for used in (clock_module, module):
        monkeypatch.setattr(used, "time", device)
    accused = pytest.raises(SuspiciousError, match="float32_matmul_precision from highest to high")
    for is_user_code in (True, False):
        measure = RoundsOnDemand(Mock(), Clock(device), device, 1, is_user_code=is_user_code)
        try:
            with accused if is_user_code else nullcontext():
                measure(lambda: torch.set_float32_matmul_precision("high"))
        finally:
            torch.set_float32_matmul_precision("highest")


def digest_of(*cases: Case) -> str | None:
    """Return that of the last of these, played one after the other."""
    return [*digests_of_operations({str(place): case for place, case in enumerate(cases)}).values()][-1]["digest"]


def test_cases_that_issue_other_operations_have_another_digest_and_a_compiled_one_that_of_what_is_compiled() -> None:
    naive, language = attention_case(sequence_length=8), language_model_case()
    alike = {
        "again": (naive, naive), "compiled": (naive, replace(naive, attention="compiled")),
        "language model": (language, replace(language, execution="compiled")),
    }  # fmt: skip
    assert {name for name, (one, other) in alike.items() if digest_of(one) != digest_of(other)} == set()
    played = [
        naive, replace(naive, attention="sdpa"), replace(naive, precision="bf16"), replace(naive, sequence_length=16),
        naive.in_phase("attention_backward"), language, replace(language, precision="bf16"),
        language_model_case(phase="full_step", optimizer="loop"),
        language_model_case(phase="full_step", optimizer="foreach"),
    ]  # fmt: skip
    digests = [digest_of(case) for case in played]
    # Both phases of attention are one pass.
    assert len({*digests}) == len(played) - 1
    assert digests[0] == digests[4]
    assert digest_of(language, naive) not in (digest_of(naive), digest_of(language)), "an earlier case counts"
    flex = digests_of_operations({"a": attention_case(attention="flex")})["a"]
    assert (flex["digest"], "what flex attention fuses" in flex["reason"]) == (None, True)


def test_a_round_on_real_tensors_runs_of_the_smallest_case_of_each_kind_not_compiled() -> None:
    cases: dict[str, Case] = {
        "long": language_model_case(context_length=16), "short": language_model_case(context_length=8),
        "compiled": language_model_case(context_length=16, execution="compiled"),
        "bf16": language_model_case(precision="bf16"), "sdpa": language_model_case(attention="sdpa"),
        "checkpoints": language_model_case(checkpoint="blocks"),
        "step": language_model_case(phase="full_step", optimizer="loop"),
        "foreach": language_model_case(phase="full_step", optimizer="foreach"),
        "theirs": language_model_case(phase="full_step", optimizer="optim.py:build"),
        "alone": attention_case(attention="compiled"), "alone, long": attention_case(sequence_length=512),
    }  # fmt: skip
    chosen = one_of_each(cases)
    assert [*chosen] == ["short", "bf16", "sdpa", "checkpoints", "step", "foreach", "theirs", "alone"]
    assert {case.attention for case in chosen.values()} == {"naive", "sdpa"}
    assert chosen["theirs"] == cases["theirs"]
    wide = language_model_case(config=SIZES["medium"])
    assert one_of_each({"wide": wide})["wide"].least_bytes < wide.least_bytes / 10


def test_a_rehearsal_runs_one_round_and_what_is_compiled_runs_as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that are compiled, and what a compiler has made of them before, call none of theirs."""
    asked, is_compiled, rounds = RecordingChannel({"once": ["a"]}), list[bool](), list[int]()
    recorder = Mock(observation=lambda: Observation())
    plugin = GatePlugin(settings=SETTINGS, channel=asked, recorder=recorder)
    try:
        assert plugin._rehearse(recorder, []) == ["a"]
        torch.compile(lambda: is_compiled.append(torch.compiler.is_compiling()), backend="eager")()
    finally:
        torch.compiler.set_stance("default")
    assert is_compiled == [False]
    assert asked.sent[0].items() >= {"digests": {}, "ran": {}, "read": ()}.items()
    plugin.measure(Mock(), Mock())(lambda: rounds.append(1))
    assert rounds == [1]


def test_what_a_hook_raised_once_the_worker_was_ready_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be imported is met by then."""
    channel = RecordingChannel()

    def run(plugin: GatePlugin, files: object) -> None:
        plugin.was_ready = True
        with pytest.raises(ImportError) as raised:
            raise ImportError("no module\nmore")
        manager = pytest.PytestPluginManager()
        manager.register(plugin)
        manager.hook.pytest_internalerror(excrepr=raised.getrepr(), excinfo=raised)

    monkeypatch.setattr(GatePlugin, "run", run)
    assert module.serve(channel, {"settings": sent(SETTINGS), "files": []}) is None
    assert channel.sent == [{"ended": "no module"}]


def test_seconds_to_compile_are_sent_or_the_outcome_that_says_why_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite: Any = Mock()
    for seconds, reason, outcome in (
        ({"": (2.0, 1.0)}, None, None), (None, "no compiler", {"outcome": "error", "reason": "no compiler"}),
    ):  # fmt: skip
        monkeypatch.setattr(module, "compile_seconds_or_reason", lambda *_, of=(seconds, reason): of)
        assert module.compiled_once(attention_case(), suite) == {"compiled": seconds, "outcome": outcome}


def test_what_the_compiler_made_is_counted_of_compiled_cases_and_of_code_that_may_compile_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite = Mock(workbench=Mock(device=CpuDevice(CPU)))
    made = Compilation(2, (), None, host_reads=3, generated_kernels=5)
    monkeypatch.setattr(module, "compilation_or_reason", lambda *_: (made, None))
    answer = counted(attention_case(attention="compiled"), suite)
    assert answer["counters"] == {"host_reads": 3, **made.counters}
    assert "graphs" not in counted(attention_case(attention="naive"), suite)["counters"]
    monkeypatch.setattr(module, "compilation_or_reason", lambda *_: (None, "no compiler"))
    assert counted(attention_case(attention="compiled"), suite) == {"counters": None, "reason": "no compiler"}
