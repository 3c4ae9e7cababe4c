"""A new phase is one row of `phases.py` and one benchmark: it is run, recorded, compared and shown like any other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perf_tests.records.record import identity_of
from tests.support.git_repository import copy_suite
from tests.support.launch import ROOT, SMALL, Launch, finish, start_command

LAST_ROW = '        Phase("attention_forward",'
NEW_ROW = '        Phase("loss", LANGUAGE_MODEL, ("forward",), ("loss",)),\n'

NEW_BENCHMARK = '''
import pytest


@pytest.mark.phase("loss")
def test_loss(case, training, batch, measure):
    """The loss alone; its logits are set-up."""

    def forward():
        return (training.forward(batch.tokens_BT), batch.targets_BT)

    assert measure(training.loss, setup=forward).isfinite()
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree, with one row and one benchmark more."""
    tree = tmp_path_factory.mktemp("tree")
    copy_suite(tree)
    phases = tree / "perf_tests" / "phases.py"
    source = phases.read_text()
    assert source.count(LAST_ROW) == 1
    phases.write_text(source.replace(LAST_ROW, NEW_ROW + LAST_ROW))
    (tree / "perf_tests" / "test_loss.py").write_text(NEW_BENCHMARK)
    return tree


@pytest.fixture(scope="module")
def run(tree: Path) -> Launch:
    """The new phase between two old ones, one of which trains."""
    suite = (sys.executable, "-m", "pytest", "perf_tests", "-p", "tests.support.quick_ceiling")
    options = (f"--benchmark-storage=file://{tree}/storage", "--phase=full_step,loss,forward", "-k=not attention")
    return finish(start_command((*suite, "-p", "no:cacheprovider", *SMALL, *options), tree, tree), tree / "storage")


def shown(tree: Path, run: Launch, *arguments: str) -> str:
    """What a verb prints of the run."""
    (record,) = run.storage.glob("*/*.json")
    command = [sys.executable, "-m", "perf_tests", *(str(record) if word == "RUN" else word for word in arguments)]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout


def test_a_new_phase_is_measured_before_what_trains(run: Launch) -> None:
    assert run.exit_code == 0, run.output + run.errors
    assert [identity_of(row)["phase"] for row in run.record["benchmarks"]] == ["forward", "loss", "full_step"]


def test_its_row_has_the_identity_of_its_model(run: Launch) -> None:
    forward, loss, _ = run.record["benchmarks"]
    assert identity_of(loss) == {**identity_of(forward), "phase": "loss"}


def test_its_counters_are_those_of_the_loss(run: Launch) -> None:
    """A forward pass and the loss after it are held; launched and computed is the loss alone, without a product."""
    forward, info, _ = (row["extra_info"] for row in run.record["benchmarks"])
    assert info["counters_reason"] is None
    assert (info["model_flops"], info["tflops_per_second"], info["records_graph"]) == (None, None, True)
    assert 0 < info["kernel_launches"] < forward["kernel_launches"]
    assert info["saved_bytes"] > forward["saved_bytes"]
    assert info["predicted_peak_bytes"] >= forward["predicted_peak_bytes"]


def test_a_comparison_reads_it(tree: Path, run: Launch, tmp_path: Path) -> None:
    again = tmp_path / "0002_again.json"
    again.write_text(json.dumps({**run.record, "suite": {**run.record["suite"], "run": "another"}}))
    rows = json.loads(shown(tree, run, "compare", "RUN", str(again), "--json"))
    (loss,) = (row for row in rows if "test_loss" in row["id"])
    assert (loss["status"], loss["ratio"]) == ("measured in both", 1.0)


def test_tables_and_report_show_it_between_the_phases_around_it(tree: Path, run: Launch, tmp_path: Path) -> None:
    table = shown(tree, run, "tables", "RUN", "--only", "timing")
    assert table.index("forward (ms)") < table.index("loss (ms)") < table.index("step (ms)")
    shown(tree, run, "report", "RUN", "-o", str(tmp_path / "report.html"))
    assert "loss tiny-ctx8-fp32-naive" in (tmp_path / "report.html").read_text()


def test_a_tree_without_its_row_still_shows_it(run: Launch) -> None:
    """Records outlive rows: a phase that has none is shown under its own name."""
    table = shown(ROOT, run, "tables", "RUN", "--only", "timing")
    assert "loss (ms)" in table
