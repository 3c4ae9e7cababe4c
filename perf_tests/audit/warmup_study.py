"""The results of a warm-up study, as the record holds them: its processes, and how many warm-up rounds are enough."""

from collections.abc import Sequence
from statistics import fmean, stdev

from perf_tests.audit.steadiness import FEWEST_REST, outlier_places, slow_first_rounds, steady_from
from perf_tests.phases import PHASES
from perf_tests.records.record import Json

STUDIED_WARMUP_ROUNDS = (0, 1, 2, 5, 10)
"""Each in its own process."""

LEAVING_OUT_ROUNDS = 5
"""Warm-up rounds of the process whose warm-up omits the timed phase: the suite's default."""


def study_rounds(phase: str, rounds: int) -> int:
    """Rounds of a case's study over all processes except the traced one."""
    leaving_out = (LEAVING_OUT_ROUNDS + rounds) if PHASES[phase].setup_computes else 0
    return sum(STUDIED_WARMUP_ROUNDS) + len(STUDIED_WARMUP_ROUNDS) * rounds + leaving_out


def warmup_values(series: Sequence[Json], first_round: Json, configured_rounds: int) -> Json:
    """The values of the pass. Rounds are numbered from 1 through a whole process, its warm-up included.

    Each of `series` has `warmup_rounds`, `leaves_out_timed_phase`, `warmup_seconds`, `seconds` and `compile_cache`
    (`cold` or `warm` where code was generated: one process may find what another compiled); `first_round` has
    `first_round`, and `first_round_parts`, which go to the process without a warm-up.
    """
    rows = [_row(one, first_round["first_round_parts"] if one["warmup_rounds"] == 0 else {}) for one in series]
    recommended, recommendation = _recommendation(rows, configured_rounds)
    return {
        "series": rows,
        "first_round": first_round["first_round"],
        "configured_warmup_rounds": configured_rounds,
        "recommended_warmup_rounds": recommended,
        "recommendation": recommendation,
        "flags": ["short_warmup"] if recommended > configured_rounds else [],
    }


def _row(series: Json, first_round_parts: Json) -> Json:
    measured = series["seconds"]
    earlier, rounds = _judged(series)
    steady = steady_from(rounds)
    return {
        **series,
        "first_round_parts": first_round_parts,
        "mean_seconds": fmean(measured),
        "std_seconds": stdev(measured) if len(measured) > 1 else 0.0,
        "steady_from_round": None if steady is None else earlier + steady,
        "outliers": [earlier + place for place in outlier_places(rounds)],
    }


def _judged(series: Json) -> tuple[int, list[float]]:
    """The comparable rounds, and how many came before them."""
    if series["leaves_out_timed_phase"]:
        return len(series["warmup_seconds"]), series["seconds"]
    return 0, [*series["warmup_seconds"], *series["seconds"]]


def _recommendation(rows: Sequence[Json], configured: int) -> tuple[int, str]:
    """As many warm-up rounds as the slowest process needed to become steady."""
    whole = [row for row in rows if not row["leaves_out_timed_phase"] and len(_judged(row)[1]) > FEWEST_REST]
    needed = [row["steady_from_round"] - 1 for row in whole if row["steady_from_round"] is not None]
    if not whole:
        return configured, f"Too few rounds to tell; give at least --rounds {FEWEST_REST + 1}."
    if not needed:
        most = max(len(_judged(row)[1]) for row in whole)
        return max(configured, *STUDIED_WARMUP_ROUNDS), (
            f"No process became steady within {most} rounds: the machine's speed drifts, which warm-up cannot fix. "
            "Measure on an idle machine."
        )
    recommended = max(needed)
    return recommended, f"{_enough(recommended, len(needed), len(whole), configured)}{_without_timed_phase(rows)}"


def _enough(recommended: int, steady: int, processes: int, configured: int) -> str:
    is_covered = recommended <= configured
    next_step = f"--warmup-rounds {configured} covers that" if is_covered else f"set --warmup-rounds {recommended}"
    of = (
        f"all {processes} processes"
        if steady == processes
        else f"{steady} of {processes} processes, those that became steady"
    )
    rounds = "1 warm-up round is" if recommended == 1 else f"{recommended or 'no'} warm-up rounds are"
    return f"{rounds} enough in {of}; {next_step}."


def _without_timed_phase(rows: Sequence[Json]) -> str:
    slow = max((slow_first_rounds(row["seconds"]) for row in rows if row["leaves_out_timed_phase"]), default=0)
    if not slow:
        return ""
    return f" After a warm-up without the timed phase, {slow} measured round{'s were' if slow > 1 else ' was'} slow."
