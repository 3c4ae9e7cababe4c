"""Too little time for a selection: said after the first launch pair, and fewer cases measured well."""

from dataclasses import replace

import pytest

from perf_tests.gate.samples import End, ExactFinding, GateSamples, LeftOut, Rules
from perf_tests.gate.verdicts import Verdict, conclude, next_step
from perf_tests.interleaved.run import PairCost, left_out, too_short_sentence
from tests.support.simulated_launches import SimulatedCase, gate_run

RULES = Rules()
CASES = [SimulatedCase(f"a::{place}", pair_spread=0.003) for place in range(6)]
COST = PairCost(5.0, {case.id: 10.0 - place for place, case in enumerate(CASES)})
FOR_ALL = COST.needed_seconds(COST.case_seconds, RULES)


@pytest.fixture
def samples() -> GateSamples:
    """After the first launch pair, which found that the change moves counters of the first, dearest case alone."""
    first = replace(gate_run(CASES, RULES, seed=1, most_pairs=1), events=[])
    first.events += [ExactFinding(case.id, "saved_bytes", 8, 8) for case in CASES[1:]]
    first.events.append(ExactFinding(CASES[0].id, "saved_bytes", 9, 8))
    return first


def test_all_cases_are_measured_where_the_time_is_enough(samples: GateSamples) -> None:
    assert left_out(samples, COST, RULES, FOR_ALL) == []


@pytest.mark.parametrize(("names"), [["a::0"], ["a::0", "a::5"], ["a::0", "a::3", "a::4", "a::5"]])
def test_what_the_change_touches_is_measured_first_then_the_cheapest(samples: GateSamples, names: list[str]) -> None:
    seconds = COST.needed_seconds(names, RULES)
    left = left_out(samples, COST, RULES, seconds)
    assert [case.id for case in CASES if case.id not in left] == names


def test_one_case_is_always_measured(samples: GateSamples) -> None:
    assert len(left_out(samples, COST, RULES, 1.0)) == len(CASES) - 1


def test_what_is_left_out_is_measured_no_further_and_undecided(samples: GateSamples) -> None:
    samples.events += [LeftOut("a::0"), LeftOut("a::1")]
    step = next_step(samples, RULES)
    assert step is not None
    assert set(step.cases) == {"a::2", "a::3", "a::4", "a::5"}
    result = conclude(replace(samples, events=[*samples.events, End("finished")]), RULES)
    assert {row.id: row.verdict for row in result.cases}["a::0"] == Verdict.UNDECIDED


def test_the_sentence_says_how_many_minutes_all_cases_need() -> None:
    said = too_short_sentence(["a::0", "a::1"], COST, RULES, 300)
    assert said.startswith(f"5 min are too short for 6 cases, which need about {FOR_ALL / 60:.0f} min (--gate-minutes)")
    assert (
        "the time goes to 4 of them, those with changed counters first, then the cheapest; the rest is left UNDECIDED."
        in said
    )
