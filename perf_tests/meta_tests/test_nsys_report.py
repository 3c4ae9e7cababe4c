"""`python -m perf_tests kernels` on what Nsight Systems exports: device time projected on ranges, in any version."""

import json
import stat
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.meta_tests.nsys_exports import (
    COPY,
    EXP,
    OTHERS,
    SGEMM,
    Export,
    one_layer,
    without_table,
)
from perf_tests.proofs.synthetic import FORWARD, passed, record, with_passes
from perf_tests.records.record import Json
from perf_tests.traces.kernel_table import kernel_values
from perf_tests.traces.nsys_sqlite import RangeError, read_sqlite
from perf_tests.views.screens.lines import case_name


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_layer(tmp_path_factory.mktemp("nsys") / "report.sqlite")


@pytest.fixture(scope="module")
def values(report: Path) -> Json:
    return kernel_values(read_sqlite(report), {})


def row(rows: list[Json], **names: object) -> Json:
    (found,) = (row for row in rows if names.items() <= row.items())
    return found


def test_only_the_measured_rounds_count(values: Json) -> None:
    assert (values["rounds"], values["launches"]) == (1, 5)
    assert values["wall_seconds"] == pytest.approx(900e-6)
    assert values["kernel_seconds"] == pytest.approx(240e-6)


def test_a_range_has_the_time_of_its_kernels_and_not_the_hosts(values: Json) -> None:
    """The range lasts for 15 us on the host; its kernel runs for 60 us, 190 us later."""
    softmax = row(values["regions"], region="attention / softmax")
    assert softmax["seconds"] == pytest.approx(60e-6)
    assert row(values["attention"]["forward"]["parts"], part="softmax")["host_seconds"] == pytest.approx(15e-6)


def test_kernels_of_autograds_thread_belong_to_the_backward_pass(values: Json) -> None:
    back = row(values["regions"], is_backward=True)
    assert (back["region"], back["launches"], back["share_of_direction"]) == ("elsewhere", 2, 1.0)


def test_autograds_own_ranges_give_backward_kernels_back_to_their_module(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.range("round", 0, 100_000)
    export.range("softmax", 1000, 10_000)
    export.range("aten::exp, seq = 17, op_id = 4", 2000, 9000, domain=OTHERS)
    export.kernel(EXP, 3000, 4000, 5000)
    thread = 77 * 2**24 + 101
    node = "autograd::engine::evaluate_function: ExpBackward0, seq = 17, op_id = 9"
    export.range(node, 20_000, 40_000, thread, OTHERS)
    export.kernel(COPY, 25_000, 26_000, 30_000, thread)
    export.finish()
    regions = kernel_values(read_sqlite(tmp_path / "report.sqlite"), {})["regions"]
    assert row(regions, is_backward=True)["region"] == "softmax"


def test_ranges_of_other_domains_are_left_out(report: Path) -> None:
    assert all("somebody else's" not in kernel.regions for kernel in read_sqlite(report).kernels)


def test_delays_from_launch_to_start_are_those_of_the_queue(values: Json) -> None:
    assert values["launch_to_start"]["max_seconds"] == pytest.approx(240e-6)


def test_one_range_can_be_looked_at_alone(report: Path) -> None:
    attention = kernel_values(read_sqlite(report, "attention"), {})
    assert attention["launches"] == 3
    assert attention["wall_seconds"] == pytest.approx(140e-6)  # from the first kernel's start to the last one's end
    assert attention["busy_share"] == pytest.approx(1)


@pytest.mark.parametrize("name", ["sofmax", "somebody else's"])
def test_a_range_that_nothing_matches_is_an_error_that_lists_the_known(report: Path, name: str) -> None:
    with pytest.raises(RangeError, match=r"no range is named .* the report has attention, backward, block 0"):
        read_sqlite(report, name)


def test_a_range_without_kernels_is_an_error_and_no_table_of_zeros(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.range("round", 0, 100_000)
    export.range("loss", 1000, 2000)
    export.kernel(EXP, 3000, 4000, 5000)
    export.finish()
    with pytest.raises(RangeError, match="no kernel was launched in a range named 'loss'"):
        read_sqlite(tmp_path / "report.sqlite", "loss")


def test_an_export_of_an_older_version_says_the_same(tmp_path: Path, values: Json) -> None:
    """Kernels with their names as text, and without their process."""
    older = kernel_values(read_sqlite(one_layer(tmp_path / "old.sqlite", old=True)), {})
    assert older == values


def test_a_report_of_another_program_without_ranges_is_one_round(tmp_path: Path) -> None:
    path = without_table(one_layer(tmp_path / "report.sqlite"), "NVTX_EVENTS")
    whole = kernel_values(read_sqlite(path), {})
    assert (whole["launches"], whole["rounds"]) == (6, 1)
    assert {row["region"] for row in whole["regions"]} == {"elsewhere"}


def test_a_range_that_never_ended_is_passed_over(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.range("round", 0, 100_000)
    export.range("forward", 1000, None)
    export.kernel(EXP, 3000, 4000, 5000)
    export.finish()
    assert read_sqlite(tmp_path / "report.sqlite").kernels[0].regions == ()


def test_a_copy_to_the_device_in_a_round_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = Export(tmp_path / "report.sqlite")
    export.range("round", 0, 100_000)
    export.kernel(EXP, 3000, 4000, 5000)
    export.copy_to_device(8000, 9000, 10_000, size=4096)
    export.finish()
    assert main(["kernels", str(tmp_path / "report.sqlite")]) == 1
    shown = capsys.readouterr().out
    assert "host-to-device: 1 operations, 4096 bytes" in shown
    assert "1 copies from the host to the device ran inside a round" in shown


def test_the_verb_prints_a_table_and_with_json_the_same_for_machines(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", str(report)]) == 0
    table = capsys.readouterr().out
    assert main(["kernels", str(report), "--json"]) == 0
    (values,) = json.loads(capsys.readouterr().out).values()
    assert SGEMM in table
    assert "attention / softmax" in table
    assert row(values["kernels"], name=SGEMM)["calls"] == 3
    assert values["nsys"] == {"EXPORT_SCHEMA_VERSION": "3.11.0"}


def test_a_record_with_a_kernel_pass_is_read_too(
    tmp_path: Path, values: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(with_passes(record(), passed(FORWARD, values=values))))
    for case in ("ctx8", case_name(FORWARD)):
        assert main(["kernels", str(path), "--case", case]) == 0
        assert SGEMM in capsys.readouterr().out


def test_a_case_that_a_record_lacks_is_one_sentence_with_those_that_it_has(
    tmp_path: Path, values: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(with_passes(record(), passed(FORWARD, values=values))))
    assert main(["kernels", str(path), "--case", "ctx9"]) == 3
    said = capsys.readouterr().out
    assert "'ctx9'" in said
    assert case_name(FORWARD) in said


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("report.sqlite", b"", "it holds no kernels"),
        ("report.sqlite", b"no database at all, but long enough to be looked at as one", "it is not a database"),
        ("report.txt", b"", "its suffix must be .nsys-rep"),
        ("report.json", b"{}", "is no record of this suite"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["kernels", str(path)]) == 3
    said = capsys.readouterr().out
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_names_without_the_table_that_explains_them_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = without_table(one_layer(tmp_path / "report.sqlite"), "StringIds")
    assert main(["kernels", str(path)]) == 3
    said = capsys.readouterr().out
    assert "the table StringIds, which is missing" in said
    assert len(said.splitlines()) == 1


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", str(tmp_path / "report.sqlite")]) == 3
    assert "there is no such file" in capsys.readouterr().out


def test_an_unknown_range_is_a_usage_error(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", str(report), "--range", "sofmax"]) == 2
    assert "no range is named 'sofmax'" in capsys.readouterr().out


def planted_nsys(folder: Path, script: str) -> None:
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_report_without_nsys_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "report.nsys-rep").write_bytes(b"x")
    assert main(["kernels", str(tmp_path / "report.nsys-rep")]) == 3
    assert "nsys is not on the PATH" in capsys.readouterr().out


def test_a_report_is_exported_beside_itself_by_nsys(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    (tmp_path / "capture.nsys-rep").write_bytes(b"x")
    planted_nsys(tmp_path, f'[ "$1 $2 $3" = "export --type sqlite" ] && cp {report} "$7"')
    assert main(["kernels", str(tmp_path / "capture.nsys-rep")]) == 0
    assert (tmp_path / "capture.sqlite").exists()
    assert SGEMM in capsys.readouterr().out


def test_a_report_that_nsys_refuses_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    (tmp_path / "capture.nsys-rep").write_bytes(b"x")
    planted_nsys(tmp_path, "echo 'unsupported report version' >&2; exit 1")
    assert main(["kernels", str(tmp_path / "capture.nsys-rep")]) == 3
    assert "possibly because a newer version wrote the report: unsupported report version" in capsys.readouterr().out
