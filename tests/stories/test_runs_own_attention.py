"""A run with an attention of one's own: what is correct is timed, what is wrong is a row that fails the run."""

from pathlib import Path

import pytest

from tests.support.launch import Launch, launch
from tests.support.wrong_attention import EXAMPLE, FAULTS

ARGUMENTS = ("--phase=forward,backward", "--kernels", "--memory", "-k", "ctx8 or (attention_forward and seq16)")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("ran")
    (folder / "planted.py").write_text(FAULTS["mask off by one"].source)
    names = f"{EXAMPLE}:flash_attention,{folder}/planted.py:flash_attention"
    return launch(folder / "storage", f"--attention={names}", *ARGUMENTS)


def test_a_wrong_kernel_is_never_timed_and_fails_the_run(ran: Launch) -> None:
    assert ran.exit_code == 1
    wrong = [name for name in ran.outcomes if "planted.flash_attention" in name]
    assert len(wrong) == 9  # three timings, each with two passes
    assert {row["outcome"] for row in ran.outcomes.values()} == {"incorrect"}
    assert not any("planted" in name for name in (*ran.measured, *ran.passes))
    assert "incorrect: error " in ran.output
    assert all(" x its bound at (" in row["reason"] for row in ran.outcomes.values())


def test_the_example_is_timed_in_the_model_and_alone_and_examined_by_the_passes(ran: Launch) -> None:
    cases = ("forward[tiny-ctx8-fp32", "backward[tiny-ctx8-fp32", "attention_forward[d16-seq16-fp32")
    for case in cases:
        row = ran.measured[f"test_{case}-flash_attention.flash_attention]"]
        assert row["extra_info"]["kernel_launches"] > 0
    passes = {name.partition("[")[0] for name in ran.passes}
    assert {"test_kernels_of_forward", "test_memory_of_attention_forward"} <= passes


def test_the_row_holds_the_name_in_the_repository_and_no_source(ran: Launch) -> None:
    names = {row["extra_info"]["attention"] for row in ran.measured.values()}
    assert names == {"examples/flash_attention.py:flash_attention"}
    assert Path(next(iter(names)).partition(":")[0]).exists()
