"""The judge, `python -m JUDGE SOCKET PROCESS`: a process that code of the user's cannot reach and that imports none.

It owns the values of every round, which nothing can know before it says "go", a clock of its own, and the check of the
outputs that lie in shared memory when a round says that it is done. Work that is done before "go" lacks its values;
what is left for later is wrong; and what is done between the two, yet outside of the clock that the round claims, shows
in the judge's interval. `perf_tests/bench/judged.py` is the other side.
"""

import ctypes
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from mmap import mmap
from statistics import median

import torch
from torch import Tensor

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.bench.checked_rounds import AttentionCheck, CheckedRounds, Draws, drawn_seed
from perf_tests_suite.perf_tests.bench.judged import JudgeLink, SharedLayout
from perf_tests_suite.perf_tests.bench.loop import Rounds
from perf_tests_suite.perf_tests.bench.models import AttentionInputs
from perf_tests_suite.perf_tests.bench.outcomes import SuspiciousError
from perf_tests_suite.perf_tests.bench.workers import ClosedError
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.records.format import duration
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.attention import TENSOR_CORE, IncorrectError

HIDDEN_SHARE = 0.05
"""The share of a round's time that may be hidden, or be noise."""
COST_NOISE = 3.0
"""Times the usual cost of handing a round over that the least of several rounds may take, on a machine that is busy."""
NOISE_SECONDS = 1e-4
MOST_LOOKS, LOOK_SECONDS = 200, 1e-4
MOST_LOOKS_AGAIN, FURTHER_ROUNDS = 4, 5
"""How often, and at how many rounds each time, the judge looks again before it accuses anybody."""
_PR_SET_PDEATHSIG = 1


class Waiting:
    """Seconds for which the main thread of a process was ready to run and had no processor.

    On a busy machine they would be most of an interval, and nobody's work.
    """

    def __init__(self, process_id: int) -> None:
        self._files: list[int] = []
        with suppress(OSError):  # where the kernel does not count them
            for name in ("stat", "schedstat"):
                self._files.append(os.open(f"/proc/{process_id}/{name}", os.O_RDONLY | os.O_CLOEXEC))

    def until_asleep(self) -> None:
        """Return once it sleeps, as the kernel counts a wait when it ends: one of before would count as of later."""
        for _ in range(MOST_LOOKS if self._files else 0):
            if os.pread(self._files[0], 512, 0).rpartition(b")")[2].split()[0] == b"S":
                return
            time.sleep(LOOK_SECONDS)

    def __call__(self) -> float:
        if len(self._files) < 2:
            return 0.0
        # Nanoseconds on a processor, nanoseconds of waiting for one, and turns (Documentation/scheduler/sched-stats).
        return int(os.pread(self._files[1], 64, 0).split()[1]) / 1e9


def hidden_seconds(claims: Sequence[float], intervals: Sequence[float]) -> float:
    """Return the least time that the judge's clock counts beyond a claim, over the faster half of the rounds.

    A time that is too low is the median of claims, so the code has to hide work in each round of that half. One that
    another program disturbs is no sign of that.
    """
    by_claim = sorted(zip(claims, intervals, strict=True))
    return min(interval - claim for claim, interval in by_claim[: ceil(len(by_claim) / 2)])


def why_too_short(claims: Sequence[float], intervals: Sequence[float], cost_seconds: float) -> str | None:
    """Return a sentence where the claims leave out work; None where handing over and noise explain the difference."""
    hidden, claimed = hidden_seconds(claims, intervals), median(claims)
    if hidden <= COST_NOISE * cost_seconds + HIDDEN_SHARE * claimed + NOISE_SECONDS:
        return None
    return (
        f"Its rounds claim {duration(claimed)}, and by the clock of the process that judges them each took at least "
        f"{duration(hidden)} more, of which handing over values and outputs explains {duration(cost_seconds)}: work is "
        "done outside of its time."
    )


class AbandonedError(Exception):
    """The other side had an error, and waits for no verdict."""


@dataclass
class CaseBeforeJudge:
    """One case: memory that is shared, values, and what the other side claims."""

    asked: Json
    """Its name, layout and rounds, and what else the cost of handing a round over depends on."""
    seed: int
    link: JudgeLink
    waiting: Waiting
    descriptor: int = field(init=False)
    claims: list[float] = field(default_factory=list)
    intervals: list[float] = field(default_factory=list)
    _went: float | None = None
    _waited: float = 0.0
    _is_measured: bool = False
    _given: set[int] = field(default_factory=set)
    """Positions whose values were written."""

    def __post_init__(self) -> None:
        of_layout = self.asked["layout"]
        self.layout = layout = SharedLayout(**{**of_layout, "shape": tuple(of_layout["shape"])})
        size = layout.places[-1]
        self.descriptor = os.memfd_create("round", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        # Whoever made it shorter would end whoever reads it.
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        q, k, v, gradient, *self.outputs = layout.tensors(mmap(self.descriptor, size))
        self.shared = AttentionInputs(q, k, v, gradient)
        self._attach(self.shared)
        precision = PRECISIONS[layout.precision]
        self.check = AttentionCheck(self.shared.all, precision, has_backward=layout.has_backward)
        if self.asked["on_gpu"]:
            self.check.arithmetic = replace(self.check.arithmetic, sum_factor=TENSOR_CORE)
        self._rounds = Rounds(self._again, renew=self.shared.renew, check=lambda: self.check)
        self._rounds.renew_rest = self.shared.renew_gradient
        draws = Draws(self.seed, self.asked["name"])
        self.checked = CheckedRounds(self._rounds, CpuDevice(torch.device("cpu")), draws)

    @property
    def key(self) -> tuple[object, ...]:
        """What the cost of handing a round over depends on."""
        return self.layout, self.asked["on_gpu"], self.asked["cache"]

    def _attach(self, inputs: AttentionInputs) -> None:
        """Let the shared outputs be the gradients of these inputs, or the result of a round."""
        if self.layout.has_backward:
            for leaf, output in zip(inputs.all[:3], self.outputs, strict=False):
                leaf.grad = output

    def values(self, position: int, is_measured: bool) -> None:
        """Write the values of a round, all but the gradient of its output, and start the clock."""
        while position in self._given:  # or what was computed from them would be asked for again
            position += 2**32
        self._given.add(position)
        self._is_measured = is_measured
        self.checked.begin(position, is_measured=is_measured)
        self._go()

    def gradient(self) -> None:
        """Write it, if that is due, and start the clock again: the set-up, which came before, did not know it."""
        if self.layout.has_backward and self.shared.is_gradient_due:
            self.shared.renew_gradient()
            self._go()

    def _go(self) -> None:
        """Start the clock; the time of day, by which the kernel says when a message was sent."""
        self.waiting.until_asleep()
        self._waited, self._went = self.waiting(), time.time()

    def done(self, seconds: float) -> None:
        """Stop the clock, and keep a copy of what there is, if the round was drawn to be checked."""
        now = time.time() if self.link.sent_at is None else self.link.sent_at
        now -= self.waiting() - self._waited
        if self._went is None or not self._is_measured:
            return
        self.claims.append(seconds)
        self.intervals.append(now - self._went)
        self._went = None
        self._rounds.result = self._result
        self.checked.end()

    @property
    def _result(self) -> Tensor:
        return self.outputs[0]

    def cost_seconds(self) -> float:
        """Return what handing over one of these rounds takes."""
        beside = (interval - claim for claim, interval in zip(self.claims, self.intervals, strict=True))
        return max(0.0, median(beside))

    def verdict(self, cost_seconds: float) -> Json:
        """Hold the claims to the clock, then check rounds in tensors of this process alone."""
        try:
            if len(self.claims) != self.asked["rounds"]:
                raise SuspiciousError(f"The judge saw {len(self.claims)} rounds end, of {self.asked['rounds']}.")
            if why := why_too_short(self.claims, self.intervals, cost_seconds):
                self._look_again(why, cost_seconds)
            self._private = private = AttentionInputs(*(x.clone() for x in self.shared.all))
            self._attach(private)
            self.check.inputs, self._rounds.result = private.all, self._result
            self._rounds.renew, self._rounds.renew_rest = private.renew, private.renew_gradient
            return {"checked": self.checked.finish(median(self.claims)), "seed": self.seed}
        except IncorrectError as error:
            return {"incorrect": str(error)}
        except SuspiciousError as error:
            return {"suspicious": str(error)}
        except AssertionError as error:
            return {"error": str(error)}

    def _look_again(self, why: str, cost_seconds: float) -> None:
        """Raise SuspiciousError of `why` unless further rounds, which claim all of their time, are as fast.

        On a busy machine a few rounds may all be disturbed; what is honest now and was not would be slower now.
        """
        count, claimed = len(self.claims), median(self.claims)
        for _ in range(MOST_LOOKS_AGAIN):
            first = len(self.claims)
            for _ in range(FURTHER_ROUNDS):
                self.link.send({"further": len(self.claims)})
                self._answer_until_done()
            claims, intervals = self.claims[first:], self.intervals[first:]
            if min(claims) <= (1 + HIDDEN_SHARE) * claimed and not why_too_short(claims, intervals, cost_seconds):
                del self.claims[count:], self.intervals[count:]
                return
        raise SuspiciousError(why)

    def answer(self, message: Json) -> None:
        """Answer a question about a round."""
        match message:
            case {"ask": "values", "position": int(position), "is_measured": bool(is_measured)}:
                self.values(position, is_measured)
                self.link.send({})
            case {"ask": "gradient"}:
                self.gradient()
                self.link.send({})
            case {"ask": "done", "seconds": float(seconds)}:
                self.done(seconds)

    def _answer_until_done(self) -> None:
        while (message := self.link.receive()[0])["ask"] != "done":
            if message["ask"] == "nothing":
                raise AbandonedError
            self.answer(message)
        self.answer(message)

    def _again(self) -> Tensor:
        """Let the other side run a round on values that it had before; returns what it leaves."""
        for shared, private in zip(self.shared.all, self._private.all, strict=True):
            shared.copy_(private)
        self.link.send({"again": True})
        self._answer_until_done()
        return self._result

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)


def serve(link: JudgeLink, process_id: int) -> None:
    """Judge cases of a process until it is gone: none twice, and by costs that were learnt before `seal`."""
    torch.set_num_threads(1)  # threads that wait for more work would spin beside the rounds
    costs: dict[tuple[object, ...], float] = {}
    names: set[str] = set()
    typed: int | None = None
    is_sealed, case, waiting = False, None, Waiting(process_id)

    with suppress(ClosedError):
        while True:
            message, _ = link.receive()
            match message:
                case {"ask": "seed", "seed": int(seed)} if not is_sealed:
                    typed = seed
                case {"ask": "seal"}:
                    is_sealed = True
                case {"ask": "case", "name": name}:
                    if case is not None:  # which had an error
                        case.close()
                    case = CaseBeforeJudge(
                        message, drawn_seed() if typed is None or not is_sealed else typed, link, waiting
                    )
                    if is_sealed and (name in names or case.key not in costs):
                        link.send({"refused": f"{name} was judged before, or nothing is known of such rounds"})
                    else:
                        link.send({}, case.descriptor)
                    names |= {name} if is_sealed else set()
                case _ if case is None:
                    link.send({"refused": "no case has begun"})
                case {"ask": "cost"} if not is_sealed:
                    costs[case.key] = case.cost_seconds()
                    link.send({})
                case {"ask": "verdict"}:
                    with suppress(AbandonedError):
                        link.send(case.verdict(costs[case.key]))
                    case.close()
                    case = None
                case _:
                    case.answer(message)


def main() -> None:
    if hasattr(fcntl, "F_SETSIG"):  # Linux; a process that was forked may hold the other end open
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    serve(JudgeLink(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2]))


if __name__ == "__main__":
    main()
