"""What a trace weighs grows with the layers and hardly with the width, which is what its proof rests on."""

from dataclasses import replace

from perf_tests.meta_tests.example_cases import TOY
from perf_tests.proofs.quick import narrow, trace_bytes


def test_a_model_is_narrowed_and_keeps_its_depth() -> None:
    slim = narrow(replace(TOY, d_model=64, d_ff=256))
    assert (slim.num_layers, slim.num_heads, slim.vocab_size) == (TOY.num_layers, TOY.num_heads, TOY.vocab_size)
    assert (slim.d_model, slim.d_ff) == (2 * TOY.num_heads, 8 * TOY.num_heads)


def test_width_weighs_little_and_depth_weighs_in_full() -> None:
    thin, wide, deep = (
        trace_bytes(replace(TOY, **changes)) for changes in ({}, {"d_model": 128, "d_ff": 512}, {"num_layers": 8})
    )
    assert 0.9 < wide / thin < 1.2
    assert 2 < deep / thin < 4
