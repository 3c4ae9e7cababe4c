"""An attention of the user's is held to float64 before it is timed, and is counted like the suite's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from perf_tests_suite.model.attention import AttentionFunction
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.bench.models import load_attentions, refusal_of, refusals
from perf_tests_suite.perf_tests.bench.worker_plugin import received, sent, sent_elsewhere
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.options import attentions
from perf_tests_suite.perf_tests.cases.selected import is_inside
from perf_tests_suite.perf_tests.predict.counters import NotCountedError, counters_of
from perf_tests_suite.perf_tests.user_code import attention as attention_check
from perf_tests_suite.perf_tests.user_code.attention import Arithmetic, Use, attention_named, exact_and_bounds
from perf_tests_suite.perf_tests.user_code.given import label
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from tests.support import honest_code
from tests.support.example_cases import CPU, SETTINGS, TOY, attention_case, language_model_case
from tests.support.wrong_attention import EXAMPLE, FAULTS, refusal, refusal_of_fault

FLASH = f"{EXAMPLE}:flash_attention"
FOUR_HEADS = replace(TOY, d_model=32, num_heads=4)
NOT_A_NUMBER_TOO_FAR = {
    "float64 out": "it returns torch.float64, not torch.float32", "heads merged": "it returns (128, 16), not ",
    "no gradient of k": "it gives k no gradient", "no graph": "it records no graph for a backward pass",
    "inputs changed in place": "it changes q in place", "wrong without a graph": " under no_grad",
}  # fmt: skip
"""What is said of faults that are more than figures out of bounds."""


def refused(attend: AttentionFunction | str, precision: str, has_heads: bool = True, seed: int = 0) -> str:
    built = attention_named(attend).build() if isinstance(attend, str) else attend
    return refusal(built, "it", Use(16, has_heads, PRECISIONS[precision], CPU), seed) or ""


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_refused(name: str) -> None:
    assert NOT_A_NUMBER_TOO_FAR.get(name, " x its bound at (") in (refusal_of_fault(name, CPU) or "")


@pytest.mark.parametrize("has_heads", [True, False], ids=["in a model", "alone"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-tensors"])
@pytest.mark.parametrize("attention", ["naive", "sdpa", FLASH], ids=label)
def test_a_correct_kernel_is_taken_and_leaves_the_seed_alone(attention: str, precision: str, has_heads: bool) -> None:
    before = torch.get_rng_state()
    assert refused(attention, precision, has_heads, seed=11) == ""
    assert torch.equal(torch.get_rng_state(), before)


def test_the_bound_is_that_of_the_precision(tmp_path: Path) -> None:
    """Operands of ten bits are fine for TF32; a scale that is 3 % off does not show in bfloat16."""
    (tmp_path / "coarse.py").write_text(FAULTS["products of operands in ten bits"].source)

    def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.03 / q.shape[-1] ** 0.5)

    assert refused(f"{tmp_path}/coarse.py:flash_attention", "tf32", has_heads=False) == ""
    assert torch.get_float32_matmul_precision() == "highest"
    assert refused(scaled, "fp32") != ""
    assert refused(scaled, "bf16") == ""


def test_bounds_are_no_wider_than_they_were() -> None:
    """Of output and gradients, summed: a wider one would let wrong kernels pass, and none would say so."""
    q, k, v, do = (torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(4))
    for dtype, is_tf32, sums in (
        (torch.float32, False, [0.000386519, 0.00471357, 0.0057847, 0.000356852]),
        (torch.float32, True, [1.04635, 14.0927, 17.1296, 0.94445]),
        (torch.bfloat16, False, [4.49309, 60.0612, 73.0526, 4.03189]),
    ):
        exact, allowed = exact_and_bounds(q, k, v, do, Arithmetic.of(dtype, is_tf32))
        found = [float(bound.sum()) for bound in (allowed.output, allowed.dq, allowed.dk, allowed.dv)]
        assert found == pytest.approx(sums, rel=1e-5)
    leaves = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    output = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=True)
    gradients = torch.autograd.grad(output, leaves, do.double())
    torch.testing.assert_close((exact.output, exact.dq, exact.dk, exact.dv), (output.detach(), *gradients))


PLANTED = """
import time, torch
from tests.support.honest_code import fused

NUMBER = 3

def first_two_sequences(q, k, v):
    return torch.cat((fused(q[:2], k[:2], v[:2]), v[2:]))

def first_three_heads(q, k, v):
    return fused(q, k, v) * (torch.arange(q.shape[1]) < 3)[:, None, None]

def but_at_256(q, k, v):
    return fused(q, k, v) * (q.shape[-2] != 256)

def raises(q, k, v):
    raise KeyError("hidden")

def never_returns(q, k, v):
    while True:
        time.sleep(0.01)

def needs_a_gpu(q, k, v):
    raise RuntimeError("0 active drivers ([]). There should only be one.")

def nothing(q, k, v):
    return None

class ForwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(context, q, k, v):
        return fused(q, k, v)

    @staticmethod
    def backward(context, gradient):
        raise NotImplementedError

def forward_only(q, k, v):
    return ForwardOnly.apply(q, k, v)

def wrong_forward_only(q, k, v):
    return ForwardOnly.apply(q, k, 1.001 * v)

def of_blocks(q, k, v):
    assert q.shape[-2] % 16 == 0
    return fused(q, k, v)

def of_no_blocks(q, k, v):
    return of_blocks(q, k, v)

of_blocks.multiple_of, of_no_blocks.multiple_of = 16, "16"

def reads_a_value(q, k, v):
    return fused(q, k, v) * (1 if q.sum() < 1e9 else 2)
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    path = tmp_path_factory.mktemp("planted") / "planted.py"
    path.write_text(PLANTED)
    return lambda name: f"{path}:{name}"


def test_sequences_heads_and_lengths_of_the_cases_are_checked_too(planted: Callable[[str], str]) -> None:
    def outcomes(name: str, *cases: LanguageModelCase) -> list[str]:
        refused = refusals([replace(case, attention=planted(name)) for case in cases], CPU)
        return [one.outcome for one in refused.values()]

    small, large = language_model_case(batch_size=2), language_model_case(FOUR_HEADS, batch_size=3)
    long = language_model_case(TOY.at_context(256))
    assert outcomes("fused", small, large, long) == []
    for name, wrong in (("first_two_sequences", large), ("first_three_heads", large), ("but_at_256", long)):
        assert (outcomes(name, small), outcomes(name, small, wrong)) == ([], ["incorrect"])


def test_of_a_huge_batch_no_more_heads_are_checked_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Mock()
    monkeypatch.setattr("perf_tests_suite.perf_tests.bench.models.check_attention", checked)
    cases = [kind(attention=FLASH, batch_size=10**6) for kind in (language_model_case, attention_case)]
    assert refusals(cases, CPU) == {}
    assert [call.args[-1] for call in checked.call_args_list] == [{(512, 2)}, {(1024,)}]


def test_a_function_that_fails_is_an_outcome(planted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, outcome, words in (
        ("raises", "error", "KeyError: 'hidden'"), ("never_returns", "error", "it did not return within 1"),
        ("needs_a_gpu", "unsupported", "0 active drivers"),
        ("nothing", "incorrect", "it returns a NoneType, not a tensor"),
        ("first_three_heads", "incorrect", " x its bound at ("),
    ):  # fmt: skip
        monkeypatch.setattr(attention_check, "LONGEST_CHECK_SECONDS", 0.2 if name == "never_returns" else 60)
        (found,) = refusals([language_model_case(FOUR_HEADS, attention=planted(name))], CPU).values()
        assert (found.outcome, words in found.reason) == (outcome, True), found.reason
        assert found.sentence.startswith("incorrect: error ") or "bound" not in words


def test_without_a_backward_pass_cases_that_have_none_are_timed(planted: Callable[[str], str]) -> None:
    """If the output is right, of attention alone and in a model."""
    for name, outcomes in (
        ("forward_only", [None, "unsupported", None, "unsupported"]), ("wrong_forward_only", ["incorrect"] * 4)
    ):  # fmt: skip
        own = planted(name)
        alone = [attention_case(phase=f"attention_{way}", attention=own) for way in ("forward", "backward")]
        cases = [*alone, *(language_model_case(phase=phase, attention=own) for phase in ("inference", "backward"))]
        refused = refusals(cases, CPU)
        found = [refusal_of(case, refused, CPU) for case in cases]
        assert [one and one.outcome for one in found] == outcomes
        assert all("planted.py:" in one.reason for one in found if one is not None and one.outcome == "unsupported")


def test_a_function_of_multiples_is_checked_and_timed_at_these_alone(planted: Callable[[str], str]) -> None:
    of_blocks, of_no_blocks = (
        [attention_case(sequence_length=tokens, attention=planted(name)) for tokens in (48, 50)]
        for name in ("of_blocks", "of_no_blocks")
    )
    refused = refusals(of_blocks, CPU)
    even, odd = (cast(Any, refusal_of(case, refused, CPU)) for case in of_blocks)
    assert (even, odd.outcome) == (None, "unsupported")
    assert odd.reason.endswith("takes multiples of 16 tokens (multiple_of), and here are 50")
    (found,) = refusals(of_no_blocks, CPU).values()
    assert "has multiple_of '16'; it must be a number from 1 to 1024" in found.reason


def test_what_cannot_be_imported_or_called_is_refused_before_measuring(planted: Callable[[str], str]) -> None:
    for name, words in (("absent", "cannot be imported"), ("NUMBER", "is of type int")):
        with pytest.raises(UserCodeError, match=words):
            load_attentions([attention_case(attention=planted(name))])


def test_under_autocast_a_function_gets_one_dtype_and_no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch calls its own fused attention; rotary embedding leaves q and k in float32."""
    seen: list[object] = []

    def watching(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.extend((q.dtype, k.dtype, v.dtype, torch.is_autocast_enabled("cpu")))
        return v

    monkeypatch.setattr("perf_tests_suite.perf_tests.user_code.attention.load", lambda name, copy: watching)
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


def test_one_that_cannot_be_played_is_not_counted_and_keeps_no_empty_tensor(planted: Callable[[str], str]) -> None:
    with pytest.raises(NotCountedError, match="reads_a_value cannot be run on fake tensors"):
        counters_of(attention_case(attention=planted("reads_a_value")))
    case = attention_case(attention=f"{honest_code.__file__}:mask_kept_by_shape")
    load_attentions([case])
    assert counters_of(case).kernel_launches > 0
    q = torch.ones(1, case.sequence_length, case.head_dim)
    assert attention_named(case.attention).build()(q, q, q).isfinite().all()


def test_a_case_is_named_by_its_function_and_known_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was typed; so is an optimizer."""
    folder, typed = tmp_path / "repository", "kernels/flash.py:attend"
    (folder / ".git").mkdir(parents=True)
    name = f"{folder}/{typed}"
    assert label(name) == label("kernels.flash:attend") == "flash.attend"
    assert AttentionCase.id_of(64, 256, "fp32", name) == "d64-seq256-fp32-flash.attend"
    assert LanguageModelCase.id_of("tiny", 64, "fp32", name) == "tiny-ctx64-fp32-flash.attend"
    for where, given in ((tmp_path, name), (folder, typed)):
        monkeypatch.chdir(where)
        for case in (attention_case(attention=given), language_model_case(attention=given)):
            assert case.identity()["attention"] == typed
        assert language_model_case(phase="full_step", optimizer=given).identity()["optimizer"] == typed
    assert language_model_case(phase="full_step", optimizer="a.b:SGD").identity()["optimizer"] == "a.b:SGD"
    inside = replace(SETTINGS, attentions=("naive", name), batch_sizes=(2,))
    identity = language_model_case(attention=name, size="tiny").identity()
    assert is_inside(identity, inside)
    assert not is_inside(identity, replace(inside, attentions=("naive",)))


def test_a_model_of_ones_own_that_names_no_heads_has_no_function_to_refuse() -> None:
    case = replace(language_model_case(attention="own"), config=Mock(spec=[]))
    assert refusal_of(case, {}, CPU) is None


def test_functions_follow_the_table_as_typed_and_two_of_one_name_are_refused() -> None:
    assert attentions("--attention", f"{FLASH},sdpa,naive") == ("naive", "sdpa", FLASH)
    assert attentions("--attention", "all") == ("naive", "softmax", "compiled", "sdpa", "flex")
    with pytest.raises(ValueError, match=r"names two functions 'flash_attention\.attended'"):
        attentions("--attention", f"{EXAMPLE}:attended,examples.flash_attention:attended")


def test_a_worker_elsewhere_gets_the_whole_path_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(SETTINGS, attentions=("naive", f"{tmp_path}/added.py:attend"))
    assert received(sent(absent)).attentions == ("naive",)
    monkeypatch.chdir(EXAMPLE.parent)
    typed = replace(SETTINGS, attentions=("naive", f"{EXAMPLE.name}:flash_attention"))
    assert received(sent_elsewhere(typed)).attentions == ("naive", FLASH)
    assert received(sent(typed)) == typed
