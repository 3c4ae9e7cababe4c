"""`python -m perf_tests audit`: its exit codes, what it prints of many findings, and the files it refuses."""

import json
import lzma
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.audit.tables import audits_of
from perf_tests.verbs.audit import Tally
from tests.support.audited_tables import model_row, model_table, written

TOO_FAST = model_row(mean_ms="90")


def test_exit_codes_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine, bad = written(tmp_path, model_table(), "fine.csv"), written(tmp_path, [TOO_FAST], "bad.csv")
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


def test_unreadable_rows_are_shown_with_the_first_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [model_row(mean_ms=text) for text in ("280", "fast", "slow")]
    assert main(["audit", str(written(tmp_path, rows))]) == 0
    assert "not judged: 2: mean_ms is not a number (first line 3: 'fast')" in capsys.readouterr().out


def test_alike_findings_of_many_sources_take_bounded_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [model_row(mean_ms="90", source=f"source {number}") for number in range(30)]
    monkeypatch.setattr("perf_tests.verbs.audit.MOST_GROUPS", 5)
    tally = Tally()
    for part in audits_of(written(tmp_path, rows)):
        tally.add(part)
    assert len(tally.groups) == 6
    assert sum(group.findings for group in tally.groups.values()) == 30


def test_a_gpu_may_be_given_by_its_name_or_its_peaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, [model_row(gpu="", mean_ms="90")])
    assert main(["audit", str(path)]) == 0
    assert main(["audit", str(path), "--gpu", "A100-80GB"]) == 1
    assert main(["audit", str(path), "--gpu", "memory=80,bandwidth=2000,fp32=100"]) == 0
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(path), "--gpu", "Z9"])
    assert ended.value.code == 2
    assert "known: P100" in capsys.readouterr().err


def test_what_would_fill_the_memory_is_torn_or_never_ends_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perf_tests.audit.rows.MOST_UNPACKED_BYTES", 1000)
    large, torn = tmp_path / "large.csv.xz", tmp_path / "torn.csv.xz"
    large.write_bytes(lzma.compress(b"0" * 1001))
    torn.write_bytes(large.read_bytes()[:20])
    for path, said in (
        (large, f"{large} cannot be used: it is larger than 1000 bytes"),
        (torn, f"{torn} cannot be read"),
        ("/dev/zero", "/dev/zero is a device, which may never end"),
    ):
        assert main(["audit", str(path)]) == 3
        assert said in capsys.readouterr().err
