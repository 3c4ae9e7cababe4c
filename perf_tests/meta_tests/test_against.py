"""What the gate is asked for: its default selection, and base under another option of the same revision."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from perf_tests.bench.against import OtherOption
from perf_tests.bench.progress import Line
from perf_tests.options import Settings, read_settings
from perf_tests.run.gate import GateWatch


def settings(**typed: str) -> Settings:
    """What these options come to on a CPU."""
    options = {f"--{name.replace('_', '-')}": value for name, value in {"device": "cpu", **typed}.items()}
    return read_settings(cast(pytest.Config, SimpleNamespace(getoption=options.get)))


def test_a_gate_on_a_cpu_measures_a_small_model_of_two_layers_unless_told_otherwise() -> None:
    assert settings().sizes == ("small",)
    assert settings(against="main").sizes == ("small-2layers",)
    assert settings(against_option="attention=sdpa").sizes == ("small-2layers",)
    assert settings(against="main", size="small").sizes == ("small",)


def test_a_gate_measures_the_same_grid_of_attention_alone_as_any_run() -> None:
    plain, gate = settings(), settings(against="main")
    assert gate.head_dims == plain.head_dims
    assert gate.sequence_lengths == plain.sequence_lengths
    assert gate.attention_alone_implementations == plain.attention_alone_implementations


def test_the_sizes_apart_are_no_part_of_all() -> None:
    assert settings(size="all").sizes == ("small", "medium", "large", "xl", "2.7B", "10B")
    assert settings(size="small-2layers").sizes == ("small-2layers",)


@pytest.mark.parametrize(
    "axis, value, changed",
    [
        ("attention", "sdpa", {"attentions": ("sdpa",), "attention_alone_implementations": ("sdpa",)}),
        ("precision", "bf16", {"precisions": ("bf16",), "attention_alone_precisions": ("bf16",)}),
        ("execution", "compiled", {"executions": ("compiled",)}),
        ("checkpoint", "block", {"checkpoints": ("block",)}),
        ("optimizer", "fused", {"optimizer": "fused"}),
    ],
)
def test_another_option_changes_its_axis_of_base_and_nothing_else(
    axis: str, value: str, changed: dict[str, Any]
) -> None:
    head = settings(attention="naive", precision="fp32")
    base = OtherOption(axis, value).applied_to(head)
    assert vars(base) == {**vars(head), **changed}


class Screen:
    """A line of a terminal, and what was written on it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def rewrite(self, line: str, **markup: bool) -> None:
        self.lines.append(line)

    def write_line(self, line: str) -> None:
        self.lines.append(line)

    def ensure_newline(self) -> None:
        return

    def flush(self) -> None:
        return


def watched(line: Screen | None, terminal: Screen) -> None:
    watch = GateWatch(cast(pytest.TerminalReporter, terminal), cast(Line | None, line), screen_pairs=6, seconds=900)
    watch.pair_begins(1, 1, 30)
    watch.case_begins("perf_tests/test_forward.py::test_forward[tiny-ctx8-fp32-naive]", 4)
    watch.pair_begins(2, 8, 3)
    watch.ends()


def test_who_watches_sees_pair_case_and_time_left() -> None:
    screen = Screen()
    watched(screen, Screen())
    assert screen.lines[0] == "launch pair 2 of 6  case 5 of 30  at most 15 min left  forward tiny-ctx8-fp32-naive"
    assert screen.lines[-1] == ""


def test_a_log_gets_a_line_for_each_launch_pair_and_none_for_a_case() -> None:
    screen = Screen()
    watched(None, screen)
    assert screen.lines == [
        "launch pair 2 of 6: 30 cases, 0 s so far",
        "launch pair 3 of the undecided cases: 3 cases, 0 s so far",
    ]
