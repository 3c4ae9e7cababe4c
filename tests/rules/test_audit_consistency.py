"""Figures beside each other: parts and wholes, sizes and precisions, compiled and eager, one label with two times."""

import pytest

from perf_tests.audit.figures import IMPOSSIBLE, INCONSISTENT, NOTICE, SUSPICIOUS
from perf_tests.hardware.limits import SIZES
from tests.support.audited_tables import (
    Row,
    attention_row,
    audited,
    audited_record,
    model_row,
    model_table,
    rules,
    without,
)
from tests.support.synthetic import record, timed


def planted(**changes: str) -> list[Row]:
    """The honest table with times of phases of large, context 512, fp32 replaced."""
    table = model_table()
    for row in table:
        if (row["size"], row["context"], row["precision"]) == ("large", "512", "fp32") and row["phase"] in changes:
            row["mean_ms"] = changes[row["phase"]]
    return table


def optimizer_rows(*times: str, **changes: str) -> list[Row]:
    return [
        model_row(precision=label) | {"phase": "optimizer", "mean_ms": time} | changes
        for label, time in zip(("fp32", "bf16_amp"), times, strict=True)
    ]


def both_ways(first: Row, *ms: str) -> list[Row]:
    """The eager row, and compiled ones with these times."""
    return [first, *({**first, "compiled": "yes", "mean_ms": time} for time in ms)]


DOUBLED = str(2 * float(attention_row(8192)["mean_ms"]))
NO_GRADIENT = [attention_row(phase="forward"), attention_row(phase="backward", mean_ms="6")]
SAME_TWICE = [model_row(compiled=way, phase=phase) for way in ("no", "yes") for phase in ("forward", "backward")]
XL_TF32 = {**model_row("xl", mean_ms="600"), "precision": "tf32"}
NARROW = attention_row(8192, d_model="16")
"""Its products stay below the peak in TF32's time too: passes through memory tell."""

FOUND: dict[str, tuple[list[Row], tuple[str, str]]] = {
    "a whole larger than its parts": (planted(fwd_bwd="1200"), (INCONSISTENT, "sum of parts")),
    "a whole smaller than its parts": (planted(fwd_bwd="700"), (INCONSISTENT, "sum of parts")),
    "a part larger than its whole": (planted(fwd_bwd="500"), (INCONSISTENT, "part and whole")),
    "a short backward pass": (planted(backward="300", fwd_bwd="580"), (SUSPICIOUS, "backward / forward")),
    "a long backward pass": (planted(backward="900", fwd_bwd="1180"), (SUSPICIOUS, "backward / forward")),
    "a backward pass that pages": (planted(backward="1400", fwd_bwd="1680"), (SUSPICIOUS, "paging")),
    "a step that pages": (
        [model_row(), model_row(phase="fwd_bwd", mean_ms="1500")], (SUSPICIOUS, "paging"),
    ),
    "one label with two times": ([model_row(), model_row(mean_ms="450")], (SUSPICIOUS, "same cell twice")),
    "a compiler that changed nothing": (SAME_TWICE, (SUSPICIOUS, "compiled did nothing")),
    "AdamW slower in bf16": (optimizer_rows("50", "70"), (SUSPICIOUS, "optimizer and precision")),
    "no gradient through attention": (NO_GRADIENT, (INCONSISTENT, "attention backward")),
    "time linear in the sequence": (
        [attention_row(8192), attention_row(16384, mean_ms=DOUBLED)], (INCONSISTENT, "attention exponent"),
    ),
    "more than fusion saves": (both_ways(NARROW, "3.5"), (SUSPICIOUS, "more than fusion")),
    "more than fusion saves of a slow pass": (both_ways(NARROW | {"mean_ms": "90"}, "7"),
                                              (SUSPICIOUS, "more than fusion")),
    "a model compiled into another precision": (both_ways(XL_TF32, "150"), (SUSPICIOUS, "more than fusion")),
}  # fmt: skip


@pytest.mark.parametrize("mistake", FOUND)
def test_what_figures_say_of_each_other_is_found(mistake: str) -> None:
    rows, found = FOUND[mistake]
    assert found in rules(*rows)


QUIET: dict[str, list[Row]] = {
    "compiled as fusion allows": both_ways(NARROW, "7"),
    "a model compiled as fusion allows": both_ways(XL_TF32, "500"),
    "launches that compiling saves": both_ways(model_row("small", 128, mean_ms="40"), "9"),
    "one phase that compiling does not change": both_ways(model_row(), model_row()["mean_ms"]),
    "two kernels of AdamW": [
        {**model_row(), "optimizer": name, "phase": "optimizer", "mean_ms": time}
        for name, time in (("loop", "80"), ("fused", "20"))
    ],
    "two kernels of AdamW in two precisions": [
        {**row, "optimizer": name} for row, name in zip(optimizer_rows("80", "20"), ("loop", "fused"), strict=True)
    ],
    "another optimizer": optimizer_rows("50", "35", optimizer="a new idea"),
    "AdamW within a tenth": optimizer_rows("50", "54"),
    "a step of less than four times its forward pass": [model_row(), model_row(phase="fwd_bwd", mean_ms="1050")],
    "one label within a fourth": [model_row(), model_row(mean_ms="340")],
}


@pytest.mark.parametrize("what", QUIET)
def test_honest_figures_beside_each_other_are_not(what: str) -> None:
    assert rules(*QUIET[what]) == set()


@pytest.mark.parametrize("what", ["two kernels of AdamW", "another optimizer"])
def test_optimizers_that_are_not_named_are_one(what: str) -> None:
    assert rules(*(without(row, "optimizer") for row in QUIET[what])) != set()


@pytest.mark.parametrize(("whole", "is_found"), [("0.28", False), ("0.25", True)])
def test_parts_are_held_to_their_whole_by_what_their_digits_may_stand_for(whole: str, is_found: bool) -> None:
    """.105 + .205 are .31, printed .11 and .21, and a whole of .28 may be one of .285."""
    seconds = {"forward": "0.11", "backward": "0.21", "fwd_bwd": whole}
    rows = [without(model_row(phase=phase), "mean_ms", "std_ms") | {"time_s": time} for phase, time in seconds.items()]
    assert ((INCONSISTENT, "sum of parts") in rules(*rows)) is is_found


def test_a_forward_pass_that_was_not_waited_for_is_told_by_the_time_that_the_step_has_more() -> None:
    step = audited(model_row(mean_ms="190"), model_row(phase="fwd_bwd", mean_ms="700"))
    (finding,) = step.findings_of(IMPOSSIBLE)
    assert "line 3" not in finding.likely_cause
    alone = audited(model_row("2.7B", mean_ms="500"), model_row("2.7B", phase="fwd_bwd"))
    (finding,) = alone.findings_of(IMPOSSIBLE)
    assert "without waiting for the device; the missing time is in line 3" in finding.likely_cause


@pytest.mark.parametrize("batch, is_found", [("8", True), ("1", False)])
def test_growth_is_judged_by_the_work_of_a_launch_and_not_by_the_length(batch: str, is_found: bool) -> None:
    """One sequence of 8192 fills a card as little as eight of 2896: an exponent of 1.7 is honest there."""
    rows = [attention_row(8192, batch=batch, mean_ms="40"), attention_row(16384, batch=batch, mean_ms="130")]
    assert ((INCONSISTENT, "attention exponent") in rules(*rows)) == is_found


@pytest.mark.parametrize("batch, verdict", [("8", INCONSISTENT), ("1", SUSPICIOUS)])
def test_a_mask_made_in_the_forward_pass_weighs_more_beside_one_sequence(batch: str, verdict: str) -> None:
    forward = attention_row(16384, batch=batch, mean_ms="100")
    backward = {**forward, "phase": "backward", "mean_ms": "60"}
    assert (verdict, "attention backward") in rules(forward, backward)
    slower = {(SUSPICIOUS, "attention backward")} if batch == "8" else set()
    assert rules(forward, backward | {"mean_ms": "95"}) == slower


def test_a_ratio_that_lasts_over_all_lengths_belongs_to_the_kernel() -> None:
    def blocks(*ratios: float) -> list[Row]:
        return [
            attention_row(length, attention="triton", mean_ms=str(length**2 / 1e6 * (ratio if phase else 1)))
            | {"phase": phase or "forward"}
            for length, ratio in zip((8192, 16384, 32768), ratios, strict=True)
            for phase in ("", "backward")
        ]

    assert rules(*blocks(9, 9, 9)) == set()
    assert rules(*blocks(3, 40, 3)) == {(SUSPICIOUS, "attention backward")}


def test_a_compiled_step_is_held_to_the_eager_one_of_its_optimizer() -> None:
    step = model_row("xl") | {"precision": "tf32", "phase": "full_step"}
    rows = [
        {**step, "optimizer": optimizer, "compiled": compiled, "mean_ms": time}
        for optimizer, compiled, time in (("loop", "no", "3000"), ("fused", "no", "1800"), ("fused", "yes", "1600"))
    ]
    assert rules(*rows) == set()
    assert (SUSPICIOUS, "more than fusion") in rules(*({**row, "optimizer": ""} for row in rows))


@pytest.mark.parametrize("compiled_peak, is_found", [(1000, True), (995, True), (700, False)])
def test_a_compiler_that_saved_memory_did_something(compiled_peak: int, is_found: bool) -> None:
    rows = [
        timed(f"test_{phase}[{execution}]", phase=phase, execution=execution, peak_allocated_bytes=peak)
        for execution, peak in (("eager", 1000), ("compiled", compiled_peak))
        for phase in ("forward", "backward")
    ]
    found = {(one.verdict, one.rule) for one in audited_record(record(rows)).findings}
    assert ((SUSPICIOUS, "compiled did nothing") in found) == is_found


def launched(half: float, sizes: tuple[str, ...] = ("small", "medium", "large")) -> list[Row]:
    """Models that take 2 ms a layer whatever their width, and a share of that in half precision."""
    return [
        model_row(size, 128, precision, mean_ms=str(2.0 * SIZES[size].num_layers * share))
        for size in sizes
        for precision, share in (("fp32", 1.0), ("bf16_amp", half))
    ]


def test_models_bound_by_launches_are_noticed_and_two_such_arms_are_not_comparable() -> None:
    """Autocast cannot make launching faster: an arm that is must have run under other conditions."""
    assert rules(*launched(1.0)) == {(NOTICE, "launch-bound")}
    assert rules(*launched(0.65)) == {(NOTICE, "launch-bound"), (SUSPICIOUS, "arms not comparable")}
    assert rules(*launched(0.65, ("small", "medium"))) == set()


def test_a_constant_on_top_of_every_size_is_found() -> None:
    def beside(offset: float, sizes: tuple[str, ...] = ("small", "medium", "large", "xl")) -> set[tuple[str, str]]:
        rows = [model_row(size) for size in sizes]
        shifted = [{**row, "source": "another", "mean_ms": str(float(row["mean_ms"]) + offset)} for row in rows]
        return rules(*rows, *shifted)

    assert (SUSPICIOUS, "constant offset") in beside(70)
    assert (SUSPICIOUS, "constant offset") not in beside(5) | beside(70, ("small", "large", "xl"))


REPEATED: dict[str, tuple[list[Row], set[str], str]] = {
    "the faster is beyond its label": (
        [model_row(mean_ms="90"), model_row(mean_ms="280")], {"line 2"}, "another precision"
    ),
    "the slower scatters": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", std_ms="60")], {"line 3"}, "busy device"
    ),
    "both scatter, the slower not three times as much": (
        [model_row(mean_ms="280", std_ms="20"), model_row(mean_ms="400", std_ms="60")], {"line 2", "line 3"}, "not tell"
    ),
    "the slower was not warmed up": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", warmup="0")], {"line 3"}, "no or one warm-up round"
    ),
    "the slower had one round of warm-up": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", warmup="1")], {"line 3"}, "no or one warm-up round"
    ),
    "the slower is one round": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", n_measured="1")], {"line 3"}, "profiler"
    ),
    "one of three": (
        [model_row(mean_ms="280"), model_row(mean_ms="400"), model_row(mean_ms="282")], {"line 3"}, "another set-up"
    ),
    "nothing tells": (
        [model_row(mean_ms="280"), model_row(mean_ms="400")], {"line 2", "line 3"}, "labels do not tell"
    ),
    "another label of the file tells": (
        [model_row(mean_ms="290"), model_row(mean_ms="400"), model_row("xl", mean_ms="200"), model_row("xl")],
        {"line 2"},
        "as for 1 other labels of this file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", REPEATED)
def test_a_label_with_two_times_names_the_cause_that_its_file_suggests(how: str) -> None:
    rows, accused, cause = REPEATED[how]
    first = next(f for f in audited(*rows).findings if f.rule == "same cell twice" and "large" in f.cell)
    assert set(first.places) == accused
    assert cause in first.likely_cause
