"""Make `docs/reference.md` of the tables of verbs, options and columns: `python -m tests.pages.reference` writes it."""

from collections.abc import Iterator

from model.sizes import SIZES
from perf_tests.__main__ import GROUPS as VERBS
from perf_tests.__main__ import sentence_of
from perf_tests.cases.options import GROUPS, SIZES_APART, argparse_keywords
from perf_tests.records.columns import COLUMNS, SPEEDUP
from tests.support.documents import ROOT

PAGE = ROOT / "docs/reference.md"
KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}

HEAD = """# Reference

Every verb, option, exit code and column, generated from the program by `make pages`.
`perf-tests run --help` and `perf-tests VERB --help` print the same where you are. In a checkout `pytest perf_tests`
does what `perf-tests run` does, `python -m perf_tests VERB` what `perf-tests VERB` does; `make` lists shortcuts.
"""

LISTS = """Lists take commas; `all` is every value. An unknown value is a usage error that lists the known ones.

Sizes: {sizes}. `all` leaves out {apart}. A shape of your own is `192x768x3x4` or `wide=192x768x3x4` (d_model, d_ff,
layers, heads). A case of another batch than 4 says so in its id, as in `tiny-ctx128-fp32-naive-batch8`.

`--model` runs attention alone only if `--head-dim` or `--sequence-length` is given, and `--checkpoint` does not apply.
No compiled execution is combined with an attention that compiles itself.
"""

OF_OTHERS = """## Options of pytest-benchmark

`--benchmark-compare`, `--benchmark-compare-fail`, `--benchmark-save`, `--benchmark-autosave`, `--benchmark-json`,
`--benchmark-histogram`, `--benchmark-group-by`, `--benchmark-storage` and `--benchmark-disable` work as documented
there. `--benchmark-timer`, `--benchmark-min-rounds` and others that set rounds or clock are refused, as are
pytest-xdist's `-n` and `--codspeed`. The baseline without a number is the newest record of this machine and build that
has every selected case with the same shape and settings. A case of it that is missing now fails the run.

pytest-benchmark's own command reads the records too:

    pytest-benchmark compare 0001 --group-by=param:precision

Every row has `precision` and `attention`. A record of language models alone also groups by `model_size`,
`context_length`, `execution`, `checkpoint` and `batch_size`, one of attention alone by `head_dim` and
`sequence_length`; in a record of both, these end in a KeyError.

## Exit codes

| exit code of pytest | when |
|---|---|
| 0 | no test failed, and no case is slower where a verdict was asked for; also with cases left at `--time-limit` |
| 1 | a test failed, a case timed out or ended its process, a figure is impossible, an attention is incorrect, a case of the baseline is gone or has no figure any more, or a case is slower |
| 2 | interrupted, or ended in a case that does not return; the journal is kept for `--resume`. A signal while the record is written waits until it is whole |
| 4 | usage, another run on this device, a baseline that cannot be compared with (with `--benchmark-compare-fail` also one without any comparable case), a contaminated gate run, or cases left at `--time-limit` under `--against` or `--benchmark-compare-fail` |
| 5 | no case was selected |
| 143 | ended by SIGTERM; the journal is kept for `--resume` |

An undecided gate case passes unless `--gate-undecided fail`. No case counts as gone with `-k`, `-m`, node ids or
`--shard`.

| exit code of a verb | when |
|---|---|
| 0 | fine |
| 1 | findings: a regression, an impossible figure, a step that does not fit, a file left out |
| 2 | usage, a choice that fits nothing, or an output that cannot be written |
| 3 | input that cannot be read or compared; the sentence that says why goes to standard error, here and with 2 |
| 130 | `bisect`: Ctrl-C; the repository is as it was |

## Columns

`perf-tests tables --format csv`, `jsonl` and `parquet` write a row a case with these columns. Numbers are in the unit
that the name ends in, unrounded. What is not known is empty in CSV and null in the others.
"""  # noqa: E501


def page() -> str:
    """Return the page's text."""
    return "\n".join(_parts())


def _parts() -> Iterator[str]:
    yield HEAD
    yield "## Verbs\n"
    for group, verbs in VERBS.items():
        yield from _table((group, "what it does"), ((f"perf-tests {name}", sentence_of(verbs[name])) for name in verbs))
    yield "## Options of `perf-tests run`\n"
    for group, options in GROUPS.items():
        rows = ((option.name, argparse_keywords(option)) for option in options)
        typed = ((" ".join(filter(None, [name, words.get("metavar")])), words["help"]) for name, words in rows)
        yield from _table((group, "meaning"), typed)
    yield LISTS.format(
        sizes=", ".join(f"`{name}`" for name in SIZES), apart=" and ".join(f"`{name}`" for name in SIZES_APART)
    )
    yield OF_OTHERS
    columns = [*COLUMNS.values(), SPEEDUP]
    yield from _table(
        ("column", "kind", "what it holds"), ((one.name, KINDS[one.kind], one.meaning) for one in columns)
    )


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Lay out rows whose first cell is code."""
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for name, *cells in rows:
        yield f"| {' | '.join([f'`{name}`', *cells])} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page())
