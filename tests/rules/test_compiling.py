"""What torch.compile makes of a program is counted exactly, each break with its line, each recompile with its guard."""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.hardware.torch_private import (
    compiler_stops,
    forget_compiler_records,
    generated_kernels,
)
from perf_tests_suite.perf_tests.predict import compiling
from perf_tests_suite.perf_tests.predict.compiling import (
    Compilation,
    Program,
    breaks_of,
    compilation_of,
    compilation_or_reason,
    compile_seconds_or_reason,
    counted_call,
    why_nothing,
)
from perf_tests_suite.perf_tests.records.record import COMPILER_COUNTERS, Json

CASE = AttentionCase("attention_forward", 8, 4, 3, "fp32", "compiled", "cpu")
CPU = torch.device("cpu")
GROWN: list[int] = []

Function = Callable[[Tensor], Tensor]


def whole(x: Tensor) -> Tensor:
    return (x + 1).relu()


def reads_a_value(x: Tensor) -> Tensor:
    x = x * x.max().item()  # stops
    return x.relu()


def prints_and_branches(x: Tensor) -> Tensor:
    print("", end="")  # stops
    if x.sum() > 0:  # stops
        x = x + 1
    return x.relu()


def stops_seven_times(x: Tensor) -> Tensor:
    x = (x + 1) * int(x.max().item() > 0)  # stops
    print("", end="")  # stops
    if x.sum() > 0:  # stops
        x = x + 1
    print("", end="")  # stops
    x = x + int(x.min().item() > 0) + int(x.max().item() > 0)  # stops  # stops
    x = x.relu()
    os.getpid()  # stops
    return x.relu()


def helper(x: Tensor) -> Tensor:
    return x + int(x.max().item() > 0)  # stops  # stops


def calls_one_that_stops_twice(x: Tensor) -> Tensor:
    x = helper(x) + 1
    return helper(x) + 1


def stops_in_a_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x * x.max().item()  # stops
    return x


def grows_a_list(x: Tensor) -> Tensor:
    GROWN.append(1)
    return x + 1


@cache
def found_of(function: Function, case: AttentionCase = CASE, backend: Any = "eager") -> Compilation:
    run = torch.compile(function, dynamic=False, backend=backend)
    program = Program(
        lambda batch, tokens, number: run(torch.full((batch, tokens), number + 1.0)),
        None,
        (case.batch_size, case.sequence_length),
    )
    with compiling.quiet_compiler():
        return compilation_of(program, (Path(__file__).parent,))


def stops_in(function: Function) -> list[int]:
    lines, start = inspect.getsourcelines(function)
    return [start + place for place, line in enumerate(lines) for _ in range(line.count("# stops"))]


PLANTED: dict[Function, int] = {
    whole: 1,
    reads_a_value: 2,
    prints_and_branches: 2,
    stops_seven_times: 8,
    stops_in_a_loop: 0,
}
"""Functions, and the graphs of each."""


@pytest.mark.parametrize("function", PLANTED)
def test_breaks_are_counted_exactly_each_with_its_line(function: Function) -> None:
    found = found_of(function)
    assert [(one.file, one.line) for one in found.breaks] == [
        ("test_compiling.py", line) for line in stops_in(function)
    ]
    assert all("# stops" in one.code and one.reason for one in found.breaks)
    assert (found.graphs, found.counters["not_compiled"]) == (PLANTED[function], int(PLANTED[function] == 0))
    assert found.counters["graph_breaks"] == len(found.breaks)


def test_a_stop_in_a_function_counts_for_each_call_of_it_and_not_once_more_by_itself() -> None:
    assert [one.line for one in found_of(calls_one_that_stops_twice).breaks] == stops_in(helper)


def test_each_shape_of_a_training_that_compiles_again_is_told_with_its_guard() -> None:
    for function in (whole, prints_and_branches):
        again = found_of(function).recompiles or ()
        calls = {one.call: one.guard for one in again}
        assert [*calls] == ["a last batch of 2", "a context of 2"]
        assert "size mismatch at index 0. expected 3, actual 2" in calls["a last batch of 2"]
        assert all(one.file == "test_compiling.py" for one in again)
        assert len(again) == 2 * PLANTED[function]
    assert found_of(whole, replace(CASE, batch_size=1, sequence_length=1)).recompiles == ()


def test_a_list_that_grows_is_no_break_and_a_recompile_in_each_call() -> None:
    found = found_of(grows_a_list)
    assert (found.breaks, [one.call for one in found.recompiles or ()]) == (
        (), ["the same shape again", "a last batch of 2", "a context of 2"]
    )  # fmt: skip
    same_shape, *others = found.recompiles or ()
    assert "GROWN" in same_shape.guard
    assert all("GROWN" in one.guard or "size mismatch" in one.guard for one in others)  # torch 2.9 asks shapes first


def test_what_fails_in_another_shape_leaves_its_recompiles_unknown_and_says_why() -> None:
    def is_of_three(x: Tensor) -> Tensor:
        return x @ torch.ones(4, 4) if len(x) == 3 else x @ torch.ones(3, 3)

    def prints_too(x: Tensor) -> Tensor:
        print("", end="")
        return is_of_three(x)

    assert found_of(is_of_three).counters["shape_recompiles"] == 2  # it is refused before it runs
    found = found_of(prints_too)
    assert (found.recompiles, found.counters["shape_recompiles"], found.counters["graph_breaks"]) == (None, None, 1)
    assert "a last batch of 2 fails" in str(found.reason)


def test_reads_by_the_host_are_counted_in_the_program_as_it_is_written() -> None:
    reads = {function: found_of(function).host_reads for function in PLANTED}
    assert [*reads.values()] == [0, 1, 1, 4, 3]


def test_kernels_are_those_of_inductor_and_not_known_of_another_compiler() -> None:
    found = found_of(whole, backend="inductor")
    assert (found.generated_kernels, found.library_calls, found.reason) == (1, 0, None)
    before = generated_kernels()
    several = found_of(prints_and_branches, backend="inductor")
    assert (several.graphs, several.generated_kernels) == (2, generated_kernels() - before)  # none of recompiles
    assert several.recompiles == found_of(prints_and_branches).recompiles
    other = found_of(whole)
    assert (other.generated_kernels, other.library_calls) == (None, None)
    assert "another compiler" in str(other.reason)


def test_nothing_compiled_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_of(lambda x: x)
    assert (found.graphs, found.breaks) == (0, ())
    assert found.summary.startswith("nothing of it was compiled: ")
    assert "TORCHDYNAMO_DISABLE" not in why_nothing()
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    assert "TORCHDYNAMO_DISABLE is set" in why_nothing()


def test_a_case_has_counters_where_it_compiles_and_else_a_reason_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = torch.compile(ATTENTION["naive"].build(), dynamic=False, backend="eager")
    monkeypatch.setitem(ATTENTION, "compiled", replace(ATTENTION["compiled"], build=lambda: quick))
    found, reason = compilation_or_reason(CASE, CPU, seed=1)
    assert reason is None
    assert found is not None
    assert [*found.counters] == [*COMPILER_COUNTERS]
    assert (found.graphs, len(found.breaks), found.counters["shape_recompiles"]) == (1, 0, 2)
    as_data: Json = asdict(found)
    assert Compilation.of(as_data) == found
    assert compilation_or_reason(replace(CASE, attention="naive"), CPU, seed=1) == (None, None)
    assert "unknown until it is compiled" in str(compilation_or_reason(replace(CASE, device="cuda"), CPU, seed=1)[1])
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "needs a C++ compiler" in str(compilation_or_reason(CASE, CPU, seed=1)[1])


def test_a_call_of_the_users_is_counted_and_one_that_fails_says_how() -> None:
    grown: list[int] = []

    def grows(x: Tensor) -> Tensor:
        grown.append(1)
        return x * x.max().item()  # stops

    run = torch.compile(grows, backend="eager")
    found = counted_call(lambda: run(torch.ones(4)), (Path(__file__).parent,))
    expected = {"host_reads": 1, "graphs": 2, "not_compiled": 0, "graph_breaks": 1, "shape_recompiles": 1}
    assert found["counters"] == {**expected, "generated_kernels": None, "library_calls": None}
    made = Compilation.of(found["compilation"])
    assert [(one.file, one.line) for one in made.breaks] == [("test_compiling.py", line) for line in stops_in(grows)]
    failed = counted_call(lambda: 1 // 0, ())
    assert failed["counters"] is None
    assert str(failed["reason"]).startswith("it cannot be compiled: ZeroDivisionError: ")


def test_seconds_to_compile_are_by_part_those_of_the_first_calls_and_none_where_nothing_was_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter(range(100))
    monkeypatch.setattr(compiling, "time", Mock(perf_counter=lambda: next(moments) ** 2))
    monkeypatch.setattr(compiling, "_cpu_seconds", lambda: 3.0 * next(moments))
    device, backward = Mock(torch_device=CPU), replace(CASE, phase="attention_backward")

    def compiles_to(attention: Any) -> Any:
        monkeypatch.setitem(ATTENTION, "compiled", replace(ATTENTION["compiled"], build=lambda: attention))
        return compile_seconds_or_reason(backward, device, seed=1)

    quick = torch.compile(ATTENTION["naive"].build(), dynamic=False, backend="eager")
    # Each clock is read before and after each part.
    assert compiles_to(quick) == ({"forward": (4, 6.0), "backward": (20, 6.0), "": (24, 12.0)}, None)
    assert device.synchronize.call_count == 4
    seconds, reason = compiles_to(ATTENTION["naive"].build())
    assert (seconds, str(reason).startswith("nothing of it was compiled: ")) == (None, True)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "needs a C++ compiler" in str(compile_seconds_or_reason(backward, device, seed=1)[1])


def test_a_frame_that_was_given_up_counts_where_no_other_record_names_its_line() -> None:
    place = SimpleNamespace(filename="/m.py", lineno=7, colno=1)
    reason = SimpleNamespace(reason="it branches\nand more", user_stack=[place])
    frames = [
        SimpleNamespace(fail_type="Unsupported", fail_reason="in a loop", fail_user_frame_filename="/m.py",
                        fail_user_frame_lineno=line, recompile_reason=None) for line in (7, 9, 9)
    ]  # fmt: skip
    assert [(one.line, one.reason) for one in breaks_of([reason], frames, ())] == [(7, "it branches"), (9, "in a loop")]


def test_a_frame_that_torch_gives_up_without_a_record_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler_stops", lambda: ([], []))  # as torch 2.9 for a stop in a loop
    found = found_of.__wrapped__(stops_in_a_loop)
    assert ([one.line for one in found.breaks], found.graphs) == (stops_in(stops_in_a_loop), 0)
    assert "# stops" in found.summary


def test_a_refusal_that_names_no_guard_is_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = found_of(whole).recompiles
    as_in_2_9 = compiling._REFUSAL.pattern.replace("(?P<guard>", "no such text(?P<guard>")
    monkeypatch.setattr(compiling, "_REFUSAL", re.compile(as_in_2_9, re.DOTALL))
    assert expected
    assert found_of.__wrapped__(whole).recompiles == expected


def test_two_stops_in_a_line_are_two_where_torch_records_no_columns_and_compiled_no_frame_again() -> None:
    stop = SimpleNamespace(reason="it", user_stack=[SimpleNamespace(filename="/m.py", lineno=7, colno=None)])
    once, again = (SimpleNamespace(fail_type=None, fail_user_frame_filename=None, fail_user_frame_lineno=None,
                                   recompile_reason=reason) for reason in (None, "0/0: it grew"))  # fmt: skip
    assert [len(breaks_of([stop, stop], [frame], ())) for frame in (once, again)] == [2, 1]


def test_more_frames_are_kept_than_torch_keeps_by_default() -> None:
    forget_compiler_records()
    for _ in range(66):
        torch.compiler.reset()
        torch.compile(whole, backend="eager")(torch.ones(1))
    assert len(compiler_stops()[1]) == 66


MANY = "    x = x * int(x.max().item() > 0)\n"
FEW = "    x = x + torch.bincount(x.flatten().long()).float()[0]\n"


@pytest.mark.parametrize(("line", "stops"), [(MANY, 41), (FEW, 3)])
def test_a_change_that_removes_breaks_has_the_counts_that_its_author_took_by_hand(
    line: str, stops: int, tmp_path: Path
) -> None:
    """As isayevlab/aimnetcentral #109 counts its own: from 42 graphs and 41 breaks to 4 and 3."""
    (tmp_path / "stand_in.py").write_text(f"import torch\n\n\ndef run(x):\n{line * stops}    return x.relu()\n")
    scope: dict[str, Any] = {}
    exec(compile((tmp_path / "stand_in.py").read_text(), tmp_path / "stand_in.py", "exec"), scope)
    found = found_of(scope["run"])
    assert (found.graphs, [one.line for one in found.breaks]) == (stops + 1, [5 + place for place in range(stops)])
