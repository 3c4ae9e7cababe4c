"""An attention of one's own is held to float64 before it is timed, and is counted like the suite's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from model.attention import AttentionFunction
from model.precision import PRECISIONS
from perf_tests.bench.models import load_attentions, refusal_of, refusals
from perf_tests.bench.worker_plugin import received, sent, sent_elsewhere
from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.options import attentions
from perf_tests.cases.selected import is_inside
from perf_tests.predict.counters import NotCountedError, counters_of
from perf_tests.user_code import attention as attention_check
from perf_tests.user_code.attention import (
    Arithmetic,
    Use,
    attention_named,
    exact_and_bounds,
    label,
)
from perf_tests.user_code.guard import UserCodeError
from perf_tests.user_code.named import from_its_repository
from tests.support.example_cases import CPU, SETTINGS, TOY, attention_case, language_model_case
from tests.support.wrong_attention import EXAMPLE, FAULTS, refusal, refusal_of_fault

FLASH = f"{EXAMPLE}:flash_attention"
FOUR_HEADS = replace(TOY, d_model=32, num_heads=4)


def refused(attend: AttentionFunction | str, precision: str, has_heads: bool = True, seed: int = 0) -> str | None:
    built = attention_named(attend).build() if isinstance(attend, str) else attend
    return refusal(built, "it", Use(16, has_heads, PRECISIONS[precision], CPU), seed)


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_refused(name: str) -> None:
    reason = refusal_of_fault(name, CPU)
    assert reason is not None
    assert reason.endswith(".") or ": " in reason


@pytest.mark.parametrize("has_heads", [True, False], ids=["in a model", "alone"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", FLASH], ids=label)
def test_a_correct_kernel_is_not_refused_and_leaves_the_seed_alone(
    attention: str, precision: str, has_heads: bool
) -> None:
    before = torch.get_rng_state()
    assert refused(attention, precision, has_heads, seed=11) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_the_bound_is_that_of_the_precision(tmp_path: Path) -> None:
    """Operands of ten bits are fine for TF32; a scale that is 3 % off does not show in bfloat16."""
    (tmp_path / "coarse.py").write_text(FAULTS["products of operands in ten bits"].source)

    def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.03 / q.shape[-1] ** 0.5)

    coarse = f"{tmp_path}/coarse.py:flash_attention"
    assert "x its bound" in (refused(coarse, "fp32", has_heads=False) or "")
    assert refused(coarse, "tf32", has_heads=False) is None
    assert torch.get_float32_matmul_precision() == "highest"
    assert refused(scaled, "fp32") is not None
    assert refused(scaled, "bf16") is None


PLANTED = """
import functools, sys, time, torch
from torch import arange
from torch.nn.functional import scaled_dot_product_attention

NUMBER = 3

def fused(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)

def first_two_sequences(q, k, v):
    output = fused(q, k, v).clone()
    output[2:] = v[2:]
    return output

def first_three_heads(q, k, v):
    return fused(q, k, v) * (arange(q.shape[1]) < 3)[:, None, None]

def backward_of_first_two_sequences(q, k, v):
    output = fused(q, k, v)
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient * (arange(len(q)) < 2).view(-1, *(1,) * (q.dim() - 1)))
    return output

def but_at_256(q, k, v):
    return fused(q, k, v) * (q.shape[-2] != 256)

def peeks(q, k, v):
    return scaled_dot_product_attention(q, k, v)

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
    return fused(q, k, v).half()

def scribbles(q, k, v):
    output = fused(q.clone(), k, v)
    q.data.zero_()
    return output

def detached(q, k, v):
    return fused(q, k, v).detach()

def flat(q, k, v):
    return fused(q, k, v).flatten(0, 1)

def nothing(q, k, v):
    return None

def prints(q, k, v):
    print("noise")
    return fused(q, k, v)

def reads_a_value(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=bool(q.sum() < 1e9))

@functools.lru_cache
def mask(tokens):
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()

def keeps_masks(q, k, v):
    return scaled_dot_product_attention(q, k, v, attn_mask=mask(q.shape[-2]))
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    path = tmp_path_factory.mktemp("planted") / "planted.py"
    path.write_text(PLANTED)
    return lambda name: f"{path}:{name}"


@pytest.mark.parametrize("name", ["first_two_sequences", "first_three_heads", "backward_of_first_two_sequences"])
def test_sequences_and_heads_of_the_cases_are_checked_too(name: str, planted: Callable[[str], str]) -> None:
    small, large, whole = (
        language_model_case(attention=planted(function), batch_size=batch, config=config)
        for function, batch, config in ((name, 2, TOY), (name, 3, FOUR_HEADS), ("fused", 3, FOUR_HEADS))
    )
    assert refusals([small], CPU) == refusals([whole], CPU) == {}
    (refused_large,) = refusals([small, large], CPU).values()
    assert refused_large.outcome == "incorrect"


def test_lengths_of_the_cases_are_checked_too(planted: Callable[[str], str]) -> None:
    short, long = (attention_case(attention=planted("but_at_256"), sequence_length=length) for length in (255, 256))
    assert refusals([short], CPU) == {}
    assert refusals([long], CPU)


def test_of_a_huge_batch_no_more_heads_are_checked_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Mock()
    monkeypatch.setattr("perf_tests.bench.models.check_attention", checked)
    cases = [kind(attention=FLASH, batch_size=10**6) for kind in (language_model_case, attention_case)]
    assert refusals(cases, CPU) == {}
    assert [call.args[-1] for call in checked.call_args_list] == [{(512, 2)}, {(1024,)}]


@pytest.mark.parametrize(
    "name, outcome, words",
    [
        ("raises", "error", "KeyError: 'hidden'"),
        ("exits", "error", "it called exit(3)"),
        ("never_returns", "error", "it did not return within 0.2 s"),
        ("needs_a_gpu", "unsupported", "0 active drivers"),
        ("half", "incorrect", "it returns torch.float16, not torch.float32"),
        ("flat", "incorrect", "it returns (128, 16), not (2, 64, 16)"),
        ("scribbles", "incorrect", "it changes q in place"),
        ("detached", "incorrect", "it records no graph for a backward pass"),
        ("nothing", "incorrect", "it returns a NoneType, not a tensor"),
        ("peeks", "incorrect", " x its bound at ("),
    ],
)
def test_a_function_that_fails_is_an_outcome(
    planted: Callable[[str], str], name: str, outcome: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_check, "LONGEST_CHECK_SECONDS", 0.2 if name == "never_returns" else 60)
    (found,) = refusals([attention_case(attention=planted(name))], CPU).values()
    assert (found.outcome, words in found.reason) == (outcome, True), found.reason
    assert found.in_words.startswith("incorrect: error ") or name != "peeks"


def test_a_function_that_prints_is_fine_and_what_is_no_function_is_refused_before_measuring(
    planted: Callable[[str], str],
) -> None:
    assert refusals([attention_case(attention=planted("prints"))], CPU) == {}
    for name, words in (("absent", "cannot be imported"), ("NUMBER", "is of type int")):
        with pytest.raises(UserCodeError, match=words):
            load_attentions([attention_case(attention=planted(name))])


def test_under_autocast_a_function_gets_one_dtype_and_no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_example_is_counted_and_saves_its_output_and_one_number_a_row() -> None:
    case = attention_case(attention=FLASH, phase="attention_backward")
    counters, naive = counters_of(case), counters_of(replace(case, attention="naive"))
    assert counters.saved_bytes == 4 * case.batch_size * case.sequence_length * (case.head_dim + 1)
    assert counters.peak_bytes < naive.peak_bytes
    assert counters.executed_flops is not None
    assert counters.model_flops == naive.model_flops
    step = language_model_case(attention=FLASH, phase="full_step", optimizer="loop")
    assert counters_of(step).parameters == counters_of(replace(step, attention="naive")).parameters


def test_one_that_cannot_be_played_is_not_counted_and_what_it_keeps_of_empty_tensors_reaches_no_real_call(
    planted: Callable[[str], str],
) -> None:
    with pytest.raises(NotCountedError, match="reads_a_value cannot be played on tensors without content"):
        counters_of(attention_case(attention=planted("reads_a_value")))
    case = attention_case(attention=planted("keeps_masks"))
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
    assert [from_its_repository(text) for text in ("kernels.flash:attend", "naive")] == [
        "kernels.flash:attend",
        "naive",
    ]
    inside = replace(SETTINGS, attentions=("naive", name), batch_sizes=(2,))
    identity = language_model_case(attention=name, size="tiny").identity()
    assert is_inside(identity, inside)
    assert not is_inside(identity, replace(inside, attentions=("naive",)))


def test_a_model_of_ones_own_that_names_no_heads_has_no_function_to_refuse() -> None:
    case = replace(language_model_case(attention="own"), config=Mock(spec=[]))
    assert refusal_of(case, {}, CPU) is None


def test_own_functions_follow_the_table_as_typed() -> None:
    assert attentions("--attention", f"{FLASH},sdpa,naive") == ("naive", "sdpa", FLASH)
    assert attentions("--attention", "all") == ("naive", "compiled", "sdpa", "flex")
    for text, words in (
        ("nowhere.py:attend", "there is no file nowhere.py"),
        ("nowhere:attend", "there is no module 'nowhere'"),
        (f"{EXAMPLE}:", "names nothing to load"),
        (f"{EXAMPLE}:attended,examples.flash_attention:attended", "names two functions 'flash_attention.attended'"),
    ):
        with pytest.raises(ValueError, match=words):
            attentions("--attention", text)


def test_a_worker_elsewhere_gets_the_whole_path_and_one_that_lacks_the_file_none_of_its_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = replace(SETTINGS, attentions=("naive", f"{tmp_path}/added.py:attend"))
    assert received(sent(absent)).attentions == ("naive",)
    monkeypatch.chdir(EXAMPLE.parent)
    own = replace(SETTINGS, attentions=("naive", f"{EXAMPLE.name}:flash_attention"))
    assert received(sent_elsewhere(own)).attentions == ("naive", FLASH)
    assert received(sent(own)) == own


def test_bounds_are_those_worked_out_for_equal_scores() -> None:
    """Of key t of t + 1: 8 roundings of 4 units in the last place each, 3 t + 3 of blocks, and the sum's."""
    tokens, u = 4, 2.0**-24
    k = torch.randn(1, tokens, 8, generator=torch.Generator().manual_seed(0))
    ones = torch.ones_like(k)
    exact, allowed = exact_and_bounds(0 * k, k, ones, ones, Arithmetic.of(torch.float32))
    count = torch.arange(1, tokens + 1, dtype=torch.float64)[:, None].expand(-1, 8)
    probabilities = torch.expm1((8 * 4 + 3 * count) * u)
    wanted = (1 + u) * (probabilities + (count + 3) * u) + u
    torch.testing.assert_close(exact.output[0], torch.ones_like(count))
    torch.testing.assert_close(allowed.output[0], wanted, rtol=1e-6, atol=0)
