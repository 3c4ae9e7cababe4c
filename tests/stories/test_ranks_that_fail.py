"""What one rank meets alone: its words reach rank 0, which goes on with the next case, in the same processes."""

import socket
import sys
from pathlib import Path

import pytest

from perf_tests.cases.sharing import Launched
from tests.support.launch import MODELS, Launch, finish, launch, start_command, suite
from tests.support.ranks import OF_MODELS, launch_ranks

CASES = ("--context=8,16,24", "--phase=forward_backward", f"--model={MODELS}:OfRankOne", "--parallel=ddp")
AT_16 = "test_forward_backward[tiny-ctx16-fp32-own-ddp-world2]"
AT_8 = AT_16.replace("16", "8")
OTHERS = {AT_16.replace("16", context) for context in ("8", "24")}


@pytest.mark.parametrize(
    "fault, outcome, words, exit_code, measured",
    [
        pytest.param("memory", "out_of_memory", "rank 1: planted on rank 1", 0, {AT_8}, id="memory"),
        pytest.param("error", "error", "rank 1: RuntimeError: planted on rank 1", 1, OTHERS, id="error"),
    ],
)
def test_the_error_of_one_rank_is_the_outcome_of_its_case_alone(
    fault: str, outcome: str, words: str, exit_code: int, measured: set[str], tmp_path: Path
) -> None:
    lead, other = launch_ranks(tmp_path, *CASES, PLANTED_FAULT=fault)
    assert (lead.exit_code, other.exit_code) == (exit_code, 0), lead.output
    assert lead.outcomes[AT_16]["outcome"] == outcome
    assert lead.outcomes[AT_16]["reason"].startswith(words)
    assert lead.measured.keys() == measured  # after want of memory no larger case is tried
    assert other.output == ""


def test_a_rank_that_hangs_ends_its_case_in_time_and_not_the_run(tmp_path: Path) -> None:
    lead, other = launch_ranks(tmp_path, *CASES, "-p", "tests.support.impatient_at_16", PLANTED_FAULT="hang")
    assert (lead.exit_code, other.exit_code) == (1, 0), lead.output
    assert lead.outcomes[AT_16]["outcome"] == "timed_out"
    assert lead.measured.keys() == OTHERS


@pytest.mark.parametrize(
    "arguments, of_rank, words",
    [
        pytest.param((), ((), ("--rounds=3",)), "Rank 1 was started with different options", id="options"),
        pytest.param(("--memory",), ((), ()), "--memory cannot be combined with --parallel", id="pass"),
        pytest.param(("--against=main",), ((), ()), "--against cannot be combined with --parallel", id="gate"),
        pytest.param(("--size=none",), ((), ()), "--size 'none' is unknown", id="value"),
        pytest.param((f"--model={MODELS}:IgnoresContext",), ((), ()), "ignores its context", id="model"),
        pytest.param((), ((), ("--size=none",)), "Rank 1: --size 'none' is unknown", id="value of one rank"),
    ],
)
def test_what_any_rank_cannot_start_with_rank_0_says_once(
    arguments: tuple[str, ...], of_rank: tuple[tuple[str, ...], ...], words: str, tmp_path: Path
) -> None:
    lead, other = launch_ranks(tmp_path, "--parallel=ddp", *arguments, of_rank=of_rank)
    assert (lead.exit_code, other.exit_code) == (4, 4)
    assert words in lead.errors
    assert lead.errors.count("ERROR") == 1
    assert other.output == other.errors == ""
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "difference, words", [("code", "different code: its checkout differs"), ("device", "another device there, cpu")]
)
def test_a_rank_of_other_code_or_on_another_device_is_refused(difference: str, words: str, tmp_path: Path) -> None:
    plugin = "tests.support.another_rank_1"
    lead, other = launch_ranks(tmp_path, "--parallel=ddp", "-p", plugin, PLANTED_DIFFERENCE=difference)
    assert (lead.exit_code, other.exit_code) == (4, 4)
    assert "Rank 1 was started with different" in lead.errors
    assert words in lead.errors
    assert other.output == other.errors == ""


def test_without_torchrun_the_run_says_what_to_type(tmp_path: Path) -> None:
    alone = launch(tmp_path, "--parallel=ddp")
    assert alone.exit_code == 4
    assert "start them with `torchrun --nproc-per-node 2 -m pytest" in alone.errors


def test_ranks_without_parallel_do_not_measure_beside_each_other(tmp_path: Path) -> None:
    lead, other = launch_ranks(tmp_path)
    assert (lead.exit_code, other.exit_code) == (4, 4)
    assert "2 ranks were started, and would measure beside each other; add --parallel" in lead.errors


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "2"}
        lead = launch(tmp_path, "--parallel=ddp", **address)
    assert lead.exit_code == 4
    assert f"Port {port} of 127.0.0.1 is in use; give torchrun another with --master-port" in lead.errors


def test_a_journal_that_rank_0_cannot_write_ends_both(tmp_path: Path) -> None:
    storage = tmp_path / "file"
    storage.touch()
    lead, other = launch_ranks(storage, "--parallel=ddp")
    assert (lead.exit_code, other.exit_code) == (4, 4)
    assert "The run cannot be saved under" in lead.errors
    assert other.errors == ""


def torchrun(storage: Path, *arguments: str, fault: str = "", restarts: int = 3) -> Launch:
    """How two ranks ended that torchrun restarts."""
    ranks = ("--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}")
    torchrun = ("-m", "torch.distributed.run", *ranks, "-m", "pytest")
    typed = suite(storage, OF_MODELS, *arguments)[3:]
    return finish(start_command((sys.executable, *torchrun, *typed), PLANTED_FAULT=fault), storage)


def test_torchrun_reports_the_exit_code_of_rank_0_where_the_run_cannot_start(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "--parallel=ddp", "--size=none", restarts=0)
    assert "--size 'none' is unknown" in ended.errors
    root_cause = ended.errors.partition("Root Cause")[2]
    assert "rank      : 0 (local_rank: 0)" in root_cause
    assert "exitcode  : 4 " in root_cause


def test_under_torchrun_what_all_ranks_refuse_is_said_once(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, restarts=0)
    assert ended.errors.count("2 ranks were started, and would measure beside each other") == 1
    assert "exitcode  : 4 " in ended.errors.partition("Root Cause")[2]


def test_after_a_rank_died_twice_of_a_case_torchrun_ends_with_a_row_for_it(tmp_path: Path) -> None:
    """Each death costs one restart of all ranks; what is measured is kept."""
    ended = torchrun(tmp_path, *CASES, fault="death")
    assert ended.measured.keys() == OTHERS, ended.errors
    assert ended.outcomes[AT_16]["outcome"] == "process_died"
    assert "a rank died twice while this case ran" in ended.outcomes[AT_16]["reason"]
    assert ended.journals == []
    assert ended.exit_code == 1
    assert "torchrun restarted a run that had ended already" in ended.errors


def test_a_rank_that_dies_while_rank_0_saves_causes_no_second_record(tmp_path: Path) -> None:
    plugin = "tests.support.dies_while_saving"
    ended = torchrun(tmp_path, "--context=8", "--phase=forward", "--parallel=ddp", "-p", plugin)
    assert len(ended.records) == 1, ended.output
    assert ended.journals == []
    assert "torchrun restarted a run that had ended already" in ended.errors


def test_the_command_that_resumes_ranks_starts_as_many_on_as_many_machines() -> None:
    commands = [" ".join(Launched(world=world, local_world=8).command) for world in (8, 16)]
    assert commands == [
        "torchrun --nproc-per-node 8 -m pytest",
        "torchrun --nnodes 2 --nproc-per-node 8 -m pytest",
    ]


def test_rank_0_decides_when_the_time_is_up_and_a_resumed_run_ends_in_one_record(tmp_path: Path) -> None:
    slow = (*CASES, "-p", "tests.support.a_minute_a_case", "--resume")
    first = launch_ranks(tmp_path, *slow, "--time-limit=1.5")
    assert [rank.exit_code for rank in first] == [0, 0], first[0].errors
    assert "--time-limit 1.5 is reached, 2 cases are left" in first[0].output
    assert "resume with `torchrun --nproc-per-node 2 -m pytest" in first[0].output
    second = launch_ranks(tmp_path, *slow)
    assert [rank.exit_code for rank in second] == [0, 0], second[0].errors
    assert second[0].measured.keys() == OTHERS | {AT_16}
