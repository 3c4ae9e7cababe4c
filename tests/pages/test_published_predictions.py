"""A few published cells, so that the claims over all of them cannot rot, and how they are told apart."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest

from claims.predicted_times import (
    E2E,
    SHIPPED,
    changes_of_precision,
    everything,
    published_attention,
    published_changes,
)
from claims.published import published_rows
from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.hardware.datasheets import libraries_on
from perf_tests_suite.perf_tests.hardware.limits import FLOAT32_BYTES, IN_RANGE, WHOLE_MODELS
from perf_tests_suite.perf_tests.predict.difference import CHANGES_IN_RANGE, OF_CHECKPOINTS
from tests.support import published_memory as memory
from tests.support import published_peaks as published
from tests.support.documents import page
from tests.support.published_memory import compared, outlier
from tests.support.published_peaks import PublishedPeak, predicted_bytes, published_peaks, whole_block_bytes

Cells = Callable[..., PublishedPeak]


@pytest.fixture(scope="module")
def peak() -> Cells:
    cells = published_peaks()

    def named(source: str, mode: str, context: int, precision: str = "fp32") -> PublishedPeak:
        (found,) = (
            cell
            for cell in cells
            if source in cell.source
            and (cell.mode, cell.case.context_length, cell.case.precision) == (mode, context, precision)
        )
        return found

    return named


STEP, FORWARD = "full_step_peak", "forward_peak(with grad)"
TABLE = "kbjiang/cs336-assignment2-systems-mine"
NAMED = {
    **{f"{TABLE} {mode} 256 {precision}": 0.01 for mode in (FORWARD, STEP) for precision in ("fp32", "bf16")},
    f"brandon-snider {FORWARD} 256 fp32": 0.02,
    f"LINYUNLinYun {STEP} 128 fp32": 0.02,
    "sandrewxu forward_peak(in training, states resident) 512 fp32": 0.02,
    f"yyin-dev {STEP} 512 bf16": 0.01,
}
"""One per cent in the table of ten; two where the same step was measured under other conditions."""


@pytest.mark.parametrize("name", NAMED)
def test_a_published_peak_is_predicted_within_its_limit(name: str, peak: Cells) -> None:
    """At the context that was measured, where the label names another."""
    source, rest = name.split(" ", 1)
    mode, context, precision = rest.rsplit(" ", 2)
    cell = peak(source, mode, int(context), precision)
    (found,) = compared([cell])
    assert abs(found.error) <= NAMED[name]
    assert (predicted_bytes(cell) == found.predicted_bytes) == (source != "yyin-dev")


@pytest.mark.parametrize("source, context, precision, without, error", [
    (TABLE, 128, "fp32", {"zero_grad": "before_forward"}, -0.05),
    ("damek", 512, "fp32", {"first_step": "no"}, 0.27), ("damek", 512, "bf16", {"first_step": "no"}, 0.21),
    ("TianqGuo", 512, "fp32", {"saves_more": "nothing"}, -0.03),
    ("TianqGuo", 512, "bf16", {"saves_more": "nothing"}, -0.01),
    ("yyin-dev", 256, "fp32", {"whole_blocks": "0"}, -0.02),
])  # fmt: skip
def test_without_the_condition_that_its_code_states_a_full_step_is_off(
    source: str, context: int, precision: str, without: dict[str, str], error: float, peak: Cells
) -> None:
    cell = peak(source, STEP, context, precision)
    found, wrong = compared([cell, replace(cell, conditions={**cell.conditions, **without})])
    assert abs(found.error) <= 0.007
    assert wrong.error < error if error < 0 else wrong.error > error


def test_a_cell_that_its_log_contradicts_is_predicted_as_the_log_has_it(peak: Cells) -> None:
    for source, mode, context in (("brandon-snider", FORWARD, 512), ("LINYUNLinYun", "forward_peak(no_grad)", 1024)):
        (cell,) = compared([peak(source, mode, context)])
        known = outlier(cell.cell)
        assert known is not None
        assert known.recorded_bytes is not None
        assert abs(cell.error) > 0.02
        assert abs(cell.predicted_bytes / known.recorded_bytes - 1) <= 0.01


def test_nothing_is_left_out_without_a_reason() -> None:
    """Empty cells are held to the card, each recorded outlier is a cell, and sources left out say what is missing."""
    cells = published_peaks()
    empty = [cell.case for cell in cells if TABLE in cell.source and cell.bytes is None]
    assert [(case.context_length, case.precision) for case in empty] == [(512, "fp32"), (512, "bf16")]
    known = [cell for cell in cells if cell.bytes is not None and outlier(cell) is not None]
    assert len(known) == len(published_rows(memory.OUTLIERS))
    reasons = {reason for _, reason in memory.left_out_sources()}
    assert reasons
    assert "conditions unknown" not in reasons
    alone, not_compared = published_attention()
    assert all(reason.partition(": ")[2] for reason in not_compared)
    with_softmax = {cell.author for cell in alone if cell.case.attention == "softmax"}
    assert with_softmax == {"TianqGuo", "GAOYUEtianc"}
    op_by_op = {"yyin-dev", "MarkMrLi", "damek", "brandon-snider", "write-up 001"}
    assert {cell.author for cell in alone} == op_by_op | with_softmax


def test_weights_take_the_whole_blocks_that_a_snapshot_shows() -> None:
    """Of xl, published by yyin-dev: 8,192,293,376 bytes are held before a forward pass of 4 x 128 tokens.

    A rest of more than a mebibyte is split off and used again.
    """
    config, mib = SIZES["xl"], 2**20
    workspace_bytes = libraries_on(None, published.TORCH_THEN, {}).workspace_bytes
    held = FLOAT32_BYTES * config.parameters + published.unsplit_weight_bytes(config) + workspace_bytes
    assert held == pytest.approx(8_192_293_376, abs=mib)
    assert whole_block_bytes([mib // 2] * 3) == 3 * mib // 2
    assert whole_block_bytes([9 * mib, 9 * mib]) == 18 * mib, "11 MiB are split off, and 2 of them again"
    assert whole_block_bytes([int(9.75 * mib)] * 2) == 20 * mib, "10.25 MiB are split off, their half is not"
    assert whole_block_bytes([39 * mib]) == 40 * mib


def test_a_small_peak_of_attention_is_mostly_cublas() -> None:
    """Forward passes in a loop hold the former graph."""
    peaks = memory.small_attention_peaks()
    assert max(abs(one.error_with) for one in peaks) <= 0.1
    looped = [one for one in peaks if "Louisym" in one.source]
    assert len(looped) == 8
    assert max(abs(one.error_with) for one in looped) < 0.003
    for gpu in ("H100-80GB", "H20 (8x box)", "A100-80GB-class (inferred)"):
        found = [one for one in peaks if (one.gpu, one.sequence_length) == (gpu, 256)]
        assert len(found) >= 4
        assert min(abs(one.error_without) for one in found) > 0.5
        assert max(abs(one.error_with) for one in found) < 0.03
    errors = [abs(one.error_without) for one in peaks], [abs(one.error_with) for one in peaks]
    assert median(errors[1]) <= 0.02 < median(errors[0])


def test_the_page_says_how_often_ranges_hold_by_class() -> None:
    for name, counts in IN_RANGE.items():
        found = ("{}/{}".format(*counts[bound]) if bound in counts else "-" for bound in IN_RANGE[WHOLE_MODELS])
        assert f"| {name} | {' | '.join(found)} |" in page("predict")


def test_every_published_change_is_compared_or_left_out_with_a_reason() -> None:
    found, left_out = published_changes()
    assert len(found) + left_out.total() == len(published_rows("changes.csv"))
    kinds = Counter(pair.kind for pair in [*found, *changes_of_precision(everything(published_rows(E2E))[0])])
    assert kinds == {kind: of for kind, (_, of) in CHANGES_IN_RANGE.items()}
    for pair in found:
        assert (pair.head.seconds > pair.base.seconds) is (pair.kind == OF_CHECKPOINTS)
        assert pair.peak_bytes[1] < 1.01 * pair.peak_bytes[0]


CHANGES = [("#31031", 1, 512, "sdpa"), ("#33298", 4, 512, "sdpa"), ("ed7371b4", 1, 1024, "block")]
"""Source, batch, context and head of a pair."""


@pytest.mark.parametrize("source, batch, context, head", CHANGES)
def test_a_published_change_lies_in_its_range_and_is_told_by_its_kernels(
    source: str, batch: int, context: int, head: str
) -> None:
    (pair,) = (
        one
        for one in published_changes()[0]
        if source in one.base.source and one.settings(one.kind)[1] == head
        and (one.base.case.batch_size, one.base.case.context_length) == (batch, context)
    )  # fmt: skip
    change = pair.predicted(SHIPPED)
    assert change.kind == pair.kind
    assert pair.is_in(change)
    assert change.high / change.low < 2
    assert pair.predicted_fall() == pytest.approx(1, abs=0.005) or pair.kind != OF_CHECKPOINTS
