"""A warm-up study in a terminal: one row for each case, and the recommendation for this machine."""

from collections.abc import Sequence

from perf_tests.records.record import Json
from perf_tests.traces.first_round_parts import STEADY
from perf_tests.views.screens.lines import DASH, Columns, case_name, column_table, duration

COLUMNS: Columns[Json] = {
    "case": lambda row: case_name(row["id"]),
    "first round": lambda row: duration(_after(row, 0)["seconds"][0]),
    "of it mostly": lambda row: _mostly(_after(row, 0)["first_round_parts"]),
    "mean after 0": lambda row: _mean(_after(row, 0)),
    "after 1": lambda row: _mean(_after(row, 1)),
    "after 5": lambda row: _mean(_after(row, 5)),
    "steady from": lambda row: (
        f"round {steady}" if (steady := _after(row, 0)["steady_from_round"]) is not None else DASH
    ),
    "enough": lambda row: f"{row['values']['recommended_warmup_rounds']}",
}


def warmup_lines(passes: Sequence[Json]) -> list[str]:
    """Rows, remarks on single cases, and one recommendation for the machine."""
    lines = column_table(COLUMNS, passes)
    lines += [
        "one process per column; mean (relative standard deviation); steady from: first steady round without warm-up"
    ]
    for row in passes:
        values = row["values"]
        if values["flags"] or " After " in values["recommendation"]:
            lines.append(f"{case_name(row['id'])}: {values['recommendation']}")
    return [*lines, machine_line(passes)]


def machine_line(passes: Sequence[Json]) -> str:
    needed = {row["id"]: row["values"]["recommended_warmup_rounds"] for row in passes}
    most = max(needed, key=lambda case_id: needed[case_id])
    configured = max(row["values"]["configured_warmup_rounds"] for row in passes)
    judgement = "covers every case of this study" if needed[most] <= configured else "is too few"
    return f"for this machine: --warmup-rounds {needed[most]}, which {case_name(most)} needs; {configured} {judgement}"


def _after(row: Json, rounds: int) -> Json:
    found = (one for one in row["values"]["series"] if not one["leaves_out_timed_phase"])
    return next(one for one in found if one["warmup_rounds"] == rounds)


def _mostly(parts: Json) -> str:
    grown = {name: seconds for name, seconds in parts.items() if name != STEADY and seconds > 0}
    if not grown:
        return DASH
    name = max(grown, key=lambda part: grown[part])
    return f"{name.removesuffix('_seconds').replace('_', ' ')} {grown[name] / sum(grown.values()):.0%}"


def _mean(series: Json) -> str:
    return f"{duration(series['mean_seconds'])} ({series['std_seconds'] / series['mean_seconds']:.0%})"
