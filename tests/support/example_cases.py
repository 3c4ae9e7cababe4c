"""Small cases and shapes that the tests of the tools share."""

from dataclasses import replace

import torch
from torch import Tensor

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.hardware.limits import Ceilings

TOY = ModelConfig(d_model=16, d_ff=24, num_layers=2, num_heads=2, vocab_size=37, context_length=8)
"""Small enough to be built and run in milliseconds."""

CPU = torch.device("cpu")

CEILINGS = Ceilings(
    name="a planted machine",
    matmul_flops_per_second={"fp32": 1e11},
    bytes_per_second=2e10,
    launch_seconds=1e-5,
    backward_launch_seconds=2e-5,
    bare_launch_seconds=5e-6,
    loop_launch_seconds=5e-6,
    launches_overlap=False,
    source="planted",
)

SETTINGS = Settings(
    device="cpu", sizes=("tiny",), contexts=(8,), precisions=("fp32",), attentions=("naive",), executions=("eager",),
    checkpoints=("none",), phases=("forward", "backward"), head_dims=(), sequence_lengths=(),
    attention_alone_precisions=(), attention_alone_implementations=(), batch_sizes=(1,),
    vocab_size=None, warmup_rounds=1, rounds=1, attention_alone_rounds=1, threads=1, seed=1, optimizer="default",
    memory_budget_bytes=None, model=None, model_arguments=(), passes=(), memory_snapshot=False, nvtx=False,
)  # fmt: skip
"""Forward and backward passes of the smallest model, one round each."""


def language_model_case(config: ModelConfig = TOY, **changes: object) -> LanguageModelCase:
    """A forward pass of the reference model in float32 on the CPU, save for `changes`."""
    case = LanguageModelCase(
        phase="forward", size="toy", config=config, context_length=config.context_length, batch_size=2,
        precision="fp32", attention="naive", execution="eager", checkpoint="none", optimizer=None,
        device="cpu", model="ours",
    )  # fmt: skip
    return replace(case, **changes)  # type: ignore[arg-type]


def attention_case(**changes: object) -> AttentionCase:
    """A forward pass of attention alone in float32 on the CPU, save for `changes`."""
    case = AttentionCase("attention_forward", 16, 256, batch_size=8, precision="fp32", attention="naive", device="cpu")
    return replace(case, **changes)  # type: ignore[arg-type]


def build(config: ModelConfig = TOY, attention: str = "naive", checkpoint: str = "none") -> TransformerLM:
    """The same weights for every attention and checkpoint."""
    torch.manual_seed(0)
    return TransformerLM(config, ATTENTION[attention].build(), checkpoint)


def random_tokens(config: ModelConfig = TOY, batch_size: int = 2) -> Tensor:
    """int64 (batch, context), the same in every call."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (batch_size, config.context_length), generator=generator)
