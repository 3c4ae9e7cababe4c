"""Raw samples of a gate run on disk: read back as written, torn tails left out, anything else refused in a sentence."""

import gzip
import json
import math
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from perf_tests_suite.perf_tests.gate import samples as module
from perf_tests_suite.perf_tests.gate.samples import (
    MOST_PAIRS,
    Rules,
    SamplesFile,
    case_of,
    compile_row,
    compiled_in,
    exact_events,
    read_samples,
    rules_from_settings,
)
from perf_tests_suite.perf_tests.gate.statistics import pair_value
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.simulated_launches import SimulatedCase, header, line

CASE = SimulatedCase("a", cpu_pair_spread=0.01)
HEADER = header([CASE])
EVENTS: list[Json] = [
    {"event": "outcome", "case": "a", "side": "head", "outcome": "error", "reason": "it died"},
    {"event": "sentinel", "stage": 1, "pair": 0, "name": "matmul", "side": "base", "seconds": [0.1]},
    {"event": "exact", "case": "a", "counter": "saved_bytes", "old": 1, "new": 2},
    {"event": "uncounted", "case": "a", "side": "base", "reason": "it is compiled"},
    {"event": "pair", "stage": 1, "pair": 0, "seconds": 2.5, "launch_seconds": 1.5},
    {"event": "left_out", "case": "a"},
    {"event": "relaunch", "pair": 0, "case": None, "side": None, "reason": None},
    {"event": "incomparable", "reason": "two builds"},
    {"event": "end", "reason": "budget"},
]


def entry(pair: int = 0) -> Json:
    return line(np.random.default_rng(pair), CASE, 1, pair, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = SamplesFile(tmp_path / "samples.jsonl", HEADER)
    with pytest.raises(ValueError, match="not in the header"):
        file.append(entry() | {"case": "unknown"})
    for item in (entry(0), entry(1), *EVENTS):
        file.append(item)
    file.close()
    return tmp_path / "samples.jsonl"


@pytest.mark.parametrize("name", ["samples.jsonl", "samples.jsonl.gz"])
def test_samples_are_read_back_as_they_were_written_without_a_wrong_or_torn_line(path: Path, name: str) -> None:
    with pytest.raises(FileExistsError):
        SamplesFile(path, HEADER)
    torn = path.read_bytes() + b'{"stage": 2, "pa'
    path.with_name(name).write_bytes(gzip.compress(torn) if name.endswith("gz") else torn)
    found = read_samples(path.with_name(name))
    assert found.header == json.loads(json.dumps(HEADER))
    assert [(m.stage, m.pair, m.case, list(m.orders)) for m in found.measurements] == [
        (1, pair, "a", entry(pair)["orders"]) for pair in (0, 1)
    ]
    for side in ("base_seconds", "head_seconds", "base_cpu_seconds", "head_cpu_seconds"):
        assert getattr(found.measurements[1], side).tolist() == entry(1)[side]
    assert [event.to_line() for event in found.events] == EVENTS
    assert (found.end, found.ran_out_of_time, found.pairs(1), found.pairs(2)) == ("budget", True, [0, 1], [])


def test_a_row_of_compiling_has_a_process_of_each_side_a_pair_and_no_rounds_of_turns(path: Path) -> None:
    rows = {of: compile_row("a", *of) for of in (("forward", "cold"), ("backward", "cold"), ("", "warm"))}
    assert [(compiled_in(row), case_of(row)) for row in rows.values()] == [(("a", *of), "a") for of in rows]
    for other in ("a", "a compile_loss_seconds (cold)", "t.py::test_x[a compile_seconds (warm)]"):
        assert (compiled_in(other), case_of(other)) == (None, other)
    row = rows["", "warm"]
    cases = [*HEADER["cases"], {"id": row, "identity": {}}]
    file = SamplesFile(path.with_name("compiling.jsonl"), {**HEADER, "cases": cases})
    once: Json = {"base_seconds": [[2.0]], "head_seconds": [[3.0]]}
    once |= {"base_cpu_seconds": None, "head_cpu_seconds": None}
    file.append({"stage": 1, "pair": 0, "case": row, "orders": ["BA"], **once})
    (found,) = file.samples.measurements
    assert pair_value(found, "wall") == pytest.approx(math.log(1.5))
    for case, order in ((row, "ABBA"), ("a", "AB")):
        with pytest.raises(ValueError, match="'orders' is not a list of"):
            file.append({"stage": 1, "pair": 1, "case": case, "orders": [order], **once})
    file.close()


def test_a_cpu_clock_too_coarse_to_see_the_work_counts_as_not_read(path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps(entry(9) | {"head_cpu_seconds": [[0.0, 0.1]] * 4}) + "\n")
    assert read_samples(path).measurements[-1].head_cpu_seconds is None


SHAPE, DURATIONS = "lacks the turns of each of 4", "other than 2 durations"


DAMAGED: list[tuple[Json | None, str]] = [
    ({"stage": 3}, "'stage' is 3, not 1 or 2"), ({"stage": True}, "'stage' is True"),
    ({"pair": -1}, "'pair' is -1, not a count"), ({"pair": True}, "'pair' is True"),
    ({"pair": 1}, "pair 1 has 'a' twice"), ({"case": 7}, "'case' is 7, not a string"),
    ({"case": "b"}, "'b' is not in the header"), ({"orders": ["ABAB"] * 4}, "'orders' is not a list of ABBA"),
    ({"orders": []}, "'orders' is not a list of ABBA"), ({"head_seconds": [[0.1, 0.1]]}, SHAPE),
    ({"base_cpu_seconds": "fast"}, SHAPE), ({"head_seconds": [[0.1, 0.1, 0.1]] * 4}, DURATIONS),
    ({"head_seconds": [[0.1, 0.0]] * 4}, DURATIONS), ({"base_seconds": [[0.1, float("nan")]] * 4}, DURATIONS),
    ({"base_seconds": [[0.1, 10**400]] * 4}, DURATIONS), ({"base_seconds": [[0.1, True]] * 4}, DURATIONS),
    ({"event": "unheard of"}, "'unheard of' is not known"), ({"event": ["end"]}, "is not known"),
    ({**EVENTS[0], "side": "left"}, "'side' is 'left', not one of base, head"),
    ({**EVENTS[0], "outcome": "tired"}, "'outcome' is 'tired'"),
    ({**EVENTS[1], "seconds": [-1]}, "'seconds' is [-1], not a list of durations"),
    ({**EVENTS[1], "seconds": []}, "not a list of durations"), ({**EVENTS[2], "old": "1"}, "is '1', not a number"),
    ({**EVENTS[4], "seconds": 0}, "'seconds' is 0, not a duration"),
    ({**EVENTS[4], "launch_seconds": "1"}, "'launch_seconds' is '1', not a number or null"),
    ({**EVENTS[8], "reason": "bored"}, "'bored'"), ({"base_cpu_seconds": [[False, 0.1]] * 4}, DURATIONS),
    ({"pair": 0}, "pair 0 has 'a' twice"),
    (None, "it is not an object"),
]  # fmt: skip


def test_a_damaged_line_is_named_with_what_is_wrong(path: Path) -> None:
    whole, place = path.read_text(), re.escape(f"{path} cannot be used: line {3 + len(EVENTS) + 1} is damaged: ")
    for change, words in DAMAGED:
        path.write_text(f"{whole}{json.dumps(change and entry(5) | change)}\n")
        with pytest.raises(ValueError, match=rf"^{place}.*{re.escape(words)}"):
            read_samples(path)


def test_a_line_that_stands_twice_is_refused_but_for_a_failure_that_happened_again(path: Path) -> None:
    """Were a finding counted twice, its case would seem to have more of them."""
    lines = path.read_text().splitlines(keepends=True)
    for number, text in enumerate(lines[3:], 4):
        path.write_text("".join([*lines, text]))
        if "relaunch" in text:
            assert read_samples(path).events[-1].event == "relaunch"
            continue
        with pytest.raises(ValueError, match=f"line {len(lines) + 1} is damaged: it is line {number} once more"):
            read_samples(path)


WRONG_HEADERS: list[Json] = [
    {"kind": "other"}, {"format_version": 2}, {"base": {}}, {"head": {"label": 1}}, {"machine_info": None},
    {"settings": []}, {"accepted": {}}, {"options": 1}, {"engine": True}, {"cases": {}}, {"cases": ["a"]},
    {"cases": [{"id": ""}]}, {"cases": [{"id": "a"}, {"id": "a"}]},
]  # fmt: skip


NO_SAMPLES: list[tuple[str | None, str]] = [
    *((json.dumps(HEADER | change) + "\n", "line 1 is damaged: ") for change in WRONG_HEADERS),
    ("[" * 100_000 + "\n", "line 1 is damaged: "),
    ("[1]\n", "does not begin with the header"),
    ('{"kind": "gate-samples"', "its first line is incomplete"),
    (None, "cannot be read: No such file or directory"),
    (" " * 200_000, "larger than 150000 bytes"),
]


def test_what_is_no_file_of_samples_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 150_000)
    for number, (text, words) in enumerate(NO_SAMPLES):
        path = tmp_path / f"{number}.jsonl"
        if text is not None:
            path.write_text(text)
        with pytest.raises(ValueError, match=rf"^{path}.*{words}.*\.$"):
            read_samples(path)


def test_a_counter_is_compared_where_both_sides_know_it_and_a_side_without_any_says_why() -> None:
    known = {"counters": {"saved_bytes": 1, "kernel_launches": 3, "host_reads": None}, "reason": None}
    newer = {"counters": {"saved_bytes": 2, "host_reads": 1}, "reason": None}
    none = {"counters": None, "reason": "it is compiled"}
    for base, head, said in (
        (known, newer, [("saved_bytes", 1, 2)]),
        (none, known, [("base", "it is compiled")]),
        (none, {**none, "reason": "no"}, [("head", "no")]),
    ):
        events = [event.to_line() for event in exact_events("a", {"base": base, "head": head})]
        assert [tuple(event.values())[2:] for event in events] == said


def test_older_settings_had_no_early_looks_and_other_names_are_the_engines() -> None:
    assert rules_from_settings({**asdict(Rules()), "minutes": 5, "confirm_looks": [3, 10, 18, 36]}) == Rules()
    older = rules_from_settings({"alpha": 0.02})
    assert older == Rules(alpha=0.02, first_look=None, second_share=0.0, screen_above=0.0)


LOOKS: tuple[object, ...] = [10, 18, 19, MOST_PAIRS + 1], [2, 18, 30, 36], [10, 10, 30, 36], [], [5, 10, 18.5, 30], 7
SHARES = [0.25] * 3, [0.3] * 4, [-1, 1, 0.5, 0.5], [0, 0.5, 0.25, 0.25]
VALUES: dict[str, tuple[tuple[object, ...], tuple[object, ...]]] = {
    "alpha": ((0.5, 0, "small"), (0.49,)),
    **dict.fromkeys(
        ("screen_level", "faster_screen_level", "clearing_level", "suite_share", "guard_share"), ((0.5,), ())
    ),
    **dict.fromkeys(("contamination_level", "first_share"), ((0,), ())),
    "second_share": ((0.5, -0.1), (0,)),
    "margin": ((-0.001, 0.03), (0,)),
    "matters": ((1, 0.005), (0.9,)),
    "screen_above": ((-0.001, 0.03), (0,)),
    "far": ((0,), (0.01,)),
    "far_spreads": ((0.9,), (1,)),
    "first_look": ((2, 3.5), (3, None)),
    "screen_pairs": ((2, 6.5, MOST_PAIRS + 1), (3, MOST_PAIRS)),
    "confirm_looks": (LOOKS, ([3, 4, 5, MOST_PAIRS],)),
    "look_shares": (SHARES, ([0.25] * 4,)),
    "clock": (("sundial",), ("cpu",)),
    "undecided": (("maybe",), ("fail",)),
}
"""Values of each rule that are refused, and some that are not."""


def test_rules_that_make_no_sense_are_refused_in_a_sentence() -> None:
    for name, (wrong, kept) in VALUES.items():
        for value in wrong:
            with pytest.raises(ValueError, match=rf"^The gate's .*({name}|not a number).*\.$"):
                rules_from_settings(asdict(Rules()) | {name: value})
        for value in kept:
            rules_from_settings(asdict(Rules()) | {name: value})
