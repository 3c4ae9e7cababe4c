"""What torch.compile makes of a case: graphs, breaks with their lines, recompiles with their guards, kernels.

It is compiled once as it is timed, with weights and inputs of fixed seeds, then called as a training calls it: in the
same shape with other values, with a last batch that is one short, with half the context. The counts are those of one
version of torch.
"""

import linecache
import logging
import os
import re
import resource
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from perf_tests_suite.model.compilation import compiled, forget_compiled
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.devices import why_unsupported
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.bound import time
from perf_tests_suite.perf_tests.hardware.clock import tensor_dtype
from perf_tests_suite.perf_tests.hardware.device import Device, count_compilations
from perf_tests_suite.perf_tests.hardware.torch_private import (
    TorchDispatchMode,
    compiler_stops,
    first_stop,
    forget_compiler_records,
    load_code_generator,
    no_code_generation,
    operator,
)
from perf_tests_suite.perf_tests.records.record import Json, how_many
from perf_tests_suite.perf_tests.user_code.attention import attention_named
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError, guarded
from perf_tests_suite.perf_tests.user_code.model import build_model
from perf_tests_suite.perf_tests.user_code.named import SUITE
from perf_tests_suite.perf_tests.user_code.own_loss import OwnLossTraining

SWITCHES = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
"""Variables by which torch.compile does nothing."""
NOTHING = "nothing of it was compiled: "
T = TypeVar("T")

LONGEST_TEXT = 120
"""Characters of a reason, a guard or a line of code."""


@dataclass(frozen=True)
class GraphBreak:
    """A place at which Dynamo stopped, so that the graph ends there or nothing around it is compiled."""

    file: str
    line: int
    code: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.file}:{self.line} `{self.code}`: {self.reason}"


@dataclass(frozen=True)
class Recompile:
    """A function that was compiled again, and the guard that no graph of it passed."""

    call: str
    file: str
    line: int
    function: str
    guard: str

    @property
    def sentence(self) -> str:
        return f"{self.call}: {self.file}:{self.line} {self.function}: {self.guard}"


@dataclass(frozen=True)
class Compilation:
    """Exact on any machine with this torch; None where not known."""

    graphs: int
    breaks: tuple[GraphBreak, ...]
    """Each place of the call that meets it once, however often what it lies in is compiled."""
    recompiles: tuple[Recompile, ...] | None
    host_reads: int
    """Values that the host waits for in a forward pass, as `.item()` does."""
    generated_kernels: int | None = None
    library_calls: int | None = None
    reason: str | None = None
    """Why one of these is not known, or nothing was compiled."""

    @property
    def counters(self) -> dict[str, int | None]:
        """The counters by their names in a record."""
        return {
            "graphs": self.graphs,
            "not_compiled": int(self.graphs == 0),
            "graph_breaks": len(self.breaks),
            "shape_recompiles": None if self.recompiles is None else len(self.recompiles),
            "generated_kernels": self.generated_kernels,
            "library_calls": self.library_calls,
        }

    @property
    def lines(self) -> list[str]:
        """A sentence for each break and each recompile."""
        found: Sequence[GraphBreak | Recompile] = (*self.breaks, *(self.recompiles or ()))
        return [one.sentence for one in found]

    @property
    def summary(self) -> str:
        if self.graphs == 0:
            first = self.breaks[0].sentence if self.breaks else self.reason
            return f"{NOTHING}{first}"
        parts = [how_many(self.graphs, "graph"), how_many(len(self.breaks), "graph break")]
        parts += [] if self.recompiles is None else [how_many(len(self.recompiles), "recompile")]
        parts += [] if self.generated_kernels is None else [how_many(self.generated_kernels, "generated kernel")]
        return ", ".join(parts)

    @classmethod
    def of(cls, data: Json) -> Self:
        """The same out of `asdict`, as JSON gives it back."""
        again = data["recompiles"]
        return cls(**{
            **data, "breaks": tuple(GraphBreak(**one) for one in data["breaks"]),
            "recompiles": None if again is None else tuple(Recompile(**one) for one in again),
        })  # fmt: skip


Forward = Callable[[int, int, int], Tensor]
"""Runs a forward pass on so many sequences of so many tokens, of values by the number of the call."""


@dataclass(frozen=True)
class Program:
    """What of a case is compiled."""

    forward: Forward
    backward: Callable[[Tensor], None] | None
    """Its backward pass, from what the forward pass returned; None without one."""
    shape: tuple[int, int]
    """Sequences and tokens of the case."""


def program_of(case: Case, device: torch.device, seed: int, training: Training | None = None) -> Program:
    """Build what the case runs, or take its `training` with the weights of the seed. Raises UserCodeError."""
    precision = PRECISIONS[case.precision]
    precision.apply()
    torch.manual_seed(seed)
    if isinstance(case, AttentionCase):
        attention, dtype = attention_named(case.attention).build(), tensor_dtype(precision)

        def attend(batch: int, tokens: int, number: int) -> Tensor:
            generator, shape = torch.Generator().manual_seed(number), (batch, tokens, case.head_dim)
            qkv = (torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for _ in range(3))
            with precision.autocast(device):
                return attention(*qkv)

        shape = (case.batch_size, case.sequence_length)
        if not case.phase_row.has_backward:
            return Program(attend, None, shape)
        return Program(attend, lambda output: output.backward(torch.ones_like(output)), shape)
    assert isinstance(case, LanguageModelCase)
    of_case = training or _training_of(case, device)

    def forward(batch: int, tokens: int, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(number)
        tokens_BT = torch.randint(case.config.vocab_size, (batch, tokens), generator=generator).to(device)
        if isinstance(of_case, OwnLossTraining):
            of_case.targets_BT = tokens_BT
        with nullcontext() if case.phase_row.records_graph else torch.no_grad():
            return of_case.forward(tokens_BT)

    def backward(output: Tensor) -> None:
        targets_BT = torch.zeros(case.batch_size, case.context_length, dtype=torch.int64, device=device)
        of_case.backward(of_case.loss(output, targets_BT))
        of_case.clear_gradients()

    shape = (case.batch_size, case.context_length)
    return Program(forward, backward if case.phase_row.has_backward else None, shape)


def _training_of(case: LanguageModelCase, device: torch.device) -> Training:
    with device:
        model: nn.Module
        if case.user_model is None:
            model = TransformerLM(case.config, attention_named(case.attention).build(), case.checkpoint)
        else:
            model = build_model(case.user_model, case.config).to(device)
    model = model if case.execution == "eager" else compiled(model)
    kind = OwnLossTraining if case.computes_loss else Training
    return kind(model, PRECISIONS[case.precision], device)


def compilation_or_reason(
    case: Case, device: torch.device, seed: int, roots: Sequence[Path] = ()
) -> tuple[Compilation | None, str | None]:
    """Build the case and compile it; or None and one sentence why not, None of a case without torch.compile.

    Files are named from the first of `roots` that has them.
    """
    if case.ranks is not None:
        return None, None
    found, reason = _or_reason(case, device, lambda: compilation_of(program_of(case, device, seed), roots))
    return (found if found and (found.graphs or case.is_compiled) else None), reason


def _or_reason(case: Case, device: torch.device, compiles: Callable[[], T]) -> tuple[T | None, str | None]:
    """What `compiles` returns, or None and one sentence why it cannot."""
    if reason := why_unsupported(case, device):
        return None, reason
    if device.type != case.device:
        return None, f"what {case.device} code a compiler generates is unknown until it is compiled on such a device."
    try:
        with guarded("it cannot be compiled") if case.user_code else nullcontext(), quiet_compiler():
            return compiles(), None
    except UserCodeError as error:
        return None, str(error)
    except Exception as error:
        return None, f"it cannot be compiled: {type(error).__name__}: {first_line(str(error))}"
    finally:
        forget_compiled()


def counted_call(call: Callable[[], Any], roots: Sequence[Path]) -> Json:
    """Counters of a call of the user's that compiles, and its `compilation`; null with a `reason` where it fails."""
    try:
        with quiet_compiler():
            found = compilation_of(Program(lambda *_: call(), None, (1, 1)), roots)
    except Exception as error:
        why = f"it cannot be compiled: {type(error).__name__}: {first_line(str(error))}"
        return {"counters": None, "reason": why}
    return {"counters": {"host_reads": found.host_reads, **found.counters}, "reason": "", "compilation": asdict(found)}


Seconds = dict[str, tuple[float, float | None]]
"""Wall and CPU seconds by the part that compiled, and of "", the whole, with those of processes that it waited for; no
CPU time on a GPU, where a thread spins."""


def compile_seconds_or_reason(case: Case, device: Device, seed: int) -> tuple[Seconds | None, str | None]:
    """The seconds of the first calls of a fresh process, which compile; or None and one sentence why there are none."""
    seconds, reason = _or_reason(case, device.torch_device, lambda: _compile_seconds(case, device, seed))
    return seconds or None, reason if seconds is None else None if seconds else f"{NOTHING}{why_nothing()}"


def _compile_seconds(case: Case, device: Device, seed: int) -> Seconds:
    load_code_generator()
    program, found = program_of(case, device.torch_device, seed), Seconds()
    output: list[Tensor] = []
    parts: dict[str, Callable[[], None]] = {"forward": lambda: output.append(program.forward(*program.shape, 0))}
    if (backward := program.backward) is not None:
        parts["backward"] = lambda: backward(output.pop())
    before = _begin()
    for part, run in parts.items():
        device.synchronize()
        wall, cpu = time.perf_counter(), _cpu_seconds()
        run()
        device.synchronize()
        wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
        found[part] = round(wall, 9), None if case.device == "cuda" else round(cpu, 9)
    if not (count_compilations() - before)["graphs"]:
        return {}
    of_wall, of_cpu = zip(*found.values(), strict=True)
    return {**found, "": (sum(of_wall), None if None in of_cpu else sum(of_cpu))}


def _cpu_seconds() -> float:
    used = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


class _Reads(TorchDispatchMode):
    """Counts values that the host reads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is operator("_local_scalar_dense").default
        return func(*args, **(kwargs or {}))


def compilation_of(program: Program, roots: Sequence[Path] = ()) -> Compilation:
    """Compile the program as it is timed, then run it as a training may. Raises what it raises in its own shape."""
    batch, tokens = program.shape
    load_code_generator()
    before = _begin()
    output = program.forward(batch, tokens, 0)
    if program.backward is not None:
        program.backward(output)
    del output
    compilations, (reasons, frames) = count_compilations() - before, compiler_stops()
    breaks, first = breaks_of(reasons, frames, roots), list(recompiles_of("the first call", frames, roots))
    calls = {"the same shape again": (batch, tokens)}
    calls |= {f"a last batch of {batch - 1}": (batch - 1, tokens)} if batch > 1 else {}
    calls |= {f"a context of {tokens // 2}": (batch, tokens // 2)} if tokens > 1 else {}
    graphs, again = compilations["graphs"], None
    if not graphs and not breaks and switched_off() is None:
        _begin()
        stop = first_stop(lambda: program.forward(batch, tokens, 0))
        breaks = [] if stop is None else [_break_at(stop[1][-1].filename, stop[1][-1].lineno, stop[0], roots)]
    reason: str | None = None if graphs else why_nothing()
    if graphs:
        traced = partial(_traced_again, is_beside=bool(compilations["generated_kernels"]))
        of_calls = _refused if graphs == 1 and not (breaks or first) else traced
        try:
            again = (*first, *of_calls(program.forward, program.shape, calls, roots))
            if any(not one.guard for one in again):  # torch 2.9 refuses without naming the guard
                asked = [{one.call: calls[one.call]} for one in again]  # each beside the first graph alone, as refused
                again = tuple(
                    found for call in asked for found in _traced_again(program.forward, program.shape, call, roots)
                )
        except _ShapeError as error:
            reason = str(error)
    forget_compiled()
    with torch.compiler.set_stance("force_eager"), _Reads() as reads:
        program.forward(batch, tokens, 0)
    kernels, library = compilations["generated_kernels"], compilations["library_calls"]
    if graphs and not kernels + library:
        reason = reason or "its graphs went to another compiler than Inductor, or to none."
        return Compilation(graphs, tuple(breaks), again, reads.count, reason=reason)
    return Compilation(graphs, tuple(breaks), again, reads.count, kernels, library, reason)


def _begin() -> Counter[str]:
    forget_compiled()
    forget_compiler_records()
    return count_compilations()


Calls = Mapping[str, tuple[int, int]]
"""Sequences and tokens of each further call, by its words."""

_REFUSAL = re.compile(
    r"fail_on_recompile.*?filename: '(?P<file>.*?)', function name: '(?P<function>.*?)', line number: (?P<line>\d+)"
    r"(?:.*?- \d+/\d+: (?P<guard>[^\n]*))?",
    re.DOTALL,
)
"""What torch says of a frame that it may not compile again; the newest graph's guard comes first."""


class _ShapeError(Exception):
    """The program fails in a shape that is not its own."""

    def __init__(self, call: str, error: Exception) -> None:
        super().__init__(f"{call} fails: {type(error).__name__}: {first_line(str(error))}")


def _refused(forward: Forward, first: tuple[int, int], calls: Calls, roots: Sequence[Path]) -> Iterator[Recompile]:
    """The recompiles of a single graph, of which none is made: torch refuses each, and names the guard."""
    for number, (call, shape) in enumerate(calls.items(), 1):
        try:
            with torch.compiler.set_stance("fail_on_recompile"):
                forward(*shape, number)
        except Exception as error:
            found = _REFUSAL.search(str(error))
            if found is None:
                raise _ShapeError(call, error) from error
            file, guard = named_from(found["file"], roots), first_line(found["guard"] or "")
            yield Recompile(call, file, int(found["line"]), found["function"], guard)


def _traced_again(
    forward: Forward, first: tuple[int, int], calls: Calls, roots: Sequence[Path], is_beside: bool = False
) -> Iterator[Recompile]:
    """The recompiles of several graphs: Dynamo traces all calls once more, without generating code.

    Beside what Inductor has compiled, the first call needs no tracing.
    """
    if not is_beside:
        _begin()
    for number, (call, shape) in enumerate({"": first, **calls}.items()):
        if is_beside and not call:
            continue
        forget_compiler_records()
        try:
            with no_code_generation() if is_beside else torch.compiler.set_stance("default", force_backend="eager"):
                forward(*shape, number)
        except Exception as error:
            raise _ShapeError(call, error) from error
        if call:
            yield from recompiles_of(call, compiler_stops()[1], roots)


def switched_off() -> str | None:
    """The variable that is set and turns torch.compile off."""
    return next((name for name in SWITCHES if os.environ.get(name, "0") not in ("", "0")), None)


def why_nothing() -> str:
    """Say why nothing was compiled where no frame was given up."""
    switch = switched_off()
    if switch is not None:
        return f"{switch} is set, which turns torch.compile off."
    return "Dynamo met nothing that it may compile, as under torch.compiler.disable."


def breaks_of(reasons: Iterable[Any], frames: Iterable[Any], roots: Sequence[Path]) -> list[GraphBreak]:
    """The places at which Dynamo stopped, by torch's records.

    A function that is called from a frame is traced in it, then by itself, so that one stop is recorded with the whole
    stack and once more without its callers: the shorter stack is the end of the longer one. Torch before 2.12 records
    no columns, so that two stops in a line look like one: they are two unless a frame was compiled again.
    """
    frames, found = [*frames], dict[tuple[tuple[str, int, Any], ...], str]()
    is_once = not any(frame.recompile_reason for frame in frames)
    for one in reasons:
        stack = tuple((frame.filename, frame.lineno, getattr(frame, "colno", None)) for frame in one.user_stack)
        if is_once and stack in found and stack[-1][2] is None:
            stack = (*stack[:-1], (*stack[-1][:2], f"number {len(found)}"))
        if stack:
            found.setdefault(stack, one.reason)
    alone = {stack: reason for stack, reason in found.items() if not any(
        len(other) > len(stack) and other[-len(stack) :] == stack for other in found)}  # fmt: skip
    known = {(stack[-1][0], stack[-1][1]) for stack in alone}
    for frame in frames:
        place = (frame.fail_user_frame_filename, frame.fail_user_frame_lineno)
        if frame.fail_type is not None and None not in place and place not in known:
            known.add(place)
            alone[((*place, None),)] = frame.fail_reason or frame.fail_type
    return [_break_at(*stack[-1][:2], reason, roots) for stack, reason in alone.items()]


def _break_at(file: str, line: int, reason: str, roots: Sequence[Path]) -> GraphBreak:
    return GraphBreak(named_from(file, roots), line, code_at(file, line), first_line(reason))


def recompiles_of(call: str, frames: Iterable[Any], roots: Sequence[Path]) -> Iterator[Recompile]:
    """The frames that were compiled again; a guard is written as `0/0: what it says`, with the frame's number."""
    for one in frames:
        if one.recompile_reason:
            guard = first_line(one.recompile_reason).partition(": ")[2] or first_line(one.recompile_reason)
            file, line = named_from(one.co_filename or "", roots), one.co_firstlineno or 0
            yield Recompile(call, file, line, one.co_name or "", guard)


def first_line(text: str) -> str:
    """The first line that says something, without runs of blanks."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 4]} ..."


def code_at(file: str, line: int) -> str:
    return first_line(linecache.getline(file, line))


def named_from(file: str, roots: Sequence[Path]) -> str:
    """The path in the repository or the package that it is of."""
    path = Path(file)
    root = next((root for root in (*roots, SUITE) if path.is_relative_to(root) and "site-packages" not in file), None)
    return file.rpartition("site-packages/")[2] if root is None else str(path.relative_to(root))


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Let torch say nothing inside of what it has said of the timed rounds, or is told here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def as_json(found: Compilation) -> Json:
    return asdict(found)
