"""Faults in the source of `model/`, and in how ranks share a step: what a slip of the pen there would be."""

from numerics_tests.harness.claims import SourceFault

CLIP = """                nn.utils.clip_grad_norm_(
                    self.model.parameters(), MAX_GRADIENT_NORM, foreach=self.optimizer_implementation != "loop"
                )"""
CLIP_EACH_ALONE = """                for parameter in self.model.parameters():
                    nn.utils.clip_grad_norm_([parameter], MAX_GRADIENT_NORM)"""
BACKWARD = "            self.scaler.scale(loss).backward()"
BACKWARD_UNDER_AUTOCAST = """            with self.precision.autocast(self.device):
                self.scaler.scale(loss).backward()"""
BACKWARD_TO_BFLOAT16 = f"""{BACKWARD}
            if self.precision.autocast_dtype is not None:
                for parameter in self.model.parameters():
                    parameter.grad = parameter.grad.to(self.precision.autocast_dtype).float()"""
FUSED_ADAMW = 'fused=self.optimizer_implementation == "fused",'
ADAMW_OF_ALL = """torch.optim.AdamW(
            model.parameters(),"""
ADAMW_IN_GROUPS = """torch.optim.AdamW(
            [{"params": [p], "lr": 1e-3 if p.dim() > 1 else 1e-4} for p in model.parameters()],"""
UNSCALE = "                self.scaler.unscale_(self.optimizer)"
PASS = "                pass"
TURNED = "return swapped_BHTK * self.signed_sin_TK[:num_tokens] + x_BHTK * self.cos_TK[:num_tokens]"
FILL_GRADIENTS = """                for parameter in self.model.parameters():
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
"""
VISIBLE = "return position_T[:, None] >= position_T[None, :]"
DISTANCE = "position_T[:, None] - position_T[None, :]"
IN_A_WINDOW = f"return ({DISTANCE} >= 0) & ({DISTANCE} < 64)"
FUSED = "F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)"
OF_ONE_BLOCK = "F.scaled_dot_product_attention(q_BHTK, k_BHTK[..., :128, :], v_BHTK[..., :128, :], is_causal=True)"
WITH_A_HEAD = "return sdpa_attention(q_BHTK[:, None], k_BHTK[:, None], v_BHTK[:, None])[:, 0]"
TOKENS_AS_HEADS = "return sdpa_attention(q_BHTK[:, :, None], k_BHTK[:, :, None], v_BHTK[:, :, None])[:, :, 0]"
GROUPS = "range(0, len(self.blocks), self.blocks_per_checkpoint)"
WHOLE_GROUPS = "range(0, len(self.blocks) - self.blocks_per_checkpoint + 1, self.blocks_per_checkpoint)"
LINEAR = "return nn.functional.linear(x, self.weight_OI)"
SPLIT_LINEAR = """halves = (slice(0, None, 2), slice(1, None, 2))
        return sum(nn.functional.linear(x[..., half], self.weight_OI[:, half]) for half in halves)"""
RESIDUAL, NARROW_RESIDUAL = "= x_BTD + attended_BTD", "= (x_BTD + attended_BTD).to(attended_BTD.dtype)"

EACH_BLOCK, DRAW = "for block in blocks:", "nn.init.normal_(self.weight_OI, std="
LONG = "logits_of_a_long_sequence_err_at_most_twice_the_plain_formula"
NARROW_LOGITS = "return self.model(tokens_BT).bfloat16().to(self.precision.autocast_dtype or torch.float32)"
STEP = "first_step_is_that_of_float64"
AFTER_FORWARD = """self._clear_if("after-forward", mark)
            self.backward(loss)
            mark("backward")"""
CLEARED_LATE = """self.backward(loss)
            mark("backward")
            self._clear_if("after-forward", mark)"""
KEEPS_RATES = "creating_the_optimizer_state_keeps_rates_and_leaves_out_what_is_frozen"
DRAWN = "every_weight_is_drawn_for_itself"
INVISIBLE, OVERFLOW = "scaling_by_a_power_of_two_is_invisible", "overflow_skips_the_step_and_halves_the_scale"
TABLE = "precisions_are_what_their_names_say"
SOURCE_FAULTS = (
    SourceFault("update clips each tensor alone", "update_clips_to_norm_one_and_steps", "training.py", CLIP,
                CLIP_EACH_ALONE),
    SourceFault("clipping forgotten", "update_clips_to_norm_one_and_steps", "training.py", CLIP, PASS),
    SourceFault("clipping before unscaling", INVISIBLE, "training.py", UNSCALE, PASS),
    SourceFault("scale that is no power of two", INVISIBLE, "training.py", "enabled=precision.scales_loss",
                "init_scale=50_001.0, enabled=precision.scales_loss"),
    SourceFault("step in spite of an overflow", OVERFLOW, "training.py", "self.scaler.step(self.optimizer)",
                "self.optimizer.step()"),
    SourceFault("scale that never falls", OVERFLOW, "training.py", "self.scaler.update()",
                "self.scaler.update(self.scaler.get_scale())"),
    SourceFault("gradients never cleared", "step_forgets_earlier_gradients_and_repeats", "training.py",
                "self.optimizer.zero_grad(set_to_none=True)", "pass"),
    SourceFault("eps of 1e-3 in every norm", "logits_err_at_most_twice_the_plain_formula", "transformer.py",
                "eps: float = 1e-5", "eps: float = 1e-3"),
    SourceFault("rotary tables read from their end", "rotary_is_a_turn_in_the_complex_plane", "transformer.py", TURNED,
                TURNED.replace("[:num_tokens]", "[-num_tokens:]")),
    SourceFault("fp16 without loss scaling", TABLE, "precision.py",
                '"fp16", autocast_dtype=torch.float16, scales_loss=True', '"fp16", autocast_dtype=torch.float16'),
    SourceFault("fp32 with TF32 products", TABLE, "precision.py", 'Precision("fp32")',
                'Precision("fp32", float32_matmul_precision="high")'),
    SourceFault("bf16 that casts to float16", TABLE, "precision.py", '"bf16", autocast_dtype=torch.bfloat16',
                '"bf16", autocast_dtype=torch.float16'),
    SourceFault("scale that doubles after 20 steps", TABLE, "training.py", "enabled=precision.scales_loss",
                "enabled=precision.scales_loss, growth_interval=20"),
    SourceFault("fused attention takes tokens for heads", "attention_is_within_its_bound_without_heads",
                "attention.py", WITH_A_HEAD, TOKENS_AS_HEADS),
    SourceFault("last checkpoint dropped", "checkpointing_changes_no_bit", "transformer.py", GROUPS, WHOLE_GROUPS),
    SourceFault("attention that looks back 64 tokens", "attention_is_within_its_bound_across_blocks", "attention.py",
                VISIBLE, IN_A_WINDOW),
    SourceFault("fused attention over its first 128 keys", "attention_is_within_its_bound_across_blocks",
                "attention.py", FUSED, OF_ONE_BLOCK),
    SourceFault("attention that looks back 512 tokens", "first_token_is_seen_from_far_away", "attention.py",
                VISIBLE, IN_A_WINDOW.replace("64", "512")),
    SourceFault("attention that looks back 2048 tokens", "first_token_is_seen_from_far_away", "attention.py",
                VISIBLE, IN_A_WINDOW.replace("64", "2048")),
    SourceFault("mask with a graph alone", "attention_without_a_graph_is_the_same", "attention.py", "is_causal=True",
                "is_causal=torch.is_grad_enabled()"),
    SourceFault("rate of the last group for all", KEEPS_RATES, "training.py", 'group["lr"] = learning_rate\n',
                'group["lr"] = learning_rates[-1]\n'),
    SourceFault("moments of frozen parameters", KEEPS_RATES, "training.py", "if parameter.requires_grad:", "if True:"),
    SourceFault("gradients that hide NaN", "update_hides_no_gradient_that_is_not_a_number", "training.py",
                UNSCALE, f"{UNSCALE}\n                for p in self.model.parameters(): p.grad.nan_to_num_()"),
    SourceFault("first block twice beyond 64 tokens", LONG, "transformer.py", EACH_BLOCK,
                "for block in (*blocks[: int(x_BTD.shape[1] > 64)], *blocks):"),
    SourceFault("residual stream clamped at 8", LONG, "transformer.py", RESIDUAL,
                "= (x_BTD + attended_BTD).clamp(-8, 8)"),
    SourceFault("logits narrowed to bfloat16 under fp16", "autocast_errs_at_most_twice_the_plain_formula",
                "training.py", "return self.model(tokens_BT)", NARROW_LOGITS),
    SourceFault("tokens clamped at 511", "each_token_of_a_large_vocabulary_has_its_own_row", "training.py",
                "return self.model(tokens_BT)", "return self.model(tokens_BT.clamp(max=511))"),
    SourceFault("step that updates twice", STEP, "training.py", "            self.update()\n",
                "            self.update()\n" * 2),
    SourceFault("after-forward that clears after backward", STEP, "training.py", AFTER_FORWARD, CLEARED_LATE),
    SourceFault("before-step that keeps gradients", STEP, "training.py",
                '            self._clear_if("before-step", mark)\n', ""),
    SourceFault("step under autocast", "autocast_ends_before_the_backward_pass", "training.py",
                'with region("full_step"):', 'with region("full_step"), self.precision.autocast(self.device):'),
    SourceFault("embedding by an index", "training_repeats_to_the_bit_on_all_threads", "transformer.py",
                "nn.functional.embedding(tokens_BT, self.weight_VD)", "self.weight_VD[tokens_BT]"),
    SourceFault("embeddings as narrow as GPT-2's", DRAWN, "transformer.py", "nn.init.normal_(self.weight_VD)",
                "nn.init.normal_(self.weight_VD, std=0.02)"),
    SourceFault("every layer from one seed", DRAWN, "transformer.py", DRAW, f"torch.manual_seed(0)\n        {DRAW}"),
    SourceFault("mask of -1e4", "mask_beats_any_score", "attention.py", 'float("-inf")', "-1e4"),
    SourceFault("mask of -6e4", "mask_beats_any_score", "attention.py", 'float("-inf")', "-6e4"),
    SourceFault("gradients rounded to the autocast dtype", "autocast_keeps_float32_where_it_sums", "training.py",
                BACKWARD, BACKWARD_TO_BFLOAT16),
    SourceFault("residual stream in the autocast dtype", "autocast_keeps_float32_where_it_sums", "transformer.py",
                RESIDUAL, NARROW_RESIDUAL),
    SourceFault("backward pass under autocast", "autocast_ends_before_the_backward_pass", "training.py", BACKWARD,
                BACKWARD_UNDER_AUTOCAST),
    SourceFault("halves of a product added in 16 bits", "linear_rounds_once", "transformer.py", LINEAR, SPLIT_LINEAR),
    SourceFault("clipping left to torch's choice", "update_issues_the_kernels_of_its_optimizer", "training.py",
                'foreach=self.optimizer_implementation != "loop"', "foreach=None"),
    SourceFault("weights too wide", "weights_are_drawn_as_wide_as_their_matrix_needs", "transformer.py",
                "std=(2 /", "std=(3 /"),
    SourceFault("loss without its cast", "loss_is_float32_and_not_negative", "training.py",
                "logits_BTV = logits_BTV.float()", "pass"),
    SourceFault("norm without its cast", "rms_norm_survives_squares_that_overflow", "transformer.py",
                "x_BTD.float()", "x_BTD"),
    SourceFault("norm that stays in float32", "rms_norm_of_the_model_rounds_once", "transformer.py",
                ".to(x_BTD.dtype)", ""),
    SourceFault("learning rate left at 0", "creating_the_optimizer_state_changes_nothing_else", "training.py",
                'group["lr"] = learning_rate', "pass"),
    SourceFault("step that creating the state counts", "creating_the_optimizer_state_changes_nothing_else",
                "training.py", 'state["step"].zero_()', "pass"),
    SourceFault("parameters without a gradient decay", "update_leaves_what_has_no_gradient_alone", "training.py",
                UNSCALE, f"{FILL_GRADIENTS}{UNSCALE}"),
    SourceFault("AdamW with amsgrad", "training_takes_torchs_defaults", "training.py", FUSED_ADAMW,
                f"{FUSED_ADAMW}\n            amsgrad=True,"),
    SourceFault("tenth of the rate for some", "training_takes_torchs_defaults", "training.py", ADAMW_OF_ALL,
                ADAMW_IN_GROUPS),
)  # fmt: skip

RMS, LOSS = "rms_norm_of_the_model_rounds_once", "loss_is_within_its_bound"
TABLES = "cos_TP, sin_TP = angle_TP.cos(), angle_TP.sin()"
WIDE_TABLES = """angle_TP = torch.arange(context_length).double()[:, None] * theta ** -(
            torch.arange(0, head_dim, 2).double() / head_dim
        )
        cos_TP, sin_TP = angle_TP.cos().float(), angle_TP.sin().float()"""
TURNED_AS_COMPLEX = """turn_TP = torch.complex(self.cos_TK[:num_tokens, ::2], self.signed_sin_TK[:num_tokens, 1::2])
            pairs_BHTP = torch.view_as_complex(x_BHTK.float().unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(pairs_BHTP * turn_TP).flatten(-2)"""
SCORES = "q_BHTK @ k_BHTK.transpose(-2, -1) / math.sqrt(q_BHTK.shape[-1])"
NEGATIVE = "return -log_probabilities_BTV.gather(-1, targets_BT[..., None]).mean()"
HONEST = (
    SourceFault("rotary tables in float64", "rotary_holds_far_out", "transformer.py", TABLES, WIDE_TABLES),
    SourceFault("rotary by complex numbers", "rotary_is_a_turn_in_the_complex_plane", "transformer.py", TURNED,
                TURNED_AS_COMPLEX),
    SourceFault("norm by F.rms_norm", RMS, "transformer.py", "(self.weight_D * (x_float32_BTD * inverse_rms_BT1))",
                "nn.functional.rms_norm(x_float32_BTD, x_BTD.shape[-1:], self.weight_D, self.eps)"),
    SourceFault("norm by a division", RMS, "transformer.py", "x_float32_BTD * inverse_rms_BT1",
                "x_float32_BTD / inverse_rms_BT1.reciprocal()"),
    SourceFault("loss by F.cross_entropy", LOSS, "training.py", NEGATIVE,
                "return nn.functional.cross_entropy(logits_BTV.flatten(0, -2), targets_BT.flatten())"),
    SourceFault("loss by log_softmax", "loss_gradient_is_probability_less_one_hot", "training.py",
                "shifted_BTV - shifted_BTV.exp().sum(dim=-1, keepdim=True).log()", "logits_BTV.log_softmax(-1)"),
    SourceFault("loss as Liger writes it", "loss_of_equal_logits_is_the_log_of_their_number", "training.py", NEGATIVE,
                "return (logits_BTV.logsumexp(-1) - logits_BTV.gather(-1, targets_BT[..., None])[..., 0]).mean()"),
    SourceFault("softmax of torch", "softmax_of_16_bits_is_within_its_bound", "attention.py",
                "return exponentials / exponentials.sum(dim=-1, keepdim=True)", "return torch.softmax(x, -1)"),
    SourceFault("softmax in float32", "attention_is_within_its_bound_at_any_shape", "attention.py",
                "softmax(scores_BHTT)", "softmax(scores_BHTT.float()).to(scores_BHTT.dtype)"),
    SourceFault("scaled queries", "attention_is_within_its_bound_across_blocks", "attention.py", SCORES,
                "(q_BHTK / math.sqrt(q_BHTK.shape[-1])) @ k_BHTK.transpose(-2, -1)"),
    SourceFault("mask by finfo.min", "first_token_is_seen_from_far_away", "attention.py", 'float("-inf")',
                "torch.finfo(scores_BHTT.dtype).min"),
    SourceFault("fused attention with a mask", "attention_is_within_its_bound_across_blocks", "attention.py", FUSED,
                FUSED.replace("is_causal=True", "attn_mask=causal_mask(q_BHTK.shape[-2], q_BHTK.device)")),
    SourceFault("fused silu", "swiglu_is_within_its_running_bound", "transformer.py", "gate_BTF * gate_BTF.sigmoid()",
                "nn.functional.silu(gate_BTF)"),
    SourceFault("product by einsum", "linear_rounds_once", "transformer.py", LINEAR,
                'return torch.einsum("...i,oi->...o", x, self.weight_OI)'),
    SourceFault("products in float64", "gradients_err_at_most_twice_the_plain_formula", "transformer.py", LINEAR,
                "return nn.functional.linear(x.double(), self.weight_OI.double()).to(x.dtype)"),
    SourceFault("embedding by index_select", "gradients_err_at_most_twice_the_plain_formula", "transformer.py",
                "nn.functional.embedding(tokens_BT, self.weight_VD)",
                "self.weight_VD.index_select(0, tokens_BT.flatten()).view(*tokens_BT.shape, -1)"),
)  # fmt: skip
"""Other ways to write a part, each with the claim that comes nearest to refusing it; none is a fault."""

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
