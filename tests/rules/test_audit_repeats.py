"""The audit of a label with two times: the likeliest cause in its file is named."""

from pathlib import Path

import pytest

from tests.support.audited_tables import audited
from tests.support.foreign_tables import Row, model_row

REPEATED: dict[str, tuple[list[Row], set[str], str]] = {
    "the faster is beyond its label": (
        [model_row(mean_ms="90"), model_row(mean_ms="280")], {"line 2"}, "another precision"
    ),
    "the slower scatters": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", std_ms="60")], {"line 3"}, "busy device"
    ),
    "the slower was not warmed up": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", warmup="0")], {"line 3"}, "no or one warm-up round"
    ),
    "the slower is one round": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", n_measured="1")], {"line 3"}, "profiler"
    ),
    "one of three": (
        [model_row(mean_ms="280"), model_row(mean_ms="400"), model_row(mean_ms="282")], {"line 3"}, "another set-up"
    ),
    "nothing tells": (
        [model_row(mean_ms="280"), model_row(mean_ms="400")], {"line 2", "line 3"}, "labels do not tell"
    ),
    "another label of the file tells": (
        [model_row(mean_ms="290"), model_row(mean_ms="400"), model_row("xl", mean_ms="200"), model_row("xl")],
        {"line 2"},
        "as for 1 other labels of this file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", REPEATED)
def test_a_label_with_two_times_names_the_cause_that_its_file_suggests(how: str, tmp_path: Path) -> None:
    rows, accused, cause = REPEATED[how]
    first = next(f for f in audited(tmp_path, rows).findings if f.rule == "same cell twice" and "large" in f.cell)
    assert set(first.places) == accused
    assert cause in first.likely_cause
