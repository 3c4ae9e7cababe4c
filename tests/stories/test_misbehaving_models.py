"""A model that misbehaves costs its own case, never another one, nor the conditions that others are measured under."""

import signal
from pathlib import Path

import pytest

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


def test_of_a_model_that_trains_its_head_alone_every_phase_is_measured(tmp_path: Path) -> None:
    ran = launch(
        tmp_path,
        "--model=tests.support.planted_parts:FrozenEmbedding",
        "--phase=backward,optimizer,full_step",
        "-k",
        "not attention",
    )
    assert ran.exit_code == 0, ran.output
    assert len(ran.measured) == 3
