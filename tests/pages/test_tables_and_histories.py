"""Pages show the screen of the history and the fits of attention's memory that there are."""

import re
from pathlib import Path

import numpy as np
import pytest

from perf_tests.__main__ import main
from perf_tests.predict.counters import counters_of
from perf_tests.report.tables import attention_fits
from tests.support.documents import block, indented, output, page
from tests.support.example_cases import attention_case
from tests.support.launches_over_commits import COUNT, NOISE, START, launch
from tests.support.synthetic import passed, write_record


def test_the_page_shows_what_the_history_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drift = np.linspace(1, 1.1, COUNT)
    for place, figure in enumerate(NOISE):
        seconds, launches = figure * drift[place] * (1.2 if place >= START else 1.0), 560 if place < START else 562
        data = launch(place, seconds, sentinel=1e-3 * drift[place], kernel_launches=launches)
        write_record(tmp_path / f"machine/{place:04}_a.json", data)
    main(["history", "--storage", str(tmp_path)])
    assert output(block(page("gate"), "history")) == capsys.readouterr().out.splitlines()


def test_the_page_has_the_squares_of_attention_that_the_counters_have() -> None:
    shown = indented(block(page("measuring"), "attention memory"))
    (_, *names), *lines = [re.split(r"\s{2,}", line.strip()) for line in shown]
    rows = []
    for phase in ("attention_forward", "attention_backward"):
        for name, length, width in (
            (name, length, width) for name in names for length in (256, 1024) for width in (16, 64)
        ):
            case = attention_case(phase=phase, attention=name, head_dim=width, sequence_length=length)
            counted = counters_of(case)
            values = {"peak_allocated_bytes": counted.peak_bytes, "memory_before_backward_bytes": 0,
                      "saved_bytes_by_part": [{"saved_bytes": counted.saved_bytes}]}  # fmt: skip
            rows.append({**passed("a case", "memory", values), "identity": case.identity()})
    fits = {(fit.implementation, fit.quantity): fit.squares for fit in attention_fits(rows)}
    assert lines == [[line[0], *(f"k = {fits[name, line[0]]}" for name in names)] for line in lines]
    assert len(lines) == 3
