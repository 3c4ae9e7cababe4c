"""What a history calls a step: levels that moved, and neither noise nor launches that fall into two modes."""

from pathlib import Path

import numpy as np

from perf_tests.history.commits import machines_of
from perf_tests.history.steps import steps_of
from perf_tests.records.store import StoredRecord
from tests.support.invented_history import invented, relabelled
from tests.support.launches_over_commits import COUNT, with_step


def test_a_single_newest_commit_is_enough_where_it_was_launched_three_times() -> None:
    base = [1 + 0.01 * (place % 3) for place in range(COUNT)]
    assert steps_of([*base, 1.3], [1] * COUNT + [1]) == []
    assert [step.start for step in steps_of([*base, 1.3], [3] * COUNT + [3])] == [COUNT]


def test_launches_that_fall_into_two_modes_are_no_steps() -> None:
    """Of tiny cases, 8 launches in 20 were seen to take 1.45 times as long as the others, in no order."""
    random = np.random.default_rng(1)
    modes, orders = np.repeat([1.45, 1.0], [8, 12]), 500
    steps = 0
    for _ in range(orders):
        seconds = random.permutation(modes * np.exp(random.normal(0, 0.02, len(modes))))
        steps += len(steps_of(seconds.tolist(), [1] * len(modes)))
    assert steps <= 1e-3 * orders * len(modes)


def test_planted_steps_are_found_and_none_where_none_is() -> None:
    score = invented(np.random.default_rng(7), commits=100, cases=8, planted=6)
    assert score.all.count == score.all.of == 6
    assert score.false == 0


def test_launches_without_a_change_have_no_step_in_any_order() -> None:
    stored = [StoredRecord(Path(f"folder/{place:04}_a.json"), data) for place, data in enumerate(with_step(0.0))]
    assert relabelled(machines_of(stored)[0], np.random.default_rng(3), orders=20) == (0, 20 * COUNT)
