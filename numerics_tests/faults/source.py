"""Faults in the source of `model/`: what a slip of the pen there would be."""

from numerics_tests.planted_source import SourceFault

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
VISIBLE = "return position_T[:, None] >= position_T[None, :]"
IN_A_WINDOW = f"{VISIBLE} & (position_T[:, None] - position_T[None, :] < 64)"
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

TABLE = "precisions_are_what_their_names_say"
SOURCE_FAULTS = (
    SourceFault("update clips each tensor alone", "update_clips_to_norm_one_and_steps", "training.py", CLIP,
                CLIP_EACH_ALONE),
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
)  # fmt: skip
