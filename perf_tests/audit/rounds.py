"""What our own figures say of themselves: flags of a row, the round from which its times are steady, how many warm-up
rounds are enough, and contradictions inside a kernel pass."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, isclose, sqrt
from operator import sub
from statistics import fmean, median, pstdev, stdev

from perf_tests_suite.perf_tests.audit.physics import MEASURED_CEILING_MARGIN
from perf_tests_suite.perf_tests.phases import PHASES
from perf_tests_suite.perf_tests.records.columns import CaseRow, pairs_along
from perf_tests_suite.perf_tests.records.format import duration
from perf_tests_suite.perf_tests.records.measured import Measured
from perf_tests_suite.perf_tests.records.record import Json

# Flags of a row, from its own rounds and figures alone.


OUTLIER_SHARE = 0.25
"""Standard deviation over mean above which one slow round is the simplest explanation."""
OUTLIER_AGREEMENT = 0.1
TREND_DEVIATIONS = 2.58
"""Two-sided 1 % of Mann and Kendall's test, in standard deviations."""
TREND_LEAST_CHANGE = 0.05
FEWEST_HALVED = 16
"""Values in a half from which sorting takes less than comparing each pair."""
CLOCK_STEP_SECONDS = 0.1
BUSY_CORES = 0.1
"""Cores that others may use beyond those that the case leaves idle; twice what the kernel's ticks may hide."""
SLOW_SENTINEL = 2.0
"""Times the run's fastest sentinel; two launches of one program on a quiet machine differ by much less."""
CPU_WORKSPACE_BYTES_PER_THREAD = 2 * 2**20
"""Workspace of the CPU's fused attention and 16-bit products, from the same allocator: repacked factors, and a block
of scores (PyTorch, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: at most 256 x 512 numbers, twice in the backward
pass)."""


@dataclass(frozen=True, kw_only=True)
class RowFacts(Measured):
    """What the rules look at: what a row has, and what no row keeps; None where unknown."""

    rounds_seconds: Sequence[float] = ()
    workspace_bytes: int = 0
    """Workspaces of libraries, as far as the prediction leaves them out."""
    available_bytes: int | None = None
    is_over_ceiling: bool = False
    threads: int = 1
    """Threads of this process that compute."""
    least_sentinel_seconds: float | None = None
    """The shortest of the run so far."""
    is_beside_a_run: bool = False
    """Whether another run of the suite measured on this device meanwhile."""
    raw_seconds: Sequence[float] = ()
    """The rounds by a second clock of the system; empty where they are not timed by this process alone."""
    rate_of_clocks: float = 1.0
    """Seconds of the first in one of the second; asked for where they disagree."""
    replaced: Sequence[str] = ()
    """Clocks, judges and functions of the suite that are no longer those of before."""
    late_work: Sequence[str] = ()
    """Clauses on work that went on after the clock was read."""
    shares_memory: bool = False
    over_roofline: float | None = None
    """Time of the kernels over the median, without traffic that caches may serve."""
    same_again: bool | None = None
    """Whether a round that was run again on equal inputs gave equal results, bit for bit."""


def slow_round(mean: float, std: float, rounds: int) -> tuple[float, float] | None:
    """The usual round and the slow one, if one of `rounds` is slow and the others equal; None if that is impossible.

    One round slower by `gap` adds gap / n to the mean and makes the population's deviation gap x sqrt(n - 1) / n.
    """
    if rounds < 3 or mean <= 0 or std <= 0:
        return None
    gap = std * rounds / sqrt(rounds - 1)
    usual = mean - gap / rounds
    return (usual, usual + gap) if usual > 0 else None


def has_outlier(rounds: Sequence[float]) -> bool:
    """Whether one slow round causes the spread: the slowest round agrees with the one that `slow_round` expects."""
    if len(rounds) < 4 or pstdev(rounds) <= OUTLIER_SHARE * fmean(rounds):
        return False
    pair = slow_round(fmean(rounds), pstdev(rounds), len(rounds))
    return pair is not None and abs(max(rounds) / pair[1] - 1) <= OUTLIER_AGREEMENT


def has_trend(rounds: Sequence[float]) -> bool:
    """Whether later rounds are slower or faster than earlier ones by 5 % or more (Mann, Econometrica 13, 1945)."""
    count = len(rounds)
    if count < 8:
        return False
    deviation = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    third = count // 3
    change = median(rounds[-third:]) / median(rounds[:third]) - 1
    return abs(rises_less_falls(rounds)) - 1 > TREND_DEVIATIONS * deviation and abs(change) >= TREND_LEAST_CHANGE


def rises_less_falls(values: Sequence[float]) -> int:
    """Pairs of values of which the later is larger, less those of which it is smaller.

    Counted by halves, of which the first is sorted: a run may have a million rounds, and the square of them in pairs.
    """
    half = len(values) // 2
    if half < FEWEST_HALVED:
        return sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    first, second = values[:half], values[half:]
    ordered = sorted(first)
    between = sum(bisect_left(ordered, later) + bisect_right(ordered, later) - half for later in second)
    return between + rises_less_falls(first) + rises_less_falls(second)


HOST_WAIT = 1.05
"""Multiple of the busy time from which a round waits: both clocks carry noise."""


def _waits_for_host(facts: RowFacts) -> bool:
    """Whether wall time exceeds the device's own although the device has enough work to be the slower."""
    busy, empty = facts.device_busy_seconds, facts.empty_round_seconds or 0.0
    return busy is not None and facts.bound != "launch" and median(facts.rounds_seconds) - empty > HOST_WAIT * busy


def _parts_do_not_add_up(facts: RowFacts) -> bool:
    if not facts.part_seconds or not all(facts.part_seconds.values()):
        return False
    sums = [sum(parts) for parts in zip(*facts.part_seconds.values(), strict=True)]
    if len(sums) != len(facts.rounds_seconds):
        return True
    shares = [parts / whole for parts, whole in zip(sums, facts.rounds_seconds, strict=True)]
    return abs(median(shares) - 1) > 0.05


def _is_busy(facts: RowFacts) -> bool:
    """Whether others left the case fewer processors than threads, or the sentinel was slow on both sides of it."""
    usable, others = facts.before.get("usable_processors"), facts.other_cores
    if usable and others is not None and others + min(facts.threads, usable) > usable + BUSY_CORES:
        return True
    least, sentinel = facts.least_sentinel_seconds, facts.sentinel_seconds
    return bool(least and sentinel) and min(sentinel or ()) > SLOW_SENTINEL * (least or 0.0)


def _may_page(facts: RowFacts) -> bool:
    rounds, peak_bytes, available_bytes = facts.rounds_seconds, facts.predicted_peak_bytes, facts.available_bytes
    if peak_bytes is None or not available_bytes or len(rounds) < 2:
        return False
    return peak_bytes > 0.9 * available_bytes and pstdev(rounds) > 0.3 * fmean(rounds)


def _peak_is_off(facts: RowFacts) -> bool:
    """Whether neither the counters nor `workspace_bytes` of libraries explain the peak of what was asked for.

    A caching allocator's blocks are larger: one of more than 1 MiB keeps a rest of up to 1 MiB, which its
    `allocated_bytes` count and `requested_bytes` do not (`should_split`, c10/cuda/CUDACachingAllocator.cpp).
    """
    peak = facts.peak_allocated_bytes if facts.peak_requested_bytes is None else facts.peak_requested_bytes
    if peak is None or facts.predicted_peak_bytes is None:
        return False
    above, tolerance = peak - facts.predicted_peak_bytes, 0.01 * facts.predicted_peak_bytes
    return not -tolerance <= above <= tolerance + facts.workspace_bytes


def _has_changed(*names: str) -> Callable[[RowFacts], bool]:
    return lambda facts: any(facts.before.get(name) != facts.after.get(name) for name in names)


def _has_jumped(name: str) -> Callable[[RowFacts], bool]:
    """Whether seconds of the host moved by more than reading two clocks one after the other explains."""

    def rule(facts: RowFacts) -> bool:
        before, after = facts.before.get(name), facts.after.get(name)
        return before is not None and after is not None and abs(after - before) > CLOCK_STEP_SECONDS

    return rule


# What no honest measurement shows. Seconds are sums over the case: a single round may lie between two ticks.


CLOCKS_AGREE_SHARE, CLOCKS_AGREE_SECONDS = 1e-3, 1e-3
"""Two clocks of one system differ by less: corrections of the time are .05 % at most."""
CPU_SHARE, CPU_SECONDS_PER_ROUND = 1.05, 2e-4
"""A reading of the CPU clocks lies outside of the round, and takes some microseconds for each thread."""


def clocks_disagree(facts: RowFacts) -> bool:
    """Whether the rounds differ from those of the second clock, at the rate at which the system runs both.

    On a busy machine the process is stopped for milliseconds now and then, also between the readings of both clocks.
    So the fiftieth of the rounds that differs most, at least one, is no evidence; no median is of them.
    """
    rounds = len(facts.rounds_seconds)
    if len(facts.raw_seconds) != rounds:
        return False
    seconds = [facts.rate_of_clocks * raw for raw in facts.raw_seconds]
    apart = sorted(map(sub, facts.rounds_seconds, seconds), key=abs)
    kept = apart[: rounds - max(1, rounds // 50)] if rounds > 2 else apart
    return abs(sum(kept)) > CLOCKS_AGREE_SHARE * sum(seconds) + CLOCKS_AGREE_SECONDS


def _cpu_limit_seconds(facts: RowFacts) -> float:
    return float(facts.before.get("usable_processors") or inf) * sum(facts.rounds_seconds)


def _exceeds_processors(facts: RowFacts) -> bool:
    slack = CPU_SECONDS_PER_ROUND * len(facts.rounds_seconds)
    return sum(facts.cpu_seconds or ()) > CPU_SHARE * _cpu_limit_seconds(facts) + slack


def _changed_conditions(facts: RowFacts) -> list[str]:
    names = ("float32_matmul_precision", "deterministic_algorithms")
    pairs = ((name, facts.before.get(name), facts.after.get(name)) for name in names)
    return [f"{name} from {before} to {after}" for name, before, after in pairs if before != after]


def why_replaced(names: Sequence[str]) -> str:
    """Say what code of the user's replaced of clocks, judges and the suite."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"It replaced {', '.join(names[:3])}{more}, by which it is measured and checked; leave clocks, torch and the "
        f"suite as they are."
    )


@dataclass(frozen=True)
class Flag:
    """The rule of when a row carries it, and its sentence for the reader."""

    rule: Callable[[RowFacts], bool]
    sentence: str
    accusation: Callable[[RowFacts], str] | None = None
    """The sentence, with figures, by which code of the user's is refused; None where it is measured all the same."""


BUSY = "busy_machine"
SHORT_WARMUP = "short_warmup"
NOT_COMPILED = "not_compiled"

POWER_CAP = "power cap"
"""NVML's reason (`hardware/machine.py`) that is no fault: under heavy work a data-centre card runs at its limit."""

FLAGS = {
    "math_attention": Flag(lambda facts: facts.sdpa_backend == "math",
        "scaled_dot_product_attention took the unfused math path"),
    "recompiled": Flag(lambda facts: bool(facts.recompiles),
        "torch.compile generated code inside the measured rounds"),
    NOT_COMPILED: Flag(lambda facts: bool(facts.not_compiled),
        "torch.compile compiled nothing of it, so it is the eager program under another name"),
    "no_cuda_graph": Flag(lambda facts: bool(facts.cudagraph_skips),
        "torch.compile could not put all of it into CUDA graphs"),
    "skipped_steps": Flag(lambda facts: bool(facts.skipped_steps),
        "the gradient scaler skipped optimizer steps in the measured rounds"),
    "steps_left_out": Flag(lambda facts: bool((facts.checked or {}).get("still")),
        "some checked steps moved no weight, as those of an optimizer that adds gradients up, so its times are of two "
        "kinds (checked)"),
    "unchecked": Flag(lambda facts: facts.checked is not None and not facts.checked["rounds"],
        "nothing that its rounds computed was checked (checked says why)"),
    "outlier": Flag(lambda facts: has_outlier(facts.rounds_seconds),
        "one slow round causes most of the spread"),
    SHORT_WARMUP: Flag(lambda facts: facts.suggested_warmup_rounds is not None,
        "its first rounds were slower than the rest, or its rounds got faster: the warm-up was too short"),
    "trend": Flag(lambda facts: has_trend(facts.rounds_seconds),
        "later rounds differ from earlier ones by 5 % or more"),
    BUSY: Flag(_is_busy,
        "other programs used processors that it needed (other_cores), so its times are too long; measure it again on a "
        "quiet machine"),
    "throttled": Flag(lambda facts: bool(set(facts.throttle_reasons or ()) - {POWER_CAP}),
        "heat or a fault of the power supply held the GPU's clocks down at the end of measured rounds "
        "(throttle_reasons)"),
    "nondeterministic": Flag(lambda facts: facts.same_again is False,
        "a round that was run again on equal inputs differed in some bits of its result"),
    "beside_a_run": Flag(lambda facts: facts.is_beside_a_run,
        "another run of the suite measured on this device at the same time, so its times may be too long"),
    "processors_changed": Flag(_has_changed("usable_processors", "processor_quota"),
        "the processors that the process may use, or its share of their time, changed while it ran (before, after)"),
    "memory_limit_changed": Flag(_has_changed("memory_limit_bytes"),
        "the memory that the control group may use changed while it ran (before, after)"),
    "suspended": Flag(_has_jumped("suspended_seconds"),
        "the machine was suspended while it ran; times leave that out, caches and clock rates do not (before, after)"),
    "date_set": Flag(_has_jumped("booted_unix_seconds"),
        "the date was set while it ran: no time depends on it, the order of records does (before, after)"),
    "over_ceiling": Flag(lambda facts: facts.is_over_ceiling,
        "its products ran faster than the best square product measured here, which carries the same noise"),
    "waits_for_host": Flag(_waits_for_host,
        "wall time, less that of an empty round, exceeds the time that the device is busy by over 5 % although "
        "launches do not bound it"),
    "parts_do_not_add_up": Flag(_parts_do_not_add_up,
        "the step and the sum of its parts differ by over 5 %"),
    "paging": Flag(_may_page,
        "rounds scatter while memory is nearly full: possible paging to the host"),
    "peak_off": Flag(_peak_is_off,
        "the peak of what was asked of the allocator differs from the prediction by more than 1 % and the libraries' "
        "workspaces"),
    "replaced": Flag(lambda facts: bool(facts.replaced),
        "a clock, a check or a function of the suite was replaced while it ran, so nothing vouches for its times"),
    "clocks_disagree": Flag(clocks_disagree,
        "a second clock of the system disagrees with its times by more than .1 % and 1 ms",
        lambda facts: f"Its rounds took {duration(sum(facts.rounds_seconds))} by one clock and "
            f"{duration(sum(facts.raw_seconds))} by a second one of the system (CLOCK_MONOTONIC_RAW): the first was "
            "changed."),
    "more_cpu_than_wall": Flag(_exceeds_processors,
        "it used more CPU time than its processors have in its wall time, so one of the two clocks is wrong",
        lambda facts: f"Its rounds used {duration(sum(facts.cpu_seconds or ()))} of CPU time in "
            f"{duration(sum(facts.rounds_seconds))}, in which {facts.before['usable_processors']} processors have "
            f"at most {duration(_cpu_limit_seconds(facts))}: a clock was changed."),
    "over_roofline": Flag(lambda facts: (facts.over_roofline or 0.0) > MEASURED_CEILING_MARGIN,
        "its kernels need longer here than it took, beyond what caches and noise of the ceilings explain",
        lambda facts: f"On this machine its kernels need {facts.over_roofline:.3g} x the time that it took, without "
            f"what caches may serve; up to {MEASURED_CEILING_MARGIN:g} x may be noise. It does less than it seems to, "
            "or keeps results of earlier rounds."),
    "late_work": Flag(lambda facts: bool(facts.late_work),
        "its work went on after the clock was read",
        lambda facts: f"Not all of its work is in its time: {'; '.join(facts.late_work)}."),
    "shares_memory": Flag(lambda facts: facts.shares_memory,
        "its output lies in the memory of an input",
        lambda facts: "Its output lies in the memory of an input, which it so changed; return a tensor of its own."),
    "conditions_changed": Flag(lambda facts: bool(_changed_conditions(facts)),
        "it ran under other settings of torch than those that the row names (before, after)",
        lambda facts: f"It changed {' and '.join(_changed_conditions(facts))} in its rounds, so that it ran under "
            "other conditions than its row names; leave them alone in a forward pass, and choose the precision by "
            "--precision."),
}  # fmt: skip
"""Every flag that a row may carry in `flags`, in the order in which they are written."""


def accusations(facts: RowFacts) -> list[str]:
    """Sentences by which a case of the user's code is refused."""
    return [flag.accusation(facts) for flag in FLAGS.values() if flag.accusation is not None and flag.rule(facts)]


def raised(facts: RowFacts) -> list[str]:
    """Names of the flags whose rules hold of these facts."""
    return [name for name, flag in FLAGS.items() if flag.rule(facts)]


# The round from which the times of one process are steady: a rule with a known false-alarm rate.


LEVEL = 0.01
"""Highest rate at which steady rounds with normal noise are taken for slow first ones."""

LEAST_EXCESS = 0.05
"""A first round slower by less shifts the mean by less than launches differ."""

FEWEST_REST = 4
"""Rounds with which the first ones are compared."""

MOST_SLOW = 20
"""First rounds that are tried; a longer change is a trend, not a warm-up."""


def slow_first_rounds(seconds: Sequence[float]) -> int:
    """How many rounds at the start are slower than every later one, beyond noise: 0 for a steady series.

    The first k rounds are slow if each is slower than all later rounds, by 5 % of their median, and if the fastest of
    the k lies beyond the prediction interval of one more round like the later ones (Hahn, "Factors for Calculating
    Two-Sided Prediction Intervals for Samples from a Normal Distribution", JASA 64, 1969) at level 1 % / 2^k. The
    levels sum to 1 %, which bounds false alarms on normal noise; for noise whose
    orders are equally likely, the sum of (k + 1) / C(n, k) over k does. One outlier among the later rounds is left out;
    it has its own flag.
    """

    from scipy.special import stdtr  # late: no verb that reads rounds waits for it

    def are_slow(first: Sequence[float], rest: Sequence[float]) -> bool:
        rest = sorted(rest)[:-1] if has_outlier(rest) else rest
        fastest = min(first)
        if fastest <= max(rest) or fastest < (1 + LEAST_EXCESS) * median(rest):
            return False
        scatter = stdev(rest) * sqrt(1 + 1 / len(rest))
        deviations = (fastest - fmean(rest)) / scatter if scatter else inf
        return bool(stdtr(len(rest) - 1, -deviations) <= LEVEL / 2 ** len(first))

    most = min(len(seconds) // 2, len(seconds) - FEWEST_REST, MOST_SLOW)
    return max((count for count in range(1, most + 1) if are_slow(seconds[:count], seconds[count:])), default=0)


def steady_from(seconds: Sequence[float]) -> int | None:
    """The round, counted from 1, from which a series is steady; None with a trend or too few rounds."""
    slow = slow_first_rounds(seconds)
    return None if len(seconds) < FEWEST_REST or has_trend(seconds[slow:]) else slow + 1


def outlier_places(seconds: Sequence[float]) -> list[int]:
    """The round, counted from 1, that causes the spread of those after slow first ones; [] without one."""
    slow = slow_first_rounds(seconds)
    rest = list(seconds[slow:])
    return [slow + 1 + rest.index(max(rest))] if has_outlier(rest) else []


def suggested_warmup_rounds(seconds: Sequence[float], configured: int) -> int | None:
    """Warm-up rounds: as many more as were slow, twice as many where rounds got faster to the end; None if needless."""
    slow = slow_first_rounds(seconds)
    third = max(1, len(seconds) // 3)
    if not slow and has_trend(seconds) and median(seconds[-third:]) < median(seconds[:third]):
        return 2 * max(1, configured)
    return configured + slow if slow else None


# The results of a warm-up study, as the record holds them: its processes, and how many warm-up rounds are enough.


STUDIED_WARMUP_ROUNDS = (0, 1, 2, 5, 10)
"""Warm-up rounds of a study's processes."""

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
    rows, whole = [], []
    for one in series:
        measured, leaves_out = one["seconds"], one["leaves_out_timed_phase"]
        # Warm-up rounds without the timed phase are no rounds like the measured ones.
        rounds = measured if leaves_out else [*one["warmup_seconds"], *measured]
        earlier, steady = len(one["warmup_seconds"]) if leaves_out else 0, steady_from(rounds)
        row = {
            **one,
            "first_round_parts": first_round["first_round_parts"] if one["warmup_rounds"] == 0 else {},
            "mean_seconds": fmean(measured),
            "std_seconds": stdev(measured) if len(measured) > 1 else 0.0,
            "steady_from_round": None if steady is None else earlier + steady,
            "outliers": [earlier + place for place in outlier_places(rounds)],
        }
        rows.append(row)
        if not leaves_out and len(rounds) > FEWEST_REST:
            whole.append((steady, len(rounds)))
    slow = max((slow_first_rounds(row["seconds"]) for row in rows if row["leaves_out_timed_phase"]), default=0)
    recommended, sentence = _recommendation(whole, configured_rounds, slow)
    return {
        "series": rows,
        "first_round": first_round["first_round"],
        "configured_warmup_rounds": configured_rounds,
        "recommended_warmup_rounds": recommended,
        "recommendation": sentence,
        "flags": [SHORT_WARMUP] if recommended > configured_rounds else [],
    }


def _recommendation(processes: Sequence[tuple[int | None, int]], configured: int, slow_after: int) -> tuple[int, str]:
    """Return as many warm-up rounds as the slowest process needed to become steady, and a sentence.

    `processes` are (round from which it is steady, rounds) each; `slow_after` counts slow rounds after a warm-up
    without the timed phase.
    """
    if not processes:
        return configured, f"Too few rounds to tell; give at least --rounds {FEWEST_REST + 1}."
    needed = [steady - 1 for steady, _ in processes if steady is not None]
    if not needed:
        most = max(rounds for _, rounds in processes)
        return max(configured, *STUDIED_WARMUP_ROUNDS), (
            f"No process became steady within {most} rounds: the machine's speed drifts, which warm-up cannot fix. "
            "Measure on an idle machine."
        )
    enough = max(needed)
    rounds = "1 warm-up round is" if enough == 1 else f"{enough or 'no'} warm-up rounds are"
    of = f"all {len(processes)} processes"
    if len(needed) < len(processes):
        of = f"{len(needed)} of {len(processes)} processes, those that became steady"
    is_covered = enough <= configured
    next_step = f"--warmup-rounds {configured} covers that" if is_covered else f"set --warmup-rounds {enough}"
    sentence = f"{rounds} enough in {of}; {next_step}."
    if slow_after:
        were = "rounds were" if slow_after > 1 else "round was"
        sentence += f" After a warm-up without the timed phase, {slow_after} measured {were} slow."
    return enough, sentence


# What every kernel pass must satisfy: one sentence for each contradiction.


TOLERANCE = 1e-6
"""The difference between two computations of one number, which rounding alone tells apart."""


def inconsistencies(values: Json) -> list[str]:
    """Contradictions between the values of one kernel pass."""
    found = []
    counts = values.get("launches_of_rounds") or []
    if len(set(counts)) > 1:
        found.append(f"two rounds of the same work launch {' and '.join(map(str, counts))} kernels")
    products = values["matrix_products"]
    if products.get("expected_count") is not None and products["count"] != products["expected_count"]:
        found.append(f"{products['count']} matrix products ran, and the model has {products['expected_count']}")
    for kernel in values["kernels"]:
        if not isclose(kernel["calls"] * kernel["mean_seconds"], kernel["total_seconds"], rel_tol=TOLERANCE):
            calls, mean, total = kernel["calls"], kernel["mean_seconds"], kernel["total_seconds"]
            found.append(f"{kernel['name']}: {calls} calls x mean is {calls * mean:.4g} s, its total {total:.4g} s")
    of_kernels = sum(kernel["share"] for kernel in values["kernels"]) + values["other_kernels"]["share"]
    of_kinds = sum(row["share_of_kernel_time"] for row in values["kinds"])
    for what, share in (("kernels", of_kernels), ("kinds", of_kinds)):
        if not isclose(share, 1.0, rel_tol=TOLERANCE):
            found.append(f"the shares of all {what} add up to {share:.4f}")
    if values["busy_share"] is not None and values["busy_share"] > 1 + TOLERANCE:
        found.append(
            f"the device is busy for {values['busy_share']:.1%} of the time: the rounds do not wait for the device, so "
            "their wall time is the host's alone; synchronise at the end of each"
        )
    counts = [row["count"] for row in values["memory_operations"] if row["kind"] == "host-to-device" and row["count"]]
    return found + [f"{n:g} copies from the host to the device ran inside a round, and none should" for n in counts]


def product_shares_that_do_not_fall(traced: Sequence[CaseRow]) -> list[str]:
    """Cells whose matrix products take no smaller share of a full step, which includes the optimizer, than of a forward
    pass."""
    cells = [replace(cell, info=cell.inside("matrix_products")) for cell in traced]

    def share(cell: CaseRow) -> float:
        return cell.number("share_of_kernel_time") or 0.0

    return [
        f"{step.id}: matrix products take {share(step):.1%} of a full step and {share(forward):.1%} of a forward pass; "
        "the share should fall"
        for step, forward in pairs_along(cells, "phase", "full_step", "forward")
        if share(step) >= share(forward)
    ]
