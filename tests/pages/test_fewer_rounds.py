"""What fewer rounds of a launch would cost, on launches whose scatter is known and on the kept ones."""

import sys
from pathlib import Path

import pytest

from claims import fewer_rounds
from claims.fewer_rounds import CLOCKS, growth, part_of
from perf_tests.gate.samples import Rules, read_samples
from tests.support.documents import ROOT, page
from tests.support.simulated_launches import SimulatedCase, gate_run

(KEPT,) = (ROOT / ".benchmarks/epyc-2core/gate/cost").glob("*.jsonl.gz")


def test_a_part_of_a_launch_has_both_orders_and_their_very_rounds() -> None:
    line = gate_run([SimulatedCase("a")], Rules(), seed=1, most_pairs=1).measurements[0]
    part = part_of(line, 4)
    assert part is not None
    assert sorted(part.orders) == ["ABBA", "ABBA", "BAAB", "BAAB"]
    places = [line.base_seconds.tolist().index(rounds) for rounds in part.base_seconds.tolist()]
    assert part.head_seconds.tolist() == [line.head_seconds[place].tolist() for place in places]
    assert part_of(part, 6) is None


def test_where_launches_alone_scatter_a_part_of_the_rounds_would_do() -> None:
    cases = [SimulatedCase(f"a::{place}", pair_spread=0.5) for place in range(8)]
    assert growth([gate_run(cases, Rules(), seed=1)], 2, "wall") < 1.1


def test_the_page_says_by_how_much_the_kept_launches_would_scatter_more() -> None:
    found = {round(growth([read_samples(KEPT)], 4, clock), 1) for clock in CLOCKS}
    assert found == {1.8}
    said = f"four quadruples scatters by {min(found)} times as much as that of all"
    assert said in " ".join(page("gate").split())


def test_the_proof_prints_its_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fewer_rounds", str(KEPT)])
    assert fewer_rounds.main() == 0
    assert capsys.readouterr().out.endswith(": holds\n")


def test_a_missing_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fewer_rounds", str(tmp_path / "none.jsonl")])
    assert fewer_rounds.main() == 3
    assert len(capsys.readouterr().out.splitlines()) == 1
