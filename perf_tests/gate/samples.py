"""The raw samples of a gate run: JSON lines, one for each benchmark in each launch pair, and a few events.

The first line is the header:

    {"format_version": 1, "kind": "gate-samples", "started": ISO time,
     "base": {"revision", "label"}, "head": {"revision", "label"}, "machine_info": {}, "settings": {},
     "cases": [{"id", "identity": {}}], "accepted": [], "options": "--against REV ...", "engine": number in `ENGINES`}

where `accepted` (`accepted.py`), `options`, what else to type to measure a case again, and `engine` may be left out.

A launch pair is two fresh processes, base and head, that serve the cases in turns. One line for each of its cases:

    {"stage": 1 or 2, "pair": number, unique over the run, "case": id, "orders": ["ABBA", "BAAB", ...],
     "base_seconds": [[b1, b2], ...], "head_seconds": [[h1, h2], ...],
     "base_cpu_seconds": the same or null, "head_cpu_seconds": the same or null,
     "cores": numbers of the cores that both sides worked on, or null; kept for the reader}

with A for base, B for head, and one entry for each quadruple of turns. The other lines are `{"event": its name, ...}`,
each a class of `events.py`. Every result of the gate is computed from this file, so that `replay` repeats it.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from perf_tests.gate.events import EVENTS, End, EndReason, Event, Measurement
from perf_tests.records.record import Json, without_nan
from perf_tests.records.unpacked import unpacked

E = TypeVar("E", bound=Event)

FORMAT_VERSION = 1
KIND = "gate-samples"

MOST_BYTES = 1 << 30
"""Of a samples file, unpacked; a gate run writes far less."""


@dataclass
class GateSamples:
    """What a samples file holds, in the order of writing."""

    header: Json
    measurements: list[Measurement] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_header(self.header)

    @property
    def cases(self) -> list[str]:
        return [case["id"] for case in self.header["cases"]]

    def pairs(self, stage: int) -> list[int]:
        """The numbers of the launch pairs of a stage, in the order they ran in."""
        return sorted({measurement.pair for measurement in self.measurements if measurement.stage == stage})

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def end(self) -> EndReason | None:
        """Why the run stopped; None where it was killed."""
        return next((event.reason for event in reversed(self.of(End))), None)

    @property
    def ran_out_of_time(self) -> bool:
        """Whether a clock stopped it, which did not depend on the figures."""
        return self.end in ("budget", "time_limit")

    def add(self, line: object) -> None:
        """Take in one line after the header; raises ValueError, with what is wrong, for a damaged one."""
        if not isinstance(line, dict):
            raise ValueError("it is not an object")
        if "event" not in line:
            self._add_measurement(Measurement.from_line(line))
        elif isinstance(line["event"], str) and line["event"] in EVENTS:
            self.events.append(EVENTS[line["event"]].from_line(line))
        else:
            raise ValueError(f"the event {line['event']!r} is not known")

    def _add_measurement(self, measurement: Measurement) -> None:
        if measurement.case not in self.cases:
            raise ValueError(f"the case {measurement.case!r} is not in the header")
        if any((m.pair, m.case) == (measurement.pair, measurement.case) for m in self.measurements[-len(self.cases) :]):
            raise ValueError(f"pair {measurement.pair} has {measurement.case!r} twice")
        self.measurements.append(measurement)


class SamplesFile:
    """A samples file that grows with the run; `samples` is its content. Raises OSError when the disk refuses."""

    def __init__(self, path: Path, header: Json) -> None:
        """Begin a new file; raises FileExistsError rather than overwrite samples, ValueError for a wrong header."""
        text = _encoded({"format_version": FORMAT_VERSION, "kind": KIND, **header})
        self.samples = GateSamples(json.loads(text))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("xb")
        self._write(text)

    def append(self, line: Json) -> None:
        """Check a line, keep it and write it; raises ValueError for a wrong one, which is not written."""
        text = _encoded(line)
        self.samples.add(json.loads(text))  # as a reader will, so that run and replay decide on the same numbers
        self._write(text)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()


def _encoded(line: Json) -> bytes:
    return json.dumps(without_nan(line), allow_nan=False).encode() + b"\n"


def read_samples(path: Path) -> GateSamples:
    """The samples at `path`, compressed where its name ends in .gz; a torn last line is left out.

    Raises ValueError with one sentence for anything else.
    """
    content = unpacked(path, MOST_BYTES)
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise ValueError(f"{path} holds no samples: its first line is incomplete.")
    number = 1
    try:
        samples = GateSamples(json.loads(lines[0]))
        for number, line in enumerate(lines[1:], start=2):  # noqa: B007
            samples.add(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be used: line {number} is damaged: {error}.") from error
    return samples


def _check_header(header: object) -> None:
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise ValueError("it does not begin with the header of gate samples")
    if header.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"its format version is {header.get('format_version')!r}, this suite reads {FORMAT_VERSION}")
    for name in ("base", "head"):
        if not isinstance(header.get(name), dict) or not isinstance(header[name].get("label"), str):
            raise ValueError(f"its {name!r} has no label")
    for name in ("machine_info", "settings"):
        if not isinstance(header.get(name), dict):
            raise ValueError(f"its {name!r} is missing")
    _check_cases(header.get("cases"))
    if not isinstance(header.get("accepted", []), list):
        raise ValueError("its 'accepted' is not a list")
    if not isinstance(header.get("options", ""), str):
        raise ValueError("its 'options' is not a string")
    if type(header.get("engine", 1)) is not int:
        raise ValueError("its 'engine' is not a number")


def _check_cases(cases: object) -> None:
    ids = [case.get("id") for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []
    if not isinstance(cases, list) or len(ids) < len(cases) or not all(isinstance(name, str) and name for name in ids):
        raise ValueError("its 'cases' is not a list of cases with an id")
    if len(set(ids)) < len(ids):
        raise ValueError("its 'cases' name one id twice")
