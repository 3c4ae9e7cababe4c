"""What a case issues: the costs are those of the exact counters, and each operation has its line."""

from dataclasses import replace
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.predict.counters import NotCountedError, counters_of
from perf_tests_suite.perf_tests.predict.operations import _fake_round_from, fake_round, json_of
from tests.support.example_cases import attention_case, language_model_case

CASES: list[Case] = [
    *(language_model_case(phase=phase, device=device, optimizer=optimizer, precision=precision)
      for phase, device, optimizer, precision in (
          ("inference", "cpu", None, "fp32"), ("forward", "cuda", None, "bf16"), ("backward", "cpu", None, "bf16"),
          ("forward_backward", "cpu", None, "fp32"), ("optimizer", "cuda", "fused", "fp32"),
          ("full_step", "cpu", "loop", "fp32"), ("full_step", "cuda", "foreach", "fp16"),
      )),
    language_model_case(phase="full_step", optimizer="loop", checkpoint="block", attention="sdpa"),
    attention_case(), attention_case(phase="attention_backward", attention="sdpa", device="cuda"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.phase}-{case.device}-{case.precision}")
def test_operations_add_up_to_the_exact_counters(case: Case) -> None:
    found, counters = fake_round(case), counters_of(case)
    timed = [one for one in found.operations if one.is_timed]
    assert sum(one.launches for one in timed) == counters.kernel_launches
    assert sum(one.cost.bytes for one in timed) == counters.bytes_touched
    assert sum(one.cost.flops for one in timed) == counters.executed_flops
    assert sum(one.reads for one in timed) == counters.host_reads
    saves = case.phase_row.records_graph
    assert sum(one.saved_bytes for one in found.operations) == (counters.saved_bytes if saves else 0)
    assert _fake_round_from(json_of(found)) == found


def test_a_backward_operation_has_the_line_of_its_forward_one_and_a_step_that_of_the_optimizer() -> None:
    operations = fake_round(language_model_case(phase="full_step", optimizer="loop")).operations
    lines = {part: {one.stack[0].code for one in operations if one.part == part} for part in
             ("forward", "loss", "backward", "optimizer")}  # fmt: skip
    of_call = [one for one in operations if one.stack[0].code == "self.scaler.scale(loss).backward()"]
    assert len(of_call) <= 2  # the gradient of the loss itself
    assert "exponentials / exponentials.sum(dim=-1, keepdim=True)" in lines["forward"] & lines["backward"]
    assert "self.scaler.step(self.optimizer)" in lines["optimizer"]
    built = {place.code[:20] for one in operations if one.part == "optimizer" for place in one.stack}
    assert "torch.optim.AdamW( m" in built
    assert not any(place.file.startswith("perf_tests/") for one in operations for place in one.stack)


def test_what_cannot_be_played_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def attend(q, k, v):\n    return q[q.sum(-1).nonzero()[:, 0]]\n")
    with pytest.raises(NotCountedError, match=r"own.py:attend cannot be run on fake tensors: \S"):
        fake_round(attention_case(attention=f"{tmp_path}/own.py:attend"), tmp_path)
    with pytest.raises(NotCountedError, match="unknown until"):
        fake_round(replace(attention_case(), attention="compiled"))
