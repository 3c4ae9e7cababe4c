"""The tables of a write-up: every case once, in its unit, with its conditions below."""

from collections.abc import Callable, Sequence

import pytest

from perf_tests.records.format import Table, latex, markdown, typst
from perf_tests.records.published import flat_figures
from perf_tests.records.record import OUTCOMES, Json
from perf_tests.report.tables import Fit, attention_fits, tables_of
from tests.support.synthetic import (
    attention_identity,
    record,
    remembered,
    timed,
    timed_attention,
    traced,
    untimed,
    warmed,
    with_passes,
)


def case(phase: str = "forward", seconds: Sequence[float] = (0.010, 0.012), **changes: object) -> Json:
    """A timed row whose id tells it from every other."""
    changes = {"size": "small", "context_length": 128, **changes}
    return timed(f"test_{phase}[{'-'.join(map(str, changes.values()))}]", seconds, phase=phase, **changes)


def lost(phase: str = "forward", outcome: str = "out_of_memory", **changes: object) -> Json:
    return untimed(f"test_{phase}[lost]", outcome, "of this", phase=phase, size="small", context_length=128, **changes)


def table(data: Json, name: str) -> Table:
    (found,) = [table for table in tables_of(data, "machine/0001_run") if table.name == name]
    return found


def shown(found: Table) -> list[list[str]]:
    return [list(found.header), *map(list, found.rows)]


FAST, SLOW, HUNDRED = [0.010] * 3, [0.020] * 3, [place / 1000 for place in range(1, 101)]
FORWARD_MS = ["Size", "Context", "forward (ms)"]
PAIR = [case(seconds=SLOW), case(seconds=FAST, precision="bf16")]
SIDE_BY_SIDE = [timed_attention((0.010, 0.012), phase=f"attention_{way}", attention=name)
                for name in ("naive", "sdpa") for way in ("forward", "backward")]  # fmt: skip
LOST_ALONE = {"id": "l", "outcome": "out_of_memory", "reason": "6 GiB", **attention_identity(sequence_length=512)}
PEAKS = [case(peak_allocated_bytes=2**26, predicted_peak_bytes=2**25), case("full_step", peak_allocated_bytes=2**36)]

LAID_OUT: dict[str, tuple[str, list[Json], list[Json], list[list[str]]]] = {
    "sizes by their parameters, contexts by value, phases in the order of a step": (
        "timing",
        [case(phase, size=size, context_length=context, d_model=width) for size, width in (("large", 2), ("small", 1))
         for context in (1024, 128) for phase in ("backward", "forward")],
        [],
        [["Size", "Context", "forward (ms)", "backward (ms)"],
         *([size, context, *["11.0 ± 1.4"] * 2] for size in ("small", "large") for context in ("128", "1024"))],
    ),
    "a single round without a deviation": (
        "timing", [case(seconds=(0.010,))], [], [FORWARD_MS, ["small", "128", "10.00"]],
    ),
    "both of two shapes of one name": (
        "timing", [case(), case(seconds=(0.5,), d_model=2560)], [],
        [FORWARD_MS, ["small", "128", "11.0 ± 1.4 / 500.0"]],
    ),
    "a dash for what was not selected": (
        "timing", [case("backward"), case(context_length=256)], [],
        [["Size", "Context", "forward (ms)", "backward (ms)"], ["small", "128", "-", "11.0 ± 1.4"],
         ["small", "256", "11.0 ± 1.4", "-"]],
    ),
    "each precision beside fp32 with its ratio": (
        "precision", PAIR, [],
        [["Size", "Context", "Phase", "fp32 (ms)", "bf16 (ms)", "fp32 / bf16"],
         ["small", "128", "forward", "20.00", "10.00", "2.00"]],
    ),
    "a ratio in the digits that the spreads of both allow": (
        "precision", [case(), case(seconds=(0.004, 0.006), precision="bf16")], [],
        [["Size", "Context", "Phase", "fp32 (ms)", "bf16 (ms)", "fp32 / bf16"],
         ["small", "128", "forward", "11.0 ± 1.4", "5.0 ± 1.4", "2.20 ± 0.68"]],
    ),
    "no ratio with a case that ran out of memory": (
        "precision", [case(precision="bf16")], [lost()],
        [["Size", "Context", "Phase", "fp32 (ms)", "bf16 (ms)", "fp32 / bf16"],
         ["small", "128", "forward", "OOM", "11.0 ± 1.4", "-"]],
    ),
    "peaks in MiB with the prediction beside": (
        "memory", PEAKS, [lost("backward")],
        [["Size", "Context", "forward (MiB)", "forward predicted (MiB)", "backward (MiB)", "full_step (MiB)"],
         ["small", "128", "64.00", "32.00", "OOM", "65536"]],
    ),
    "large peaks in GiB": (
        "memory", PEAKS[1:], [], [["Size", "Context", "full_step (GiB)"], ["small", "128", "64.00"]],
    ),
    "implementations of attention side by side": (
        "attention", SIDE_BY_SIDE, [LOST_ALONE],
        [["d", "Sequence", *(f"{name} {way} (ms)" for way in ("forward", "backward") for name in ("naive", "sdpa"))],
         ["16", "256", *["11.0 ± 1.4"] * 4], ["16", "512", "OOM", "-", "-", "-"]],
    ),
    "percentiles of at least a hundred rounds": (
        "percentiles", [timed_attention(HUNDRED), timed_attention(HUNDRED[1:], sequence_length=512)], [],
        [["Size", "Context", "Phase", "Precision", "Implementation", "p50 (ms)", "p95 (ms)", "p99 (ms)"],
         ["d 16", "256", "forward", "fp32", "naive", "50.50", "95.05", "99.01"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LAID_OUT)
def test_a_table_lays_out(what: str) -> None:
    name, rows, outcomes, expected = LAID_OUT[what]
    assert shown(table(record(rows, outcomes), name)) == expected


TINY = ["tiny", "8", "forward", "fp32", "naive"]
FOUND: dict[str, tuple[Json, list[str], list[str]]] = {
    "kernels": (traced(), ["Kernel", "calls", "total (ms)", "mean (us)", "of kernel time (%)"],
                ["gemm<float>", "10", "7.500", "750 ± 75", "75.0"]),
    "kernel_shares": (traced(), ["launches", "kernels (ms)", "device busy (%)", "products of kernel time (%)",
                                 "softmax / products, forward", "softmax / products, backward"],
                      ["60", "10.00", "80.0", "75.0", "0.5000", "0.4000"]),
    "attention_parts": (traced(), ["Direction", "Part", "launches", "device (us)", "host (us)", "MFLOP", "MB",
                                   "bound by"],
                        ["forward", "scores", "2", "2.000", "8.000", "1.000", "0.5000", "launch"]),
    "memory_pass": (remembered(), ["peak (MiB)", "predicted (MiB)", "measured / predicted", "reserved (MiB)",
                                   "after init (MiB)", "before backward (MiB)"],
                    ["1024", "1025", "0.99902", "-", "256.0", "512.0"]),
    "memory_parts": (remembered(), ["Part", "peak (MiB)", "predicted (MiB)", "measured / predicted", "reserved (MiB)"],
                     ["forward", "512.0", "512.0", "1.00000", "-"]),
    "memory_categories": (remembered(peak_bytes=10 * 2**20),
                          ["Peak", "parameters (MiB)", "gradients (MiB)", "optimizer state (MiB)", "activations (MiB)",
                           "temporaries (MiB)"], ["measured", "3.000", "1.000", "2.000", "3.000", "1.000"]),
    "saved": (remembered(), ["Part", "places", "of one (MiB)", "together (MiB)", "of all saved (%)"],
              ["softmax", "2", "3.000", "6.000", "75.0"]),
    "largest_blocks": (remembered(), ["Line", "Category", "block (MiB)"],
                       ["model/attention.py:48", "activations", "4.000"]),
    "warmup": (warmed(), [*(f"after {name} (ms)" for name in (0, 1, 2, 5, 10, "5 without the timed phase")),
                          "first round (ms)", "steady from", "recommended"],
               ["14.09 ± 0.20 (outlier: round 1)", "10.09 ± 0.20", "10.10 ± 0.20", "10.10 ± 0.20", "10.09 ± 0.20",
                "10.10 ± 0.20", "50.00", "2", "1"]),
    "first_rounds": (warmed(), ["module loading (ms)", "allocator growth (ms)"], ["30.00", "10.00"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_a_pass_found_is_a_table_of_its_cases(name: str) -> None:
    row, columns, first = FOUND[name]
    found = table(with_passes(record([case()]), row), name)
    assert shown(found)[0][5:] == columns
    assert shown(found)[1] == [*TINY, *first]
    assert [text for text in shown(found)[0][: found.label_columns] if text in columns] == columns[
        : found.label_columns - 5
    ]


def test_notes_say_under_what_conditions_and_why_a_figure_is_missing() -> None:
    unpredicted, short = remembered(), warmed()
    unpredicted["values"] |= {"predicted_peak_bytes": None, "prediction_reason": "it is fused."}
    short["values"] |= {"flags": ["short_warmup"], "recommendation": "Set --warmup-rounds 7."}
    data = with_passes(record([case(warmup_rounds=5, warmup_rounds_run=312)]), unpredicted, short)
    for name, facts in {
        "timing": ("Some CPU, 8 cores", "2.13.0+cpu", "4 threads", "batch 4", "2 measured rounds",
                   "at least 5 warm-up rounds", "machine/0001_run", "0123456789ab"),
        "memory_pass": ("no prediction: it is fused.",),
        "warmup": ("for this machine: --warmup-rounds 1, which tiny 8 forward fp32 naive needs",
                   "tiny 8 forward fp32 naive: Set --warmup-rounds 7."),
    }.items():  # fmt: skip
        assert [fact for fact in facts if fact not in "; ".join(table(data, name).notes)] == []


def test_the_flat_figures_of_others_readers_agree_with_the_tables() -> None:
    rows = [case(warmup_rounds=5, warmup_rounds_run=312), timed_attention(HUNDRED)]
    flat = flat_figures(record(rows), "run")
    assert flat["timing"][0]["warmup"] == 312
    alone = [flat["attention"][0][name] for name in ("median_ms", "p95_ms", "p99_ms")]
    assert alone == pytest.approx([50.5, 95.05, 99.01])


def test_what_all_cases_share_is_said_once_in_the_title() -> None:
    assert table(record([case()]), "timing").title.endswith(": naive, fp32, batch 4")
    both = table(record([case(), case(precision="bf16")]), "timing")
    assert (both.header[2], "fp32" in both.title) == ("Precision", False)


@pytest.mark.parametrize("changes", [{"attention": "sdpa"}, {"execution": "compiled"}, {"checkpoint": "block"},
                                     {"model": "theirs:build"}, {"batch_size": 8}])  # fmt: skip
def test_cases_that_differ_in_any_axis_are_different_rows(changes: Json) -> None:
    found = table(record([case(), case(seconds=(0.02, 0.03), **changes)]), "timing")
    assert len(set(found.rows)) == 2


@pytest.mark.parametrize("others", [[], [case()]], ids=["alone", "beside a timing"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_case_without_a_timing_is_a_cell_and_a_reason(outcome: str, others: list[Json]) -> None:
    found = table(record(others, [lost("backward", outcome)]), "timing")
    assert found.rows[0][-1] == ("OOM" if outcome == "out_of_memory" else OUTCOMES[outcome])
    assert any(note.endswith(f"{OUTCOMES[outcome]}: of this") for note in found.notes)


@pytest.mark.parametrize("peak", [None, float("nan"), float("inf"), "many", True, 10**400, [1]])
def test_without_fp32_a_peak_and_a_sound_pass_there_are_timings_alone_of_any_identity(peak: object) -> None:
    row = case(precision="bf16", size=["a"], context_length=None, d_model="wide")
    row["extra_info"]["peak_allocated_bytes"] = peak
    damaged: list[object] = [None, {}, [None], [{"pass": "kernels"}], [{**traced(), "pass": "other"}]]
    for passes in damaged:
        data = {**record(), "benchmarks": [row], "passes": passes}
        assert [table.name for table in tables_of(data, "run")] == ["timing"]


@pytest.mark.parametrize("write", [markdown, latex, typst])
def test_rows_have_one_order_in_each_format_and_name_their_unit(write: Callable[[list[Table]], str]) -> None:
    rows = [case(), case("backward"), case(precision="bf16")]
    forwards, backwards = record(rows, written="2030"), record(rows[::-1], written="2030")
    assert "(ms)" in write(tables_of(forwards, "run"))
    assert write(tables_of(forwards, "run")) == write(tables_of(backwards, "run"))


# How the memory of attention alone grows.


def held(length: int, width: int, squares: int, tensors: float, mask: bool = False, way: str = "forward") -> Json:
    """A case that holds so many squares and tensors of float32 at every moment."""
    count = int((squares * length**2 + tensors * length * width) * 8 * 4) + mask * length**2
    row = remembered(f"a[{length}-{width}]", count)
    values = {"memory_before_backward_bytes": count, "saved_bytes_by_part": [{"saved_bytes": count}]}
    identity = attention_identity(phase=f"attention_{way}", sequence_length=length, head_dim=width)
    return {**row, "identity": identity, "values": row["values"] | values}


SHAPES = ((256, 16), (256, 64), (1024, 16), (1024, 64))


def fits(rows: list[Json]) -> dict[str, Fit]:
    return {fit.quantity: fit for fit in attention_fits(rows)}


def test_planted_squares_and_tensors_are_found_and_a_mask_is_the_remainder() -> None:
    """One byte of a mask for each pair of positions, for the whole batch: a 32nd of one of its squares."""
    for squares in (0, 1, 2, 3, 6):
        fit = fits([held(*shape, squares, 4.0) for shape in SHAPES])["saved"]
        assert (fit.squares, fit.cells, fit.implementation) == (squares, 4, "naive")
        assert [fit.tensors, fit.worst_remainder] == pytest.approx([4.0, 0.0], abs=1e-9)
    masked = fits([held(*shape, 2, 3.0, mask=True) for shape in SHAPES])["forward peak"]
    assert masked.squares == 2
    assert 0.001 < masked.worst_remainder < 0.03


def test_a_quantity_is_of_the_pass_that_it_is_about_and_one_length_fits_nothing() -> None:
    both = [held(*shape, k, 1.0, way=way) for shape in SHAPES for way, k in (("forward", 1), ("backward", 5))]
    squares = {name: fit.squares for name, fit in fits(both).items()}
    assert squares == {"saved": 1, "forward peak": 1, "before backward": 5, "backward peak": 5}
    assert {name: fit.squares for name, fit in fits(both[1::2]).items()} == {
        "saved": 5, "before backward": 5, "backward peak": 5
    }  # fmt: skip
    of_a_model = {"id": "x", "identity": {"size": "tiny"}, "pass": "memory", "values": {}}
    assert attention_fits([of_a_model, held(256, 16, 2, 1.0), held(256, 64, 2, 1.0)]) == []
