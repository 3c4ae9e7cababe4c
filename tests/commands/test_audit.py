"""`python -m perf_tests audit`: its exit codes, what it prints of many findings, and the files it refuses."""

import json
import lzma
import re
from pathlib import Path

import pytest

from tests.support.audited_tables import TOO_FAST, Row, model_row, written
from tests.support.launch import Verb

NO_GPU = TOO_FAST | {"gpu": ""}


@pytest.mark.parametrize("row, words, code", [
    (model_row(), "", 0), (TOO_FAST, "", 1), (NO_GPU, "--gpu A100-80GB", 1),
    (NO_GPU, "--gpu memory=80,bandwidth=2000,fp32=100", 0), (TOO_FAST | {"mean_ms": "1e-310", "std_ms": ""}, "", 1),
])  # fmt: skip
def test_the_exit_code_is_1_where_one_is_impossible(
    row: Row, words: str, code: int, tmp_path: Path, verb: Verb
) -> None:
    path = written(tmp_path, [row])
    ended, shown, _ = verb("audit", path, "--json", *words.split())
    data = json.loads(shown, parse_constant=pytest.fail)
    assert (ended, data["kind"], data["figures"], data["counts"]["impossible"]) == (code, "model timing", 1, code)
    assert [(one["verdict"], one["places"]) for one in data["findings"]] == [("impossible", ["line 2"])] * code
    ended, _, said = verb("audit", path, "--gpu", "Z9")
    assert (ended, "known: P100" in said) == (2, True)


def test_a_table_of_which_nothing_can_be_judged_is_3_and_says_what_it_lacks(tmp_path: Path, verb: Verb) -> None:
    """One figure that can be judged is enough: the others are counted with their reasons."""
    for rows, code, words in (
        ([NO_GPU] * 2, 3, "Of the 2 figures of"), ([NO_GPU], 3, "line 2: no GPU stated. State what is missing"),
        ([model_row(), NO_GPU], 0, ""), ([TOO_FAST, NO_GPU], 1, ""),
        ([model_row(mean_ms="fast")], 3, "line 2: mean_ms is not a number: 'fast'"),
    ):  # fmt: skip
        path = written(tmp_path, rows)
        for option in ([], ["--json"]):
            ended, shown, said = verb("audit", path, *option)
            assert (ended, words in said, bool(said)) == (code, True, code == 3), said
        assert json.loads(shown)["counts"]["not judged"] == sum(row["gpu"] == "" or code == 3 for row in rows)
    path.write_text(",".join(model_row()) + "\n")
    assert verb("audit", path) == (3, "", f"{path} has a header but no rows.\n")


def test_findings_are_shown_in_groups_the_worst_first_in_bounded_room_and_unreadable_rows_with_the_first(
    tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [model_row(size, mean_ms=time) | {"source": source} for size, time, source in (
        ("large", "90", "a"), ("xl", "90", "b"), ("xl", "200", "a"), ("large", "80", "a"), ("small", "fast", "a"),
        ("small", "slow", "a"), ("small", "100", "a"),
    )]  # fmt: skip
    code, shown, _ = verb("audit", written(tmp_path, rows))
    groups = [line for line in shown.splitlines() if "no machine exceeds" in line]
    assert (code, len(groups)) == (1, 2)
    assert re.search(r"^impossible: 90 ms is .*, limit .*peak rate.* Line 3, b\.$", groups[0])
    assert re.search(r"large ctx 512 .* The worst of 3 like it\. Line 5, a\.$", groups[1])
    assert "impossible: 4 (" in shown
    assert "not judged: 2: mean_ms is not a number (first line 6: 'fast')" in shown
    assert shown.endswith("7 figures of model timing, 1 of them possible\n")
    assert verb("audit", tmp_path / "table.csv", "--all")[1].count("no machine exceeds") == 4
    monkeypatch.setattr("perf_tests_suite.perf_tests.audit.tables.MOST_GROUPS", 5)
    sources = (f"\x1b[2J{number}" for number in range(30))
    code, shown, _ = verb("audit", written(tmp_path, [TOO_FAST | {"source": source} for source in sources]))
    assert (code, shown.count("no machine"), "The worst of 25 like it" in shown) == (1, 6, True)
    assert all(map(str.isprintable, shown.splitlines()))


def test_what_would_fill_the_memory_is_torn_or_never_ends_is_refused(
    tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perf_tests_suite.perf_tests.audit.rows.MOST_UNPACKED_BYTES", 1000)
    large, torn = tmp_path / "large.csv.xz", tmp_path / "torn.csv.xz"
    large.write_bytes(lzma.compress(b"0" * 1001))
    torn.write_bytes(large.read_bytes()[:20])
    for path, words in (
        (large, "cannot be used: it is larger than 1000 bytes"), (torn, "cannot be read"),
        (tmp_path / "none.csv", "cannot be read"), (Path("/dev/zero"), "is a device, which may never end"),
    ):  # fmt: skip
        code, _, said = verb("audit", path)
        assert (code, f"{path} {words}" in said) == (3, True), said
