"""A model that misbehaves costs its own case, never another one, nor the conditions that others are measured under."""

import os
import signal
from pathlib import Path

import pytest
import torch

from perf_tests.user_code.guard import ChangedDefaultsError, process_kept, torch_defaults_kept
from tests.support.launch import MODELS, Launch, copied, finished, launch, launched_once

MISBEHAVES = (
    f"--model={MODELS}:MisbehavesByContext", "--context=8,16,24,32,40,48,56,64,72,80", "--phase=forward",
    "-k=not attention",
)  # fmt: skip
HEALTHY, FAULTY = (8, 56, 80), (16, 24, 32, 40, 48, 64, 72)

undisturbed = launched_once(*MISBEHAVES)


def cases(*contexts: int) -> set[str]:
    return {f"test_forward[tiny-ctx{context}-fp32-own]" for context in contexts}


def test_each_fault_is_the_row_of_its_case_and_the_others_are_measured(undisturbed: Launch) -> None:
    assert undisturbed.exit_code == 1
    assert undisturbed.measured.keys() == cases(*HEALTHY)
    assert undisturbed.outcomes.keys() == cases(*FAULTY)
    reasons = {name: row["reason"] for name, row in undisturbed.outcomes.items()}
    for context, words in {
        16: "RuntimeError: planted", 24: "SystemExit: 0", 40: "meta", 48: "number of threads from 1 to 2",
        64: "logits are not finite", 72: "the tokens were changed in place",
        32: "The case changed torch's default dtype from torch.float32 to torch.float64",
    }.items():  # fmt: skip
        assert words in reasons[cases(context).pop()]


@pytest.mark.parametrize(("sent", "exit_code"), [("SIGTERM", 143), ("SIGKILL", -signal.SIGKILL)])
def test_a_signal_after_every_fault_costs_the_case_in_flight_alone(sent: str, exit_code: int, tmp_path: Path) -> None:
    struck = launch(tmp_path / "struck", *MISBEHAVES, PLANTED_SIGNAL=sent)
    assert struck.exit_code == exit_code
    assert finished(struck) == cases(8, 56, *FAULTY)
    resumed = launch(copied(struck, tmp_path), *MISBEHAVES, "--resume")
    assert resumed.measured.keys() == cases(*HEALTHY)
    assert resumed.outcomes.keys() == cases(*FAULTY)
    assert resumed.journals == []


def test_what_a_case_changed_is_put_back_also_where_it_failed() -> None:
    def change() -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_num_threads(threads + 1)

    def change_and_fail() -> None:
        change()
        torch.ones(1).item()

    threads = torch.get_num_threads()
    with (
        pytest.raises(ChangedDefaultsError, match=r"dtype .* and .* device .* and .* threads from"),
        torch_defaults_kept(),
    ):
        change()
    with pytest.raises(RuntimeError, match="meta"), torch_defaults_kept():
        change_and_fail()
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
    assert torch.ones(1).device.type == "cpu"


def test_a_model_that_one_context_makes_unusable_is_measured_at_the_others(tmp_path: Path) -> None:
    ended = launch(
        tmp_path, f"--model={MODELS}:UnusableAt16", "--context=8,16,24", "--phase=forward", "-k=not attention"
    )
    assert ended.exit_code == 1, ended.output + ended.errors
    assert ended.measured.keys() == cases(8, 24)
    ((name, row),) = ended.outcomes.items()
    assert ({name}, row["outcome"]) == (cases(16), "error")
    assert row["reason"] == (f"--model {MODELS}:UnusableAt16 fails on tokens of shape (1, 16): ValueError: no sixteen")


def test_a_model_that_ends_the_process_as_if_all_were_well_fails_the_run(tmp_path: Path) -> None:
    ended = launch(
        tmp_path, f"--model={MODELS}:EndsTheProcessAt16", "--context=8,16", "--phase=forward", "-k=not attention"
    )
    assert ended.exit_code == 4
    assert "The case called os._exit(0), which ends the run; raise an error instead, or sys.exit." in ended.errors
    assert finished(ended) == cases(8)


def test_a_process_forked_by_a_case_ends_as_it_says() -> None:
    with process_kept():
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_handlers_that_a_case_installs_for_the_signals_that_end_a_run_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with process_kept():
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
    assert [signal.getsignal(number) for number in numbers] == before
