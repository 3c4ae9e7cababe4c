"""The page of questions: what it says is what the files say, and no answer is made up."""

import json
import re
from pathlib import Path

import pytest

from model.sizes import SIZES, ModelConfig
from perf_tests.__main__ import main
from perf_tests.counting.case_counters import counters_of
from perf_tests.meta_tests.example_cases import language_model_case
from perf_tests.proofs.synthetic import BACKWARD, FORWARD, FULL_STEP, record, remembered, timed, traced, warmed
from perf_tests.records.record import Json
from perf_tests.views.writeup.memory import crossover, squares_saved
from perf_tests.views.writeup.page import QUESTIONS, UNANSWERED, answers, questions_page
from perf_tests.views.writeup.sources import LEDGER, ROOT, Shape, Sources


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The repository's tables without its records."""
    (tmp_path / LEDGER).parent.mkdir(parents=True)
    for name in ("published", LEDGER):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def with_record(root: Path, data: Json, machine: str = "some-machine") -> Sources:
    """The tables beside one record."""
    path = root / ".benchmarks" / machine / "0001_run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return Sources(root)


def answer(sources: Sources, words: str) -> str:
    """Of the one question with these words; empty where it has none."""
    ((_, found),) = [pair for pair in answers(sources) if words in pair[0].asked]
    return "" if found is None else found.text


def test_the_page_is_what_its_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions"]) == 0
    written = (ROOT / "QUESTIONS.md").read_text()
    assert written == capsys.readouterr().out, "python -m perf_tests questions -o QUESTIONS.md"


def test_without_a_record_its_questions_are_open_and_the_others_answered(root: Path) -> None:
    is_open = [said is None for _, said in answers(Sources(root))]
    assert is_open.count(True) >= 8
    assert is_open.count(False) >= 8
    assert questions_page(Sources(root)).count(UNANSWERED) == is_open.count(True)


def test_every_question_is_answered_by_a_record_with_every_pass(root: Path) -> None:
    rows = [
        timed(f"{phase}-{name}-{kind}", [seconds * factor for seconds in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)], phase=phase,
              precision=name, attention=kind, first_round_seconds=2.5, part_seconds={"optimizer": [0.25 * factor]})
        for phase, factor in (("forward", 1.0), ("backward", 2.0), ("full_step", 4.0))
        for name in ("fp32", "bf16") for kind in ("naive", "sdpa")
    ]  # fmt: skip
    rows += [
        {**row, "extra_info": {"phase": "attention_forward", "head_dim": 16, "sequence_length": 256, "batch_size": 8,
                               "precision": "fp32", "attention": name, "device": "cpu", "flags": []}}
        for name, row in (("naive", timed("a-naive", (0.04,) * 6)), ("sdpa", timed("a-sdpa", (0.01,) * 6)))
    ]  # fmt: skip
    passes = [traced(FORWARD), traced(BACKWARD, phase="backward"), traced(FULL_STEP, phase="full_step"),
              remembered(), warmed()]  # fmt: skip
    sources = with_record(root, {**record(rows), "passes": passes})
    assert [question.asked for question, said in answers(sources) if said is None] == []
    assert "sdpa forward 4.0 to 4.0 x" in answer(sources, "fusing")
    assert "2.00 in fp32" in answer(sources, "twice its forward")
    assert "Yes, it is the same: in tiny 8 forward fp32 naive `gemm<float>`, 10 calls" in answer(sources, "takes most")
    assert "1.20 x the same round" in answer(sources, "agree with the clock")
    assert "elementwise 25.0%" in answer(sources, "beside matrix products")
    assert "75% of the kernel time" in answer(sources, "What share do")
    assert "0.50 of the products' time with 2.0% of their FLOPs" in answer(sources, "softmax")
    assert "The largest difference is 1,048,576 bytes of 1,074,790,400, 0.10%" in answer(sources, "measured peak")
    warm_up = answer(sources, "without a warm-up")
    assert "75% of the extra time is module loading" in warm_up
    assert "A warm-up of 1 rounds is enough for all of them" in warm_up
    assert "the first measured round still takes" in warm_up


def test_an_answer_follows_its_record(root: Path) -> None:
    slow = timed("slow", (3.0,) * 10, phase="backward")
    for seconds, ratio in ((1.0, "3.00"), (2.0, "1.50")):
        sources = with_record(root, record([timed(seconds=(seconds,) * 10), slow]))
        assert answer(sources, "twice its").startswith(f"{ratio} in fp32")


def test_another_top_kernel_in_the_backward_pass_is_told(root: Path) -> None:
    backward = traced(BACKWARD, phase="backward")
    backward["values"]["kernels"] = backward["values"]["kernels"][::-1]
    sources = with_record(root, {**record([timed()]), "passes": [traced(FORWARD), backward]})
    assert answer(sources, "takes most").startswith("No, they differ")


def test_runs_of_whoever_measures_answer_nothing(root: Path) -> None:
    sources = with_record(root, record([timed()]), "Linux-CPython-3.11-64bit")
    assert answer(sources, "vary") == ""


def test_a_broken_record_is_named_and_the_exit_code_says_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_record(root, record([timed()]))
    (root / ".benchmarks/some-machine/0002_run.json").write_text("{")
    assert main(["questions", f"--root={root}"]) == 1
    assert "0002_run.json" in capsys.readouterr().err


def test_without_its_tables_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions", f"--root={tmp_path}"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


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


def test_json_has_every_question_once_with_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["questions", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["question"] for row in rows] == list(dict.fromkeys(question.asked for question in QUESTIONS))
    assert all(re.search(r"\d", row["answer"]) for row in rows if row["answer"])
