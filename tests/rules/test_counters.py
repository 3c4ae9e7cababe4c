"""Exact counters against the allocator, the profiler, closed forms and the step itself; of what is one's own; kept."""

import json
import multiprocessing
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from perf_tests_suite.model.attention import ATTENTION, naive_attention
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.regions import regions_opened_by
from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.model.training import Training, cross_entropy
from perf_tests_suite.perf_tests.bench.ranks import REGIONS
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.datasheets import libraries_on
from perf_tests_suite.perf_tests.phases import FIRST_STEP, FULL_STEP, LANGUAGE_MODEL, PHASES, ZERO_GRAD, phases_of
from perf_tests_suite.perf_tests.predict import counters as module
from perf_tests_suite.perf_tests.predict import fake_run, own_code
from perf_tests_suite.perf_tests.predict import kept as kept_counts
from perf_tests_suite.perf_tests.predict import rounds as counted_rounds
from perf_tests_suite.perf_tests.predict.costs import tensors_in
from perf_tests_suite.perf_tests.predict.counters import Counters, counters_of, counters_or_reason, needed_bytes
from perf_tests_suite.perf_tests.predict.ledger import user_grid
from perf_tests_suite.perf_tests.predict.parts import OPTIMIZER_STATE, WORKSPACES
from perf_tests_suite.perf_tests.user_code.model import build_model
from perf_tests_suite.perf_tests.user_code.optimizer import put_into
from tests.support import allocator_peak
from tests.support.example_cases import CPU, SETTINGS, TOY, attention_case, build, language_model_case, random_tokens
from tests.support.launch import MODELS, ROOT
from tests.support.traced_rounds import rounds, traced_values

LIBRARIES = libraries_on(9, "2.13.0", {})
NARROW = ModelConfig(d_model=64, d_ff=192, num_layers=2, num_heads=4, vocab_size=100, context_length=64)
"""A shape where attention and feed-forward weigh as much as the vocabulary."""

CHECKPOINTS = {"none": 0, "attention": 2, "block": 2, "2": 1}
"""Checkpoints of two layers, and how many checkpoints a pass has."""
RANDOM_STATE_BYTES = 5056
"""Each checkpoint keeps the generator's state, which a GPU has on the host: counters leave it out."""
PARTS, OPTIMIZERS_OF = MODELS, "tests.support.planted_optimizers"
MUON = f"{ROOT}/examples/muon.py:build"
OPTIMIZERS = ["loop", "foreach", "fused", MUON, f"{OPTIMIZERS_OF}:Nested", "torch.optim:Adagrad", "torch.optim:SGD"]
OURS = [{"attention": name, "checkpoint": blocks} for name, blocks in product(("naive", "sdpa"), CHECKPOINTS)]
FROZEN = {"name": f"{PARTS}:FrozenEmbedding"}
DRAWN = st.sampled_from([*OURS, *({"name": name} for name in ("GroupedHeads", "Tied", "OutputObject")), FROZEN])
"""Changes of a case."""


def of(name: str = "ours", phase: str = "forward", config: ModelConfig = TOY, **changes: Any) -> LanguageModelCase:
    """A case of our model, or of a planted one by its factory; AdamW's loop where it trains."""
    factory = name if name == "ours" or ":" in name else f"{MODELS}:{name}"
    optimizer = "loop" if phase in ("optimizer", FIRST_STEP, FULL_STEP) else None
    usual = {"attention": "naive" if name == "ours" else "own", "optimizer": optimizer}
    return language_model_case(config, phase=phase, model=factory, **{**usual, **changes})


def training_of(case: LanguageModelCase, optimizer: str = "loop") -> Training:
    own_model, own = case.user_model, replace(case, optimizer=optimizer).user_optimizer
    model = build_model(own_model, case.config) if own_model else build(case.config, case.attention, case.checkpoint)
    training = Training(model, PRECISIONS[case.precision], CPU, optimizer if own is None else "default")
    if own is not None:
        put_into(own, training, model)
    return training


@settings(max_examples=8, deadline=None)
@given(model=DRAWN, phase=st.sampled_from(allocator_peak.PHASES), optimizer=st.sampled_from(OPTIMIZERS))
@example(model={}, phase="full_step", optimizer="loop")
@example(model={"attention": "sdpa"}, phase="full_step", optimizer="fused")
@example(model={"checkpoint": "block"}, phase="backward", optimizer="loop")
@example(model={}, phase="full_step", optimizer=MUON)
@example(model=FROZEN, phase="full_step", optimizer="loop")
def test_the_predicted_peak_is_the_allocators(model: dict[str, Any], phase: str, optimizer: str) -> None:
    """A round as a loop runs it, after its first where state and gradients come from it."""
    changes = {"optimizer": optimizer} if phase in (FIRST_STEP, FULL_STEP) else {}
    case = of(phase=phase, config=NARROW, batch_size=3, **model, **changes)
    training, tokens_BT = training_of(case, optimizer), torch.zeros(3, NARROW.context_length, dtype=torch.int64)
    one_round, counters = allocator_peak.rounds(training, tokens_BT)[phase], counters_of(case)
    if phase != FIRST_STEP:
        training.create_optimizer_state()
        one_round()
        training.clear_gradients()
        state = sum(tensor.nbytes for tensor in tensors_in(training.optimizer.state.values()))
        assert phase != FULL_STEP or counters.parts[-1].bytes_by_category.get(OPTIMIZER_STATE, 0) == state
    slack = 64 + RANDOM_STATE_BYTES * CHECKPOINTS[case.checkpoint]
    measured = allocator_peak.allocator_peak_bytes(one_round)
    assert allocator_peak.above_standing(counters) == pytest.approx(measured, rel=0.001, abs=slack)


@settings(max_examples=6, deadline=None)
@given(
    model=DRAWN,
    phase=st.sampled_from([phase.name for phase in phases_of(LANGUAGE_MODEL)]),
    precision=st.sampled_from(["fp32", "bf16"]),
)
@example(model={}, phase="full_step", precision="bf16")
@example(model={"attention": "sdpa", "checkpoint": "block"}, phase="backward", precision="fp32")
def test_the_launches_of_a_traced_phase_are_those_counted(model: dict[str, Any], phase: str, precision: str) -> None:
    """And a copy of the generator's state where a checkpoint is computed again."""
    case = of(phase=phase, precision=precision, **model)
    training = training_of(case)
    training.create_optimizer_state()
    again = CHECKPOINTS[case.checkpoint] if PHASES[phase].has_backward and phase != "optimizer" else 0
    traced = traced_values(case, *rounds(training, random_tokens())[phase])
    assert traced["launches"] == counters_of(case).kernel_launches + again


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_the_launches_of_traced_attention_are_those_counted(attention: str) -> None:
    attend, leaves = ATTENTION[attention].build(), [torch.randn(2, 16, 16, requires_grad=True) for _ in range(3)]

    def graph() -> tuple[Tensor, Tensor]:
        leaves[0].grad = leaves[1].grad = leaves[2].grad = None
        output_BTK = attend(*leaves)
        return output_BTK, torch.ones_like(output_BTK)

    rounds_of: Any = {"forward": (lambda: attend(*leaves), tuple), "backward": (Tensor.backward, graph)}
    for phase, (target, set_up) in rounds_of.items():
        case = attention_case(phase=f"attention_{phase}", attention=attention, sequence_length=16, batch_size=2)
        assert traced_values(case, target, set_up)["launches"] == counters_of(case).kernel_launches


def case_of(size: str, context: int = 128, **changes: Any) -> LanguageModelCase:
    """Make the forward pass of a real size on an imaginary GPU."""
    return of(config=SIZES[size].at_context(context), size=size, batch_size=4, device="cuda", **changes)


@pytest.mark.parametrize("checkpoint", ["attention", "block"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention, word", [("sdpa", "attention"), ("naive", "aten.exp")])
def test_a_pass_computed_again_follows_the_first(attention: str, word: str, precision: str, checkpoint: str) -> None:
    """Its fused kernel, and its exponentials in float32, which the CPU's autocast would halve."""

    def kernels(phase: str, checkpoint: str = "none") -> set[tuple[str, int]]:
        case = case_of("tiny", 64, attention=attention, precision=precision, phase=phase, checkpoint=checkpoint)
        return {(kernel.name, kernel.bytes) for kernel in counters_of(case).kernels if word in kernel.name}

    assert (forward := kernels("forward"))
    assert kernels("backward", checkpoint) == forward | kernels("backward")


def test_saved_bytes_grow_by_the_tensors_of_a_block() -> None:
    """About 10.5 B T d + 5 B T d_ff + 2 B H T^2 numbers a block, as others fitted to an equal model."""
    config, tokens = SIZES["2.7B"].at_context(512), 4 * 512
    two, three = (counters_of(of(config=replace(config, num_layers=n), batch_size=4)).saved_bytes for n in (2, 3))
    norms = 2 * (3 * tokens * config.d_model + tokens) * 4  # input, normalised, scaled; one number a row
    attention = 4 * tokens * config.d_model * 4  # query and key turned, value, output
    squares = 2 * tokens * config.num_heads * 512 * 4  # exponentials and probabilities
    rows = tokens * config.num_heads * (4 + 8) + 512**2  # sums, places of the maxima; the mask
    feed_forward = 5 * tokens * config.d_ff * 4  # gate, sigmoid, product, up, product of both
    assert three - two == norms + attention + squares + rows + feed_forward


def literal_step(case: LanguageModelCase) -> dict[str, int]:
    """Peak bytes of each part of a step that is run in one piece; after another one, unless it is the first."""
    with fake_run.fake_run(case.device, case.precision) as counting:
        training = fake_run.fake_training(case, str(case.optimizer))
        tokens_BT, targets_BT = (torch.zeros(case.batch_size, case.context_length, dtype=torch.int64) for _ in range(2))
        training.zero_grad = case.zero_grad
        if case.phase != FIRST_STEP:
            training.step(tokens_BT, targets_BT)
        with regions_opened_by(lambda name: counting.part(name) if name in REGIONS else nullcontext()):
            training.step(tokens_BT, targets_BT)
        return {name: part.peak_bytes for name, part in counting.finished().items()}


@pytest.mark.parametrize("optimizer", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("phase, zero_grad", [(FIRST_STEP, "before-forward"), *product([FULL_STEP], ZERO_GRAD)])
def test_peaks_of_a_step_are_those_of_the_step_written_out(optimizer: str, zero_grad: str, phase: str) -> None:
    case = of(phase=phase, config=NARROW, batch_size=3, precision="bf16", optimizer=optimizer, zero_grad=zero_grad)
    literal = literal_step(replace(case, device="cuda"))
    counters = counters_of(replace(case, device="cuda"))
    told = {part.part: part.peak_bytes for part in counters.parts}
    assert told == {name: literal[name] for name in told}
    assert counters.peak_bytes == max(literal.values())
    assert all(sum(part.bytes_by_category.values()) == part.peak_bytes for part in counters.parts)


def test_the_largest_block_is_the_feed_forwards_until_the_scores_outgrow_it() -> None:
    """B T d_ff against B H T^2: they cross at d_ff / H = 320 tokens for the 2.7B shape."""
    config = SIZES["2.7B"]
    for context, place in ((256, "model/transformer.py"), (512, "model/attention.py")):
        largest = counters_of(case_of("2.7B", context)).largest_allocations[0]
        assert largest.bytes == 4 * 4 * context * max(config.d_ff, config.num_heads * context)
        assert largest.place.startswith(place)


@pytest.mark.parametrize("case, workspaces", [
    (attention_case(device="cuda"), 1),
    (attention_case(device="cuda", phase="attention_backward"), 2),  # autograd's thread has one of its own
    (attention_case(device="cuda", phase="attention_backward", attention="sdpa"), 0),
    (of(phase="inference", device="cuda"), 1), (of(phase="optimizer", device="cuda"), 2),
])  # fmt: skip
def test_on_a_known_card_each_thread_that_multiplies_holds_a_workspace(case: Case, workspaces: int) -> None:
    imaginary, real = counters_of(case), counters_of(case, libraries=LIBRARIES)
    assert real.peak_bytes == imaginary.peak_bytes + workspaces * 32 * 2**20
    assert {part.bytes_by_category.get(WORKSPACES, 0) for part in real.parts} == {workspaces * 32 * 2**20}


def test_counting_draws_no_random_number_and_leaves_no_fake_tensor_behind() -> None:
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    counters_of(of(phase=FULL_STEP, config=replace(TOY, vocab_size=41)))
    assert torch.equal(torch.get_rng_state(), generator)
    assert (torch.get_num_threads(), type(torch.zeros(1))) == (threads, torch.Tensor)


KEPT: list[Tensor] = []


def kept_by_the_model(query: Tensor) -> Tensor:
    KEPT.append(query.detach().clone())
    return query


SQUARE_BYTES = 8 * 64 * 16 * 4
CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], str, dict[str, int]]] = {
    "saved more": (torch.exp, "backward", {"saved_bytes": SQUARE_BYTES, "peak_bytes": SQUARE_BYTES}),
    "a copy": (torch.clone, "forward", {"bytes_touched": 2 * SQUARE_BYTES, "host_reads": 0}),
    "kept by the model": (kept_by_the_model, "backward", {"peak_bytes": SQUARE_BYTES}),
    "a value read back": (lambda q: (q.sum().item(), q)[1], "forward", {"host_reads": 1}),
    "one read before the clock": (lambda q: (q.sum().item(), q)[1], "backward", {"host_reads": 0}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_code_is_seen_in_its_counters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attention whose query goes through the change first."""
    change, part, differences = CHANGES[name]

    def counted(change: Callable[[Tensor], Tensor]) -> Counters:
        planted = replace(ATTENTION["naive"], build=lambda: lambda q, k, v: naive_attention(change(q), k, v))
        monkeypatch.setitem(ATTENTION, "naive", planted)
        counted_rounds.attention_passes.cache_clear()
        return counters_of(attention_case(phase=f"attention_{part}", sequence_length=64))

    before, after = counted(lambda query: query), counted(change)
    counted_rounds.attention_passes.cache_clear()
    assert {one: getattr(after, one) - getattr(before, one) for one in differences} == differences


def test_a_loss_read_back_in_a_step_is_one_more_value_that_the_host_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, found = Training.backward, []
    for change in (backward, lambda self, loss: (loss.item(), backward(self, loss))):
        monkeypatch.setattr(Training, "backward", change)
        counted_rounds.passes.cache_clear()
        found.append(counters_of(of(phase=FULL_STEP)).host_reads)
    counted_rounds.passes.cache_clear()
    assert found[1] == found[0] + 1


UNCOVERED: list[dict[str, Any]] = [
    {"execution": "compiled"}, {"attention": "compiled"}, {"model": f"{MODELS}:ReadsAValue"}
]  # fmt: skip


@pytest.mark.parametrize("changes", UNCOVERED)
def test_what_no_counter_covers_needs_no_more_than_the_eager_case(changes: dict[str, Any]) -> None:
    """Which needs its exact peak; of a full step at least 16 bytes a parameter."""
    for phase in ("inference", "forward", "backward", "optimizer", "full_step"):
        eager = of(phase=phase, config=SIZES["small"].at_context(512))
        needed = needed_bytes(replace(eager, **changes))
        assert 0 < needed <= needed_bytes(eager) == counters_of(eager).peak_bytes
    assert "model" in changes or needed >= 16 * SIZES["small"].parameters


FLOPS_OF = [{"name": "Healthy"}, {"name": "GroupedHeads"}, {"name": "Tied"}, *OURS[: len(CHECKPOINTS)]]


@pytest.mark.parametrize("changes", FLOPS_OF)
def test_flops_are_those_that_pytorch_counts_of_the_real_model(changes: dict[str, Any]) -> None:
    """What a checkpoint computes again is executed and no model's. A layer multiplies 9 times, its backward pass 18.

    PyTorch has no formula for the CPU's fused kernel: two products forward, four backward.
    """
    case = of(**changes)
    model, tokens_BT = training_of(case).model, random_tokens()
    with FlopCounterMode(display=False) as forward:
        logits_BTV = model(tokens_BT)
    loss = cross_entropy(logits_BTV, tokens_BT)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    square = 4 * 2 * TOY.context_length**2 * TOY.d_model if "GroupedHeads" in changes.values() else 0
    wanted = {"forward": forward.get_total_flops() + square, "backward": backward.get_total_flops() + 2 * square}
    if case.user_model is not None:
        assert own_code.pass_flops(case) == wanted
        assert counters_of(of(**changes, phase=FULL_STEP)).model_flops == sum(wanted.values())
        return
    wanted |= {"inference": wanted["forward"], FULL_STEP: sum(wanted.values())}
    phases = ("inference", "bf16", 1), ("forward", "fp32", 1), ("backward", "fp32", 2), (FULL_STEP, "bf16", 3)
    for phase, precision, times in phases:
        counters = counters_of(replace(case, phase=phase, precision=precision))
        assert (counters.executed_flops, counters.model_flops) == (wanted[phase], times * case.forward_flops)
        assert case.checkpoint != "none" or counters.matmul_calls == times * (9 * TOY.num_layers + 1)


def test_a_convolution_has_a_product_backward_for_each_gradient_asked_for() -> None:
    """That of a frozen part's input, which needs none, has one."""
    kinds = [(f"groups={groups}", f"kind={kind}") for groups in (1, 4, 8) for kind in ("Conv1d", "ConvTranspose1d")]
    for name, arguments, times in (("ConvolvingFrozen", (), 1), *(("Convolving", kind, 2) for kind in kinds)):
        case = of(f"{PARTS}:{name}", model_arguments=arguments)
        groups = int(arguments[0].removeprefix("groups=")) if arguments else 1
        positions = TOY.context_length + 2 * ("kind=ConvTranspose1d" in arguments)
        head, mixing = 2 * case.tokens * 8 * TOY.vocab_size, 2 * case.batch_size * positions * 8 * (8 // groups) * 3
        assert own_code.pass_flops(case) == {"forward": head + mixing, "backward": 2 * head + times * mixing}, arguments


@pytest.mark.parametrize("phase", ["inference", "forward", "backward", "optimizer", FULL_STEP])
def test_one_model_or_optimizer_is_counted_alike_however_it_is_named(phase: str) -> None:
    """Ours as one's own, AdamW as one's own, and frozen parameters as buffers."""
    ours = counters_of(of(phase=phase), all_layers=True)
    assert counters_of(of("Healthy", phase)) == (replace(ours, model_flops=None) if phase == "optimizer" else ours)
    if phase in ("optimizer", FULL_STEP):
        assert counters_of(of(phase=phase, optimizer="torch.optim:AdamW")) == counters_of(of(phase=phase))
    frozen, buffered = (counters_of(of(f"{PARTS}:{name}Embedding", phase)) for name in ("Frozen", "Buffered"))
    assert replace(frozen, parameters=buffered.parameters) == buffered


def test_an_operation_that_may_multiply_and_has_no_formula_makes_flops_null() -> None:
    known, unknown = {"aten.mm"}, ["aten._grouped_mm", "theirs.kernel"]
    assert module.products_outside(["aten.mm", "aten.add", "aten.cummax", "aten._unsafe_view"], known) == []
    assert module.products_outside(unknown, known) == unknown
    counters = counters_of(of("WithAnRnn"))
    assert (counters.model_flops, counters.executed_flops) == (None, None)
    assert counters.peak_bytes > 0


def test_the_products_of_an_optimizer_are_executed_flops_and_no_model_flops() -> None:
    """Newton-Schulz: of a matrix (M, N), M at most N, two products of M M N and one of M M M, five times.

    Its first step makes the state that later ones find.
    """
    phases = ("optimizer", FULL_STEP, FIRST_STEP)
    update, full, first = (counters_of(of(phase=phase, optimizer=MUON)) for phase in phases)
    d, f = TOY.d_model, TOY.d_ff
    pairs = TOY.num_layers * [(d, d)] * 4 + TOY.num_layers * [(d, f)] * 3
    flops = sum(5 * 2 * (2 * m * m * n + m**3) for m, n in pairs)
    assert (update.executed_flops, update.model_flops) == (flops, None)
    of_steps = [module.update_flops(of(phase=FULL_STEP, optimizer=name)) for name in (MUON, "loop")]
    assert of_steps == [flops, 0]
    assert full.model_flops == counters_of(of(phase=FULL_STEP)).model_flops
    assert first.kernel_launches > full.kernel_launches
    assert first.parts[0].bytes_by_category.get(OPTIMIZER_STATE, 0) == 0


NOT_COUNTED = [
    (of(execution="compiled"), "compiled model fuses"),
    (of(attention="flex"), "flex attention fuses"),
    (of("GroupsItsExperts"), r"type but got .*--model-arg experts_implementation=batched_mm, whose"),
    (of("ReadsAValue"), "ReadsAValue cannot be run .*it reads a value of one"),
    (of(phase="optimizer", optimizer=f"{OPTIMIZERS_OF}:ReadsAValue"), r"fake tensors: it reads a value of one\."),
    (of(phase=FULL_STEP, optimizer=f"{OPTIMIZERS_OF}:EverySecondStep"), "the second and the third step of .* differ"),
    (of(phase=FULL_STEP, optimizer="torch.optim:SGD", device="cuda"), "choose `foreach` by the device; name a factory"),
]


@pytest.mark.parametrize("case, words", NOT_COUNTED)
def test_a_case_that_cannot_be_counted_says_why_and_needs_what_certainly_exists(
    case: LanguageModelCase, words: str
) -> None:
    counters, reason = counters_or_reason(case)
    assert counters is None
    assert re.search(words, reason or "")
    assert needed_bytes(case) == case.least_bytes
    if case.user_optimizer is not None:
        # Moments that it may not have are no ground for a refusal, and its other phases are counted.
        logits = case.tokens * TOY.vocab_size
        assert case.phase != FULL_STEP or case.least_bytes == 4 * (2 * TOY.parameters + logits)
        assert counters_or_reason(replace(case, phase="backward", optimizer=None))[1] is None


def test_the_ledger_of_ones_own_model_has_the_axes_of_the_run() -> None:
    grid = user_grid(replace(SETTINGS, model=f"{MODELS}:Healthy", attentions=("own",), contexts=(8, 16)))
    assert {name: len(cases) for name, cases in grid.items()} == {"tiny-ctx8-fp32-own": 6, "tiny-ctx16-fp32-own": 6}
    assert {case.device for cases in grid.values() for case in cases} == {"cuda"}


CASE = of()


@pytest.fixture
def counted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts, with a cache of the test's own."""
    monkeypatch.setattr(kept_counts, "counters_or_reason", count := Mock(wraps=counters_or_reason))
    return count


@pytest.mark.parametrize("case, libraries, runs", [
    (CASE, None, 1), (replace(CASE, device="cuda"), LIBRARIES, 1), (of(phase=FULL_STEP), None, 1),
    (attention_case(), None, 1), (replace(CASE, attention="a.py:b"), None, 2), (of(execution="compiled"), None, 2),
])  # fmt: skip
def test_the_second_run_reads_what_the_first_counted_but_not_what_is_ones_own_or_uncounted(
    case: Case, libraries: Any, runs: int, counted: Mock, tmp_path: Path
) -> None:
    first, second = (kept_counts.kept_counters_or_reason(case, libraries) for _ in range(2))
    assert first == second == counters_or_reason(case, libraries)
    assert (counted.call_count, len(list(tmp_path.rglob("*.json")))) == (runs, 2 - runs)


CHANGED: list[Callable[[pytest.MonkeyPatch], object]] = [
    lambda patch: patch.setattr("torch.__version__", "9.9.9"),
    lambda patch: patch.setattr("torch.version.git_version", "another"),
    lambda patch: patch.setattr("torch.are_deterministic_algorithms_enabled", lambda: 1),
    lambda patch: patch.setattr("numpy.__version__", "9"),
    lambda patch: patch.setattr("platform.machine", lambda: "another"),
    lambda patch: patch.setenv("TORCH_SOMETHING", "1"),
    *(lambda patch, n=n: patch.setattr(kept_counts, "digest_of_suite", lambda: str(n)) for n in range(3)),
]


def test_a_change_of_what_a_count_depends_on_counts_again_and_the_oldest_states_are_removed(
    counted: Mock, cache: Path
) -> None:
    """Each case and each library has counters of its own."""
    on_gpu = replace(CASE, device="cuda")
    for case, libraries in ((CASE, None), (on_gpu, None), (on_gpu, LIBRARIES), (replace(CASE, batch_size=3), None)):
        kept_counts.kept_counters_or_reason(case, libraries)
    for change in CHANGED:
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            kept_counts.kept_counters_or_reason(CASE)
    assert counted.call_count == 4 + len(CHANGED)
    assert len(list((cache / "transformer-perf-tests/counters").iterdir())) == kept_counts.MOST_FOLDERS


def test_a_broken_file_is_counted_and_written_again(counted: Mock, tmp_path: Path) -> None:
    whole = kept_counts.kept_counters_or_reason(CASE)
    (path,) = tmp_path.rglob("*.json")
    good = json.loads(path.read_text())
    kept = good["counters"]
    broken = [{**good, "counters": {name: kept[name] for name in kept.keys() - {"kernels"}}},
               {**good, "counters": {**kept, "unknown": 1}}, {**good, "identity": "another"}]  # fmt: skip
    for content in ("", "{", "[]", "null", '{"identity": "another", "counters": {}}', *map(json.dumps, broken)):
        done = counted.call_count
        path.write_text(content)
        assert kept_counts.kept_counters_or_reason(CASE) == kept_counts.kept_counters_or_reason(CASE) == whole
        assert counted.call_count == done + 1, content


def _count_in_a_process(folder: str) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        return all(kept_counts.kept_counters_or_reason(CASE) == counters_or_reason(CASE) for _ in range(3))


def test_two_runs_at_once_read_whole_files_and_a_cache_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all(pool.map(_count_in_a_process, [str(tmp_path), "/proc/nothing"] * 2))
    assert list(tmp_path.rglob(".unfinished*")) == []


def test_a_scaler_that_reads_its_overflow_hides_no_counter() -> None:
    assert counters_of(of(phase=FULL_STEP, optimizer=f"{OPTIMIZERS_OF}:Descent", precision="fp16")).kernel_launches > 0
