"""What a user types, checked once: command-line options in, one frozen `Settings` out."""

import importlib.util
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from model.attention import ATTENTION
from model.device import device_named
from model.precision import PRECISIONS
from model.sizes import SIZES
from model.training import OPTIMIZERS
from model.transformer import blocks_per_checkpoint
from perf_tests.instruments.cores import processor_of_each_core
from perf_tests.instruments.nvtx_ranges import why_no_ranges

PHASES = ("inference", "forward", "backward", "forward_backward", "optimizer", "full_step")
CONTEXTS = (128, 256, 512, 1024)
CHECKPOINTS = ("none", "attention", "block")
EXECUTIONS = ("eager", "compiled")
HEAD_DIMS = (16, 32, 64, 128)
SEQUENCE_LENGTHS = (256, 1024, 4096, 8192, 16384)
GPU_SIZES = ("small", "medium", "large", "xl", "2.7B")
SIZES_APART = ("tiny", "small-2layers")
"""Sizes that are no part of `all`: one for smoke tests, one for the gate."""
GATE_SIZE = "small-2layers"

PASSES = {
    "kernels": "also trace each case, after the timings: kernels, launches, gaps, one attention layer by part",
    "memory": "also examine the memory of each case, in a process of its own: peaks, what is saved, who holds what",
    "warmup": "also study each case in fresh processes: how many warm-up rounds it needs, and what the first costs",
}
"""Extra passes over the cases, each an option of its name; what they find is never a timing."""
OPTION_OF_PASS = {"warmup": "--warmup-study"}
"""Where a pass's own name would say too little, or too much like another option's."""


@dataclass(frozen=True)
class Settings:
    """One run: which cases, and how each is measured."""

    device: str
    sizes: tuple[str, ...]
    contexts: tuple[int, ...]
    precisions: tuple[str, ...]
    attentions: tuple[str, ...]
    executions: tuple[str, ...]
    checkpoints: tuple[str, ...]
    phases: tuple[str, ...]
    head_dims: tuple[int, ...]
    sequence_lengths: tuple[int, ...]
    attention_alone_precisions: tuple[str, ...]
    attention_alone_implementations: tuple[str, ...]
    batch_size: int
    warmup_rounds: int
    rounds: int
    attention_alone_rounds: int
    threads: int
    seed: int
    optimizer: str
    memory_budget_bytes: int | None
    model: str | None
    passes: tuple[str, ...]
    memory_snapshot: bool
    nvtx: bool

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("transformer performance", "Transformer performance suite (lists take commas, or all)")
    texts = {
        "--size": "model sizes (default: small on a CPU, small to 2.7B on a GPU)",
        "--context": "context lengths in tokens (default: 128 on a CPU, 128 to 1024 on a GPU)",
        "--precision": "fp32, tf32, bf16, fp16, fp16-unscaled (default: fp32 and, where native, bf16)",
        "--attention": "naive, compiled, sdpa, flex (default: naive in models; alone naive, compiled, sdpa)",
        "--execution": "eager, compiled: the whole model (default: eager)",
        "--checkpoint": "none, attention, block or a number of blocks: activations recomputed (default: none)",
        "--phase": f"{', '.join(PHASES)} (default: forward, backward, full_step on a CPU, all on a GPU)",
        "--head-dim": "head widths of attention alone (default: 16,64 on a CPU, all on a GPU)",
        "--sequence-length": "sequence lengths of attention alone (default: 256,1024 on a CPU, all on a GPU)",
        "--batch-size": "sequences in a batch of the language models (default: 4)",
        "--warmup-rounds": "unmeasured rounds before the measured ones (default: 5)",
        "--rounds": "measured rounds (default: 10; attention alone on a GPU 100)",
        "--threads": "CPU threads of PyTorch (default: all physical cores)",
        "--seed": "of weights and inputs (default: 2027)",
        "--optimizer": "AdamW as default, loop, foreach or fused (default: PyTorch's choice for the device)",
        "--memory-budget": "what may be used, for example 12GiB (default: what is free)",
        "--model": "MODULE:FACTORY, a model of your own: factory(config) -> nn.Module (default: ours)",
    }
    group.addoption(
        "--device", default="auto", metavar="DEVICE", help="where to run: auto, cpu, cuda or cuda:N (default: auto)"
    )
    for name, text in texts.items():
        group.addoption(name, default=None, metavar=name.strip("-").upper().replace("-", "_"), help=text)
    for name, text in PASSES.items():
        group.addoption(option_of_pass(name), action="store_true", help=text)
    group.addoption(
        "--memory-snapshot", action="store_true", help="with --memory, which it implies: a snapshot for memory_viz"
    )
    group.addoption(
        "--nvtx", action="store_true", help="run each case with NVTX ranges for Nsight Systems, time and save nothing"
    )
    group.addoption("--resume", action="store_true", help="go on with an interrupted run")
    group.addoption("--update-counters", action="store_true", help="write the ledger of exact counters anew")
    gate = {
        "--against": ("REV", "gate: measure the working tree in turns with this git revision, and judge each case"),
        "--against-option": ("AXIS=VALUE", "gate: base runs with another value, like attention=sdpa"),
        "--gate-minutes": ("MINUTES", "how long the gate may measure (default: 15)"),
        "--gate-undecided": ("VERDICT", "what an undecided case counts as: pass or fail (default: pass)"),
        "--gate-summary": ("FILE", "write the gate's verdicts as Markdown"),
    }
    for name, (metavar, text) in gate.items():
        group.addoption(name, default=None, metavar=metavar, help=text)


def option_of_pass(name: str) -> str:
    return OPTION_OF_PASS.get(name, f"--{name.replace('_', '-')}")


def read_settings(config: pytest.Config) -> Settings:
    """The options of this run with their defaults filled in; raises pytest.UsageError naming the option at fault."""
    try:
        return _read_settings(config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _read_settings(config: pytest.Config) -> Settings:
    def typed(name: str) -> str | None:
        value = config.getoption(name)
        return value if value is None else str(value)

    def names(option: str, known: Iterable[str], default: tuple[str, ...]) -> tuple[str, ...]:
        return _names(option, typed(option), tuple(known), default)

    def numbers(option: str, known: tuple[int, ...], default: tuple[int, ...]) -> tuple[int, ...]:
        return _numbers(option, typed(option), known, default)

    def number(option: str, least: int, default: int) -> int:
        text = typed(option)
        return default if text is None else _number(option, text, least)

    device = device_named(config.getoption("--device"))
    on_gpu = device.type == "cuda"
    native = tuple(name for name in ("fp32", "bf16") if PRECISIONS[name].why_unsupported(device) is None)
    model = typed("--model")
    if model is not None:
        _check_model_name(model)
    sizes = names("--size", SIZES, GPU_SIZES if on_gpu else _cpu_sizes(config))
    if typed("--size") == "all":
        sizes = tuple(size for size in sizes if size not in SIZES_APART)
    return Settings(
        device=str(device),
        sizes=sizes,
        contexts=numbers("--context", CONTEXTS, CONTEXTS if on_gpu else (128,)),
        precisions=names("--precision", PRECISIONS, native),
        # The attention inside somebody else's model is theirs to choose.
        attentions=names("--attention", ATTENTION, ("naive",)) if model is None else ("own",),
        executions=names("--execution", EXECUTIONS, ("eager",)),
        checkpoints=_checkpoints(typed("--checkpoint")),
        phases=names("--phase", PHASES, PHASES if on_gpu else ("forward", "backward", "full_step")),
        head_dims=numbers("--head-dim", HEAD_DIMS, HEAD_DIMS if on_gpu else (16, 64)),
        sequence_lengths=numbers("--sequence-length", SEQUENCE_LENGTHS, SEQUENCE_LENGTHS if on_gpu else (256, 1024)),
        attention_alone_precisions=names("--precision", PRECISIONS, ("fp32",)),
        attention_alone_implementations=names("--attention", ATTENTION, ("naive", "compiled", "sdpa")),
        batch_size=number("--batch-size", 1, 4),
        warmup_rounds=number("--warmup-rounds", 0, 5),
        rounds=number("--rounds", 1, 10),
        attention_alone_rounds=number("--rounds", 1, 100 if on_gpu else 10),
        threads=_threads(typed("--threads")),
        seed=number("--seed", 0, 2027),
        optimizer=_names("--optimizer", typed("--optimizer"), OPTIMIZERS, ("default",))[0],
        memory_budget_bytes=_byte_count("--memory-budget", typed("--memory-budget")),
        model=model,
        passes=_passes(config),
        memory_snapshot=config.getoption("--memory-snapshot"),
        nvtx=_nvtx(config),
    )


def _cpu_sizes(config: pytest.Config) -> tuple[str, ...]:
    """A gate measures everything dozens of times, and on a CPU the whole of `small` would take it an hour."""
    is_gate = config.getoption("--against") is not None or config.getoption("--against-option") is not None
    return (GATE_SIZE,) if is_gate else ("small",)


def _names(option: str, text: str | None, known: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    """The chosen names in the order of `known`, so that the grid does not depend on the order of typing."""
    if text is None:
        return default
    if text == "all":
        return known
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise ValueError(f"{option} {name!r} is not known; choose among {', '.join(known)}, or all.")
    return tuple(name for name in known if name in chosen)


def _numbers(option: str, text: str | None, known: tuple[int, ...], default: tuple[int, ...]) -> tuple[int, ...]:
    if text is None:
        return default
    if text == "all":
        return known
    return tuple(sorted({_number(option, item, least=1) for item in text.split(",")}))


def _number(option: str, text: str, least: int) -> int:
    if not re.fullmatch(r"-?\d+", text.strip()):
        raise ValueError(f"{option} {text!r} is not a whole number; give one of at least {least}.")
    if int(text) < least:
        raise ValueError(f"{option} is {int(text)}; it must be at least {least}.")
    return int(text)


def _checkpoints(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ("none",)
    if text == "all":
        return CHECKPOINTS
    chosen = tuple(dict.fromkeys(item.strip() for item in text.split(",")))
    for item in chosen:
        blocks_per_checkpoint(item)
    return chosen


def _threads(text: str | None) -> int:
    if text is None:
        return physical_cores()
    threads = _number("--threads", text, least=1)
    logical = len(os.sched_getaffinity(0))
    if threads > logical:
        raise ValueError(f"--threads is {threads}; this process may use {logical} at most.")
    return threads


def physical_cores() -> int:
    """How many cores this process may run on, a core with two hardware threads counted once."""
    return len(processor_of_each_core())


def _byte_count(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KiB|MiB|GiB)", text.strip())
    if match is None:
        raise ValueError(f"{option} {text!r} is not an amount of memory; write it like 12GiB or 800MB.")
    unit = match[2]
    factor = 1024 if "i" in unit else 1000
    return int(float(match[1]) * factor ** "BKMG".index(unit[0]))


def _passes(config: pytest.Config) -> tuple[str, ...]:
    asked = {name for name in PASSES if config.getoption(option_of_pass(name))}
    if config.getoption("--memory-snapshot"):
        asked.add("memory")
    return tuple(name for name in PASSES if name in asked)


def _nvtx(config: pytest.Config) -> bool:
    if not config.getoption("--nvtx"):
        return False
    others = [option_of_pass(name) for name in _passes(config)]
    if others:
        raise ValueError(f"--nvtx is for a run that another profiler watches; drop it, or drop {' and '.join(others)}.")
    reason = why_no_ranges()
    if reason is not None:
        raise ValueError(reason)
    return True


def _check_model_name(text: str) -> None:
    module, _, factory = text.partition(":")
    if not module or not factory:
        raise ValueError(f"--model {text!r} names no factory; write it like package.module:build_model.")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise ValueError(f"--model {text!r}: module {module!r} cannot be imported: {error}.") from error
    if found is None:
        raise ValueError(f"--model {text!r}: there is no module {module!r} on the path; put its folder on PYTHONPATH.")
