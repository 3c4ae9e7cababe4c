"""The extra passes as a user runs them: a row for each case, exact on a CPU, beside the timings and never one of them.

Ten processes; one runs every pass, over attentions of the user's own too, and one holds five short runs.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests import IMPORTABLE
from perf_tests_suite.perf_tests.bench.workers import WorkerEndedError, WorkerProcess, start_worker
from perf_tests_suite.perf_tests.cases import attention, language_model, options
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.passes import extra_pass, memory, warmup
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.records.record import Json, identity_of, ids_of
from perf_tests_suite.perf_tests.records.store import compare, latest_baseline, list_records, rows_by_id, save_record
from perf_tests_suite.perf_tests.report.screens import SHOWN_OF_PASSES
from tests.rules.test_memory_watch import assert_opens
from tests.support.example_cases import SETTINGS
from tests.support.launch import MODELS, ROOT, SMALL, Launch, launch, launch_all
from tests.support.synthetic import BACKWARD, FORWARD, passed, record, timed, untimed, with_passes
from tests.support.wrong_attention import EXAMPLE, FAULTS

KERNELS = "perf_tests/test_kernels.py::test_kernels_of_forward[tiny-ctx8-fp32-naive]"


def test_a_pass_is_no_case_of_the_comparison_and_no_reason_for_another_baseline(tmp_path: Path) -> None:
    now = with_passes(record([timed()], [{**untimed(KERNELS), "pass": "kernels"}]), passed(KERNELS))
    assert [row.id for row in compare(record([timed()]), now)] == [row.id for row in compare(now, now)] == [FORWARD]
    assert ids_of(now) == {FORWARD}
    save_record(record([timed(), timed(BACKWARD, phase="backward")]), tmp_path / "machine", "one")
    assert latest_baseline(list_records(tmp_path).records, now["machine_info"], rows_by_id(now)) is not None


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Every pass, over naive attention, an example of a kernel and a wrong one."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "planted.py").write_text(FAULTS["mask off by one"].source)
    return launch(
        folder / "storage", f"--attention=naive,{EXAMPLE}:flash_attention,{folder}/planted.py:flash_attention",
        "--phase=inference,forward,backward,full_step", "-k=naive or not (warmup or inference or step)", "--kernels",
        "--memory", "--memory-snapshot", "--warmup-study", "--rounds=6", "-p", "tests.support.quick_warmup_study",
        exits=1,
    )  # fmt: skip


def of_pass(launched: Launch, name: str) -> dict[str, Json]:
    """The rows of a pass over naive attention, by phase."""
    rows = {case: row for case, row in launched.passes.items() if row["pass"] == name and "naive" in case}
    return {case.partition("[")[0].partition("_of_")[2]: row for case, row in rows.items()}


ALONE = {"attention_forward", "attention_backward"}
TIMED = {"inference", "forward", "backward", "full_step"} | ALONE


def test_each_case_is_a_row_of_each_pass_with_the_identity_of_its_timing_and_after_every_timing(ran: Launch) -> None:
    naive = {case: row for case, row in ran.measured.items() if "naive" in case}
    assert {case.partition("[")[0] for case in naive} == {f"test_{phase}" for phase in TIMED}
    for name in options.PASSES:
        assert extra_pass.pass_named(name).rounds_of("forward", 10) > 0
        rows = of_pass(ran, name)
        assert rows.keys() == (TIMED | {"first_step"} if name == "memory" else TIMED)
        for phase in TIMED:
            (timing,) = (row for case, row in naive.items() if case.startswith(f"test_{phase}["))
            assert rows[phase]["identity"] == identity_of(timing)
    is_pass = ["_of_" in case_id for case_id in ran.record["suite"]["selection"]]
    assert is_pass == sorted(is_pass)
    assert list(options.PASSES) == list(SHOWN_OF_PASSES)


def test_a_wrong_kernel_is_never_timed_nor_examined_and_fails_the_run(ran: Launch) -> None:
    wrong = {name: row for name, row in ran.outcomes.items() if "planted.flash_attention" in name}
    phases = [f"{alone}{way}" for alone in ("", "attention_") for way in ("forward", "backward")]
    assert {name.partition("[")[0] for name in wrong} == {
        f"test_{kind}{phase}" for kind in ("", "kernels_of_", "memory_of_") for phase in phases
    }
    assert wrong == ran.outcomes
    assert {row["outcome"] for row in wrong.values()} == {"incorrect"}
    assert all(" x its bound at (" in row["reason"] for row in wrong.values())
    assert not any("planted" in name for name in (*ran.measured, *ran.passes))
    assert "incorrect: error " in ran.output


def test_the_example_is_timed_in_the_model_and_alone_and_examined_by_the_passes(ran: Launch) -> None:
    for case in ("forward[tiny-ctx8", "backward[tiny-ctx8", "attention_forward[d16-seq16"):
        row = ran.measured[f"test_{case}-fp32-flash_attention.flash_attention]"]
        assert row["extra_info"]["attention"] == "examples/flash_attention.py:flash_attention", "no source, no path"
        assert row["extra_info"]["kernel_launches"] > 0
        assert f"test_kernels_of_{case}-fp32-flash_attention.flash_attention]" in ran.passes
        assert f"test_memory_of_{case}-fp32-flash_attention.flash_attention]" in ran.passes


def test_side_files_lie_whole_beside_the_record(ran: Launch) -> None:
    (machine_folder,) = {path.parent for path in ran.storage.glob("*/*.json")}
    for row in ran.passes.values():
        if row["pass"] == "kernels":
            assert (machine_folder / row["values"]["trace"]).read_bytes()[:2] == b"\x1f\x8b"
        elif row["pass"] == "memory":
            assert_opens((machine_folder / row["values"]["snapshot"]).read_bytes())
    assert not list(ran.storage.rglob(".unfinished-*"))


def test_the_screen_has_a_row_for_each_pass_and_says_where_its_files_are_and_what_to_set(ran: Launch) -> None:
    (folder,) = (path.name for path in ran.storage.glob("*/files-*") if path.is_dir())
    for name, *said in (
        ("kernels", f"traces for ui.perfetto.dev: {folder}, beside the record"),
        ("memory", "Saved for the backward pass by part",
         f"snapshots for pytorch.org/memory_viz: {folder}"),
        ("warmup", "for this machine: --warmup-rounds 2, which ", "1 is too few"),
    ):  # fmt: skip
        shown = ran.output.partition(f"- {name} -")[2]
        assert re.search(r"\ntiny +8 +full_step +fp32 +naive ", shown)
        assert all(sentence in shown for sentence in said)
    assert "in extra passes" in ran.output


def case_of(row: Json) -> Case:
    identity = row["identity"]
    if "head_dim" in identity:
        return attention.AttentionCase(**identity)
    names = [name for name in identity if name in language_model.LanguageModelCase.__dataclass_fields__]
    config = SIZES[identity["size"]].at_context(identity["context_length"])
    return language_model.LanguageModelCase(config=config, **{name: identity[name] for name in names})


def test_on_a_cpu_peaks_parts_categories_and_what_waits_for_the_backward_pass_are_predicted(ran: Launch) -> None:
    for phase, row in of_pass(ran, "memory").items():
        values, counters = row["values"], counters_of(case_of(row))
        assert values["predicted_peak_bytes"] == counters.peak_bytes
        assert values["parts"]
        for found in (values, *values["parts"]):
            # The loss scale, a number of four bytes, is only predicted.
            assert found["peak_allocated_bytes"] == pytest.approx(found["predicted_peak_bytes"], abs=64, rel=1e-6)
        assert values["flags"] == []
        held = values["peak_by_category_bytes"]
        assert values["predicted_by_category_bytes"] == counters.highest_part.bytes_by_category
        assert +Counter(held) == +Counter(values["predicted_by_category_bytes"])
        assert sum(held.values()) == pytest.approx(values["peak_allocated_bytes"], abs=64)
        moments = zip(*values["timeline"]["category_bytes"].values(), strict=True)
        assert max(map(sum, moments)) == sum(held.values())
        saved = sum(part["saved_bytes"] for part in values["saved_bytes_by_part"])
        assert saved == (0 if phase == "inference" else counters.saved_bytes)


def test_a_step_has_its_moments_and_attention_alone_the_one_before_its_backward_pass(ran: Launch) -> None:
    found = {phase: row["values"] for phase, row in of_pass(ran, "memory").items()}
    step = found["full_step"]
    marks = {mark["name"]: mark["allocated_bytes"] for mark in step["marks"]}
    assert list(marks) == ["after init", "after forward", "before backward", "before optimizer", "after optimizer"]
    assert marks["after init"] < marks["before backward"] < step["peak_allocated_bytes"]
    assert [part["name"] for part in step["timeline"]["parts"]] == ["forward", "loss", "backward", "optimizer"]
    forward, backward = (found[phase]["memory_before_backward_bytes"] for phase in sorted(ALONE, reverse=True))
    assert forward == backward > 0
    largest = found["forward"]["largest_allocations"]
    assert [made["bytes"] for made in largest] == sorted((made["bytes"] for made in largest), reverse=True)
    assert all(made["line"].startswith("model/") for made in largest)


def test_the_first_step_begins_without_gradients_and_moments_and_ends_with_those_of_a_later_one(ran: Launch) -> None:
    rows = of_pass(ran, "memory")
    first, later = (rows[phase]["values"]["timeline"]["category_bytes"] for phase in ("first_step", "full_step"))
    moments = 2 * SIZES["tiny"].parameters * 4
    for name, at_least in (("gradients", moments // 2), ("optimizer state", moments)):
        assert first[name][0] == 0
        assert first[name][-1] == later[name][-1] == later[name][0] >= at_least


def test_only_a_phase_with_a_set_up_can_leave_its_timed_part_out_of_a_warm_up(ran: Launch) -> None:
    for phase, row in of_pass(ran, "warmup").items():
        leaves_out = [one["leaves_out_timed_phase"] for one in row["values"]["series"]]
        assert leaves_out == [False] * 5 + [True] * (phase in ("backward", "attention_backward"))


def test_disabled_benchmarks_run_each_pass_once_and_keep_nothing(tmp_path: Path) -> None:
    passes = ("--kernels", "--memory", "--warmup-study", "-p", "tests.support.quick_warmup_study")
    disabled = launch(tmp_path, "--phase=forward", "-k=ctx8", *passes, "--benchmark-disable", exits=0)
    assert "4 passed" in disabled.output
    assert [path for path in disabled.storage.rglob("*") if path.is_file()] == []


def test_under_nsight_systems_ranges_run_and_no_other_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "17")
    common = (
        "perf_tests", "-p", "tests.support.quick_ceiling", f"--benchmark-storage=file://{tmp_path}", *SMALL,
        "--phase=forward", "-k=ctx8",
    )  # fmt: skip
    refused = {
        "--kernels": "Nsight Systems profiles this process (NSYS_PROFILING_SESSION_ID is set)",
        "--warmup-study": "run without --warmup-study under nsys",
        "--nvtx --kernels": "--nvtx is for a run under Nsight Systems and cannot be combined with --kernels.",
    }
    typed = ("--nvtx --benchmark-autosave", "--collect-only -q", *refused)
    (code, output, errors), (_, cases, _), *ends = launch_all([*common, *words.split()] for words in typed)
    assert code == 0, output + errors
    assert "nothing is timed and nothing is saved" in output
    assert "Median" not in output
    assert "Benchmark fixture" not in output  # what pytest-benchmark warns of
    for (code, _, errors), said in zip(ends, refused.values(), strict=True):
        assert (code, said in errors) == (4, True), errors
    assert [line for line in cases.splitlines() if "::" in line] == [FORWARD], "no pass without its option"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_new_way_of_looking_is_one_file(tmp_path: Path) -> None:
    """`counted_rounds.py` gives every benchmark another measure, and nothing is timed or saved."""
    counted = launch(tmp_path / "storage", "-p", "tests.support.counted_rounds", "-s", "--benchmark-disable", exits=0)
    assert "test_forward[tiny-ctx8-fp32-naive]: 3 rounds" in counted.output
    assert counted.records == []


# Workers of the passes.


def test_a_process_that_dies_or_would_not_fit_is_a_row_of_its_pass_and_the_next_case_runs(tmp_path: Path) -> None:
    end = launch(
        tmp_path, "-k=memory_of", "--memory", f"--model={MODELS}:DiesAt16", "--context=8,16,24,100000000",
        "--phase=forward", PLANTED_SIGNAL="SIGSEGV", exits=1,
    )  # fmt: skip
    rows = {name.partition("-ctx")[2].partition("-")[0]: row for name, row in end.outcomes.items()}
    assert {context: (row["outcome"], row["pass"]) for context, row in rows.items()} == {
        "16": ("error", "memory"), "100000000": ("would_not_fit", "memory")
    }  # fmt: skip
    assert "SIGSEGV" in rows["16"]["reason"]
    assert end.passes.keys() > {f"test_memory_of_forward[tiny-ctx{context}-fp32-own]" for context in (8, 24)}
    assert "Traceback" not in end.output


@contextmanager
def worker_in(folder: Path) -> Iterator[memory.MemoryWorker]:
    worker = memory.MemoryWorker(folder)
    try:
        yield worker
    finally:
        worker.end()


def write_worker(root: Path, code: str) -> None:
    folder = root / "perf_tests" / "passes"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "memory.py").write_text(code)
    shutil.copytree(IMPORTABLE, folder.parent / IMPORTABLE.name)


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    write_worker(tmp_path, "import nowhere")
    with worker_in(tmp_path) as worker, pytest.raises(WorkerEndedError, match="No module named 'nowhere'"):
        worker.ask({})


BENCHMARK = "perf_tests/test_backward.py::test_backward[tiny-ctx8-fp32-naive]"


def test_a_fresh_process_traces_its_first_round() -> None:
    """Started and not forked, as a study's are."""
    answer = warmup.in_fresh_process(SETTINGS, BENCHMARK, warmup.Study(0, 1, traces_first_round=True), ROOT)["values"]
    assert answer["first_round_parts"]["steady_round_seconds"] > 0
    assert answer["first_round"]["page_faults"] > answer["first_round"]["steady_page_faults"]


@pytest.mark.usefixtures("forked_workers")
def test_a_fresh_process_times_every_round_of_its_benchmark_and_without_one_says_so() -> None:
    answer = warmup.in_fresh_process(SETTINGS, BENCHMARK, warmup.Study(2, 3), ROOT)["values"]
    assert (len(answer["warmup_seconds"]), len(answer["seconds"])) == (2, 3)
    assert min(answer["warmup_seconds"] + answer["seconds"]) > 0
    outcome = warmup.in_fresh_process(SETTINGS, BENCHMARK.replace("ctx8", "ctx9"), warmup.Study(3, 1), ROOT)["outcome"]
    assert (outcome["outcome"], "not found" in outcome["reason"]) == ("error", True)


def test_a_fresh_process_that_is_killed_is_named_with_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed_at_once(module: str, folder: Path, environment: Mapping[str, str]) -> WorkerProcess:
        worker = start_worker(module, folder, environment)
        worker.process.kill()
        worker.process.wait()
        return worker

    monkeypatch.setattr("perf_tests_suite.perf_tests.passes.warmup.start_worker", killed_at_once)
    with pytest.raises(WorkerEndedError, match=r"was killed by SIGKILL\."):
        warmup.in_fresh_process(SETTINGS, BENCHMARK, warmup.Study(0, 1), ROOT)
