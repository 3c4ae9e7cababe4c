"""`python -m perf_tests kernels`: captures of Nsight Systems, traces of a kernel pass, records; what it refuses."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.report.screens import pass_lines
from perf_tests_suite.perf_tests.traces.kernels import kernel_values
from perf_tests_suite.perf_tests.traces.trace import read_sqlite
from tests.support.launch import Verb
from tests.support.synthetic import FORWARD, passed, record, with_passes
from tests.support.synthetic_nsys import SGEMM, one_layer, one_round, without_table
from tests.support.synthetic_trace import forward_and_backward, row

Kernels = Callable[..., tuple[int, str]]


@pytest.fixture
def kernels(verb: Verb) -> Kernels:
    """Return the exit code of the verb with these words, and what it says."""

    def run(*words: object) -> tuple[int, str]:
        code, *said = verb("kernels", *words)
        return code, "".join(said)

    return run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a capture, a trace and a record of one kernel pass, which has what nobody knows beside."""
    values = kernel_values(read_sqlite(one_layer(tmp_path / "report.sqlite")), {})
    values["attention"]["sideways"] = 3
    (tmp_path / "forward.trace.json.gz").write_bytes(gzip.compress(forward_and_backward().text()))
    (tmp_path / "record.json").write_text(json.dumps(with_passes(record(), passed(FORWARD, values=values))))
    return tmp_path


def test_captures_traces_and_records_are_shown_to_people_and_machines(files: Path, kernels: Kernels) -> None:
    named = kernels(files / "record.json", "--case", "ctx8")
    assert kernels(files / "record.json") == kernels(files / "record.json", "--case", case_name(FORWARD)) == named
    for shown in (named, kernels(files / "report.sqlite")):
        assert (shown[0], SGEMM in shown[1], "attention / softmax" in shown[1]) == (0, True, True)
    (values,) = json.loads(kernels(files / "report.sqlite", "--json")[1]).values()
    assert row(values["kernels"], name=SGEMM)["calls"] == 3
    assert values["nsys"] == {"EXPORT_SCHEMA_VERSION": "3.11.0"}
    summary = pass_lines(with_passes(record(), passed(FORWARD, values=values)))["kernels"][2]
    assert summary.split()[:4] == ["tiny", "8", "forward", "fp32"]


def test_a_trace_of_anybodys_profiler_is_read_packed_or_plain(tmp_path: Path, kernels: Kernels) -> None:
    text = forward_and_backward().text().replace(b'"round"', b'"ProfilerStep#3"')
    (tmp_path / "worker.pt.trace.json").write_bytes(text)
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(text))
    plain, packed = (kernels(tmp_path / name) for name in ("worker.pt.trace.json", "packed.json.gz"))
    assert plain[0] == packed[0] == 0
    assert plain[1].splitlines()[1:] == packed[1].splitlines()[1:]
    assert "attention / softmax" in plain[1]
    assert kernels(tmp_path / "worker.pt.trace.json", "--range", "softmax")[0] == 2


def test_a_copy_to_the_device_in_a_round_is_a_finding(tmp_path: Path, kernels: Kernels) -> None:
    with one_round(tmp_path / "report.sqlite") as export:
        export.kernel(SGEMM, 3000, 4000, 5000)
        export.copy_to_device(8000, 9000, 10_000, size=4096)
    code, shown = kernels(tmp_path / "report.sqlite")
    assert code == 1
    assert "host-to-device: 1 operations, 4096 bytes" in shown
    assert "1 copies from the host to the device ran inside a round" in shown


OFFERED = [
    ("forward.trace.json.gz", "--range softmax", "--range needs a capture of Nsight Systems."),
    ("record.json", "--range softmax", "--range needs a capture of Nsight Systems."),
    ("forward.trace.json.gz", "--case ctx8", "--case needs a record."),
    ("report.sqlite", "--case ctx8", "--case needs a record."),
    ("record.json", "--case ctx9", "--case ctx9: no case of"),
    ("report.sqlite", "--range sofmax", "no range is named 'sofmax'; the report has attention, backward"),
]  # fmt: skip


def test_a_choice_that_a_file_does_not_offer_is_a_usage_error(files: Path, kernels: Kernels) -> None:
    for name, words, sentence in OFFERED:
        assert kernels(files / name)[0] == 0
        code, said = kernels(files / name, *words.split())
        assert (code, len(said.splitlines()), sentence in said) == (2, 1, True), said


UNREADABLE: list[tuple[str, Callable[[], bytes] | None, str]] = [
    ("forward.trace.json.gz", lambda: gzip.compress(forward_and_backward().without_device().text()), "not use CUPTI"),
    ("report.sqlite", bytes, "it holds no kernels"),
    ("report.txt", bytes, "its suffix must be .nsys-rep"),
    ("report.json", lambda: b"{}", "is not a record of this suite"),
    ("report.nsys-rep", lambda: b"x", "nsys is not on the PATH"), ("gone.sqlite", None, "there is no such file"),
]  # fmt: skip


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged ones are the property's in tests/rules/test_damaged_files.py."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, content, sentence in UNREADABLE:
        if content is not None:
            (tmp_path / name).write_bytes(content())
        code, said = kernels(tmp_path / name)
        assert (code, len(said.splitlines()), sentence in said) == (3, 1, True), said
    code, said = kernels(without_table(one_layer(tmp_path / "layer.sqlite"), "StringIds"))
    assert (code, said.count("\n"), "the table StringIds, which is missing" in said) == (3, 1, True)


@pytest.mark.parametrize("script, code, said", [
    ('[ "$1 $2 $3" = "export --type sqlite" ] && cp report.sqlite "$7"', 0, SGEMM),
    ("echo 'unsupported report version' >&2; exit 1", 3, "newer version wrote the report: unsupported report version"),
])  # fmt: skip
def test_a_report_is_exported_by_nsys_beside_itself(
    script: str, code: int, said: str, files: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{files}:/bin:/usr/bin")
    monkeypatch.chdir(files)
    (files / "nsys").write_text(f"#!/bin/sh\n{script}\n")
    (files / "nsys").chmod(0o700)
    (files / "capture.nsys-rep").write_bytes(b"x")
    ended, shown = kernels(files / "capture.nsys-rep")
    assert (ended, (files / "capture.sqlite").exists()) == (code, code == 0)
    assert said in shown
