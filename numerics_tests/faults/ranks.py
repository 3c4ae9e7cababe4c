"""Faults in the source of how ranks share a step: `model/parallel.py`, and what it needs."""

from numerics_tests.faults.source import CLIP
from numerics_tests.planted_source import SourceFault

CLIP_ITS_SLICE = """                gradients = [parameter.grad for parameter in self.model.parameters()]
                slices = [getattr(gradient, "to_local", gradient.detach)() for gradient in gradients]
                norm = torch.stack([part.norm() for part in slices]).norm()
                for part in slices:
                    part.mul_((MAX_GRADIENT_NORM / (norm + 1e-6)).clamp(max=1.0))"""
SHARE = "batch.chunk(ranks.size)[ranks.number]"
ALL_REDUCE, LARGEST = "dist.all_reduce(gradient, group", "dist.all_reduce(gradient, op=dist.ReduceOp.MAX, group"
EACH = "for gradient in gradients(model):"
FLAT = "flat = torch.cat([gradient.flatten() for gradient in gradients(model)])"
HAVE_GRADIENTS = "for parameter in model.parameters() if parameter.grad is not None"
COPIED = "(*model.parameters(), *model.buffers())"
SHARDED_ADAMW = """ZeroRedundancyOptimizer(
        model.parameters(),"""
ADAMW_OF_MATRICES = """ZeroRedundancyOptimizer(
        [parameter for parameter in model.parameters() if parameter.dim() > 1],"""
KEPT_BACK = "after_backward, training.after_backward = training.after_backward, ignore_backward"

WHOLE, CHUNKS = "gradient_of_ranks_is_that_of_the_whole_batch", "two_ranks_give_the_mean_of_their_chunks_to_the_bit"
BOUND, DTYPES = "ranks_add_within_the_bound_of_their_dtype", "dtypes_are_those_declared"
SAME, THREE_STEPS = "weights_are_the_same_on_all_ranks_after_three_steps", "three_steps_move_weights_as_in_one_process"
RESHARDING, APART = "resharding_changes_no_bit_on_two_ranks", "gradients_stay_apart_without_synchronization"
PARALLEL = "parallel.py"

RANK_FAULTS = (
    SourceFault("every rank takes the first share", WHOLE, PARALLEL, SHARE, "batch.chunk(ranks.size)[0]"),
    SourceFault("a share too many", WHOLE, PARALLEL, SHARE, "batch.chunk(ranks.size + 1)[ranks.number]"),
    SourceFault("size of the world for that of the group", CHUNKS, PARALLEL, "dist.get_world_size(self.group)",
                "dist.get_world_size()"),
    SourceFault("sum for mean", CHUNKS, PARALLEL, "            gradient /= ranks.size", "            pass"),
    SourceFault("mean of two ranks for any", BOUND, PARALLEL, "flat /= ranks.size", "flat /= 2", "ddp-flat"),
    SourceFault("largest for sum", CHUNKS, PARALLEL, ALL_REDUCE, LARGEST),
    SourceFault("first gradient left out", CHUNKS, PARALLEL, EACH, "for gradient in gradients(model)[1:]:"),
    SourceFault("gradients of vectors left out", CHUNKS, PARALLEL, HAVE_GRADIENTS,
                "for parameter in model.parameters() if parameter.dim() > 1"),
    SourceFault("mean not copied back", CHUNKS, PARALLEL, "gradient.copy_(part.view_as(gradient))",
                "part.view_as(gradient)", "ddp-flat"),
    SourceFault("mean copied into a cleared gradient", CHUNKS, PARALLEL, "gradient.copy_(part.view_as(gradient))",
                "gradient += part.view_as(gradient)", "ddp-flat"),
    SourceFault("flat gradients in bfloat16", DTYPES, PARALLEL, FLAT, f"{FLAT}.bfloat16()", "ddp-flat"),
    SourceFault("flat gradients through bfloat16", CHUNKS, PARALLEL, FLAT, f"{FLAT}.bfloat16().float()", "ddp-flat"),
    SourceFault("averaging forgotten", CHUNKS, "training.py", "            self.after_backward()\n", ""),
    SourceFault("each rank starts from its own weights", SAME, PARALLEL, COPIED, "model.buffers()"),
    SourceFault("start copied into nothing", SAME, PARALLEL, "tensor.detach(), group",
                "tensor.detach().clone(), group"),
    SourceFault("bucket size ignored", "bucket_size_changes_no_bit_on_two_ranks", PARALLEL,
                "bucket_cap_mb=ranks.bucket_mb", "bucket_cap_mb=25"),
    SourceFault("moments kept on every rank", "moments_are_kept_as_often_as_declared", PARALLEL,
                "training.optimizer = sharded = Zero", "sharded = Zero", "zero1"),
    SourceFault("sharded optimizer with a learning rate of its own", THREE_STEPS, PARALLEL,
                "optimizer_class=torch.optim.AdamW,", "optimizer_class=torch.optim.AdamW, lr=1e-4,", "zero1"),
    SourceFault("sharded optimizer of matrices alone", THREE_STEPS, PARALLEL, SHARDED_ADAMW,
                ADAMW_OF_MATRICES, "zero1"),
    SourceFault("sharded optimizer without averaging", CHUNKS, PARALLEL, "training = ddp(model, ranks, train)",
                "training = train(model)", "zero1"),
    SourceFault("slices added in bfloat16", DTYPES, PARALLEL, "policy or MixedPrecisionPolicy()",
                "policy or MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)", "fsdp2"),
    SourceFault("bfloat16 declared, float32 sent", "sums_in_bfloat16_are_bfloat16_numbers", PARALLEL,
                "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)", "MixedPrecisionPolicy()"),
    SourceFault("bfloat16 declared, float16 sent", DTYPES, PARALLEL, "(reduce_dtype=torch.bfloat16)",
                "(reduce_dtype=torch.float16)", "fsdp2-bf16"),
    SourceFault("float32 declared, bfloat16 sent", DTYPES, PARALLEL, 'torch.bfloat16 if variant == "fsdp2-bf16" else ',
                "", "fsdp2-bf16"),
    SourceFault("blocks never resharded", RESHARDING, PARALLEL, "reshard_after_forward=ranks.reshard",
                "reshard_after_forward=False"),
    SourceFault("blocks gathered all at once", RESHARDING, PARALLEL, "for block in blocks(model):", "for block in ():"),
    SourceFault("each rank clips by its slice's norm", "clipping_norm_is_that_of_all_ranks", "training.py", CLIP,
                CLIP_ITS_SLICE, "fsdp2"),
    SourceFault("buckets sent without synchronization", APART, PARALLEL, "with training.model.no_sync():",
                "with torch.enable_grad():", "ddp"),
    SourceFault("gradients averaged without synchronization", APART, PARALLEL, KEPT_BACK,
                "after_backward = training.after_backward"),
    SourceFault("synchronization never resumed", CHUNKS, PARALLEL,
                "        training.after_backward = after_backward", "        pass"),
    SourceFault("gradients without exchange added to the next", "a_step_without_exchange_leaves_no_trace",
                "resident.py", "parameter.unsharded_accumulated_grad = None", "pass", "fsdp2-bf16"),
    SourceFault("no root without weights of its own", "a_root_without_weights_of_its_own_keeps_nothing", "resident.py",
                " if group is not None else ()", ""),
    SourceFault("buffers sent in every forward pass", "a_step_sends_only_what_its_variant_needs", PARALLEL,
                ", **KEEPS_BUFFERS", "", "ddp"),
    SourceFault("sharded optimizer that is never fused", "each_rank_steps_with_the_implementation_asked_for", PARALLEL,
                'fused=training.optimizer_implementation == "fused",', "", "zero1"),
    SourceFault("blocks of the first list", "blocks_are_those_of_the_longest_list", PARALLEL,
                "max(lists, key=len, default=[])", "(lists or [[]])[0]"),
)  # fmt: skip
