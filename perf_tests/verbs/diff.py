"""`diff BASE [HEAD]`: say what a change did to the program: operations added, removed, changed, each with its line.

perf-tests diff main
perf-tests diff v1 v2 --size medium --phase full_step --gpu H100
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perf_tests_suite.perf_tests.phases import FINDINGS, FINE, UNREADABLE, UsageError
from perf_tests_suite.perf_tests.records.record import some_of
from perf_tests_suite.perf_tests.records.store import strict_json
from perf_tests_suite.perf_tests.user_code.named import UNDER_TEST, Repository, repository_of
from perf_tests_suite.perf_tests.user_code.own_names import look_in

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.cases.case import Case
    from perf_tests_suite.perf_tests.hardware.limits import Ceilings
    from perf_tests_suite.perf_tests.predict.difference import CompiledDifference, Difference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", help="a git revision")
    parser.add_argument("head", nargs="?", help="another one (the working tree, with its uncommitted changes)")
    _add_options(parser)
    listed = "what is measured, as `perf-tests run --help-all` lists it: --size, --phase, --model, ..."
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="OPTION ...", help=listed)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", metavar="NAME", help="this case alone, as the gate prints it")
    parser.add_argument("--gpu", help="a GPU's name, `here`, or its peaks: use its rules, and predict the change")


def run(arguments: argparse.Namespace) -> int:
    # Imported late: the table of options loads torch, which --help need not wait for.
    from perf_tests_suite.perf_tests.cases.gate_options import argparse_keywords
    from perf_tests_suite.perf_tests.cases.options import GROUPS

    parser = argparse.ArgumentParser("perf-tests diff")
    _add_options(parser)
    parser.add_argument("--json", action="store_true")
    for option in GROUPS["what is measured"]:
        parser.add_argument(option.name, **argparse_keywords(option))
    parser.parse_args(arguments.options, arguments)
    look_in(Path.cwd())
    from perf_tests_suite.perf_tests.predict.difference import difference_json, difference_lines
    from perf_tests_suite.perf_tests.predict.request import requested_machine

    with UsageError.instead_of(ValueError):
        machine = None if arguments.gpu is None else requested_machine(arguments.gpu)
        cases = selected(arguments, None if machine is None else machine.device)
        repository = repository_of({name: getattr(arguments, name[2:]) for name in UNDER_TEST}, Path.cwd())
    ceilings = None if machine is None else machine.ceilings
    found = differences(repository, arguments.base, arguments.head, [*cases.values()], ceilings)
    if arguments.json:
        data = {name: {"why_not": one} if isinstance(one, str) else difference_json(one) for name, one in
                zip(cases, found, strict=True)}  # fmt: skip
        print(strict_json(data))
    else:
        for name, one in zip(cases, found, strict=True):
            lines = [one] if isinstance(one, str) else difference_lines(one)
            print(f"{name}: {lines[0]}" if len(lines) == 1 else "\n".join(["", name, *lines]))
    return exit_code(found)


def exit_code(found: Sequence["Difference | CompiledDifference | str"]) -> int:
    """1 where a case differs, else 3 where one is not compared."""
    if any(not isinstance(one, str) and one.rows for one in found):
        return FINDINGS
    return UNREADABLE if any(isinstance(one, str) for one in found) else FINE


def differences(
    repository: Repository, base: str, head: str | None, cases: Sequence["Case"], ceilings: "Ceilings | None"
) -> list["Difference | CompiledDifference | str"]:
    """The difference of each case between two revisions, or a revision and the working tree, or why there is none.

    Raises UsageError for a revision that is none.
    """
    # Imported late: `--help` needs no torch.
    from perf_tests_suite.perf_tests.interleaved.run import side_in
    from perf_tests_suite.perf_tests.interleaved.sides import TreeError, find_commit, planted
    from perf_tests_suite.perf_tests.predict.difference import compare_sides
    from perf_tests_suite.perf_tests.predict.operations import sent_case

    if (why := repository.why_no_base()) is not None:
        raise UsageError(f"{base}: {why}.")
    with UsageError.instead_of(TreeError), ExitStack() as stack:
        commits = [None if word is None else find_commit(repository.root, word, "diff") for word in (base, head)]
        of_base = stack.enter_context(planted(repository, commits[0]))
        of_head = of_base if head is None else stack.enter_context(planted(repository, commits[1]))
        sides = [side_in(of_base.base, repository), side_in(of_head.head if head is None else of_head.base, repository)]
        return compare_sides(sides[0], sides[1], [(one, one) for one in map(sent_case, cases)], ceilings)


def selected(arguments: argparse.Namespace, device: str | None) -> dict[str, "Case"]:
    """The cases that the options select, by name, compiled ones where an option asks for them. Raises UsageError."""
    import pytest

    from perf_tests_suite.perf_tests.cases.devices import read_settings
    from perf_tests_suite.perf_tests.cases.selected import chosen_phases, family_of
    from perf_tests_suite.perf_tests.cases.settings import Typed
    from perf_tests_suite.perf_tests.phases import place_of
    from perf_tests_suite.perf_tests.records.columns import case_name

    typed = {**vars(arguments), "against": arguments.base, "device": arguments.device if device is None else "cpu"}
    with UsageError.instead_of(pytest.UsageError):
        settings = read_settings(Typed(typed))
    if device is not None:
        settings = replace(settings, device=device)
    cases = {}
    for phase in sorted(chosen_phases(settings), key=place_of):
        family = family_of(phase)
        for values in family.grid(settings):
            axes = dict(zip(family.axes, values, strict=True))
            cases[f"{phase} {family.id_of(*values)}"] = family.of(phase, axes, settings)
    if arguments.case is not None:
        name = case_name(arguments.case) if "::" in arguments.case else arguments.case
        if name not in cases:
            raise UsageError(f"--case {name!r} is none of this selection, which has {some_of([*cases])}.")
        return {name: cases[name]}
    if arguments.execution is not None or arguments.attention is not None:
        return cases
    return {name: case for name, case in cases.items() if not case.is_compiled}
