"""How large the compressed trace of a full step of the large model is, as the kernel pass keeps it.

A trace has its events by operation, not by element. So the large model is traced with all its layers and heads and a
fraction of its width, which takes no memory to speak of, and what the narrow shapes leave out, digits, is the ratio of
the small model's own trace to that of the small model made as narrow. A GPU's trace has its kernels and calls besides.
"""

import argparse
import gzip
import sys
from dataclasses import replace

import torch

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.sizes import SIZES, ModelConfig
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.instruments.device import CpuDevice
from perf_tests.instruments.kernels import TRACED_ROUNDS, trace_rounds
from perf_tests.measures.rounds import Rounds
from perf_tests.measures.traced import COMPRESSION_LEVEL
from perf_tests.options import physical_cores
from perf_tests.proofs.verdict import conclude, conditions

LIMIT_BYTES = 20_000_000
BATCH_SIZE = 4
CPU = torch.device("cpu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="large")
    parser.add_argument("--checked-on", default="small", help="a size that fits, traced whole and narrow")
    parser.add_argument("--context", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(physical_cores())
    print(conditions(torch.get_num_threads()))
    whole = SIZES[arguments.checked_on].at_context(arguments.context)
    ratio = printed_bytes(arguments.checked_on, whole) / printed_bytes(f"narrow {arguments.checked_on}", narrow(whole))
    of_size = narrow(SIZES[arguments.size].at_context(arguments.context))
    expected = printed_bytes(f"narrow {arguments.size}", of_size) * ratio
    print(f"{arguments.size}, whole: {expected / 1e6:.2f} MB, with the same ratio of whole to narrow, {ratio:.3f}")
    claim = (
        f"the trace of {TRACED_ROUNDS} full steps of {arguments.size} is below {LIMIT_BYTES / 1e6:.0f} MB compressed"
    )
    return conclude(claim, expected < LIMIT_BYTES)


def narrow(config: ModelConfig) -> ModelConfig:
    """The same layers and heads, two elements to a head."""
    return replace(config, d_model=2 * config.num_heads, d_ff=8 * config.num_heads)


def printed_bytes(name: str, config: ModelConfig) -> int:
    size = trace_bytes(config)
    print(f"{name}: {config.num_layers} layers, d_model {config.d_model}: {size / 1e6:.2f} MB compressed", flush=True)
    return size


def trace_bytes(config: ModelConfig) -> int:
    """Of the traced rounds of a full step, compressed as the kernel pass does."""
    torch.manual_seed(0)
    training = Training(TransformerLM(config, ATTENTION["naive"].build()), PRECISIONS["fp32"], CPU)
    tokens_BT = torch.randint(config.vocab_size, (BATCH_SIZE, config.context_length))
    training.create_optimizer_state()
    traced = trace_rounds(Rounds(lambda: training.step(tokens_BT, tokens_BT)).play, CpuDevice(CPU))
    return len(gzip.compress(traced.trace, COMPRESSION_LEVEL))


if __name__ == "__main__":
    sys.exit(main())
