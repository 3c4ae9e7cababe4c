"""Where mixed precision stops costing memory and starts saving it."""

import pytest

from model.sizes import SIZES, ModelConfig
from perf_tests.counting.case_counters import counters_of
from perf_tests.meta_tests.example_cases import language_model_case
from perf_tests.meta_tests.precision_crossover import context_where_mixed_precision_saves


def test_the_2_7b_shape_saves_from_about_0_6_times_its_width_in_tokens() -> None:
    """Others measured a forward pass that is larger in half precision at 256 tokens and smaller at 512."""
    case = language_model_case(SIZES["2.7B"], batch_size=4, device="cuda")
    context = context_where_mixed_precision_saves(case, granularity=128)
    assert context is not None
    assert 256 < context <= 512
    assert 4 * context / case.config.d_model == pytest.approx(0.6, abs=0.1)


def test_it_is_the_first_context_that_saves() -> None:
    config = ModelConfig(d_model=64, d_ff=256, num_layers=1, num_heads=2, vocab_size=50, context_length=64)
    case = language_model_case(config, batch_size=1, device="cuda")
    found = context_where_mixed_precision_saves(case, granularity=16)
    assert found is not None
    for context, saves in ((found - 16, False), (found, True)):
        single, mixed = (
            counters_of(language_model_case(config.at_context(context), batch_size=1, device="cuda", precision=name))
            for name in ("fp32", "bf16")
        )
        assert (mixed.peak_bytes < single.peak_bytes) is saves


def test_where_nothing_is_kept_there_is_nothing_to_save() -> None:
    """Inference holds few activations at a time, and all the copies of the weights."""
    case = language_model_case(SIZES["small"], phase="inference", batch_size=1, device="cuda", attention="sdpa")
    assert context_where_mixed_precision_saves(case, granularity=4096) is None
