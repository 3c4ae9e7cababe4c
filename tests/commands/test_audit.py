"""`python -m perf_tests audit`: its exit codes, what it prints of many findings, and the files it refuses."""

import json
import lzma
import re
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from tests.support.audited_tables import TOO_FAST, Row, model_row, written

NO_GPU = TOO_FAST | {"gpu": ""}


@pytest.mark.parametrize("row, words, code", [
    (model_row(), "", 0), (TOO_FAST, "", 1), (NO_GPU, "", 0), (NO_GPU, "--gpu A100-80GB", 1),
    (NO_GPU, "--gpu memory=80,bandwidth=2000,fp32=100", 0), (NO_GPU, "--gpu Z9", 2),
])  # fmt: skip
def test_the_exit_code_is_1_where_a_figure_is_accused(
    row: Row, words: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended: object = main(["audit", str(written(tmp_path, [row])), "--json", *words.split()])
    except SystemExit as error:
        ended = error.code
    said = capsys.readouterr()
    assert ended == code
    if code == 2:
        assert "known: P100" in said.err
        return
    data = json.loads(said.out)
    assert (data["kind"], data["figures"], data["counts"]["impossible"]) == ("model timing", 1, code)
    assert [finding["places"] for finding in data["findings"]] == [["line 2"]] * code


def test_findings_are_shown_in_groups_the_worst_first_in_bounded_room_and_unreadable_rows_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [model_row(size, mean_ms=time, std_ms=std) for size, time, std in (
        ("small", "100", "70"), ("medium", "200", "170"), ("large", "500", "300"), ("xl", "90", "1"),
        ("small", "fast", ""), ("small", "slow", ""),
    )]  # fmt: skip
    path = written(tmp_path, rows)
    assert main(["audit", str(path)]) == 1
    shown = capsys.readouterr().out
    groups = [line for line in shown.splitlines() if "Most likely" in line]
    assert [line.partition(":")[0] for line in groups] == ["impossible", "suspicious"]
    assert re.search(r"^impossible: .*, limit .* Most likely: [^.]+\. Line 5, ", groups[0])
    assert re.search(r"Most likely: [^.]+\. The worst of 3 like it: lines 2, 3, 4\. Line 3, ", groups[1])
    assert "not judged: 2: mean_ms is not a number (first line 6: 'fast')" in shown
    main(["audit", str(path), "--all"])
    assert capsys.readouterr().out.count("Most likely") == 4
    monkeypatch.setattr("perf_tests.audit.tables.MOST_GROUPS", 5)
    assert main(["audit", str(written(tmp_path, [TOO_FAST | {"source": str(number)} for number in range(30)]))]) == 1
    shown = capsys.readouterr().out
    assert shown.count("Most likely") == 6
    assert "The worst of 25 like it" in shown


def test_what_would_fill_the_memory_is_torn_or_never_ends_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perf_tests.audit.rows.MOST_UNPACKED_BYTES", 1000)
    large, torn = tmp_path / "large.csv.xz", tmp_path / "torn.csv.xz"
    large.write_bytes(lzma.compress(b"0" * 1001))
    torn.write_bytes(large.read_bytes()[:20])
    for path, said in (
        (large, "cannot be used: it is larger than 1000 bytes"), (torn, "cannot be read"),
        (tmp_path / "none.csv", "cannot be read"), ("/dev/zero", "is a device, which may never end"),
    ):  # fmt: skip
        assert main(["audit", str(path)]) == 3
        assert f"{path} {said}" in capsys.readouterr().err
