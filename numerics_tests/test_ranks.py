"""Several ranks train one model as one process would: 2 and 3 processes on this CPU, which talk by gloo.

A sum of two numbers has one order, so what 2 ranks add is known to the bit; from 3 ranks on it is held to a bound.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import nn

from perf_tests_suite.model.parallel import PARALLEL, blocks, reduce_dtype
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import MAX_GRADIENT_NORM, Training
from perf_tests_suite.numerics_tests.harness import oracles, tiny
from perf_tests_suite.numerics_tests.harness.bounds import gamma, rounding
from perf_tests_suite.numerics_tests.harness.checks import (
    assert_at_most_twice,
    assert_same_bits,
    assert_true,
    assert_within,
)
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.rank_tasks import (
    BATCH,
    CONFIG,
    SHARDED,
    STEPS,
    Named,
    batch,
    filled,
    of_ranks,
    on_ranks,
)
from perf_tests_suite.numerics_tests.machine.formats import U32

ALL = {name: name for name in PARALLEL}
IN_FLOAT32 = {name: name for name in PARALLEL if reduce_dtype(name) == torch.float32}
IN_BFLOAT16 = {name: name for name in PARALLEL if reduce_dtype(name) == torch.bfloat16}
COPIED = {name: name for name in PARALLEL if name not in SHARDED}
WORLDS = (2, 3)
BUCKETS_MB = (None, 0.01, 0.001)
"""One bucket for all 31 kB of gradients, some, and one for almost every gradient."""
TOKENS = BATCH * CONFIG.context_length
SHAPE = (CONFIG.num_layers, CONFIG.num_heads)


def assert_same_named(actual: Named, expected: Named, source: str) -> None:
    """Raise AssertionError unless each tensor has the bits of its namesake in `expected`."""
    for name, tensor in expected.items():
        assert_same_bits(actual[name], tensor, f"{source}, {name}")


def in_one_process() -> Training:
    return Training(tiny.model(config=CONFIG).cpu(), PRECISIONS["fp32"], torch.device("cpu"))


@cache
def exact_gradients() -> tuple[Named, Named]:
    """The float64 gradient of the mean loss, and the mean magnitude of each token's part in it."""
    state = tiny.in_float64(in_one_process().model)
    losses = oracles.token_losses(
        oracles.transformer_logits(state, batch(), *SHAPE), tiny.targets_of(batch())
    ).flatten()
    one_by_one = torch.eye(TOKENS, dtype=losses.dtype)
    parts = torch.autograd.grad(losses, list(state.values()), one_by_one, is_grads_batched=True)
    of_each = dict(zip(state, parts, strict=True))
    return {n: part.mean(0) for n, part in of_each.items()}, {n: part.abs().mean(0) for n, part in of_each.items()}


@claim("variant", IN_FLOAT32)
def test_gradient_of_ranks_is_that_of_the_whole_batch(variant: str) -> None:
    """The error against float64 is at most twice the error of the whole batch in one process, and what dividing it can
    add.

    Of n tokens each rank adds n / N, the ranks add N sums, and each divides: gamma_(n / N + N + 2) mean|part|, where a
    part is one token's. ASNA 2e, section 4.2.
    """
    exact, magnitudes = exact_gradients()
    whole = filled(in_one_process(), batch())
    for world in WORLDS:
        for seen in on_ranks(variant, world):
            for name, gradient in seen.gradients.items():
                floor = gamma(TOKENS / world + world + 2) * float(magnitudes[name].max())
                assert_at_most_twice(gradient, whole[name], exact[name], floor)


@claim("variant", IN_FLOAT32)
def test_two_ranks_give_the_mean_of_their_chunks_to_the_bit(variant: str) -> None:
    """Halving is exact and a + b = b + a, so nothing but the one rounding of a + b is left."""
    first, second = on_ranks(variant, 2)
    mean = {name: (gradient + second.own[name]) / 2 for name, gradient in first.own.items()}
    for seen in (first, second):
        assert_same_named(seen.gradients, mean, "mean of chunks")


@claim("variant", ALL)
def test_ranks_add_within_the_bound_of_their_dtype(variant: str) -> None:
    """Each rank rounds its gradient, they add N of them and divide: gamma_(N + 2) mean|g| in the dtype of the sum.

    ASNA 2e, section 4.2; each rounding loses at most one subnormal besides.
    """
    u, eta = rounding(reduce_dtype(variant))
    for world in WORLDS:
        all_seen = on_ranks(variant, world)
        for name in all_seen[0].own:
            chunks = torch.stack([seen.own[name].double() for seen in all_seen])
            bound = gamma(world + 2, u) * chunks.abs().mean(0) + (world + 2) * eta
            for seen in all_seen:
                source = f"ASNA 2e, section 4.2; {name} on {world} ranks"
                assert_within(seen.gradients[name], chunks.mean(0), bound, source)


@claim("variant", IN_BFLOAT16)
def test_sums_in_bfloat16_are_bfloat16_numbers(variant: str) -> None:
    """What was added in 16 bits is kept in 32: every gradient is a bfloat16 number, which a float32 sum is not."""
    gradients = on_ranks(variant, 2)[0].gradients
    assert_same_named(gradients, {n: g.bfloat16().float() for n, g in gradients.items()}, "rounded to bfloat16")


@claim("variant", ALL)
def test_dtypes_are_those_declared(variant: str) -> None:
    """Parameters, gradients and moments are float32 in each precision; gradients travel in the declared dtype."""
    for precision in ("fp32", "bf16"):
        seen = on_ranks(variant, 2, precision=precision)[0]
        assert_true(set(seen.kept.values()) == {torch.float32}, f"kept in {seen.kept}")
        # FSDP2's all-reduce is of the norm for clipping.
        gradients = "reduce_scatter" if variant in SHARDED else "all_reduce"
        reduced = {dtype for kind, dtype in seen.sent if kind == gradients}
        assert_true(reduced == {reduce_dtype(variant)}, f"gradients travel in {reduced}")
        gathered = {d for kind, d in seen.sent if kind in ("all_gather", "broadcast")}
        assert_true(gathered <= {torch.float32}, f"weights travel in {gathered}")


@claim("variant", ALL)
def test_weights_are_the_same_on_all_ranks_after_three_steps(variant: str) -> None:
    """The same bits: all ranks step with the same gradients from the same start."""
    for world in WORLDS:
        first, *others = on_ranks(variant, world)
        for other in others:
            assert_same_named(other.weights, first.weights, f"{world} ranks")


@claim("variant", ALL)
def test_three_steps_move_weights_as_in_one_process(variant: str) -> None:
    """Apart by at most a fifth of the movement in the L2 norm; a parameter that is not stepped is apart by all of it.

    AdamW divides by the size of a gradient, so elements near 0 amplify a rounding: a trajectory has no useful bound.
    """
    alone = in_one_process()
    start = {name: weight.detach().clone() for name, weight in alone.model.named_parameters()}
    for _ in range(STEPS):
        alone.step(batch(), tiny.targets_of(batch()))
    for world in WORLDS:
        for seen in on_ranks(variant, world):
            for name, weight in alone.model.named_parameters():
                movement = float((weight.detach() - start[name]).norm())
                apart = float((seen.weights[name] - weight.detach()).norm())
                assert_true(apart <= 0.2 * movement, f"{name} is {apart / movement:.3g} of its movement away")


@claim("variant", ALL)
def test_clipping_norm_is_that_of_all_ranks(variant: str) -> None:
    """Each gradient is scaled by 1 / |all gradients|, relative to (n / 2 + N + 8) u32 with n the number of elements.

    Squares are positive, so their sum is relatively exact to gamma_n (ASNA 2e, section 4.2) and its root halves that.
    """
    for world in WORLDS:
        for seen in on_ranks(variant, world):
            norm = math.sqrt(sum(float(g.double().square().sum()) for g in seen.gradients.values()))
            assert_true(norm > 1.2 * MAX_GRADIENT_NORM, f"the norm is {norm:.3g}; this batch clips nothing")
            elements = sum(gradient.numel() for gradient in seen.gradients.values())
            for name, gradient in seen.gradients.items():
                exact = gradient.double() * (MAX_GRADIENT_NORM / (norm + 1e-6))
                bound = (elements / 2 + world + 8) * U32 * exact.abs()
                assert_within(seen.clipped[name], exact, bound, f"clipping, {name} on {world} ranks")


@claim("variant", {"ddp": "ddp", "zero1": "zero1"})
def test_bucket_size_changes_no_bit_on_two_ranks(variant: str) -> None:
    """A bucket says what travels together, not what is added; smaller ones are more messages."""
    runs = [on_ranks(variant, 2, bucket_mb)[0] for bucket_mb in BUCKETS_MB]
    for run in runs[1:]:
        assert_same_named(run.gradients, runs[0].gradients, "other buckets")
    messages = [sum(kind == "all_reduce" for kind, _ in run.sent) for run in runs]
    assert_true(messages == sorted(set(messages)), f"{messages} messages with buckets of {BUCKETS_MB} MiB")


@claim("variant", {name: name for name in SHARDED})
def test_resharding_changes_no_bit_on_two_ranks(variant: str) -> None:
    """Gathering a block's weights again for its backward pass gives what was there; it costs one gather a block."""
    again, once = (on_ranks(variant, 2, reshard=reshard)[0] for reshard in (True, False))
    assert_same_named(again.gradients, once.gradients, "resharded")
    gathers = [sum(kind == "all_gather" for kind, _ in run.sent) for run in (again, once)]
    once_each = CONFIG.num_layers + 1  # the root's are never let go between the passes
    assert_true(gathers == [CONFIG.num_layers + once_each, once_each], f"{gathers} gathers with and without resharding")


MOMENTS = 2 * CONFIG.parameters


@claim("variant", ALL)
def test_moments_are_kept_as_often_as_declared(variant: str) -> None:
    """Both moments of each parameter are kept: on every rank, or on one of them where a variant shards them."""
    for world in WORLDS:
        kept = [seen.moments for seen in on_ranks(variant, world)]
        copies = 1 if variant in ("zero1", *SHARDED) else world
        assert_true(sum(kept) == copies * MOMENTS, f"{kept} elements of moments, {MOMENTS} for one copy")
        assert_true(max(kept) <= 0.75 * MOMENTS or copies > 1, f"{kept}: one rank keeps most")


@claim("variant", COPIED)
def test_gradients_stay_apart_without_synchronization(variant: str) -> None:
    """Each rank's are its own to the bit, and nothing of them is left in the next pass, which is synchronized."""
    for seen in on_ranks(variant, 2):
        assert_same_named(seen.apart, seen.own, "one rank")


@claim("variant", {name: name for name in SHARDED})
def test_a_step_without_exchange_leaves_no_trace(variant: str) -> None:
    """It sends the norm alone and leaves the gradients of the last exchange, zeros before the first.

    Passes with exchange between such steps give the same bits, and send what a model sends that had no such step.
    """
    for reshard in (True, False):
        of_others = on_ranks(variant, 2, reshard=reshard)
        for alone, seen in zip(of_ranks("step_alone", 2, variant, reshard), of_others, strict=True):
            assert_true(alone.sent == ["all_reduce"], f"a step without exchange sends {alone.sent}")
            expected = [{name: torch.zeros_like(g) for name, g in seen.gradients.items()}, *alone.exchanged[:-1]]
            for left, last in zip(alone.left, expected, strict=True):
                assert_same_named(left, last, "left")
            for gradients in alone.exchanged:
                assert_same_named(gradients, seen.gradients, "exchanged")
            usual = [kind for kind, _ in seen.sent if kind != "all_reduce"]
            assert_true(all(kinds == usual for kinds in alone.exchanges), f"{alone.exchanges}, usually {usual}")


@claim("variant", {"fsdp2": "fsdp2"})
def test_a_root_without_weights_of_its_own_keeps_nothing(variant: str) -> None:
    """A model of the user's may have such a root; FSDP2 has no group of parameters for it."""
    assert_true(all(of_ranks("keeps_nothing_without_weights", 2)), "forgetting what it keeps fails")


KINDS = {"zero1": {"all_reduce", "broadcast"}} | {
    name: {"all_gather", "reduce_scatter", "all_reduce"} for name in SHARDED
}


@claim("variant", ALL)
def test_a_step_sends_only_what_its_variant_needs(variant: str) -> None:
    """Gradients, and of a model in slices its weights; no buffers, which are tables that all ranks have."""
    sent = {kind for kind, _ in on_ranks(variant, 2)[0].sent}
    assert_true(sent == KINDS.get(variant, {"all_reduce"}), f"{sorted(sent)}")


@claim("variant", ALL)
def test_each_rank_steps_with_the_implementation_asked_for(variant: str) -> None:
    for optimizer in ("loop", "foreach", "fused"):
        for runs_as in of_ranks("adamw_runs_as", 2, variant, optimizer):
            asked = optimizer == "foreach", optimizer == "fused"
            assert_true(runs_as == asked, f"(foreach, fused) is {runs_as} where {optimizer} was asked for")


@claim("blocks_of", {"blocks": blocks})
def test_blocks_are_those_of_the_longest_list(blocks_of: Callable[[nn.Module], list[nn.Module]]) -> None:
    """A model without a list has none."""
    short, long = (nn.ModuleList(nn.Identity() for _ in range(length)) for length in (2, 3))
    assert_true(blocks_of(nn.Sequential(short, long)) == list(long), "the blocks are not those of the longest list")
    assert_true(blocks_of(nn.Linear(1, 1)) == [], "blocks are found where no list is")
