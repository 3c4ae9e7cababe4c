"""Write the tables of `docs/reference.md` anew, of verbs, options and columns: `python -m tests.pages.reference`."""

from collections.abc import Iterable

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.__main__ import GROUPS as VERB_GROUPS
from perf_tests_suite.perf_tests.__main__ import REPLACED, VERBS, sentence_of
from perf_tests_suite.perf_tests.cases.gate_options import argparse_keywords
from perf_tests_suite.perf_tests.cases.options import GROUPS, SIZES_APART
from perf_tests_suite.perf_tests.cases.options import REPLACED as REPLACED_OPTIONS
from perf_tests_suite.perf_tests.records.columns import COLUMNS, SPEEDUP
from tests.support.documents import ROOT, block

PAGE = ROOT / "docs/reference.md"
KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def page() -> str:
    """Return the page with what stands between its comments as the program has it now."""
    verbs = [
        table((group, "what it does"), ((f"perf-tests {name}", sentence_of(VERBS[name])) for name in named))
        for group, named in VERB_GROUPS.items()
    ]
    options = []
    for group, grouped in GROUPS.items():
        known = [(option.name, argparse_keywords(option)) for option in grouped]
        typed = ((" ".join(filter(None, [name, words.get("metavar")])), words["help"]) for name, words in known)
        options.append(table((group, "meaning"), typed))
    sizes, apart = ([f"`{name}`" for name in names] for names in (SIZES, SIZES_APART))
    options.append(f"Sizes: {', '.join(sizes)}. `all` leaves out {' and '.join(apart)}.\n")
    rows = ((column.name, KINDS[column.kind], column.meaning) for column in (*COLUMNS.values(), SPEEDUP))
    columns = [table(("column", "kind", "what it holds"), rows)]
    replaced = [table(("verb or option that is gone", "instead"), {**REPLACED, **REPLACED_OPTIONS}.items())]
    text = PAGE.read_text()
    for name, parts in (("verbs", verbs), ("options", options), ("columns", columns), ("replaced", replaced)):
        comment, _, former = block(text, name).partition("-->\n")
        text = text.replace(f"{comment}-->\n{former}", f"{comment}-->\n" + "\n".join(parts))
    return text


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Lay out rows whose first cell is code."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    lines += [f"| {' | '.join([f'`{name}`', *cells])} |" for name, *cells in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
