"""Runs that end before their time, in real launches: nothing finished is lost, and what goes on ends in one record.

Thirteen launches: signals, two runs at once, and a grid in slices of time and in shares.
"""

import re
import shlex
import signal
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.record import Json, identity_of
from perf_tests_suite.perf_tests.verbs.run import of_pytest
from tests.support.forked_python import forked_python
from tests.support.launch import MODELS, THREE_CASES, Launch, finish, launch, launched_once, start_command, suite, until

ALL_THREE = {f"test_forward[tiny-ctx{context}-fp32-own]" for context in (8, 16, 24)}
AT_8, AT_16 = (f"test_forward[tiny-ctx{context}-fp32-own]" for context in (8, 16))
DIES_AT_16 = (f"--model={MODELS}:DiesAt16", *THREE_CASES)
WAITS_AT_16 = (f"--model={MODELS}:WaitsAt16", *THREE_CASES)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    """A run ended by a signal in the second of three cases; by SIGTERM one that `perf-tests run` began."""
    storages = {name: tmp_path_factory.mktemp(name) for name in ("SIGKILL", "SIGINT", "SIGTERM")}
    begun = {name: suite(storage, *DIES_AT_16) for name, storage in storages.items()}
    python, words = begun["SIGTERM"][:3], begun["SIGTERM"][4:]
    begun["SIGTERM"] = (*python, *of_pytest(words))
    return {name: finish(start_command(typed, PLANTED_SIGNAL=name), storages[name]) for name, typed in begun.items()}


@pytest.mark.parametrize("sent, exit_code, began", [("SIGKILL", -9, 1), ("SIGINT", 2, 0), ("SIGTERM", 143, 0)])
def test_a_signal_ends_a_run_by_its_exit_code_and_loses_only_the_case_in_flight(
    sent: str, exit_code: int, began: int, ended: dict[str, Launch]
) -> None:
    assert ended[sent].exit_code == exit_code, ended[sent].output + ended[sent].errors
    assert (ended[sent].records, ended[sent].finished) == ([], {AT_8})
    in_flight = sum(count for case, count in ended[sent].journal.starts.items() if case.endswith(AT_16))
    assert in_flight == began, "only a kill may have been the fault of its case"


def test_the_command_that_an_interrupted_run_prints_completes_it(ended: dict[str, Launch]) -> None:
    interrupted, before = ended["SIGINT"], ended["SIGINT"].journal.benchmarks
    pytest_name, *arguments = shlex.split(interrupted.output.partition("resume with `")[2].partition("`")[0])
    completed = finish(start_command((forked_python(), "-m", pytest_name, *arguments)), interrupted.storage, exits=0)
    assert "1 of 3 cases were done" in completed.output
    assert ({*completed.measured}, completed.outcomes, completed.journals) == (ALL_THREE, {}, [])
    assert before == [completed.measured[AT_8]]
    assert re.search(r"resume with `\S+( -m perf_tests)? run -", ended["SIGTERM"].output)
    assert "--config-file" not in ended["SIGTERM"].output.partition("resume with `")[2]
    assert "TerminatedError" not in ended["SIGTERM"].output, "what pytest says of an exception"


def test_a_case_that_brings_a_signal_upon_itself_is_given_up(ended: dict[str, Launch], tmp_path: Path) -> None:
    storage = ended["SIGKILL"].copied(tmp_path)
    again, last = (launch(storage, *DIES_AT_16, "--resume", PLANTED_SIGNAL="SIGSEGV") for _ in range(2))
    assert (again.exit_code, last.exit_code) == (-signal.SIGSEGV, 1)
    assert last.measured.keys() | last.outcomes.keys() == ALL_THREE
    assert last.outcomes[AT_16]["outcome"] == "process_died"
    assert "died twice while this case ran, last of: Segmentation fault" in last.outcomes[AT_16]["reason"]


def test_a_second_run_beside_the_first_is_refused_with_its_process(tmp_path: Path) -> None:
    """They would slow each other; resuming would be to take the first one's journal away."""
    gate = tmp_path / "gate"
    first = start_command(suite(tmp_path, *WAITS_AT_16), PLANTED_GATE=str(gate))
    try:
        until(lambda: any(AT_8 in path.read_text() for path in tmp_path.glob("*/journal-*")))
        (journal,) = tmp_path.glob("*/journal-*")
        second = launch(tmp_path, *WAITS_AT_16, "--resume", exits=4)
    finally:
        gate.touch()
        complete = finish(first, tmp_path)
    assert f"Process {journal.stem.rpartition('-')[2]} is measuring here already" in second.errors
    assert (complete.exit_code, set(complete.measured), complete.journals) == (0, ALL_THREE, [])


GRID = ("--phase=forward", "--context=8,16", "--attention=naive,flex", "-k=not attention", "--kernels")
"""Two cases, their passes, and as many of an attention that this device does not have."""

whole = launched_once(*GRID, exits=0)


def cases(record: Json) -> dict[str, list[tuple[str, Json]]]:
    """Ids and identities in the record's order, by what came of them; and what was selected."""
    names = {"benchmarks": "fullname", "outcomes": "id", "passes": "id"}
    return {"selection": record["suite"]["selection"]} | {
        kind: [(row[name], row.get("identity") or identity_of(row)) for row in record[kind]]
        for kind, name in names.items()
    }


def test_slices_on_fresh_machines_make_the_record_of_one_go(whole: Launch, tmp_path: Path) -> None:
    slow = (*GRID, "-p", "tests.support.a_minute_a_case", "--resume")
    first = launch(tmp_path / "first", *slow, "--time-limit=2.5", exits=0)
    assert "--time-limit 2.5 is reached, 4 cases are left" in first.output
    assert "resume with `pytest" in first.output
    opening = first.output.partition("No interrupted run of this machine to resume; this is a new run.")
    assert " cases, about " in opening[2], "it is said before the first case"
    assert len(first.finished) == 4
    second = launch(first.copied(tmp_path), *slow, "--time-limit=2.6", exits=0)
    assert (cases(second.record), second.journals) == (cases(whole.record), [])
    assert len(cases(whole.record)["passes"]) == 2
