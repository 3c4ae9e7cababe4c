"""What the README and its pages say is so: commands run, paths exist, tables and results are the program's own."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests.__main__ import main
from perf_tests.audit.plausibility import MEASURED_CEILING_MARGIN
from perf_tests.bench.against import DEFAULT_MINUTES
from perf_tests.gate.conclusion import conclude
from perf_tests.gate.rules import Rules, rules_from_settings
from perf_tests.gate.samples import read_samples
from perf_tests.limits.datasheets import gpu_named
from perf_tests.meta_tests.documents import README, ROOT, block, indented, page, section
from perf_tests.options import add_options
from perf_tests.proofs import (
    against_llama,
    gate_cost,
    gate_false_alarms,
    gate_simulation,
    passes_beside_timing,
    predicted_cpu_peak,
    predicted_memory,
    predicted_times,
    quick,
    suite_against_loop,
)
from perf_tests.records.store import read_record
from perf_tests.views.screens.gate import report_lines
from perf_tests.views.screens.lines import result_lines


def commands(text: str) -> list[str]:
    """Indented lines, without their trailing comments."""
    return [line.partition(" #")[0].strip() for line in text.splitlines() if line.startswith("    ")]


PYTEST_COMMANDS = [line for line in commands(section("Run")) if line.startswith("pytest")]
MAKE_COMMANDS = [line for line in commands(section("Run")) if line.startswith("make")]


@pytest.mark.parametrize("command", PYTEST_COMMANDS)
def test_each_pytest_command_collects(command: str, tmp_path: Path) -> None:
    words = [*shlex.split(command)[1:], "--collect-only", "-q", f"--benchmark-storage=file://{tmp_path}"]
    ended = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]


@pytest.mark.parametrize("command", MAKE_COMMANDS)
def test_each_make_target_exists(command: str) -> None:
    ended = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("command", commands(page("claims")))
def test_each_proof_exists(command: str) -> None:
    module = shlex.split(command)[2]
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize(
    "proof, limit",
    [
        ("suite_against_loop", f"within {100 * (suite_against_loop.LIMITS[1] - 1):.0f} %"),
        ("against_llama", f"within {100 * (against_llama.MARGIN - 1):.0f} %"),
        ("gate_simulation", f"at most {100 * gate_simulation.RULES.alpha:.0f} %"),
        ("gate_simulation", f"{100 * gate_simulation.CLAIMED_POWER[0.05]:.0f} % of 5 % found"),
        ("gate_false_alarms", f"at most {100 * gate_false_alarms.FAMILY_WISE_RATE:.0f} %"),
        ("gate_power", f"5 % is found in {100 * gate_simulation.CLAIMED_POWER[0.05]:.0f} %"),
        ("gate_power", f"3 % in {100 * gate_simulation.CLAIMED_POWER[0.03]:.0f} %"),
        ("gate_cost", f"less than {gate_cost.LIMIT_SECONDS / 60:.0f} minutes"),
        ("gate_cost", f"{gate_simulation.CLAIMED_CLEARED:.0%} cleared"),
        ("passes_beside_timing", "within {} to {}".format(*passes_beside_timing.LIMITS)),
        ("predicted_memory", f"within {predicted_memory.CELL_LIMIT:.0%} and {predicted_memory.MEDIAN_LIMIT:.0%}"),
        (
            "predicted_times",
            f"within {predicted_times.MEAN_ERROR_LIMIT:.0%} and {predicted_times.MEDIAN_ERROR_LIMIT:.0%}",
        ),
        ("predicted_cpu_peak", f"within {predicted_cpu_peak.LIMIT:.1%}"),
    ],
)
def test_each_claim_names_the_limit_that_its_proof_checks(proof: str, limit: str) -> None:
    (line,) = (line for line in page("claims").splitlines() if f"proofs.{proof} " in line)
    assert limit.replace(" %", "%") in line.replace(" %", "%")


@pytest.mark.parametrize("name", quick.CLAIMS)
def test_each_claim_of_being_quick_is_said_with_the_limits_that_are_checked(name: str) -> None:
    claim = quick.CLAIMS[name]
    (line,) = (line for line in page("claims").splitlines() if f"proofs.quick {name} " in line)
    assert line.partition("# ")[2] == claim.sentence
    for limit in claim.limits:
        assert f"{limit:g} " in claim.sentence or f"{limit:.0%}".replace("%", " %") in claim.sentence


def test_the_margins_of_impossible_are_those_that_the_rules_take() -> None:
    text = " ".join(page("plausibility").split())
    assert f"elsewhere {MEASURED_CEILING_MARGIN:g} x the best square product" in text
    assert f"GeForce cards to {gpu_named('RTX 4090').clock_margin:g} x their rated clock" in text


def test_the_gate_is_described_with_its_own_numbers() -> None:
    assert Rules().screen_pairs == 6
    assert "A first stage of six pairs" in page("gate")
    assert f"`pass`, `fail` | {DEFAULT_MINUTES:.0f}, `{Rules().undecided}` |" in section("Run")


def test_the_gate_shows_what_a_replay_of_its_samples_says() -> None:
    text = block(page("gate"), "gate")
    name = re.search(r"`(\.benchmarks/[^`]+\.jsonl)`", text)
    assert name is not None, "the gate's output names no samples"
    samples = read_samples(ROOT / name[1])
    rules = rules_from_settings(samples.header["settings"])
    said = report_lines(conclude(samples, rules), samples.header, rules)
    shown = indented(text)
    assert len(shown) > 5
    assert [line for line in shown if line not in said] == []


def test_the_readme_has_commands_to_test() -> None:
    assert len(PYTEST_COMMANDS) >= 4
    assert len(MAKE_COMMANDS) >= 3
    assert len(commands(page("claims"))) >= 5


def test_the_option_table_lists_every_option_and_no_other() -> None:
    parser = Mock()
    add_options(parser)
    known = {call.args[0] for call in parser.getgroup().addoption.call_args_list}
    rows = [line.split("|")[1] for line in section("Run").splitlines() if line.startswith("| `--")]
    assert {name for row in rows for name in re.findall(r"`(--[a-z-]+)`", row)} == known


def test_the_prediction_is_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, *shown = indented(block(page("predict"), "predicted"))
    main(shlex.split(command.removeprefix("$ python -m perf_tests ")))
    assert shown == [line for line in capsys.readouterr().out.splitlines() if line]


def mapped_paths() -> list[str]:
    """The file names of the map, each with the folder it is listed under."""
    folder, found = "", []
    for line in section("Map").splitlines():
        indent = len(line) - len(line.lstrip())
        for word in line.partition("  #")[0].split():
            if indent == 4 and word.endswith("/"):
                folder = word
            if word.endswith((".py", "/")) and not word.startswith("("):
                found.append(word if indent == 4 else folder + word)
    return found


@pytest.mark.parametrize("path", mapped_paths())
def test_each_path_of_the_map_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_file_of_perf_tests_is_on_the_map() -> None:
    on_the_map = {Path(path).name for path in mapped_paths()}
    here = {path.name for path in (ROOT / "perf_tests").glob("*.py")} - {"__init__.py", "__main__.py"}
    assert here - on_the_map == set()


def test_the_results_are_those_of_the_record_they_name() -> None:
    text = block(README, "results")
    name = re.search(r"`(\.benchmarks/[^`]+\.json)`", text)
    assert name is not None, "the results name no record"
    assert indented(text) == [line.rstrip() for line in result_lines(read_record(ROOT / name[1]).data)]


def test_the_picture_is_of_sections_that_the_page_of_its_record_has(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    record = re.search(r"^RECORD := (\S+)$", makefile, re.MULTILINE)
    shown = re.search(r"^SHOWN := (.+)$", makefile, re.MULTILINE)
    assert record is not None
    assert shown is not None
    assert main(["report", str(ROOT / record[1]), f"--output={tmp_path / 'page.html'}"]) == 0
    page_text = (tmp_path / "page.html").read_text()
    anchors = re.findall(r"#([\w-]+)", shown[1])
    assert [anchor for anchor in anchors if f'<section id="{anchor}"' not in page_text] == []
    assert len(anchors) == 3


def links() -> list[tuple[Path, str]]:
    """Each file with the files that it links to."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [(path, link) for path in pages for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text())]


@pytest.mark.parametrize("path, link", links())
def test_each_link_leads_to_a_file(path: Path, link: str) -> None:
    assert (path.parent / link).exists()


def test_the_readme_links_to_every_page() -> None:
    linked = {link for path, link in links() if path.name == "README.md"}
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - linked == set()
