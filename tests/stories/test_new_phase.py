"""A new phase is one row of `phases.py` and one benchmark: it is run, recorded, compared and shown like any other.

On a machine with torch and little else: no git repository, and plugins of its own that must stay out.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.records.record import identity_of
from tests.support.forked_python import forked_python
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
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A copy of this tree with one row and one benchmark more runs the new phase between two old ones."""
    tree = tmp_path_factory.mktemp("tree")
    copy_suite(tree)
    phases = tree / "perf_tests" / "phases.py"
    phases.write_text(phases.read_text().replace(LAST_ROW, NEW_ROW + LAST_ROW, 1))
    (tree / "perf_tests" / "test_loss.py").write_text(NEW_BENCHMARK)
    suite = (forked_python(), "-m", "pytest", "perf_tests", "-p", "tests.support.quick_ceiling")
    options = (*SMALL, "--phase=full_step,loss,forward", "-k=not attention and not step_of", "--memory")
    command = (*suite, "-p", "no:cacheprovider", *options)
    process = start_command(command, tree, tree, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return finish(process, tree / ".benchmarks", exits=0)


def test_a_new_phase_is_measured_and_counted_before_what_trains(run: Launch) -> None:
    """A forward pass and the loss after it are held; launched and computed is the loss alone, without a product."""
    assert [path.stem for path in run.paths] == ["0001_unversioned"]
    assert "test_memory_of_forward[tiny-ctx8-fp32-naive]" in run.passes, "by a worker that keeps plugins out too"
    rows = run.record["benchmarks"]
    assert [identity_of(row)["phase"] for row in rows] == ["forward", "loss", "full_step"]
    assert identity_of(rows[1]) == {**identity_of(rows[0]), "phase": "loss"}
    forward, loss = (row["extra_info"] for row in rows[:2])
    assert [loss[name] for name in ("counters_reason", "model_flops", "records_graph")] == [None, None, True]
    assert 0 < loss["kernel_launches"] < forward["kernel_launches"]
    assert loss["saved_bytes"] > forward["saved_bytes"]
    assert loss["predicted_peak_bytes"] >= forward["predicted_peak_bytes"]


def test_it_is_compared_and_shown_between_the_others_and_outlives_its_row(run: Launch, tmp_path: Path) -> None:
    """Where a tree has no row for it, it stands under its own name."""

    def shown(tree: Path, *words: str) -> str:
        command = [sys.executable, "-m", "perf_tests", words[0], str(record), *words[1:]]
        return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout

    tree, (record,) = run.storage.parent, run.storage.glob("*/*.json")
    again = tmp_path / "0002_again.json"
    again.write_text(json.dumps({**run.record, "suite": {**run.record["suite"], "run": "another"}}))
    rows = json.loads(shown(tree, "compare", str(again), "--json"))
    assert [(row["status"], row["ratio"]) for row in rows if "test_loss" in row["id"]] == [("measured in both", 1.0)]
    table = shown(tree, "tables", "--only", "timing")
    assert table.index("forward (ms)") < table.index("loss (ms)") < table.index("step (ms)")
    assert "loss (ms)" in shown(ROOT, "tables", "--only", "timing")
    shown(tree, "report", "-o", str(tmp_path / "report.html"))
    assert "loss tiny-ctx8-fp32-naive" in (tmp_path / "report.html").read_text()
