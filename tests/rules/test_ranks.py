"""What ranks share: to which row an efficiency is relative, the links of messages, and nothing across machines."""

import json
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.cases.sharing import Sharing
from perf_tests.records.record import Json
from perf_tests.report.ranks import collective_lines, links_of, message_lines, rank_lines, scalings
from tests.support.example_cases import language_model_case
from tests.support.synthetic import record

LATENCY, RATE = 2e-4, 5e8
SIZES = (64_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000)


def seconds(size: float) -> float:
    return LATENCY + size / RATE


def message(collective: str, world: int, exchanged_bytes: int, median_seconds: float) -> Json:
    """Of a message that was cut by 3 bytes."""
    info = {
        "collective": collective, "world": world, "backend": "gloo", "message_bytes": exchanged_bytes + 3,
        "exchanged_bytes": exchanged_bytes, "algorithm_bytes_per_second": 1.0, "bus_bytes_per_second": 1.0,
    }  # fmt: skip
    name = f"test.py::test_collective[{collective}-{exchanged_bytes}B-world{world}]"
    return {
        "fullname": name,
        "extra_info": info,
        "stats": {"data": [median_seconds], "median": median_seconds, "iqr": 0.0},
    }


def row(label: str | None, tokens_per_second: float) -> Json:
    sharing = None if label is None else Sharing.of(label)
    identity = language_model_case(batch_size=4, sharing=sharing).identity()
    more = {"tokens_per_second": tokens_per_second, "rank_seconds": [[1.0, 1.0], [2.0, 2.0]], "slowest_ranks": [1, 1]}
    stats = dict.fromkeys(("min", "max", "mean", "median", "iqr", "stddev"), 1.0) | {"data": [1.0, 1.0]}
    return {"fullname": f"test.py::test_forward[{label}]", "extra_info": {**identity, **more}, "stats": stats}


def relative(*rows: Json) -> dict[str, tuple[float, str]]:
    return {
        shared["fullname"]: (scaling.efficiency, scaling.relative_to.partition("[")[2].rstrip("]"))
        for shared, scaling in scalings(rows)
    }


@pytest.mark.parametrize(
    "others, base",
    [
        pytest.param(["ddp-world1", None, "ddp-world2"], "ddp-world1", id="the same way on one rank first"),
        pytest.param(["zero1-world1", None, "ddp-world2"], "None", id="then one device"),
        pytest.param(["zero1-world1", "ddp-world2", "ddp-world3"], "ddp-world2", id="then the fewest ranks"),
    ],
)
def test_a_row_is_relative_to(others: list[str | None], base: str) -> None:
    found = relative(row("ddp-world4", 300.0), *(row(label, 100.0) for label in others))
    ranks = {"ddp-world2": 2}.get(base, 1)
    assert found["test.py::test_forward[ddp-world4]"] == (300 / 4 / (100 / ranks), base)


def test_weak_scaling_is_relative_to_one_rank_and_never_to_strong_scaling_of_several() -> None:
    assert relative(row("ddp-world4-weak", 300.0), row("ddp-world2", 100.0)) == {}
    found = relative(row("ddp-world4-weak", 300.0), row("ddp-world1", 100.0))
    assert found == {"test.py::test_forward[ddp-world4-weak]": (0.75, "ddp-world1")}


def test_the_screen_names_the_slowest_rank_and_the_base() -> None:
    _, line, _ = rank_lines([row(None, 100.0), row("ddp-world2", 150.0)])
    assert "rank 1, +33.3%" in line
    assert "75.0%" in line
    assert line.endswith("forward None")
    assert rank_lines([row(None, 100.0)]) == []


def test_the_screen_shows_the_interval_of_what_is_exposed_and_the_peaks_of_ranks_where_they_are_known() -> None:
    shared = row("ddp-world2", 150.0)
    assert "peaks" not in rank_lines([shared])[0]
    shared["extra_info"] |= {"exposed_communication_seconds": 0.02, "exposed_communication_interval": [-0.01, 0.05]}
    shared["extra_info"]["rank_peak_allocated_bytes"] = [2**30, 2**31]
    header, line, _ = rank_lines([shared])
    assert "20 ms (0 to 50 ms)" in line
    assert "few rounds" not in line
    assert "peaks" in header
    assert line.endswith("1,024 to 2,048 MiB")


def test_the_screen_says_where_too_few_rounds_give_what_is_exposed_no_interval() -> None:
    shared = row("ddp-world2", 150.0)
    shared["extra_info"] |= {"exposed_communication_seconds": 0.02, "exposed_communication_interval": None}
    assert "20 ms (few rounds)" in rank_lines([shared])[1]


def test_messages_are_listed_by_part_beside_the_predicted_ones() -> None:
    shared, sent = row("ddp-world2", 150.0), {"collectives": {"all_reduce": 2}, "sent_bytes": 12345}
    shared["extra_info"] |= {"sent_by_part": {"backward": sent, "loss": {"collectives": {}, "sent_bytes": 0}}}
    _, line = message_lines([row(None, 100.0), shared])
    assert line.split("backward")[1].split() == ["2", "all_reduce:", "12,345", "B", "-"]
    shared["extra_info"]["predicted_sent_by_part"] = {"backward": sent}
    assert message_lines([shared])[1].count("2 all_reduce: 12,345 B") == 2
    assert message_lines([row(None, 100.0)]) == []


def test_each_collective_and_number_of_ranks_has_the_link_of_the_bytes_that_were_exchanged() -> None:
    """A message that ranks cannot divide is cut; a model's row and one rank alone are of no link."""
    rows = [
        message(name, world, size, world * seconds(size))
        for name in ("all_reduce", "all_gather") for world in (1, 2, 3) for size in SIZES
    ]  # fmt: skip
    model = {"extra_info": language_model_case().identity(), "stats": {"data": [1.0]}}
    links = {(link.collective, link.world): link for link in links_of([*rows, model])}
    assert links.keys() == {(name, world) for name in ("all_reduce", "all_gather") for world in (2, 3)}
    for (name, world), found in links.items():
        assert found.sizes == len(SIZES)
        assert found.link.bytes_per_second == pytest.approx(RATE / world)
        assert found.link.latency_seconds == pytest.approx(LATENCY * world)
        share = (2 if name == "all_reduce" else 1) * (world - 1) / world
        assert found.bus_bytes_per_second == pytest.approx(share * RATE / world)


def test_the_screen_says_which_links_the_sizes_do_not_show_and_what_to_do() -> None:
    """One rank alone sends nothing, so of it nothing is missing."""
    shrinking = [message("all_reduce", world, size, 1 / size) for world in (1, 2) for size in SIZES]
    lonely = [message("all_gather", 3, SIZES[0], 1.0)]
    growing = [message("reduce_scatter", 2, size, seconds(size)) for size in SIZES]
    *_, line = collective_lines([*shrinking, *lonely, *growing])
    assert line.startswith("no latency and rate for all_reduce world2, all_gather world3: it takes two sizes whose")
    assert line.endswith("measure more or larger ones with --message-size")
    assert "no latency" not in "\n".join(collective_lines(growing))


def test_no_efficiency_relates_two_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = (record([row(label, 100.0)]) for label in (None, "ddp-world2"))
    there["machine_info"]["torch"] = {**here["machine_info"]["torch"], "threads": 1}
    paths = [tmp_path / name for name in ("0001_a.json", "0002_b.json")]
    for path, data in zip(paths, (here, there), strict=True):
        path.write_text(json.dumps(data))
    assert main(["scaling", *map(str, paths)]) == 3
    assert "no efficiency relates them: threads: 4 here, 1 there" in capsys.readouterr().err
