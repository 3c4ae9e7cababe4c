"""Damaged files for every reader: `python -m perf_tests.proofs.fuzzed_files --examples 10000 READER ...`.

Each example damages a valid file and gives it to the verb that reads it. The verb must end in one of its exit codes
without a traceback or a warning and in bounded time; where it refuses the file it names it, and has written nothing.
"""

import argparse
import contextlib
import gzip
import io
import json
import lzma
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from perf_tests.__main__ import main as run_verb
from perf_tests.gate.rules import Rules
from perf_tests.proofs import damage, simulated_launches, synthetic
from perf_tests.proofs.synthetic_nsys import one_layer
from perf_tests.proofs.synthetic_trace import forward_and_backward
from perf_tests.records.record import Json
from perf_tests.verbs.exit_codes import FINDINGS, FINE, UNREADABLE, USAGE

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / ".benchmarks/epyc-2core"
SECONDS_PER_MEGABYTE = 10.0

Pack = Callable[[bytes], bytes]
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Reader:
    """A verb and a valid file that it reads, `file`, in a folder with the files `beside`."""

    words: str
    """What is typed; `{file}` and `{folder}` are filled in."""
    file: str
    content: Callable[[], bytes]
    damaged: Callable[[Random, bytes], bytes]
    pack: Pack = bytes
    beside: Callable[[], Files] = field(default=dict)
    verb: Callable[[list[str]], int] = run_verb
    writes: str = "out"
    """The only file that the verb may leave, where it succeeds."""


@cache
def record() -> bytes:
    """Committed rows of each kind, and a case without a timing."""
    data, study = (json.loads(path.read_bytes()) for path in sorted(COMMITTED.glob("*.json")))
    rows = data["benchmarks"]
    alone = [row for row in rows if row["extra_info"].get("head_dim")]
    layered = [row for row in data["passes"] if row["values"].get("attention")]
    memory = [row for row in data["passes"] if row["pass"] == "memory"]
    passes = [min(rows, key=lambda row: len(str(row))) for rows in (layered, memory)] + study["passes"][:1]
    return encoded({**data, "benchmarks": [*rows[:3], *alone[:2]], "passes": passes, "outcomes": [synthetic.untimed()]})


def encoded(data: Json) -> bytes:
    return json.dumps(data).encode()


def launch(number: int) -> bytes:
    """A record of one launch of two cases."""
    draw = np.random.default_rng(number)
    names = (synthetic.FORWARD, synthetic.BACKWARD)
    rows = [
        synthetic.timed(name, np.exp(draw.normal(size=8) * 0.01).tolist(), matmul_ceiling_tflops_per_second=0.2)
        for name in names
    ]
    return encoded(synthetic.record(rows))


def launches() -> Files:
    sides = {f"base/{n}.json": launch(n) for n in range(1, 6)} | {f"head/{n}.json": launch(n) for n in range(6, 9)}
    return {name: content for name, content in sides.items()}


def samples() -> bytes:
    """A run of two cases with a line of each kind."""
    draw, rules = np.random.default_rng(0), Rules()
    cases = [simulated_launches.SimulatedCase(name, cpu_pair_spread=0.01) for name in ("a", "b")]
    lines = [simulated_launches.header(cases, rules)]
    lines += [simulated_launches.line(draw, case, 1, pair, 4, False) for pair in range(6) for case in cases]
    lines += [{"event": "outcome", "case": "a", "side": "head", "outcome": "error", "reason": "it died"},
              {"event": "sentinel", "stage": 1, "pair": 0, "name": "matmul", "side": "base", "seconds": [0.1]},
              {"event": "exact", "case": "a", "counter": "saved_bytes", "old": 1, "new": 2},
              {"event": "pair", "stage": 1, "pair": 0, "seconds": 2.5},
              {"event": "end", "reason": "budget"}]  # fmt: skip
    return b"".join(encoded(line) + b"\n" for line in lines)


def table(name: str, rows: int = 12) -> Callable[[], bytes]:
    return lambda: b"".join((ROOT / "published" / name).read_bytes().splitlines(keepends=True)[: rows + 1])


def accepted() -> bytes:
    entry = f'[[accepted]]\nid = "{synthetic.FORWARD}"\nlimit = 1.08\nreason = "needed"\nrevision = "0123456"\n'
    return (entry + entry.replace("limit = 1.08", 'limit = 7\ncounter = "saved_bytes"')).encode()


def shard(share: int, *places: int) -> bytes:
    names = [(synthetic.FORWARD, synthetic.BACKWARD, synthetic.FULL_STEP)[place] for place in places]
    data = synthetic.record([synthetic.timed(name) for name in names])
    told = {"settings": {**data["suite"]["settings"], "shard": [share, 2]}, "selection": names, "places": list(places)}
    return encoded({**data, "suite": {**data["suite"], **told}})


def trace() -> bytes:
    return forward_and_backward().text()


def database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return one_layer(Path(folder) / "x.sqlite").read_bytes()


RECORD = ("record.json", record, damage.json_damaged)
READERS: dict[str, Reader] = {
    "record": Reader("report {file} -o {folder}/out", *RECORD),
    "record-tables": Reader("tables {file}", *RECORD),
    "record-flat": Reader("tables {file} --format csv", *RECORD),
    "record-latex": Reader("tables {file} --format latex", *RECORD),
    "record-typst": Reader("tables {file} --format typst", *RECORD),
    "record-json": Reader("tables {file} --json", *RECORD),
    "record-compare": Reader("compare {file} {folder}/good", *RECORD, beside=lambda: {"good": record()}),
    "record-compare-now": Reader("compare {folder}/good {file}", *RECORD, beside=lambda: {"good": record()}),
    "record-kernels": Reader("kernels {file}", *RECORD),
    "record-audit": Reader("audit {file} --all", *RECORD),
    "gate": Reader("gate {folder}/base {folder}/head", "base/1.json", lambda: launch(1), damage.json_damaged,
                   beside=launches),
    "accepted": Reader("gate {folder}/base {folder}/head --storage {folder}", "accepted.toml", accepted,
                       damage.toml_damaged, beside=launches),
    "merge": Reader("merge {file} {folder}/2.json -o {folder}/out", "1.json", lambda: shard(1, 0, 2),
                    damage.json_damaged, beside=lambda: {"2.json": shard(2, 1)}),
    "samples": Reader("replay {file}", "run.jsonl", samples, damage.lines_damaged),
    "samples-gz": Reader("replay {file}", "run.jsonl.gz", samples, damage.lines_damaged, gzip.compress),
    "csv-timing": Reader("audit {file} --all", "t.csv", table("e2e_timing.csv"), damage.csv_damaged),
    "csv-attention": Reader("audit {file} --all", "t.csv", table("attention_timing.csv"), damage.csv_damaged),
    "csv-memory": Reader("audit {file} --all", "t.csv", table("memory.csv"), damage.csv_damaged),
    "csv-kernels": Reader("audit {file} --all", "t.csv", table("kernels.csv"), damage.csv_damaged),
    "nsys": Reader("kernels {file}", "n.sqlite", database, damage.sqlite_damaged),
    "nsys-range": Reader("kernels {file} --range softmax", "n.sqlite", database, damage.sqlite_damaged),
    "trace": Reader("kernels {file}", "t.trace.json.gz", trace, damage.json_damaged, gzip.compress),
}  # fmt: skip


@dataclass
class Tally:
    codes: Counter[int] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    first: dict[str, bytes] = field(default_factory=dict)
    slowest_seconds: float = 0.0


def damaged_file(reader: Reader, chance: Random) -> bytes:
    content, how = _content(reader), chance.choice(("document", "document", "document", "bytes", "packed"))
    if how == "document":
        content = reader.damaged(chance, content)
    if how == "bytes":
        content = damage.bytes_damaged(chance, content)
    content = reader.pack(content)
    return damage.bytes_damaged(chance, content) if how == "packed" else content


@cache
def _content(reader: Reader) -> bytes:
    return reader.content()


@cache
def _beside(reader: Reader) -> Files:
    return reader.beside()


def problem_with(reader: Reader, content: bytes, tally: Tally) -> str | None:
    """What is wrong with how the verb takes the file; None if nothing is."""
    with tempfile.TemporaryDirectory(prefix="fuzzed-") as name:
        folder = Path(name) / "in"
        for path, data in {**_beside(reader), reader.file: content}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        before = _listing(Path(name))
        words = reader.words.format(file=folder / reader.file, folder=folder).split()
        said = io.StringIO()
        start = time.monotonic()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
                warnings.simplefilter("error")
                code = reader.verb(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return _signature(error)
        seconds = time.monotonic() - start
        tally.codes[code] += 1
        tally.slowest_seconds = max(tally.slowest_seconds, seconds)
        written = {path: facts for path, facts in _listing(Path(name)).items() if before.get(path) != facts}
        return _wrong_end(reader, code, said.getvalue(), seconds, len(content), [*written, *(before.keys() - _listing(Path(name)).keys())])


def _wrong_end(reader: Reader, code: int, said: str, seconds: float, size: int, written: list[str]) -> str | None:
    if code not in (FINE, FINDINGS, USAGE, UNREADABLE):
        return f"exit code {code}"
    if seconds > SECONDS_PER_MEGABYTE * max(1.0, size / 1e6):
        return f"took longer than {SECONDS_PER_MEGABYTE:.0f} s for a megabyte"
    allowed = [f"in/{reader.writes}"] if code in (FINE, FINDINGS) else []
    if set(written) - set(allowed):
        return f"wrote {written}"
    if "Traceback" in said:
        return "printed a traceback"
    return None


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = ((path, path.lstat()) for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): (facts.st_size, facts.st_mtime_ns) for path, facts in found}


def _signature(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "perf_tests" in f.filename and "proofs" not in f.filename]
    where = " < ".join(f"{Path(f.filename).relative_to(ROOT / 'perf_tests')}:{f.lineno}" for f in frames[:-4:-1])
    return f"{type(error).__name__} at {where}: {str(error)[:80]!r}"


def fuzz(reader: Reader, examples: int, seed_number: int = 0, stop_after: float = 1e9) -> Tally:
    tally = Tally()
    end = time.monotonic() + stop_after

    @seed(seed_number)
    @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.randoms(use_true_random=True))
    def run(chance: Random) -> None:
        if time.monotonic() > end:
            return
        content = damaged_file(reader, chance)
        problem = problem_with(reader, content, tally)
        if problem is not None:
            tally.problems[problem] += 1
            tally.first.setdefault(problem, content)

    run()
    return tally


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf_tests.proofs.fuzzed_files", description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args(words)
    wrong = False
    for name in asked.readers or READERS:
        start = time.monotonic()
        tally = fuzz(READERS[name], asked.examples, asked.seed, asked.seconds)
        runs = tally.codes.total() + sum(n for p, n in tally.problems.items() if " at " in p)
        codes = ", ".join(f"{count} ended in {code}" for code, count in sorted(tally.codes.items()))
        print(f"{name}: {runs} files in {time.monotonic() - start:.0f} s, slowest {tally.slowest_seconds:.2f} s: {codes}; {tally.problems.total()} wrong", flush=True)
        for place, (problem, count) in enumerate(tally.problems.most_common()):
            print(f"  {count} x {problem}", flush=True)
            if asked.keep:
                asked.keep.mkdir(parents=True, exist_ok=True)
                (asked.keep / f"{name}-{place}-{READERS[name].file.replace('/', '-')}").write_bytes(tally.first[problem])
        wrong |= bool(tally.problems)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
