"""The tables of a write-up: every case once, in its unit, with its conditions below."""

from collections.abc import Callable, Sequence

import pytest

from perf_tests.records.format import Table, latex, markdown, typst
from perf_tests.records.published import flat_figures
from perf_tests.records.record import OUTCOMES, Json
from perf_tests.report.tables import tables_of
from tests.support.synthetic import attention_identity, record, timed, timed_attention, traced, untimed


def case(phase: str = "forward", seconds: Sequence[float] = (0.010, 0.012), **changes: object) -> Json:
    """A timed row whose id tells it from every other."""
    changes = {"size": "small", "context_length": 128, **changes}
    return timed(f"test_{phase}[{'-'.join(map(str, changes.values()))}]", seconds, phase=phase, **changes)


def lost(phase: str = "forward", outcome: str = "out_of_memory", reason: str = "of this") -> Json:
    return untimed(f"test_{phase}[small-128]", outcome, reason, phase=phase, size="small", context_length=128)


def table(data: Json, name: str) -> Table:
    (found,) = [table for table in tables_of(data, "machine/0001_run") if table.name == name]
    return found


def column(found: Table, name: str) -> list[str]:
    return [row[found.header.index(name)] for row in found.rows]


def test_each_size_and_context_is_a_row_and_each_phase_a_column() -> None:
    rows = [case(phase, size=size, context_length=context, d_model=width)
            for size, width in (("large", 1280), ("small", 768)) for context in (1024, 128)
            for phase in ("backward", "forward")]  # fmt: skip
    found = table(record(rows), "timing")
    assert found.header == ("Size", "Context", "forward (ms)", "backward (ms)")
    assert [row[:2] for row in found.rows] == [("small", "128"), ("small", "1024"), ("large", "128"), ("large", "1024")]


CELLS = {
    "the mean and the deviation of several rounds": ([case(seconds=(0.010, 0.011, 0.012))], "11.0 ± 1.0"),
    "a single round without a deviation": ([case(seconds=(0.010,))], "10.00"),
    "both of two shapes of one name": ([case(), case(seconds=(0.5,), d_model=2560)], "11.0 ± 1.4 / 500.0"),
    "a dash for what was not selected": ([case("backward"), case(context_length=256)], "-"),
}


@pytest.mark.parametrize("shown", CELLS)
def test_a_cell_shows(shown: str) -> None:
    rows, cell = CELLS[shown]
    assert column(table(record(rows), "timing"), "forward (ms)")[0] == cell


def test_what_all_cases_share_is_said_once_in_the_title() -> None:
    assert table(record([case()]), "timing").title.endswith(": naive, fp32, batch 4")
    both = table(record([case(), case(precision="bf16")]), "timing")
    assert column(both, "Precision") == ["fp32", "bf16"]
    assert "fp32" not in both.title


@pytest.mark.parametrize("changes", [{"attention": "sdpa"}, {"execution": "compiled"}, {"checkpoint": "block"},
                                     {"model": "theirs:build"}, {"batch_size": 8}])  # fmt: skip
def test_cases_that_differ_in_any_axis_are_different_rows(changes: Json) -> None:
    found = table(record([case(), case(seconds=(0.02, 0.03), **changes)]), "timing")
    assert len(set(found.rows)) == 2


@pytest.mark.parametrize("others", [[], [case()]], ids=["alone", "beside a timing"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_case_without_a_timing_is_a_cell_and_a_reason(outcome: str, others: list[Json]) -> None:
    found = table(record(others, [lost("backward", outcome, "because of this")]), "timing")
    assert column(found, "backward (ms)") == ["OOM" if outcome == "out_of_memory" else OUTCOMES[outcome]]
    assert any(note.endswith(f"{OUTCOMES[outcome]}: because of this") for note in found.notes)


def test_each_precision_stands_beside_fp32_with_its_ratio() -> None:
    fast, slow = (0.010, 0.010, 0.010), (0.020, 0.020, 0.020)
    found = table(record([case(seconds=slow), case(seconds=fast, precision="bf16")]), "precision")
    assert found.header[3:] == ("fp32 (ms)", "bf16 (ms)", "fp32 / bf16")
    assert found.rows[0][3:] == ("20.00", "10.00", "2.00")


def test_a_ratio_with_a_case_that_ran_out_of_memory_is_a_dash() -> None:
    found = table(record([case(precision="bf16")], [lost(reason="too large")]), "precision")
    assert found.rows[0][3:] == ("OOM", "11.0 ± 1.4", "-")
    assert any("too large" in note for note in found.notes)


def test_peaks_are_in_the_unit_that_suits_with_the_prediction_beside() -> None:
    small = case(peak_allocated_bytes=2**26, predicted_peak_bytes=2**25)
    found = table(record([small, case("full_step", peak_allocated_bytes=2**36)]), "memory")
    assert found.header[2:] == ("forward (MiB)", "forward predicted (MiB)", "full_step (MiB)")
    assert found.rows[0][2:] == ("64.00", "32.00", "65536")
    large = table(record([case("full_step", peak_allocated_bytes=2**36)]), "memory")
    assert column(large, "full_step (GiB)") == ["64.00"]


def test_warm_up_rounds_are_those_that_ran() -> None:
    data = record([case(warmup_rounds=5, warmup_rounds_run=312)])
    assert "at least 5 warm-up rounds" in table(data, "timing").notes[1]
    assert flat_figures(data, "run")["timing"][0]["warmup"] == 312


def test_a_case_of_a_hundred_rounds_has_its_percentiles_and_one_of_fewer_has_none() -> None:
    rounds = [place / 1000 for place in range(101)]
    data = record([timed_attention(rounds[1:], sequence_length=512), timed_attention(rounds[2:], sequence_length=256)])
    found = table(data, "percentiles")
    assert [(row[1], *row[5:]) for row in found.rows] == [("512", "50.50", "95.05", "99.01")]
    (flat,) = [row for row in flat_figures(data, "run")["attention"] if row["p95_ms"] is not None]
    assert (flat["median_ms"], flat["p95_ms"], flat["p99_ms"]) == pytest.approx((50.5, 95.05, 99.01))


def test_attention_has_its_implementations_side_by_side_and_out_of_memory_cells() -> None:
    short = [timed_attention((0.010, 0.012), phase=f"attention_{way}", attention=name)
             for name in ("naive", "compiled") for way in ("forward", "backward")]  # fmt: skip
    long = {"id": "long", "outcome": "out_of_memory", "reason": "6 GiB", **attention_identity(sequence_length=512)}
    found = table(record(short, [long]), "attention")
    names = [f"{name} {way} (ms)" for way in ("forward", "backward") for name in ("naive", "compiled")]
    assert list(found.header[2:]) == names
    assert [row[2] for row in found.rows] == ["11.0 ± 1.4", "OOM"]


@pytest.mark.parametrize("peak", [None, float("nan"), float("inf"), "many", True, 10**400, [1]])
def test_without_fp32_and_without_a_peak_there_are_timings_alone(peak: object) -> None:
    row = case(precision="bf16")
    row["extra_info"]["peak_allocated_bytes"] = peak
    assert [table.name for table in tables_of({**record(), "benchmarks": [row]}, "run")] == ["timing"]


def test_identities_of_null_and_of_strange_kinds_are_taken() -> None:
    rows = [case(size=None, context_length=None), case(size=["a"], context_length="many", d_model="wide")]
    assert len(table(record(rows), "timing").rows) == 2


def test_a_traced_case_has_its_kernels_their_shares_and_one_attention_layer_by_part() -> None:
    data = {**record([case()]), "passes": [traced(), {"id": "other", "pass": "memory", "identity": {}, "values": {}}]}
    kernels = table(data, "kernels")
    assert column(kernels, "Kernel") == ["gemm<float>", "add"]
    assert column(kernels, "mean (us)") == ["750 ± 75", "250 ± 25"]
    assert column(kernels, "of kernel time (%)") == ["75.0", "25.0"]
    shares = table(data, "kernel_shares")
    assert column(shares, "softmax / products, forward") == ["0.5000"]
    parts = table(data, "attention_parts")
    assert column(parts, "Direction") == ["forward", "forward", "backward", "backward"]
    assert column(parts, "device (us)")[:2] == ["2.000", "4.000"]


@pytest.mark.parametrize("passes", [None, {}, [None], [{"pass": "kernels"}], [{**traced(), "values": {"kernels": 3}}]])
def test_passes_that_hold_no_kernels_are_no_tables(passes: object) -> None:
    names = [table.name for table in tables_of({**record([case()]), "passes": passes}, "run")]
    assert [name for name in names if name not in ("timing", "kernel_shares")] == []


def test_notes_say_under_what_conditions() -> None:
    notes = " ".join(table(record([case(warmup_rounds=5)]), "timing").notes)
    for fact in ("Some CPU, 8 cores", "2.13.0+cpu", "4 threads", "batch 4", "2 measured rounds", "5 warm-up rounds",
                 "machine/0001_run", "0123456789ab"):  # fmt: skip
        assert fact in notes


@pytest.mark.parametrize("write", [markdown, latex, typst])
def test_rows_have_one_order_in_each_format_and_name_their_unit(write: Callable[[list[Table]], str]) -> None:
    rows = [case(), case("backward"), case(precision="bf16")]
    forwards, backwards = record(rows, written="2030"), record(rows[::-1], written="2030")
    assert "(ms)" in write(tables_of(forwards, "run"))
    assert write(tables_of(forwards, "run")) == write(tables_of(backwards, "run"))
