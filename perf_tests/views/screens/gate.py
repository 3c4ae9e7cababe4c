"""The output of a gate run: a sentence for each finding, a table, Markdown for a pull request, JSON."""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from perf_tests.gate.accepted import FILE_NAME, SUITE, Acceptance, toml_entry
from perf_tests.gate.conclusion import GateResult, RunVerdict
from perf_tests.gate.rules import Rules
from perf_tests.gate.suite import Shift
from perf_tests.gate.verdicts import CaseResult, Effect, ExactResult, Verdict
from perf_tests.records.record import Json, without_nan
from perf_tests.views.screens.lines import DASH, case_name, duration, printable, table
from perf_tests.views.tables.formats import in_markdown, pipe_table

CLOCKS = {"wall": "wall time", "cpu": "CPU time of the process"}

REASON = "WHY IT IS WORTH IT"
"""For the user to replace."""

CLOCK_COLUMN = {"wall": "wall", "cpu": "CPU"}

HOW_TO_ACCEPT = f"To accept an intended slowdown, add to .benchmarks/{FILE_NAME} with a reason:"

FRESH_PAIRS = "fresh launch pairs"

HEADER = ("case", "verdict", "clock", "base", "head", "effect", "95 % interval", "launch pairs")
EXACT_HEADER = ("counter", "verdict", "base", "head")


def report_lines(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """Everything for a terminal: table, findings, entries to accept them, conditions, the verdict last."""
    lines = table(HEADER, map(case_row, result.cases)) if result.cases else []
    if result.exact:
        changed = [row for row in result.exact if row.verdict != Verdict.SAME]
        same = len(result.exact) - len(changed)
        lines += table(EXACT_HEADER, map(_exact_row, changed)) if changed else []
        lines += [f"{same} exact counters are the same on both sides."] if same else []
    lines += uncounted_sentences(result)
    lines += finding_sentences(result, header, rules)
    pasted = lines_to_accept(result, header)
    if pasted:
        lines += [HOW_TO_ACCEPT, *pasted]
    lines += [*condition_lines(result, header, rules), verdict_sentence(result)]
    return [printable(line) for line in lines]


def finding_sentences(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """One sentence for each case that is not OK and each risen counter."""
    sentences = [_suite_sentence(result)] if result.suite is not None and result.suite.is_significant else []
    sentences += [_case_sentence(row, header, rules) for row in result.cases if row.verdict != Verdict.OK]
    risen = [row for row in result.exact if row.verdict == Verdict.MORE]
    return sentences + [
        _exact_sentence(case, [row for row in risen if row.id == case]) for case in dict.fromkeys(r.id for r in risen)
    ]


def uncounted_sentences(result: GateResult) -> list[str]:
    """One for each reason why exact counters are not compared."""
    reasons = Counter((row.side, row.reason) for row in result.uncounted)
    return [
        f"Exact counters of {count} {'case' if count == 1 else 'cases'} are not compared, because {side} has none: "
        f"{reason.rstrip('.')}."
        for (side, reason), count in reasons.items()
    ]


def _case_sentence(row: CaseResult, header: Json, rules: Rules) -> str:
    name = case_name(row.id)
    if row.effect is None or row.verdict not in (Verdict.SLOWER, Verdict.FASTER, Verdict.UNDECIDED):
        return f"{row.verdict}: {name}: {row.explanation or 'too few launch pairs'}{_because(row.accepted)}."
    size = f"{effect_words(row, row.effect)}, {row.effect.pairs} launch pairs)"
    if row.verdict == Verdict.UNDECIDED:
        state = why_undecided(row, rules, FRESH_PAIRS)
        return f"{row.verdict}: {name}: {size}; {state}. Alone: {reproduce_command(row.id, header)}"
    limit = f"; a slowdown above {rules.margin:.1%} is significant" if row.verdict == Verdict.SLOWER else ""
    return f"{row.verdict}: {name}: {size}{limit}{_because(row.accepted)}. Again: {reproduce_command(row.id, header)}"


def effect_words(row: CaseResult, effect: Effect) -> str:
    """A case's effect; the caller closes the bracket around the interval."""
    words = "faster" if effect.effect < 0 else "slower"
    clock = CLOCKS[row.clock or "wall"]
    return f"head is {abs(effect.effect):.1%} {words} by {clock} ({interval_words(effect)} at 95 %"


def why_undecided(row: CaseResult, rules: Rules, launches: str) -> str:
    """The state of an undecided case, and how many launches would decide it."""
    state = f"a slowdown of {rules.matters:.1%} is neither confirmed nor excluded"
    if launches == FRESH_PAIRS and row.effect is not None and row.effect.low > rules.margin:
        state = "it needs confirmation by fresh launch pairs"
    needed = "more than a thousand" if row.launches_needed is None else f"about {row.launches_needed}"
    return f"{state}; deciding would take {needed} {launches}"


def reproduce_command(case_id: str, header: Json) -> str:
    """Measures this case alone."""
    options = header.get("options") or f"--against {_base_revision(header)}"
    return f"pytest {shlex.quote(case_id)} {options}"


def _base_revision(header: Json) -> str:
    return str(header["base"].get("revision") or header["base"]["label"])[:12]


def _suite_sentence(result: GateResult) -> str:
    assert result.suite is not None
    cause = "no sentinels ran, so the cause is unknown"
    if result.sentinels:
        cause = "the sentinels did not change, so the cause is the code"
    return (
        f"SLOWER: the suite as a whole by {result.suite.effect:.1%} ({interval_words(result.suite)} at 95 %): {cause}"
        f"{_because(result.suite_accepted)}."
    )


def _exact_sentence(case: str, risen: list[ExactResult]) -> str:
    return (
        f"{Verdict.MORE}: {case_name(case)}: {', '.join(map(_rise, risen))}; counters are exact, so any increase fails."
    )


def _rise(row: ExactResult) -> str:
    share = f" ({row.new / row.old - 1:+.2%})" if row.old else ""
    accepted = "" if row.accepted is None else f" (accepted: {row.accepted})"
    return f"{row.counter} rose from {_number(row.old)} to {_number(row.new)}{share}{accepted}"


def _because(accepted: str | None) -> str:
    return "" if accepted is None else f"; accepted: {accepted}"


def lines_to_accept(result: GateResult, header: Json) -> list[str]:
    """The entries that accept every failing slowdown and counter, with reasons left to the user."""
    revision = _base_revision(header)
    entries = slowdowns_to_accept(result.cases, revision)
    if result.suite is not None and result.suite.is_significant and result.suite_accepted is None:
        entries.append(Acceptance(SUITE, _limit(result.suite.high), REASON, revision))
    entries += [Acceptance(row.id, row.new, REASON, revision, row.counter) for row in result.exact if row.is_failure]
    return [line for entry in entries for line in toml_entry(entry).splitlines()]


def slowdowns_to_accept(cases: Iterable[CaseResult], revision: str) -> list[Acceptance]:
    """An entry for each case that fails for being slower than `revision`."""
    return [
        Acceptance(row.id, _limit(row.effect.high), REASON, revision)
        for row in cases
        if row.is_failure and row.verdict == Verdict.SLOWER and row.effect is not None
    ]


def _limit(share: float) -> float:
    """The upper end of the interval, rounded up to a hundredth, so that a repeated measurement stays below it."""
    return math.ceil(100 * (1 + share)) / 100


def condition_lines(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """The clock, the number of launches, and the slowdown that a run here detects."""
    clock = result.clock
    spreads = f"launch pairs scatter by {clock.wall_spread:.1%} in wall time"
    if math.isnan(clock.wall_spread):
        spreads = "too few launch pairs to estimate their scatter"
    elif clock.cpu_spread is not None:
        spreads += f" and by {clock.cpu_spread:.1%} in CPU time"
    lines = [
        f"{header['base']['label']} against {header['head']['label']}: {result.pairs[0]} launch pairs of all "
        f"cases, {result.pairs[1]} fresh pairs of the suspects; verdicts use {CLOCKS[clock.clock]}: {spreads}."
    ]
    if clock.guards:
        lines += ["Wall time is checked too, because CPU time misses waiting and lost parallelism."]
    lines += [
        f"SLOWER: a slowdown above {rules.margin:.1%} is significant; a run without one reports SLOWER with "
        f"probability at most {rules.alpha:.1%}. OK: a slowdown of {rules.matters:.1%} is excluded at "
        f"{1 - rules.clearing_level:.0%} confidence."
    ]
    if result.detectable is not None:
        lines += [f"A full run on this machine detects a {result.detectable:.1%} slowdown with 80 % power."]
    return lines


def verdict_sentence(result: GateResult) -> str:
    """The last line."""
    exact = sum(row.is_failure for row in result.exact)
    counted = tally(result.cases) + (f", {exact} counters rose" if exact else "")
    reason = f": {result.reason}" if result.reason else ""
    if result.verdict == RunVerdict.UNDECIDED:
        reason = ": --gate-undecided=fail"
    return f"gate: {result.verdict}{reason} ({counted or 'no cases'})"


def tally(cases: Iterable[CaseResult]) -> str:
    """How many cases have each verdict."""
    counts = Counter(row.verdict for row in cases)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])


def case_row(row: CaseResult) -> tuple[str, ...]:
    effect = row.effect
    return (
        case_name(row.id),
        f"{row.verdict}{' (accepted)' if row.accepted else ''}",
        DASH if row.clock is None else CLOCK_COLUMN[row.clock],
        duration(row.base_seconds),
        duration(row.head_seconds),
        *((DASH,) * 3 if effect is None else (f"{effect.effect:+.1%}", interval_words(effect), str(effect.pairs))),
    )


def _exact_row(row: ExactResult) -> tuple[str, ...]:
    verdict = f"{row.verdict}{' (accepted)' if row.accepted else ''}"
    return f"{case_name(row.id)} {row.counter}", verdict, _number(row.old), _number(row.new)


def interval_words(effect: Effect | Shift) -> str:
    return f"{effect.low:+.1%} to {effect.high:+.1%}"


def _number(value: float) -> str:
    return f"{value:,}"


def markdown(result: GateResult, header: Json, rules: Rules) -> str:
    """A summary for a pull request: verdict, findings, the cases that are not OK, the whole table folded."""
    loud = [row for row in result.cases if row.verdict != Verdict.OK]
    parts = [f"### {in_markdown(verdict_sentence(result))}", ""]
    parts += [f"* {in_markdown(sentence)}" for sentence in finding_sentences(result, header, rules)]
    if loud:
        parts += ["", *pipe_table(HEADER, map(case_row, loud))]
    pasted = lines_to_accept(result, header)
    if pasted:
        parts += ["", f"To accept an intended slowdown, add to `.benchmarks/{FILE_NAME}` with a reason:", ""]
        parts += _fenced(pasted)
    parts += ["", f"<details><summary>All {len(result.cases)} cases</summary>", ""]
    parts += [*pipe_table(HEADER, map(case_row, result.cases)), "", "</details>", ""]
    parts += _markdown_of_counters(result)
    conditions = [*uncounted_sentences(result), *condition_lines(result, header, rules)]
    return "\n".join(parts + [in_markdown(line) + "  " for line in conditions]) + "\n"


def _markdown_of_counters(result: GateResult) -> list[str]:
    """The changed counters, folded."""
    moved = [row for row in result.exact if row.verdict != Verdict.SAME]
    if not result.exact:
        return []
    summary = f"{len(moved)} of {len(result.exact)} exact counters changed"
    if not moved:
        return [f"{summary}.", ""]
    rows = pipe_table(EXACT_HEADER, map(_exact_row, moved))
    return [f"<details><summary>{summary}</summary>", "", *rows, "", "</details>", ""]


def _fenced(lines: list[str]) -> list[str]:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}toml", *lines, fence]


def as_json(result: GateResult, header: Json, rules: Rules) -> str:
    """The same for machines; an unknown number is null."""
    data: Json = {
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        **{name: value for name, value in asdict(result).items() if name != "verdict"},
        "base": header["base"],
        "head": header["head"],
        "rules": rules.settings(),
        "findings": finding_sentences(result, header, rules),
    }
    return judged_json(data, cases=result.cases, exact=result.exact)


def judged_json(data: Json, **judged: Sequence[CaseResult | ExactResult]) -> str:
    """JSON of a result, with `is_failure` in each row of these lists."""
    for name, rows in judged.items():
        for place, row in enumerate(rows):
            data[name][place]["is_failure"] = row.is_failure
    return json.dumps(without_nan(data), allow_nan=False, indent=1)
