"""The prose that tests hold to the program: README.md and the pages below docs/."""

import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EVIDENCE = (ROOT / "claims/evidence.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

OMITTED = "..."
"""A line of a shown output that stands for lines left out."""


def page(name: str) -> str:
    """`docs/NAME.md`."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def block(text: str, name: str) -> str:
    """What stands between `<!-- name:` and `<!-- end of name -->`; raises ValueError where it does not."""
    start, end = text.index(f"<!-- {name}:"), text.index(f"<!-- end of {name} -->")
    return text[start:end]


def named(text: str, ending: str) -> Path:
    """The one file below .benchmarks that a text names in quotes, with this ending."""
    (name,) = re.findall(rf"`(\.benchmarks/[^`]+\.{ending})`", text)
    return ROOT / name


def indented(text: str) -> list[str]:
    """The lines of its code blocks."""
    return [line.removeprefix("    ").rstrip() for line in text.splitlines() if line.startswith("    ")]


def output(text: str) -> list[str]:
    """The lines of its code blocks but the command that printed them."""
    return [line for line in indented(text) if not line.startswith("$ ")]


def is_shortened(shown: Iterable[str], printed: Iterable[str]) -> bool:
    """Whether `shown` is `printed` with runs of lines replaced by `...`, and nothing left out in silence."""
    left = iter(printed)
    skips = False
    for line in shown:
        if line == OMITTED:
            skips = True
        elif line != (next((one for one in left if one == line), None) if skips else next(left, None)):
            return False
        else:
            skips = False
    return skips or next(left, None) is None


def fitted(printed: str) -> list[str]:
    """Printed lines as a page breaks them."""
    return [part for line in printed.splitlines() for part in wrap(line, 116, break_long_words=False)]


def commands(text: str) -> list[str]:
    """What its code blocks and `code` say to type, without trailing comments: perf-tests, make, python -m."""
    typed = [line.partition(" #")[0].removeprefix("$ ").strip() for line in indented(text)]
    without_blocks = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    typed += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", without_blocks)]
    programs = r"(perf-tests|pytest-benchmark compare|make|python -m) "
    return [one for one in dict.fromkeys(typed) if re.match(programs, one)]
