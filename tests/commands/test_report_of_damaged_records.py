"""The page over records that are hostile, torn or damaged: names are text, and what cannot be shown is named."""

import json
import math
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from perf_tests.__main__ import main
from perf_tests.records.record import Json
from tests.support.report_pages import HOSTILE, Reader, figures, page_over, store
from tests.support.synthetic import record, timed, untimed
from tests.support.synthetic_grid import grid_record

pytestmark = pytest.mark.usefixtures("no_plotly")


def test_a_hostile_name_is_text_everywhere(tmp_path: Path) -> None:
    rows = [
        timed(f"test_{phase}[{HOSTILE}-{context}-{precision}]", phase=phase, context_length=context, size=HOSTILE,
              attention=HOSTILE, precision=precision, peak_allocated_bytes=2**30, flags=[HOSTILE], bound=HOSTILE)
        for phase in ("forward", "backward") for context in (128, 256) for precision in ("fp32", HOSTILE)
    ]  # fmt: skip
    data = record(rows, [untimed("lost", reason=HOSTILE)], gpu={"name": HOSTILE})
    text = page_over(tmp_path, data, {**data, "datetime": HOSTILE, "commit_info": {"id": HOSTILE}}, "{", code=1)
    seen = Reader(text)
    assert len(seen.scripts) == 3
    assert not [tag for tag, _ in seen.elements if tag == "img"]
    assert not [name for _, attributes in seen.elements for name in attributes if name.startswith("on")]
    assert any("pwned()" in text for text in seen.text)
    assert "<" not in seen.scripts[0]
    assert figures(text)


def test_a_torn_file_is_named_on_the_page_and_in_the_exit_code(tmp_path: Path) -> None:
    text = page_over(tmp_path, record([timed()]), "{", json.dumps({**record(), "suite": {"format_version": 0}}), code=1)
    assert "0002_run.json cannot be read" in text
    assert "0003_run.json cannot be used: its format version is 0" in text


@pytest.mark.parametrize("records", [(), ("{",)])
def test_without_a_readable_record_there_is_no_page(records: tuple[str, ...], tmp_path: Path) -> None:
    storage = store(tmp_path / "records", *records)
    assert main(["report", f"--storage={storage}", f"--output={tmp_path}/page.html"]) == 3
    assert not (tmp_path / "page.html").exists()


def test_null_and_nan_are_no_figures(tmp_path: Path) -> None:
    row = timed(tokens_per_second=None, peak_allocated_bytes=None)
    row["extra_info"] |= {"mfu": float("nan"), "roofline_seconds": float("inf"), "flags": None, "bound": 3}
    text = page_over(tmp_path, json.dumps({**record(), "benchmarks": [row]}))
    assert "MFU" not in text
    assert "nan" not in Reader(text).text


JUNK: tuple[Any, ...] = (None, True, -1, 0, 1e308, math.nan, "", "\ud800<b>", [], [1], {}, {"a": 1}, 10**400, "128")


def damaged(data: Json, luck: random.Random) -> Json:
    """The record with twenty of its values, at any depth, replaced by what does not belong there."""
    damage: Any = json.loads(json.dumps(data))
    for _ in range(20):
        place = damage
        while isinstance(place, dict | list) and place:
            key = luck.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if luck.random() < 0.2 or not isinstance(place[key], dict | list):
                place[key] = deepcopy(luck.choice(JUNK))
                break
            place = place[key]
    return damage


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_record_is_shown_or_named_and_left_out(seed: int, tmp_path: Path) -> None:
    data = grid_record()
    rows = {"benchmarks": data["benchmarks"][:6] + data["benchmarks"][-4:], "outcomes": data["outcomes"][:2]}
    storage = store(tmp_path / "records", damaged({**data, **rows}, random.Random(seed)), record([timed()]))
    assert main(["report", f"--storage={storage}", f"--output={tmp_path}/page.html"]) in (0, 1)
    assert main(["tables", f"--storage={storage}", "0001", "--format=latex"]) in (0, 1, 3)
