"""The page that ends an expedition: each claim with its limit, the machine's figure, and whether that confirms it.

The claims are what the suite says of itself on a GPU; figures are read from records, journals and findings.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import pytest

from claims.expedition.slices import SLICES
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.journal import JournalContents, read_journal, unfinished_journals
from perf_tests_suite.perf_tests.records.record import (
    ANYTHING,
    OUTCOMES,
    TEXT,
    Json,
    identity_of,
    misshapen,
    timing_outcomes,
)
from perf_tests_suite.perf_tests.records.store import list_records

FACTS = {"gpu": {"name": TEXT, "driver": ANYTHING}, "torch": ANYTHING, "python": ANYTHING}

LEFT_OUT = "traces-left-out.txt"
"""Names the traces beyond the limits of the folder."""


class NotMeasuredError(Exception):
    """A figure that no slice took; the message says why."""


@dataclass(frozen=True)
class Found:
    """The unpacked state of an expedition. Each method raises NotMeasuredError for what is not there."""

    state: Path

    def finding(self, step: str) -> Json:
        """How the step's process ended."""
        path = self.state / "findings" / f"{step}.json"
        if not path.exists():
            of_slice = next(name for name, steps in SLICES.items() if any(entry.name == step for entry in steps))
            raise NotMeasuredError(f"{step}, slice {of_slice}, has not run")
        finding: Json = json.loads(path.read_bytes())
        if finding["device"] == "cpu":
            raise NotMeasuredError("not measured on a CPU")
        return finding

    def values(self, check: str) -> Json:
        """What a check of the instruments measured."""
        finding = self.finding(check)
        if finding["exit_code"]:
            raise NotMeasuredError(how_it_ended(check, finding))
        values: Json = json.loads(finding["last_line"])
        if "reason" in values:
            raise NotMeasuredError(values["reason"])
        return values

    def run(self, step: str) -> JournalContents:
        """The rows of the step's newest record, else of its journal."""
        finding, storage = self.finding(step), self.state / "storage" / step
        if records := list_records(storage).records:
            data = records[-1].data
            return JournalContents({}, data["benchmarks"], data["outcomes"], data.get("passes", []))
        journals = (read_journal(path) for path in unfinished_journals(storage))
        contents = next(filter(None, journals), None)
        if contents is None:
            raise NotMeasuredError(how_it_ended(step, finding))
        return contents

    def timed(self, step: str) -> list[Json]:
        """The step's timings, at least one."""
        run = self.run(step)
        if not run.benchmarks:
            reasons = sorted({row["reason"] for row in run.outcomes}) or ["no case has run"]
            raise NotMeasuredError(f"{step} has no timing: {'; '.join(reasons)}")
        return run.benchmarks

    def gpu_name(self) -> str:
        return str(self.values("facts")["gpu"]["name"])


Judge = Callable[[Found], tuple[str, bool]]
"""The figure and whether it lies within the limit; raises NotMeasuredError."""


@dataclass(frozen=True)
class Claim:
    sentence: str
    limit: str
    judge: Judge


def page(state: Path) -> str:
    """The page in Markdown, from the unpacked state."""
    found = Found(state)
    lines = ["# What the machine confirmed", "", _machine(found), ""]
    lines += ["| claim | limit | figure | verdict |", "|---|---|---|---|", *(_row(claim, found) for claim in CLAIMS)]
    lines += ["", "| slice | step | exit code | seconds |", "|---|---|---|---|", *_steps(found)]
    if (state / LEFT_OUT).exists():
        lines += ["", f"Traces beyond the folder's limits: {', '.join((state / LEFT_OUT).read_text().split())}."]
    return "\n".join(lines) + "\n"


def _machine(found: Found) -> str:
    try:
        facts = found.values("facts")
    except (NotMeasuredError, ValueError, TypeError) as error:
        return f"The machine is not known: {error}."
    if wrong := misshapen(facts, FACTS, "facts"):
        return f"The machine is not known: {wrong}."
    gpu = facts["gpu"]
    return f"{gpu['name']}, driver {gpu['driver']}, torch {facts['torch']}, Python {facts['python']}"


def _row(claim: Claim, found: Found) -> str:
    try:
        figure, holds = claim.judge(found)
        verdict = "confirmed" if holds else "not confirmed"
    except NotMeasuredError as error:
        figure, verdict = str(error), "not measured"
    except (ArithmeticError, AttributeError, LookupError, ValueError, TypeError) as error:
        figure, verdict = f"what was recorded cannot be judged: {error!r}", "not measured"
    cells = (claim.sentence, claim.limit, figure, verdict)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _steps(found: Found) -> Iterator[str]:
    for name in dict.fromkeys(step.name for steps in SLICES.values() for step in steps):
        path = found.state / "findings" / f"{name}.json"
        if path.exists():
            finding = json.loads(path.read_bytes())
            yield f"| {finding['slice']} | {name} | {finding['exit_code']} | {finding['seconds']:.0f} |"


def how_it_ended(step: str, finding: Json) -> str:
    ended = "could not run" if finding["exit_code"] is None else f"exited with {finding['exit_code']}"
    return f"{step} {ended}: {finding['last_line']}"


def medians(rows: Iterable[Json]) -> dict[str, float]:
    """Seconds by the short name of the case."""
    return {case_name(row["fullname"]): row["stats"]["median"] for row in rows}


def known(rows: Iterable[Json], *fields: str) -> list[Json]:
    """The rows with a value in all of these fields of `extra_info`; raises NotMeasuredError without any."""
    found = [row for row in rows if all(row["extra_info"].get(name) is not None for name in fields)]
    if not found:
        raise NotMeasuredError(f"no row has {' and '.join(fields)}")
    return found


def same_case(row: Json) -> tuple[tuple[str, object], ...]:
    """The identity of a timing or of a pass over the same case."""
    return tuple(sorted(identity_of(row.get("identity", row)).items()))


REACHED_ELSEWHERE = {"H200": (788e12, 4.3e12), "H100": (798e12, 3.0e12)}
"""Rates by a word of the card's name: FLOP/s of a bf16 product of two 8192 x 8192 matrices of random numbers, and bytes
per second, read and written, of a copy on the device. Measured with PyTorch 2.11, one card of each."""

TOO_LARGE = ("out_of_memory", "would_not_fit")


def ends_only_in(step: str, *allowed: str, least: int = 0) -> Judge:
    """Judge whether every case is measured or ends in one of these outcomes, at least so many of them."""

    def judge(found: Found) -> tuple[str, bool]:
        run = found.run(step)
        ends = Counter(row["outcome"] for row in timing_outcomes({"outcomes": run.outcomes}))
        words = ", ".join(
            [f"{len(run.benchmarks)} measured", *(f"{count} {OUTCOMES[name]}" for name, count in ends.items())]
        )
        if left := set(run.header.get("selection", [])) - run.finished_ids:
            raise NotMeasuredError(f"{words}, {len(left)} left")
        return words, ends.keys() <= set(allowed) and ends.total() >= least

    return judge


def medians_agree(step: str, reference: str, low: float, high: float) -> Judge:
    """Medians of the step over those of the same cases in the reference, the one that is furthest from 1."""

    def judge(found: Found) -> tuple[str, bool]:
        now, before = medians(found.timed(step)), medians(found.timed(reference))
        ratios = {name: now[name] / before[name] for name in now.keys() & before.keys()}
        if not ratios:
            raise NotMeasuredError(f"{step} and {reference} have no case in common")
        return furthest_from_1(ratios), all(low <= ratio <= high for ratio in ratios.values())

    return judge


def furthest_from_1(ratios: Mapping[str, float]) -> str:
    name = max(ratios, key=lambda name: abs(ratios[name] - 1))
    return f"{ratios[name]:.3f} ({name})"


def flagged(step: str, flag: str, is_planted: bool = False) -> Judge:
    """Judge whether no row of the step carries the flag, or each does where its cause is planted."""

    def judge(found: Found) -> tuple[str, bool]:
        rows = found.timed(step)
        count = sum(flag in row["extra_info"]["flags"] for row in rows)
        return f"{count} of {len(rows)} rows", count == (len(rows) if is_planted else 0)

    return judge


def passes(step: str) -> Judge:
    """Judge whether the step's process exited with 0; 4 says that it could not run."""

    def judge(found: Found) -> tuple[str, bool]:
        finding = found.finding(step)
        if finding["exit_code"] in (None, pytest.ExitCode.USAGE_ERROR):
            raise NotMeasuredError(how_it_ended(step, finding))
        return how_it_ended(step, finding), finding["exit_code"] == 0

    return judge


def reaches(place: int, rate_of: Callable[[Found], float]) -> Judge:
    """Judge whether this machine's rate is that of the same card elsewhere, within 10 %."""

    def judge(found: Found) -> tuple[str, bool]:
        name = found.gpu_name()
        words = name.split()  # a GH200 is no H200
        elsewhere = next((rates[place] for word, rates in REACHED_ELSEWHERE.items() if word in words), None)
        if elsewhere is None:
            raise NotMeasuredError(f"no rate of another {name} is known")
        return f"{rate_of(found) / 1e12:.4g} T/s, there {elsewhere / 1e12:g}", abs(rate_of(found) / elsewhere - 1) < 0.1

    return judge


def health_is_read(found: Found) -> tuple[str, bool]:
    name, facts = found.gpu_name(), found.values("facts")
    clock = facts["drifting"].get("sm_clock_mhz")
    return facts["why_no_health"] or f"{name} at {clock} MHz", clock is not None


def event_over_kernels(found: Found) -> tuple[str, bool]:
    values = found.values("queue")
    ratio = values["queued_event_seconds"] / values["kernel_seconds"]
    return f"{ratio:.3f}", 0.95 <= ratio <= 1.05


def wall_over_event(found: Found) -> tuple[str, bool]:
    values = found.values("queue")
    ratios = [values[name] / values["queued_event_seconds"] for name in ("wall_seconds", "idle_event_seconds")]
    return f"wall {ratios[0]:.3f}, idle stream {ratios[1]:.3f}", min(ratios) >= 0.95


def fused_backends(found: Found) -> tuple[str, bool]:
    rows = [row["extra_info"] for row in known(found.timed("sdpa"), "sdpa_backend")]
    shown = {f"{row['precision']} d{row['head_dim']} {row['phase']}: {row['sdpa_backend']}" for row in rows}
    return "; ".join(sorted(shown)), all(row["sdpa_backend"] != "math" for row in rows)


PEAK_ERROR = 0.001
"""The counters are exact but for the 512 bytes that they round each block up to."""


def predicted_peaks(found: Found) -> tuple[str, bool]:
    """Judge by what was asked of the allocator, and say its blocks beside."""
    fields = ("peak_requested_bytes", "peak_allocated_bytes", "predicted_peak_bytes")
    rows = [row["extra_info"] for row in known(found.timed("main"), *fields)]
    asked, blocks = ([row[name] / row["predicted_peak_bytes"] - 1 for row in rows] for name in fields[:2])
    off = sum(abs(error) > PEAK_ERROR for error in asked)
    words = f"{min(asked):+.2%} to {max(asked):+.2%} with workspaces, by blocks up to {max(blocks):+.2%}"
    return f"{off} of {len(rows)} off by more than {PEAK_ERROR:.1%}; {words}", off == 0


ERROR_ON_A_KNOWN_HOST = 0.3


def predicted_times(found: Found) -> tuple[str, bool]:
    """80 % of the errors within ERROR_ON_A_KNOWN_HOST, by what bounds the case."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in known(found.timed("main"), "roofline_seconds", "launching_seconds", "bound"):
        info = row["extra_info"]
        predicted = max(info["roofline_seconds"], info["launching_seconds"])
        errors[info["bound"]].append(abs(predicted / row["stats"]["median"] - 1))
    within = {bound: quantiles(found, n=5)[3] if len(found) > 1 else found[0] for bound, found in errors.items()}
    words = [f"{bound} {within[bound]:.0%} of {len(found)}" for bound, found in errors.items()]
    return ", ".join(words), max(within.values()) <= ERROR_ON_A_KNOWN_HOST


def pass_over_row(of_pass: str, of_row: str, margin: float) -> Judge:
    """A figure of the kernel pass over the one beside the timing, of each case that has both."""

    def judge(found: Found) -> tuple[str, bool]:
        run = found.run("passes")
        timed = {same_case(row): row["extra_info"] for row in run.benchmarks if row["extra_info"].get(of_row)}
        traced = [row for row in run.passes if row["pass"] == "kernels" and same_case(row) in timed]
        ratios = {case_name(row["id"]): row["values"][of_pass] / timed[same_case(row)][of_row] for row in traced}
        if not ratios:
            raise NotMeasuredError(f"no case has both {of_pass} of the kernel pass and {of_row}")
        return furthest_from_1(ratios), all(abs(ratio - 1) <= margin for ratio in ratios.values())

    return judge


def compilation_gains(found: Found) -> tuple[str, bool]:
    rows = {
        row["extra_info"].get("execution") or "eager": row
        for row in found.timed("executions")
        if (identity_of(row)["size"], identity_of(row)["context_length"]) == ("large", 1024)
    }
    if not {"eager", "compiled"} <= rows.keys():
        raise NotMeasuredError("large at context 1024 has no timing both eager and compiled")
    ratio = rows["eager"]["stats"]["median"] / rows["compiled"]["stats"]["median"]
    mfu = {name: row["extra_info"].get("mfu") for name, row in rows.items()}
    return f"{ratio:.2f}; MFU {', '.join(f'{name} {share:.0%}' for name, share in mfu.items() if share)}", ratio > 1


def warm_up_is_enough(found: Found) -> tuple[str, bool]:
    needed = [row["values"]["recommended_warmup_rounds"] for row in found.run("study").passes]
    if not needed:
        raise NotMeasuredError("the warm-up study has no case")
    return f"{max(needed)} rounds at most", max(needed) <= 5


CLAIMS = (
    Claim("The state of the GPU is read", "a clock rate", health_is_read),
    Claim("The bf16 ceiling is that of the same card elsewhere", "within 10 %",
          reaches(0, lambda found: found.values("facts")["ceilings"]["matmul_flops_per_second"]["bf16"])),
    Claim("A copy is as fast as on the same card elsewhere", "within 10 %",
          reaches(1, lambda found: found.values("facts")["copy_bytes_per_second"])),
    Claim("Each kind of case runs", "measured or unsupported", ends_only_in("smoke", "unsupported")),
    Claim("Events behind a full queue hold the kernels' time by the profiler, as a ratio", "0.95 to 1.05",
          event_over_kernels),
    Claim("Wall time and events on an idle stream are no shorter than that", "at least 0.95", wall_over_event),
    Claim("A host that sleeps inside a round is flagged", "each row", flagged("waits", "waits_for_host", True)),
    Claim("5 warm-up rounds are as good as 300: ratio of medians", "0.95 to 1.05",
          medians_agree("5-rounds", "300-rounds", 0.95, 1.05)),
    Claim("A case is as fast after a large one as alone: ratio of medians", "0.97 to 1.03",
          medians_agree("after-large", "alone", 0.97, 1.03)),
    Claim("Fused attention never takes the unfused path at head widths 16 to 128", "no math", fused_backends),
    Claim("With a cold cache no case is faster: ratio of medians", "at least 0.98",
          medians_agree("cold-cache", "warm-cache", 0.98, float("inf"))),
    Claim("A batch that overflows costs its own case alone", "at least 1 too large, no other failure",
          ends_only_in("overflow", *TOO_LARGE, least=1)),
    Claim("Of the largest size each phase runs or is refused as too large", "no failure",
          ends_only_in("10B", *TOO_LARGE)),
    Claim("A device assert costs its own case alone, after one resumption", "1 failure",
          ends_only_in("device-assert", "error", least=1)),
    Claim("Attention over 16384 tokens runs in each implementation", "all measured", ends_only_in("longest")),
    Claim("Flex attention runs", "all measured", ends_only_in("flex")),
    Claim("The numerics hold on the GPU", "exit code 0", passes("numerics")),
    Claim("The default grid, as far as it is recorded, has no failure", "measured, unsupported or too large",
          ends_only_in("main", "unsupported", *TOO_LARGE)),
    Claim("Peak memory is predicted within 0.1 %, the libraries' workspaces included", "0 off", predicted_peaks),
    Claim("Times are predicted: by bound, the error that holds 80 % of cases", "30 %", predicted_times),
    Claim("No product is faster than the measured ceiling", "0 rows", flagged("main", "over_ceiling")),
    Claim("A step's parts add up to its time", "0 rows", flagged("main", "parts_do_not_add_up")),
    Claim("Launches are counted exactly: the profiler's over the counted", "within 2 %",
          pass_over_row("launches", "kernel_launches", 0.02)),
    Claim("The device's busy time is the profiler's kernel time: ratio", "within 10 %",
          pass_over_row("kernel_seconds", "device_busy_seconds", 0.1)),
    Claim("Compiled, a bf16 step of large at context 1024 is faster than eager", "above 1", compilation_gains),
    Claim("By the study, 5 warm-up rounds are enough", "at most 5", warm_up_is_enough),
    Claim("The gate finds no slowdown between equal sides", "exit code 0", passes("gate")),
)  # fmt: skip
