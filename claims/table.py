"""The claims: what the suite says of itself, the limits that its figures must keep, and what measures them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from claims import (
    against_loop,
    audit_score,
    beside_estimator,
    cheats,
    cost,
    fresh_values,
    gate,
    gate_elsewhere,
    histories,
    kernel_bounds,
    predicted_times,
    their_tests,
)

Figures = Mapping[str, float]
"""What was measured, by name; a figure that cannot be had on this machine is not in it."""


@dataclass(frozen=True)
class Limit:
    """A figure keeps it from `low` to `high`, both included."""

    low: float = -math.inf
    high: float = math.inf

    def allows(self, figure: float) -> bool:
        return self.low <= figure <= self.high

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


def at_most(high: float) -> Limit:
    return Limit(high=high)


def at_least(low: float) -> Limit:
    return Limit(low=low)


NONE = Limit(0, 0)


@dataclass(frozen=True)
class Claim:
    """`sentence` holds where each figure of `measured`, by the names of `limits`, keeps its limit."""

    sentence: str
    limits: dict[str, Limit]
    measured: Callable[[], Figures]
    minutes: float
    """Minutes, about, that trying it takes on two cores."""
    needs_quiet_clock: bool = True
    """False for what measures no time, or so little of it that a busy machine changes nothing."""


THE_LOOPS = {"suite over loop, lower end": at_least(0.98), "suite over loop, upper end": at_most(1.02)}
BESIDE_THE_LOOP = {**THE_LOOPS, "shortest phase, ms": at_least(10)}
"""The interval of the ratio, and rounds that are long enough to show one."""

CLAIMS = {
    "audit": Claim(
        "the audit finds published figures that break physics and accuses no correct one",
        {
            "cells that break physics, missed": NONE,
            "known cases missed": NONE,
            "correct cells accused": NONE,
        },
        audit_score.audit, 0.1, needs_quiet_clock=False,
    ),
    "kernel-bounds": Claim(
        "`within_bounds` refuses 40 wrong kernels and none of 20 right ones; `assert_close` errs both ways",
        {
            "wrong kernels": Limit(40, 40),
            "wrong ones accepted by bounds": NONE,
            "wrong ones accepted by assert_close": at_least(1),
            "right kernels": Limit(20, 20),
            "right ones refused by bounds": NONE,
            "right ones refused by assert_close": at_least(1),
        },
        kernel_bounds.beside_assert_close, 0.1, needs_quiet_clock=False,
    ),
    "times": Claim(
        "published times are predicted on hosts whose launches are known",
        {
            "mean error of the table of 48": at_most(0.05),
            "median error of the others": at_most(0.15),
            "others in their range": at_least(0.8),
        },
        predicted_times.known_hosts, 1, needs_quiet_clock=False,
    ),
    "times-left-out": Claim(
        "and of each source by constants that are fitted to the others alone",
        {
            "constants in use, furthest from their fit": at_most(0.05),
            "counts in range other than stated": NONE,
            "bound by arithmetic, median error": at_most(0.1),
            "bound by bandwidth, median error": at_most(0.1),
            "bound by the device, in range": at_least(0.9),
            "bound by launches, in range": at_least(0.8),
            "attention alone, in range": at_least(0.8),
            "attention alone by do_bench, in range": at_least(0.8),
            "updates by a loop, in range": at_least(0.8),
            "widest range": at_most(4.005),
            "updates by a loop, median error": at_most(0.4),
            "attention alone forward from 4096 tokens, median error": at_most(0.2),
            "attention alone backward from 4096 tokens, median error": at_most(0.2),
        },
        predicted_times.left_out, 2, needs_quiet_clock=False,
    ),
    "beside-estimator": Claim(
        "which come nearer than torch's own RuntimeEstimator to what was measured on cards that both know",
        {
            "within 25%": at_least(0.5),
            "within 25%, more than by torch": at_least(0.05),
            "over measured, median": Limit(0.8, 1.25),
            "nearer than torch's": at_least(0.6),
        },
        beside_estimator.beside_the_estimator, 5, needs_quiet_clock=False,
    ),
    "calibrated": Claim(
        "one measured time of a host narrows the ranges of others there, and they hold",
        {
            "in the range that another time of the table gives": at_least(0.85),
            "width of a range, median": at_most(1.75),
            "counts in range other than stated": NONE,
        },
        predicted_times.calibrated_by_one, 3, needs_quiet_clock=False,
    ),
    "changes-left-out": Claim(
        "The range of a predicted change of precision, attention or checkpoints holds published ratios, their source "
        "left out",
        {
            "changes of precision in range": at_least(0.8),
            "changes of attention in range": at_least(0.8),
            "changes of checkpoints in range": at_least(0.8),
            "counts in range other than stated": NONE,
            "changes taken for another kind": NONE,
        },
        predicted_times.changes, 3, needs_quiet_clock=False,
    ),
    "gate": Claim(
        "by its kept runs, the gate's false alarms are rare, and it finds slowdowns of 3 % and 5 %, unbiased and soon",
        {
            "chance of so many false alarms at a rate of 1 %": at_least(0.05),
            "real slowdowns missed": NONE,
            "found of what a run says that it detects, upper end": at_least(0.8),
            "found of 3%": at_least(0.8),
            "bias at 3%": Limit(-0.005, 0.005),
            "found of 5%": at_least(0.95),
            "bias at 5%": Limit(-0.005, 0.005),
            "seconds of screening": at_most(180),
            "cleared by screening": at_least(0.95),
        },
        gate.worth, 0.5, needs_quiet_clock=False,
    ),
    "gate-all-cores": Claim(
        "so are they, and it finds them, with a thread on each core",
        {
            "chance of so many false alarms at a rate of 1 %": at_least(0.05),
            "found of what a run says that it detects, upper end": at_least(0.8),
            "found of 3%": at_least(0.875),
            "bias at 3%": Limit(-0.01, 0.01),
            "found of 5%": at_least(0.95),
            "bias at 5%": Limit(-0.01, 0.01),
        },
        gate.worth_with_all_cores, 0.5, needs_quiet_clock=False,
    ),
    "cheats": Claim(
        "of a catalogue of cheats none is recorded that timed rounds can show, and of honest code none is refused",
        {"cheats that are recorded": NONE, "honest code that is refused": NONE, "files": at_least(24)},
        cheats.kill_matrix, 70, needs_quiet_clock=False,
    ),
    "fresh": Claim(
        "new values in each round change no figure by 2 %, but attention forward of 256 tokens by up to 5 %",
        {
            "fresh over fixed, lower end": at_least(0.98),
            "fresh over fixed, upper end": at_most(1.02),
            "attention forward of 256 tokens, lower end": at_least(0.95),
            "attention forward of 256 tokens, upper end": at_most(1.05),
        },
        fresh_values.fresh_over_fixed, 40,
    ),
    "checks": Claim(
        "and with the checks of timed rounds they take a tenth of a case at most, or 0.2 s",
        {"of what is allowed, worst case": at_most(1)}, fresh_values.cost_of_checks, 7,
    ),
    "history": Claim(
        "of 30 cases launched 5 times a commit, `history` finds slowdowns from 5 commits on, and few that are none",
        {
            "found of 12%": at_least(0.95),
            "found of 12% at the newest commit": at_least(0.95),
            "found of 5% by 12 commits": at_least(0.8),
            "false steps in 1000 commits and cases": at_most(1),
            "of all lengths and kinds": at_most(1),
        },
        histories.figures, 10, needs_quiet_clock=False,
    ),
    "relative-history": Claim(
        "gate runs of 400 commits on five kinds of CPU, chained, name steps of 5 % and hold the truth",
        {
            "found of 5%": at_least(0.95),
            "false steps in 1000 commits and cases": at_most(1),
            "the chain's interval covers": at_least(0.95),
            "a run of equal code is off by at most": at_most(0.0005),
        },
        histories.relative_figures, 2, needs_quiet_clock=False,
    ),
    "collecting": Claim(
        "collecting the whole grid takes little more than importing torch and pytest",
        {"collecting over importing, upper end": at_most(1.5)}, cost.collecting_over_importing, 2,
    ),
    "rounds": Claim(
        "a run spends its time in warm-up and measured rounds with their set-up",
        {"share outside of rounds": at_most(0.2)}, cost.outside_rounds, 7,
    ),
    "prediction": Claim("one prediction is quick", {"seconds": at_most(5)}, cost.prediction, 0.5),
    "memory-pass": Claim("so is the memory pass of the default grid", {"seconds": at_most(180)}, cost.memory_pass, 3),
    "ledger": Claim("and the count of the whole ledger", {"seconds": at_most(180)}, cost.ledger, 3),
    "page": Claim(
        "a page over 300 cases, each with every extra pass, is quick and small",
        {"seconds": at_most(10), "MB": at_most(8)}, cost.page_of_one_run, 0.5,
    ),
    "pages": Claim(
        "a page over 200 runs is quick and takes little memory",
        {"seconds": at_most(30), "GiB": at_most(1)}, cost.page_of_many_runs, 1,
    ),
    "browser": Claim(
        "a browser shows the page of one run at once, and that of 2000 runs stays small",
        {"MB of one run": at_most(1.8), "MB of 2000 runs": at_most(12), "first paint of one run, s": at_most(1)},
        cost.page_in_browser, 3,
    ),
    "regions": Claim(
        "unobserved regions cost nearly nothing", {"share of a pass": at_most(0.01)}, cost.share_of_regions, 0.1
    ),
    "loop": Claim(
        "a phase's time is a hand-written loop's, and a round costs little beside it",
        {**BESIDE_THE_LOOP, "own cost of a round, us": at_most(50)}, against_loop.phases, 4,
    ),
    "loop-hf": Claim(
        "so is that of a model of transformers: needs '.[hf]'", BESIDE_THE_LOOP, against_loop.model_of_transformers, 2
    ),
    "loop-ddp": Claim("and that of a DDP step on two ranks", THE_LOOPS, against_loop.ddp_step, 3),
    "rank-clock": Claim(
        "the clock of several ranks adds little to a figure",
        {"added to a figure, us": at_most(10)}, against_loop.rank_clock, 0.2,
    ),
    "llama": Claim(
        # "No slower" is shown up to a margin: Piaggio et al., "Reporting of noninferiority trials", JAMA, 2012.
        "sdpa is no slower than transformers' Llama of the same shape: needs '.[hf]'",
        {"ours over Llama, upper end": at_most(1.02)}, against_loop.llama, 10,
    ),
    "kernels-beside-timing": Claim(
        "timings with and without the kernel pass agree",
        {"with over without, lower end": at_least(0.98), "with over without, upper end": at_most(1.02)},
        cost.timings_beside_the_kernel_pass, 20,
    ),
    "gate-elsewhere": Claim(
        "in another repository unchanged code passes, and a tenth more work is found by counters and by time",
        {
            "exit code of unchanged code": NONE,
            "cases in which counters miss more work": NONE,
            "cases in which time misses more work": NONE,
        },
        gate_elsewhere.elsewhere, 20,
    ),
    "bisect": Claim(
        "of 16 commits, `git bisect run` names the one that is 10 % slower",
        {"searches that name another commit": NONE}, gate_elsewhere.bisect, 120,
    ),
    "their-tests": Claim(
        "twelve tests of somebody's, by kept gates: unchanged code passes, 5 % more work is found in 9 of 10, 3 % in 7",
        {
            "gates of unchanged code that fail": NONE,
            "found of 5%": at_least(0.9),
            "found of 3% where pairs scatter by at most 2%": at_least(0.7),
            "seconds until one test of 10 ms is decided, median": at_most(60),
            "minutes of twenty tests, median": at_most(5),
        },
        their_tests.their_tests, 0.1, needs_quiet_clock=False,
    ),
}  # fmt: skip
"""Claims by name: first what measures no time, then what is soon tried."""
