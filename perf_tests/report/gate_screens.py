"""`replay SAMPLES`: judge the raw samples of a gate run again, with the same verdicts and figures.

perf-tests replay .benchmarks/gate/SAMPLES.jsonl
perf-tests replay SAMPLES.jsonl --json

Also the result of every gate in a terminal, as Markdown for a pull request, and as JSON. `header` is that of the
samples.
"""

import argparse
import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from perf_tests_suite.perf_tests.gate import verdicts
from perf_tests_suite.perf_tests.gate.accepted import FILE_NAME, SUITE, Acceptance
from perf_tests_suite.perf_tests.gate.samples import Clock, Rules
from perf_tests_suite.perf_tests.gate.stages import Shift
from perf_tests_suite.perf_tests.gate.verdicts import CaseResult, Effect, ExactResult, GateResult, RunVerdict, Verdict
from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, UNREADABLE, RefusalError
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.format import (
    DASH,
    duration,
    has_colours,
    in_markdown,
    painted,
    pipe_table,
    printable,
    table,
)
from perf_tests_suite.perf_tests.records.record import Json, grouped, how_many, some_of
from perf_tests_suite.perf_tests.records.store import strict_json, write_named, write_whole
from perf_tests_suite.perf_tests.user_code import named

EXIT_CODES = {RunVerdict.PASSED: FINE, RunVerdict.FAILED: FINDINGS, RunVerdict.UNDECIDED: FINDINGS}
"""All other samples have no verdict on the code and count as input that cannot be compared."""

CLOCKS = {"wall": "wall time", "cpu": "CPU time of the process"}

REASON = "WHY IT IS WORTH IT"
"""A reason for the user to replace."""
HOW_TO_ACCEPT = f"To accept an intended slowdown, add to .benchmarks/{FILE_NAME} with a reason"

HEADER = ("case", "verdict", "clock", "base", "head", "effect", "95 % interval")
EXACT_HEADER = ("counter", "verdict", "base", "head")
MOST_CASES = 3
"""Cases that are slower, or whose counters rose, that have a sentence each."""
MOST_ROWS = 24
"""Rows of the table of a quiet screen."""
QUIET = (Verdict.OK, Verdict.SAME)
WHY = "; counters are exact, so any increase fails"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("samples", type=Path, help="raw samples of a gate run, .jsonl, packed as .gz or .xz too")
    parser.add_argument("--summary", metavar="FILE", help="write the result as Markdown")


def run(arguments: argparse.Namespace) -> int:
    with RefusalError.instead_of(ValueError):
        judged = verdicts.judge(arguments.samples)
    return show(arguments, *judged)


def show(arguments: argparse.Namespace, result: GateResult, header: Json, rules: Rules) -> int:
    """Print the result as lines or JSON, write the summary that is asked for; the exit code."""
    if arguments.summary is not None:
        write_named(arguments.summary, markdown(result, header, rules).encode(), "--summary")
    if arguments.json:
        print(as_json(result, header, rules))
    else:
        print("\n".join(painted(line, has_colours()) for line in report_lines(result, header, rules)))
    return EXIT_CODES.get(result.verdict, UNREADABLE)


def report_lines(result: GateResult, header: Json, rules: Rules, changes: Sequence[str] = ()) -> list[str]:
    """Everything for a terminal: the verdict, what fails with its `changes` of the program, what is undecided, the
    table, what else is to be said, the conditions, and the verdict again.
    """
    verdict = verdict_sentence(result)
    lines = [verdict, *failure_sentences(result, header), *changes]
    lines += _undecided_sentences(result, header, rules)
    lines += table(*verdict_table(result)) if result.cases else []
    lines += [*counter_lines(result.exact), *_uncounted_sentences(result)]
    lines += [*_other_sentences(result), *condition_lines(result, header, rules), verdict]
    return [printable(line) for line in lines]


def quiet_lines(result: GateResult, header: Json, rules: Rules, changes: Sequence[str] = ()) -> list[str]:
    """What a person needs of it, in the same order: no row of a case that was not measured because it is the same, at
    most `MOST_ROWS` others, no conditions.
    """
    words, rows = verdict_table(result)
    told = [row for row in rows if row[1] != Verdict.SAME]
    left = len(told[MOST_ROWS:])
    untimed = [row for row in result.cases if row.verdict in (Verdict.NEW, Verdict.NOT_MEASURED)]
    verdict = verdict_sentence(result)
    lines = [verdict, condition_lines(result, header, rules)[0]]
    lines += [*failure_sentences(result, header), *changes, *_undecided_sentences(result, header, rules)]
    lines += [*_sentences_without_figures(untimed), *_uncounted_sentences(result)]
    lines += table(words, told[:MOST_ROWS]) if told and any(result.pairs) else []
    lines += [f"{how_many(left, 'row')} more: -v, or perf-tests replay."] if left else []
    return [printable(line) for line in (*lines, verdict)]


def markdown(result: GateResult, header: Json, rules: Rules) -> str:
    """A summary for a pull request: verdict, findings, the table of what is not OK, the whole table folded."""
    parts = [f"### {in_markdown(verdict_sentence(result))}", ""]
    parts += [f"* {in_markdown(sentence)}" for sentence in finding_sentences(result, header, rules)]
    everything = pipe_table(*verdict_table(result))
    conditions = [*_uncounted_sentences(result), *condition_lines(result, header, rules)]
    rose = {row.id for row in result.exact if row.is_failure}
    if loud := [row for row in result.cases if row.verdict not in QUIET or row.id in rose]:
        parts += ["", *pipe_table(*verdict_table(replace(result, cases=loud))), ""]
    if limits := limits_to_accept(result, base_revision(header)):
        entries = toml_entries(limits).strip().splitlines()
        # The fence is longer than any run of backticks in the entries.
        fence = "`" * (1 + max([2, *(len(run) for line in entries for run in re.findall(r"`+", line))]))
        parts += _folded(HOW_TO_ACCEPT, [f"{fence}toml", *entries, fence])
    parts += ["", *_folded(f"All {len(result.cases)} cases", everything)]
    moved = [row for row in result.exact if row.verdict != Verdict.SAME]
    summary = f"{len(moved)} of {len(result.exact)} exact counters changed"
    if moved:
        rows = [(f"{case_name(row.id)} {row.counter}", _verdict(row), f"{row.old:,}", f"{row.new:,}") for row in moved]
        parts += _folded(summary, pipe_table(EXACT_HEADER, rows))
    elif result.exact:
        parts += [f"{summary}.", ""]
    return "\n".join(parts + [in_markdown(line) + "  " for line in conditions]) + "\n"


def _folded(summary: str, lines: list[str]) -> list[str]:
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>", ""]


def as_json(result: GateResult, header: Json, rules: Rules) -> str:
    """The result as JSON, with `is_failure` in each row; an unknown number is null."""
    findings = finding_sentences(result, header, rules)
    data: Json = {"verdict": result.verdict, **asdict(result), "rules": asdict(rules)}
    data |= {"exit_code": result.exit_code, "base": header["base"], "head": header["head"], "findings": findings}
    rows: list[CaseResult | ExactResult] = [*result.cases, *result.exact]
    for entry, row in zip((*data["cases"], *data["exact"]), rows, strict=True):
        entry["is_failure"] = row.is_failure
    if not any(row.why_measured or row.verdict == Verdict.SAME for row in result.cases):  # programs were not compared
        for entry in data["cases"]:
            del entry["why_measured"]
    return strict_json(data)


def verdict_table(result: GateResult) -> tuple[list[str], list[list[str]]]:
    """Header and rows: what fails first, then what is undecided, with what it needs, and what is OK last."""
    rose = {row.id for row in result.exact if row.is_failure}
    ordered = sorted(
        result.cases,
        key=lambda row: (
            not (row.is_failure or row.id in rose),
            row.verdict == Verdict.SAME,
            row.verdict == Verdict.OK,
            row.verdict != Verdict.UNDECIDED,
        ),
    )
    words = [*HEADER, "launch pairs"]
    rows = []
    for row in ordered:
        clock = DASH if row.clock is None else f"{CLOCKS[row.clock].split()[0]}{' (guard)' if row.is_by_guard else ''}"
        found = [f"{shown.effect:+.1%}", _interval(shown), str(shown.pairs)] if (shown := row.effect) else [DASH] * 3
        seconds = duration(row.base_seconds), duration(row.head_seconds)
        is_more = row.id in rose and row.verdict != Verdict.MORE
        verdict = f"{_verdict(row)}{f', {Verdict.MORE}' if is_more else ''}"
        rows.append([case_name(row.id), verdict, clock, *seconds, *found])
    if any(row.verdict == Verdict.UNDECIDED for row in ordered):
        words.append("needed")  # launch pairs that would decide
        for cells, row in zip(rows, ordered, strict=True):
            needed = "> 1000" if row.launches_needed is None else str(row.launches_needed)
            is_open = row.verdict == Verdict.UNDECIDED and row.effect is not None and not row.explanation
            cells.append(needed if is_open else DASH)
    return words, rows


def _verdict(row: CaseResult | ExactResult) -> str:
    return f"{row.verdict}{' (accepted)' if row.accepted else ''}"


def _interval(effect: Effect | Shift) -> str:
    return f"{effect.low:+.1%} to {effect.high:+.1%}"


# Sentences.


def finding_sentences(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """What is to be said beside the table, failures first."""
    return failure_sentences(result, header) + _undecided_sentences(result, header, rules) + _other_sentences(result)


def failure_sentences(result: GateResult, header: Json) -> list[str]:
    """One for the suite if it slowed down, for each case that is slower or lost, and for each whose counters rose."""
    sentences = []
    if result.suite is not None and result.suite.is_significant:
        unchanged = "the sentinels did not change, so the cause is the code"
        cause = unchanged if result.sentinels else "no sentinels ran, so the cause is unknown"
        sentences.append(
            f"SLOWER: the suite as a whole by {result.suite.effect:.1%} ({_interval(result.suite)} at 95 %): "
            f"{cause}{_because(result.suite_accepted)}."
        )
    slower = [row for row in result.cases if row.verdict == Verdict.SLOWER]
    for number, row in enumerate(slower, start=1):
        if number <= MOST_CASES:
            others = [(CLOCKS[by], other) for by, other in row.slower_by.items() if by != row.clock]
            too = "".join(f"; by {clock} {other.effect:+.1%} ({_interval(other)})" for clock, other in others)
            again = f"Again: {reproduce_command(row.id, header)}"
            sentences.append(f"{row.verdict}: {case_name(row.id)}{too}{_because(row.accepted)}. {again}")
    if left := len(slower[MOST_CASES:]):
        sentences.append(f"{Verdict.SLOWER}: {how_many(left, 'case')} more, in the table.")
    sentences += _sentences_without_figures(row for row in result.cases if row.verdict in verdicts.LOST.values())
    return sentences + rise_sentences(result.exact)


def _undecided_sentences(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """One for all undecided cases: why they are, and the command that decides them; where none may, what helps."""
    undecided = [row for row in result.cases if row.verdict == Verdict.UNDECIDED]
    if not undecided:
        return []
    row, most = undecided[0], rules.confirm_looks[-1]
    open_still = f"a slowdown of {rules.matters:.1%} is neither confirmed nor excluded"
    if len(undecided) > 1:
        above = sum(row.effect is not None and row.effect.low > rules.margin for row in undecided)
        higher = f", and of {above}, whose interval lies above {rules.margin:.1%}, not confirmed" if above else ""
        said = f"of {len(undecided)} cases {open_still}{higher}"
    elif row.effect is None:
        said = f"{case_name(row.id)}: {row.explanation or 'too few launch pairs'}"
    else:
        is_above = row.effect.low > rules.margin
        said = f"{case_name(row.id)}: {'it needs confirmation by fresh launch pairs' if is_above else open_still}"
    if any(row.effect is not None and (row.launches_needed or math.inf) > most for row in undecided):
        said += f"; the {most} fresh launch pairs of the longest run may be too few, on a quieter machine fewer decide"
    alone = undecided[1:] == []
    minutes = row.minutes_needed if alone else result.minutes_needed
    if not any(result.pairs) and any(one.is_failure for one in result.exact):
        minutes = None  # a failure ended it, as -x asks, before anything says how long a pair takes
    return [f"{Verdict.UNDECIDED}: {said}. To decide: {reproduce_command(row.id if alone else '', header, minutes)}"]


def _other_sentences(result: GateResult) -> list[str]:
    """One for each reason why cases have no figures."""
    others = [row for row in result.cases if row.verdict in (Verdict.NEW, Verdict.NOT_MEASURED)]
    return _sentences_without_figures(others) + _same_sentences(result.cases)


def _same_sentences(rows: Sequence[CaseResult]) -> list[str]:
    """How many cases were not measured because their program is the same, and why the others were."""
    same = sum(row.verdict == Verdict.SAME for row in rows)
    reasons = Counter(row.why_measured for row in rows if row.why_measured)
    sentences = [
        f"{Verdict.SAME}: {how_many(same, 'case')} of {len(rows)} not measured, because {verdicts.SAME_PROGRAM} "
        "(--gate-measure-same measures all)."
    ] if same else []  # fmt: skip
    return sentences + [
        f"Not shown to be the same program: {how_many(count, 'case')}: {reason.rstrip('.')}."
        for reason, count in reasons.items()
    ]


def _sentences_without_figures(rows: Iterable[CaseResult]) -> list[str]:
    """One for each verdict and its reason."""
    return [
        f"{verdict}: {some_of([case_name(row.id) for row in of])}: {explanation}."
        for (verdict, explanation), of in grouped(rows, attrgetter("verdict", "explanation")).items()
    ]


def reproduce_command(case_id: str, header: Json, minutes: float | None = None) -> str:
    """What to type in this folder to measure a case again, or without one all that was typed; where known for as many
    minutes as it needs.
    """
    typed = header.get("options") or f"--against {base_revision(header)}"
    typed = re.sub(r"(?:^| )(?:-x|--exitfirst|--maxfail[= ]\d+)(?= |$)", "", typed).strip()  # which end it undecided
    if minutes is not None:
        typed = f"{re.sub(r'--gate-minutes[= ][^ ]+ ?', '', typed)} --gate-minutes {math.ceil(minutes)}"
    if tests := header.get("tests"):
        root = tests.get("root")
        places = [os.path.normpath(f"{root}/{case_id}")] if case_id else tests.get("typed") or [root]
        return f"{named.program()} run {shlex.join([*places, *shlex.split(typed)])}"
    options, suite, place = shlex.split(typed), Path(header.get("suite") or named.SUITE), case_id or "perf_tests"
    if options[:2] == named.CONFIGURED:
        return named.as_typed_here([*named.CONFIGURED, f"{named.SUITE}/{place}", *options[2:]])
    return named.as_typed_here([place if suite == Path.cwd() else f"{suite}/{place}", *options])


def base_revision(header: Json) -> str:
    return str(header["base"].get("revision") or header["base"]["label"])[:12]


def _because(accepted: str | None) -> str:
    return "" if accepted is None else f"; accepted: {accepted}"


def condition_lines(result: GateResult, header: Json, rules: Rules) -> list[str]:
    """What the verdicts rest on, the thresholds, and the smallest slowdown that these launches detect."""
    slower = f"SLOWER: a slowdown above {rules.margin:.1%} is significant"
    ok = f"OK: a slowdown of {rules.matters:.1%} is excluded at {1 - rules.clearing_level:.0%} confidence."
    if not any(result.pairs):
        is_known = {row.verdict for row in result.cases} <= {Verdict.SAME, Verdict.MORE}
        why = f": {Verdict.SAME} and {Verdict.MORE} need no timing" if is_known else ""
        lines = [f"{header['base']['label']} against {header['head']['label']}: nothing was timed{why}."]
    else:
        clock, shift = result.clock, result.suite
        spreads = f"launch pairs scatter by {clock.wall_spread:.1%} in wall time"
        if math.isnan(clock.wall_spread):
            spreads = "too few launch pairs to estimate their scatter"
        elif clock.cpu_spread is not None:
            spreads += f" and by {clock.cpu_spread:.1%} in CPU time"
        of_all, fresh = how_many(result.pairs[0], "launch pair"), how_many(result.pairs[1], "fresh pair")
        lines = [
            f"{header['base']['label']} against {header['head']['label']}: {of_all} a case at most"
            f"{f', then {fresh} for what these left open' if result.pairs[1] else ''}; verdicts use "
            f"{CLOCKS[clock.clock]}: {spreads}."
        ]
        if clock.guards:
            lines += ["Wall time is checked too, because CPU time misses waiting and lost parallelism."]
        lines += [f"{slower}; unchanged code is called SLOWER in at most {rules.alpha:.1%} of runs. {ok}"]
        if shift is not None and not shift.is_significant:
            lines += [f"All cases together: head takes {shift.effect:+.1%} ({_interval(shift)} at 95 %)."]
        if result.detectable is None and any(row.verdict == Verdict.UNDECIDED for row in result.cases):
            lines += ["This run ended with too few launch pairs to call any case SLOWER."]
    if result.detectable is not None and any(row.verdict == Verdict.UNDECIDED for row in result.cases):
        lines += [f"This run would find a slowdown of {result.detectable:.1%} in four of five tries (80 % power)."]
    return lines


def verdict_sentence(result: GateResult) -> str:
    """The verdict on the run, why, and how many cases have which verdict."""
    counts = Counter(row.verdict for row in result.cases)
    if result.verdict == RunVerdict.NOT_MEASURED:
        unknown = len(result.unknown)
        said = f"of {how_many(unknown, 'case')} nothing is known, which is no success" if unknown else "no counter rose"
        same = f", {counts[Verdict.SAME]} {Verdict.SAME}" if counts[Verdict.SAME] else ""
        if set(counts) == {Verdict.NEW}:
            said = "base has none of these cases, so nothing was compared; commit what it lacks, then gate an edit"
        return f"gate: {result.verdict} ({len(result.cases) - counts[Verdict.SAME]}){same}: {said}"
    is_none_decided = set(counts) == {Verdict.UNDECIDED} and result.verdict != RunVerdict.FAILED
    counted = "none decided: " if is_none_decided else ""
    counted += ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    if risen := [row.id for row in result.exact if row.is_failure]:
        counted += f"; {how_many(len(risen), 'counter')} rose in {how_many(len({*risen}), 'case')}"
    rows: list[CaseResult | ExactResult] = [*result.cases, *result.exact]
    accepted = sum(row.accepted is not None for row in rows)
    counted += f"; {accepted} accepted" if accepted else ""
    return f"gate: {result.verdict}{f': {result.reason}' if result.reason else ''} ({counted or 'no cases'})"


# Exact counters: a table with a row for each case that changed, and what rose in sentences.


def counter_lines(rows: Sequence[ExactResult]) -> list[str]:
    """The table of what changed, as a share of base's value, and how many counters did not."""
    moved = [row for row in rows if row.verdict != Verdict.SAME]
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
    rose = [row for row in rows if row.verdict == Verdict.MORE]
    risen = grouped(rose, attrgetter("id"))
    if len(risen) > MOST_CASES:
        by_name = grouped(rose, attrgetter("counter"))
        most = {name: max(of, key=lambda row: row.new / row.old if row.old else 0) for name, of in by_name.items()}
        counters = ", ".join(f"{name} (by up to {_moved_by(row).lstrip('+')})" for name, row in most.items())
        accepted = sum(row.accepted is not None for row in rose)
        said = f", {accepted} of {how_many(len(rose), 'counter')} accepted" if accepted else ""
        why = WHY if accepted < len(rose) else ""
        return [f"{Verdict.MORE}: exact counters of {how_many(len(risen), 'case')} rose: {counters}{said}{why}."]
    sentences = []
    for case, of_case in risen.items():
        rises = []
        for row in of_case:
            because = "" if row.accepted is None else f" (accepted: {row.accepted})"
            rises.append(f"{row.counter} rose from {row.old:,} to {row.new:,}{because}")
        why = WHY if any(row.is_failure for row in of_case) else ""
        sentences.append(f"{Verdict.MORE}: {case_name(case)}: {', '.join(rises)}{why}.")
    return sentences


def _moved_by(row: ExactResult) -> str:
    """The rise as a share of base's value; of nothing as it is."""
    moved = f"{row.new / row.old - 1:+.2%}" if row.old else f"{row.new - row.old:+,}"
    return f"{moved}{' (accepted)' if row.accepted else ''}"


def _uncounted_sentences(result: GateResult) -> list[str]:
    """One for each reason why exact counters are not compared."""
    reasons = Counter((row.side, row.reason) for row in result.uncounted)
    return [
        f"Exact counters of {how_many(count, 'case')} are not compared, because {side} has none: {reason.rstrip('.')}."
        for (side, reason), count in reasons.items()
    ]


# What to accept, and the file in which it is offered.


def limits_to_accept(result: GateResult, revision: str) -> list[Acceptance]:
    """Entries that accept every slowdown and counter that fails against `revision`; the user writes the reasons."""
    shifts = [(row.id, by, shown) for row in result.cases if row.is_failure for by, shown in row.slower_by.items()]
    found: list[tuple[str, Clock, Effect | Shift]] = [*shifts]
    if result.suite is not None and result.suite.is_significant:
        found += [(SUITE, result.clock.clock, result.suite)] if result.suite_accepted is None else []
    # The interval's upper end, rounded up to a hundredth, so that the same change measured again stays below it.
    limits = [(case, math.ceil(100 * (1 + shown.high)) / 100, clock) for case, clock, shown in found]
    slower = [Acceptance(case, limit, REASON, revision, clock=clock) for case, limit, clock in limits]
    return slower + [
        Acceptance(row.id, row.new, REASON, revision, row.counter) for row in result.exact if row.is_failure
    ]


def offer_entries(limits: Sequence[Acceptance], path: Path, accepted: Path = Path(".benchmarks", FILE_NAME)) -> str:
    """Write entries to a new file, for the user to complete; the sentence that says where they are, or why not.

    `accepted` is the file that the gate will read.
    """
    text = f"# Move what is intended to {accepted}, with its reason.\n{toml_entries(limits)}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        return f"Entries that accept this cannot be written to {path}: {error}."
    return f"To accept what is intended: write the reasons in {path}, and move its entries to {accepted}."


def toml_entries(limits: Sequence[Acceptance]) -> str:
    """One entry for each case, with all its counters; a second one where a case is slower by two clocks."""

    def quoted(text: str | None) -> str:
        return json.dumps(text, ensure_ascii=False)  # a TOML basic string has the escapes of JSON

    lines: list[str] = []
    for _, of_case in groupby(sorted(limits, key=lambda limit: limit.id), key=lambda limit: limit.id):
        found = list(of_case)
        times = [limit for limit in found if limit.counter is None]
        risen = ", ".join(f"{quoted(limit.counter)} = {limit.limit!r}" for limit in found if limit.counter is not None)
        for place, limit in enumerate(times or found[:1]):
            lines += ["", "[[accepted]]", f"id = {quoted(limit.id)}", f"reason = {quoted(limit.reason)}"]
            lines += [f"revision = {quoted(limit.revision)}"]
            lines += [f"clock = {quoted(limit.clock)}", f"limit = {limit.limit!r}"] if times else []
            lines += [f"counters = {{ {risen} }}"] if risen and not place else []
    return "\n".join(lines)
