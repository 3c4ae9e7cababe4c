"""Every reader of files: a valid file as its verb gets it, and a call of that verb in this process."""

import gzip
import json
import lzma
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np

from claims.expedition import __main__ as expedition
from claims.published import MOST_BYTES, path_of
from perf_tests_suite.model.device import device_named
from perf_tests_suite.perf_tests.__main__ import main as run_verb
from perf_tests_suite.perf_tests.bench.options import SavingOptions, show_beside_baseline
from perf_tests_suite.perf_tests.bench.recording import MeasuringSession, Progress
from perf_tests_suite.perf_tests.bench.session import Run
from perf_tests_suite.perf_tests.gate.accepted import read_accepted
from perf_tests_suite.perf_tests.gate.samples import Rules
from perf_tests_suite.perf_tests.hardware.device import open_device
from perf_tests_suite.perf_tests.hardware.limits import Ceilings
from perf_tests_suite.perf_tests.phases import FINE, USAGE
from perf_tests_suite.perf_tests.predict import machine as machine_ceilings
from perf_tests_suite.perf_tests.predict.machine import machine_identity
from perf_tests_suite.perf_tests.records import store
from perf_tests_suite.perf_tests.records.comparison import Comparison
from perf_tests_suite.perf_tests.records.interrupted import ResumeError, open_journal
from perf_tests_suite.perf_tests.records.record import Json, unpacked, why_not_a_record
from perf_tests_suite.perf_tests.report.comparison import comparison_lines
from perf_tests_suite.perf_tests.run import before
from tests.support import example_cases, simulated_launches, synthetic
from tests.support.damage import CSV, JSON, LINES, PIPED, ROOT, SQLITE, TAR, TOML, Reader
from tests.support.synthetic_nsys import one_layer
from tests.support.synthetic_trace import forward_and_backward

COMMITTED = ROOT / ".benchmarks/epyc-2core"


@cache
def record() -> bytes:
    """Committed rows of each kind, and a case without a timing."""
    data, study = (store.read_record(path).data for path in store.record_files(COMMITTED, "000[12]_*"))
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


def samples() -> bytes:
    """A run of two cases with a line of each kind."""
    draw, rules = np.random.default_rng(0), Rules()
    cases = [simulated_launches.SimulatedCase(name, cpu_pair_spread=0.01) for name in ("a", "b")]
    lines = [simulated_launches.header(cases, rules)]
    lines += [simulated_launches.line(draw, case, 1, pair, 4) for pair in range(6) for case in cases]
    lines += [{"event": "outcome", "case": "a", "side": "head", "outcome": "error", "reason": "it died"},
              {"event": "sentinel", "stage": 1, "pair": 0, "name": "matmul", "side": "base", "seconds": [0.1]},
              {"event": "exact", "case": "a", "counter": "saved_bytes", "old": 1, "new": 2},
              {"event": "pair", "stage": 1, "pair": 0, "seconds": 2.5},
              {"event": "end", "reason": "budget"}]  # fmt: skip
    return b"".join(encoded(line) + b"\n" for line in lines)


def table(name: str, rows: int = 12) -> Callable[[], bytes]:
    return lambda: b"".join(unpacked(path_of(name), MOST_BYTES).splitlines(keepends=True)[: rows + 1])


def piped() -> bytes:
    """A Markdown page with a table of times."""
    header, *rows = CSV.read(table("e2e_timing.csv")())
    return b"# Times\n\n" + PIPED.write([header, ["---"] * len(header), *rows])


def accepted() -> bytes:
    """A limit of a time, and new values of counters."""
    entry = f'[[accepted]]\nid = "{synthetic.FORWARD}"\nreason = "needed"\nrevision = "0123456"\n'
    return f'{entry}clock = "wall"\nlimit = 1.08\n{entry}counters = {{ saved_bytes = 7 }}\n'.encode()


def read_limits(words: list[str]) -> int:
    """Read what is accepted as a gate does before it measures."""
    try:
        print(*read_accepted(Path(words[0])))
    except ValueError as error:
        print(error)
        return USAGE
    return FINE


def database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return one_layer(Path(folder) / "x.sqlite").read_bytes()


def journal() -> bytes:
    """The journal of an interrupted run: one case of each end, and one in flight."""
    names = [synthetic.FORWARD, synthetic.BACKWARD, synthetic.FULL_STEP]
    lines: list[Json] = [{"header": synthetic.header(names)}, {"started": names[0]}]
    lines += [{"benchmark": synthetic.timed(names[0])}, {"outcome": synthetic.untimed(names[1])}]
    lines += [{"again": names[1]}, {"pass": synthetic.traced("kernels")}, {"driver": "1.2"}, {"started": names[2]}]
    return b"".join(encoded(line) + b"\n" for line in lines)


def resume(words: list[str]) -> int:
    """Resume as --resume does before its first case, and as the end of the run makes its record."""
    names = [synthetic.FORWARD, synthetic.BACKWARD, synthetic.FULL_STEP]
    try:
        opened, contents, _ = open_journal(Path(words[0]), synthetic.header(names), resume=True)
    except ResumeError as error:
        print(error)
        return USAGE
    session = MeasuringSession(opened, contents, Progress(None))
    session.is_complete, session.contents.starts.get(names[2], 0)
    record = session.record()
    opened.close()
    if wrong := why_not_a_record(record):
        raise AssertionError(f"resumed into no record: {wrong}")
    return FINE


def baseline(words: list[str]) -> int:
    """Choose a baseline as --benchmark-compare=PATH does."""
    own = json.loads(launch(1))
    try:
        found = store.numbered_baseline(Path(words[0]).parent, words[0], own["machine_info"])
    except store.BaselineError as error:
        print(error)
        return USAGE
    show_beside_baseline(own["benchmarks"], found.data, found.name)
    comparison_lines(store.compare(found.data, own), 120)
    return FINE


def dated(number: int, commit: str) -> bytes:
    """A launch of `commit`, recorded at that minute, with a case of two ranks beside it."""
    data = json.loads(launch(number))
    shared = synthetic.timed(synthetic.FULL_STEP, phase="full_step", parallel="ddp", world=2, bucket_bytes=2**20)
    told = {"datetime": f"2030-01-01T00:{number:02}:00+00:00", "commit_info": {"id": commit, "dirty": False}}
    suite = {**data["suite"], "run": f"journal-{number}"}
    return encoded({**data, **told, "suite": suite, "benchmarks": [*data["benchmarks"], shared]})


def earlier() -> Mapping[str, bytes]:
    """Enough launches of two commits; the newest is of base."""
    head = {f"machine/000{n}_head.json": dated(n, "head") for n in (1, 2)}
    return head | {f"machine/000{n}_base.json": dated(n, "base") for n in range(3, 7)}


SETTINGS = replace(example_cases.SETTINGS, phases=("forward", "full_step"), batch_sizes=(4,))


def compared(words: list[str]) -> int:
    """Compare as --benchmark-compare does before the first case of a run, and at its end."""
    record = json.loads(dated(8, "head"))
    del record["benchmarks"][1:]
    run, saving, selection = Run(), SavingOptions(Path(words[0]), compare=True), store.rows_by_id(record)
    chosen = before.choose_baseline(run, saving, record["machine_info"], selection)
    assert chosen is not None
    comparison = Comparison.of(record, before.inside_of_axes(chosen, SETTINGS, selection.keys(), True, saving))
    print(*run.notes, *comparison_lines(comparison.rows, 120), sep="\n")
    return FINE


def state() -> bytes:
    """An expedition with a finding of each kind, a record and a journal."""
    facts = {"gpu": {"name": "H100", "driver": "1"}, "torch": "2.13", "python": "3.12"}
    ended = {"slice": "1", "device": "cuda", "exit_code": 0, "seconds": 3.5, "last_line": json.dumps(facts)}
    files = {"findings/facts.json": encoded(ended), "findings/main.json": encoded({**ended, "last_line": "1 passed"}),
             "findings/smoke.json": encoded(ended), "storage/main/m/0001_a.json": launch(1),
             "storage/smoke/m/journal-1.jsonl": journal()}  # fmt: skip
    return TAR.write([[name, "0", "", content.decode()] for name, content in files.items()])


def cached_ceilings() -> bytes:
    device = open_device(device_named("cpu"))
    content = {"identity": machine_identity(device.torch_device), "ceilings": asdict(CEILINGS)}
    return encoded(content)


CEILINGS = Ceilings("this cpu", {"fp32": 1e11}, 1e10, 1e-5, 1e-5, 1e-5, 1e-5, False, "measured", {"fp32": 1.1e11})


def predict(words: list[str]) -> int:
    """Predict as `predict --gpu here` does; measuring takes no time."""
    measured = mock.patch.object(machine_ceilings, "measured_ceilings", return_value=CEILINGS)
    with measured, mock.patch.dict(os.environ, XDG_CACHE_HOME=words[0]):
        return run_verb(["predict", "--gpu", "here", "--head-dim", "16", "--sequence-length", "64"])


RECORD = ("record.json", record, JSON)
READERS: dict[str, Reader] = {
    "record": Reader("report {file} -o {folder}/out", *RECORD),
    "record-xz": Reader("tables {file}", "record.json.xz", record, JSON, partial(lzma.compress, preset=0)),
    "record-tables": Reader("tables {file}", *RECORD),
    "record-flat": Reader("tables {file} --format csv", *RECORD),
    "record-latex": Reader("tables {file} --format latex", *RECORD),
    "record-json": Reader("tables {file} --json", *RECORD),
    "record-compare": Reader("compare {file} {folder}/good", *RECORD, beside=lambda: {"good": record()}),
    "record-compare-now": Reader("compare {folder}/good {file}", *RECORD, beside=lambda: {"good": record()}),
    "record-kernels": Reader("kernels {file}", *RECORD),
    "accepted": Reader("{file}", "accepted.toml", accepted, TOML, verb=read_limits),
    "samples": Reader("replay {file}", "run.jsonl", samples, LINES),
    "samples-gz": Reader("replay {file}", "run.jsonl.gz", samples, LINES, gzip.compress),
    "csv-timing": Reader("audit {file} --all", "t.csv", table("e2e_timing.csv"), CSV),
    "md-timing": Reader("audit {file} --all", "t.md", piped, PIPED),
    "csv-attention": Reader("audit {file} --all", "t.csv", table("attention_timing.csv"), CSV),
    "csv-memory": Reader("audit {file} --all", "t.csv", table("memory.csv"), CSV),
    "nsys": Reader("kernels {file}", "n.sqlite", database, SQLITE),
    "nsys-range": Reader("kernels {file} --range softmax", "n.sqlite", database, SQLITE),
    "journal": Reader("{folder}", "machine/journal-1.jsonl", journal, LINES, verb=resume,
                      writes=""),
    "baseline": Reader("{file}", "machine/0001_a.json", lambda: launch(1), JSON, verb=baseline),
    "stored": Reader("{folder}", "machine/0007_base.json", lambda: dated(7, "base"), JSON,
                     beside=earlier, verb=compared, writes=""),
    "expedition": Reader("{folder}", "state.tar.xz", state, TAR, partial(lzma.compress, preset=0),
                         verb=lambda words: expedition.main(["page", "--out", *words]), writes="expedition.md"),
    "ceilings": Reader("{folder}", "transformer-perf-tests/ceilings-cpu.json", cached_ceilings, JSON,
                       verb=predict, writes="transformer-perf-tests/"),
    "trace": Reader("kernels {file}", "t.trace.json.gz", lambda: forward_and_backward().text(), JSON, gzip.compress),
}  # fmt: skip
