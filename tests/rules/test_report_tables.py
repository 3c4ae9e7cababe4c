"""The tables of a write-up: every case once, in its unit, with its conditions below."""

from collections.abc import Sequence

import pytest

from perf_tests_suite.perf_tests.records.columns import pass_cells
from perf_tests_suite.perf_tests.records.format import Table
from perf_tests_suite.perf_tests.records.record import OUTCOMES, Json
from perf_tests_suite.perf_tests.report.tables import Fit, attention_fits, tables_of
from tests.support import synthetic

SMALL: Json = {"size": "small", "context_length": 128}


def case(phase: str = "forward", seconds: Sequence[float] = (0.010, 0.012), **changes: object) -> Json:
    """A timed row whose id tells it from every other."""
    changes = SMALL | changes
    return synthetic.timed(f"test_{phase}[{'-'.join(map(str, changes.values()))}]", seconds, phase=phase, **changes)


def tables(data: Json) -> dict[str, Table]:
    return {table.name: table for table in tables_of(data, "machine/0001_run")}


HUNDRED = [place / 1000 for place in range(1, 101)]
ALONE = [synthetic.timed_attention((0.010, 0.012), phase=f"attention_{way}", attention=name)
         for name in ("naive", "sdpa") for way in ("forward", "backward")]  # fmt: skip
GRID = synthetic.record(
    [case("backward", size="large", d_model=2048), case(size="large", d_model=2048), case("backward", [0.03] * 3),
     case(seconds=[0.02] * 3, peak_allocated_bytes=2**26, predicted_peak_bytes=2**25),
     case(context_length=16, peak_allocated_bytes=2**36), case(seconds=(0.5,), context_length=16, d_model=64),
     case(seconds=[0.01] * 3, precision="bf16"), case(seconds=[0.04] * 3, precision="fp16"),
     case(seconds=(0.004, 0.006), size="large", precision="bf16", d_model=2048),
     *ALONE, *(synthetic.timed_attention(HUNDRED[64 // tokens - 1 :], sequence_length=tokens) for tokens in (64, 32))],
    [synthetic.untimed("lost", phase="backward", precision="bf16", **SMALL),
     {"id": "l", "outcome": "out_of_memory", "reason": "6 GiB", **synthetic.attention_identity(sequence_length=512)}],
)  # fmt: skip
TIMED = {
    "timing": [
        "Size | Context | Precision | forward (ms) | backward (ms)",
        "small | 16 | fp32 | 500.0 / 11.0 ± 1.4 | -",
        "small | 128 | fp32 | 20.00 | 30.00", "small | 128 | bf16 | 10.00 | OOM",
        "small | 128 | fp16 | 40.00 | -",
        "large | 128 | fp32 | 11.0 ± 1.4 | 11.0 ± 1.4", "large | 128 | bf16 | 5.0 ± 1.4 | -",
    ],
    "precision": [
        "Size | Context | Phase | fp32 (ms) | bf16 (ms) | fp32 / bf16 | fp16 (ms) | fp32 / fp16",
        "small | 128 | forward | 20.00 | 10.00 | 2.00 | 40.00 | 0.500",
        "small | 128 | backward | 30.00 | OOM | - | - | -",
        "large | 128 | forward | 11.0 ± 1.4 | 5.0 ± 1.4 | 2.20 ± 0.68 | - | -",
    ],
    "memory": [
        "Size | Context | Precision | forward (MiB) | forward predicted (MiB) | backward (MiB)",
        "small | 16 | fp32 | 65536 | - | -", "small | 128 | fp32 | 64.00 | 32.00 | -",
        "small | 128 | bf16 | - | - | OOM",
    ],
    "attention": [
        "d | Sequence | naive forward (ms) | sdpa forward (ms) | naive backward (ms) | sdpa backward (ms)",
        "16 | 32 | 51 ± 29 | - | - | -", "16 | 64 | 50 ± 29 | - | - | -", "16 | 256" + " | 11.0 ± 1.4" * 4,
        "16 | 512 | OOM | - | - | -",
    ],
    "percentiles": [
        "Size | Context | Phase | Precision | Implementation | p50 (ms) | p95 (ms) | p99 (ms)",
        "d 16 | 64 | forward | fp32 | naive | 50.50 | 95.05 | 99.01",
    ],
}  # fmt: skip


def shown(table: Table) -> list[str]:
    return [" | ".join(row) for row in (table.header, *table.rows)]


@pytest.mark.parametrize("name", TIMED)
def test_a_table_has_sizes_by_parameters_numbers_by_value_phases_in_order_and_what_was_lost(name: str) -> None:
    """Both figures of two shapes of one name, and a dash where a case was not selected."""
    assert shown(tables(GRID)[name]) == TIMED[name]


def test_notes_say_under_what_conditions_and_why_a_figure_is_missing() -> None:
    unpredicted, short = synthetic.remembered(), synthetic.warmed()
    unpredicted["values"] |= {"predicted_peak_bytes": None, "prediction_reason": "it is fused."}
    short["values"] |= {"flags": ["short_warmup"], "recommendation": "Set --warmup-rounds 7."}
    lost = [synthetic.untimed(outcome, outcome, "of this", phase="backward", **SMALL) for outcome in OUTCOMES]
    row = case(warmup_rounds=5, warmup_rounds_run=312)
    found = tables(synthetic.with_passes(synthetic.record([row], lost), unpredicted, short))
    for name, facts in {
        "timing": ("Some CPU, 8 cores", "2.13.0+cpu", "4 threads", "batch 4", "2 measured rounds",
                   "at least 5 warm-up rounds", "machine/0001_run", "0123456789ab",
                   *(f"{words}: of this" for words in OUTCOMES.values())),
        "memory_pass": ("no prediction: it is fused.",),
        "warmup": ("for this machine: --warmup-rounds 1, which tiny 8 forward fp32 naive needs",
                   "tiny 8 forward fp32 naive: Set --warmup-rounds 7."),
    }.items():  # fmt: skip
        assert [fact for fact in facts if fact not in "; ".join(found[name].notes)] == []
    assert found["timing"].title.endswith(": naive, fp32, batch 4"), "what all cases share"
    large = tables(synthetic.record([case("full_step", peak_allocated_bytes=2**36)]))["memory"]
    assert shown(large) == ["Size | Context | full_step (GiB)", "small | 128 | 64.00"]


@pytest.mark.parametrize("peak", [None, float("nan"), float("inf"), "many", True, 10**400, [1]])
def test_without_fp32_a_peak_and_a_sound_pass_there_are_timings_alone_of_any_identity(peak: object) -> None:
    row = case(precision="bf16", size=["a"], context_length=None, d_model="wide")
    row["extra_info"]["peak_allocated_bytes"] = peak
    damaged: list[object] = [None, {}, [None], [{"pass": "kernels"}], [{**synthetic.traced(), "pass": "other"}]]
    for passes in damaged:
        assert list(tables({**synthetic.record(), "benchmarks": [row], "passes": passes})) == ["timing"]


# How the memory of attention alone grows.


def held(length: int, width: int, squares: int, tensors: float, mask: bool = False, way: str = "forward") -> Json:
    """A case that holds so many squares and tensors of float32 at every moment."""
    count = int((squares * length**2 + tensors * length * width) * 8 * 4) + mask * length**2
    row = synthetic.remembered(f"a[{length}-{width}]", count)
    values = {"memory_before_backward_bytes": count, "saved_bytes_by_part": [{"saved_bytes": count}]}
    identity = synthetic.attention_identity(phase=f"attention_{way}", sequence_length=length, head_dim=width)
    return {**row, "identity": identity, "values": row["values"] | values}


SHAPES = ((256, 16), (256, 64), (1024, 16), (1024, 64))


def fits(rows: list[Json]) -> dict[str, Fit]:
    return {fit.quantity: fit for fit in attention_fits(pass_cells({"passes": rows, "outcomes": []}, "memory"))}


def test_planted_squares_and_tensors_are_found_and_a_mask_is_the_remainder() -> None:
    """One byte of a mask for each pair of positions, for the whole batch: a 32nd of one of its squares."""
    for squares in (0, 1, 2, 3, 6):
        fit = fits([held(*shape, squares, 4.0) for shape in SHAPES])["saved"]
        assert (fit.squares, fit.cells, fit.implementation) == (squares, 4, "naive")
        assert [fit.tensors, fit.worst_remainder] == pytest.approx([4.0, 0.0], abs=1e-9)
    less = fits([held(*shape, 2, -1.0) for shape in SHAPES])["saved"]
    assert (less.squares, less.tensors > 0) == (1, True), "nothing holds less than no tensors"
    masked = fits([held(*shape, 2, 3.0, mask=True) for shape in SHAPES])["forward peak"]
    assert masked.squares == 2
    assert 0.001 < masked.worst_remainder < 0.03


def test_a_quantity_is_of_the_pass_that_it_is_about_and_one_length_fits_nothing() -> None:
    both = [held(*shape, k, 1.0, way=way) for shape in SHAPES for way, k in (("forward", 1), ("backward", 5))]
    squares = {name: fit.squares for name, fit in fits(both).items()}
    assert squares == {"saved": 1, "forward peak": 1, "before backward": 5, "backward peak": 5}
    assert {fits(both[1::2])[name].squares for name in ("saved", "before backward", "backward peak")} == {5}
    of_a_model = {"id": "x", "identity": {"size": "tiny"}, "pass": "memory", "values": {}}
    assert fits([of_a_model, held(256, 16, 2, 1.0), held(256, 64, 2, 1.0)]) == {}
    assert fits([held(256, 16, 2, 1.0), {**held(512, 16, 2, 1.0), "values": {}}]) == {}, "damaged"
