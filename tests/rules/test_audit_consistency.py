"""Figures beside each other: parts and wholes, sizes and precisions, compiled and eager, one label with two times."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from perf_tests.audit.consistency import Table
from perf_tests.audit.figures import timings_of
from perf_tests.hardware.limits import SIZES
from tests.support.audited_tables import PEAK, Row, attention_row, audited, model_row, read_table, without, written
from tests.support.synthetic import record, timed


def step(size: str = "large", **ms: str) -> list[Row]:
    """Phases of one configuration with these times, honest where empty."""
    return [model_row(size, phase=phase) | ({"mean_ms": time} if time else {}) for phase, time in ms.items()]


def in_seconds(**seconds: str) -> list[Row]:
    rows = [without(row, "mean_ms", "std_ms") for row in step(**dict.fromkeys(seconds, ""))]
    return [row | {"time_s": time} for row, time in zip(rows, seconds.values(), strict=True)]


def beside(first: Row, *others: Row) -> list[Row]:
    """A row and the same with each of these changes."""
    return [first, *(first | other for other in others)]


def updates(*times: str, optimizers: Sequence[str] = ("", ""), precisions: Sequence[str] = tuple(PEAK)) -> list[Row]:
    labels = zip(times, optimizers, precisions, strict=True)
    return [model_row(precision=p) | {"phase": "optimizer", "mean_ms": t, "optimizer": name} for t, name, p in labels]


def compiled(first: Row, *times: str) -> list[Row]:
    """The eager row, and compiled ones with these times."""
    return beside(first, *({"compiled": "yes", "mean_ms": time} for time in times))


def launched(half: float, *sizes: str) -> list[Row]:
    """Models that take 2 ms a layer whatever their width, and a share of that in half precision."""
    ways = list(product(sizes, (("fp32", 2.0), ("bf16_amp", 2.0 * half))))
    return [model_row(size, 128, name, mean_ms=str(SIZES[size].num_layers * ms)) for size, (name, ms) in ways]


def shifted(offset: float, *sizes: str) -> list[Row]:
    """A series, and another that takes so much longer at each size."""
    rows = list(map(model_row, sizes))
    return rows + [row | {"source": "another", "mean_ms": str(float(row["mean_ms"]) + offset)} for row in rows]


def blocks(*ratios: float) -> list[Row]:
    """A kernel of blocks, whose backward pass takes so many times its forward pass at each length."""
    return [
        attention_row(length, phase, attention="triton", mean_ms=str(length**2 / 1e6 * factor))
        for length, ratio in zip((8192, 16384, 32768), ratios, strict=True)
        for phase, factor in (("forward", 1), ("backward", ratio))
    ]


def attention(batch: str, forward: str, other: str, phase: str = "backward", length: int = 16384) -> list[Row]:
    first = attention_row(16384 if phase == "backward" else 8192, batch=batch, mean_ms=forward)
    return beside(first, {"phase": phase, "seq_len": str(length), "mean_ms": other})


def between(rows: Sequence[Row]) -> set[str]:
    with TemporaryDirectory() as folder:
        timings = read_table(written(Path(folder), rows))[1]
    return {f"{finding.verdict}: {finding.rule}" for finding in Table(timings).findings()}


NARROW = attention_row(8192, d_model="16")
"""Its products stay below the peak in TF32's time too: passes through memory tell."""
XL_TF32 = {**model_row("xl", mean_ms="600"), "precision": "tf32"}
STEPS = [
    XL_TF32 | {"phase": "full_step", "optimizer": optimizer, "compiled": way, "mean_ms": time}
    for optimizer, way, time in (("loop", "no", "3000"), ("fused", "no", "1800"), ("fused", "yes", "1600"))
]
LABEL = model_row(mean_ms="280")
SUM, UPDATE = "inconsistent: sum of parts", "suspicious: optimizer and precision"
BACKWARD, PAGING, TWICE = "suspicious: backward / forward", "suspicious: paging", "suspicious: same cell twice"
SHORT, NO_GRADIENT = "suspicious: attention backward", "inconsistent: attention backward"
EXPONENT, FUSION = "inconsistent: attention exponent", "suspicious: more than fusion"
BOUND, OFFSET, ARMS = "notice: launch-bound", "suspicious: constant offset", "suspicious: arms not comparable"
DOUBLED = str(2 * float(attention_row(8192)["mean_ms"]))
SIZES_3 = ("small", "medium", "large")
SIZES_4 = ("small", "medium", "large", "xl")

CASES: dict[str, tuple[list[Row], set[str]]] = {
    "a step that adds up": (step(forward="", backward="", fwd_bwd=""), set()),
    "a whole larger than its parts": (step(forward="", backward="", fwd_bwd="1200"), {SUM}),
    "a whole smaller than its parts": (step(forward="", backward="", fwd_bwd="700"), {SUM}),
    "a part beyond its whole": (step(forward="", backward="", fwd_bwd="500"), {SUM, "inconsistent: part and whole"}),
    # .105 + .205 are .31, printed .11 and .21, and a whole of .28 may be one of .285
    "parts by what their digits stand for": (in_seconds(forward="0.11", backward="0.21", fwd_bwd="0.28"), set()),
    "and not beyond": (in_seconds(forward="0.11", backward="0.21", fwd_bwd="0.25"), {SUM}),
    "a short backward pass": (step(forward="", backward="300"), {BACKWARD}),
    "a long backward pass": (step(forward="", backward="900"), {BACKWARD}),
    "a backward pass that pages": (step(forward="", backward="1400"), {PAGING}),
    "a step that pages": (step(forward="", fwd_bwd="1500"), {PAGING}),
    "a step of less than four times its forward pass": (step(forward="", fwd_bwd="1050"), set()),
    "AdamW slower in bf16": (updates("50", "70"), {UPDATE}),
    "AdamW within a tenth": (updates("50", "54"), set()),
    "another optimizer": (updates("50", "35", optimizers=("a new idea",) * 2), set()),
    "two kernels of AdamW": (updates("80", "20", optimizers=("loop", "fused"), precisions=("fp32",) * 2), set()),
    "one that is not named": (updates("80", "20", precisions=("fp32",) * 2), {TWICE}),
    "two of AdamW in two precisions": (updates("80", "20", optimizers=("loop", "fused")), set()),
    "time linear in the sequence": ([attention_row(8192), attention_row(16384, mean_ms=DOUBLED)], {EXPONENT}),
    # One sequence of 8192 fills a card as little as eight of 2896: an exponent of 1.7 is honest there.
    "growth of large launches": (attention("8", "40", "130", "forward"), {EXPONENT}),
    "growth of small launches": (attention("1", "40", "130", "forward"), set()),
    "a backward pass of less than its forward": (attention("8", "100", "60"), {NO_GRADIENT}),
    "beside a mask of one sequence": (attention("1", "100", "60"), {SHORT}),
    "a backward pass as long as its forward pass": (attention("8", "100", "95"), {SHORT}),
    "as long as that and a mask": (attention("1", "100", "95"), set()),
    "a ratio over all lengths": (blocks(9, 9, 9), set()),
    "a spike at one length": (blocks(3, 40, 3), {SHORT}),
    "a compiler that changed nothing": (
        [model_row(compiled=way, phase=phase) for way in ("no", "yes") for phase in ("forward", "backward")],
        {"suspicious: compiled did nothing"},
    ),
    "one phase that it does not change": (compiled(model_row(), model_row()["mean_ms"]), set()),
    "compiled as fusion allows": (compiled(NARROW, "7"), set()),
    "more than fusion saves": (compiled(NARROW, "3.5"), {FUSION}),
    "more than it saves of a slow pass": (compiled(NARROW | {"mean_ms": "90"}, "7"), {FUSION}),
    "a model compiled as fusion allows": (compiled(XL_TF32, "500"), set()),
    "a model compiled into another precision": (compiled(XL_TF32, "150"), {FUSION}),
    "launches that compiling saves": (compiled(model_row("small", 128, mean_ms="40"), "9"), set()),
    "a compiled step of one optimizer": (STEPS, set()),
    "of optimizers without names": ([without(row, "optimizer") for row in STEPS], {FUSION, TWICE}),
    "models bound by launches": (launched(1.0, "small", "medium", "large"), {BOUND}),
    "one arm faster": (launched(0.65, "small", "medium", "large"), {BOUND, ARMS}),
    "a backward pass of them": (
        [row | {"phase": phase} for phase in ("forward", "backward") for row in launched(1, *SIZES_3)], {BOUND},
    ),
    "two widths alone": (launched(0.65, "small", "medium"), set()),
    "a constant on top of every size": (shifted(70, *SIZES_4), {OFFSET}),
    "little on top of every size": (shifted(5, *SIZES_4), set()),
    "a constant on three sizes": (shifted(70, "small", "large", "xl"), set()),
    "one label with two times": (beside(LABEL, {"mean_ms": "450"}), {TWICE}),
    "one label within a fourth": (beside(LABEL, {"mean_ms": "340"}), set()),
}  # fmt: skip


def test_what_figures_say_of_each_other() -> None:
    found = {what: between(rows) for what, (rows, _) in CASES.items()}
    assert found == {what: expected for what, (_, expected) in CASES.items()}


MISSING, REPEATED_IN = "for the device; the missing time is in line 3", "the same labels stand at 1500 ms in line 4"
TOO_FAST: list[tuple[str, tuple[str, str], Row, str]] = [
    ("large", ("190", "700"), {}, ""),
    ("2.7B", ("500", ""), {}, MISSING),
    ("2.7B", ("500", ""), {"mean_ms": "1500"}, REPEATED_IN),
    ("2.7B", ("500", ""), {"mean_ms": "1500", "std_ms": "700"}, REPEATED_IN),
    ("2.7B", ("500", ""), {"mean_ms": "501"}, MISSING),
]


def test_what_is_too_fast_is_told_by_its_repeats_first_and_else_by_the_time_that_the_step_has_more() -> None:
    for size, (forward, whole), repeat, said in TOO_FAST:
        rows = step(size, forward=forward, fwd_bwd=whole)
        finding = audited(*rows, *([rows[0] | repeat] if repeat else [])).findings_of("impossible")[0]
        assert [words for words in (MISSING, REPEATED_IN) if words in finding.likely_cause] == [said] * bool(said)


def test_a_backward_figure_with_the_forward_pass_in_it_is_told_by_its_label() -> None:
    for ms, rule, is_named in (
        ({"backward": "900"}, "backward / forward", True), ({"backward": "300"}, "backward / forward", False),
        ({"backward": "840", "fwd_bwd": "840"}, "sum of parts", True),
        ({"backward": "500", "fwd_bwd": "1200"}, "sum of parts", False),
        ({"backward": "", "fwd_bwd": "700"}, "sum of parts", False),
    ):  # fmt: skip
        (finding,) = (one for one in audited(*step(forward="", **ms)).findings if one.rule == rule)
        assert ("the label leaves out the forward pass" in finding.likely_cause) is is_named, ms


def test_a_compiler_that_saved_memory_did_something() -> None:
    for peak, is_found in ((1000, True), (995, True), (700, False), ("much", True)):
        ways = product((("eager", 1000), ("compiled", peak)), ("forward", "backward"))
        rows = [timed(f"{p}-{way}", phase=p, execution=way, peak_allocated_bytes=amount) for (way, amount), p in ways]
        found = Table(timings_of(record(rows))).findings()
        assert [finding.rule for finding in found] == ["compiled did nothing"] * is_found


REPEATED: dict[str, tuple[list[Row], set[str], str]] = {
    "the faster is beyond its label": (beside(LABEL, {"mean_ms": "90"}), {"line 3"}, "another precision"),
    "the slower scatters": (beside(LABEL, {"mean_ms": "400", "std_ms": "60"}), {"line 3"}, "busy device"),
    "both scatter, the slower not three times as much": (
        beside(LABEL | {"std_ms": "20"}, {"mean_ms": "400", "std_ms": "60"}), {"line 2", "line 3"}, "not tell"
    ),
    "the slower was not warmed up": (beside(LABEL, {"mean_ms": "400", "warmup": "0"}), {"line 3"}, "no or one warm-up"),
    "the slower had one round": (beside(LABEL, {"mean_ms": "400", "warmup": "1"}), {"line 3"}, "no or one warm-up"),
    "the slower is one round": (beside(LABEL, {"mean_ms": "400", "n_measured": "1"}), {"line 3"}, "profiler"),
    "one of three": (beside(LABEL, {"mean_ms": "400"}, {"mean_ms": "282"}), {"line 3"}, "another set-up"),
    "nothing tells": (beside(LABEL, {"mean_ms": "400"}), {"line 2", "line 3"}, "labels do not tell"),
    "another label of the file tells": (
        [model_row(mean_ms="290"), model_row(mean_ms="400"), model_row("xl", mean_ms="200"), model_row("xl")],
        {"line 2"}, "as for 1 other labels of this file",
    ),
}  # fmt: skip


def test_a_label_with_two_times_names_the_cause_that_its_file_suggests() -> None:
    for how, (rows, accused, cause) in REPEATED.items():
        first = next(f for f in audited(*rows).findings if f.rule == "same cell twice" and "large" in f.cell)
        assert (set(first.places), cause in first.likely_cause) == (accused, True), how
