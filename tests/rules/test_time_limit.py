"""A run under a time limit: which case still fits, and what is said of those that do not."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from perf_tests.run.ends import TimeLimit, predicted_seconds
from tests.support.example_cases import CEILINGS, SETTINGS, attention_case, language_model_case
from tests.support.items import benchmark


@dataclass
class Played:
    """A run whose clock jumps by what each case takes, in seconds; the limit is ten minutes."""

    seconds: dict[Any, float]
    predicted: dict[Any, float]
    clock: float = 0.0
    run: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit = TimeLimit(10, self.predicted.__getitem__, self.is_tried, lambda: self.clock)

    def is_tried(self, item: Any) -> bool:
        return self.predicted[item] > 0

    def play(self) -> list[Any]:
        for item, seconds in self.seconds.items():
            if self.limit.pytest_runtest_protocol(item) is None:
                self.run.append(item)
                self.clock += seconds
        return self.run


FORWARD, BACKWARD = (benchmark(language_model_case(phase=phase)) for phase in ("forward", "backward"))
FORWARD_AGAIN, BACKWARD_AGAIN = (benchmark(language_model_case(phase=p)) for p in ("forward", "backward"))
KERNELS = benchmark(language_model_case(), "kernels")
TEN_SECONDS_EACH = dict.fromkeys((FORWARD, BACKWARD, FORWARD_AGAIN, BACKWARD_AGAIN, KERNELS), 10.0)


def test_a_run_ends_before_the_case_that_would_end_too_late() -> None:
    fits = Played({FORWARD: 10, BACKWARD: 580, FORWARD_AGAIN: 10}, TEN_SECONDS_EACH)
    assert fits.play() == [FORWARD, BACKWARD, FORWARD_AGAIN]
    assert not fits.limit.is_reached
    late = Played({FORWARD: 10, BACKWARD: 581, FORWARD_AGAIN: 10, BACKWARD_AGAIN: 0}, TEN_SECONDS_EACH)
    assert late.play() == [FORWARD, BACKWARD]
    assert late.limit.is_reached


def test_a_like_case_that_took_longer_than_predicted_counts_and_not_one_of_another_kind() -> None:
    """The backward pass is ten times as slow as predicted, the forward pass is not."""
    slow = {FORWARD: 10.0, BACKWARD: 450.0}
    assert Played({**slow, FORWARD_AGAIN: 10.0}, TEN_SECONDS_EACH).play()[2:] == [FORWARD_AGAIN]
    assert Played({**slow, BACKWARD_AGAIN: 10.0}, TEN_SECONDS_EACH).play()[2:] == []


def test_what_has_no_like_case_yet_is_judged_by_the_last_case_of_another_kind() -> None:
    assert Played({FORWARD: 400.0, KERNELS: 10.0}, TEN_SECONDS_EACH).play() == [FORWARD]


def test_a_pass_counts_like_a_case() -> None:
    assert Played({FORWARD: 10.0, KERNELS: 10.0}, {FORWARD: 10.0, KERNELS: 591.0}).play() == [FORWARD]


def test_a_case_that_is_not_tried_takes_no_time_and_teaches_nothing() -> None:
    played = Played({FORWARD: 599.0, BACKWARD: 0.0, FORWARD_AGAIN: 10}, {**TEN_SECONDS_EACH, BACKWARD: 0.0})
    assert played.play() == [FORWARD, BACKWARD]


def test_the_first_case_runs_even_where_the_start_took_longer_than_thought() -> None:
    played = Played({FORWARD: 10.0, BACKWARD: 10.0}, TEN_SECONDS_EACH, clock=595.0)
    assert played.play() == [FORWARD]


def test_a_limit_shorter_than_a_case_is_refused_with_its_name_its_seconds_and_the_limit() -> None:
    limit = Played({}, {FORWARD: 10.0, BACKWARD: 700.0}, clock=8.0).limit
    limit.refuse_if_too_short([FORWARD])
    with pytest.raises(pytest.UsageError, match=r"backward .* about 700 s here, and --time-limit 10 leaves 592 s"):
        limit.refuse_if_too_short([FORWARD, BACKWARD])


@pytest.mark.parametrize(
    "longer, shorter",
    [
        (language_model_case(execution="compiled"), language_model_case()),
        (language_model_case(phase="optimizer"), language_model_case(phase="forward_backward")),
        (attention_case(sequence_length=4096), attention_case()),
        (attention_case(attention="compiled"), attention_case()),
    ],
    ids=["compiling", "set-up", "size", "compiled attention"],
)
def test_a_prediction_holds_set_up_and_compiling(longer: Any, shorter: Any) -> None:
    seconds = [predicted_seconds(benchmark(case), SETTINGS, CEILINGS) for case in (longer, shorter)]
    assert seconds[0] > seconds[1] > 0
