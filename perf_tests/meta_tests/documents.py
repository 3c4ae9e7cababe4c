"""The prose that tests hold to the program: the README and the pages below docs/."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    """One section of the README, its subsections included."""
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def page(name: str) -> str:
    """`docs/NAME.md`."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def block(text: str, name: str) -> str:
    """What stands between `<!-- name:` and `<!-- end of name -->`; raises ValueError where it does not."""
    start, end = text.index(f"<!-- {name}:"), text.index(f"<!-- end of {name} -->")
    return text[start:end]


def indented(text: str) -> list[str]:
    """The lines of its code blocks."""
    return [line.removeprefix("    ").rstrip() for line in text.splitlines() if line.startswith("    ")]
