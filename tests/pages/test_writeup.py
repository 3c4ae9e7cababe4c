"""docs/cs336.md and the verb that writes it: every problem, every table of the five write-ups, and bad input."""

import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

from perf_tests.records.store import read_record
from perf_tests.report import cs336 as writeup
from perf_tests.report.cs336 import entries, markdown_page, problems, questions
from perf_tests.report.cs336_ours import counted_figures
from perf_tests.report.cs336_sources import ROOT, Sources, printed
from tests.support.cs336 import COUNTED, checkout, with_record
from tests.support.launch import Verb, launch_all
from tests.support.synthetic import record, timed, traced

counted = cache(counted_figures)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verb without counting steps, which takes ten seconds."""
    monkeypatch.setattr(writeup, "counted_figures", lambda: COUNTED)


def test_the_page_is_what_its_command_writes_of_records_in_git(monkeypatch: pytest.MonkeyPatch, verb: Verb) -> None:
    """With all steps counted, as `make pages` does."""
    monkeypatch.setattr(writeup, "counted_figures", counted)
    written = (ROOT / "docs/cs336.md").read_text()
    assert verb("writeup")[:2] == (0, written), "make pages"
    answered, asked = map(int, re.findall(r"(\d+) of (\d+) problems have a figure", written)[0])
    assert answered == written.count("| figure |") >= 18
    assert asked == len(problems()) == 30
    files = re.findall(r"`(\.benchmarks/\S+)`", written)
    assert len(files) > 5
    shallow = subprocess.check_output(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, text=True)
    for file in files:
        commit = read_record(ROOT / file).data["commit_info"]["id"]
        known = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True)
        assert known.returncode == 0 or shallow.strip() == "true", (file, commit)


COLLECTED = {
    "benchmarking_script": "forward backward full_step optimizer",
    "nsys_profile": "forward backward full_step kernels_of_forward kernels_of_backward kernels_of_full_step",
    "benchmarking_mixed_precision": "forward backward full_step",
    "memory_profiling": "forward full_step memory_of_forward memory_of_full_step memory_of_first_step",
    "pytorch_attention": "attention_forward attention_backward "
                         "memory_of_attention_forward memory_of_attention_backward",
    "torch_compile": "forward backward full_step attention_forward attention_backward",
    "flash_forward": "attention_forward",
    "flash_backward": "attention_backward",
    "flash_benchmarking": "attention_forward attention_backward",
    "distributed_communication_single_node": "collective", "alternate_ring_all_reduce": "collective",
    "tp_calcs": "collective", "fsdp_tp_calcs": "collective",
    "ddp_overlap_individual_parameters_benchmarking": "full_step kernels_of_full_step",
}  # fmt: skip
"""Benchmarks of each problem's answer; those that share a model among ranks measure full steps."""
KERNEL = "examples/flash_attention.py:flash_attention"


def test_each_command_collects_the_cases_of_its_answer_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's own name may have `attention` in it. Ranks are collected as one of one; port 0 is any free one."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    measured = {
        one.name: shlex.split(one.command.replace("FILE.py:FUNCTION", KERNEL).partition("perf-tests run ")[2])
        for one in problems()
        if "perf-tests run -" in one.command
    }
    words = [*measured.values()]
    (trial,) = re.findall(r"append\s+`(--[^`]+)`", (ROOT / "docs/cs336.md").read_text())
    words += [[*words[0], *shlex.split(trial)]]
    ends = launch_all(["perf_tests", *typed, "--collect-only", "-q", "-p", "no:cacheprovider"] for typed in words)
    for name, (code, output, errors) in zip([*measured, "benchmarking_script"], ends, strict=True):
        found = re.findall(r"::test_(\w+)\[(.+)\]", output)
        assert (code, {benchmark for benchmark, _ in found}) == (0, {*COLLECTED.get(name, "full_step").split()}), (
            name, output, errors,
        )  # fmt: skip
        assert name != "torch_compile" or {"naive" in case for test, case in found if "attention" not in test} == {True}
    assert set(re.findall(r"\[(\w+)-ctx(\d+)", ends[-1][1])) == {("tiny", "128")}


@pytest.mark.usefixtures("quick")
def test_the_tracked_page_is_never_written_over(tmp_path: Path, verb: Verb) -> None:
    root, ignored = checkout(tmp_path), "OS-CPython-3-64bit"
    (root / "docs").mkdir()
    typed = "writeup", f"--root={root}"
    for path in (f"{root}/docs/cs336.md", f"{root}/docs/../docs/cs336.md"):
        said = f"{path} is the page of the committed records; name another file for yours.\n"
        assert verb(*typed, "-o", path) == (2, "", said)
    assert not (root / "docs/cs336.md").exists()
    for number in range(5):
        with_record(root, record([timed(size="small", context_length=128)]), ignored, number)
    code, page, said = verb(*typed)
    assert said == f"Left out: 5 records in .benchmarks/{ignored}: git ignores them; -o FILE takes them.\n"
    assert (code, ignored in page) == (0, False)
    assert [verb(*typed, *words)[0] for words in (["-o", root / "a.md"], ["--all", "-o", root / "all.md"])] == [0, 0]
    short, full = ((root / name).read_text() for name in ("a.md", "all.md"))
    assert all(f"`.benchmarks/{ignored}/{number:04}_run.json`" in short for number in range(5))
    assert (short.count("\n## "), full.count("\n### ")) == (len(problems()), len(questions()))


THEIRS = {
    "e2e_timing.csv": ["time"], "attention_timing.csv": ["time"], "memory.csv": ["value"], "answers.csv": ["value"],
    "gemm_share.csv": ["gemm_pct"], "kernels.csv": ["pct_of_gpu_time", "calls", "avg_us"],
    "softmax_vs_matmul.csv": ["qk_time", "softmax_time", "av_time"],
}  # fmt: skip


def test_every_table_of_the_five_write_ups_is_on_the_page() -> None:
    sources = Sources(ROOT, counted())
    figures = [figure for found in entries(sources) for figure in found.published]
    names = [(figure, name) for figure in figures for name in (figure.column, figure.row[0])]
    shown = {(name.partition(",")[0].partition(" (")[0], figure.text.rstrip("%")) for figure, name in names}
    written = markdown_page(sources)

    def is_shown(name: str, row: dict[str, str], field: str) -> bool:
        if name == "memory.csv" and row["size"] == "2.7B":  # counted
            return f"| {row[field]} " in written
        return (row["source_name"], row[field]) in shown

    cells = [(name, row, one) for name, fields in THEIRS.items() for row in printed(sources, name) for one in fields]
    assert [(name, dict(row)) for name, row, field in cells if row[field] and not is_shown(name, row, field)] == []


@pytest.mark.usefixtures("quick")
def test_json_has_every_question_once_and_markdown_escapes_what_a_record_says(tmp_path: Path, verb: Verb) -> None:
    forward = traced(size="small", context_length=128)
    forward["values"]["kernels"][0]["name"] = "<script>alert(1)</script>"
    with_record(checkout(tmp_path), {**record([timed(size="<b>", context_length=128)]), "passes": [forward]})
    code, shown, _ = verb("writeup", "--json", f"--root={tmp_path}")
    rows = json.loads(shown)
    assert [(row["problem"], row["question"]) for row in rows] == [(one.problem, one.asked) for one in questions()]
    assert all(figure["text"] for row in rows for figure in (*row["here"], *row["published"]))
    ended = verb("writeup", "--all", f"--root={tmp_path}", f"--output={tmp_path}/page.md")[0]
    page = (tmp_path / "page.md").read_text()
    assert (code, ended, "\\<script" in page, page.count("\n### ")) == (0, 0, True, len(questions()))
    assert not re.search(r"(?<!\\)<(?:script|b)\b", page)


@pytest.mark.usefixtures("quick")
def test_a_broken_record_is_named_and_without_its_tables_there_is_one_sentence(tmp_path: Path, verb: Verb) -> None:
    code, _, said = verb("writeup", f"--root={tmp_path}")
    assert (code, f"--root {tmp_path} holds no folder `published`; name a checkout" in said) == (3, True)
    (tmp_path / "published").mkdir()
    code, _, said = verb("writeup", f"--root={tmp_path}")
    reason = f"need: {tmp_path}/published/e2e_timing.csv cannot be read: No such file or directory.\n"
    assert (code, said.endswith(reason)) == (3, True)
    (tmp_path / "published").rmdir()
    with_record(checkout(tmp_path), record([timed()]))
    (tmp_path / ".benchmarks/some-machine/0002_run.json").write_text("{")
    code, _, said = verb("writeup", f"--root={tmp_path}")
    assert (code, "0002_run.json" in said) == (1, True)


def test_an_output_that_cannot_be_written_is_refused_at_once(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeup, "counted_figures", lambda: pytest.fail("computed"))
    assert verb("writeup", "--output", "./no/such/page.md")[0] == 2
