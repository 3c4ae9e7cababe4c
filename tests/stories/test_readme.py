"""What the README and its pages say is so: commands run, paths exist, tables and results are the program's own."""

import argparse
import html
import importlib
import importlib.util
import lzma
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from datetime import datetime
from pathlib import Path

import pytest

from claims import pictures
from claims.expedition import __main__ as expedition
from claims.planted import REAL_SLOWDOWNS
from claims.table import CLAIMS
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.training import MAX_GRADIENT_NORM
from perf_tests_suite.perf_tests.__main__ import VERBS, main
from perf_tests_suite.perf_tests.audit import physics
from perf_tests_suite.perf_tests.audit.rounds import (
    CLOCKS_AGREE_SECONDS,
    CLOCKS_AGREE_SHARE,
    HOST_WAIT,
    LEAST_EXCESS,
    LEVEL,
    SLOW_SENTINEL,
)
from perf_tests_suite.perf_tests.bench.checked_rounds import LONGEST_EXACT_BACKWARD, ROWS
from perf_tests_suite.perf_tests.bench.ranks import CONFIDENCE
from perf_tests_suite.perf_tests.bench.workbench import CHANGED
from perf_tests_suite.perf_tests.cases.case import CUDA_GRAPH_WARMUP_ROUNDS
from perf_tests_suite.perf_tests.gate.samples import Rules, read_samples, rules_from_settings
from perf_tests_suite.perf_tests.gate.verdicts import conclude
from perf_tests_suite.perf_tests.hardware import clock, device, limits
from perf_tests_suite.perf_tests.hardware.datasheets import (
    FRAGMENTATION_SHARE,
    LARGE_WORKSPACE_BYTES,
    WORKSPACE_BYTES,
    gpu_named,
)
from perf_tests_suite.perf_tests.hardware.machine import ENERGY_LEAST_SECONDS
from perf_tests_suite.perf_tests.history.series import LEAST_LAUNCHES, SMALLEST_STEP
from perf_tests_suite.perf_tests.interleaved.measuring import DISTURBED, FEWEST_QUADRUPLES, LONG_QUADRUPLE_SECONDS
from perf_tests_suite.perf_tests.interleaved.run import what_changed, worst_first
from perf_tests_suite.perf_tests.interleaved.sides import find_commit, planted
from perf_tests_suite.perf_tests.predict.calibration import CALIBRATED_IN_RANGE
from perf_tests_suite.perf_tests.predict.machine import MOST_OTHER_CORES
from perf_tests_suite.perf_tests.records.columns import HOST_SHOWS_BELOW_SECONDS
from perf_tests_suite.perf_tests.records.record import Times
from perf_tests_suite.perf_tests.records.store import read_record
from perf_tests_suite.perf_tests.report.gate_screens import report_lines
from perf_tests_suite.perf_tests.report.screens import result_lines
from perf_tests_suite.perf_tests.run import ends
from perf_tests_suite.perf_tests.user_code import guard
from perf_tests_suite.perf_tests.user_code.attention import LENGTHS, LONGEST_CHECK_SECONDS, MANY_KEYS
from perf_tests_suite.perf_tests.user_code.named import Repository
from perf_tests_suite.perf_tests.verbs.predict import OF_RUN
from perf_tests_suite.perf_tests.verbs.run import of_pytest
from tests.support import documents
from tests.support.documents import README, ROOT, block, commands, fitted, indented, is_shortened, named, output, page
from tests.support.example_cases import attention_case
from tests.support.launch import launch_all
from tests.support.wrong_attention import FAULTS

EXPEDITION = (ROOT / "claims/expedition/README.md").read_text()
TEXTS = [documents.EVIDENCE, EXPEDITION, *(path.read_text() for path in documents.PAGES)]
COMMANDS = list(dict.fromkeys(command for text in TEXTS for command in commands(text)))
RUN, MAKE, VERB, CLAIM = "perf-tests run", "make ", "perf-tests ", "python -m claims "
IN_THEIRS = re.findall(r"(?m)^    \$ \.\./env/bin/(perf-tests run .*)$", page("your-own"))
OF_KNOWN = [command for command in COMMANDS if "--model perf.py:build" in command]
ELSEWHERE = {*commands(page("cs336")), *commands(page("your-own")), *IN_THEIRS, *OF_KNOWN}
"""Runs that `test_cs336.py`, `test_your_own_page.py` and, of known repositories, a nightly test try."""


def commands_that_begin(beginning: str) -> list[str]:
    return [command for command in COMMANDS if command.startswith(beginning)]


def test_each_run_collects() -> None:
    others = (command for command in commands_that_begin(RUN) if command not in {RUN, *ELSEWHERE})
    typed = [RUN, *(command for command in others if "--bisect" not in command)]  # of which pytest alone is refused
    quick = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    here = (re.sub(r"cuda:\d+", "cpu", words.removesuffix("&")) for words in typed)  # without a card or a shell
    ends = launch_all([*of_pytest(shlex.split(words)[2:]), *quick] for words in here)
    assert [(words, *end) for words, end in zip(typed, ends, strict=True) if end[0]] == []
    default = dict(zip(typed, ends, strict=True))[RUN][1].count("::")
    assert default in map(int, re.findall(r"grid of (\d+) cases \((\d+) where", README)[0])


def test_pytest_benchmarks_own_command_groups_as_typed(tmp_path: Path) -> None:
    """In the folder of a user whose record is not packed."""
    (packed,) = (ROOT / ".benchmarks/epyc-2core").glob("0001_*.json.xz")
    own = tmp_path / ".benchmarks/machine" / packed.stem
    own.parent.mkdir(parents=True)
    own.write_bytes(lzma.decompress(packed.read_bytes()))
    (command,) = commands_that_begin("pytest-benchmark compare ")
    words = [sys.executable, "-c", "from pytest_benchmark.cli import main; main()", *shlex.split(command)[1:]]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert "benchmark 'precision=bf16': 3 tests" in ended.stdout, ended.stderr


def test_each_make_target_exists() -> None:
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = [word for command in commands_that_begin(MAKE) for word in shlex.split(command)[1:]]
    assert {word for word in typed if not re.search("[=/]|^-", word)} <= known


@pytest.mark.parametrize("command", sorted({*commands_that_begin(VERB)} - {*commands_that_begin(RUN)}))
def test_each_verb_takes_what_is_typed(command: str) -> None:
    verb, *words = shlex.split(command.removeprefix(VERB))
    assert verb in (*VERBS, "VERB")
    if not words or verb == "VERB":
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    importlib.import_module(VERBS[verb]).add_arguments(parser)
    _, rest = parser.parse_known_args([word.strip("[]") for word in words if word != "..."])
    of_run = [word.partition("=")[0] for word in rest if word.startswith("-")]
    assert [name for name in of_run if verb != "predict" or name not in OF_RUN] == []


def test_each_claim_that_is_typed_exists() -> None:
    typed = [word for command in commands_that_begin(CLAIM) for word in shlex.split(command)[3:]]
    assert {word for word in typed if not word.startswith("-") and not word.isdecimal()} <= CLAIMS.keys()


IN_WORDS = {
    1 / 3: "a third", 0.25: "a quarter of a second", 0.5: "half a core", 2: "two", 3: "three",
    4: "four", 5: "five", 6: "six", 8: "eight", 10: "ten",
}  # fmt: skip


def figures_of(name: str) -> list[str]:
    """Sentences of a page, with the numbers that the program takes."""
    if name == "measuring":
        flushed = device.TIMES_THE_CACHE * device.UNKNOWN_CACHE_BYTES // 2**20
        return [
            f"elsewhere {physics.MEASURED_CEILING_MARGIN:g} x the best square product",
            f"writing twice its size ({flushed} MiB where Linux lists no caches)",
            f"at least {CUDA_GRAPH_WARMUP_ROUNDS} warm-up rounds compile",
            f"other processes use less than {IN_WORDS[MOST_OTHER_CORES]}",
            f"is over {CHANGED - 1:.0%} faster",
            f"if all are over {CHANGED - 1:.0%} slower",
            f"exceeds the busy time by over {HOST_WAIT - 1:.0%}",
            f"leaves {device.CudaDevice.kept_free_bytes / 2**30:g} GiB to libraries",
            f"above 1/{device.KEPT_BLOCKS_IN_BUDGET} of the memory budget",
            f"{2 * limits.FLOAT32_BYTES} bytes per parameter lower",
            f"sentinels took over {IN_WORDS[SLOW_SENTINEL]} times the run's fastest",
            f"until it has worked for {clock.LOAD_SECONDS:g} s",
            f"null below {ENERGY_LEAST_SECONDS:g} s of rounds",
            f"Rounds below {1e3 * HOST_SHOWS_BELOW_SECONDS:g} ms show it",
            f"each is slower than all later ones by {LEAST_EXCESS:.0%} of their median",
            f"at most {LEVEL:.0%} are taken for slow",
        ]
    if name == "tutorial":
        return [f"a slowdown of {Rules().matters:.0%} is excluded"]
    if name == "machines":
        rounds = next(count for count in range(1, 20) if Times([1.0] * count).median_interval(CONFIDENCE))
        minutes = ends.LEAST_SECONDS / 60
        slice_minutes, _, _ = expedition_limits()
        return [
            f"Fewer than {IN_WORDS[rounds]} rounds give no interval",
            f"slices of at most {slice_minutes} minutes",
            f"after {ends.TIMES_THE_PREDICTION} times its predicted time, and never before {minutes:g} minutes",
            f"within another {'minute' if ends.GRACE_SECONDS == 60 else ''}, the process ends with exit code 2",
        ]
    if name == "your-own":
        short = ", ".join(map(str, LENGTHS))
        asked = ", ".join(f"`{field.name}`" for field in fields(ModelConfig) if field.name != "vocab_size")
        return [
            f"takes a `ModelConfig`: {asked} and `vocab_size`.",
            f"for at most {guard.LONGEST_SECONDS} s of CPU time a call",
            f"at {short} and {MANY_KEYS} tokens",
            f"longer than {IN_WORDS[LONGEST_CHECK_SECONDS / 60]} minutes",
            f"need over {physics.MEASURED_CEILING_MARGIN:g} x its time",
            f"tests plant {len(FAULTS)} bugs in the example",
            f"{ROWS} rows of the output",
            f"up to {LONGEST_EXACT_BACKWARD} tokens those of one sequence",
            f"more than {CLOCKS_AGREE_SHARE:.1%} and {1e3 * CLOCKS_AGREE_SECONDS:g} ms",
            f"clipped to norm {MAX_GRADIENT_NORM:g} before",
        ]
    if name == "audit":
        return [
            f"GeForce cards may run at {gpu_named('RTX 4090').clock_margin:g} x their rated clock",
            "{forward} products over the square forward and {backward} backward, ".format(**physics.PRODUCTS)
            + "{backward} in kernels of blocks".format(**physics.TILED_PRODUCTS),
            "in softmax {forward} times forward and {backward} backward".format(**physics.SOFTMAX_PASSES),
            f"must move {physics.ADAMW_BYTES} bytes a parameter, another optimizer's {physics.UPDATE_BYTES}",
            f"held to {'twice' if physics.BEYOND_EVERY_CARD == 2 else ''} the highest peak",
        ]
    if name == "gate":
        rules = Rules()
        return [
            f"needs {LEAST_LAUNCHES} launches on either side and {SMALLEST_STEP:.0%}",
            f"{IN_WORDS[rules.screen_pairs].capitalize()} quick pairs clear most",
            f"names after {IN_WORDS[rules.first_look or 0]} pairs what is slower by more than {rules.far:.0%} in each, "
            f"and by {IN_WORDS[rules.far_spreads]} times the scatter",
            f"after {IN_WORDS[rules.screen_pairs]}, what is slower by more than {rules.matters:.0%} in each",
            f"ends below the {rules.matters:.0%} that matter",
            f"above the margin of {rules.margin:.1%}",
            f"a run measures at most {rules.confirm_looks[-1]}.",
            f"Rounds of {IN_WORDS[LONG_QUADRUPLE_SECONDS / 4]} or more get one quadruple a launch, or "
            f"{IN_WORDS[FEWEST_QUADRUPLES]} if two rounds of a side differ by more than {DISTURBED:.0%}",
        ]
    ranges = [
        f"{1e6 * seconds:g} to {1e6 * seconds * limits.HOST_SPREAD:g}"
        for seconds in limits.FAST_HOST_LAUNCH_SECONDS.values()
    ]
    return [
        "among modules takes {} us, on autograd's thread {}, of bare operators {};".format(*ranges),
        f"FP32 products reach {limits.FP32_EFFICIENCY:g} of the peak, "
        f"{limits.FP32_EFFICIENCY_WITH_64_LANES:g} on cards with 64",
        f"reach {limits.TENSOR_EFFICIENCY:g} of it, streams {limits.MEMORY_EFFICIENCY:g} of the bandwidth",
        "{} of {} published times lie in the range that another time of their table gives".format(*CALIBRATED_IN_RANGE),
        f"an empty kernel takes {limits.KERNEL_SECONDS * 1e6:g} us",
        f"(a GPU after {clock.LOAD_SECONDS:g} s of load)",
        f"with several ranks {FRAGMENTATION_SHARE:.0%} are added instead",
        f"{LARGE_WORKSPACE_BYTES / 2**20:g} MiB on Hopper",
        f"{WORKSPACE_BYTES / 2**20:.1f} MiB elsewhere",
    ]


@pytest.mark.parametrize("name", ["measuring", "audit", "gate", "predict", "tutorial", "machines", "your-own"])
def test_a_page_states_the_figures_that_the_program_takes(name: str) -> None:
    text = " ".join(page("predict" if name == "audit" else name).split())
    assert [words for words in figures_of(name) if words.replace("%", " %") not in text] == []


def expedition_limits() -> list[str]:
    """Minutes, files and megabytes that an expedition's slice has by default."""
    options = Path(str(expedition.__file__)).read_text()
    return re.findall(r"--(?:minutes|files|megabytes).*default=(\d+)", options)


def test_the_page_of_the_expedition_states_its_limits() -> None:
    minutes, files, megabytes = expedition_limits()
    text = " ".join(EXPEDITION.split())
    assert f"at most {minutes} minutes" in text
    assert f"at most {files} files of {megabytes} MB each" in text


def test_the_readme_states_the_limits_of_the_gate_and_the_python_it_needs() -> None:
    (limit,) = re.findall(r"--gate-minutes .*\(default: (\d+)\)", page("reference"))
    assert f"`--gate-minutes` ({limit})" in README
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert f"Python {needed} or later" in README


def test_the_gate_is_shown_as_a_replay_of_its_samples_says_it() -> None:
    samples = read_samples(named(block(page("gate"), "gate"), r"jsonl(?:\.xz)?"))
    rules = rules_from_settings(samples.header["settings"])
    said = report_lines(conclude(samples, rules), samples.header, rules)
    shown = indented(block(page("gate"), "gate"))
    assert len(shown) > 5
    assert [line for line in shown if line not in said] == []
    shown = output(block(README, "gate"))
    assert shown[0] == documents.OMITTED
    assert is_shortened([line for line in shown if "model/" not in line], said)


@pytest.mark.usefixtures("forked_workers")
def test_the_changed_line_beside_it_is_one_that_the_gate_names(clone: Path) -> None:
    """Both sides run on fake tensors, in a process each."""
    REAL_SLOWDOWNS["float64-softmax"].change(clone)
    samples = read_samples(named(block(page("gate"), "gate"), r"jsonl(?:\.xz)?"))
    result = conclude(samples, rules_from_settings(samples.header["settings"]))
    cases = {row.id: attention_case(head_dim=int(row.id.partition("[d")[2][:2])) for row in result.cases}
    with planted(Repository(clone, folder=clone), find_commit(clone, "main")) as trees:
        named_by_gate = what_changed(worst_first(result), cases, {}, trees, {})
    shown = [line for line in output(block(README, "gate")) if "model/" in line]
    assert len(shown) == 1
    assert set(shown) <= set(named_by_gate)


def test_the_screen_of_the_tutorial_is_that_of_the_record_it_names() -> None:
    text = page("tutorial")
    printed = [line.rstrip() for line in result_lines(read_record(named(text, r"json\.xz")).data)]
    assert is_shortened(filter(None, indented(block(text, "screen"))), printed)


@pytest.mark.parametrize("beginning, fewest", [(RUN, 9), (MAKE, 6), (VERB, 9), (CLAIM, 4)])
def test_there_are_commands_to_test(beginning: str, fewest: int) -> None:
    assert len(commands_that_begin(beginning)) >= fewest


@pytest.mark.parametrize("text", [README, page("predict"), page("tutorial")], ids=["readme", "predict", "tutorial"])
def test_the_prediction_is_what_its_command_prints(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *shown = indented(block(text, "predicted"))
    main(shlex.split(command.removeprefix("$ " + VERB)))
    assert is_shortened(shown, filter(None, capsys.readouterr().out.splitlines()))


def test_the_results_are_those_of_the_record_they_name() -> None:
    text = block(README, "results")
    record = read_record(named(text, r"json\.xz")).data
    assert is_shortened(output(text)[1:], [line.rstrip() for line in result_lines(record)])
    started, ended = (datetime.fromisoformat(time) for time in (record["suite"]["started"], record["datetime"]))
    minutes, seconds = divmod(round((ended - started).total_seconds()), 60)
    native = sum("-bf16-" in row["name"] for row in record["benchmarks"])
    every = len(record["benchmarks"])
    assert f"grid of {every} cases ({every - native} where the CPU has no bfloat16)" in text
    assert f"{minutes} min {seconds} s" in text
    assert all(f"--{name}" in text for name in record["suite"]["settings"]["passes"])


def test_the_pages_say_that_nothing_ran_on_a_gpu_as_long_as_no_record_is_of_one() -> None:
    devices = {read_record(path).data["machine_info"]["torch"]["device"] for path in ROOT.glob(".benchmarks/*/*.xz")}
    assert devices == {"cpu"}
    assert "**Nothing here has run on a GPU yet.**" in README
    assert "No part of the suite has run on a GPU yet" in page("machines")


def test_the_method_names_every_column_of_the_results() -> None:
    record = read_record(next((ROOT / ".benchmarks/epyc-2core").glob("0001_*.json.xz"))).data
    columns = re.split(r"\s{2,}", result_lines(record)[0])
    rows = [line for line in block(page("measuring"), "columns").splitlines() if line.startswith("| ")][1:]
    assert [row.split("|")[1].strip() for row in rows] == columns[1:]


def test_the_method_names_every_phase() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "perf_tests").glob("test_*.py"))
    rows = page("measuring").partition("\n| phase |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == set(re.findall(r'mark\.phase\("(\w+)"\)', tests))


def test_the_picture_of_the_rooms_names_each_of_them() -> None:
    picture = page("developing").partition("```text")[2].partition("```")[0]
    rooms = {path.parent.name for path in (ROOT / "perf_tests").glob("*/__init__.py")}
    assert rooms | {"model", "phases", "plugin", "conftest"} <= set(re.findall(r"\w+", picture))


def test_the_names_of_a_recipe_stand_in_its_files() -> None:
    recipes = page("developing").partition("| to add |")[2].partition("\n\n")[0].splitlines()[2:]
    known = 0
    for recipe in recipes:
        text = "".join((ROOT / path).read_text() for path in re.findall(r"`([\w/]+\.(?:py|toml))`", recipe))
        names = re.findall(r"`([A-Za-z_]+)`", recipe) if text else []
        assert [name for name in names if name not in text] == [], recipe
        known += len(names)
    assert known >= 10


def test_the_rules_of_other_tools_are_those_of_the_gates_evidence() -> None:
    """Which another test computes. The second figure of found work is that of 3 %."""
    said = {
        name.replace(", two launches", "").replace("`", ""): (alarms, found)
        for name, alarms, found in re.findall(
            r"(?m)^ +(\S.*?)  +(\d+ of 147), .*?\)  +\d+ of \d+  +(\d+ of 136)", block(documents.EVIDENCE, "worth")
        )
        if "stage 1" not in name
    }
    shown = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", block(README, "rules"), re.MULTILINE)[1:]
    rows = [[re.sub(r"[*`,]", "", cell) for cell in row] for row in shown]
    assert len(rows) == 5
    (none, runs), *others = sorted((int(alarms.split()[0]), alarms.split()[-1]) for _, alarms, _ in rows)
    raised = f"other tools' rules raised {others[0][0]} to {others[-1][0]}"
    claim = f"It raised no false alarm in {runs} runs of unchanged code; {raised}"
    assert (none, claim in " ".join(README.split())) == (0, True)
    assert [(alarms, found) for name, alarms, found in rows] == [said[name] for name, *_ in rows]


def test_the_audit_is_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, *shown = indented(block(page("predict"), "audited"))
    main(shlex.split(command.removeprefix("$ " + VERB)))
    assert is_shortened(shown, fitted(capsys.readouterr().out))


def test_the_readme_fits_a_screen() -> None:
    lines = README.splitlines()
    assert len(lines) <= 90
    assert [line for line in lines if len(line) > 120 and not line.startswith(("    ", "!["))] == []


def test_the_bars_are_those_of_the_evidence_and_of_the_table_below_them() -> None:
    drawn = (ROOT / "pictures/false_alarms.svg").read_text()
    assert drawn == pictures.false_alarms(documents.EVIDENCE)
    counts = re.findall(r"(\d+) of 147", block(README, "rules"))
    assert re.findall(r'font-weight="\w+">(\d+)</text>', drawn) == counts


def test_the_comment_is_what_replay_says_of_the_gate_that_the_readme_shows() -> None:
    shown = pictures.comment()
    for line in output(block(README, "gate")):
        assert line == documents.OMITTED or "model/" in line or html.escape(line) in shown


def test_each_link_leads_to_a_file_and_the_readme_links_to_every_page() -> None:
    links = {path: re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()) for path in documents.PAGES}
    assert [link for path in links for link in links[path] if not (path.parent / link).exists()] == []
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - set(links[ROOT / "README.md"]) == set()


CODE_IN_A_FILE = re.compile(r"`([^`]+)`\s+in\s+`(model/\w+\.py)`")


def test_each_source_file_that_a_page_quotes_exists_and_holds_the_code_that_is_quoted_from_it() -> None:
    quoted = re.compile(r"`((?:model|perf_tests|numerics_tests|docs|published)/[\w./-]*)`")
    paths = [path for page in documents.PAGES for path in quoted.findall(page.read_text())]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    named_there = [found for page in documents.PAGES for found in CODE_IN_A_FILE.findall(page.read_text())]
    assert len(named_there) >= 3
    assert [(code, path) for code, path in named_there if code not in (ROOT / path).read_text()] == []
