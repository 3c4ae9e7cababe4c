"""`python -m perf_tests audit`: honest tables pass, each planted mistake is called by its name."""

import json
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.audit.files import Audit, audit_file, audits_of
from perf_tests.audit.finding import IMPOSSIBLE, INCONSISTENT, NOTICE, SUSPICIOUS
from perf_tests.audit.tally import Tally
from perf_tests.limits.datasheets import gpu_named
from perf_tests.limits.least_work import SIZES
from perf_tests.meta_tests.foreign_tables import Row, attention_row, attention_table, model_row, model_table, written
from perf_tests.proofs.synthetic import record, timed


def audited(folder: Path, rows: list[Row]) -> Audit:
    return audit_file(written(folder, rows))


def rules(audit: Audit) -> set[tuple[str, str]]:
    return {(finding.verdict, finding.rule) for finding in audit.findings}


@pytest.mark.parametrize("table", [model_table, attention_table])
def test_an_honest_table_is_accused_of_nothing(table: object, tmp_path: Path) -> None:
    audit = audited(tmp_path, table())  # type: ignore[operator]
    assert rules(audit) <= {(NOTICE, "launch-bound")}
    assert audit.not_judged == []


@pytest.mark.parametrize(
    "row, rule, cause",
    [
        (model_row(mean_ms="90"), "arithmetic", "TF32"),
        (model_row("2.7B", precision="fp32", mean_ms="90"), "arithmetic", "another precision"),
        (model_row(gpu="T4-16GB", mean_ms="350"), "arithmetic", "half the batch"),
        (model_row(mean_ms="0.28"), "arithmetic", "wrong unit"),
        (model_row(mean_ms="0"), "time", "unit"),
        (model_row(mean_ms="-3"), "time", "sign"),
        (model_row("2.7B", phase="fwd_bwd", gpu="L4 24GB", mean_ms="99999"), "memory", "paging"),
        (attention_row(mean_ms="0.5", precision="tf32", d_model="16"), "traffic", "kept no gradient"),
    ],
)
def test_what_breaks_physics_is_impossible(row: Row, rule: str, cause: str, tmp_path: Path) -> None:
    (finding,) = audited(tmp_path, [row]).findings_of(IMPOSSIBLE)
    assert finding.rule == rule
    assert cause in finding.likely_cause
    assert finding.places == ("line 2",)


def test_a_forward_pass_that_was_not_waited_for_is_told_by_the_time_that_the_step_has_more(tmp_path: Path) -> None:
    (finding,) = audited(tmp_path, [model_row(mean_ms="180"), model_row(phase="fwd_bwd")]).findings_of(IMPOSSIBLE)
    assert "line 3" not in finding.places
    forward_alone = audited(tmp_path, [model_row("2.7B", mean_ms="500"), model_row("2.7B", phase="fwd_bwd")])
    (finding,) = forward_alone.findings_of(IMPOSSIBLE)
    assert "without waiting for the device; the missing time is in line 3" in finding.likely_cause


def attention_ms(products: float, tera_flops_per_second: float, length: int = 16384, width: int = 128) -> str:
    """The time of so many products over eight whole squares."""
    return f"{products * 2 * 8 * length**2 * width / tera_flops_per_second / 1e9:.6g}"


@pytest.mark.parametrize(
    "changes, products, is_impossible",
    [
        ({"compiled": "yes"}, 2, True),
        ({"compiled": "yes", "attention": "pytorch"}, 2, True),
        ({"attention": "flash"}, 2, False),
        ({"attention": "flash", "causal_mask": "no"}, 2, True),
        ({"attention": "a new idea"}, 2, False),
        ({"phase": "backward", "attention": "triton_fa2"}, 2.5, True),
        ({"phase": "backward", "attention": "a new idea"}, 2.5, False),
        ({"phase": "fwd_bwd", "attention": "flash"}, 3.5, True),
    ],
)
def test_a_kernel_is_held_to_the_products_that_it_cannot_skip(
    changes: Row, products: float, is_impossible: bool, tmp_path: Path
) -> None:
    """At 1 % above 19.5 TFLOP/s: torch.compile keeps the whole square, a kernel of blocks half of it, and one product
    more in its backward pass."""
    row = attention_row(16384, **{"d_model": "128", "mean_ms": attention_ms(products, 19.7)} | changes)
    found = rules(audited(tmp_path, [row]))
    assert ((IMPOSSIBLE, "arithmetic") in found) == is_impossible


def test_a_compiled_pass_in_tf32_is_impossible_where_its_products_exceed_the_peak(tmp_path: Path) -> None:
    """A100: 37.6 TFLOP/s over the whole square, 18.8 over half of it."""
    row = attention_row(8192, compiled="yes", d_model="128", mean_ms="7.317")
    (finding,) = audited(tmp_path, [row]).findings_of(IMPOSSIBLE)
    assert "TF32" in finding.likely_cause


def test_more_than_fusion_can_save_is_suspicious(tmp_path: Path) -> None:
    """At width 16 the products stay below the peak in TF32's time too: passes through memory tell."""
    eager = attention_row(8192, d_model="16")
    assert rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "7"}])) == set()
    assert rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "3.5"}])) == {
        (SUSPICIOUS, "more than fusion")
    }
    slow = {**eager, "mean_ms": "90"}
    assert (SUSPICIOUS, "more than fusion") in rules(
        audited(tmp_path, [slow, {**eager, "compiled": "yes", "mean_ms": "7"}])
    )


def test_a_model_compiled_into_another_precision_is_suspicious(tmp_path: Path) -> None:
    """Four times as fast, where what fusion leaves out is a fraction of the time."""
    eager = {**model_row("xl", mean_ms="600"), "precision": "tf32"}
    assert rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "500"}])) == set()
    found = rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "150"}]))
    assert found == {(SUSPICIOUS, "more than fusion")}


def test_launches_that_compiling_saves_are_not_taken_for_fusion(tmp_path: Path) -> None:
    eager = model_row("small", 128, mean_ms="40")
    assert rules(audited(tmp_path, [eager, {**eager, "compiled": "yes", "mean_ms": "9"}])) == set()


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


def test_the_label_is_judged_and_comments_are_not_read(tmp_path: Path) -> None:
    row = model_row(precision="fp32", mean_ms="90")
    plain = audited(tmp_path, [row])
    commented = audited(tmp_path, [{**row, "precision": "tf32(labelled fp32)", "note": "TF32", "status": "wrong"}])
    assert rules(plain) == rules(commented) == {(IMPOSSIBLE, "arithmetic")}


def test_an_inferred_gpu_is_said_to_be_one(tmp_path: Path) -> None:
    (finding,) = audited(tmp_path, [model_row(mean_ms="90", gpu_basis="inferred")]).findings_of(IMPOSSIBLE)
    assert "GPU inferred, not stated" in finding.limit


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"gpu": ""}, "no GPU stated"),
        ({"gpu": "Apple M3"}, "no datasheet"),
        ({"context": ""}, "no context"),
        ({"precision": "half?"}, "not certain"),
        ({"gpu": "T4", "precision": "bf16_amp"}, "no bf16 path"),
        ({"phase": "optimizer"}, "no known arithmetic"),
        ({"mean_ms": ""}, "no figure"),
        ({"d_model": "0"}, "d_model is 0"),
    ],
)
def test_what_cannot_be_judged_is_counted_with_its_reason(changes: Row, reason: str, tmp_path: Path) -> None:
    audit = audited(tmp_path, [{**model_row(), **changes}])
    assert audit.counts()["not judged"] == 1
    assert reason in next(iter(audit.reasons()))


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


def memory_row(**changes: str) -> Row:
    row = {
        "source": "somebody/repository:memory.md", "gpu": "A100-80GB", "object": "model(2025)", "size": "2.7B",
        "d_model": "2560", "n_layers": "32", "batch": "4", "context": "512", "precision": "fp32", "compiled": "no",
        "mode": "full_step_peak", "value": "65.5", "unit": "GiB",
    }  # fmt: skip
    return {**row, **changes}


ATTENTION_MEMORY = {"object": "attention", "d_model": "64", "batch": "8", "context": "8192", "mode": "before_backward"}


def kernel_row(name: str, calls: int, average: float, percent: float) -> Row:
    return {
        "source": "somebody/repository:profile.md", "gpu": "A100-80GB", "size": "small", "context": "128",
        "scope": "forward", "kernel": name, "calls": str(calls), "total_ms": f"{calls * average / 1e3:.6g}",
        "avg_us": str(average), "std_us": "", "pct_of_gpu_time": str(percent),
    }  # fmt: skip


PROFILE = [
    kernel_row("ampere_sgemm", 85, 100.0, 85.0),
    kernel_row("elementwise", 100, 10.0, 10.0),
    kernel_row("reduce", 50, 10.0, 5.0),
]


def beside_profile(row: Row, **changes: str) -> list[Row]:
    return [*PROFILE, {**row, **changes}]


OVER_100_PERCENT = (INCONSISTENT, "sum of shares")

MISTAKES: dict[str, tuple[list[Row], set[tuple[str, str]]]] = {
    "more than the card holds": ([memory_row(value="90")], {(IMPOSSIBLE, "card memory")}),
    "a negative amount": ([memory_row(value="-1")], {(IMPOSSIBLE, "amount")}),
    "less than the weights": ([memory_row(value="9", mode="forward_peak")], {(IMPOSSIBLE, "weights")}),
    "no optimizer state": ([memory_row(value="26", unit="GB")], {(SUSPICIOUS, "optimizer state")}),
    "too little saved": ([memory_row(value="51.4")], {(SUSPICIOUS, "saved tensors")}),
    "more than two squares": ([memory_row(**ATTENTION_MEMORY, value="3.06")], {(SUSPICIOUS, "saved squares")}),
    "no square": ([memory_row(**ATTENTION_MEMORY, value="0.06")], {(SUSPICIOUS, "saved squares")}),
    "a peak that shrinks with the context": (
        [memory_row(), memory_row(context="1024", value="60")],
        {(INCONSISTENT, "shrinking peak"), (SUSPICIOUS, "saved tensors")},
    ),
    "average": (beside_profile(PROFILE[1], avg_us="64.9"), {(INCONSISTENT, "calls x average"), OVER_100_PERCENT}),
    "share": (beside_profile(PROFILE[1], pct_of_gpu_time="23.1"), {(INCONSISTENT, "share"), OVER_100_PERCENT}),
    "a copied cell": (
        beside_profile(kernel_row("copy", 20, 10.0, 10.0)),
        {(INCONSISTENT, "copied cell"), (INCONSISTENT, "share"), OVER_100_PERCENT},
    ),
    "shares of more than all": (beside_profile(kernel_row("twice", 85, 100.0, 85.0)), {OVER_100_PERCENT}),
    "a negative share": (beside_profile(PROFILE[1], pct_of_gpu_time="-10"), {(IMPOSSIBLE, "amount")}),
    "lost products": ([kernel_row("ampere_sgemm", 60, 141.7, 85.0), *PROFILE[1:]], {(SUSPICIOUS, "missing products")}),
    "products faster than the card": ([kernel_row("sgemm", 85, 50.0, 85.0)], {(SUSPICIOUS, "matrix products")}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_memory_or_a_profile_is_found(mistake: str, tmp_path: Path) -> None:
    rows, found = MISTAKES[mistake]
    assert rules(audited(tmp_path, rows)) == found


HONEST = [memory_row(context="128", value="51.4")], [memory_row(**ATTENTION_MEMORY, value="4.06")]


@pytest.mark.parametrize("rows", [[memory_row()], *HONEST, PROFILE], ids=["step", "context", "attention", "profile"])
def test_honest_memory_and_an_honest_profile_are_accused_of_nothing(rows: list[Row], tmp_path: Path) -> None:
    assert audited(tmp_path, rows).findings == []


def test_a_list_of_the_largest_kernels_is_not_held_to_all_products(tmp_path: Path) -> None:
    """The 25 others fit into the 15 % of the time that are not listed."""
    assert audited(tmp_path, [{**PROFILE[0], "calls": "60", "total_ms": "6.0"}]).findings == []


REPEATED: dict[str, tuple[list[Row], set[str], str]] = {
    "the faster is beyond its label": (
        [model_row(mean_ms="90"), model_row(mean_ms="280")], {"line 2"}, "another precision"
    ),
    "the slower scatters": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", std_ms="60")], {"line 3"}, "busy device"
    ),
    "the slower was not warmed up": (
        [model_row(mean_ms="280"), model_row(mean_ms="400", warmup="0")], {"line 3"}, "no or one warm-up round"
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
def test_a_label_with_two_times_names_the_cause_that_its_file_suggests(how: str, tmp_path: Path) -> None:
    rows, accused, cause = REPEATED[how]
    first = next(f for f in audited(tmp_path, rows).findings if f.rule == "same cell twice" and "large" in f.cell)
    assert set(first.places) == accused
    assert cause in first.likely_cause


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


def written_json(folder: Path, data: object) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    "gpu, honest, fast, limit",
    [
        ("NVIDIA A100-SXM4-80GB", timed(), timed(seconds=(1e-9,) * 10), "A100"),
        (None, *(timed(matmul_ceiling_tflops_per_second=rate) for rate in (0.1, 1e-6)), "best product measured there"),
    ],
    ids=["a GPU's datasheet", "the ceiling that a CPU's run measured"],
)
def test_a_record_of_this_suite_is_held_to(gpu: str | None, honest: Row, fast: Row, limit: str, tmp_path: Path) -> None:
    """A model of two layers in 1 s is fine on any GPU; in a nanosecond on none."""
    honest_run, fast_run = (record([row], gpu={"name": gpu} if gpu else None) for row in (honest, fast))
    assert audit_file(written_json(tmp_path, honest_run)).findings == []
    (finding,) = audit_file(written_json(tmp_path, fast_run)).findings
    assert (finding.verdict, finding.rule) == (IMPOSSIBLE, "arithmetic")
    assert limit in finding.limit


@pytest.mark.parametrize("compiled_peak, is_found", [(1000, True), (700, False)])
def test_a_compiler_that_saved_memory_did_something(compiled_peak: int, is_found: bool, tmp_path: Path) -> None:
    rows = [
        timed(f"test_{phase}[{execution}]", phase=phase, execution=execution, peak_allocated_bytes=peak)
        for execution, peak in (("eager", 1000), ("compiled", compiled_peak))
        for phase in ("forward", "backward")
    ]
    audit = audit_file(written_json(tmp_path, record(rows)))
    assert ((SUSPICIOUS, "compiled did nothing") in rules(audit)) == is_found


def test_a_foreign_benchmark_file_is_not_judged_and_says_why(tmp_path: Path) -> None:
    foreign = {"machine_info": {"node": "x"}, "benchmarks": [{"name": "test_x", "stats": {"mean": 0.1}}]}
    audit = audit_file(written_json(tmp_path, foreign))
    assert audit.reasons() == {"no identity: neither phase nor shape of what was timed": 1}


def test_exit_codes_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine, bad = written(tmp_path, model_table(), "fine.csv"), written(tmp_path, [model_row(mean_ms="90")], "bad.csv")
    assert main(["audit", str(fine)]) == 0
    capsys.readouterr()
    assert main(["audit", str(bad), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["counts"]["impossible"], said["findings"][0]["places"]) == (1, ["line 2"])
    assert (said["kind"], said["figures"], said["not_judged"]) == ("model timing", 1, [])
    assert main(["audit", str(tmp_path / "none.csv")]) == 3


def test_suspicions_are_shown_in_groups_the_worst_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [model_row(size, mean_ms=time, std_ms=std) for size, time, std in (
        ("small", "100", "70"), ("medium", "200", "170"), ("large", "500", "300"), ("xl", "90", "1"),
    )]  # fmt: skip
    path = written(tmp_path, rows)
    assert main(["audit", str(path)]) == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if "Most likely" in line]
    assert [line.partition(":")[0] for line in shown] == ["line 5", "line 3"]
    assert shown[1].endswith("The worst of 3 like it: lines 2, 3, 4.")
    main(["audit", str(path), "--all"])
    assert capsys.readouterr().out.count("Most likely") == 4


def test_a_file_is_read_in_parts_and_counted_as_a_whole(tmp_path: Path) -> None:
    path = written(tmp_path, [*model_table(), *[model_row(mean_ms="90")] * 3])
    whole, parts = audit_file(path), list(audits_of(path, window=10))
    assert max(len(part.places) for part in parts) == 10
    assert sum(part.counts()["impossible"] for part in parts) == whole.counts()["impossible"] == 3
    assert [place for part in parts for place in part.places] == whole.places


def test_alike_findings_of_many_sources_take_bounded_room(tmp_path: Path) -> None:
    rows = [model_row(mean_ms="90", source=f"source {number}") for number in range(30)]
    tally = Tally()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf_tests.audit.tally.MOST_GROUPS", 5)
        for part in audits_of(written(tmp_path, rows)):
            tally.add(part)
    assert len(tally.groups) == 6
    assert sum(group.findings for group in tally.groups.values()) == 30


def test_a_gpu_given_by_hand_stands_for_rows_that_name_none(tmp_path: Path) -> None:
    path = written(tmp_path, [model_row(gpu="", mean_ms="90")])
    assert main(["audit", str(path)]) == 0
    assert main(["audit", str(path), "--gpu", "A100-80GB"]) == 1
    assert main(["audit", str(path), "--gpu", "memory=80,bandwidth=2000,fp32=100"]) == 0


@pytest.mark.parametrize("row", [memory_row(gpu="", value="90"), {**kernel_row("sgemm", 85, 50.0, 85.0), "gpu": ""}])
def test_a_gpu_given_by_hand_counts_for_memory_and_kernels_too(row: Row, tmp_path: Path) -> None:
    path = written(tmp_path, [row])
    assert audit_file(path).findings == []
    assert audit_file(path, gpu_named("A100-80GB")).findings != []


def test_an_unknown_gpu_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(written(tmp_path, model_table())), "--gpu", "Z9"])
    assert ended.value.code == 2
    assert "known: P100" in capsys.readouterr().err
