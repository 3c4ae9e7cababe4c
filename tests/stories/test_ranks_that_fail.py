"""What one rank meets alone: its words reach rank 0, which goes on with the next case, in the same processes.

Five launches of two ranks, and two by torchrun, of which one restarts its ranks three times.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.forked_python import forked_python
from tests.support.launch import MODELS, OF_MODELS, ROOT, Launch, finish, launch_ranks, start_command, suite

CASES = ("--context=8,16,24", "--phase=forward_backward", f"--model={MODELS}:OfRankOne", "--parallel=ddp")
AT_16 = "test_forward_backward[tiny-ctx16-fp32-own-ddp-world2]"
OTHERS = {AT_16.replace("16", context) for context in ("8", "24")}


def test_rank_0_ends_in_time_and_the_error_of_one_rank_is_the_outcome_of_its_case(tmp_path: Path) -> None:
    slow = (*CASES, "-p", "tests.support.a_minute_a_case", "--kernels", "--resume")
    first = launch_ranks(tmp_path, *slow, "--time-limit=1.5")
    assert [rank.exit_code for rank in first] == [0, 0], first[0].errors
    assert "--time-limit 1.5 is reached, 5 cases are left" in first[0].output
    assert "resume with `torchrun --nproc-per-node 2 --no-python pytest" in first[0].output
    lead, other = launch_ranks(tmp_path, *slow, PLANTED_FAULT="error")
    assert (lead.exit_code, other.exit_code) == (1, 0), lead.output
    assert ({*lead.measured}, lead.outcomes[AT_16]["outcome"]) == (OTHERS, "error")
    assert lead.outcomes[AT_16]["reason"].startswith("rank 1: RuntimeError: planted on rank 1")
    assert [row["values"]["trace"] is not None for row in lead.passes.values()] == [True, True], "kernels of rank 0"
    assert other.output == ""


def test_a_rank_that_hangs_ends_its_case_in_time_and_not_the_run(tmp_path: Path) -> None:
    lead, other = launch_ranks(tmp_path, *CASES, "-p", "tests.support.impatient_at_16", PLANTED_FAULT="hang")
    assert (lead.exit_code, other.exit_code) == (1, 0), lead.output
    assert ({*lead.measured}, lead.outcomes[AT_16]["outcome"]) == (OTHERS, "timed_out")


@pytest.mark.parametrize(
    "storage, of_rank_1, words",
    [
        pytest.param("", ["--rounds=3"], "Rank 1 was started with different options", id="unlike"),
        pytest.param("file", [], "The run cannot be saved under", id="refused on rank 0, before the first case"),
    ],
)
def test_what_a_rank_refuses_is_said_once(storage: str, of_rank_1: Sequence[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lead, other = launch_ranks(tmp_path / storage, "--parallel=ddp", of_rank=([], of_rank_1))
    assert (lead.exit_code, other.exit_code) == (4, 4)
    assert words in lead.errors
    assert lead.errors.count("ERROR") == 1
    assert other.output == other.errors == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def torchrun(storage: Path, *arguments: str, restarts: int, **planted: str) -> Launch:
    """How two ranks of `perf-tests run` ended that torchrun restarts."""
    ranks = ("--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", "--no-python")
    typed = (forked_python(), "-m", "perf_tests", "run", *suite(storage, OF_MODELS, *arguments)[4:])
    command = (forked_python(), "-m", "torch.distributed.run", *ranks, *typed)
    return finish(start_command(command, ROOT, ROOT, **planted), storage)


def test_torchrun_reports_the_exit_code_of_rank_0_where_the_run_cannot_start(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "--parallel=ddp", "--size=none", restarts=0)
    assert ended.errors.count("--size 'none' is unknown") == 1
    root_cause = ended.errors.partition("Root Cause")[2]
    assert "rank      : 0 (local_rank: 0)" in root_cause
    assert "exitcode  : 4 " in root_cause


def test_after_a_rank_died_twice_of_a_case_and_once_at_the_end_there_is_one_record(tmp_path: Path) -> None:
    """Each death costs one restart of all ranks; what is measured is kept."""
    dies = ("-p", "tests.support.dies_while_saving")
    ended = torchrun(tmp_path, *CASES, *dies, restarts=3, PLANTED_FAULT="death", PLANTED_RESTARTS="2")
    assert ({*ended.measured}, ended.outcomes[AT_16]["outcome"]) == (OTHERS, "process_died"), ended.errors
    assert "a rank died twice while this case ran" in ended.outcomes[AT_16]["reason"]
    assert (ended.journals, ended.exit_code) == ([], 1)
    assert "torchrun restarted a run that had ended already" in ended.errors
