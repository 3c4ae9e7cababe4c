"""Other programs read what the suite writes: pytest-benchmark's own command, pandas and Apache Otava.

The last two are no part of the installation: `make readers` installs them into an environment of their own and names
it in READERS. Without it their tests say so; with it, one that is missing fails them.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.__main__ import main
from perf_tests_suite.perf_tests.records.columns import COLUMNS
from tests.support.documents import indented, page
from tests.support.launch import ROOT
from tests.support.launches_over_commits import COUNT, launch, with_step
from tests.support.synthetic import passed, record, timed, timed_attention, untimed, with_passes, write_record

READERS = Path(os.environ.get("READERS", "")).absolute()
needs_readers = pytest.mark.skipif(
    "READERS" not in os.environ,
    reason="READERS names no environment with pandas and Otava; see `make readers`",
)


def said(*words: str, **environment: str) -> str:
    """What a program of the readers' environment prints."""
    command = [str(READERS / "bin" / words[0]), *words[1:]]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


READ = """
import json, sys, pandas
def lines(path):
    return pandas.read_json(path, lines=True)

readers = {"csv": pandas.read_csv, "jsonl": lines}
frame = readers[sys.argv[1].rpartition(".")[2]](sys.argv[1])
numbers = [name for name in frame if pandas.api.types.is_numeric_dtype(frame[name])]
print(json.dumps({"columns": list(frame), "numbers": numbers, "batch": frame.batch_size.tolist(),
                  "median": frame.median_seconds.dropna().tolist(), "outcome": frame.outcome.tolist()}))
"""


@needs_readers
@pytest.mark.parametrize("chosen_format", ["csv", "jsonl"])
def test_pandas_reads_the_table_of_cases_with_numbers_as_numbers(chosen_format: str, tmp_path: Path) -> None:
    data = record([timed(seconds=(0.1, 0.3)), timed_attention((0.5, 0.5))], [untimed("lost")])
    write_record(tmp_path / "machine/0001_x.json", data)
    words = (f"--storage={tmp_path}", f"--format={chosen_format}", "-o", str(tmp_path / "out"))
    said("python", "-m", "perf_tests", "tables", *words)
    read = json.loads(said("python", "-c", READ, str(tmp_path / f"out/cases.{chosen_format}")))
    assert read["columns"] == list(COLUMNS)
    assert (read["median"], read["batch"]) == ([0.2, 0.5], [4, 4, 8])
    assert read["outcome"] == ["out_of_memory", "measured", "measured"]
    known = {"median_seconds", "rounds", "batch_size", "tokens_per_second", "needed_bytes", "threads", "d_model"}
    assert known <= set(read["numbers"])


@needs_readers
def test_pandas_reads_a_folder_of_records_by_the_references_lines(tmp_path: Path) -> None:
    write_record(tmp_path / ".benchmarks/machine/0001_x.json", record([timed(seconds=(0.1, 0.3))]))
    write_record(tmp_path / ".benchmarks/machine/0002_x.json", with_passes(record([]), passed("forward")))
    lines = [line for line in indented(page("reference")) if "benchmarks" in line]
    folder = f"import json, os, pathlib, pandas; os.chdir({str(tmp_path)!r})"
    read = said("python", "-c", "\n".join([folder, *lines, "print(len(records), rows['stats.median'].tolist())"]))
    assert read == "2 [0.2]\n"


OTAVA = """
tests:
  recorded:
    type: csv
    file: {file}
    time_column: time
    attributes: [commit, record]
    metrics:
      seconds: {{column: "forward tiny-ctx8-fp32-naive", direction: -1}}
    csv_options: {{delimiter: ",", quotechar: '"'}}
"""


@needs_readers
def test_otava_reads_the_history_and_finds_the_planted_step(tmp_path: Path) -> None:
    for place, data in enumerate(with_step(0.2)):
        write_record(tmp_path / f"machine/{place:04}_a.json", data)
    words = ["history", f"--storage={tmp_path}", "--export=otava", "-o", str(tmp_path / "history.csv")]
    assert main(words) == 0
    (tmp_path / "otava.yaml").write_text(OTAVA.format(file=tmp_path / "history.csv"))
    period = ("--since", "2029-01-01", "--until", "2031-01-01")
    shown = said("otava", "analyze", "recorded", *period, OTAVA_CONFIG=str(tmp_path / "otava.yaml"))
    assert sum(line.startswith("2030") for line in shown.splitlines()) == COUNT
    steps = [line.strip() for line in shown.splitlines() if line.strip().endswith("%")]
    assert len(steps) == 1
    assert 0.17 < float(steps[0].strip("+%")) / 100 < 0.23


SCHEMA = {"name": str, "value": float, "unit": str, "range": str, "extra": str}
"""`BenchmarkResult` in src/extract.ts of github-action-benchmark, for its customSmallerIsBetter.

It is in no package registry, so this restates its fields. The `extractResult` of v1.22.0 took an exported file as is.
"""
RANGE = re.compile(r"(\+-|±)\s*(?P<value>\d.*)")
"""Its `extractRangeInfo`, which draws the interval."""


def test_github_action_benchmark_is_given_its_own_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = [0.01, 0.011, 0.012, 0.013, 0.014, 0.015]
    for place, median in enumerate(seconds):
        write_record(tmp_path / f"machine/{place:04}_a.json", launch(1, median))
    assert main(["history", f"--storage={tmp_path}", "--export=github-action-benchmark"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    for row in rows:
        assert {"name", "value", "unit"} <= row.keys() <= SCHEMA.keys()
        assert all(type(value) is SCHEMA[name] for name, value in row.items())
    (row,) = rows
    assert (row["value"], row["unit"]) == (pytest.approx(12.5), "ms")
    found = RANGE.match(row["range"])
    assert found
    assert float(found["value"]) == pytest.approx(2.5), "six launches lie within 10 and 15 ms"
