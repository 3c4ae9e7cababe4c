"""Comparisons in real launches: against a record as it was written, or with one thing in it changed. Four launches."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.record import Json
from tests.support.launch import MODELS, Launch, launch, launched_once, short

CASES = (f"--model={MODELS}:OutOfMemoryOnRequest", "--phase=forward,backward", "--rounds=7")
FORWARD = "test_forward[tiny-ctx8-fp32-own]"
BACKWARD = "test_backward[tiny-ctx8-fp32-own]"
ATTENTION = "test_attention_forward[d16-seq16-fp32-naive]"

Change = Callable[[Json], object]

baseline = launched_once(*CASES, exits=0)


def launch_after(
    baseline: Launch, storage: Path, changes: Iterable[Change], *arguments: str, exits: int, **environment: str
) -> Launch:
    """Compare a new run with as many records as there are changes, each the baseline after one."""
    (path,) = baseline.paths
    folder = storage / path.parent.name
    folder.mkdir()
    for number, change in enumerate(changes):
        data = json.loads(path.read_bytes())
        change(data)
        (folder / f"{number + 1:04}_{path.stem.partition('_')[2]}.json").write_text(json.dumps(data))
    return launch(storage, *CASES, *arguments, exits=exits, **environment)


def row_of(data: Json, name: str) -> Json:
    row: Json
    (row,) = (row for row in data["benchmarks"] if row["fullname"].endswith(name))
    return row


def line_with(launched: Launch, beginning: str) -> str:
    """The line of the comparison that tells of one case."""
    lines = launched.output.partition(" compared with ")[2].splitlines()
    return next(line for line in lines if line.startswith(beginning))


FOREIGN = {"0001_truncated.json": '{"benchmarks": [', "0002_foreign.json": "[1, 2, 3]"}


@pytest.fixture(scope="module")
def again(baseline: Launch, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """The same run twice, beside foreign files, on a host whose name, kernel and clock have changed since."""

    def drift(data: Json) -> None:
        data["machine_info"] |= {"node": "another-host", "release": "0.0"}
        data["machine_info"]["cpu"]["hz_actual"] = [1, 0]

    storage = tmp_path_factory.mktemp("again")
    (storage / "another-machine").mkdir()
    for name, content in FOREIGN.items():
        (storage / "another-machine" / name).write_text(content)
    words = ("--benchmark-group-by=param:precision,param:head_dim", f"--benchmark-json={storage / 'whole.json'}")
    limit = ("--benchmark-compare", "--benchmark-compare-fail=median:9999%")
    return launch_after(baseline, storage, [drift], *words, *limit, exits=0)


def test_the_same_run_twice_differs_in_nothing_that_counts(baseline: Launch, again: Launch) -> None:
    assert "within these launches" in again.output
    whole = json.loads((again.storage / "whole.json").read_bytes())
    (saved,) = (path for path in again.storage.glob("*/0002_*.json") if path.name not in FOREIGN)
    assert whole == json.loads(saved.read_bytes()), "the file asked for"
    for name, row in ((short(row["fullname"]), row) for row in whole["benchmarks"]):
        ratio = row["stats"]["median"] / baseline.measured[name]["stats"]["median"]
        case = name.removeprefix("test_").replace("[", " ").removesuffix("]")
        assert f"  {ratio:.3f}  " in line_with(again, f"{case} ")


def test_a_file_that_is_no_record_is_named_once_and_left_alone(again: Launch) -> None:
    for name, content in FOREIGN.items():
        path = again.storage / "another-machine" / name
        assert again.output.count(str(path)) == 1
        assert path.read_text() == content


def test_pytest_benchmarks_own_table_shows_the_baseline_beside_the_run(again: Launch) -> None:
    """Grouped by an axis that one family lacks too."""
    table = again.output.partition("- results -")[0]
    for words in ("precision=fp32 head_dim=16", f"{FORWARD} (NOW)", f"{FORWARD} (0001"):
        assert words in table


def test_what_is_gone_no_longer_fits_or_became_slower_fails_the_run(baseline: Launch, tmp_path: Path) -> None:
    """Beside one that is new and one of another identity under the same name, which fail nothing."""

    def change(data: Json) -> None:
        renamed, elsewhere = (json.loads(json.dumps(row_of(data, FORWARD))) for _ in range(2))
        renamed["fullname"] = renamed["fullname"].replace("test_forward[", "test_renamed[")
        elsewhere["fullname"] = elsewhere["fullname"].replace("ctx8", "ctx4096")
        elsewhere["extra_info"]["context_length"] = 4096
        data["benchmarks"] += [renamed, elsewhere]
        data["benchmarks"].remove(row_of(data, ATTENTION.replace("forward", "backward")))
        row_of(data, BACKWARD)["extra_info"].update(batch_size=64, model="theirs:build")
        # Far below anything that a noisy machine could make of the next run.
        row_of(data, ATTENTION)["stats"] |= {"data": [1e-9] * 7, "median": 1e-9}

    limit = ("--benchmark-compare=0001", "--benchmark-compare-fail=median:10000%")
    failed = launch_after(baseline, tmp_path, [change], *limit, PLANTED_MEMORY="all there is", exits=1)
    assert "gone" in line_with(failed, "renamed tiny-ctx8")
    assert "ctx4096" not in failed.output, "outside of this run's axes"
    assert "no longer measured (" in line_with(failed, "forward tiny-ctx8")
    assert "new (" in line_with(failed, "attention_backward d16-seq16")
    other = line_with(failed, "backward tiny-ctx8")
    assert all(words in other for words in ("incomparable", "batch_size was 64, is 4", "model was 'theirs:build'"))
    (told,) = (line for line in failed.output.splitlines() if "10000" in line and "test_" in line)
    assert ATTENTION in told
    assert len(failed.records) == 2
    assert "Traceback" not in failed.output + failed.errors


def test_a_measured_case_carries_its_counters_and_what_follows_from_them(baseline: Launch) -> None:
    row = baseline.measured[ATTENTION]
    info = row["extra_info"]
    assert info["executed_flops"] == info["model_flops"]
    for name in ("kernel_launches", "bytes_touched", "saved_bytes", "predicted_peak_bytes"):
        assert info[name] > 0
    assert info["roofline_fraction"] == pytest.approx(info["roofline_seconds"] / row["stats"]["median"])
    assert info["bound"] in ("launch", "compute", "memory")
    assert info["counters_reason"] is None
    assert "counting and ceilings" in baseline.output


def test_a_case_faster_than_its_machine_fails_and_is_a_row_with_its_rounds(tmp_path: Path) -> None:
    """On a machine whose best product does one operation a second."""
    too_fast = launch(tmp_path, "--phase=forward,backward", "-k=ctx8", PLANTED_FLOPS_PER_SECOND="1", exits=1)
    row = too_fast.outcomes["test_forward[tiny-ctx8-fp32-naive]"]
    assert (too_fast.measured, row["outcome"], len(row["rounds"])) == ({}, "impossible", 2)
    assert "Most likely" in row["reason"]
    assert "impossible: " in too_fast.output
