"""`python -m perf_tests audit`: its exit codes, what it prints of many findings, and files larger than a window."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.audit.tables import audit_file, audits_of
from perf_tests.verbs.audit import Tally
from tests.support.foreign_tables import model_row, model_table, written


def test_exit_codes_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine, bad = written(tmp_path, model_table(), "fine.csv"), written(tmp_path, [model_row(mean_ms="90")], "bad.csv")
    assert main(["audit", str(fine)]) == 0
    capsys.readouterr()
    assert main(["audit", str(bad), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["counts"]["impossible"], said["findings"][0]["places"]) == (1, ["line 2"])
    assert (said["kind"], said["figures"], said["not_judged"]) == ("model timing", 1, [])
    assert main(["audit", str(tmp_path / "none.csv")]) == 3


def test_suspicions_are_shown_in_groups_the_worst_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [model_row(size, mean_ms=time, std_ms=std) for size, time, std in (
        ("small", "100", "70"), ("medium", "200", "170"), ("large", "500", "300"), ("xl", "90", "1"),
    )]  # fmt: skip
    path = written(tmp_path, rows)
    assert main(["audit", str(path)]) == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if "Most likely" in line]
    assert [line.partition(":")[0] for line in shown] == ["line 5", "line 3"]
    assert shown[1].endswith("The worst of 3 like it: lines 2, 3, 4.")
    main(["audit", str(path), "--all"])
    assert capsys.readouterr().out.count("Most likely") == 4


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_packed_table_is_read_as_the_plain_one(suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    plain = written(tmp_path, [*model_table(), model_row(mean_ms="90")])
    packed = tmp_path / f"packed.csv.{suffix}"
    packed.write_bytes(pack(plain.read_bytes()))
    assert audit_file(packed) == audit_file(plain)


def test_a_packed_table_that_would_fill_the_memory_or_is_torn_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perf_tests.audit.rows.MOST_UNPACKED_BYTES", 1000)
    large, torn = tmp_path / "large.csv.xz", tmp_path / "torn.csv.xz"
    large.write_bytes(lzma.compress(b"0" * 1001))
    assert main(["audit", str(large)]) == 3
    assert f"{large} cannot be used: it is larger than 1000 bytes" in capsys.readouterr().err
    torn.write_bytes(large.read_bytes()[:20])
    assert main(["audit", str(torn)]) == 3
    assert f"{torn} cannot be read" in capsys.readouterr().err


def test_a_device_that_may_never_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "/dev/zero"]) == 3
    assert "/dev/zero is a device, which may never end" in capsys.readouterr().err


def test_a_file_is_read_in_parts_and_counted_as_a_whole(tmp_path: Path) -> None:
    path = written(tmp_path, [*model_table(), *[model_row(mean_ms="90")] * 3])
    whole, parts = audit_file(path), list(audits_of(path, window=10))
    assert max(len(part.places) for part in parts) == 10
    assert sum(part.counts()["impossible"] for part in parts) == whole.counts()["impossible"] == 3
    assert [place for part in parts for place in part.places] == whole.places


def test_alike_findings_of_many_sources_take_bounded_room(tmp_path: Path) -> None:
    rows = [model_row(mean_ms="90", source=f"source {number}") for number in range(30)]
    tally = Tally()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf_tests.verbs.audit.MOST_GROUPS", 5)
        for part in audits_of(written(tmp_path, rows)):
            tally.add(part)
    assert len(tally.groups) == 6
    assert sum(group.findings for group in tally.groups.values()) == 30


def test_a_gpu_given_by_hand_stands_for_rows_that_name_none(tmp_path: Path) -> None:
    path = written(tmp_path, [model_row(gpu="", mean_ms="90")])
    assert main(["audit", str(path)]) == 0
    assert main(["audit", str(path), "--gpu", "A100-80GB"]) == 1
    assert main(["audit", str(path), "--gpu", "memory=80,bandwidth=2000,fp32=100"]) == 0


def test_an_unknown_gpu_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(written(tmp_path, model_table())), "--gpu", "Z9"])
    assert ended.value.code == 2
    assert "known: P100" in capsys.readouterr().err
