"""The audit of figures beside each other: parts and wholes, sizes and precisions, a spread beside its mean."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import INCONSISTENT, NOTICE, SUSPICIOUS
from perf_tests.hardware.limits import SIZES
from tests.support.audited_tables import audited, rules
from tests.support.foreign_tables import Row, attention_row, model_row, model_table


def planted(**changes: str) -> list[Row]:
    """The honest table with the forward and backward time of large, context 512, fp32 replaced."""
    table = model_table()
    for row in table:
        if (row["size"], row["context"], row["precision"]) == ("large", "512", "fp32") and row["phase"] in changes:
            row["mean_ms"] = changes[row["phase"]]
    return table


@pytest.mark.parametrize(
    "rows, verdict, rule",
    [
        (planted(fwd_bwd="1200"), INCONSISTENT, "sum of parts"),
        (planted(fwd_bwd="500"), INCONSISTENT, "part and whole"),
        (planted(backward="300", fwd_bwd="580"), SUSPICIOUS, "backward / forward"),
        (planted(backward="1400", fwd_bwd="1680"), SUSPICIOUS, "paging"),
        ([model_row(std_ms="270")], SUSPICIOUS, "outlier"),
        ([model_row(mean_ms="223")], SUSPICIOUS, "near peak"),
        ([model_row(), model_row(mean_ms="450")], SUSPICIOUS, "same cell twice"),
        (
            [model_row(compiled=way, phase=phase) for way in ("no", "yes") for phase in ("forward", "backward")],
            SUSPICIOUS,
            "compiled did nothing",
        ),
        (
            [model_row(phase="forward", precision=label) | {"phase": "optimizer", "mean_ms": time}
             for label, time in (("fp32", "50"), ("bf16_amp", "70"))],
            SUSPICIOUS,
            "optimizer and precision",
        ),
        (
            [attention_row(phase="forward"), attention_row(phase="backward", mean_ms="6")],
            INCONSISTENT,
            "attention backward",
        ),
        (
            [attention_row(8192), attention_row(16384, mean_ms=str(2 * float(attention_row(8192)["mean_ms"])))],
            INCONSISTENT,
            "attention exponent",
        ),
    ],
)  # fmt: skip
def test_what_figures_say_of_each_other_is_found(rows: list[Row], verdict: str, rule: str, tmp_path: Path) -> None:
    assert (verdict, rule) in rules(audited(tmp_path, rows))


@pytest.mark.parametrize(("whole", "is_found"), [("0.28", False), ("0.25", True)])
def test_parts_are_held_to_their_whole_by_what_their_digits_may_stand_for(
    whole: str, is_found: bool, tmp_path: Path
) -> None:
    """.105 + .205 are .31, printed .11 and .21, and a whole of .28 may be one of .285."""
    seconds = {"forward": "0.11", "backward": "0.21", "fwd_bwd": whole}
    rows = [{**model_row(phase=phase), "time_s": time} for phase, time in seconds.items()]
    for row in rows:
        del row["mean_ms"], row["std_ms"]
    assert ((INCONSISTENT, "sum of parts") in rules(audited(tmp_path, rows))) is is_found


OF_TWO_OPTIMIZERS = [
    {**model_row(), "optimizer": name, "phase": "optimizer", "mean_ms": time}
    for name, time in (("loop", "80"), ("fused", "20"))
]
OF_SGD = [
    {**model_row(precision=label), "optimizer": "a new idea", "phase": "optimizer", "mean_ms": time}
    for label, time in (("fp32", "50"), ("bf16_amp", "35"))
]


@pytest.mark.parametrize("rows", [OF_TWO_OPTIMIZERS, OF_SGD], ids=["two kernels of AdamW", "another optimizer"])
def test_optimizers_are_set_ups_of_their_own(rows: list[Row], tmp_path: Path) -> None:
    assert audited(tmp_path, rows).findings == []
    unsaid = audited(tmp_path, [{name: text for name, text in row.items() if name != "optimizer"} for row in rows])
    assert unsaid.findings != []


def test_two_arms_bound_by_launches_are_not_comparable(tmp_path: Path) -> None:
    """Autocast cannot make launching faster: an arm that is must have run under other conditions."""
    table = [
        model_row(size, 128, precision, mean_ms=str(2.0 * SIZES[size].num_layers))
        for size in ("small", "medium", "large")
        for precision in ("fp32", "bf16_amp")
    ]
    assert (SUSPICIOUS, "arms not comparable") not in rules(audited(tmp_path, table))
    for row in table:
        if row["precision"] == "bf16_amp":
            row["mean_ms"] = str(0.65 * float(row["mean_ms"]))
    assert (SUSPICIOUS, "arms not comparable") in rules(audited(tmp_path, table))


def test_a_constant_on_top_of_every_size_is_found(tmp_path: Path) -> None:
    rows = [model_row(size) for size in ("small", "medium", "large", "xl")]
    shifted = [{**row, "source": "another", "mean_ms": str(float(row["mean_ms"]) + 70)} for row in rows]
    assert (SUSPICIOUS, "constant offset") in rules(audited(tmp_path, rows + shifted))


@pytest.mark.parametrize(
    "changes, rule",
    [
        ({"std_ms": "270"}, (SUSPICIOUS, "outlier")),
        ({"std_ms": "270", "warmup": "0"}, (NOTICE, "no warm-up")),
        ({"std_ms": "110", "n_measured": "100"}, (NOTICE, "scatter")),
    ],
)
def test_a_spread_is_a_mistake_where_it_misleads_and_nothing_announces_it(
    changes: Row, rule: tuple[str, str], tmp_path: Path
) -> None:
    assert rules(audited(tmp_path, [{**model_row(), **changes}])) == {rule}
