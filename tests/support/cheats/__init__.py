"""Code that is recorded as fast and is wrong: one cheat in a file, as its user would give it, and what refuses each.

A file has `attend`, or `build` of a model or an optimizer. `refusal` judges one as a run does: the check before
timing, then timed rounds of the benchmark itself at a small shape.
"""

import gc
import os
import pickle
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from perf_tests_suite.model.attention import naive_attention
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests import test_attention, test_backward, test_forward, test_full_step
from perf_tests_suite.perf_tests.audit.rounds import why_replaced
from perf_tests_suite.perf_tests.bench.checked_rounds import Draws, drawn_seed
from perf_tests_suite.perf_tests.bench.judge import serve
from perf_tests_suite.perf_tests.bench.judged import Judge, JudgeLink
from perf_tests_suite.perf_tests.bench.loop import RowBuilder, TimedMeasure
from perf_tests_suite.perf_tests.bench.models import Batch
from perf_tests_suite.perf_tests.bench.outcomes import SuspiciousError
from perf_tests_suite.perf_tests.hardware.bound import bind, put_back, unbind
from perf_tests_suite.perf_tests.hardware.clock import Clock
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.user_code.attention import IncorrectError, Use, attention_named, check_attention
from perf_tests_suite.perf_tests.user_code.given import UserModel, UserOptimizer
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from perf_tests_suite.perf_tests.user_code.model import build_model, check_values_of
from perf_tests_suite.perf_tests.user_code.optimizer import check_a_step, put_into
from tests.support.example_cases import CPU, TOY, attention_case, language_model_case
from tests.support.fake_device import LoopBenchmark

HERE = Path(__file__).parent
ROUNDS, WARMUP_ROUNDS, BATCH = 6, 3, 8

BEFORE, ROUNDS_CHECK, CLOCKS = "before timing", "in timed rounds", "as suspicious"
"""What refuses a file."""

FAMILIES = (
    "replay", "right when checked", "the clock", "the judge", "work not done yet", "less work", "state",
    "optimizers and models",
)  # fmt: skip


@dataclass(frozen=True)
class Cheat:
    """`family` is the number of its kind in FAMILIES, from 1."""

    family: int
    phase: str = "attention_forward"
    refused: str = ROUNDS_CHECK
    tokens: int = 256
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    """The precisions in which the bound can see it."""
    why_recorded: str = ""
    """Why it is measured and recorded today, where it is."""


REACHES = "it runs in the process that judges it, and reaches what does"
"""Why cheats are recorded that only a judge in another process can refuse."""

CHEATS = {
    # Under autocast each call gets new objects, in memory of its own.
    "output_by_address": Cheat(1, precisions=("fp32",)),
    "output_by_identity": Cheat(1, precisions=("fp32",)),
    "output_by_shape": Cheat(1),
    "output_by_checksum": Cheat(1),
    "softmax_by_address": Cheat(1),
    "gradients_by_shape": Cheat(1, "attention_backward"),
    "window_after_three_calls": Cheat(2),
    "wrong_in_large_batches": Cheat(2),
    "wrong_when_long": Cheat(2, tokens=1040),
    "wrong_without_a_check_above": Cheat(2),
    "wrong_in_a_test": Cheat(2),
    "wrong_every_other_call": Cheat(2),
    "clock_at_a_third": Cheat(3, refused=CLOCKS),
    "clock_every": Cheat(3, refused=CLOCKS),
    "clock_of_the_device": Cheat(3, refused=CLOCKS),
    "judge_allclose": Cheat(4, refused=CLOCKS),
    "judge_of_the_suite": Cheat(4, refused=CLOCKS),
    "judge_gradients": Cheat(4, "attention_backward", BEFORE),
    "lazy_tensor": Cheat(5),
    "thread_that_works_later": Cheat(5),
    "backward_that_does_nothing": Cheat(5, "attention_backward"),
    "half_sums": Cheat(6, refused=BEFORE, precisions=("fp32",)),
    "half_sums_when_timed": Cheat(6, precisions=("fp32",)),
    "mask_of_another_length": Cheat(6),
    "skips_small_blocks": Cheat(6),
    "inputs_changed_in_place": Cheat(7, precisions=("fp32",)),  # in 16 bits it gets copies
    "gradients_added_up": Cheat(7, "attention_backward"),
    "model_logits_by_shape": Cheat(8, "forward"),
    "model_constant_in_batches": Cheat(8, "inference"),
    "model_logits_with_noise": Cheat(1, "forward"),
    "model_every_other_call": Cheat(8, "inference"),
    "model_without_a_graph": Cheat(8, "inference"),
    "model_gradients_kept": Cheat(8, "backward"),
    "optimizer_that_freezes": Cheat(8, "optimizer"),
    "optimizer_without_moments": Cheat(8, "full_step"),
    "optimizer_of_one_tensor": Cheat(8, "optimizer"),
    # What reaches the judge itself, knows its values, or works outside of the clock.
    "judge_by_chance": Cheat(4),
    "judge_emptied": Cheat(4),
    "judge_told_otherwise": Cheat(4),
    "judge_digest": Cheat(4),
    "judge_draws": Cheat(4),
    "judge_places": Cheat(4),
    "judge_comparison": Cheat(4),
    "judge_enumeration": Cheat(4),
    "judge_in_a_frame": Cheat(2),
    "values_of_next_rounds": Cheat(1),
    "values_that_add_up": Cheat(6),
    "output_with_an_own_method": Cheat(5),
    "inputs_of_another_class": Cheat(4, precisions=("fp32",)),
    "mode_left_on": Cheat(4),
    "profile_before_the_clock": Cheat(5, refused=CLOCKS, tokens=1024),
    "gradients_made_by_the_forward": Cheat(5, "attention_backward"),
    "clock_inside_the_bound_ones": Cheat(3, refused=CLOCKS),
    "optimizer_of_every_16th_weight": Cheat(8, "optimizer", why_recorded="one of 16 neighbours has moved"),
    "optimizer_in_hooks": Cheat(8, "optimizer"),
    "optimizer_where_it_is_looked_at": Cheat(8, "optimizer", why_recorded=REACHES),
    "model_where_it_is_looked_at": Cheat(8, "forward", why_recorded=REACHES),
}
"""Cheats by the name of the file; one attention needs no kind, the others begin with theirs."""


def refusal_of_cheat(name: str, precision: str = "fp32") -> tuple[str, str] | None:
    """Return when the file is refused and why, as `refusal`; it is imported, and may replace what it likes."""
    cheat = CHEATS[name]
    kind = name.partition("_")[0]
    function = "build" if kind in ("model", "optimizer") else "attend"
    return refusal(f"{HERE / name}.py:{function}", cheat.phase, precision, cheat.tokens, kind)


def refusal(
    named: str, phase: str, precision: str = "fp32", tokens: int = 256, kind: str = ""
) -> tuple[str, str] | None:
    """Return what refuses it and the sentence; None where the code is measured, with its row's `checked`."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    refused = BEFORE
    bind()
    judge = None
    try:
        if kind not in ("model", "optimizer"):
            judge = forked_judge()
            case = attention_case(phase=phase, attention=named, precision=precision, sequence_length=tokens)
            judge.learn_cost(case, CpuDevice(CPU), None)
            judge.seal()
        play = _prepared(named, phase, precision, tokens, kind, judge)
        if replaced := put_back():  # by its import
            return CLOCKS, why_replaced(replaced)
        os.environ["PYTEST_CURRENT_TEST"] = "a case"  # as pytest has it once a test runs
        refused = ROUNDS_CHECK
        play()
    except (IncorrectError, UserCodeError) as error:
        return refused, str(error)
    except SuspiciousError as error:
        return CLOCKS, str(error)
    finally:
        unbind()
        if judge is not None:
            judge.close()
    return None


def forked_judge() -> Judge:
    """Return one that is a fork of this process, before it imports what is judged; a fresh one imports for seconds."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    measuring = os.getpid()
    if os.fork() == 0:
        try:
            ours.close()
            unbind()
            serve(JudgeLink(its), measuring)
        finally:
            os._exit(0)
    its.close()
    return Judge(JudgeLink(ours))


class TimedBenchmark(LoopBenchmark):
    """Times its rounds, as pytest-benchmark does."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def pedantic(
        self, target: Callable[[], None], *, setup: Callable[[], None], rounds: int, warmup_rounds: int = 0
    ) -> None:
        seconds = []
        for _ in range(warmup_rounds + rounds):
            setup()
            start = self.clock()
            target()
            seconds.append(self.clock() - start)
        self.stats = {"median": median(seconds[warmup_rounds:]), "data": seconds[warmup_rounds:]}


def measure_of(case: Any) -> TimedMeasure:
    device = CpuDevice(CPU)
    clock = Clock(device)
    return TimedMeasure(
        TimedBenchmark(clock), clock, device, ROUNDS, WARMUP_ROUNDS, RowBuilder(case), draws=Draws(drawn_seed(), "case")
    )


def _prepared(
    named: str, phase: str, precision: str, tokens: int, kind: str, judge: Judge | None
) -> Callable[[], object]:
    """Check the code as a run does before its first case; returns the benchmark at this shape."""
    if judge is not None:
        case = attention_case(phase=phase, attention=named, precision=precision, sequence_length=tokens)
        function = attention_named(named).build()
        use = Use(case.head_dim, False, PRECISIONS[precision], CPU)
        check_attention(function, named, use, [min(tokens, 1024)], [(BATCH,)])

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with PRECISIONS[precision].autocast(CPU):
                return function(q, k, v)

        judged = judge.case(named, case, CpuDevice(CPU), ROUNDS)
        benchmark = getattr(test_attention, f"test_{phase}")
        return lambda: benchmark(case, attend, judged.inputs(), replace(measure_of(case), judged=judged))
    config = TOY
    if kind == "model":
        model = build_model(UserModel(named), config)
        check_values_of(named, model, config, CPU)
    else:
        check_a_step(UserOptimizer(named), TransformerLM(config, naive_attention), CPU)
        model = TransformerLM(config, naive_attention)
    training = Training(model, PRECISIONS[precision], CPU)
    if kind == "optimizer":
        put_into(UserOptimizer(named), training, model)
    of_model = language_model_case(config, phase=phase, optimizer="loop", precision=precision, batch_size=BATCH)
    batch = Batch.drawn(
        lambda generator: torch.randint(config.vocab_size, (BATCH, config.context_length + 1), generator=generator),
        0,
        CPU,
    )
    files = (test_forward, test_backward, test_full_step)
    benchmark = next(found for file in files if (found := getattr(file, f"test_{phase}", None)))
    marks = {"clock": Clock(CpuDevice(CPU))} if phase in ("forward_backward", "full_step") else {}
    return lambda: benchmark(of_model, training, batch, measure_of(of_model), **marks)


def warm_up() -> None:
    """Import and run what every fork would otherwise import and run again."""
    torch.set_num_threads(1)
    for kind, phase in (("", "attention_backward"), ("model", "full_step")):
        assert refusal(f"{HERE.parent}/honest_code.py:{kind or 'fused'}", phase, kind=kind) is None


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Return what the work returns, run in a fork of this process, which keeps nothing of it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # a fork takes no threads along
            warnings.simplefilter("ignore")
            gc.freeze()  # or each collection would walk all that was imported
            answer = pickle.dumps(work())
        except BaseException as error:
            answer = pickle.dumps(("it failed", repr(error)))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer)
