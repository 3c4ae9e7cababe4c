"""A gate between recorded launches: in a terminal, as Markdown for a pull request, and as JSON."""

import math
from dataclasses import asdict

from perf_tests.gate.recorded import RecordedResult
from perf_tests.gate.rules import Rules
from perf_tests.gate.verdicts import LOST, CaseResult, Verdict
from perf_tests.views.screens.gate import (
    CLOCKS,
    HEADER,
    effect_words,
    judged_json,
    ok_means,
    sentences_without_figures,
    significance,
    tally,
    undecided_words,
    verdict_table,
    why_undecided,
)
from perf_tests.views.screens.lines import case_name, printable, table
from perf_tests.views.tables.table import in_markdown, pipe_table

RECORDED_HEADER = (*HEADER[:-1], "launches of head")


def recorded_lines(result: RecordedResult, rules: Rules) -> list[str]:
    """Everything for a terminal: what fails, the table, what else is to be said, the verdict last."""
    lines = failure_sentences(result, rules)
    lines += table(*verdict_table(result.cases, RECORDED_HEADER)) if result.cases else []
    lines += [*_other_sentences(result, rules), *recorded_conditions(result, rules), recorded_verdict(result)]
    return [printable(line) for line in lines]


def failure_sentences(result: RecordedResult, rules: Rules) -> list[str]:
    """One for each case that is slower, and for each reason why cases are lost."""
    sentences = [_sentence(row, rules) for row in result.cases if row.verdict == Verdict.SLOWER]
    lost = sentences_without_figures(row for row in result.cases if row.verdict in LOST.values())
    return [printable(sentence) for sentence in sentences + lost]


def _other_sentences(result: RecordedResult, rules: Rules) -> list[str]:
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
    sentences = failure_sentences(result, rules) + _other_sentences(result, rules)
    parts += [f"* {in_markdown(sentence)}" for sentence in sentences]
    parts += ["", *pipe_table(*verdict_table(result.cases, RECORDED_HEADER)), ""]
    return "\n".join(parts + [in_markdown(line) for line in recorded_conditions(result, rules)]) + "\n"


def recorded_json(result: RecordedResult, rules: Rules) -> str:
    data = asdict(result) | {"verdict": recorded_verdict(result).split()[1].rstrip(":"), "rules": rules.settings()}
    return judged_json(data, cases=result.cases)
