"""A warm-up study as a person reads it after a run: one row for each case, and what to set on this machine."""

from collections.abc import Sequence

from perf_tests.records.record import Json
from perf_tests.traces.first_round_parts import STEADY
from perf_tests.views.screens.lines import DASH, case_name, duration, table

HEADER = ("case", "first round", "of it mostly", "mean after 0", "after 1", "after 5", "steady from", "enough")


def warmup_lines(passes: Sequence[Json]) -> list[str]:
    """Rows, what is to be said of single cases, and one recommendation for the machine."""
    lines = table(HEADER, [_row(row) for row in passes])
    lines += ["each column in a process of its own; mean with standard deviation; steady from: without a warm-up"]
    for row in passes:
        values = row["values"]
        if values["flags"] or " After " in values["recommendation"]:
            lines.append(f"{case_name(row['id'])}: {values['recommendation']}")
    return [*lines, machine_line(passes)]


def machine_line(passes: Sequence[Json]) -> str:
    """How many warm-up rounds cover every case of the study."""
    needed = {row["id"]: row["values"]["recommended_warmup_rounds"] for row in passes}
    most = max(needed, key=lambda case_id: needed[case_id])
    configured = max(row["values"]["configured_warmup_rounds"] for row in passes)
    judgement = "covers every case of this study" if needed[most] <= configured else "is too few"
    return f"for this machine: --warmup-rounds {needed[most]}, which {case_name(most)} needs; {configured} {judgement}"


def _row(row: Json) -> tuple[str, ...]:
    values = row["values"]
    by_count = {one["warmup_rounds"]: one for one in values["series"] if not one["leaves_out_timed_phase"]}
    steady = by_count[0]["steady_from_round"]
    return (
        case_name(row["id"]),
        duration(by_count[0]["seconds"][0]),
        _mostly(by_count[0]["first_round_parts"]),
        *(_mean(by_count[count]) for count in (0, 1, 5)),
        DASH if steady is None else f"round {steady}",
        f"{values['recommended_warmup_rounds']}",
    )


def _mostly(parts: Json) -> str:
    """The part that the first round grew by most, as a share of what it grew by in all."""
    grown = {name: seconds for name, seconds in parts.items() if name != STEADY and seconds > 0}
    if not grown:
        return DASH
    name = max(grown, key=lambda part: grown[part])
    return f"{name.removesuffix('_seconds').replace('_', ' ')} {grown[name] / sum(grown.values()):.0%}"


def _mean(series: Json) -> str:
    return f"{duration(series['mean_seconds'])} ({series['std_seconds'] / series['mean_seconds']:.0%})"
