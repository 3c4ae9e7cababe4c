"""The judge: values that nothing knows before "go", its clock against a claim, and outputs as they lie at "done"."""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from perf_tests_suite.perf_tests.bench import judged as module
from perf_tests_suite.perf_tests.bench.judge import hidden_seconds, why_too_short
from perf_tests_suite.perf_tests.bench.judged import Judge, JudgedCase, JudgeLink, why_no_judge
from perf_tests_suite.perf_tests.bench.loop import Rounds
from perf_tests_suite.perf_tests.bench.outcomes import SuspiciousError
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.user_code.attention import IncorrectError
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from tests.support.cheats import forked_judge
from tests.support.example_cases import CPU, attention_case

DEVICE = CpuDevice(CPU)
FORWARD, BACKWARD = (attention_case(phase=f"attention_{name}", sequence_length=32) for name in ("forward", "backward"))


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # or a fork would wait for threads that it does not have
    found = forked_judge()
    for case in (FORWARD, BACKWARD):
        found.learn_cost(case, DEVICE, None)
    found.seal()
    yield found
    found.close()
    torch.set_num_threads(threads)


def compute(seconds: float = 0.1) -> None:
    """Use so much CPU time: more than handing a round over takes on any machine."""
    start = time.process_time()
    while time.process_time() < start + seconds:
        pass


def run_rounds(judged: JudgedCase, count: int = 4, attend: Any = None, seconds: float | None = None) -> Any:
    """Run so many rounds, each claiming to have taken `seconds` or what they took; returns the judge's word."""
    attend = attend or (lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True))
    inputs, clock = judged.inputs(), Clock(DEVICE)
    q, k, v, gradient = inputs.all

    def setup() -> tuple[Tensor, Tensor]:
        inputs.forget_gradients()
        output = attend(q, k, v)
        inputs.renew_gradient()
        return output, gradient

    rounds = Rounds(lambda: attend(q, k, v), renew=inputs.renew)
    if judged.layout.has_backward:
        rounds = Rounds(lambda output, gradient: output.backward(gradient), setup, renew=inputs.renew)
    measured = judged.rounds_of(rounds, clock)
    for position in range(count):
        measured.begin(position, is_measured=True)
        rounds.prepare()
        with clock.round():
            rounds.run()
        clock.last_seconds = clock.last_seconds if seconds is None else seconds
        measured.end()
    return measured.finish(0.0)


@pytest.mark.parametrize("case", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("is_copied", [False, True], ids=["shared", "copied"])
def test_rounds_are_checked_against_values_of_the_judge(case: Any, is_copied: bool, judge: Judge) -> None:
    """Where the device has memory of its own, as a GPU has, values and outputs are copied."""
    judged = replace(judge.case(f"{case.phase} {is_copied}", case, DEVICE, 4), is_copied=is_copied)
    checked = run_rounds(judged)
    assert (checked["rounds"], checked["same_again"], checked["unchecked"]) == ([1, 2, 3, 4], True, None)
    with pytest.raises(IncorrectError, match=r"error .* x its bound at .* in measured round "):
        run_rounds(
            replace(judge.case(f"wrong {case.phase} {is_copied}", case, DEVICE, 4), is_copied=is_copied),
            attend=lambda q, k, v: 0.9 * scaled_dot_product_attention(q, k, v, is_causal=True),
        )


def test_a_set_up_does_not_know_the_gradient_and_no_round_the_values_of_another(judge: Judge) -> None:
    judged = judge.case("values", BACKWARD, DEVICE, 4)
    inputs, seen = judged.inputs(), []
    for position in range(2):
        judged.begin(position, is_measured=True)
        before = inputs.gradient_BTK.clone()
        inputs.renew()
        assert inputs.gradient_BTK.equal(before)
        inputs.renew_gradient()
        seen += [x.detach().clone() for x in inputs.all]
    assert len({float(x.flatten()[0]) for x in seen}) == 8


@pytest.mark.parametrize("asked_again", ["values", "gradient"])
def test_the_clock_starts_with_values_that_are_new_alone(asked_again: str, judge: Judge) -> None:
    """Code that asks again, once it has computed, gains nothing."""
    judged = judge.case(f"again {asked_again}", FORWARD, DEVICE, 1)

    def ask_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output = scaled_dot_product_attention(q, k, v, is_causal=True)
        compute()
        judge.ask({"ask": asked_again, "position": 0, "is_measured": True})
        return output

    with pytest.raises(
        (IncorrectError, SuspiciousError), match=r"its bound|outside of its time|were kept to be checked"
    ):
        run_rounds(judged, count=1, attend=ask_again, seconds=1e-6)


def test_a_claim_is_too_short_where_each_of_the_faster_rounds_hides_more_than_handing_over_takes() -> None:
    honest = [1.0, 1.1, 1.2, 1.3]
    assert hidden_seconds(honest, [1.4, 1.2, 9.0, 9.0]) == pytest.approx(0.1)
    assert why_too_short(honest, [8.0, 1.4, 9.0, 9.0], 0.15) is None, "another program may disturb all rounds but one"
    sentence = why_too_short([0.1, 0.1, 1.0], [1.1, 1.1, 1.1], 0.1)
    assert sentence is not None
    assert "claim 100 ms" in sentence
    assert "each took at least 1 s more" in sentence


def test_rounds_that_claim_less_than_the_judge_sees_are_suspicious(judge: Judge) -> None:
    def slow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        compute()
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    with pytest.raises(SuspiciousError, match="work is done outside of its time"):
        run_rounds(judge.case("short", FORWARD, DEVICE, 4), attend=slow, seconds=1e-6)


@pytest.mark.parametrize("later_seconds, is_refused", [(0, False), (0.1, True)])
def test_before_anybody_is_accused_further_rounds_are_looked_at(
    later_seconds: float, is_refused: bool, judge: Judge
) -> None:
    """What is honest from then on, and slower than it claimed before, is refused."""
    calls: list[int] = []

    def disturbed_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 4:
            compute(later_seconds)
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    judged = judge.case(f"further {is_refused}", FORWARD, DEVICE, 4)
    inputs, clock = judged.inputs(), Clock(DEVICE)
    rounds = Rounds(lambda: disturbed_first(*inputs.all[:3]), renew=inputs.renew)
    measured = judged.rounds_of(rounds, clock)
    for position in range(4):
        measured.begin(position, is_measured=True)
        rounds.prepare()
        compute(0.3)
        rounds.run()
        clock.last_seconds = 0.05
        measured.end()
    if is_refused:
        with pytest.raises(SuspiciousError, match="outside of its time"):
            measured.finish(0.0)
    else:
        assert measured.finish(0.0)["unchecked"] is None


def test_a_case_is_judged_once_with_all_of_its_rounds_and_after_its_cost_is_known(judge: Judge) -> None:
    run_rounds(judge.case("once", FORWARD, DEVICE, 4))
    with pytest.raises(SuspiciousError, match="once was judged before"):
        judge.case("once", FORWARD, DEVICE, 4)
    with pytest.raises(SuspiciousError, match="saw 1 rounds end, of 4"):
        run_rounds(judge.case("a round is missing", FORWARD, DEVICE, 4), count=1)
    other = attention_case(phase="attention_forward", sequence_length=48)
    with pytest.raises(SuspiciousError, match="nothing is known of such rounds"):
        judge.case("other", other, DEVICE, 4)
    assert judge.ask({"ask": "case", "name": "cost", "layout": vars(module.SharedLayout((8, 48, 16), "fp32", False)),
                      "rounds": 1, "on_gpu": False, "cache": None})[1] is None  # fmt: skip


@pytest.mark.parametrize(
    "result, words",
    [
        (None, "It leaves no tensor"),
        ("text", "It leaves a str"),
        (torch.zeros(8, 32, 16, dtype=torch.float64), "torch.float64"),
        (torch.zeros(8, 31, 16), r"\(8, 31, 16\)"),
        (torch.zeros(8, 32, 16, device="meta"), "meta"),
    ],
)
def test_what_is_no_such_output_is_incorrect(result: object, words: str, judge: Judge) -> None:
    judged = judge.case(f"output {words}", FORWARD, DEVICE, 1)
    judged.inputs()
    with pytest.raises(IncorrectError, match=words):
        judged.end(1.0, result)


def test_a_judge_that_dies_ends_the_run_and_a_closed_descriptor_is_an_error_of_the_case() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    judge = Judge(JudgeLink(ours))
    its.close()
    with pytest.raises(pytest.exit.Exception, match=r"judge .* has ended.*; finished cases are kept"):
        judge.ask({"ask": "values"})
    ours.close()
    with pytest.raises(UserCodeError, match="has closed descriptors of this process"):
        judge.ask({"ask": "values"})


def test_a_system_without_shared_memory_is_told_and_what_is_shared_cannot_shrink(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = vars(module.SharedLayout((8, 32, 16), "fp32", False))
    asked = {"ask": "case", "name": "sealed", "layout": layout, "rounds": 1, "on_gpu": False, "cache": None}
    _, descriptor = judge.ask(asked)
    assert descriptor is not None
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
    assert why_no_judge() is None
    monkeypatch.delattr(os, "memfd_create")
    assert "measure it on Linux" in str(why_no_judge())
