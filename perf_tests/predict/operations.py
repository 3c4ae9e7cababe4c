"""What a case issues, operation by operation: its cost, and the line of the repository that called it.

The line of an operation is the innermost one of the repository on the stack. A backward operation has that of the
forward operation whose autograd node it runs; what a module or an optimizer of torch runs also has the line that built
it. A value that is read back is 0 (`all` is True, `any` False), and is an operation of its own."""

import inspect
import json
import linecache
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import optimizer_that_runs
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.clock import tensor_dtype
from perf_tests_suite.perf_tests.hardware.limits import KernelCost
from perf_tests_suite.perf_tests.hardware.torch_private import (
    autograd_file,
    backward_number,
    code_of_module_calls,
    forward_number,
)
from perf_tests_suite.perf_tests.phases import FULL_STEP
from perf_tests_suite.perf_tests.predict.compiling import Compilation
from perf_tests_suite.perf_tests.predict.counters import NotCountedError
from perf_tests_suite.perf_tests.predict.counting import Counting
from perf_tests_suite.perf_tests.predict.fake_run import HOST, fake_run, fake_training
from perf_tests_suite.perf_tests.predict.parts import INPUTS, PARAMETERS
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.attention import FAKE_RUN, attention_named
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError, guarded
from perf_tests_suite.perf_tests.user_code.named import SUITE, is_installed, why_not_there
from perf_tests_suite.perf_tests.user_code.optimizer import put_into

LONGEST_CODE = 80
"""Characters of an expression that are kept."""

MEASURING = "perf_tests/"
"""Its frames are on every stack, and no line of theirs is of the program."""


@dataclass(frozen=True)
class Place:
    """An expression: `model/attention.py`, its first and last line, its text, and the lines of its function."""

    file: str
    line: int
    end_line: int
    code: str
    function: tuple[int, int]


@dataclass(frozen=True)
class Operation:
    """One operation that launches kernels, or by which the host waits for a value."""

    part: str
    """`forward`, `loss`, `backward`, `optimizer`; `step` after the last of a full step; `attention_forward`."""
    is_timed: bool
    cost: KernelCost
    """Its bytes and FLOPs are of all launches."""
    tensors: str
    """`f32[4, 8] f32[8] -> f32[4, 8]`."""
    stack: tuple[Place, ...]
    """Lines of the repository, innermost first, then those that built modules and optimizers."""
    launches: int
    saved_bytes: int
    """What autograd keeps of its results for the backward pass."""
    sources: tuple[int, ...]
    """Numbers of the operations that made its inputs."""

    @property
    def reads(self) -> int:
        """1 where the host reads a value back and waits for it."""
        return int(self.cost.name == "aten._local_scalar_dense")


@dataclass(frozen=True)
class FakeRound:
    """One measured round of a case, set-up included."""

    operations: tuple[Operation, ...]
    peak_bytes: int
    """Everything resident included."""


def fake_round(case: Case, tree: Path = SUITE) -> FakeRound:
    """The second round of a case, whose first has made what is made once; lines are of files in `tree` and the suite.

    Raises NotCountedError with one sentence for a case that cannot be run on fake tensors.
    """
    reason = case.why_not_counted
    if reason is not None:
        raise NotCountedError(reason)
    what = f"{' with '.join(case.user_code) or 'the model'} cannot be run on fake tensors"
    try:
        with guarded(what), fake_run(case.device, case.precision, Recording) as recording:
            assert isinstance(recording, Recording)
            recording.roots = tuple(dict.fromkeys((tree, SUITE)))
            with recording.birthplaces():
                if isinstance(case, LanguageModelCase):
                    one_round = _training_round(case, recording)
                else:
                    assert isinstance(case, AttentionCase), "no collective is counted"
                    one_round = _attention_round(case, recording)
                one_round()
                recording.begin()
                one_round()
            return recording.ended()
    except UserCodeError as error:
        raise NotCountedError(str(error)) from error


def _attention_round(case: AttentionCase, recording: "Recording") -> Callable[[], None]:
    dtype = tensor_dtype(PRECISIONS[case.precision])
    leaves = [torch.zeros(case.query_shape, dtype=dtype).requires_grad_() for _ in range(3)]
    gradient = torch.zeros(case.query_shape, dtype=dtype)
    recording.claim(INPUTS)
    attention = attention_named(case.attention, FAKE_RUN).build()

    def one_round() -> None:
        for leaf in leaves:
            leaf.grad = None
        with recording.timed("attention_forward", case), PRECISIONS[case.precision].autocast(HOST):
            output = attention(*leaves)
        if case.phase_row.has_backward:
            cast_gradient = gradient.to(output.dtype)
            with recording.timed("attention_backward", case):
                output.backward(cast_gradient)

    return one_round


def _training_round(case: LanguageModelCase, recording: "Recording") -> Callable[[], None]:
    own, row = case.user_optimizer, case.phase_row
    optimizer = case.optimizer if own is None and case.optimizer else "default"
    implementation = optimizer_that_runs(optimizer, torch.device(case.device)) if row.trains else "loop"
    training = fake_training(case, implementation)
    if own is not None:
        put_into(own, training, training.model)
    training.zero_grad = case.zero_grad
    recording.claim(PARAMETERS)
    shape = (case.batch_size, case.context_length)
    tokens_BT, targets_BT = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
    recording.claim(INPUTS)
    if case.updates:
        training.create_optimizer_state()

    def one_round() -> None:
        if case.phase == FULL_STEP:
            with recording.timed("step", case, is_timed=True):
                training.step(tokens_BT, targets_BT, recording.mark)
            return
        training.clear_gradients()
        if not row.records_graph:
            with recording.timed("inference", case), torch.no_grad():
                training.forward(tokens_BT)
            return
        with recording.timed("forward", case):
            logits_BTV = training.forward(tokens_BT)
        if "loss" in row.parts:
            with recording.timed("loss", case):
                loss = training.loss(logits_BTV, targets_BT)
        if not row.holds_logits:
            del logits_BTV
        if row.has_backward:
            with recording.timed("backward", case):
                training.backward(loss)
        if row.trains:
            with recording.timed("optimizer", case):
                training.update()

    return one_round


class Recording(Counting):
    """Counts as its base does, and lists each operation from `begin` on."""

    roots: tuple[Path, ...] = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._operations: list[Operation] = []
        self._saved: dict[int, int] = {}
        self._is_on = False
        self._part, self._is_timed = "", True
        self._marked = 0
        self._made: dict[int, tuple[object, int]] = {}
        """The number of the operation that made a block, and the block, so that its id stays its own."""
        self._of_node: dict[int, tuple[Place, ...]] = {}
        self._stack_now: tuple[Place, ...] = ()
        self._newest_stack: tuple[Place, ...] = ()
        self._built: dict[int, tuple[Place, ...]] = {}
        self._stepping: list[int] = []

    def begin(self) -> None:
        """List what follows."""
        self._is_on = True

    def ended(self) -> FakeRound:
        """What was listed."""
        operations = tuple(
            replace(one, saved_bytes=self._saved.get(place, 0)) for place, one in enumerate(self._operations)
        )
        peak = max((part.peak_bytes for part in self.finished().values()), default=0)
        return FakeRound(operations, peak)

    @contextmanager
    def timed(self, name: str, case: Case, is_timed: bool | None = None) -> Iterator[None]:
        """Run a part of the round inside."""
        self._part = name
        self._is_timed = name.removeprefix("attention_") in case.phase_row.timed if is_timed is None else is_timed
        self._marked = len(self._operations)
        with self.part(name):
            yield

    def mark(self, part: str) -> None:
        """Call what was issued since the last mark by the name of its part."""
        self._operations[self._marked :] = [replace(one, part=part) for one in self._operations[self._marked :]]
        self._marked = len(self._operations)

    @contextmanager
    def birthplaces(self) -> Iterator[None]:
        """Note where modules and optimizers are built inside, and which optimizer steps. Torch has no hook on these."""
        originals = {kind: kind.__init__ for kind in (nn.Module, Optimizer)}

        def noting(original: Callable[..., None]) -> Callable[..., None]:
            def init(built: object, *arguments: Any, **named: Any) -> None:
                self._built[id(built)] = tuple(place for _, place in self._frames() if place is not None)
                original(built, *arguments, **named)

            return init

        handles = (
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._stepping.append(id(optimizer))),
            register_optimizer_step_post_hook(lambda *_: self._stepping.clear()),
        )
        try:
            for kind, original in originals.items():
                kind.__init__ = noting(original)  # type: ignore[method-assign]
            yield
        finally:
            for kind, original in originals.items():
                kind.__init__ = original  # type: ignore[method-assign]
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._stack_now = tuple(self._running()) if self._is_on else ()
        if self._is_on and backward_number() is None:
            self._of_node.setdefault(forward_number(), self._stack_now)  # a view's backward may launch too
        return super().__torch_dispatch__(func, types, args, kwargs)

    def note(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], cost: KernelCost, launches: int) -> None:
        if not self._is_on:
            return
        stack = self._newest_stack = self._stack_now
        number = len(self._operations)
        known = (self._made.get(id(self.tracker.block_of(one))) for one in inputs if self.tracker.knows(one))
        sources = tuple(sorted({made[1] for made in known if made is not None}))
        for tensor in outputs:
            block = self.tracker.block_of(tensor)
            self._made[id(block)] = block, number
        tensors = f"{_listed(inputs)} -> {_listed(outputs)}"
        self._operations.append(Operation(self._part, self._is_timed, cost, tensors, stack, launches, 0, sources))

    def _note_saved(self, tensor: Tensor) -> Tensor:
        before = self._current.saved_bytes
        detached = super()._note_saved(tensor)
        _, number = self._made.get(id(self.tracker.block_of(detached)), (None, -1))
        if number >= 0 and self._current.saved_bytes > before:
            self._saved[number] = self._saved.get(number, 0) + self._current.saved_bytes - before
        return detached

    def _running(self) -> Iterator[Place]:
        """Lines that run now, innermost first, and of a node's backward those of its forward operation."""
        found: list[Place] = []
        builders = [*self._stepping]
        for frame, place in self._frames():
            if frame.f_code.co_filename == autograd_file():
                number = backward_number()
                of_node = self._newest_stack if number is None else self._of_node.get(number, ())
                yield from (*found, *of_node)
                return
            if frame.f_code is code_of_module_calls():
                builders.append(id(frame.f_locals["self"]))
            if place is not None:
                found.append(place)
        yield from found
        yield from dict.fromkeys(place for builder in builders for place in self._built.get(builder, ()))

    def _frames(self) -> Iterator[tuple[FrameType, Place | None]]:
        for frame, line in walk_stack(inspect.currentframe()):
            yield frame, _place(frame.f_code, frame.f_lasti, line, self.roots)


@cache
def _place(code: CodeType, instruction: int, line: int, roots: tuple[Path, ...]) -> Place | None:
    """The expression that an instruction of a repository's file belongs to; None in other files."""
    file = code.co_filename
    root = next((root for root in roots if file.startswith(f"{root}/")), None)
    if root is None or is_installed(Path(file)):
        return None
    name = file.removeprefix(f"{root}/")
    if root == SUITE and name.startswith(MEASURING):
        return None
    positions = next(islice(code.co_positions(), instruction // 2, None), (line, line, None, None))
    first, last = positions[0] or line, positions[1] or positions[0] or line
    lines = [linecache.getline(file, number).rstrip("\n") for number in range(first, last + 1)]
    begin, end = positions[2:]
    if begin is not None and end is not None:  # bytes of UTF-8
        lines[-1] = lines[-1].encode()[:end].decode(errors="replace")
        lines[0] = lines[0].encode()[begin:].decode(errors="replace")
    text = " ".join(" ".join(lines).split())
    ends = code.co_firstlineno, max(number for _, _, number in code.co_lines() if number is not None)
    return Place(name, first, last, text if len(text) <= LONGEST_CODE else f"{text[: LONGEST_CODE - 4]} ...", ends)


_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def _listed(tensors: Sequence[Tensor]) -> str:
    """`f32[4, 8] f32[8] x 3`, in order of appearance."""
    counts = Counter(map(_shown, tensors))
    return " ".join(shown if count == 1 else f"{shown} x {count}" for shown, count in counts.items())


def _shown(tensor: Tensor) -> str:
    """`f32[4, 8]`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    letters = dtype.rstrip("0123456789")
    return f"{_SHORT.get(letters, letters)}{dtype[len(letters) :]}{list(tensor.shape)}"


# A side: cases to a process in its tree, operations back, both as JSON.


def sent_case(case: Case) -> Json:
    """A case as plain JSON. Raises ValueError for one on several ranks."""
    if case.sharing is not None or not isinstance(case, LanguageModelCase | AttentionCase):
        raise ValueError("a case on several ranks is not run on fake tensors")
    return {"family": type(case).__name__, "fields": asdict(case)}


def received_case(sent: Json) -> Case:
    """The case as this tree builds it; raises NotCountedError with what it lacks."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in sent["fields"].items()
    }
    if sent["family"] == AttentionCase.__name__:
        case: Case = AttentionCase(**fields)
    else:
        try:
            config = ModelConfig(**fields.pop("config"))
        except TypeError as error:
            raise NotCountedError(f"its model/ knows no such shape: {error}") from error
        case = LanguageModelCase(config=config, **fields)
    for name in case.user_code:
        if (reason := why_not_there(name)) is not None:
            raise NotCountedError(reason)
    if case.user_attention is None and case.attention not in (*ATTENTION, "own"):
        raise NotCountedError(f"it has no attention {case.attention!r}")
    return case


@dataclass(frozen=True)
class SideToRun:
    """The place of a side's code, the process that runs it, and what is measured, as sent to a gate's worker."""

    tree: Path
    folder: Path
    environment: Mapping[str, str]
    repository: Json


def run_side(side: SideToRun, cases: Sequence[Json]) -> list[Any]:
    """Run the cases on fake tensors, as `sent_case` gives them, in a process of the side's own.

    Returns the fake round of each, of a compiled one its `Compilation`, or the reason why there is none.
    """
    command = [sys.executable, "-m", "perf_tests_suite.perf_tests.predict.side"]
    task = {"tree": str(side.tree), "repository": side.repository, "cases": cases}
    ended = subprocess.run(
        command, cwd=side.folder, env=dict(side.environment), input=json.dumps(task), capture_output=True, text=True,
        errors="replace",
    )  # fmt: skip
    try:
        answers = json.loads(ended.stdout)
    except ValueError:
        lines = [line for line in ended.stderr.splitlines() if line.strip()] or [f"it exited with {ended.returncode}"]
        reason = f"it cannot be imported, or run on fake tensors: {lines[-1].strip().rstrip('.')}"
        return [reason] * len(cases)
    return [
        answer if isinstance(answer, str)
        else Compilation.of(answer["compilation"]) if "compilation" in answer
        else _fake_round_from(answer)
        for answer in answers
    ]  # fmt: skip


def json_of(one_round: FakeRound) -> Json:
    """Each stack once: a step has thousands of operations."""
    stacks: dict[tuple[Place, ...], int] = {}
    operations = [
        {**vars(one), "cost": vars(one.cost), "stack": stacks.setdefault(one.stack, len(stacks))}
        for one in one_round.operations
    ]
    shown = [[vars(place) for place in stack] for stack in stacks]
    return {"operations": operations, "stacks": shown, "peak_bytes": one_round.peak_bytes}


def _fake_round_from(data: Json) -> FakeRound:
    stacks = [
        tuple(Place(**{**place, "function": tuple(place["function"])}) for place in stack) for stack in data["stacks"]
    ]
    return FakeRound(
        tuple(
            Operation(**{
                **one, "cost": KernelCost(**one["cost"]), "stack": stacks[one["stack"]],
                "sources": tuple(one["sources"]),
            })
            for one in data["operations"]
        ),
        data["peak_bytes"],
    )  # fmt: skip
