"""`python -m perf_tests kernels`: captures of Nsight Systems, traces of a kernel pass, records; what it refuses."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.records.columns import case_name
from perf_tests.records.record import Json
from perf_tests.report.screens import kernel_summary_lines
from perf_tests.traces.kernels import kernel_values
from perf_tests.traces.trace import read_chrome_trace, read_sqlite
from perf_tests.verbs.kernels import detail_lines
from tests.support.synthetic import FORWARD, passed, record, with_passes
from tests.support.synthetic_nsys import EXP, SGEMM, one_layer, one_round, without_table
from tests.support.synthetic_trace import forward_and_backward, row


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_layer(tmp_path_factory.mktemp("nsys") / "report.sqlite")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


@pytest.fixture(scope="module")
def values(report: Path) -> Json:
    return kernel_values(read_sqlite(report), {})


Verb = Callable[..., tuple[int, str]]


@pytest.fixture
def kernels(capsys: pytest.CaptureFixture[str]) -> Verb:
    """The exit code of the verb with these words, and what it printed."""

    def run(*words: object) -> tuple[int, str]:
        code = main(["kernels", *map(str, words)])
        return code, "".join(capsys.readouterr())

    return run


def test_the_tables_show_each_figure_to_a_person() -> None:
    values = kernel_values(read_chrome_trace(forward_and_backward().text()), {"phase": "forward_backward"}, 700e-6)
    shown = "\n".join(detail_lines(values))
    for words in (SGEMM, "matrix product", "attention / softmax, backward", "value_product", "idle between kernels"):
        assert words in shown
    summary = kernel_summary_lines([passed(FORWARD, values=values)])[1]
    assert summary.split()[:4] == ["forward", "tiny-ctx8-fp32-naive", "9", "4"]


def test_a_copy_to_the_device_in_a_round_is_a_finding(path: Path, kernels: Verb) -> None:
    with one_round(path) as export:
        export.kernel(EXP, 3000, 4000, 5000)
        export.copy_to_device(8000, 9000, 10_000, size=4096)
    code, shown = kernels(path)
    assert code == 1
    assert "host-to-device: 1 operations, 4096 bytes" in shown
    assert "1 copies from the host to the device ran inside a round" in shown


def test_the_verb_prints_a_table_and_with_json_the_same_for_machines(report: Path, kernels: Verb) -> None:
    code, table = kernels(report)
    assert code == 0
    (values,) = json.loads(kernels(report, "--json")[1]).values()
    assert SGEMM in table
    assert "attention / softmax" in table
    assert row(values["kernels"], name=SGEMM)["calls"] == 3
    assert values["nsys"] == {"EXPORT_SCHEMA_VERSION": "3.11.0"}


def test_a_record_with_a_kernel_pass_is_read_too(tmp_path: Path, values: Json, kernels: Verb) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(with_passes(record(), passed(FORWARD, values=values))))
    for case in ("ctx8", case_name(FORWARD)):
        code, shown = kernels(path, "--case", case)
        assert (code, SGEMM in shown) == (0, True)
    code, said = kernels(path, "--case", "ctx9")
    assert code == 2
    assert "--case ctx9" in said
    assert case_name(FORWARD) in said


def test_the_trace_of_a_kernel_pass_is_read_too(tmp_path: Path, kernels: Verb) -> None:
    path = tmp_path / "forward.trace.json.gz"
    path.write_bytes(gzip.compress(forward_and_backward().text()))
    assert "9 kernels in a round" in kernels(path)[1]


@pytest.mark.parametrize(
    "name, words, sentence",
    [
        ("forward.trace.json.gz", "--range softmax", "--range needs a capture of Nsight Systems."),
        ("record.json", "--range softmax", "--range needs a capture of Nsight Systems."),
        ("forward.trace.json.gz", "--case ctx8", "--case needs a record."),
        ("report.sqlite", "--case ctx8", "--case needs a record."),
    ],
)
def test_a_choice_that_a_file_does_not_offer_is_refused_and_not_passed_over(
    tmp_path: Path, values: Json, kernels: Verb, name: str, words: str, sentence: str
) -> None:
    (tmp_path / "forward.trace.json.gz").write_bytes(gzip.compress(forward_and_backward().text()))
    (tmp_path / "record.json").write_text(json.dumps(with_passes(record(), passed(FORWARD, values=values))))
    one_layer(tmp_path / "report.sqlite")
    path = tmp_path / name
    assert kernels(path)[0] == 0
    assert kernels(path, *words.split()) == (2, f"{path}: {sentence}\n")


def packed_without_kernels() -> bytes:
    return gzip.compress(forward_and_backward().without_device().text())


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("forward.trace.json.gz", packed_without_kernels, "could not use CUPTI"),
        ("forward.trace.json.gz", lambda: packed_without_kernels()[:50], "cannot be read"),
        ("report.sqlite", bytes, "it holds no kernels"),
        (
            "report.sqlite",
            lambda: b"no database at all, but long enough to be looked at as one",
            "it is not a database",
        ),
        ("report.txt", bytes, "its suffix must be .nsys-rep"),
        ("report.json", lambda: b"{}", "is no record of this suite"),
        ("report.nsys-rep", lambda: b"x", "nsys is not on the PATH"),
        ("report.sqlite", None, "there is no such file"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path,
    name: str,
    content: Callable[[], bytes] | None,
    sentence: str,
    kernels: Verb,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if content is not None:
        (tmp_path / name).write_bytes(content())
    code, said = kernels(tmp_path / name)
    assert code == 3
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_names_without_the_table_that_explains_them_are_one_sentence(path: Path, kernels: Verb) -> None:
    code, said = kernels(without_table(one_layer(path), "StringIds"))
    assert code == 3
    assert "the table StringIds, which is missing" in said
    assert len(said.splitlines()) == 1


def test_an_unknown_range_is_a_usage_error(report: Path, kernels: Verb) -> None:
    code, said = kernels(report, "--range", "sofmax")
    assert code == 2
    assert "no range is named 'sofmax'" in said


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A capture that an nsys, which is this shell script, is to export."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def planted(script: str) -> Path:
        (tmp_path / "nsys").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nsys").chmod(0o700)
        (tmp_path / "capture.nsys-rep").write_bytes(b"x")
        return tmp_path / "capture.nsys-rep"

    return planted


def test_nsys_exports_a_report_beside_itself(capture: Callable[[str], Path], report: Path, kernels: Verb) -> None:
    path = capture(f'[ "$1 $2 $3" = "export --type sqlite" ] && cp {report} "$7"')
    code, shown = kernels(path)
    assert code == 0
    assert path.with_suffix(".sqlite").exists()
    assert SGEMM in shown


def test_a_report_that_nsys_refuses_is_one_sentence(capture: Callable[[str], Path], kernels: Verb) -> None:
    code, said = kernels(capture("echo 'unsupported report version' >&2; exit 1"))
    assert code == 3
    assert "possibly because a newer version wrote the report: unsupported report version" in said
