"""A gate between recorded launches: in a terminal, as Markdown for a pull request, and as JSON."""

import math
from dataclasses import asdict

from perf_tests.gate.accepted import toml_entry
from perf_tests.gate.recorded import RecordedResult
from perf_tests.gate.rules import Rules
from perf_tests.gate.verdicts import CaseResult, Verdict
from perf_tests.views.screens.gate import (
    CLOCKS,
    HEADER,
    HOW_TO_ACCEPT,
    case_row,
    effect_words,
    judged_json,
    ok_means,
    significance,
    slowdowns_to_accept,
    tally,
    why_undecided,
)
from perf_tests.views.screens.lines import case_name, printable, table
from perf_tests.views.tables.table import in_markdown, pipe_table

RECORDED_HEADER = (*HEADER[:-1], "launches of head")


def recorded_lines(result: RecordedResult, rules: Rules, base_name: str) -> list[str]:
    """Everything for a terminal; the verdict is the last line. `base_name` is the commit of base."""
    lines = table(RECORDED_HEADER, map(case_row, result.cases)) if result.cases else []
    lines += recorded_findings(result, rules)
    entries = slowdowns_to_accept(result.cases, base_name)
    if entries and not result.contaminated:
        lines += [HOW_TO_ACCEPT, *(line for entry in entries for line in toml_entry(entry).splitlines())]
    lines += [*recorded_conditions(result, rules), recorded_verdict(result)]
    return [printable(line) for line in lines]


def recorded_findings(result: RecordedResult, rules: Rules) -> list[str]:
    return [_sentence(row, rules) for row in result.cases if row.verdict != Verdict.OK]


def failure_sentences(result: RecordedResult, rules: Rules) -> list[str]:
    return [printable(_sentence(row, rules)) for row in result.cases if row.is_failure]


def _sentence(row: CaseResult, rules: Rules) -> str:
    start = f"{row.verdict}: {case_name(row.id)}"
    if row.effect is None or row.explanation:
        return f"{start}: {row.explanation}."
    start += f": {effect_words(row, row.effect)}){significance(row, rules)}"
    if row.verdict == Verdict.UNDECIDED:
        start += f"; {why_undecided(row, rules, 'launches')}"
    elif row.verdict == Verdict.SLOWER and row.accepted is not None:
        start += f"; accepted: {row.accepted}"
    return f"{start}."


def recorded_conditions(result: RecordedResult, rules: Rules) -> list[str]:
    """What the verdicts rest on, and what they cannot detect."""
    launches = f"{result.launches[0]} launches of base against {result.launches[1]} of head"
    if not math.isnan(result.spread):
        launches += (
            f"; verdicts use {CLOCKS[result.clock]}; launches differ by {result.spread:.1%}; case times follow their "
            f"launch's matrix-product rate with slope {result.slope:.2f}"
        )
    return [
        f"{launches}.",
        f"SLOWER: a slowdown above {rules.margin:.1%} is significant at {rules.alpha:.1%} over all cases. "
        f"{ok_means(rules)} A change of the machine between the two sets that the matrix product misses looks like a "
        "change of the code: prefer --against.",
    ]


def recorded_verdict(result: RecordedResult) -> str:
    counted = tally(result.cases) or "no cases"
    if result.contaminated:
        return f"gate: CONTAMINATED: {result.contaminated} ({counted})"
    return f"gate: {'FAILED' if result.fails else 'PASSED'} ({counted})"


def recorded_markdown(result: RecordedResult, rules: Rules) -> str:
    parts = [f"### {in_markdown(recorded_verdict(result))}", ""]
    parts += [f"* {in_markdown(sentence)}" for sentence in recorded_findings(result, rules)]
    parts += ["", *pipe_table(RECORDED_HEADER, map(case_row, result.cases)), ""]
    return "\n".join(parts + [in_markdown(line) for line in recorded_conditions(result, rules)]) + "\n"


def recorded_json(result: RecordedResult, rules: Rules) -> str:
    data = asdict(result) | {"verdict": recorded_verdict(result).split()[1].rstrip(":"), "rules": rules.settings()}
    return judged_json(data, cases=result.cases)
