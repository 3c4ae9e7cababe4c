"""Values as they are typed, the settings and cases that follow from them, and what is no value of an option."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests import plugin
from perf_tests_suite.perf_tests.cases import options
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.devices import why_unsupported
from perf_tests_suite.perf_tests.cases.gate_options import minutes
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.selected import chosen_phases, examined_phases, is_inside, selectable_cases
from tests.rules.test_against import settings
from tests.support.example_cases import CPU, SETTINGS, attention_case, language_model_case
from tests.support.launch import MODELS

VALUES: dict[tuple[Callable[[str, str], Any], str], Any] = {
    (options.sizes, "192x768x3x4,small,tiny"): ("tiny", "small", "192x768x3x4"),
    (options.sizes, "b=192x768x3x4,a.1=64x64x1x2"): ("a.1=64x64x1x2", "b=192x768x3x4"),
    (options.sizes, "mine=768x3072x12x12"): ("small",),
    (options.sizes, "128x512x2x4"): ("tiny",),
    (options.sizes, "all"): ("small", "medium", "large", "xl", "2.7B", "10B"),
    **{(options.byte_count, text): count for text, count in (
        ("8B", 8), ("1KB", 1000), ("1KiB", 1024), ("1.5MB", 1_500_000), ("2 MiB", 2**21), ("12GiB", 12 * 2**30),
        ("1GB", 10**9),
    )},
    (partial(options.byte_counts, (7,)), "2KB,1KiB,1KiB"): (1024, 2000),
    (partial(options.byte_counts, (7,)), "all"): (7,),
    (options.whole_number, "7"): 7,
    (partial(options.whole_number, least=0), "0"): 0,
    (partial(options.whole_numbers, (5,)), "16, 8,8"): (8, 16),
    (partial(options.whole_numbers, (5,)), "all"): (5,),
    (options.entries, "8, 16"): ["8", "16"],
    (partial(options.some_of, ("a", "b", "c")), "c,a"): ("a", "c"),
    (partial(options.checkpoints, ("none", "block")), "2,none,2"): ("2", "none"),
    (minutes, "0.01"): 0.01,
    (options.user_arguments, "a=1\nb=2"): ("a=1", "b=2"),
}  # fmt: skip
REFUSED = [
    (options.sizes, "smal", "'smal' is unknown"),
    (options.sizes, "192x768x3x5", "is not a shape of a model"),
    (options.sizes, "tiny=192x768x3x4", "the name of a known size"),
    (options.sizes, "a=192x768x3x4,a=64x64x1x1", "names two shapes 'a'"),
    (options.byte_count, "12", "is not an amount of memory; write, for example, 12GiB or 800MB"),
    (options.byte_count, "0.5B", "is less than a byte"),
    (options.byte_count, "99999999999GiB", "is more than any machine has"),
    (options.whole_number, "0", "--option is 0; it must be at least 1"),
    (options.whole_number, "lots", "'lots' is not a whole number"),
    (options.whole_number, "1000000001", "is too large"),
    (options.whole_number, "9" * 5000, "is too large"),
    (options.entries, "8,,16", "has an empty entry"),
    (options.entries, "8;16", "has a semicolon"),
    *((minutes, text, "is not a positive number of minutes") for text in ("0", "-1", "nan", "inf", "soon")),
    (options.attentions, "nave", "choose from naive, softmax, compiled, sdpa, flex, all, "),
    (options.user_arguments, "a=1\na=2", "a is given twice"),
]


def test_values_are_read_as_they_are_written() -> None:
    assert {(read, text): read("--option", text) for read, text in VALUES} == VALUES


def test_what_is_no_value_is_refused_as_typed() -> None:
    for read, text, words in REFUSED:
        with pytest.raises(ValueError, match=words) as refusal:
            read("--option", text)
        assert str(refusal.value).startswith("--option "), text


NATIVE = tuple(name for name in ("fp32", "bf16") if PRECISIONS[name].why_unsupported(CPU) is None)


SETTINGS_OF: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"sizes": ("small",), "attentions": ("naive",), "head_dims": (16, 64), "passes": (), "precisions": NATIVE,
          "attention_alone_precisions": ("fp32",), "parallels": (None,), "collectives": (), "threads": 1}),
    ({"against": "HEAD"}, {"sizes": ("small-2layers",)}),
    ({"memory_snapshot": True, "kernels": True}, {"passes": ("kernels", "memory"), "memory_snapshot": True}),
    ({"nvtx": None, "cold_cache": True}, {"nvtx": False, "cold_cache": True}),
    ({"precision": "all"}, {"precisions": ("fp32", "tf32", "bf16", "fp16", "fp16-unscaled"),
                            "attention_alone_precisions": tuple(PRECISIONS)}),
    ({"precision": "bf16-tensors"}, {"precisions": ("bf16-tensors",)}),
    ({"model": f"{MODELS}:Healthy"}, {"attentions": ("own",), "head_dims": (), "sequence_lengths": ()}),
    ({"model": f"{MODELS}:Healthy", "head_dim": "32", "attention": "sdpa"},
     {"attentions": ("own",), "head_dims": (32,), "attention_alone_implementations": ("sdpa",)}),
    ({"parallel": "ddp", "world": "2", "bucket_mb": "1"},
     {"parallels": ("ddp-world2-bucket1MiB",), "worlds": (2,), "head_dims": (), "sequence_lengths": ()}),
    ({"message_size": "1KB"}, {"collectives": ("all_reduce", "all_gather", "reduce_scatter"), "parallels": (),
                               "message_sizes": (1000,)}),
]  # fmt: skip


def test_settings_follow_what_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_tests_suite.perf_tests.cases.settings.physical_cores", lambda: 1)
    for typed, wanted in SETTINGS_OF:
        found = settings(**typed)
        assert {name: getattr(found, name) for name in wanted} == wanted, typed


CONTRADICTORY: list[tuple[dict[str, Any], str]] = [
    ({"model": f"{MODELS}:Healthy", "attention": "sdpa"}, "--attention does not apply: the model of --model brings"),
    ({"checkpoint": "13"}, "--checkpoint 13 is more blocks than a model has; give at most 12"),
    ({"nvtx": True, "memory": True}, "cannot be combined with --memory"),
    ({"parallel": "fsdp2", "bucket_mb": "1"}, "--bucket-mb changes ddp and zero1 alone; choose one of them"),
    ({"parallel": "none,ddp", "reshard": "no"}, "--reshard changes fsdp2 and fsdp2-bf16 alone; choose one of"),
    ({"collective": "all", "reshard": "no"}, "with --parallel, or drop the option"),
    ({"rounds": "0"}, "--rounds is 0"),
]


def test_options_that_contradict_each_other_are_refused_in_one_sentence() -> None:
    for typed, words in CONTRADICTORY:
        with pytest.raises(pytest.UsageError, match=words) as refusal:
            settings(**typed)
        assert ". " not in str(refusal.value)
    options.check_checkpoints(("12",), 12)


def cases(**changes: object) -> dict[str, LanguageModelCase]:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    grid = LanguageModelCase.grid(settings)
    assert selectable_cases(settings) == 2 * len(grid)
    axes = [dict(zip(LanguageModelCase.axes, values, strict=True)) for values in grid]
    return {
        LanguageModelCase.id_of(*values): LanguageModelCase.of("forward", one, settings)
        for values, one in zip(grid, axes, strict=True)
    }


def test_a_named_shape_stands_in_id_and_identity_by_its_name() -> None:
    ((case_id, case),) = cases(sizes=("wide=192x768x3x4",), vocab_size=500).items()
    assert case_id == "wide-ctx8-fp32-naive"
    identity = case.identity()
    assert [identity[name] for name in ("size", "d_model", "num_heads", "vocab_size")] == ["wide", 192, 4, 500]
    assert is_inside(identity, replace(SETTINGS, sizes=("wide=192x768x3x4",)))
    for other in ({}, {"sizes": ("wide=192x768x3x4",), "device": "cuda"}, {"phases": ("backward",)}):
        assert not is_inside(identity, replace(SETTINGS, **other))
    assert not is_inside(identity | {"phase": ["forward"]}, replace(SETTINGS, sizes=("wide=192x768x3x4",)))


def test_one_batch_adds_nothing_to_an_id_and_of_several_only_batch_4() -> None:
    base = "tiny-ctx8-fp32-naive"
    for typed in ((8,), (2, 4, 8)):
        found = {case_id: case.batch_size for case_id, case in cases(batch_sizes=typed).items()}
        assert found == ({base: 8} if len(typed) == 1 else {f"{base}-batch2": 2, base: 4, f"{base}-batch8": 8})
    way = LanguageModelCase.id_of("tiny", 8, "fp32", "naive", "compiled", "block", 4, "ddp-world2")
    assert way == f"{base}-compiled-model-checkpoint-block-ddp-world2"
    assert LanguageModelCase.id_of("tiny", 8, "fp32", "naive", "max-autotune") == f"{base}-max-autotune"


def test_attention_compiled_by_itself_is_left_out_of_a_compiled_model() -> None:
    grid = cases(attentions=("naive", "compiled", "flex"), executions=("eager", "reduce-overhead"))
    ways = {(case.attention, case.execution) for case in grid.values()}
    assert ways == {("naive", "reduce-overhead"), *((name, "eager") for name in ("naive", "compiled", "flex"))}


def test_attention_alone_runs_only_where_its_grid_is_not_empty_and_for_rounds_of_its_own() -> None:
    assert chosen_phases(SETTINGS) == examined_phases(SETTINGS) == {"forward", "backward"}
    assert examined_phases(replace(SETTINGS, phases=("full_step",))) == {"full_step", "first_step"}
    assert "attention_forward" in chosen_phases(replace(SETTINGS, head_dims=(16,)))
    assert attention_case().rounds(replace(SETTINGS, rounds=5, attention_alone_rounds=7)) == 7
    assert AttentionCase.id_of(64, 256, "fp32", "naive") == "d64-seq256-fp32-naive"


def test_a_case_says_what_it_holds_at_least_and_roughly() -> None:
    """Bytes of weights, gradients, two moments and logits; of attention alone q, k, v, output and their gradients."""
    forward, step = language_model_case(), language_model_case(phase="full_step", optimizer="loop")
    weights, logits = 4 * forward.config.parameters, 4 * 2 * 8 * 37
    assert (forward.least_bytes, step.least_bytes) == (weights + logits, 4 * weights + logits)
    saved = forward.resident_bytes - weights
    assert saved > 0
    assert step.resident_bytes == 4 * weights + saved
    one = attention_case(phase="attention_forward")
    tensor, square = 4 * 8 * 256 * 16, 4 * 8 * 256 * 256
    assert (one.least_bytes, one.in_phase("attention_backward").least_bytes) == (4 * tensor, 8 * tensor)
    assert (one.resident_bytes, one.residual_tensor_bytes) == (8 * tensor + 2 * square, tensor)
    compiled = one.in_phase("attention_backward").is_compiled, attention_case(attention="compiled").is_compiled
    assert compiled == (False, True)
    assert (step.forward_flops, step.residual_tensor_bytes) == (step.config.forward_flops(2, 8), 4 * 2 * 8 * 16)


def test_a_checkpoint_of_more_blocks_than_the_model_has_cannot_run() -> None:
    reasons = [why_unsupported(language_model_case(checkpoint=blocks), CPU) for blocks in ("2", "3")]
    assert reasons == [None, "--checkpoint 3 is more blocks than its 2."]


def test_of_files_by_the_ledgers_name_the_ledgers_own_alone_waits_until_it_is_asked_for(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig, "args", [])
    theirs = plugin.LEDGER_TEST.parents[1] / "tests/rules" / plugin.LEDGER_TEST.name
    assert [plugin.pytest_ignore_collect(path, pytestconfig) for path in (plugin.LEDGER_TEST, theirs)] == [True, None]


def test_a_module_may_hold_what_answers_to_every_name(pytestconfig: pytest.Config) -> None:
    collector: Any = Mock(config=pytestconfig)
    assert plugin.pytest_pycollect_makeitem(collector, call) is None


def test_a_gate_refuses_a_test_that_is_no_benchmark_beside_those_that_are(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = Mock(path=Path("test_own.py"), stash={}, **{"get_closest_marker.return_value": None})
    monkeypatch.setattr(plugin, "session_of", lambda _: Mock(against="main", collected={}))
    monkeypatch.setattr("perf_tests_suite.perf_tests.run.before.of_interrupted_run", lambda *_: ["a benchmark"])
    with pytest.raises(pytest.UsageError, match=r"--against cannot gate test_own\.py"):
        plugin.pytest_collection_modifyitems(Mock(testsfailed=0), pytestconfig, [own])
