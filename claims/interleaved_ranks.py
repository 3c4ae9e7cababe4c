"""DDP steps of the suite in turns with a step written by hand, on several ranks; `ranks_against_loop` runs it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from claims.interleaved_rounds import Loop, SetUp, Target
from model.attention import naive_attention
from model.parallel import KEEPS_BUFFERS
from model.training import MAX_GRADIENT_NORM, Training, cross_entropy
from model.transformer import TransformerLM
from perf_tests.bench.models import Batch
from perf_tests.bench.ranks import RankClock, SharedStepMeasure
from perf_tests.bench.workbench import Workbench
from perf_tests.cases.language_model import LanguageModelCase


class RankLoop(Loop):
    """The ranks wait for each other before a round; its time is the slowest one's."""

    def round(self, target: Target, setup: SetUp) -> None:
        assert isinstance(self.measure.clock, RankClock)
        if len(self.seconds) > self.measure.warmup_rounds + self.measure.rounds + 1:
            return  # what follows the measured rounds needs no loop beside it
        dist.barrier(group=self.measure.clock.group)
        super().round(target, setup)


def step_by_hand(case: LanguageModelCase, batch: Batch, group: Any) -> Callable[[], torch.Tensor]:
    """What a training script has, with the suite's shape, loss and options of DDP and AdamW."""
    model = DistributedDataParallel(
        TransformerLM(case.config, naive_attention), process_group=group, **KEEPS_BUFFERS
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=False)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(batch.tokens_BT), batch.targets_BT)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM, foreach=False)
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.phase("full_step")
def test_full_step(
    case: LanguageModelCase, training: Training, batch: Batch, measure: SharedStepMeasure, workbench: Workbench
) -> None:
    assert workbench.groups is not None
    loop, by_hand = RankLoop(measure), step_by_hand(case, batch, workbench.groups.case(2))
    training.create_optimizer_state()
    loop.beside(lambda: training.step(batch.tokens_BT, batch.targets_BT), by_hand=(by_hand, tuple))
    assert isinstance(measure.clock, RankClock)
    of_ranks = measure.clock.from_all(loop.seconds)
    measure.benchmark.extra_info["loop_seconds"] = [max(seconds) for seconds in zip(*of_ranks, strict=True)]
