"""Every option of the command line, and how pytest is told of it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import model.compilation
from model.attention import ATTENTION
from model.device import device_named
from model.precision import PRECISIONS
from model.sizes import SIZES
from model.training import OPTIMIZERS
from perf_tests.limits.communication import COLLECTIVES
from perf_tests.options.names import attentions, checkpoints, optimizer, own_arguments, own_model
from perf_tests.options.shapes import sizes
from perf_tests.options.values import (
    Parse,
    as_typed,
    byte_count,
    byte_counts,
    minutes,
    one_of,
    share,
    some_of,
    thread_count,
    whole_number,
    whole_numbers,
)
from perf_tests.phases import LABELS, ZERO_GRAD
from perf_tests.ranks import sharing

CONTEXTS = (128, 256, 512, 1024)
CHECKPOINTS = ("none", "attention", "block")
# Earlier revisions of `model`, which the gate measures too, have no such modes.
CUDA_GRAPH_EXECUTIONS: tuple[str, ...] = getattr(model.compilation, "CUDA_GRAPH_MODES", ())
EXECUTIONS = ("eager", "compiled", *CUDA_GRAPH_EXECUTIONS)
HEAD_DIMS = (16, 32, 64, 128)
MESSAGE_BYTES, GPU_MESSAGE_BYTES = (64_000, 1_000_000, 4_000_000, 16_000_000), (10**6, 10**7, 10**8, 10**9)
SEQUENCE_LENGTHS = (256, 1024, 4096, 8192, 16384)

PASSES = {"kernels": "--kernels", "memory": "--memory", "warmup": "--warmup-study"}
"""Extra passes over the cases, each with its option; none of them produces a timing."""


@dataclass(frozen=True)
class Option:
    """One option of the command line, its default in words; a switch where `parse` is None."""

    name: str
    text: str
    default: str = ""
    parse: Parse | None = None
    metavar: str = ""
    typed_by_default: str | None = None
    """The text that `getoption` returns where nothing was typed."""
    is_repeatable: bool = False


OPTIONS = (
    Option("--device", "device: auto, cpu, cuda or cuda:N", "auto", lambda _, text: device_named(text),
           typed_by_default="auto"),
    Option("--size", f"model sizes: {', '.join(SIZES)}, or [NAME=]D_MODELxD_FFxLAYERSxHEADS",
           "small on a CPU, small to 2.7B on a GPU", sizes),
    Option("--vocab-size", "tokens in the vocabulary of each size", "10000", whole_number),
    Option("--context", "context lengths in tokens", "128 on a CPU, 128 to 1024 on a GPU",
           partial(whole_numbers, CONTEXTS)),
    Option("--precision", f"precisions: {', '.join(PRECISIONS)}",
           "fp32 and, where native, bf16; attention alone on a CPU fp32", partial(some_of, PRECISIONS)),
    Option("--attention", f"attention implementations: {', '.join(ATTENTION)}, or your own as FILE.py:FUNCTION or "
           "MODULE:FUNCTION", "naive in models; alone naive, compiled, sdpa", attentions),
    Option("--execution", f"execution of the whole model: {', '.join(EXECUTIONS)}", "eager",
           partial(some_of, EXECUTIONS)),
    Option("--checkpoint", "activation checkpointing: none, attention, block or a number of blocks", "none",
           partial(checkpoints, CHECKPOINTS)),
    Option("--phase", f"phases: {', '.join(LABELS)}", "forward, backward, full_step on a CPU, all on a GPU",
           partial(some_of, LABELS)),
    Option("--head-dim", "head widths of attention alone", "16,64 on a CPU, all on a GPU",
           partial(whole_numbers, HEAD_DIMS)),
    Option("--sequence-length", "sequence lengths of attention alone", "256,1024 on a CPU, all on a GPU",
           partial(whole_numbers, SEQUENCE_LENGTHS)),
    Option("--batch-size", "sequences per batch of a language model", "4", partial(whole_numbers, (4,))),
    Option("--warmup-rounds",
           "unmeasured rounds before the measured ones; a GPU gets more until it has worked for 0.3 s", "5",
           partial(whole_number, least=0)),
    Option("--rounds", "measured rounds of each case", "10; attention alone on a GPU 100", whole_number),
    Option("--threads", "CPU threads of PyTorch", "all physical cores", thread_count),
    Option("--seed", "seed of weights and inputs", "2027", partial(whole_number, least=0, most=2**63 - 1)),
    Option("--cold-cache", "attention alone: flush the last-level cache before each measured round"),
    Option("--optimizer", f"AdamW implementation: {', '.join(OPTIMIZERS)}; or your own optimizer: MODULE:FACTORY or "
           "FILE.py:FACTORY, where FACTORY(named_parameters) returns a torch.optim.Optimizer",
           "AdamW as PyTorch runs it on the device", optimizer),
    Option("--zero-grad", f"full_step: when gradients are cleared: {', '.join(ZERO_GRAD)}", "before-forward",
           partial(one_of, ZERO_GRAD)),
    Option("--memory-budget", "memory limit, for example 12GiB", "free memory, less 2 GiB on a GPU", byte_count),
    Option("--model", "measure your own model: MODULE:FACTORY or FILE.py:FACTORY, where FACTORY(config) returns an "
           "nn.Module, or hf:CONFIG.json", "the suite's model", own_model),
    Option("--model-arg", "an argument of the factory of --model, or a value of the configuration; repeatable",
           parse=own_arguments, metavar="NAME=VALUE", is_repeatable=True),
    Option("--parallel", f"under torchrun: how ranks share a language model: {', '.join(sharing.PARALLEL)}", "none",
           partial(some_of, sharing.PARALLEL)),
    Option("--world", "with --parallel: ranks of a case, the first of those started", "all of them",
           partial(whole_numbers, ())),
    Option("--scaling", "with --parallel: strong divides the batch among the ranks, weak gives each a whole one",
           "strong", partial(some_of, sharing.SCALING)),
    Option("--bucket-mb", "with ddp and zero1: MiB of gradients in one all-reduce", "PyTorch's, 25",
           partial(whole_numbers, (1, 25, 100))),
    Option("--reshard", "with fsdp2: whether a block's parameters are freed after its forward pass: yes, no", "yes",
           partial(some_of, ("yes", "no"))),
    Option("--collective", f"under torchrun: time collectives alone: {', '.join(COLLECTIVES)}",
           "none; all of them with --message-size", partial(some_of, COLLECTIVES)),
    Option("--message-size", "with --collective: bytes of a message, for example 1MB,100MB",
           "64KB,1MB,4MB,16MB on a CPU, 1MB to 1GB on a GPU", partial(byte_counts, GPU_MESSAGE_BYTES)),
    Option("--kernels",
           "also trace each case after the timings: kernels, launches, gaps, one attention layer by part"),
    Option("--memory", "also examine the memory of each case in its own process: peaks, saved tensors, largest blocks; "
           "of full_step also the first step"),
    Option("--warmup-study",
           "also study the warm-up of each case in fresh processes: rounds needed, cost of the first round"),
    Option("--memory-snapshot", "save a memory snapshot of each case for pytorch.org/memory_viz; implies --memory"),
    Option("--nvtx", "run each case with NVTX ranges for Nsight Systems; times and saves nothing"),
    Option("--resume", "resume the interrupted run"),
    Option("--resume-any-driver", "with --resume: also a run that another NVIDIA driver began"),
    Option("--retry", "with --resume: measure the cases again that failed, timed out or ended their process"),
    Option("--time-limit",
           "end between cases, before the one that would end after this many minutes, and keep the rest for --resume; "
           "with --against or --benchmark-compare-fail cases left exit with 4, or with 1 for a regression",
           "none", minutes, "MINUTES"),
    Option("--shard", "measure share K of N of the grid, whole models at a time; `merge` joins the records",
           "the whole grid", share, "K/N"),
    Option("--update-counters", "rewrite the ledger of exact counters"),
    Option("--against", "gate: measure the working tree interleaved with this git revision, one verdict per case",
           parse=as_typed, metavar="REV"),
    Option("--against-option", "gate: base runs with this value of an axis, for example attention=sdpa",
           parse=as_typed, metavar="AXIS=VALUE"),
    Option("--against-python", "gate: base runs under this interpreter, whose torch may be another",
           parse=as_typed, metavar="PYTHON"),
    Option("--gate-minutes", "gate: measure for at most this many minutes", "15", minutes, "MINUTES"),
    Option("--gate-undecided", "gate: an undecided case counts as pass or fail", "pass",
           partial(one_of, ("pass", "fail")), "VERDICT"),
    Option("--gate-summary", "gate: also write the verdicts to this file as Markdown", parse=as_typed, metavar="FILE"),
)  # fmt: skip
"""Every option of the suite, in the order of its help."""


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("transformer performance", "Transformer performance suite (lists take commas, or all)")
    for option in OPTIONS:
        if option.parse is None:
            group.addoption(option.name, action="store_true", help=option.text)
            continue
        metavar = option.metavar or option.name.strip("-").upper().replace("-", "_")
        text = f"{option.text} (default: {option.default})" if option.default else option.text
        action = "append" if option.is_repeatable else "store"
        group.addoption(option.name, action=action, default=option.typed_by_default, metavar=metavar, help=text)


_PARSE = {option.name: option.parse for option in OPTIONS}


def typed_or(config: pytest.Config, name: str, default: Any) -> Any:
    """The value typed for an option, else `default`; raises pytest.UsageError naming the option."""
    text, parse = config.getoption(name), _PARSE[name]
    if text is None or parse is None:
        return default
    try:
        return parse(name, "\n".join(text) if isinstance(text, list) else str(text))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
