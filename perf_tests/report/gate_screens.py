"""Exact counters of a gate run: what rose, in sentences, and a table with a row for each case that changed."""

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from perf_tests.gate.recorded import RecordedResult
from perf_tests.gate.samples import Rules
from perf_tests.gate.stages import Shift
from perf_tests.gate.verdicts import (
    FILE_NAME,
    LOST,
    SUITE,
    Acceptance,
    CaseResult,
    Effect,
    ExactResult,
    GateResult,
    Verdict,
    toml_entries,
)
from perf_tests.records.columns import case_name
from perf_tests.records.format import DASH, duration, in_markdown, pipe_table, printable, table
from perf_tests.records.record import Json, how_many, without_nan

MOST_CASES = 3
"""That have a sentence each."""
WHY = "; counters are exact, so any increase fails"


def changed(rows: Sequence[ExactResult]) -> list[ExactResult]:
    return [row for row in rows if row.verdict != Verdict.SAME]


def counter_lines(rows: Sequence[ExactResult]) -> list[str]:
    """The table of what changed, as a share of base's value, and how many counters did not."""
    moved = changed(rows)
    cells = {(row.id, row.counter): _moved_by(row) for row in moved}
    names = [*dict.fromkeys(row.counter for row in moved)]
    found = [
        (case_name(case), *(cells.get((case, name), DASH) for name in names))
        for case in dict.fromkeys(row.id for row in moved)
    ]
    lines = table(("exact counters, head against base", *names), found) if found else []
    same = len(rows) - len(moved)
    return lines + ([f"{same} exact counters are the same on both sides."] if same else [])


def rise_sentences(rows: Sequence[ExactResult]) -> list[str]:
    """One for each case whose counters rose; of many cases one for all."""
    risen: dict[str, list[ExactResult]] = {}
    for row in rows:
        if row.verdict == Verdict.MORE:
            risen.setdefault(row.id, []).append(row)
    if len(risen) > MOST_CASES:
        return [_together(risen)]
    return [
        f"{Verdict.MORE}: {case_name(case)}: {', '.join(map(_rise, of_case))}"
        f"{WHY if any(row.is_failure for row in of_case) else ''}."
        for case, of_case in risen.items()
    ]


def _together(risen: dict[str, list[ExactResult]]) -> str:
    rows = [row for of_case in risen.values() for row in of_case]
    most = {
        name: max((row for row in rows if row.counter == name), key=lambda row: row.new / row.old if row.old else 0)
        for name in dict.fromkeys(row.counter for row in rows)
    }
    counters = ", ".join(f"{name} (by up to {_moved_by(row).lstrip('+')})" for name, row in most.items())
    accepted = sum(row.accepted is not None for row in rows)
    said = f", {accepted} of {how_many(len(rows), 'counter')} accepted" if accepted else ""
    why = WHY if accepted < len(rows) else ""
    return f"{Verdict.MORE}: exact counters of {how_many(len(risen), 'case')} rose: {counters}{said}{why}."


def _moved_by(row: ExactResult) -> str:
    """As a share of base's value; of nothing as it is."""
    moved = f"{row.new / row.old - 1:+.2%}" if row.old else f"{row.new - row.old:+,}"
    return f"{moved}{' (accepted)' if row.accepted else ''}"


def _rise(row: ExactResult) -> str:
    share = f" ({row.new / row.old - 1:+.2%})" if row.old else ""
    accepted = "" if row.accepted is None else f" (accepted: {row.accepted})"
    return f"{row.counter} rose from {row.old:,} to {row.new:,}{share}{accepted}"


# A gate run in a terminal, as Markdown for a pull request, and as JSON.


CLOCKS = {"wall": "wall time", "cpu": "CPU time of the process"}

REASON = "WHY IT IS WORTH IT"
"""For the user to replace."""
HOW_TO_ACCEPT = f"To accept an intended slowdown, add to .benchmarks/{FILE_NAME} with a reason"

HEADER = ("case", "verdict", "clock", "base", "head", "effect", "95 % interval", "launch pairs")
NEEDED = "needed"
"""Of undecided cases: how many launch pairs, or launches, would decide."""
EXACT_HEADER = ("counter", "verdict", "base", "head")
MOST_NAMES = 3
"""In a sentence about several cases."""


def report_lines(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """Everything for a terminal: what fails, the table, what else is to be said, the conditions, the verdict last."""
    lines = failure_sentences(result, header, rules)
    lines += table(*verdict_table(result.cases)) if result.cases else []
    lines += counter_lines(result.exact)
    lines += [*_uncounted_sentences(result), *_other_sentences(result, header, rules)]
    lines += [*_condition_lines(result, header, rules), verdict_sentence(result)]
    return [printable(line) for line in lines]


def verdict_table(cases: Sequence[CaseResult], header: Sequence[str] = HEADER) -> tuple[list[str], list[list[str]]]:
    """Header and rows: what fails first, then what is undecided, with what it needs, and what is OK last."""
    ordered = sorted(
        cases, key=lambda row: (not row.is_failure, row.verdict == Verdict.OK, row.verdict != Verdict.UNDECIDED)
    )
    rows = [[*case_row(row)] for row in ordered]
    if not any(row.verdict == Verdict.UNDECIDED for row in cases):
        return [*header], rows
    return [*header, NEEDED], [[*cells, _needed(row)] for cells, row in zip(rows, ordered, strict=True)]


def _needed(row: CaseResult) -> str:
    if row.verdict != Verdict.UNDECIDED or row.effect is None:
        return DASH
    return "> 1000" if row.launches_needed is None else str(row.launches_needed)


def finding_sentences(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """What is to be said beside the table, failures first."""
    return failure_sentences(result, header, rules) + _other_sentences(result, header, rules)


def failure_sentences(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """One for the suite if it slowed down, for each case that is slower or lost, and for each whose counters rose."""
    suite, lost = result.suite, [row for row in result.cases if row.verdict in LOST.values()]
    sentences = [_suite_sentence(suite, result)] if suite is not None and suite.is_significant else []
    sentences += [_case_sentence(row, header, rules) for row in result.cases if row.verdict == Verdict.SLOWER]
    return sentences + sentences_without_figures(lost) + rise_sentences(result.exact)


def _other_sentences(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """One for all undecided cases, and one for each reason why others have no figures."""
    undecided = [row for row in result.cases if row.verdict == Verdict.UNDECIDED]
    others = [row for row in result.cases if row.verdict in (Verdict.NEW, Verdict.NOT_MEASURED)]
    sentences = [_case_sentence(row, header, rules) for row in undecided]
    if len(undecided) > 1:
        alone = reproduce_command("CASE", header)
        sentences = [f"{undecided_words(undecided, rules, 'fresh launch pairs')} One alone: {alone}"]
    return sentences + sentences_without_figures(others)


def undecided_words(rows: Sequence[CaseResult], rules: Rules, launches: str) -> str:
    above = sum(row.effect is not None and row.effect.low > rules.margin for row in rows)
    unconfirmed = f", and of {above}, whose interval lies above {rules.margin:.1%}, not confirmed" if above else ""
    needed = f"their rows say how many {launches} would decide, if the estimate is right"
    if all(row.effect is None for row in rows):
        needed = f"too few {launches.removeprefix('fresh ')} to say how many would decide"
    return (
        f"{Verdict.UNDECIDED}: of {len(rows)} cases a slowdown of {rules.matters:.1%} is neither confirmed nor "
        f"excluded{unconfirmed}; {needed}."
    )


def sentences_without_figures(rows: Iterable[CaseResult]) -> list[str]:
    """One for each verdict and its reason."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        names.setdefault((row.verdict, row.explanation), []).append(case_name(row.id))
    return [
        f"{verdict}: {', '.join(cases[:MOST_NAMES])}"
        f"{f' and {len(cases) - MOST_NAMES} more' if len(cases) > MOST_NAMES else ''}: {explanation}."
        for (verdict, explanation), cases in names.items()
    ]


def _uncounted_sentences(result: GateResult) -> list[str]:
    """One for each reason why exact counters are not compared."""
    reasons = Counter((row.side, row.reason) for row in result.uncounted)
    return [
        f"Exact counters of {how_many(count, 'case')} are not compared, because {side} has none: {reason.rstrip('.')}."
        for (side, reason), count in reasons.items()
    ]


def _case_sentence(row: CaseResult, header: Json, rules: Rules) -> str:
    start = f"{row.verdict}: {case_name(row.id)}"
    if row.effect is None:
        return f"{start}: {row.explanation or 'too few launch pairs'}."
    start += f": {effect_words(row, f', {row.effect.pairs} launch pairs')}"
    command = reproduce_command(row.id, header)
    if row.verdict == Verdict.UNDECIDED:
        unconfirmed = "it needs confirmation by fresh launch pairs" if row.effect.low > rules.margin else ""
        return f"{start}; {why_undecided(row, rules, 'fresh launch pairs', unconfirmed)}. Alone: {command}"
    return f"{start}{significance(row, rules)}{_because(row.accepted)}. Again: {command}"


def effect_words(row: CaseResult, count: str = "") -> str:
    """What the row shows, and what another clock shows that calls the case SLOWER too."""
    assert row.effect is not None
    words = "faster" if row.effect.effect < 0 else "slower"
    clock = CLOCKS[row.clock or "wall"] + (", checked beside CPU time" if row.is_by_guard else "")
    said = f"head is {abs(row.effect.effect):.1%} {words} by {clock} ({interval_words(row.effect)} at 95 %{count})"
    others = [(by, effect) for by, effect in row.slower_by.items() if by != row.clock]
    return said + "".join(f"; by {CLOCKS[by]} {other.effect:+.1%} ({interval_words(other)})" for by, other in others)


def significance(row: CaseResult, rules: Rules) -> str:
    return f"; a slowdown above {rules.margin:.1%} is significant" if row.verdict == Verdict.SLOWER else ""


def why_undecided(row: CaseResult, rules: Rules, launches: str, unconfirmed: str = "") -> str:
    """Why a case is undecided, and how many `launches` would decide it."""
    needed = "more than a thousand" if row.launches_needed is None else f"about {row.launches_needed}"
    state = unconfirmed or f"a slowdown of {rules.matters:.1%} is neither confirmed nor excluded"
    return f"{state}; deciding would take {needed} {launches}"


def reproduce_command(case_id: str, header: Json) -> str:
    options = header.get("options") or f"--against {_base_revision(header)}"
    folder = f"{header['suite']}/" if header.get("suite") else ""
    return f"pytest {shlex.quote(f'{folder}{case_id}')} {options}"


def _base_revision(header: Json) -> str:
    return str(header["base"].get("revision") or header["base"]["label"])[:12]


def _suite_sentence(suite: Shift, result: GateResult) -> str:
    unchanged = "the sentinels did not change, so the cause is the code"
    cause = unchanged if result.sentinels else "no sentinels ran, so the cause is unknown"
    return (
        f"SLOWER: the suite as a whole by {suite.effect:.1%} ({interval_words(suite)} at 95 %): "
        f"{cause}{_because(result.suite_accepted)}."
    )


def _because(accepted: str | None) -> str:
    return "" if accepted is None else f"; accepted: {accepted}"


def limits_to_accept(result: GateResult, header: Json) -> list[Acceptance]:
    """They accept every slowdown and counter that fails; the user writes the reasons."""
    revision, suite = _base_revision(header), result.suite
    limits = slowdowns_to_accept(result.cases, revision)
    if suite is not None and suite.is_significant and result.suite_accepted is None:
        limits.append(Acceptance(SUITE, _limit(suite.high), REASON, revision, clock=result.clock.clock))
    return limits + [
        Acceptance(row.id, row.new, REASON, revision, row.counter) for row in result.exact if row.is_failure
    ]


def slowdowns_to_accept(cases: Iterable[CaseResult], revision: str) -> list[Acceptance]:
    return [
        Acceptance(row.id, _limit(effect.high), REASON, revision, clock=clock)
        for row in cases
        if row.is_failure
        for clock, effect in row.slower_by.items()
    ]


def _limit(share: float) -> float:
    """The interval's upper end, rounded up to a hundredth, so that the same change measured again stays below it."""
    return math.ceil(100 * (1 + share)) / 100


def _condition_lines(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """The clock, the number of launch pairs, the thresholds, and the smallest slowdown that a run here detects."""
    clock = result.clock
    spreads = f"launch pairs scatter by {clock.wall_spread:.1%} in wall time"
    if math.isnan(clock.wall_spread):
        spreads = "too few launch pairs to estimate their scatter"
    elif clock.cpu_spread is not None:
        spreads += f" and by {clock.cpu_spread:.1%} in CPU time"
    of_all, fresh = how_many(result.pairs[0], "launch pair"), how_many(result.pairs[1], "fresh pair")
    lines = [
        f"{header['base']['label']} against {header['head']['label']}: {of_all} of all cases, {fresh} of the suspects; "
        f"verdicts use {CLOCKS[clock.clock]}: {spreads}."
    ]
    if clock.guards:
        lines += ["Wall time is checked too, because CPU time misses waiting and lost parallelism."]
    lines += [
        f"SLOWER: a slowdown above {rules.margin:.1%} is significant; a run without one reports SLOWER with "
        f"probability at most {rules.alpha:.1%}. {ok_means(rules)}"
    ]
    if result.suite is not None and not result.suite.is_significant:
        lines += [
            f"All cases together: head takes {result.suite.effect:+.1%} ({interval_words(result.suite)} at 95 %)."
        ]
    if result.detectable is not None:
        lines += [f"This run could detect a {result.detectable:.1%} slowdown with 80 % power."]
    elif any(row.verdict == Verdict.UNDECIDED for row in result.cases):
        lines += ["This run ended with too few launch pairs to call any case SLOWER."]
    return lines


def ok_means(rules: Rules) -> str:
    return f"OK: a slowdown of {rules.matters:.1%} is excluded at {1 - rules.clearing_level:.0%} confidence."


def verdict_sentence(result: GateResult) -> str:
    exact = sum(row.is_failure for row in result.exact)
    counted = tally(result.cases) + (f", {exact} counters rose" if exact else "")
    reason = f": {result.reason}" if result.reason else ""
    return f"gate: {result.verdict}{reason} ({counted or 'no cases'})"


def tally(cases: Iterable[CaseResult]) -> str:
    counts = Counter(row.verdict for row in cases)
    nothing = "none decided: " if set(counts) == {Verdict.UNDECIDED} else ""
    return nothing + ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])


def case_row(row: CaseResult) -> tuple[str, ...]:
    effect = row.effect
    return (
        case_name(row.id),
        _verdict(row),
        DASH if row.clock is None else f"{CLOCKS[row.clock].split()[0]}{' (guard)' if row.is_by_guard else ''}",
        duration(row.base_seconds),
        duration(row.head_seconds),
        *((DASH,) * 3 if effect is None else (f"{effect.effect:+.1%}", interval_words(effect), str(effect.pairs))),
    )


def _exact_row(row: ExactResult) -> tuple[str, ...]:
    return f"{case_name(row.id)} {row.counter}", _verdict(row), f"{row.old:,}", f"{row.new:,}"


def _verdict(row: CaseResult | ExactResult) -> str:
    return f"{row.verdict}{' (accepted)' if row.accepted else ''}"


def interval_words(effect: Effect | Shift) -> str:
    return f"{effect.low:+.1%} to {effect.high:+.1%}"


def markdown(result: GateResult, header: Json, rules: Rules) -> str:
    """A summary for a pull request: verdict, findings, the table of what is not OK, the whole table folded."""
    loud = [row for row in result.cases if row.verdict != Verdict.OK]
    parts = [f"### {in_markdown(verdict_sentence(result))}", ""]
    parts += [f"* {in_markdown(sentence)}" for sentence in finding_sentences(result, header, rules)]
    if loud:
        parts += ["", *pipe_table(*verdict_table(loud)), ""]
    limits = limits_to_accept(result, header)
    if limits:
        parts += _folded(HOW_TO_ACCEPT, _fenced(toml_entries(limits).strip().splitlines()))
    parts += ["", *_folded(f"All {len(result.cases)} cases", pipe_table(*verdict_table(result.cases)))]
    moved = changed(result.exact)
    summary = f"{len(moved)} of {len(result.exact)} exact counters changed"
    if moved:
        parts += _folded(summary, pipe_table(EXACT_HEADER, map(_exact_row, moved)))
    elif result.exact:
        parts += [f"{summary}.", ""]
    conditions = [*_uncounted_sentences(result), *_condition_lines(result, header, rules)]
    return "\n".join(parts + [in_markdown(line) + "  " for line in conditions]) + "\n"


def _folded(summary: str, lines: list[str]) -> list[str]:
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>", ""]


def _fenced(lines: list[str]) -> list[str]:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}toml", *lines, fence]


def as_json(result: GateResult, header: Json, rules: Rules) -> str:
    """The result as JSON; an unknown number is null."""
    data: Json = {
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        **asdict(result),
        "base": header["base"],
        "head": header["head"],
        "rules": rules.settings(),
        "findings": finding_sentences(result, header, rules),
    }
    return judged_json(data, cases=result.cases, exact=result.exact)


def judged_json(data: Json, **judged: Sequence[CaseResult | ExactResult]) -> str:
    """JSON of a result, with `is_failure` in each row of the `judged` lists."""
    for name, rows in judged.items():
        for place, row in enumerate(rows):
            data[name][place]["is_failure"] = row.is_failure
    return json.dumps(without_nan(data), allow_nan=False, indent=1)


# A gate between recorded launches: in a terminal, as Markdown for a pull request, and as JSON.


RECORDED_HEADER = (*HEADER[:-1], "launches of head")


def recorded_lines(result: RecordedResult, rules: Rules) -> list[str]:
    """Everything for a terminal: what fails, the table, what else is to be said, the verdict last."""
    lines = recorded_failure_sentences(result, rules)
    lines += table(*verdict_table(result.cases, RECORDED_HEADER)) if result.cases else []
    lines += [*_other_recorded_sentences(result, rules), *recorded_conditions(result, rules), recorded_verdict(result)]
    return [printable(line) for line in lines]


def recorded_failure_sentences(result: RecordedResult, rules: Rules) -> list[str]:
    """One for each case that is slower, and for each reason why cases are lost."""
    sentences = [_sentence(row, rules) for row in result.cases if row.verdict == Verdict.SLOWER]
    lost = sentences_without_figures(row for row in result.cases if row.verdict in LOST.values())
    return [printable(sentence) for sentence in sentences + lost]


def _other_recorded_sentences(result: RecordedResult, rules: Rules) -> list[str]:
    known = (Verdict.UNDECIDED, Verdict.NEW, Verdict.NOT_MEASURED)
    rows = [row for row in result.cases if row.verdict in known]
    undecided = [row for row in rows if row.verdict == Verdict.UNDECIDED and not row.explanation]
    sentences = [_sentence(row, rules) for row in undecided]
    if len(undecided) > 1:
        sentences = [undecided_words(undecided, rules, "launches of head")]
    return sentences + sentences_without_figures(row for row in rows if row.explanation)


def _sentence(row: CaseResult, rules: Rules) -> str:
    start = f"{row.verdict}: {case_name(row.id)}"
    if row.effect is None:
        return f"{start}: too few launches."
    start += f": {effect_words(row)}{significance(row, rules)}"
    if row.verdict == Verdict.UNDECIDED:
        start += f"; {why_undecided(row, rules, 'launches')}"
    return f"{start}{f'; accepted: {row.accepted}' if row.accepted else ''}."


def recorded_conditions(result: RecordedResult, rules: Rules) -> list[str]:
    """What the verdicts rest on, and what they cannot detect."""
    launches = f"{result.launches[0]} launches of base against {result.launches[1]} of head"
    if not math.isnan(result.spread):
        launches += (
            f"; verdicts use {CLOCKS[result.clock]}; launches differ by {result.spread:.1%}; case times follow their "
            f"launch's matrix-product rate with slope {result.slope:.2f}"
        )
    detects = (
        []
        if result.detectable is None
        else [f"These launches could detect a {result.detectable:.1%} slowdown with 80 % power."]
    )
    return [
        f"{launches}.",
        f"SLOWER: a slowdown above {rules.margin:.1%} is significant at {rules.alpha:.1%} over all cases. "
        f"{ok_means(rules)} A change of the machine between the two sets that the matrix product misses looks like a "
        "change of the code: prefer --against.",
        *detects,
    ]


def recorded_verdict(result: RecordedResult) -> str:
    counted = tally(result.cases) or "no cases"
    if result.contaminated:
        return f"gate: CONTAMINATED: {result.contaminated} ({counted})"
    return f"gate: {'FAILED' if result.fails else 'PASSED'} ({counted})"


def recorded_markdown(result: RecordedResult, rules: Rules) -> str:
    parts = [f"### {in_markdown(recorded_verdict(result))}", ""]
    sentences = recorded_failure_sentences(result, rules) + _other_recorded_sentences(result, rules)
    parts += [f"* {in_markdown(sentence)}" for sentence in sentences]
    parts += ["", *pipe_table(*verdict_table(result.cases, RECORDED_HEADER)), ""]
    return "\n".join(parts + [in_markdown(line) for line in recorded_conditions(result, rules)]) + "\n"


def recorded_json(result: RecordedResult, rules: Rules) -> str:
    data = asdict(result) | {"verdict": recorded_verdict(result).split()[1].rstrip(":"), "rules": rules.settings()}
    return judged_json(data, cases=result.cases)
