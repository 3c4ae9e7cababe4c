"""A case on ranks: the rows of its batch, the turns that its exposed communication comes from, the room they need."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests import conftest
from perf_tests.bench.ranks import RankClock, SharedStepMeasure
from perf_tests.cases.sharing import Sharing
from perf_tests.phases import EXAMINED
from tests.support.example_cases import CPU, SETTINGS, language_model_case


class SecondOfTwo:
    """Groups of two ranks, seen from the second."""

    def part_of(self, batch: torch.Tensor, sharing: Sharing) -> torch.Tensor:
        return batch.chunk(sharing.world)[1]


@pytest.mark.parametrize("scaling, rows_of_each", [("strong", 2), ("weak", 4)])
def test_each_rank_has_its_own_rows_of_the_global_batch(scaling: str, rows_of_each: int) -> None:
    case = language_model_case(batch_size=4, sharing=Sharing("ddp", 2, scaling))

    def drawn(groups: SecondOfTwo | None) -> torch.Tensor:
        workbench = SimpleNamespace(settings=SETTINGS, groups=groups, device=SimpleNamespace(torch_device=CPU))
        return conftest.batch.__wrapped__(case, workbench).tokens_BT  # type: ignore[attr-defined]

    assert len(drawn(None)) == 2 * rows_of_each == case.global_batch_size
    assert drawn(SecondOfTwo()).equal(drawn(None)[rows_of_each:])


def test_rounds_with_and_without_exchange_take_turns_at_being_first() -> None:
    """Or the first round of each pair would pay for what the second finds in cache."""
    order: list[bool] = []

    def seconds(rounds: object, exchanges: bool) -> float:
        order.append(exchanges)
        return 3.0 if exchanges else 1.0

    row = EXAMINED["full_step"]
    measure: Any = SimpleNamespace(
        case=SimpleNamespace(row=row), rounds=4, _seconds=seconds, _why_not_without=lambda: None
    )
    found: Any = SharedStepMeasure._exposed(measure, Mock())
    assert order == [False, True, True, False] * 2
    assert found["exposed_communication_seconds"] == 2.0


@pytest.mark.parametrize("spare_bytes, runs", [(0, True), (-1, False)])
def test_the_rank_with_the_least_room_decides_whether_all_hold_whole_weights_and_gradients(
    spare_bytes: int, runs: bool
) -> None:
    case = language_model_case(phase="full_step", sharing=Sharing("fsdp2", 2))
    whole_bytes = 2 * 4 * case.config.parameters
    clock = Mock(spec=RankClock, **{"from_all.return_value": [[1e15], [float(whole_bytes + spare_bytes)]]})
    measure: Any = SimpleNamespace(
        case=case, sharing=case.sharing, clock=clock, row=SimpleNamespace(available_bytes=7_000),
        device=SimpleNamespace(peak_allocated_bytes=lambda: 2_000),
    )  # fmt: skip
    reason = SharedStepMeasure._why_not_without(measure)
    clock.from_all.assert_called_once_with([5_000.0])
    assert (reason is None) is runs
    assert runs or f"{whole_bytes:,} bytes more than fit" in str(reason)
