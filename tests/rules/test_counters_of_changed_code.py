"""What a change of the code moves in the counters of a case: a tensor kept, a copy, a value read back."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.attention import ATTENTION, naive_attention
from model.training import Training
from perf_tests.predict.counters import Counters, counters_of
from perf_tests.predict.fake_run import attention_passes, passes
from tests.support.example_cases import TOY, attention_case, language_model_case


def counted_afresh(
    change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch, phase: str = "attention_backward"
) -> Counters:
    """The counters of a case whose attention passes its query through `change`."""
    naive = naive_attention
    planted = replace(ATTENTION["naive"], build=lambda: lambda q, k, v: naive(change(q), k, v))
    monkeypatch.setitem(ATTENTION, "naive", planted)
    attention_passes.cache_clear()
    counters = counters_of(attention_case(phase=phase, sequence_length=64))
    attention_passes.cache_clear()
    return counters


def test_a_tensor_more_for_the_backward_pass_moves_saved_bytes_and_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    before = counted_afresh(lambda query: query, monkeypatch)
    after = counted_afresh(lambda query: query.exp(), monkeypatch)
    one_tensor = 8 * 64 * 16 * 4
    assert after.saved_bytes == before.saved_bytes + one_tensor
    assert after.peak_bytes == before.peak_bytes + one_tensor


def test_a_copy_is_read_and_written_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (counted_afresh(of, monkeypatch, "attention_forward") for of in (lambda query: query, torch.clone))
    assert after.bytes_touched == before.bytes_touched + 2 * 8 * 64 * 16 * 4


def test_a_tensor_kept_by_the_model_moves_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Tensor] = []

    def keep(query: Tensor) -> Tensor:
        kept.append(query.detach().clone())
        return query

    before = counted_afresh(lambda query: query, monkeypatch)
    assert counted_afresh(keep, monkeypatch).peak_bytes == before.peak_bytes + 8 * 64 * 16 * 4


def test_a_value_read_back_is_counted_where_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(query: Tensor) -> Tensor:
        query.sum().item()
        return query

    assert counted_afresh(lambda query: query, monkeypatch, "attention_forward").host_reads == 0
    assert counted_afresh(read, monkeypatch, "attention_forward").host_reads == 1
    assert counted_afresh(read, monkeypatch, "attention_backward").host_reads == 0


def test_a_loss_read_back_in_a_step_is_one_more_value_that_the_host_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = language_model_case(replace(TOY, vocab_size=43), phase="full_step", optimizer="loop")
    before, backward = counters_of(case).host_reads, Training.backward

    def reading(self: Training, loss: Tensor) -> None:
        loss.item()
        backward(self, loss)

    monkeypatch.setattr(Training, "backward", reading)
    passes.cache_clear()
    after = counters_of(case).host_reads
    passes.cache_clear()
    assert after == before + 1
