"""Tests of the user's on both sides: which there are, what each runs when it is called, and what differs.

Head's test files measure both sides, as the suite's do: a test that changed is the same test on either.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from perf_tests_suite.perf_tests.bench.workers import WorkerEndedError
from perf_tests_suite.perf_tests.gate.samples import (
    ABSENT,
    SIDES,
    Incomparable,
    NoTiming,
    SampleEvent,
    Side,
    Uncounted,
    exact_events,
)
from perf_tests_suite.perf_tests.interleaved.measuring import (
    START_SECONDS,
    GateProgress,
    UnmeasurableError,
    draw_pair,
    launched,
    receive_all,
)
from perf_tests_suite.perf_tests.interleaved.run import (
    GatePlan,
    GateRun,
    TheirTest,
    tasks_of,
    why_all_measured,
    why_code_differs,
)
from perf_tests_suite.perf_tests.interleaved.same import differing
from perf_tests_suite.perf_tests.interleaved.sides import Trees, changed_since
from perf_tests_suite.perf_tests.predict.compiling import Compilation
from perf_tests_suite.perf_tests.predict.difference import CompiledDifference
from perf_tests_suite.perf_tests.records.record import Json, how_many

SECONDS_OF_A_TEST = 60.0
"""Time limit of a rehearsal, beside that of the start, for each test."""
SHARE_OF_REHEARSAL = 0.5
"""A rehearsal takes no more of the gate's minutes; else all tests are measured as if they ran other programs."""


def compare_tests(run: GateRun, trees: Trees, watch: GateProgress) -> None:
    """Find the tests, those that cannot be measured, and those whose program is the same; count what runs on torch.

    Raises UnmeasurableError where head has no test to measure.
    """
    plan = run.plan
    trees.differed = frozenset(differing(trees.base, trees.head))
    head, base = _collected(plan, trees)
    at_base = {} if isinstance(base, str) else {**base["ready"], **base["refused"]}
    here = {**head["ready"], **head["refused"]}
    is_selected = head["is_restricted"] or any("::" in place for place in plan.tests or ())
    gone = [] if is_selected else [name for name in at_base if name not in here]
    cases = {name: TheirTest(**head["ready"][name]) for name in head["ready"]}
    cases |= {name: TheirTest(None, name.rpartition("::")[0]) for name in (*head["refused"], *gone)}
    run.plan = plan = replace(plan, cases=cases, ids_at_base={name: name for name in cases}, root=head["root"])
    if head["others"]:
        run.notes.append(f"{how_many(head['others'], 'test')} without the fixture `benchmark` did not run.")
    if skipped := head["skipped"]:
        run.notes.append(f"{how_many(len(skipped), 'file')} skipped all tests: {_first_of(skipped)}.")
    for name, why in head["refused"].items():
        run.known += [NoTiming(name, side, "unsupported", why) for side in SIDES]
    run.known += [NoTiming(name, "head", ABSENT, "the test is gone") for name in gone]
    if isinstance(base, str) or base["root"] != head["root"]:
        why = (
            _hinted(base, plan, trees)
            if isinstance(base, str)
            else f"its rootdir is {base['root']}, head's {head['root']}"
        )
        run.known.append(Incomparable(f"base's own tests cannot be collected: {why}"))
        return
    if (file := trees.written()) is not None:
        run.known.append(Incomparable(f"code under test wrote {file} as it was collected"))
        return
    run.had = frozenset(at_base)
    for name in head["files"]:
        (trees.base / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(trees.head / name, trees.base / name)
    trees.seal()
    watch.say(f"{how_many(len(head['ready']), 'test')}; both sides call each once or twice first.")
    _rehearse(run, trees, [*head["ready"]])


def _collected(plan: GatePlan, trees: Trees) -> tuple[Json, Json | str]:
    """What head has, and base by tests of its own; of base, why it cannot be collected, in words."""
    folder, tasks = plan.repository.folder_in(trees.base), tasks_of(plan)
    files = dict.fromkeys(place.partition("::")[0] for place in plan.tests or ())
    if there := [file for file in files if (folder / file).exists()]:
        tasks["base"] = {**tasks["base"], "words": [*there, *plan.words]}
    else:
        del tasks["base"]
    answers: dict[Side, Json | WorkerEndedError] = {}
    with launched(trees, tasks, draw_pair(0, 0), plan.python_path) as workers:
        for side, worker in workers.items():
            try:
                answers[side] = worker.receive(START_SECONDS)
            except WorkerEndedError as error:
                answers[side] = error
    head = answers["head"]
    if isinstance(head, WorkerEndedError):
        raise UnmeasurableError(f"{_hinted(str(head), plan, trees)}.")
    for file, why in head["failed"].items():
        raise UnmeasurableError(f"{file} cannot be collected: {_hinted(why.rstrip('.'), plan, trees)}.")
    if not head["ready"]:
        refused = {**head["skipped"], **head["refused"]}
        of_first = f"; of the first, {_first_of(refused)}" if refused else ""
        raise UnmeasurableError(f"{' '.join(files)} has no test to gate, which uses the fixture `benchmark`{of_first}.")
    base = answers.get("base", {"ready": {}, "refused": {}, "root": head["root"]})
    return head, str(base) if isinstance(base, WorkerEndedError) else base


def _first_of(reasons: Mapping[str, str]) -> str:
    name, why = next(iter(reasons.items()))
    return f"{name}: {why.rstrip('.')}"


MISSING = re.compile(r"No module named '([\w.]+)'|cannot import name '(\w+)' from [^']*'([\w.]+)'")


def _hinted(why: str, plan: GatePlan, trees: Trees) -> str:
    """The same, and of a module that is not there because no side has what git ignores, how both get it."""
    if (found := MISSING.search(why)) is None:
        return why
    root, place = plan.repository.root, (found[1] or f"{found[3]}.{found[2]}").replace(".", "/")
    files = (file for folder in plan.repository.import_path for file in folder.glob(f"{place}.*"))
    for name in (file.relative_to(root) for file in files if file.suffix in (".py", ".so", ".pyd")):
        if not (trees.head / name).exists():
            ignores = f"git ignores {name}, so no side has it; commit it (`git add -f {name}`)"
            return f"{why}; {ignores}, or install each side in an environment (--against-python)"
    has_submodules = (root / ".gitmodules").exists()
    return f"{why}; what lies in a submodule is on no side" if has_submodules else why


def _rehearse(run: GateRun, trees: Trees, names: list[str]) -> None:
    """Call each test a few times on both sides, and note what is known by that."""
    plan = run.plan
    assert plan.base is not None
    files = differing(trees.base, trees.head)
    compares = not (plan.against.measures_same or plan.python_of_base)
    why = why_all_measured(plan, trees, changed_since(plan.repository.root, plan.base))
    if compares and why is None and not files:
        run.why_measured = dict.fromkeys(names, "")
        return
    try:
        there, common, answers = _called(run, trees, names, {"is_rehearsal": True})
    except WorkerEndedError as error:
        if error.cannot_start and error.side == "head":
            raise UnmeasurableError(f"{error}.") from error
        if error.cannot_start:
            run.known += [_lacks(run, name, str(error)) for name in names]
        elif compares:
            run.why_measured = dict.fromkeys(names, f"{error.side} could not run each once: {error}")
        return
    code = (why or why_code_differs(trees, answers, files)) if compares else None
    found: dict[Side, Mapping[str, Json]] = {side: answers[side]["tests"] for side in SIDES}
    run.plan = replace(
        plan, cores=max((found[side][name].get("cores", 1) for side in SIDES for name in common), default=1)
    )
    compiling = [name for name in common if any(found[side][name].get("compiles") for side in SIDES)]
    if compiling and (code or not compares):
        found = _with_what_is_compiled(run, trees, compiling, found)
    for name in names:
        if name not in common:
            file = name.partition("::")[0]
            run.known.append(_lacks(run, name, there["base"]["failed"].get(file, "its code gives no such test")))
            continue
        lost = [*_lost(run, name, found)]
        run.known += lost or _counters(name, found)
        if compares and not lost:
            run.why_measured[name] = code or ""


def _called(
    run: GateRun, trees: Trees, names: Sequence[str], how: Json
) -> tuple[Mapping[Side, Json], list[str], Mapping[Side, Json]]:
    """What each side has, the tests that both have, and what was found of their calls. Raises WorkerEndedError."""
    tasks: dict[Side, Json] = {side: {**task, **how} for side, task in tasks_of(run.plan).items()}
    with launched(trees, tasks, draw_pair(0, 0), run.plan.python_path) as workers:
        there = receive_all(workers)
        common = [name for name in names if all(name in there[side]["ready"] for side in SIDES)]
        for worker in workers.values():
            worker.send({"order": common})
        patience_seconds = START_SECONDS + SECONDS_OF_A_TEST * len(common)
        if run.plan.seconds:
            patience_seconds = max(0.001, min(patience_seconds, SHARE_OF_REHEARSAL * run.seconds_left))
        return there, common, receive_all(workers, patience_seconds)


def _with_what_is_compiled(
    run: GateRun, trees: Trees, names: Sequence[str], found: Mapping[Side, Mapping[str, Json]]
) -> dict[Side, Mapping[str, Json]]:
    """The same, and what torch.compile makes of these tests on both sides, counted in processes without marks."""
    try:
        _, _, answers = _called(run, trees, names, {"counts": True})
        made = {side: answers[side]["tests"] for side in SIDES}
    except WorkerEndedError as error:
        why = {"reason": f"{error.side} ended as it was counted: {error}"}
        made = {side: dict.fromkeys(names, why) for side in SIDES}
    for name in names:
        if all(both := [made[side][name].get("compilation") for side in SIDES]):
            run.compiled[name] = CompiledDifference(*map(Compilation.of, both))
    return {
        side: {
            name: {**of, "reason": "it was not called once more", **made[side][name], "outcome": of["outcome"]}
            if name in names else of
            for name, of in found[side].items()
        }
        for side in SIDES
    }  # fmt: skip


def _lacks(run: GateRun, name: str, why: str) -> NoTiming:
    """Say that head's test does not run on base's code: an error where base had it, so that nothing is green."""
    return NoTiming(name, "base", "error" if name in run.had else ABSENT, why)


def _lost(run: GateRun, name: str, found: Mapping[Side, Mapping[str, Json]]) -> Iterator[NoTiming]:
    for side in SIDES:
        if (outcome := found[side][name]["outcome"]) is not None:
            is_new = side == "base" and name not in run.had and found["head"][name]["outcome"] is None
            for one in SIDES if outcome.get("is_of_both") else [side]:
                yield NoTiming(name, one, ABSENT if is_new else outcome["outcome"], outcome["reason"])


def _counters(name: str, found: Mapping[Side, Mapping[str, Json]]) -> list[SampleEvent]:
    """Counters of a test that runs torch operations on either side."""
    answers = {side: {"counters": None, "reason": "", **found[side][name]} for side in SIDES}
    if all(not answers[side]["counters"] and not answers[side]["reason"] for side in SIDES):
        return []
    for side in SIDES:
        if answers[side]["reason"]:
            return [Uncounted(name, side, answers[side]["reason"])]
    nothing = dict.fromkeys(next(filter(None, (answers[side]["counters"] for side in SIDES))), 0)
    return [*exact_events(name, {side: {"counters": answers[side]["counters"] or nothing} for side in SIDES})]
