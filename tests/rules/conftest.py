"""What rules need around them."""

from collections.abc import Iterator

import pytest

from perf_tests.report import page


@pytest.fixture(scope="module")
def no_plotly() -> Iterator[None]:
    """Leave Plotly out of pages: its megabyte says nothing about the page that holds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "plotly", lambda: "/* what draws */")
        yield
