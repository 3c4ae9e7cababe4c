"""The write-up: every figure is that of a file or of code, none is made up, and what nobody recorded says so."""

import json
import re
from pathlib import Path

import pytest

from model.sizes import SIZES, ModelConfig
from numerics_tests import exercises
from perf_tests.__main__ import main
from perf_tests.counting.case_counters import counters_of
from perf_tests.meta_tests.example_cases import language_model_case
from perf_tests.proofs.synthetic import (
    BACKWARD,
    FORWARD,
    FULL_STEP,
    record,
    remembered,
    timed,
    timed_attention,
    traced,
    warmed,
    write_record,
)
from perf_tests.records.record import Json
from perf_tests.verbs import writeup
from perf_tests.views.writeup import published
from perf_tests.views.writeup.answer import NOT_RECORDED, Answer, Figure, Question, table_of
from perf_tests.views.writeup.attention import squares_saved
from perf_tests.views.writeup.page import SECTIONS, Entry, entries, markdown_page
from perf_tests.views.writeup.played import Block, FirstStep, OrderPeak, PeakBeside, Played
from perf_tests.views.writeup.sources import LEDGER, ROOT, Shape, Sources
from perf_tests.views.writeup.tensors import crossover
from perf_tests.views.writeup.warmup import one_slow_round

QUESTIONS = [question for of in SECTIONS.values() for question in of]
TIMES = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
PLAYED = Played(
    peaks=(PeakBeside("write-up 003", "2.7B", 128, "fp32", "full_step_peak", "60.0", "GB", 60.25),),
    first_steps=(FirstStep("medium", 128, 2, "fp32", 7 * 10**9, 8 * 10**9),),
    orders=(OrderPeak(128, "before-step", 27 * 10**9),),
    blocks=(Block("2.7B", 128, 2**20, 3, "model/transformer.py:100", True),),
    exercises={"norms": (("Input", "low", "high"), ("about 1000", "all zero", "within"))},
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The repository's tables without its records."""
    (tmp_path / LEDGER).parent.mkdir(parents=True)
    for name in ("published", LEDGER):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verb without playing steps, which takes half a minute."""
    monkeypatch.setattr(writeup, "_played", lambda: PLAYED)


def with_record(root: Path, data: Json, machine: str = "some-machine", number: int = 1) -> Sources:
    """The tables beside one record, or beside one more."""
    write_record(root / ".benchmarks" / machine / f"{number:04}_run.json", data)
    return Sources(root, PLAYED)


def entry(sources: Sources, words: str) -> Entry:
    """Of the one question with these words."""
    ((section, asked),) = [(title, one) for title, of in SECTIONS.items() for one in of if words in one.asked]
    answer = asked.answer(sources)
    return Entry(section, asked, answer, table_of(answer))


def here(sources: Sources, words: str) -> dict[tuple[str, ...], dict[str, str]]:
    """Our figures by row and column."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for figure in entry(sources, words).answer.here:
        found.setdefault(figure.row, {})[figure.column] = figure.text
    return found


def everything() -> Json:
    """A record of every case and pass that a question asks for, of a size of the course."""
    course: Json = {"size": "small", "context_length": 128, "num_layers": 12, "d_model": 768}
    rows = [
        timed(
            f"{phase}-{name}-{execution}", [seconds * factor for seconds in TIMES], phase=phase, precision=name,
            execution=execution, first_round_seconds=2.5, tflops_per_second=0.5,
            part_seconds={"forward": [2.0] * 6, "backward": [1.5] * 6, "optimizer": [0.25 * factor] * 6}, **course,
        )
        for phase, factor in (("forward", 1.0), ("backward", 2.0), ("forward_backward", 3.0), ("full_step", 4.0))
        for name in ("fp32", "bf16")
        for execution in ("eager", "compiled")
    ]  # fmt: skip
    rows += [timed("forward-256", TIMES, **{**course, "context_length": 256})]
    rows += [
        timed_attention([seconds * factor * length for seconds in TIMES], phase=f"attention_{phase}", attention=name,
                        head_dim=16, sequence_length=length, first_round_seconds=9.0)
        for phase, factor in (("forward", 1.0), ("backward", 2.0))
        for name in ("naive", "compiled", "sdpa")
        for length in (256, 1024)
    ]  # fmt: skip
    of_step = traced(FULL_STEP, phase="full_step", **course)
    region = {"launches": 4, "share_of_kernel_time": 0.5, "seconds": 2.0, "is_backward": True}
    of_step["values"]["regions"] = [
        {"region": "feed_forward", "seconds_by_kind": {"elementwise": 0.46, "matrix product": 1.54}, **region},
        {"region": "optimizer", "seconds_by_kind": {"elementwise": 2.0}, **region},
    ]
    of_forward = traced(FORWARD, **course)
    of_forward["values"]["idle_gaps"] = {"median_seconds": 3e-6}
    passes = [of_forward, traced(BACKWARD, phase="backward", **course), of_step, remembered(**course), warmed(**course)]
    return {**record(rows), "passes": passes}


def test_the_page_is_what_its_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    """With all steps played, as `make writeup` does."""
    assert main(["writeup"]) == 0
    written = (ROOT / "WRITEUP.md").read_text()
    assert written == capsys.readouterr().out, "python -m perf_tests writeup -o WRITEUP.md"
    known, asked, ours = map(int, re.findall(r"(\d+) of (\d+) are\s+answered, (\d+) with", written)[0])
    assert (known, ours) >= (60, 45)
    assert asked == len(QUESTIONS)


def test_every_question_is_answered_with_our_figures_by_a_record_of_every_pass(root: Path) -> None:
    sources = with_record(root, everything())
    unknown = {entry.question.asked for entry in entries(sources) if not entry.answer.here}
    played = {question.asked for question in QUESTIONS if "numerics_tests" in question.command} | {
        "Which checkpoint has the smallest peak?", "How much memory does compiling save in attention?",
        "Which allocations of a forward pass are the largest, and where are they made?",
    }  # fmt: skip
    assert unknown <= played


def test_without_a_record_what_it_would_tell_is_not_recorded(root: Path) -> None:
    found = {entry.question.asked: entry for entry in entries(Sources(root))}
    forward = found["How long does a forward pass take, by size?"]
    assert forward.answer.here == []
    assert forward.table is not None
    assert {row[2] for row in forward.table.rows} == {NOT_RECORDED}
    assert "write-up 001, P100-PCIe-16GB (ms)" in forward.table.header
    step = found["How long does a full training step take?"]
    assert step.table is None
    assert "Not recorded on this machine" in markdown_page(Sources(root))


def test_figures_are_those_of_the_record(root: Path) -> None:
    sources = with_record(root, everything())
    assert here(sources, "How long does a forward pass take")["small", "128"] == {"here (ms)": "1250 ± 190"}
    assert here(sources, "Is a forward pass alone")["small", "128"] == {
        "here: alone (ms)": "1250", "here: inside the step (ms)": "2000", "here: inside / alone": "1.60",
    }  # fmt: skip
    assert here(sources, "How long do backward pass and optimizer")["small", "128"] == {"here (ms)": "2500"}
    assert here(sources, "twice its forward pass")["small", "128"]["here: backward / forward"].startswith("2.00 ±")
    assert here(sources, "How does a forward pass grow")["small", "256"]["here: over context 128"].startswith("1.00 ±")
    assert here(sources, "How long does one layer")["small", "128"] == {"here: one layer (ms)": "104"}
    assert here(sources, "With which power")["16", "256 to 1024"]["here: naive forward"] == "1.00"
    assert here(sources, "What share of a forward pass are")["forward",] == {"here, small 128": "75.0%"}
    kinds = here(sources, "Which kinds of kernels are in each region")
    assert kinds["backward", "feed_forward"] == {
        "here, small 128: elementwise": "23.0%", "here, small 128: matrix product": "77.0%",
    }  # fmt: skip
    assert kinds["update", "optimizer"] == {"here, small 128: elementwise": "100.0%"}
    assert here(sources, "How long does the device wait")["gap between kernels",] == {
        "here, small 128: median (us)": "3.00"
    }
    assert here(sources, "Do measured peaks")["small", "128", "fp32", "forward"] == {
        "here: measured / predicted": "0.99902"
    }
    first = here(sources, "How much longer is the first round")["small 128 fp32 naive", "forward"]
    assert first["here: rounds enough"] == "1"


def test_figures_follow_the_record(root: Path) -> None:
    """Twice the time shows wherever a time of the record does."""
    before = with_record(root, record([timed(size="small", context_length=128)]))
    slow = [2 * seconds for seconds in TIMES]
    texts = [entry(before, "How long does a forward pass take").answer.here[0].text]
    after = with_record(root, record([timed(seconds=slow, size="small", context_length=128)]))
    texts.append(entry(after, "How long does a forward pass take").answer.here[0].text)
    assert texts == ["1045 ± 30", "2500 ± 370"]


def test_the_newest_record_of_a_case_counts_and_an_older_one_fills_the_rest(root: Path) -> None:
    cell: Json = {"size": "small", "context_length": 128}
    old = [timed(seconds=[9.0, 9.0], **cell), timed("another", [3.0, 3.0], **{**cell, "context_length": 256})]
    with_record(root, record(old, written="2030-01-01"))
    sources = with_record(root, record([timed(seconds=[1.0, 1.0], **cell)], written="2030-01-02"), number=2)
    found = here(sources, "How long does a forward pass take")
    assert found["small", "128"] == {"here (ms)": "1000"}
    assert found["small", "256"] == {"here (ms)": "3000"}
    assert len([name for name in entry(sources, "How long does a forward").answer.files if "run" in name]) == 2


def test_a_ratio_is_of_one_record(root: Path) -> None:
    """Two launches of the same code differ by more than their rounds."""
    cell: Json = {"size": "small", "context_length": 128}
    with_record(root, record([timed(**cell)], written="2030-01-01"))
    sources = with_record(root, record([timed(BACKWARD, phase="backward", **cell)], written="2030-01-02"), number=2)
    assert here(sources, "twice its forward pass") == {}


def test_another_machine_answers_nothing_beside_the_newest(root: Path) -> None:
    cell: Json = {"size": "small", "context_length": 128}
    with_record(root, record([timed(**cell)], written="2030-01-01"), "old-machine")
    sources = with_record(root, record([timed(BACKWARD, phase="backward", **cell)], written="2030-01-02"))
    assert here(sources, "How long does a forward pass take") == {}
    sources = with_record(root, record([timed(**cell)], written="2031-01-01"), "Linux-CPython-3.11-64bit")
    assert here(sources, "How long does a forward pass take") == {}


@pytest.fixture(scope="module")
def committed() -> list[Entry]:
    """Of the committed records, without played steps."""
    return entries(Sources(ROOT, PLAYED))


DERIVED = ("/", "TFLOP/s", "one layer", "over context", "median", "sources")
"""In the columns of rates and ratios of published figures."""


def test_published_figures_are_in_the_tables_as_printed(committed: list[Entry]) -> None:
    """Those that are no ratio and no rate, nor rounded to their spread, stand in a file below published/."""
    tables = [path.read_text() for path in (ROOT / "published").glob("*.csv")]
    printed = {text for table in tables for text in re.findall(r"[\d.]+", table)}
    checked = 0
    for found in committed:
        for figure in found.answer.published:
            is_derived = any(word in figure.column for word in DERIVED)
            if "±" not in figure.text and not is_derived and found.question.asked not in COMPUTED:
                checked += 1
                numbers = re.findall(r"\d+(?:\.\d+)?", figure.text)
                assert all(number in printed for number in numbers), (found.question.asked, figure)
    assert checked > 300


COMPUTED = (
    "With which power of the length does the time grow?",
    "How does the softmax compare with the products of attention?",
)
"""Questions whose published figures are computed from printed ones."""


def test_every_table_of_the_five_write_ups_is_on_the_page(committed: list[Entry]) -> None:
    figures = [figure for found in committed for figure in found.answer.published]
    names = [(figure, name) for figure in figures for name in (figure.column, figure.row[0])]
    shown = {(name.partition(",")[0].partition(" (")[0], figure.text.rstrip("%")) for figure, name in names}
    written = (ROOT / "WRITEUP.md").read_text()
    missing = []
    for name, field in THEIRS:
        for row in filter(published.is_write_up, Sources(ROOT).published(name)):
            text = published.time_text(row) if name == "e2e_timing.csv" else row[field]
            is_played = name == "memory.csv" and row["size"] == "2.7B"
            is_shown = f"| {text} " in written if is_played else (published.name_of(row), text) in shown
            missing += [] if is_shown or not text else [(name, dict(row))]
    assert missing == []


THEIRS = (
    ("e2e_timing.csv", "mean_ms"), ("attention_timing.csv", "mean_ms"), ("memory.csv", "value"),
    ("gemm_share.csv", "gemm_pct"), ("kernels.csv", "pct_of_gpu_time"), ("kernels.csv", "calls"),
    ("kernels.csv", "avg_us"), ("softmax_vs_matmul.csv", "qk_time"), ("softmax_vs_matmul.csv", "softmax_time"),
    ("softmax_vs_matmul.csv", "av_time"), ("answers.csv", "value"),
)  # fmt: skip
"""Their tables, and the column with the figure."""


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.asked)
def test_why_is_one_sentence_without_a_figure(question: Question) -> None:
    assert not re.search(r"(?<!\w)\d", question.why)
    assert question.why.count(". ") == 0
    assert question.why.endswith(".")


def test_questions_differ_and_read_in_their_section() -> None:
    asked = [question.asked for question in QUESTIONS]
    again = [one for one in asked if asked.count(one) > 1]
    assert all(one.startswith("And ") for one in again)


def test_what_is_played_stands_beside_what_is_published(root: Path) -> None:
    peak = here(Sources(root, PLAYED), "What is the peak of a training step")
    assert peak["2.7B", "128", "fp32"]["here: predicted for write-up 003 (GB)"] == "60.2"
    assert entry(Sources(root, PLAYED), "What is the peak of a training step").answer.published[0].text == "60.0"
    assert here(Sources(root, PLAYED), "the first step")["medium", "128", "fp32"] == {
        "here: batch 2, first (GB)": "7.0", "here: batch 2, later (GB)": "8.0",
    }  # fmt: skip
    line = here(Sources(root, PLAYED), "Which line of code")
    assert line["2.7B", "128", "model/transformer.py:100"] == {"here: one (MiB)": "1.000", "here: made": "3"}
    assert here(Sources(root, PLAYED), "norm give in half")["about 1000",] == {
        "here: low": "all zero",
        "here: high": "within",
    }


def test_the_exercises_are_the_numerics_suites() -> None:
    """Their tables hold what numerics_tests asserts."""
    tables = exercises.tables()
    totals = {row[0]: row[1] for row in tables["accumulation"][1:]}
    assert totals == {name: f"{total:.10g}" for name, (_, _, total) in exercises.LOOPS.items()}
    named = {question.command.rpartition("/")[2] for question in QUESTIONS if "numerics_tests" in question.command}
    assert all((ROOT / "numerics_tests" / name).exists() for name in named)
    asked = {question.answer.args[0] for question in QUESTIONS if hasattr(question.answer, "args")}
    assert asked == set(tables)


def test_one_slow_round_explains_a_deviation() -> None:
    """Nine rounds of 22.7 ms and one of 137 ms have mean and deviation of 34.2 ± 34.4."""
    usual, slow = one_slow_round(34.2, 34.4, 10)
    assert usual == pytest.approx(22.7, abs=0.1)
    assert slow == pytest.approx(137, abs=1)


def shape_of(config: ModelConfig) -> Shape:
    return Shape(config.d_model, config.d_ff, config.num_layers, config.num_heads)


def test_the_shapes_are_those_of_the_sizes() -> None:
    for name, shape in Sources(ROOT).shapes.items():
        assert shape == shape_of(SIZES[name])


@pytest.mark.parametrize("context, is_attention", [(8, False), (24, True)])
def test_the_largest_tensor_changes_where_the_closed_form_says(context: int, is_attention: bool) -> None:
    """A shape whose scores and feed-forward tensors are equal at a context of 16, and both larger than the logits."""
    config = ModelConfig(d_model=16, d_ff=64, num_layers=1, num_heads=4, vocab_size=8, context_length=context)
    assert crossover(shape_of(config)) == 16
    largest = counters_of(language_model_case(config)).largest_allocations[0]
    assert largest.bytes == 2 * 4 * (config.num_heads * context**2 if is_attention else context * config.d_ff)
    assert ("attention" in largest.place) == is_attention


@pytest.mark.parametrize("attention, squares", [("naive", 2 + 1 / 32), ("sdpa", 0)])
def test_the_matrices_that_attention_saves_are_the_ledgers(attention: str, squares: float) -> None:
    assert squares_saved(Sources(ROOT), attention)[0] == pytest.approx(squares, abs=0.001)


def test_rows_are_in_the_order_of_sizes_and_numbers() -> None:
    rows = [("large", "128"), ("small", "1024"), ("small", "256"), ("small", "not stated")]
    found = table_of(Answer(("Size", "Context"), [Figure(row, "here", "1") for row in rows]))
    assert found is not None
    assert [row[:2] for row in found.rows] == [rows[2], rows[1], rows[3], rows[0]]


@pytest.mark.usefixtures("quick")
def test_json_has_every_question_once_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["writeup", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["question"] for row in rows] == [question.asked for question in QUESTIONS]
    assert all(figure["text"] for row in rows for figure in (*row["here"], *row["published"]))


@pytest.mark.usefixtures("quick")
def test_a_broken_record_is_named_and_the_exit_code_says_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_record(root, record([timed()]))
    (root / ".benchmarks/some-machine/0002_run.json").write_text("{")
    assert main(["writeup", f"--root={root}"]) == 1
    assert "0002_run.json" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_without_its_tables_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["writeup", f"--root={tmp_path}"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("output, said", [
    ("./no/such/page.md", "./no/such/page.md cannot be written: No such file or directory; name another file"),
    ("page.pdf", "page.pdf: the page is Markdown or HTML"),
])  # fmt: skip
def test_an_output_that_cannot_be_written_is_named_as_typed(
    output: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["writeup", "--output", output]) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.usefixtures("quick")
def test_html_is_whole_escaped_and_loads_nothing(root: Path, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    forward = traced(size="small", context_length=128)
    forward["values"]["kernels"][0]["name"] = name
    with_record(root, {**record([timed(size="<b>", context_length=128)]), "passes": [forward]})
    path = tmp_path / "page.html"
    assert main(["writeup", f"--root={root}", f"--output={path}"]) == 0
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")
    assert name not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<b>" not in page
    assert not re.search(r"<script|https?://|url\(", page)
    assert page.count("<h3>") == len(QUESTIONS)
    assert page.count('<p class="command">') == len(QUESTIONS)
