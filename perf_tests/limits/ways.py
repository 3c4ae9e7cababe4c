"""The ways in which ranks can share a training step: their names, and what follows from each. No torch.

`model.parallel` has each as a function, and is imported late: earlier revisions of `model`, which the gate measures,
lack it.
"""

VARIANTS = ("ddp-naive", "ddp-flat", "ddp", "zero1", "fsdp2", "fsdp2-bf16")
AFTERWARDS = ("ddp-naive", "ddp-flat")
"""Exchange gradients after the backward pass."""
BUCKETED = ("ddp", "zero1")
"""Exchange them in DDP's buckets, while the backward pass still computes."""
SHARDED = ("fsdp2", "fsdp2-bf16")
"""Keep slices of weights, gradients and moments."""
IN_BFLOAT16 = ("fsdp2-bf16",)
"""Send and add gradients in 16 bits, the others in 32."""
