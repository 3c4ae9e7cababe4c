"""The record of one run: pytest-benchmark's JSON, with the cases without a timing beside its `benchmarks`."""

import gzip
import lzma
import math
import os
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.metadata import version
from itertools import zip_longest
from math import ceil, fsum, sqrt
from pathlib import Path
from statistics import NormalDist, median, quantiles
from typing import Any, Self, TypeVar

from perf_tests_suite.perf_tests.phases import identity_in

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
    "suspicious": "suspicious",
    "timed_out": "timed out",
    "process_died": "ended its process",
}
"""Why a selected case has no valid timing, and its words."""
FAILURES = ("error", "impossible", "incorrect", "suspicious", "timed_out", "process_died")
"""Outcomes that fail a run without any baseline."""


NO_COMMIT = ("", "unknown", "unversioned")
"""pytest-benchmark's values where git has no commit."""

COUNTERS = {
    name: name.removeprefix("predicted_")
    for name in ("parameters", "model_flops", "executed_flops", "kernel_launches", "bytes_touched", "saved_bytes",
                 "predicted_peak_bytes", "host_reads")
}  # fmt: skip
"""The exact counters of what a case runs: a record's name of each, and its name among a case's counters."""
COMPILER_COUNTERS = ("graphs", "not_compiled", "graph_breaks", "shape_recompiles", "generated_kernels", "library_calls")
"""Those of what torch.compile makes of it, by the names of a record."""
COMPARED_COUNTERS = (*COUNTERS, *COMPILER_COUNTERS)
"""What gate and history compare."""


def identity_of(row: Json) -> Json:
    """The identity fields of a benchmark (kept in its `extra_info`) or of an outcome (kept flat)."""
    return identity_in(row.get("extra_info", row))


def is_shard(record: Json) -> bool:
    """Whether the run measured a share of its grid, so that a case it lacks is not gone."""
    settings = record["suite"].get("settings")
    return isinstance(settings, dict) and settings.get("shard") is not None


def run_of(record: Json) -> str | None:
    """The run, however often it was saved, or merged from the same shards; None for older records."""
    run, shards = (record["suite"].get(name) for name in ("run", "merged_runs"))
    if run is None and isinstance(shards, list) and shards and all(isinstance(one, str) for one in shards):
        return f"merged from {' and '.join(sorted(shards))}"
    return run if isinstance(run, str) else None


def parts_of(record: Json) -> set[str]:
    """The runs of the shards that a merged record holds, or the names of those whose run is unknown.

    Every machine of a CI names its first record of a commit alike, so a name alone does not tell two runs apart.
    """
    names, runs = (record["suite"].get(name) for name in ("merged_from", "merged_runs"))
    names, runs = (values if isinstance(values, list) else [] for values in (names, runs))
    known = [name if run is None else run for name, run in zip_longest(names, runs)]
    return {part for part in known if isinstance(part, str)}


def code_of(record: Json) -> str:
    """The commit of a clean tree; else the digest of the code that ran, or a name that no other record has."""
    commit = record.get("commit_info") or {}
    identifier = str(commit.get("id") or "")
    if identifier not in NO_COMMIT and not commit.get("dirty"):
        return identifier
    return str(record["suite"].get("source") or f"the run of {record.get('datetime')}")


def timing_outcomes(record: Json) -> list[Json]:
    """The outcomes of cases that were to be timed; those of extra passes over them are left out."""
    return [row for row in record["outcomes"] if row.get("pass") is None]


def build_record(header: Json, benchmarks: list[Json], outcomes: list[Json], passes: Sequence[Json] = ()) -> Json:
    """The record of a run from its journal's header and rows."""
    return without_nan(
        {
            **{name: header[name] for name in ("machine_info", "commit_info")},
            "benchmarks": benchmarks,
            "outcomes": outcomes,
            "passes": list(passes),
            "datetime": datetime.now(UTC).isoformat(),
            "version": version("pytest-benchmark"),
            "suite": {
                "format_version": FORMAT_VERSION,
                **{name: header[name] for name in ("started", "settings", "selection")},
                **{name: header.get(name) for name in ("source", "places")},
                "other_drivers": header.get("other_drivers", []),
                "run": header.get("run"),
            },
        }
    )


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


NEVER_COMPARED = {
    "memory_gib",  # the kernel's own share differs between boots, across any rounding
    "gpu.compute_mode",  # who may use the GPU, not how fast it is
}
COMPARED_WHERE_KNOWN = {
    f"gpu.{name}" for name in ("cudnn", "power_limit_watts", "max_sm_clock_mhz", "max_memory_clock_mhz", "mig")
}
"""Facts that older records lack; all others make two machines unlike also where one record lacks them."""


def machine_differences(here: Json, there: Json, names: tuple[str, str] = ("here", "there")) -> list[str]:
    """Return facts that make two machines or builds incomparable, as `name: here: '1', there: not set`."""
    facts_here, facts_there = _comparable_facts(here), _comparable_facts(there)
    differences = []
    for name in sorted((facts_here.keys() | facts_there.keys()) - NEVER_COMPARED):
        one, other = facts_here.get(name), facts_there.get(name)
        if one != other and not (name in COMPARED_WHERE_KNOWN and None in (one, other)):
            said = ("not set" if value is None else repr(value) for value in (one, other))
            differences.append(f"{name}: {', '.join(f'{of}: {value}' for of, value in zip(names, said, strict=True))}")
    return differences


def _comparable_facts(machine_info: Json) -> Json:
    """The facts by name, without the host name, which a container draws at each start."""
    cpu = machine_info.get("cpu") or {}
    facts = {f"cpu.{name}": cpu.get(name) for name in ("brand_raw", "arch", "count")}
    facts["python"] = ".".join(str(machine_info.get("python_version")).split(".")[:2])
    facts["system"] = machine_info.get("system")

    def flat(prefix: str, inner: Json) -> Json:
        leaves: Json = {}
        for name, value in inner.items():
            leaves |= flat(f"{prefix}{name}.", value) if isinstance(value, dict) else {f"{prefix}{name}": value}
        return leaves

    return facts | flat("", machine_info.get("torch") or {})


# Whether data from any source has the shape that the code after it takes for granted.


Shape = Any
"""A `Value`, `[shape]` of a list's items, or a dict of shapes by key; a key that ends in `?` may be missing."""


@dataclass(frozen=True)
class Value:
    is_right: Callable[[Any], bool]
    description: str
    """What a message calls the right values."""


@dataclass(frozen=True)
class OrNull:
    """Null, or of this shape."""

    shape: Shape


@dataclass(frozen=True)
class Some:
    """A list of at least one of this shape."""

    shape: Shape


def _is_number(value: Any) -> bool:
    """Whether it is a number, small enough that the square of a sum of such is finite."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < 1e100


NUMBER = Value(_is_number, "a number")
AMOUNT = Value(lambda value: _is_number(value) and value >= 0, "a number, 0 or more")
TEXT = Value(lambda value: isinstance(value, str), "a string")
FLAG = Value(lambda value: isinstance(value, bool), "true or false")
KEY = Value(lambda value: isinstance(value, str | int | float), "a number or a string")
ANYTHING = Value(lambda _: True, "anything")


def misshapen(value: object, shape: Shape, place: str) -> str | None:
    """What is wrong, as `PLACE is VALUE, not WHAT IT MUST BE`; None for the right shape."""
    if isinstance(shape, OrNull):
        return None if value is None else misshapen(value, shape.shape, place)
    if isinstance(shape, Some):
        return f"{place} is empty" if value == [] else misshapen(value, [shape.shape], place)
    if isinstance(shape, Value):
        return None if shape.is_right(value) else f"{place} is {value!r:.40}, not {shape.description}"
    kind, words = (list, "a list") if isinstance(shape, list) else (dict, "an object")
    if not isinstance(value, kind):
        return f"{place} is {value!r:.40}, not {words}"
    if isinstance(value, list):
        if isinstance(shape[0], Value) and all(map(shape[0].is_right, value)):
            return None  # without a name for each of a million rounds
        parts = [(f"{place}[{number}]", item, shape[0]) for number, item in enumerate(value)]
    else:
        assert isinstance(value, dict)
        lacking = next((key for key in shape if not key.endswith("?") and key not in value), None)
        if lacking is not None:
            return f"{place} has no {lacking!r}"
        given = ((key.removesuffix("?"), inner) for key, inner in shape.items())
        parts = [(f"{place}.{key}", value[key], inner) for key, inner in given if key in value]
    return next((wrong for where, item, inner in parts if (wrong := misshapen(item, inner, where))), None)


# What every reader of a record takes for granted.


_LIMITS = f"seconds between {SHORTEST_SECONDS:g} and {LONGEST_SECONDS:g}"
_ROUND = Value(lambda value: isinstance(value, float) and SHORTEST_SECONDS < value < LONGEST_SECONDS, _LIMITS)
_TIME = Value(lambda value: isinstance(value, int | float) and 0 < value < LONGEST_SECONDS, _LIMITS)
_SPREAD = Value(lambda value: value == 0 or _TIME.is_right(value), f"0 or {_LIMITS}")
_OUTCOME = Value(lambda value: isinstance(value, str) and value in OUTCOMES, "a known outcome")
ROWS = {
    "benchmark": {
        "fullname": TEXT, "extra_info": {"flags?": OrNull([TEXT])},
        "stats": {"data": Some(_ROUND), **dict.fromkeys(("min", "max", "mean", "median"), _TIME),
                  "iqr": _SPREAD, "stddev": _SPREAD},
    },
    "outcome": {"id": TEXT, "outcome": _OUTCOME, "reason": TEXT},
    "pass": {"id": TEXT, "pass": TEXT, "identity": {}, "values": {}},
}  # fmt: skip
"""The rows of a record, by the kind of a journal's line."""
MACHINE = {"cpu?": OrNull({}), "torch?": OrNull({})}
COMMIT = OrNull({})
"""Older records, and runs outside of a repository, have none."""
RECORD = {
    "benchmarks": [ROWS["benchmark"]], "outcomes": [ROWS["outcome"]], "passes?": [ROWS["pass"]],
    "machine_info": MACHINE, "commit_info?": COMMIT,
}  # fmt: skip


def why_not_a_record(data: object) -> str | None:
    """What is wrong with data from any source; None for a record of this suite."""
    if not isinstance(data, dict) or not isinstance(data.get("suite"), dict):
        return "it is not a record of this suite"
    if data["suite"].get("format_version") != FORMAT_VERSION:
        return f"its format version is {data['suite'].get('format_version')!r}, this suite reads {FORMAT_VERSION}"
    return misshapen(data, RECORD, "it")


# The times of what was measured again and again: each statistic is computed once, however often it is shown.


PERCENTILES = (50, 95, 99)
FEWEST_FOR_PERCENTILES = 100
"""Times, so that one of them is above the 99th percentile."""

MOST_EXACT = 10_000
"""Times; the exact sum takes a time that grows with their square."""


class Times(tuple[float, ...]):
    """Seconds in the order of measurement. A record may hold millions, so a page must not pass over them each time.

    `median` and `mean` need one, at least.
    """

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """The same times; what is known of `seconds` already stays known."""
        return seconds if isinstance(seconds, cls) else cls(seconds)

    @cached_property
    def ordered(self) -> list[float]:
        return sorted(self)

    @cached_property
    def median(self) -> float:
        return median(self.ordered)

    @cached_property
    def mean(self) -> float:
        return fsum(self) / len(self)

    @cached_property
    def deviation(self) -> float | None:
        """Standard deviation with n - 1; None for a single one."""
        if len(self) < 2:
            return None
        return sqrt(fsum((seconds - self.mean) ** 2 for seconds in self) / (len(self) - 1))

    @cached_property
    def percentiles(self) -> dict[int, float]:
        """Seconds by percent, interpolated as by numpy's default; empty for fewer than 100 times."""
        if len(self) < FEWEST_FOR_PERCENTILES:
            return {}
        cuts = quantiles(self.ordered, n=100, method="inclusive")
        return {percent: cuts[percent - 1] for percent in PERCENTILES}

    def median_interval(self, confidence: float) -> tuple[float, float] | None:
        """The narrowest symmetric pair of order statistics around the median at `confidence`; None if there is none."""
        skipped = _skipped_on_each_side(len(self), confidence)
        return None if skipped is None else (self.ordered[skipped], self.ordered[-1 - skipped])


@cache
def _skipped_on_each_side(count: int, confidence: float) -> int | None:
    if count > MOST_EXACT:  # by the binomial distribution's normal limit
        return int(count / 2 - NormalDist().inv_cdf((1 + confidence) / 2) * sqrt(count) / 2) - 1
    chosen, below, ways = None, 0, 1
    for skipped in range(count // 2):
        below += ways  # in so many of 2^count cases the median lies below the order statistic number skipped + 1
        if 1 - 2 * (below / 2**count) < confidence:
            break
        chosen = skipped
        ways = ways * (count - skipped) // (skipped + 1)
    return chosen


# Small things that several rooms need.


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def collected(found: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """What belongs to each key, keys in order of first appearance."""
    groups: dict[K, list[V]] = {}
    for key, one in found:
        groups.setdefault(key, []).append(one)
    return groups


def grouped(rows: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """The rows of each key, in the order of their first rows."""
    return collected((key(row), row) for row in rows)


def some_of(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def how_many(count: int, noun: str) -> str:
    """`1 case`, `2 cases`, `2 launches`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def without_path(error: Exception) -> str:
    """What went wrong with a file that the sentence names already."""
    if isinstance(error, IsADirectoryError):
        return "it is a folder, not a file"
    if isinstance(error, FileExistsError):
        return "it is a file, not a folder"
    return getattr(error, "strerror", None) or str(error)


def thinned(amounts: Sequence[float], most: int) -> list[int]:
    """Places of fewer moments of an amount, at most `most` and at least 4, that keep where it was highest and lowest.

    These are the highest and the lowest of each stretch, the first and the last one; every place where there are few.
    """
    if len(amounts) <= most:
        return list(range(len(amounts)))
    stretch = ceil(len(amounts) / ((most - 2) // 2))
    kept = {0, len(amounts) - 1}
    for start in range(0, len(amounts), stretch):
        places = range(start, min(start + stretch, len(amounts)))
        kept |= {max(places, key=amounts.__getitem__), min(places, key=amounts.__getitem__)}
    return sorted(kept)


class _XzReader:
    """What `lzma.open` reads, without bytes behind the end that are no stream, which that leaves out in silence."""

    def __init__(self, path: Path, mode: str) -> None:
        self._file = open(path, mode)  # noqa: SIM115  # closed by the context

    def __enter__(self) -> "_XzReader":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, most_bytes: int) -> bytes:
        """Read at most so many bytes. Raises EOFError for a stream without its end, LZMAError for anything else."""
        packed, found = self._file.read(), b""
        while packed and len(found) < most_bytes:
            stream = lzma.LZMADecompressor()
            found += stream.decompress(packed, most_bytes - len(found))
            if not stream.eof and len(found) < most_bytes:
                raise EOFError("it ends within a stream")
            packed = stream.unused_data
        return found


_OPEN: dict[str, Any] = {".gz": gzip.open, ".xz": _XzReader}
SUFFIXES = tuple(_OPEN)

_read: set[tuple[int, int]] = set()


def was_read(path: Path) -> bool:
    """Whether this process has read the file, by `unpacked` and whatever its name: an output never replaces it."""
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in _read


def unpacked(path: Path, most_bytes: int) -> bytes:
    """The bytes of `path`, decompressed where its name ends in .gz or .xz; a stranger's file must not fill the memory.

    Raises ValueError with one sentence for an unreadable file and for one that unpacks to more than `most_bytes`.
    """
    try:
        with _OPEN.get(path.suffix, open)(path, "rb") as file:
            content: bytes = file.read(most_bytes + 1)
        about = path.stat()
        _read.add((about.st_dev, about.st_ino))
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path} cannot be read: {without_path(error)}.") from error
    if len(content) > most_bytes:
        raise ValueError(f"{path} cannot be used: it is larger than {most_bytes} bytes, the most that is read.")
    return content


def cache_folder() -> Path:
    """The folder of what the suite would otherwise find out again in every run; removing it loses only time.

    It lies in `$XDG_CACHE_HOME`, or `~/.cache` (XDG Base Directory Specification). Raises OSError without a home.
    """
    folder = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(folder) if Path(folder).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise OSError(str(error)) from error
    return home / "transformer-perf-tests"
