"""Pages are short and plain: limits on their words, their sentences and how these begin."""

import pytest

from tests.pages.words import Prose
from tests.support.documents import PAGES, README, page

LEAST_SENTENCES = 20
"""Fewer say nothing about a page's style."""
SEVEN = ("tutorial", "measuring", "gate", "predict", "your-own", "machines", "developing")


def test_the_readme_the_seven_pages_and_the_courses_page_are_short() -> None:
    assert Prose(README).words <= 750
    assert sum(Prose(page(name)).words for name in SEVEN) <= 9_000
    assert Prose(page("cs336")).words <= 3_500
    assert {path.stem for path in PAGES} == {"README", "reference", "cs336", *SEVEN}


@pytest.mark.parametrize("name", [path.stem for path in PAGES])
def test_sentences_are_short_and_few_begin_with_a_preposition(name: str) -> None:
    (path,) = (path for path in PAGES if path.stem == name)
    prose = Prose(path.read_text())
    assert len(prose.sentences) >= LEAST_SENTENCES
    assert prose.mean_words <= 17
    assert prose.begin_with_a_preposition <= 0.1
