"""No correct attention is refused: those of the suite and of the examples, over twenty seeds.

That each wrong one is refused is held with every change, in `tests/rules/test_user_attention.py`; on a GPU it is here.
"""

from collections.abc import Iterator

import pytest
import torch

from perf_tests_suite.model.compilation import forget_compiled
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.user_code.attention import Use, attention_named
from tests.support.wrong_attention import EXAMPLE, FAULTS, refusal, refusal_of_fault

SEEDS = 20
USES = ((16, True), (64, False))
"""Head width, and whether there are heads; each with every other seed."""
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.fixture(autouse=True)
def recompiled() -> Iterator[None]:
    yield
    forget_compiled()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["naive", "sdpa", "compiled", f"{EXAMPLE}:flash_attention"])
def test_a_correct_kernel_is_refused_with_no_seed(name: str, precision: str, device: str) -> None:
    for number, (head_dim, has_heads) in enumerate(USES):
        use, attend = Use(head_dim, has_heads, PRECISIONS[precision], torch.device(device)), attention_named(name)
        found = [refusal(attend.build(), name, use, seed) for seed in range(number, SEEDS, len(USES))]
        assert [reason for reason in found if reason is not None] == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_refused_on_a_gpu(name: str) -> None:
    assert refusal_of_fault(name, torch.device("cuda")) is not None
