"""The audit of attention alone: how its time grows, and its backward pass beside the forward pass."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import INCONSISTENT, SUSPICIOUS
from tests.support.audited_tables import audited, rules
from tests.support.foreign_tables import Row, attention_row


@pytest.mark.parametrize("batch, is_found", [("8", True), ("1", False)])
def test_growth_is_judged_by_the_work_of_a_launch_and_not_by_the_length(
    batch: str, is_found: bool, tmp_path: Path
) -> None:
    """One sequence of 8192 fills a card as little as eight of 2896: an exponent of 1.7 is honest there."""
    rows = [attention_row(8192, batch=batch, mean_ms="40"), attention_row(16384, batch=batch, mean_ms="130")]
    assert ((INCONSISTENT, "attention exponent") in rules(audited(tmp_path, rows))) == is_found


@pytest.mark.parametrize("batch, verdict", [("8", INCONSISTENT), ("1", SUSPICIOUS)])
def test_a_mask_made_in_the_forward_pass_weighs_more_beside_one_sequence(
    batch: str, verdict: str, tmp_path: Path
) -> None:
    forward = attention_row(16384, batch=batch, mean_ms="100")
    rows = [forward, {**forward, "phase": "backward", "mean_ms": "60"}]
    assert (verdict, "attention backward") in rules(audited(tmp_path, rows))
    assert rules(audited(tmp_path, [forward, {**forward, "phase": "backward", "mean_ms": "95"}])) == (
        {(SUSPICIOUS, "attention backward")} if batch == "8" else set()
    )


def ratios_of_blocks(*ratios: float) -> list[Row]:
    lengths = (8192, 16384, 32768)
    return [
        attention_row(length, phase, attention="triton", mean_ms=str(length**2 / 1e6 * (ratio if phase else 1)))
        | {"phase": phase or "forward"}
        for length, ratio in zip(lengths, ratios, strict=True)
        for phase in ("", "backward")
    ]


def test_a_ratio_that_lasts_over_all_lengths_belongs_to_the_kernel(tmp_path: Path) -> None:
    assert rules(audited(tmp_path, ratios_of_blocks(9, 9, 9))) == set()
    assert rules(audited(tmp_path, ratios_of_blocks(3, 40, 3))) == {(SUSPICIOUS, "attention backward")}
