"""What the README and its pages say is so: commands run, paths exist, tables and results are the program's own."""

import argparse
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from claims.published_times import LONG
from claims.table import CLAIMS
from perf_tests.__main__ import VERBS, main
from perf_tests.audit import consistency as attention_growth
from perf_tests.audit import consistency as compilation
from perf_tests.audit import physics as plausibility
from perf_tests.audit.physics import MEASURED_CEILING_MARGIN
from perf_tests.audit.tables import WINDOW
from perf_tests.gate.samples import Rules, read_samples, rules_from_settings
from perf_tests.gate.verdicts import conclude
from perf_tests.hardware import limits as ceilings
from perf_tests.hardware.datasheets import gpu_named
from perf_tests.interleaved.draws import DISTURBED, FEWEST_QUADRUPLES, LONG_QUADRUPLE_SECONDS
from perf_tests.interleaved.on_demand import FEWEST_ROUNDS
from perf_tests.records.store import read_record
from perf_tests.report.gate_screens import report_lines
from perf_tests.report.screens import result_lines
from tests.support.documents import (
    OMITTED,
    PAGES,
    README,
    ROOT,
    block,
    commands,
    indented,
    is_shortened,
    named,
    output,
    page,
    section,
)
from tests.support.launch import launch_all

TYPED_FROM = [*PAGES, ROOT / "WRITEUP.md"]
COMMANDS = list(dict.fromkeys(command for path in TYPED_FROM for command in commands(path.read_text())))
PYTEST, MAKE, VERB, CLAIM = "pytest ", "make ", "python -m perf_tests ", "python -m claims "


def commands_that_begin(beginning: str) -> list[str]:
    return [command for command in COMMANDS if command.startswith(beginning)]


def test_each_pytest_command_collects() -> None:
    typed = commands_that_begin(PYTEST)
    ends = launch_all([*shlex.split(words)[1:], "--collect-only", "-q", "-p", "no:cacheprovider"] for words in typed)
    assert [(words, *end) for words, end in zip(typed, ends, strict=True) if end[0]] == []


def test_pytest_benchmarks_own_command_groups_as_typed() -> None:
    (command,) = commands_that_begin("pytest-benchmark compare ")
    words = [sys.executable, "-c", "from pytest_benchmark.cli import main; main()", *shlex.split(command)[1:]]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert "benchmark 'precision=bf16': 3 tests" in ended.stdout, ended.stderr


@pytest.mark.parametrize("command", commands_that_begin(MAKE))
def test_each_make_target_exists(command: str) -> None:
    ended = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("command", commands_that_begin(VERB))
def test_each_verb_takes_what_is_typed(command: str) -> None:
    verb, *words = shlex.split(command.removeprefix(VERB))
    assert verb in (*VERBS, "VERB")
    if not words:
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    importlib.import_module(VERBS[verb]).add_arguments(parser)
    parser.parse_args([word.strip("[]") for word in words if word != "..."])


@pytest.mark.parametrize("command", commands_that_begin(CLAIM))
def test_each_claim_that_is_typed_exists(command: str) -> None:
    names = [word for word in shlex.split(command)[3:] if not word.startswith("-") and not word.isdecimal()]
    assert set(names) <= CLAIMS.keys()


def test_the_margins_of_impossible_are_those_that_the_rules_take() -> None:
    text = " ".join(page("plausibility").split())
    assert f"elsewhere {MEASURED_CEILING_MARGIN:g} x the best square product" in text
    assert f"GeForce cards to {gpu_named('RTX 4090').clock_margin:g} x their rated clock" in text


def test_what_the_audit_holds_figures_to_is_described_by_its_own_numbers() -> None:
    text = " ".join(page("plausibility").split())
    by_part = "{forward} forward, {backward} backward"
    assert f"{by_part.format(**plausibility.PRODUCTS)}, the whole square" in text
    assert f"{by_part.format(**plausibility.TILED_PRODUCTS)}, half of the square if causal" in text
    passes = plausibility.SOFTMAX_PASSES
    assert f"softmax {passes['forward']} passes forward, {passes['backward']} backward" in text
    assert pytest.approx(1 / 3) == compilation.ELEMENTWISE_BANDWIDTH_SHARE
    assert "at a third of the bandwidth" in text
    assert attention_growth.LONG_SQUARE == 8 * 4096**2
    assert "batch x length^2 of eight sequences of 4096" in text
    assert f"parts of {WINDOW:,} figures".replace(",", " ") in text
    assert f"up to {CLAIMS['audit'].limits['correct cells suspected, worst table'].high:.0%} suspicious" in README


def test_the_gate_is_described_with_its_own_numbers() -> None:
    assert Rules().screen_pairs == 6
    assert "first stage of six pairs" in page("gate")
    assert (Rules().first_look, Rules().far, Rules().far_spreads, Rules().matters) == (3, 0.15, 10, 0.03)
    said = " ".join(page("gate").split())
    assert "A first look after three pairs names" in said
    assert "more than 15 % in each of the three, by ten times what launch pairs scatter by" in said
    assert "more than 3 % in each of the six" in said
    assert Rules().confirm_looks[0] == 3
    assert "Three fresh pairs clear most" in said
    assert (FEWEST_ROUNDS, LONG_QUADRUPLE_SECONDS / 4, DISTURBED, FEWEST_QUADRUPLES) == (2, 0.25, 0.05, 4)
    assert "Rounds of a quarter of a second and more are warm after two" in said
    assert "differ by more than 5 %, the machine was disturbed, and they get four" in said
    (limit,) = re.findall(r"--gate-minutes .*\(default: (\d+)\)", page("options"))
    assert f"`--gate-minutes` ({limit})" in README


def test_the_gate_is_shown_as_a_replay_of_its_samples_says_it() -> None:
    samples = read_samples(named(block(page("gate"), "gate"), r"jsonl(?:\.xz)?"))
    rules = rules_from_settings(samples.header["settings"])
    said = report_lines(conclude(samples, rules), samples.header, rules)
    shown = indented(block(page("gate"), "gate"))
    assert len(shown) > 5
    assert [line for line in shown if line not in said] == []
    shown = output(block(README, "gate"))
    assert shown[0] == OMITTED
    assert is_shortened(shown, said)


@pytest.mark.parametrize("beginning, fewest", [(PYTEST, 9), (MAKE, 6), (VERB, 9), (CLAIM, 6)])
def test_there_are_commands_to_test(beginning: str, fewest: int) -> None:
    assert len(commands_that_begin(beginning)) >= fewest


@pytest.mark.parametrize("text", [README, page("predict")], ids=["readme", "predict"])
def test_the_prediction_is_what_its_command_prints(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *shown = indented(block(text, "predicted"))
    main(shlex.split(command.removeprefix("$ " + VERB)))
    assert is_shortened(shown, filter(None, capsys.readouterr().out.splitlines()))


def test_the_results_are_those_of_the_record_they_name() -> None:
    text = block(README, "results")
    record = read_record(named(text, "json")).data
    assert is_shortened(output(text)[1:], [line.rstrip() for line in result_lines(record)])
    started, ended = (datetime.fromisoformat(time) for time in (record["suite"]["started"], record["datetime"]))
    minutes, seconds = divmod(round((ended - started).total_seconds()), 60)
    assert f"grid of {len(record['benchmarks'])} cases" in text
    assert f"{minutes} min {seconds} s" in text
    assert all(f"--{name}" in text for name in record["suite"]["settings"]["passes"])


def test_the_method_names_every_column_of_the_results() -> None:
    record = read_record(next((ROOT / ".benchmarks/epyc-2core").glob("0001_*.json"))).data
    columns = re.split(r"\s{2,}", result_lines(record)[0])
    rows = page("method").partition("\n| column |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == columns[1:]
    assert [re.split(r"\s{2,}", line) for line in indented(page("method"))] == [columns]


def test_the_method_names_every_phase() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "perf_tests").glob("test_*.py"))
    rows = page("method").partition("\n| phase |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == set(re.findall(r'mark\.phase\("(\w+)"\)', tests))


def test_the_map_names_every_room_and_nothing_else() -> None:
    named = [path for line in indented(section("Map")) for path in with_each_name(line.partition("  ")[0])]
    assert [path for path in named if not list(ROOT.glob(path))] == []
    rooms = {f"perf_tests/{path.parent.name}/" for path in (ROOT / "perf_tests").glob("*/__init__.py")}
    assert rooms - set(named) == set()


def with_each_name(path: str) -> list[str]:
    """`a/{b,c}/` is `a/b/` and `a/c/`."""
    before, _, rest = path.partition("{")
    names, _, after = rest.partition("}")
    return [f"{before}{name}{after}" for name in names.split(",")]


def test_the_readme_fits_a_screen() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120 and not line.startswith("    ")] == []


SHORTENED = dict.fromkeys(("a b c", "a ...", "... c", "a ... c"), True)
SILENT = dict.fromkeys(("a c", "a b", "... d", "c ... a"), False)


@pytest.mark.parametrize("shown, is_said", [*SHORTENED.items(), *SILENT.items()])
def test_an_output_may_be_shortened_where_it_says_so_and_nowhere_else(shown: str, is_said: bool) -> None:
    assert is_shortened(shown.split(), "abc") == is_said


def test_the_picture_is_of_sections_that_the_page_of_its_record_has(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (record,) = re.findall(r"^RECORD := (\S+)$", makefile, re.MULTILINE)
    (shown,) = re.findall(r"^SHOWN := (.+)$", makefile, re.MULTILINE)
    assert main(["report", str(ROOT / record), f"--output={tmp_path / 'page.html'}"]) == 0
    sections = re.findall(r'<section id="([^"]+)"', (tmp_path / "page.html").read_text())
    anchors = re.findall(r"#([\w-]+)", shown)
    assert set(anchors) <= set(sections)
    assert len(anchors) == 2


def test_each_link_leads_to_a_file_and_the_readme_links_to_every_page() -> None:
    links = {path: re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()) for path in PAGES}
    assert [link for path in links for link in links[path] if not (path.parent / link).exists()] == []
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - set(links[ROOT / "README.md"]) == set()


def test_each_source_file_that_a_page_quotes_exists() -> None:
    folders = r"`((?:model|perf_tests|numerics_tests|docs|published)/[\w./-]*)`"
    assert [
        path for page in PAGES for path in re.findall(folders, page.read_text()) if not (ROOT / path).exists()
    ] == []


def test_the_page_on_predictions_states_the_figures_that_they_take() -> None:
    text = " ".join(page("predict").split())
    spread = ceilings.HOST_SPREAD
    ranges = [
        (f"{us:.0f}", f"{us * spread + 1e-9:.0f}")
        for us in (1e6 * s for s in ceilings.FAST_HOST_LAUNCH_SECONDS.values())
    ]
    forward, backward, bare = (" to ".join(ends) for ends in ranges)
    assert f"among modules takes {forward} us, by autograd's thread {backward}, of operators alone {bare};" in text
    shares = ceilings.FP32_EFFICIENCY, ceilings.FP32_EFFICIENCY_WITH_64_LANES
    assert "reach {:g} of the peak, {:g} on cards with 64".format(*shares) in text
    assert f"reach {ceilings.TENSOR_EFFICIENCY:g} of the peak and streams {ceilings.MEMORY_EFFICIENCY:g} of" in text
    left_out = CLAIMS["times-left-out"].limits
    long, limit = LONG, left_out[f"attention alone forward from {LONG} tokens, median error"].high
    assert f"alone from {long} tokens is predicted within {100 * limit:.0f} % in the median" in text
    assert f"an empty kernel takes {ceilings.KERNEL_SECONDS * 1e6:g} us" in text
