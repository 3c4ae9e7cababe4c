"""This process's side of the judge: what starts it, shares memory with it, and hands it each round.

The judge (`perf_tests/bench/judge.py`) owns the values of the rounds, a clock, and the check. A round here asks for its
values, runs under its own clock, and leaves its outputs in memory that both share, with the time that it claims.
"""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import PAGESIZE, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import torch
from torch import Tensor

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests import IMPORTABLE
from perf_tests_suite.perf_tests.bench.models import AttentionInputs
from perf_tests_suite.perf_tests.bench.outcomes import SuspiciousError
from perf_tests_suite.perf_tests.bench.workers import ClosedError
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.hardware.clock import Clock, multiplied_dtype, tensor_dtype
from perf_tests_suite.perf_tests.hardware.device import CacheFlush, Device
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.attention import IncorrectError
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.bench.loop import Rounds

JUDGE = "perf_tests_suite.perf_tests.bench.judge"
_SO_TIMESTAMPNS = 35
"""The option of socket(7), and the kind of what it brings, which the module does not name."""
COST_ROUNDS = 12
"""Rounds of the suite's own, by which the judge knows what handing over values and outputs takes."""


class JudgeLink:
    """One end of the connection: a packet of JSON for each message, and at most one descriptor with it."""

    sent_at: float | None = None
    """The time of day at which the kernel took the last message that was received; None where it does not say."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def send(self, message: Json, *descriptors: int) -> None:
        """Send one message. Raises ClosedError, and OSError where this process has closed its own end."""
        try:
            socket.send_fds(self._end, [json.dumps(message).encode()], descriptors)
        except ConnectionError as error:
            raise ClosedError from error

    def receive(self) -> tuple[Json, int | None]:
        """Return the next message and its descriptor. Raises as `send`."""
        try:
            packet, more, _, _ = self._end.recvmsg(2**16, 2 * socket.CMSG_SPACE(16))
        except ConnectionError as error:
            raise ClosedError from error
        if not packet:
            raise ClosedError
        carried = {kind: data for _, kind, data in more}
        self.sent_at = descriptor = None
        if _SO_TIMESTAMPNS in carried:
            seconds, nanoseconds = struct.unpack("ll", carried[_SO_TIMESTAMPNS])
            self.sent_at = seconds + nanoseconds / 1e9
        if socket.SCM_RIGHTS in carried:
            (descriptor,) = struct.unpack("i", carried[socket.SCM_RIGHTS])
        return json.loads(packet), descriptor

    def close(self) -> None:
        self._end.close()


@dataclass(frozen=True)
class SharedLayout:
    """What is shared for a case: q, k, v and the output's gradient, then the output or the gradients of q, k and v."""

    shape: tuple[int, ...]
    precision: str
    has_backward: bool

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        precision = PRECISIONS[self.precision]
        given = tensor_dtype(precision)
        return (given,) * 4 + ((given,) * 3 if self.has_backward else (multiplied_dtype(precision),))

    @property
    def places(self) -> list[int]:
        """Offsets in bytes, and the size of all."""
        elements, places = torch.Size(self.shape).numel(), [0]
        for dtype in self.dtypes:
            places.append(-(-(places[-1] + elements * dtype.itemsize) // PAGESIZE) * PAGESIZE)
        return places

    def tensors(self, memory: mmap) -> list[Tensor]:
        """Return views of the memory: four inputs, then outputs."""
        elements = torch.Size(self.shape).numel()
        return [
            torch.frombuffer(memory, dtype=dtype, count=elements, offset=place).view(self.shape)
            for dtype, place in zip(self.dtypes, self.places, strict=False)
        ]


def why_no_judge() -> str | None:
    """Return a sentence where the system lacks what the judge needs; None where it has it."""
    if hasattr(os, "memfd_create") and hasattr(socket, "send_fds"):
        return None
    return (
        "Code of yours is judged by a process of its own, which shares memory by memfd_create, and this system has "
        "none; measure it on Linux."
    )


def start_judge() -> "Judge":
    """Start the process; call it before any code of the user's is imported."""
    # Neither the folder of this process nor its PYTHONPATH, which may hold the user's code, is the judge's.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    of_torch = (entry for entry in given if entry and (Path(entry) / "torch").is_dir())
    path = os.pathsep.join((str(IMPORTABLE), *of_torch))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", JUDGE, str(its.fileno()), str(os.getpid())],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sys.__stderr__ if sys.__stderr__ is not None else subprocess.DEVNULL,
            pass_fds=(its.fileno(),),
            process_group=0,  # Ctrl-C is for the suite
        )
    return Judge(JudgeLink(ours), process)


@dataclass
class Judge:
    """The judge as this process sees it. Every method ends the run with a sentence where the judge has died."""

    link: JudgeLink
    process: subprocess.Popen[bytes] | None = None
    """None where another ends it."""

    def tell(self, message: Json) -> None:
        try:
            self.link.send(message)
        except ClosedError:
            self._died()
        except OSError as error:
            raise _closed(error) from error

    def receive(self) -> tuple[Json, int | None]:
        try:
            return self.link.receive()
        except ClosedError:
            self._died()
        except OSError as error:
            raise _closed(error) from error

    def ask(self, message: Json) -> tuple[Json, int | None]:
        self.tell(message)
        return self.receive()

    def _died(self) -> NoReturn:
        pytest.exit(
            "The judge of your code's rounds, a process of its own, has ended, perhaps for want of memory; finished "
            "cases are kept. Add --resume to go on.",
            returncode=pytest.ExitCode.INTERNAL_ERROR,
        )

    def case(self, name: str, case: AttentionCase, device: Device, rounds: int) -> "JudgedCase":
        """Begin a case, of which memory for values and outputs is shared."""
        layout = SharedLayout(tuple(case.query_shape), case.precision, case.phase_row.has_backward)
        on_gpu = device.torch_device.type != "cpu"
        asked = {"name": name, "rounds": rounds, "on_gpu": on_gpu, "cache": case.cache}
        answer, descriptor = self.ask({"ask": "case", "layout": vars(layout), **asked})
        if descriptor is None:
            raise SuspiciousError(f"The judge refuses to begin the case: {answer.get('refused')}.")
        try:
            memory = mmap(descriptor, layout.places[-1])
        except OSError as error:
            raise MemoryError(f"no memory to share with the judge: {error}") from error
        finally:
            os.close(descriptor)
        return JudgedCase(self, layout, layout.tensors(memory), device, is_copied=on_gpu)

    def learn_cost(self, case: AttentionCase, device: Device, flush: CacheFlush | None) -> None:
        """Run rounds with next to no work, by which the judge learns what else lies between its looks at its clock.

        Only before `seal`, as code of the user's could make them slow.
        """
        judged = self.case("cost", case, device, COST_ROUNDS)
        inputs, clock, dtype = judged.inputs(), Clock(device), judged.outputs[0].dtype
        for position in range(-COST_ROUNDS // 2, COST_ROUNDS):
            inputs.forget_gradients()
            judged.begin(position, is_measured=position >= 0)
            inputs.renew()
            output = inputs.q_BTK + inputs.k_BTK + inputs.v_BTK
            inputs.renew_gradient()
            if flush is not None:
                flush()
            with clock.round():
                if judged.layout.has_backward:
                    output.backward(inputs.gradient_BTK)
                else:
                    output = inputs.v_BTK.to(dtype) * 1
            judged.end(clock.last_seconds, output)
        self.ask({"ask": "cost"})

    def seal(self) -> None:
        """Tell the judge that code of the user's runs from here on."""
        self.tell({"ask": "seal"})

    def close(self) -> None:
        self.link.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _closed(error: OSError) -> UserCodeError:
    return UserCodeError(f"Code of yours has closed descriptors of this process, the judge's among them: {error}.")


@dataclass
class JudgedCase:
    """A case's rounds, which the judge gives values and takes outputs of."""

    judge: Judge
    layout: SharedLayout
    shared: Sequence[Tensor]
    device: Device
    is_copied: bool
    """Whether the device has memory of its own, so that values and outputs are copied."""
    _own: "JudgedInputs | None" = None
    _next: Json = field(default_factory=dict)

    def rounds_of(self, rounds: "Rounds", clock: Clock, flush: CacheFlush | None = None) -> "JudgedRounds":
        return JudgedRounds(self, rounds, clock, flush)

    @property
    def outputs(self) -> Sequence[Tensor]:
        return self.shared[4:]

    def inputs(self) -> "JudgedInputs":
        """Return the tensors of the case: on a CPU the shared ones, else tensors of the device."""
        own = [x.to(self.device.torch_device, copy=True) if self.is_copied else x for x in self.shared[:4]]
        for leaf in own[:3]:
            leaf.requires_grad_()
        self._own = JudgedInputs(*own, judged=self)
        return self._own

    def begin(self, position: int, *, is_measured: bool) -> None:
        """Note of which round values are asked for next."""
        self._next = {"ask": "values", "position": position, "is_measured": is_measured}

    def ask_for_values(self) -> None:
        self.judge.ask(self._next)
        self.take_values(slice(3))

    def ask_for_gradient(self) -> None:
        self.judge.ask({"ask": "gradient"})
        self.take_values(slice(3, 4))

    @torch.no_grad()
    def take_values(self, which: slice = slice(4)) -> None:
        """Copy them where the device has memory of its own."""
        if self.is_copied and self._own is not None:
            for mine, shared in zip(self._own.all[which], self.shared[which], strict=False):
                mine.copy_(shared)
            self.device.synchronize()

    @torch.no_grad()
    def end(self, seconds: float, result: Any) -> None:
        """Leave the outputs, and the time that the round claims. Raises IncorrectError for what is no output."""
        assert self._own is not None
        gradients = (leaf.grad for leaf in self._own.all[:3])
        found = [*gradients] if self.layout.has_backward else [result]
        for place, one in zip(self.outputs, found, strict=True):
            if type(one) is not Tensor:
                what = "no tensor" if one is None else f"a {type(one).__name__}"
                raise IncorrectError(f"It leaves {what} instead of a plain tensor, whose work is done.")
            at = self.device.torch_device.type
            wanted, got = (tuple(place.shape), place.dtype, at), (tuple(one.shape), one.dtype, one.device.type)
            if wanted != got:
                raise IncorrectError(
                    f"It leaves a tensor of {' '.join(map(str, got))}, not {' '.join(map(str, wanted))}."
                )
            place.copy_(one)
        if self.is_copied:
            for place, one in zip(self.shared[:3], self._own.all[:3], strict=False):
                place.copy_(one)  # it may have been changed
        self.judge.tell({"ask": "done", "seconds": seconds})


@dataclass(frozen=True)
class JudgedInputs(AttentionInputs):
    """Tensors whose values come from the judge."""

    judged: JudgedCase = field(kw_only=True)

    def renew(self, generator: torch.Generator | None = None) -> None:
        self.judged.ask_for_values()
        self._of_gradient[:] = [torch.default_generator]  # due

    def renew_gradient(self) -> None:
        if self.is_gradient_due:
            self._of_gradient.clear()
            self.judged.ask_for_gradient()


@dataclass
class JudgedRounds:
    """Rounds that the judge decides on; `CheckedRounds` decide on others."""

    case: JudgedCase
    rounds: "Rounds"
    clock: Clock
    flush: CacheFlush | None = None
    keeps_this = True
    seed: int | None = None

    def begin(self, position: int, *, is_measured: bool) -> None:
        self.case.begin(position, is_measured=is_measured)
        assert self.rounds.renew is not None
        self.rounds.renew(torch.default_generator)

    def ready(self) -> None:
        """Nothing is looked at here."""

    def end(self) -> None:
        self.case.end(self.clock.last_seconds, self.rounds.result)

    def finish(self, round_seconds: float) -> Json:
        """Return what the judge has checked; raises IncorrectError, SuspiciousError or AssertionError by its word."""
        answer, _ = self.case.judge.ask({"ask": "verdict"})
        while "again" in answer or "further" in answer:
            try:
                self._run_one_more(answer.get("further"))
            except BaseException:
                self.case.judge.tell({"ask": "nothing"})
                raise
            answer, _ = self.case.judge.receive()
        self.seed = answer.get("seed")
        for name, kind in REFUSALS.items():
            if name in answer:
                raise kind(answer[name])
        checked: Json = answer["checked"]
        return checked

    def _run_one_more(self, position: int | None) -> None:
        """Run a round on values that are there again, or of a further position."""
        if position is None:
            self.case.take_values()
        else:
            self.begin(position, is_measured=True)
        self.rounds.prepare()
        if self.flush is not None:
            self.flush()
        with self.clock.round():
            self.rounds.run()
        self.end()


REFUSALS: dict[str, type[Exception]] = {
    "incorrect": IncorrectError, "suspicious": SuspiciousError, "error": AssertionError
}  # fmt: skip
