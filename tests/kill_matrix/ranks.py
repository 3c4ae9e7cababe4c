"""Faults in how ranks share a step. Each rank plants them in its own process, by their name."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from perf_tests_suite.model import parallel
from perf_tests_suite.model.parallel import KEEPS_BUFFERS, copied_from_first, gradients
from perf_tests_suite.model.training import MAX_GRADIENT_NORM, ignore_backward
from perf_tests_suite.numerics_tests.harness.planting import Planted, Wrong
from tests.kill_matrix.wrong import UPDATE, update

PLACE = "parallel."


def naive_average(over: Any = lambda gradients: gradients, add: Any = dist.all_reduce, share: Any = None) -> Wrong:
    """Plant copies that average some gradients, add them in another way, or divide by another number."""

    def ddp_naive(model: nn.Module, ranks: Any, train: Any) -> Any:
        training = train(copied_from_first(model, ranks))

        def average() -> None:
            for gradient in over(gradients(model)):
                add(gradient, group=ranks.group)
                gradient /= share or ranks.size

        training.after_backward = average
        return training

    return lambda real: ddp_naive


def flat_average(narrow: Any = lambda flat: flat, share: Any = None, put: Any = Tensor.copy_) -> Wrong:
    """Plant copies that send a narrower tensor of all gradients, divide by another number, or copy otherwise."""

    def ddp_flat(model: nn.Module, ranks: Any, train: Any) -> Any:
        training = train(copied_from_first(model, ranks))

        def average() -> None:
            flat = narrow(torch.cat([gradient.flatten() for gradient in gradients(model)]))
            dist.all_reduce(flat, group=ranks.group)
            flat /= share or ranks.size
            parts = flat.split([gradient.numel() for gradient in gradients(model)])
            for gradient, part in zip(gradients(model), parts, strict=True):
                put(gradient, part.view_as(gradient))

        training.after_backward = average
        return training

    return lambda real: ddp_flat


def patched(name: str, value: Any) -> Wrong:
    """Plant a function of `parallel` for which one name there, or what is called by it, is another."""

    def wrong(real: Any) -> Any:
        def called(*given: Any, **named: Any) -> Any:
            with patch.object(parallel, name, value(getattr(parallel, name))):
                return real(*given, **named)

        return called

    return wrong


def with_words(change: Any) -> Any:
    """A callable whose named arguments are changed."""
    return lambda real: lambda *given, **named: real(*given, **change(named))


def of_matrices(real: Any) -> Any:
    return lambda parameters, **named: real([one for one in parameters if one.dim() > 1], **named)


def keeps_its_own_optimizer(real: Any) -> Any:
    def zero1(model: nn.Module, ranks: Any, train: Any) -> Any:
        made: list[Any] = []

        def kept(inner: nn.Module) -> Any:
            made.append((training := train(inner), training.optimizer))
            return training

        training = real(model, ranks, kept)
        training.optimizer = made[0][1]
        return training

    return zero1


def clip_its_slice(parameters: Any, foreach: bool | None) -> None:
    grads = [parameter.grad for parameter in parameters]
    slices = [getattr(gradient, "to_local", gradient.detach)() for gradient in grads]
    norm = torch.stack([part.norm() for part in slices]).norm()
    for part in slices:
        part.mul_((MAX_GRADIENT_NORM / (norm + 1e-6)).clamp(max=1.0))


def synchronizes(real: Any) -> Any:
    """What `without_synchronization` leaves out is done where a model has buckets."""
    return lambda training, *given: nothing() if hasattr(training.model, "no_sync") else real(training, *given)


def nothing() -> Iterator[None]:
    """A context that changes nothing, as the generator that it is made of."""
    yield


def averages(real: Any) -> Any:
    return lambda training, *given: real(training, *given) if is_sharded(training) else nothing()


def never_resumes(real: Any) -> Any:
    def without(training: Any, *given: Any) -> Any:
        yield from real(training, *given)
        if not is_sharded(training):
            training.after_backward = ignore_backward

    return without


def is_sharded(training: Any) -> bool:
    return hasattr(training.model, "unshard")


def policy(**settings: Any) -> Wrong:
    """Plant FSDP2 with another policy where none is given."""
    return lambda real: (
        lambda model, ranks, train, given=None: real(model, ranks, train, given or MixedPrecisionPolicy(**settings))
    )


def fsdp2_of(**settings: Any) -> Wrong:
    return lambda real: (
        lambda model, ranks, train: parallel.fsdp2(model, ranks, train, MixedPrecisionPolicy(**settings))
    )


def of_its_group(real: Any) -> Any:
    def forget(module: Any) -> None:
        for parameter in module._get_fsdp_state()._fsdp_param_group.fsdp_params:
            parameter.unsharded_accumulated_grad = None

    return forget


def first_list(model: nn.Module) -> list[nn.Module]:
    return list(next((one for one in model.modules() if isinstance(one, nn.ModuleList)), []))


NAIVE, FLAT, DDP, ZERO, SHARDED = (f"{PLACE}{name}" for name in ("ddp_naive", "ddp_flat", "ddp", "zero1", "fsdp2"))
WHOLE, CHUNKS = "gradient_of_ranks_is_that_of_the_whole_batch", "two_ranks_give_the_mean_of_their_chunks_to_the_bit"
BOUND, DTYPES = "ranks_add_within_the_bound_of_their_dtype", "dtypes_are_those_declared"
SAME, THREE_STEPS = "weights_are_the_same_on_all_ranks_after_three_steps", "three_steps_move_weights_as_in_one_process"
RESHARDING, APART = "resharding_changes_no_bit_on_two_ranks", "gradients_stay_apart_without_synchronization"
BUCKETS, OPTIMIZER = "DistributedDataParallel", "ZeroRedundancyOptimizer"

OF_RANKS = (
    Planted("every rank takes the first share", WHOLE, f"{PLACE}share",
            lambda real: lambda batch, ranks: batch.chunk(ranks.size)[0]),
    Planted("a share too many", WHOLE, f"{PLACE}share",
            lambda real: lambda batch, ranks: batch.chunk(ranks.size + 1)[ranks.number]),
    Planted("size of the world for that of the group", CHUNKS, f"{PLACE}Ranks.size",
            lambda real: property(lambda self: dist.get_world_size())),
    Planted("sum for mean", CHUNKS, NAIVE, naive_average(share=1)),
    Planted("mean of two ranks for any", BOUND, FLAT, flat_average(share=2), "ddp-flat"),
    Planted("largest for sum", CHUNKS, NAIVE, naive_average(
        add=lambda gradient, group: dist.all_reduce(gradient, op=dist.ReduceOp.MAX, group=group))),
    Planted("first gradient left out", CHUNKS, NAIVE, naive_average(over=lambda found: found[1:])),
    Planted("gradients of vectors left out", CHUNKS, f"{PLACE}gradients",
            lambda real: lambda model: [each.grad for each in model.parameters() if each.dim() > 1]),
    Planted("mean not copied back", CHUNKS, FLAT, flat_average(put=lambda gradient, part: None), "ddp-flat"),
    Planted("mean copied into a cleared gradient", CHUNKS, FLAT, flat_average(put=Tensor.add_), "ddp-flat"),
    Planted("flat gradients in bfloat16", DTYPES, FLAT, flat_average(narrow=Tensor.bfloat16), "ddp-flat"),
    Planted("flat gradients through bfloat16", CHUNKS, FLAT,
            flat_average(narrow=lambda flat: flat.bfloat16().float()), "ddp-flat"),
    Planted("averaging forgotten", CHUNKS, "training.Training.backward",
            lambda real: lambda self, loss: self.scaler.scale(loss).backward()),
    Planted("each rank starts from its own weights", SAME, f"{PLACE}copied_from_first",
            lambda real: lambda model, ranks: model),
    Planted("start copied into nothing", SAME, f"{PLACE}copied_from_first",
            lambda real: lambda model, ranks: (real(deepcopy(model), ranks), model)[1]),
    Planted("bucket size ignored", "bucket_size_changes_no_bit_on_two_ranks", DDP,
            patched(BUCKETS, with_words(lambda words: {**words, "bucket_cap_mb": 25}))),
    Planted("moments kept on every rank", "moments_are_kept_as_often_as_declared", ZERO, keeps_its_own_optimizer,
            "zero1"),
    Planted("sharded optimizer with a learning rate of its own", THREE_STEPS, ZERO,
            patched(OPTIMIZER, with_words(lambda words: {**words, "lr": 1e-4})), "zero1"),
    Planted("sharded optimizer of matrices alone", THREE_STEPS, ZERO, patched(OPTIMIZER, of_matrices), "zero1"),
    Planted("sharded optimizer without averaging", CHUNKS, ZERO,
            patched("ddp", lambda real: lambda model, ranks, train: train(model)), "zero1"),
    Planted("slices added in bfloat16", DTYPES, SHARDED, policy(reduce_dtype=torch.bfloat16), "fsdp2"),
    Planted("bfloat16 declared, float32 sent", "sums_in_bfloat16_are_bfloat16_numbers", f"{SHARDED}_bf16", fsdp2_of()),
    Planted("bfloat16 declared, float16 sent", DTYPES, f"{SHARDED}_bf16", fsdp2_of(reduce_dtype=torch.float16),
            "fsdp2-bf16"),
    Planted("float32 declared, bfloat16 sent", DTYPES, f"{PLACE}reduce_dtype",
            lambda real: lambda variant: torch.float32, "fsdp2-bf16"),
    Planted("blocks never resharded", RESHARDING, SHARDED,
            patched("fully_shard", with_words(lambda words: {**words, "reshard_after_forward": False}))),
    Planted("blocks gathered all at once", RESHARDING, SHARDED, patched("blocks", lambda real: lambda model: [])),
    Planted("each rank clips by its slice's norm", "clipping_norm_is_that_of_all_ranks", UPDATE,
            update(clip=clip_its_slice), "fsdp2"),
    Planted("buckets sent without synchronization", APART, f"{PLACE}without_synchronization", synchronizes, "ddp"),
    Planted("gradients averaged without synchronization", APART, f"{PLACE}without_synchronization", averages),
    Planted("synchronization never resumed", CHUNKS, f"{PLACE}without_synchronization", never_resumes),
    Planted("gradients without exchange added to the next", "a_step_without_exchange_leaves_no_trace",
            "resident.forget_kept_gradients", lambda real: lambda module: None, "fsdp2-bf16"),
    Planted("no root without weights of its own", "a_root_without_weights_of_its_own_keeps_nothing",
            "resident.forget_kept_gradients", of_its_group),
    Planted("buffers sent in every forward pass", "a_step_sends_only_what_its_variant_needs", DDP,
            patched(BUCKETS, with_words(lambda words: {n: v for n, v in words.items() if n not in KEEPS_BUFFERS})),
            "ddp"),
    Planted("sharded optimizer that is never fused", "each_rank_steps_with_the_implementation_asked_for", ZERO,
            patched(OPTIMIZER, with_words(lambda words: {**words, "fused": False})), "zero1"),
    Planted("blocks of the first list", "blocks_are_those_of_the_longest_list", f"{PLACE}blocks",
            lambda real: first_list),
)  # fmt: skip
