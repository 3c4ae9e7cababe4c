"""The page of histories shows what the verb prints."""

from pathlib import Path

import numpy as np
import pytest

from perf_tests.__main__ import main
from tests.support.documents import block, output, page
from tests.support.launches_over_commits import COUNT, NOISE, START, launch
from tests.support.synthetic import write_record


def test_the_page_shows_what_the_verb_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drift = np.linspace(1, 1.1, COUNT)
    launches = [
        launch(place, figure * drift[place] * (1.2 if place >= START else 1.0), sentinel=1e-3 * drift[place],
               kernel_launches=560 if place < START else 562)
        for place, figure in enumerate(NOISE)
    ]  # fmt: skip
    for place, data in enumerate(launches):
        write_record(tmp_path / f"machine/{place:04}_a.json", data)
    main(["history", "--storage", str(tmp_path)])
    assert output(block(page("history"), "history")) == capsys.readouterr().out.splitlines()
