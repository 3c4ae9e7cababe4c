"""An attention of one's own is held to float64 before it is timed, and is counted like the suite's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from model.precision import PRECISIONS
from perf_tests.bench.models import load_attentions, refusal_of, refusals
from perf_tests.bench.worker_plugin import received, sent, sent_elsewhere
from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.options import attentions
from perf_tests.cases.selected import is_inside
from perf_tests.predict.counters import NotCountedError, counters_of
from perf_tests.user_code import attention as attention_check
from perf_tests.user_code.attention import Use, attention_named, check_attention, label
from perf_tests.user_code.guard import OwnModelError
from perf_tests.user_code.named import from_its_repository
from tests.support.example_cases import CPU, SETTINGS, TOY, attention_case, language_model_case
from tests.support.wrong_attention import EXAMPLE, FAULTS, Fault, refusal, refusal_of_fault

FLASH = f"{EXAMPLE}:flash_attention"
FOUR_HEADS = replace(TOY, d_model=32, num_heads=4)


def refused(name: str, use: Use, seed: int = 0) -> str | None:
    return refusal(attention_named(name).build(), name, use, seed)


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_refused(name: str) -> None:
    reason = refusal_of_fault(name, CPU)
    assert reason is not None
    assert reason.endswith(".") or ": " in reason


@pytest.mark.parametrize("has_heads", [True, False], ids=["in a model", "alone"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", FLASH], ids=label)
def test_a_correct_kernel_is_not_refused(attention: str, precision: str, has_heads: bool) -> None:
    assert refused(attention, Use(24, has_heads, PRECISIONS[precision], CPU), seed=11) is None


def test_a_kernel_without_a_fault_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAULTS, "smaller tiles", Fault("BLOCK = 64", "BLOCK = 32"))
    assert refusal_of_fault("smaller tiles", CPU) is None


def test_what_is_too_coarse_for_float32_is_fine_for_tf32(tmp_path: Path) -> None:
    planted = tmp_path / "coarse.py"
    planted.write_text(FAULTS["products of operands in ten bits"].source)
    in_fp32, in_tf32 = (
        refused(f"{planted}:flash_attention", Use(16, False, PRECISIONS[name], CPU)) for name in ("fp32", "tf32")
    )
    assert in_tf32 is None
    assert in_fp32 is not None
    assert "x its bound" in in_fp32
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_scale_that_is_3_percent_off_shows_in_float32_and_not_in_bfloat16() -> None:
    """As the page on one's own code says."""

    def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scale = 1.03 / q.shape[-1] ** 0.5
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    in_fp32, in_bf16 = (refusal(scaled, "scaled", Use(16, True, PRECISIONS[name], CPU)) for name in ("fp32", "bf16"))
    assert in_fp32 is not None
    assert in_bf16 is None


def test_a_refusal_says_by_how_much_and_where(tmp_path: Path) -> None:
    planted = tmp_path / "peeks.py"
    planted.write_text(FAULTS["mask off by one"].source)
    (outcome,) = refusals([attention_case(attention=f"{planted}:flash_attention")], CPU).values()
    assert outcome.outcome == "incorrect"
    assert outcome.in_words.startswith("incorrect: error ")
    assert " x its bound at (" in outcome.reason


def test_lengths_of_the_cases_are_checked_too(tmp_path: Path) -> None:
    at_256 = tmp_path / "at_256.py"
    text = EXAMPLE.read_text()
    at_256.write_text(text.replace("    return output\n", "    return output * (q.shape[-2] != 256)\n", 1))
    name = f"{at_256}:flash_attention"
    assert refusals([attention_case(attention=name, sequence_length=255)], CPU) == {}
    assert refusals([attention_case(attention=name, sequence_length=256)], CPU)


PLANTED = """
from torch import arange
from torch.nn.functional import scaled_dot_product_attention as fused

def first_two_sequences(q, k, v):
    output = fused(q, k, v, is_causal=True).clone()
    output[2:] = v[2:]
    return output

def first_three_heads(q, k, v):
    return fused(q, k, v, is_causal=True) * (arange(q.shape[1]) < 3)[:, None, None]

def backward_of_first_two_sequences(q, k, v):
    output = fused(q, k, v, is_causal=True)
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient * (arange(len(q)) < 2).view(-1, *(1,) * (q.dim() - 1)))
    return output

def all_of_it(q, k, v):
    return fused(q, k, v, is_causal=True)
"""


@pytest.mark.parametrize("name", ["first_two_sequences", "first_three_heads", "backward_of_first_two_sequences"])
def test_sequences_and_heads_of_the_cases_are_checked_too(name: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    small, large, whole = (
        language_model_case(attention=f"{tmp_path}/planted.py:{function}", batch_size=batch, config=config)
        for function, batch, config in ((name, 2, TOY), (name, 3, FOUR_HEADS), ("all_of_it", 3, FOUR_HEADS))
    )
    assert refusals([small], CPU) == {}
    (refused_large,) = refusals([small, large], CPU).values()
    assert refused_large.outcome == "incorrect"
    assert refusals([whole], CPU) == {}


def test_of_a_huge_batch_no_more_heads_are_checked_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Mock()
    monkeypatch.setattr("perf_tests.bench.models.check_attention", checked)
    cases = [
        language_model_case(attention=FLASH, batch_size=10**6), attention_case(attention=FLASH, batch_size=10**6)
    ]  # fmt: skip
    assert refusals(cases, CPU) == {}
    assert [call.args[-1] for call in checked.call_args_list] == [{(512, 2)}, {(1024,)}]


FUNCTIONS = """
import functools, sys, time, torch
from torch.nn.functional import scaled_dot_product_attention as fused

NUMBER = 3

def raises(q, k, v):
    raise KeyError("hidden")

def exits(q, k, v):
    sys.exit(3)

def never_returns(q, k, v):
    while True:
        time.sleep(0.01)

def needs_a_gpu(q, k, v):
    raise RuntimeError("0 active drivers ([]). There should only be one.")

def half(q, k, v):
    return fused(q, k, v, is_causal=True).half()

def flat(q, k, v):
    return fused(q, k, v, is_causal=True).flatten(0, 1)

def nothing(q, k, v):
    return None

def prints(q, k, v):
    print("noise")
    return fused(q, k, v, is_causal=True)

def reads_a_value(q, k, v):
    return fused(q, k, v, is_causal=bool(q.sum() < 1e9))

@functools.lru_cache
def mask(tokens):
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()

def keeps_masks(q, k, v):
    return fused(q, k, v, attn_mask=mask(q.shape[-2]))
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    path = tmp_path_factory.mktemp("functions") / "functions.py"
    path.write_text(FUNCTIONS)
    return lambda name: f"{path}:{name}"


@pytest.mark.parametrize(
    "name, outcome, words",
    [
        ("raises", "error", "KeyError: 'hidden'"),
        ("exits", "error", "it called exit(3)"),
        ("never_returns", "error", "it did not return within 0.2 s"),
        ("needs_a_gpu", "unsupported", "0 active drivers"),
        ("half", "incorrect", "it returns torch.float16, not torch.float32"),
        ("flat", "incorrect", "it returns (128, 16), not (2, 64, 16)"),
        ("nothing", "incorrect", "it returns a NoneType, not a tensor"),
    ],
)
def test_a_function_that_fails_is_an_outcome(
    functions: Callable[[str], str], name: str, outcome: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_check, "LONGEST_CHECK_SECONDS", 0.2)
    (found,) = refusals([attention_case(attention=functions(name))], CPU).values()
    assert (found.outcome, words in found.reason) == (outcome, True), found.reason


def test_a_function_that_prints_is_fine(functions: Callable[[str], str]) -> None:
    assert refusals([attention_case(attention=functions("prints"))], CPU) == {}


@pytest.mark.parametrize("name, words", [("absent", "cannot be imported"), ("NUMBER", "is of type int")])
def test_what_is_no_function_is_refused_before_measuring(
    functions: Callable[[str], str], name: str, words: str
) -> None:
    with pytest.raises(OwnModelError, match=words):
        load_attentions([attention_case(attention=functions(name))])


def test_under_autocast_a_function_gets_one_dtype_and_no_autocast(
    functions: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch calls its own fused attention; rotary embedding leaves q and k in float32."""
    seen: list[object] = []

    def watching(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.extend((q.dtype, k.dtype, v.dtype, torch.is_autocast_enabled("cpu")))
        return v

    monkeypatch.setattr("perf_tests.user_code.attention.load", lambda name, copy: watching)
    x = torch.ones(1, 2, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        attention_named("m:watching").build()(x, x, x.bfloat16())
    assert seen == [torch.bfloat16] * 3 + [False]


def test_the_example_saves_its_output_and_one_number_a_row() -> None:
    case = attention_case(attention=FLASH, phase="attention_backward")
    counters, naive = counters_of(case), counters_of(replace(case, attention="naive"))
    assert counters.saved_bytes == 4 * case.batch_size * case.sequence_length * (case.head_dim + 1)
    assert counters.peak_bytes < naive.peak_bytes
    assert counters.executed_flops is not None
    assert counters.model_flops == naive.model_flops


def test_in_a_model_it_is_counted_too() -> None:
    case = language_model_case(attention=FLASH, phase="full_step", optimizer="loop")
    assert counters_of(case).parameters == counters_of(replace(case, attention="naive")).parameters


def test_one_that_cannot_be_played_is_not_counted_and_says_why(functions: Callable[[str], str]) -> None:
    with pytest.raises(NotCountedError, match="reads_a_value cannot be played on tensors without content"):
        counters_of(attention_case(attention=functions("reads_a_value")))


def test_what_it_keeps_of_tensors_without_content_reaches_no_real_call(functions: Callable[[str], str]) -> None:
    case = attention_case(attention=functions("keeps_masks"))
    load_attentions([case])
    assert counters_of(case).kernel_launches > 0
    q = torch.ones(1, case.sequence_length, case.head_dim)
    assert attention_named(case.attention).build()(q, q, q).isfinite().all()


def test_a_case_is_named_by_file_and_function_and_known_by_its_path_in_the_repository(tmp_path: Path) -> None:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    name = f"{tmp_path}/repository/kernels/flash.py:attend"
    assert label(name) == label("kernels.flash:attend") == "flash.attend"
    assert AttentionCase.id_of(64, 256, "fp32", name) == "d64-seq256-fp32-flash.attend"
    assert LanguageModelCase.id_of("tiny", 64, "fp32", name) == "tiny-ctx64-fp32-flash.attend"
    for case in (attention_case(attention=name), language_model_case(attention=name)):
        assert case.identity()["attention"] == "kernels/flash.py:attend"
    assert from_its_repository("kernels.flash:attend") == "kernels.flash:attend"
    assert from_its_repository("naive") == "naive"


def test_a_model_of_ones_own_that_names_no_heads_has_no_function_to_refuse() -> None:
    case = replace(language_model_case(attention="own"), config=Mock(spec=[]))
    assert refusal_of(case, {}, CPU) is None


def test_a_row_of_an_earlier_run_is_inside_the_axes(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    name = f"{tmp_path}/flash.py:attend"
    identity = language_model_case(attention=name, size="tiny").identity()
    inside = replace(SETTINGS, attentions=("naive", name), batch_sizes=(2,))
    assert is_inside(identity, inside)
    assert not is_inside(identity, replace(inside, attentions=("naive",)))


def test_own_functions_follow_the_table_as_typed() -> None:
    assert attentions("--attention", f"{FLASH},sdpa,naive") == ("naive", "sdpa", FLASH)
    assert attentions("--attention", "all") == ("naive", "compiled", "sdpa", "flex")


@pytest.mark.parametrize(
    "text, words",
    [
        ("nave", "choose from naive, compiled, sdpa, flex, all, FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("nowhere.py:attend", "there is no file nowhere.py"),
        ("nowhere:attend", "there is no module 'nowhere'"),
        (f"{EXAMPLE}:", "names nothing to load"),
        (f"{EXAMPLE}:attended,examples.flash_attention:attended", "names two functions 'flash_attention.attended'"),
    ],
)
def test_a_name_that_cannot_be_measured_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attentions("--attention", text)


def test_a_worker_elsewhere_gets_the_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parent)
    own = replace(SETTINGS, attentions=("naive", f"{EXAMPLE.name}:flash_attention"))
    assert received(sent_elsewhere(own)).attentions == ("naive", FLASH)
    assert received(sent(own)) == own


def test_the_seed_of_the_process_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    check_attention(attention_named("naive").build(), "naive", Use(8, False, PRECISIONS["fp32"], CPU))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_worker_whose_tree_lacks_the_file_collects_none_of_its_cases(tmp_path: Path) -> None:
    own = replace(SETTINGS, attentions=("naive", f"{tmp_path}/added.py:attend"))
    assert received(sent(own)).attentions == ("naive",)
