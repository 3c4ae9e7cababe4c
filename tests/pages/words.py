"""Print how long and how plain README and each page below docs/ are: `python -m tests.pages.words`."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.documents import PAGES, ROOT

PREPOSITION = re.compile(
    "about|above|across|after|against|along|among|around|as|at|before|behind|below|besides?|between|beyond|by|despite|"
    "during|for|from|in|inside|into|like|near|of|off|on|onto|out|outside|over|past|per|since|than|through|to|towards?|"
    "under|until|unlike|up|upon|via|where|with|within|without",
    re.IGNORECASE,
)
WITHOUT_PROSE = re.compile(r"<!--.*?-->|^```.*?^```$|^(?:    |\||#|!\[).*?$", re.MULTILINE | re.DOTALL)
"""Comments, blocks of code, tables, headings and pictures."""


@dataclass(frozen=True)
class Prose:
    """A page in Markdown, read as words and sentences."""

    text: str

    @property
    def words(self) -> int:
        """Count everything that is read, tables and blocks of code included: no punctuation, no comment."""
        return sum(bool(re.search(r"\w", word)) for word in re.sub(r"<!--.*?-->", "", self.text, flags=re.S).split())

    @cached_property
    def sentences(self) -> list[str]:
        """Split running text at ends of sentences and of list items; `code` counts as one word."""
        plain = re.sub(r"`[^`]+`", "code", WITHOUT_PROSE.sub("\n\n", self.text))
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain).replace("*", "")
        paragraphs = re.split(r"\n\s*\n|\n(?:\s*-|\d+\.) |\n (?=\S)", re.sub(r"\n  +(?=\S)", " ", plain))
        found = [one for text in paragraphs for one in re.split(r"(?<=[.?!:;])\s+", " ".join(text.split()))]
        return [one for one in found if len(one.split()) > 1]

    @property
    def mean_words(self) -> float:
        """Words of a sentence; one that goes on behind a colon or semicolon is one."""
        ends = sum(one[-1] not in ":;" for one in self.sentences)
        return sum(len(one.split()) for one in self.sentences) / max(1, ends)

    @property
    def begin_with_a_preposition(self) -> float:
        """Share of sentences, from 0 to 1."""
        first = [re.sub(r"\W", "", one.split()[0]) for one in self.sentences]
        return sum(bool(PREPOSITION.fullmatch(word)) for word in first) / max(1, len(first))


def figures(path: Path) -> str:
    """One line: words, mean words of a sentence, share of sentences that begin with a preposition."""
    page = Prose(path.read_text())
    return (
        f"{path.relative_to(ROOT)!s:22} {page.words:6,} words, {page.mean_words:4.1f} a sentence, "
        f"{page.begin_with_a_preposition:4.0%} begin with a preposition"
    )


if __name__ == "__main__":
    print("\n".join(map(figures, PAGES)))
