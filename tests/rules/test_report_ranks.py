"""What several ranks bring: efficiency over the row that a row is relative to, the slowest rank."""

from typing import Any

import pytest

from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.report.ranks import conclude, rank_lines, scalings
from tests.support.synthetic import record, timed


def row(name: str, rate: float, world: int = 1, parallel: str | None = "ddp", **changes: Any) -> Json:
    """A row of `rate` tokens a second on all ranks together; `parallel` None is a device alone."""
    shared: Json = {"world": world, "scaling": "strong", "nodes": 1, "backend": "gloo"} if parallel else {}
    return timed(name, tokens_per_second=rate, **{"parallel": parallel, **shared, **changes})


ONE, TWO, DEVICE = row("one", 10.0), row("two", 16.0, 2), row("device", 12.0, parallel=None)


FOUR = row("four", 24.0, 4)
RELATIVE: dict[str, tuple[list[Json], str | None, float]] = {
    "one rank": ([ONE, TWO, DEVICE, FOUR], "one", 0.6),
    "a device": ([TWO, DEVICE, FOUR], "device", 0.5),
    "fewest ranks": ([TWO, row("three", 21.0, 3), FOUR], "two", 0.75),
    "another way": ([row("other", 8.0, parallel="fsdp2"), DEVICE, FOUR], "device", 0.5),
    "another size": ([row("large", 8.0, size="large"), FOUR], None, 0.0),
    "another scaling": ([row("weak", 8.0, 2, scaling="weak"), FOUR], None, 0.0),
    "more or no rate": ([row("eight", 8.0, 8), row("none", 0.0), FOUR], None, 0.0),
}


@pytest.mark.parametrize("name", RELATIVE)
def test_a_row_is_relative_to_its_way_on_fewest_ranks(name: str) -> None:
    rows, base, efficiency = RELATIVE[name]
    found: list[Any] = [scaling for of, *scaling in scalings(rows) if of["fullname"] == "four"]
    assert found == ([] if base is None else [[pytest.approx(efficiency), base]])


EXPOSED: Json = {"exposed_communication_seconds": 0.1, "exposed_communication_interval": [-0.05, 0.15]}
TOLD: dict[str, tuple[Json, str]] = {
    "the slowest": ({"rank_seconds": [[1.0, 1.1], [1.2, 1.4], [1.0, 1.1]]}, "rank 1, +23.8%"),
    "what is exposed": (EXPOSED, "100 ms (0 to 150 ms)"),
    "more exposed than a round takes": ({"exposed_communication_seconds": 2.0}, "2 s (few rounds) (!)"),
    "nothing exposed in few rounds": ({"exposed_communication_seconds": -0.1}, "0 s (few rounds)"),
    "what is sent": ({"sent_bytes": 12_345_678}, "11.77 MiB"),
    "peaks": ({"rank_peak_allocated_bytes": [2**21, 3 * 2**20]}, "2.000 MiB to 3.000 MiB"),
    "equal peaks": ({"rank_peak_allocated_bytes": [2**21, 2**21]}, "2.000 MiB"),
}


@pytest.mark.parametrize("what", TOLD)
def test_a_row_of_several_ranks_tells(what: str) -> None:
    changes, words = TOLD[what]
    _, told, *_ = rank_lines([row("two", 16.0, 2, **changes), DEVICE])
    assert words in told
    assert "66.7%" in told
    assert rank_lines([DEVICE]) == []


def test_the_table_drops_columns_until_it_fits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(f"full_step small-2layers-ctx128-fp32-naive-ddp-world{n}", 16.0, n, **EXPOSED) for n in (2, 4)]
    shown = []
    for columns in ("300", "100", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        shown.append(rank_lines(rows))
    whole, narrow, narrowest = shown
    assert len(whole[0]) > 100 >= max(len(line) for line in narrow[:3])
    known = ("median", "exposed", "efficiency", "sent", "relative to")
    assert [name for name in known if name in narrow[0]] == ["median", "exposed", "efficiency"]
    assert (narrow[3].endswith("a wider terminal has every column"), "every column" in whole[3]) == (True, False)
    assert len(narrowest[0]) <= 80


def test_an_efficiency_above_one_and_a_part_longer_than_its_round_are_marked_as_noise() -> None:
    lines = rank_lines([row("two", 40.0, 2, exposed_communication_seconds=2.0), DEVICE])
    assert "166.7% (!)" in lines[1]
    assert lines[-1].startswith("(!) noise")
    assert "(!)" not in "".join(rank_lines([row("two", 16.0, 2, **EXPOSED), DEVICE]))


def test_a_run_says_which_of_its_own_rows_are_impossible() -> None:
    """Not one that this machine's best product allows."""
    data = record([timed(name, matmul_ceiling_tflops_per_second=rate) for name, rate in (("a", 1.0), ("b", 1e-6))])
    conclude(data)
    assert [(one["places"], one["sentence"].partition(":")[0]) for one in data["notices"]] == [(("b",), "impossible")]
