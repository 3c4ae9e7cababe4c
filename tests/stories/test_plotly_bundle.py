"""The program that draws the page is the published one, with its licence, and the page of one run stays small."""

import hashlib
from pathlib import Path

from perf_tests.__main__ import main
from perf_tests.report.page_parts import page
from tests.support.launch import ROOT

FOLDER = Path(page.__file__).parent / "plotly"
PUBLISHED = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
"""SHA-256 of package/plotly-basic.min.js in version 4.1.1 of the npm package plotly.js-basic-dist-min."""

RECORD = ROOT / ".benchmarks/epyc-2core/0001_9e03909d2d18.json"
MOST_BYTES = 1_800_000


def test_the_bundle_is_the_published_one() -> None:
    assert hashlib.sha256(page._plotly().encode()).hexdigest() == PUBLISHED


def test_its_licence_lies_beside_it_and_travels_in_the_page() -> None:
    assert "Permission is hereby granted, free of charge" in (FOLDER / "LICENSE").read_text()
    assert "* Licensed under the MIT license" in page._plotly()


def test_no_text_in_it_ends_the_element_that_holds_it() -> None:
    assert "</script" not in page._plotly().lower()
    assert "<!--" not in page._plotly()


def test_the_page_of_one_run_is_below_1_8_megabytes(tmp_path: Path) -> None:
    assert main(["report", str(RECORD), f"--output={tmp_path}/page.html"]) == 0
    assert (tmp_path / "page.html").stat().st_size < MOST_BYTES
