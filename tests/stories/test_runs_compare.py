"""Comparisons in real launches: against a record as it was written, or with one thing in it changed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perf_tests.records.record import Json
from tests.support.launch import MODELS, Launch, launch, launched_once, record_files, short

CASES = (f"--model={MODELS}:OutOfMemoryOnRequest", "--phase=forward,backward", "--rounds=7")
FORWARD = "test_forward[tiny-ctx8-fp32-own]"
BACKWARD = "test_backward[tiny-ctx8-fp32-own]"

baseline = launched_once(*CASES)


def launch_after(
    baseline: Launch, storage: Path, change: Callable[[Json], None], *arguments: str, **environment: str
) -> Launch:
    """Compare a new run with the baseline after `change`."""
    (path,) = record_files(baseline.storage)
    data = json.loads(path.read_bytes())
    change(data)
    copy = storage / path.relative_to(baseline.storage)
    copy.parent.mkdir()
    copy.write_text(json.dumps(data))
    return launch(storage, *CASES, *arguments, **environment)


def row_of(data: Json, name: str) -> Json:
    row: Json
    (row,) = (row for row in data["benchmarks"] if row["fullname"].endswith(name))
    return row


def line_with(launched: Launch, beginning: str) -> str:
    """The line of the comparison that tells of one case."""
    lines = launched.output.partition(" compared with ")[2].splitlines()
    return next(line for line in lines if line.startswith(beginning))


@pytest.fixture(scope="module")
def again(baseline: Launch, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """The same run twice, on a host whose name, kernel and clock have changed since."""

    def drift(data: Json) -> None:
        data["machine_info"] |= {"node": "another-host", "release": "0.0"}
        data["machine_info"]["cpu"]["hz_actual"] = [1, 0]

    storage = tmp_path_factory.mktemp("again")
    words = ("--benchmark-group-by=param:precision,param:head_dim", f"--benchmark-json={storage / 'whole.json'}")
    return launch_after(
        baseline, storage, drift, "--benchmark-compare", *words, "--benchmark-compare-fail=median:9999%"
    )


def test_the_same_run_twice_differs_in_nothing_that_counts(again: Launch) -> None:
    assert again.exit_code == 0
    assert " compared with " in again.output
    assert "No verdict on time: every comparable record is of this run's own code." in again.output


def test_every_case_has_the_ratio_of_its_medians_and_a_labelled_interval(baseline: Launch, again: Launch) -> None:
    before, now = baseline.measured, json.loads((again.storage / "whole.json").read_bytes())["benchmarks"]
    assert len(now) == 4
    for row in now:
        name = short(row["fullname"])
        ratio = row["stats"]["median"] / before[name]["stats"]["median"]
        case = name.removeprefix("test_").replace("[", " ").removesuffix("]")
        assert f"  {ratio:.3f}  " in line_with(again, f"{case} ")
    assert "within these launches" in again.output
    assert " to " in line_with(again, "forward tiny-ctx8")


def test_pytest_benchmarks_own_table_shows_the_baseline_beside_the_run(again: Launch) -> None:
    """Grouped by an axis that one family lacks too."""
    table = again.output.partition("- results -")[0]
    assert "precision=fp32 head_dim=16" in table
    assert f"{FORWARD} (NOW)" in table
    assert f"{FORWARD} (0001" in table


def test_the_json_file_asked_for_is_the_whole_record(again: Launch) -> None:
    newest = max(again.records, key=lambda record: str(record["datetime"]))
    assert json.loads((again.storage / "whole.json").read_bytes()) == newest


def change_torch(data: Json) -> None:
    data["machine_info"]["torch"] |= {"torch": "0.4.1", "threads": 999}


def test_a_baseline_of_another_machine_is_refused_before_measuring(baseline: Launch, tmp_path: Path) -> None:
    refused = launch_after(baseline, tmp_path, change_torch, "--benchmark-compare=0001")
    assert refused.exit_code == 4
    for named in ("torch: ", "'0.4.1' there", "threads: ", "999 there"):
        assert named in refused.errors
    assert len(refused.records) == 1
    assert refused.journals == []


def test_without_a_number_another_machines_record_is_passed_over_and_named(baseline: Launch, tmp_path: Path) -> None:
    first = launch_after(baseline, tmp_path, change_torch, "--benchmark-compare")
    assert first.exit_code == 0
    assert "torch: " in first.output
    assert "'0.4.1' there" in first.output
    assert " compared with " not in first.output


def test_only_a_case_of_this_runs_axes_is_gone_which_fails_and_keeps_it(baseline: Launch, tmp_path: Path) -> None:
    def add_cases(data: Json) -> None:
        renamed, elsewhere = (json.loads(json.dumps(row_of(data, FORWARD))) for _ in range(2))
        renamed["fullname"] = renamed["fullname"].replace("test_forward[", "test_renamed[")
        elsewhere["fullname"] = elsewhere["fullname"].replace("ctx8", "ctx4096")
        elsewhere["extra_info"]["context_length"] = 4096
        data["benchmarks"] += [renamed, elsewhere]

    two_missing = launch_after(baseline, tmp_path, add_cases, "--benchmark-compare")
    assert two_missing.exit_code == 1
    assert "gone" in line_with(two_missing, "renamed tiny-ctx8")
    assert "ctx4096" not in two_missing.output
    assert len(two_missing.records) == 2


def test_a_case_that_no_longer_fits_fails_the_run(baseline: Launch, tmp_path: Path) -> None:
    compared = launch_after(baseline, tmp_path, lambda data: None, "--benchmark-compare", PLANTED_MEMORY="all there is")
    assert compared.exit_code == 1
    assert "no longer measured (" in line_with(compared, "forward tiny-ctx8")


def launch_after_many(baseline: Launch, storage: Path, machine_faster: float) -> Launch:
    """After two launches of this code and five of another commit: faster by far more than a busy machine is slow."""
    (path,) = record_files(baseline.storage)
    folder = storage / path.parent.name
    folder.mkdir()
    for number in range(7):
        data = json.loads(path.read_bytes())
        data["datetime"] = f"2030-01-01T00:{number:02}:00+00:00"
        data["suite"]["run"] = f"run {number}"
        if number < 5:
            data["commit_info"].update(id="b" * 40, dirty=False)
            for row in data["benchmarks"]:
                row["stats"]["data"] = [seconds / 1e4 for seconds in row["stats"]["data"]]
                row["extra_info"]["cpu_seconds"] = [seconds / 1e4 for seconds in row["extra_info"]["cpu_seconds"]]
                row["extra_info"]["matmul_ceiling_tflops_per_second"] *= machine_faster
        (folder / f"{number + 1:04}_x.json").write_text(json.dumps(data))
    return launch(storage, *CASES, "--benchmark-compare")


@pytest.mark.parametrize(
    "machine_faster, exit_code, verdict", [(1.0, 1, "SLOWER: forward tiny-ctx8"), (1000.0, 4, "gate: CONTAMINATED")]
)
def test_with_launches_enough_a_comparison_ends_in_verdicts_and_their_exit_code(
    baseline: Launch, tmp_path: Path, machine_faster: float, exit_code: int, verdict: str
) -> None:
    ended = launch_after_many(baseline, tmp_path, machine_faster)
    assert ended.exit_code == exit_code
    assert "5 launches of base against 3 of head" in ended.output
    assert verdict in ended.output


FOREIGN = {"0001_truncated.json": '{"benchmarks": [', "0002_foreign.json": "[1, 2, 3]"}


@pytest.fixture(scope="module")
def narrowed(baseline: Launch, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Only the language models, chosen with -k, after one is new, the other another case under the same name."""

    def change(data: Json) -> None:
        data["benchmarks"].remove(row_of(data, BACKWARD))
        row_of(data, FORWARD)["extra_info"].update(batch_size=64, model="theirs:build")

    storage = tmp_path_factory.mktemp("narrowed")
    (storage / "another-machine").mkdir()
    for name, content in FOREIGN.items():
        (storage / "another-machine" / name).write_text(content)
    return launch_after(baseline, storage, change, "--benchmark-compare", "-k=not attention")


def test_with_a_narrowed_selection_nothing_is_gone_and_the_rest_is_counted(narrowed: Launch) -> None:
    assert narrowed.exit_code == 0
    assert "Not selected, so not counted as gone: 2 cases of these axes." in narrowed.output


def test_a_file_that_is_no_record_is_named_once_and_left_alone(narrowed: Launch) -> None:
    for name, content in FOREIGN.items():
        path = narrowed.storage / "another-machine" / name
        assert narrowed.output.count(str(path)) == 1
        assert path.read_text() == content


def test_a_case_that_the_baseline_lacks_is_new_and_one_of_another_identity_incomparable(narrowed: Launch) -> None:
    assert "new (" in line_with(narrowed, "backward tiny-ctx8")
    line = line_with(narrowed, "forward tiny-ctx8")
    assert all(words in line for words in ("incomparable", "batch_size was 64, is 4", "model was 'theirs:build'"))


def test_a_regression_beyond_the_users_limit_fails_the_run_and_names_the_case(baseline: Launch, tmp_path: Path) -> None:
    def a_nanosecond(data: Json) -> None:
        """Far below anything that a noisy machine could make of the next run."""
        row_of(data, FORWARD)["stats"] |= {"data": [1e-9] * 7, "median": 1e-9}

    limit = ("--benchmark-compare=0001", "--benchmark-compare-fail=median:10000%")
    compared = launch_after(baseline, tmp_path, a_nanosecond, *limit)
    assert compared.exit_code == 1
    (told,) = (line for line in compared.output.splitlines() if "10000" in line and "test_" in line)
    assert FORWARD in told
    assert "Traceback" not in compared.output + compared.errors
