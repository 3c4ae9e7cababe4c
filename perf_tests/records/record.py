"""The record of one run: pytest-benchmark's JSON, with the cases without a timing beside its `benchmarks`."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from itertools import zip_longest
from types import UnionType
from typing import Any

from perf_tests.identity import identity_in

FORMAT_VERSION = 1

SHORTEST_SECONDS, LONGEST_SECONDS = 1e-12, 1e9
"""No round takes a picosecond or thirty years: such figures are damaged, and rates or squares of them overflow."""

Json = dict[str, Any]

OUTCOMES = {
    "out_of_memory": "out of memory",
    "would_not_fit": "would not fit",
    "unsupported": "unsupported",
    "error": "failed",
    "impossible": "impossible",
    "incorrect": "incorrect",
    "timed_out": "timed out",
    "process_died": "ended its process",
}
"""Why a selected case has no valid timing, and its words."""


def identity_of(row: Json) -> Json:
    """The identity fields of a benchmark (kept in its `extra_info`) or of an outcome (kept flat)."""
    return identity_in(row.get("extra_info", row))


def is_shard(record: Json) -> bool:
    """Whether the run measured a share of its grid, so that a case it lacks is not gone."""
    settings = record["suite"].get("settings")
    return isinstance(settings, dict) and settings.get("shard") is not None


def run_of(record: Json) -> str | None:
    """The run, however often it was saved; None for older records."""
    run = record["suite"].get("run")
    return run if isinstance(run, str) else None


def parts_of(record: Json) -> set[str]:
    """The runs of the shards that a merged record holds, or the names of those whose run is unknown.

    Every machine of a CI names its first record of a commit alike, so a name alone does not tell two runs apart.
    """
    names, runs = (record["suite"].get(name) for name in ("merged_from", "merged_runs"))
    names, runs = (values if isinstance(values, list) else [] for values in (names, runs))
    known = [name if run is None else run for name, run in zip_longest(names, runs)]
    return {part for part in known if isinstance(part, str)}


def timing_outcomes(record: Json) -> list[Json]:
    """The outcomes of cases that were to be timed; those of extra passes over them are left out."""
    return [row for row in record["outcomes"] if row.get("pass") is None]


def build_record(header: Json, benchmarks: list[Json], outcomes: list[Json], passes: Sequence[Json] = ()) -> Json:
    return without_nan(
        {
            "machine_info": header["machine_info"],
            "commit_info": header["commit_info"],
            "benchmarks": benchmarks,
            "outcomes": outcomes,
            "passes": list(passes),
            "datetime": datetime.now(UTC).isoformat(),
            "version": version("pytest-benchmark"),
            "suite": {
                "format_version": FORMAT_VERSION,
                "started": header["started"],
                "settings": header["settings"],
                "selection": header["selection"],
                "source": header.get("source"),
                "places": header.get("places"),
                "other_drivers": header.get("other_drivers", []),
                "run": header.get("run"),
            },
        }
    )


def why_not_a_record(data: object) -> str | None:
    """What is wrong with data from any source; None for a record of this suite."""
    if not isinstance(data, dict) or not isinstance(data.get("suite"), dict):
        return "it is no record of this suite"
    if data["suite"].get("format_version") != FORMAT_VERSION:
        return f"its format version is {data['suite'].get('format_version')!r}, this suite reads {FORMAT_VERSION}"
    for name in ("benchmarks", "outcomes"):
        if not isinstance(data.get(name), list) or not all(isinstance(row, dict) for row in data[name]):
            return f"its {name!r} is no list of rows"
    for row in data["benchmarks"]:
        if reason := _why_not_timed(row):
            return f"its benchmark {row.get('fullname')!r} {reason}"
    if not all(_is_untimed(row) for row in data["outcomes"]):
        return "one of its outcomes lacks an id, a reason or a known outcome"
    passes = data.get("passes", [])
    if not isinstance(passes, list) or not all(map(_is_pass, passes)):
        return "one of its passes lacks an id, an identity, its name or its values"
    damaged = [name for name, is_right in _PARTS.items() if not is_right(data.get(name))]
    return f"its {damaged[0]!r} is missing or damaged" if damaged else None


def is_machine(info: object) -> bool:
    return isinstance(info, dict) and all(isinstance(info.get(part) or {}, dict) for part in ("cpu", "torch"))


def is_commit(info: object) -> bool:
    """Older records, and runs outside of a repository, may have none."""
    return info is None or isinstance(info, dict)


_PARTS = {"machine_info": is_machine, "commit_info": is_commit}


def _is_timed(row: object) -> bool:
    return isinstance(row, dict) and _why_not_timed(row) is None


def _why_not_timed(row: Json) -> str | None:
    stats = row.get("stats")
    if not _has(str, row, "fullname") or not _has(dict, row, "extra_info") or not isinstance(stats, dict):
        return "lacks a name, an identity or a timing"
    rounds = stats.get("data")
    if not isinstance(rounds, list) or not rounds:
        return "has no rounds"
    bad = [r for r in rounds if not (isinstance(r, float) and SHORTEST_SECONDS < r < LONGEST_SECONDS)]
    if bad:
        return f"has a round of {bad[0]!r} s; a round takes from {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g} s"
    for name in ("min", "max", "mean", "median", "iqr", "stddev"):
        value = stats.get(name)
        if not isinstance(value, int | float) or not 0 <= value < LONGEST_SECONDS:
            return f"has {value!r} as its {name}"
    return None


def _is_untimed(row: Json) -> bool:
    return _has(str, row, "id", "outcome", "reason") and row["outcome"] in OUTCOMES


def _is_pass(row: object) -> bool:
    return isinstance(row, dict) and _has(str, row, "id", "pass") and _has(dict, row, "identity", "values")


ROWS = {"benchmark": _is_timed, "outcome": _is_untimed, "pass": _is_pass}
"""By the kind of a journal's line, whether a row can be a record's."""


def _has(kind: type | UnionType, row: Json, *names: str) -> bool:
    return all(isinstance(row.get(name), kind) for name in names)


def ids_of(record: Json) -> set[str]:
    """Node ids of every case that was to be timed."""
    return {row["fullname"] for row in record["benchmarks"]} | {row["id"] for row in timing_outcomes(record)}


def without_nan(value: Any) -> Any:
    """The same data with null for NaN and infinities, which strict JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


class Compared(StrEnum):
    """When a fact that differs makes two machines unlike."""

    ALWAYS = "also where one record lacks it"
    WHERE_KNOWN = "where both records have it"
    NEVER = "in no case"


LIKE_MACHINE = {
    "memory_gib": Compared.NEVER,  # the kernel's own share differs between boots, across any rounding
    "gpu.compute_mode": Compared.NEVER,  # who may use the GPU, not how fast it is
    "gpu.cudnn": Compared.WHERE_KNOWN,
    "gpu.power_limit_watts": Compared.WHERE_KNOWN,
    "gpu.max_sm_clock_mhz": Compared.WHERE_KNOWN,
    "gpu.max_memory_clock_mhz": Compared.WHERE_KNOWN,
    "gpu.mig": Compared.WHERE_KNOWN,
}
"""The facts of `machine_info` that a like machine need not share; all others that are compared, it must."""


def machine_differences(here: Json, there: Json) -> list[str]:
    """The facts that make two machines or builds incomparable, as `name: here, there`."""
    facts_here, facts_there = _comparable_facts(here), _comparable_facts(there)
    return [
        f"{name}: {facts_here.get(name)!r} here, {facts_there.get(name)!r} there"
        for name in sorted(facts_here.keys() | facts_there.keys())
        if _differ(LIKE_MACHINE.get(name, Compared.ALWAYS), facts_here.get(name), facts_there.get(name))
    ]


def _differ(compared: Compared, here: object, there: object) -> bool:
    is_unknown = here is None or there is None
    return here != there and (compared == Compared.ALWAYS or (compared == Compared.WHERE_KNOWN and not is_unknown))


def _comparable_facts(machine_info: Json) -> Json:
    """Without the host name, which a container draws at each start."""
    cpu = machine_info.get("cpu") or {}
    facts = {f"cpu.{name}": cpu.get(name) for name in ("brand_raw", "arch", "count")}
    facts["python"] = ".".join(str(machine_info.get("python_version")).split(".")[:2])
    facts["system"] = machine_info.get("system")
    return facts | _flat("", machine_info.get("torch") or {})


def _flat(prefix: str, facts: Json) -> Json:
    leaves: Json = {}
    for name, value in facts.items():
        leaves |= _flat(f"{prefix}{name}.", value) if isinstance(value, dict) else {f"{prefix}{name}": value}
    return leaves
