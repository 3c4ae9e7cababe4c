"""What a user types, checked once: a table of options in, one frozen `Settings` out."""

import importlib.util
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from model.attention import ATTENTION
from model.device import device_named
from model.precision import PRECISIONS
from model.sizes import SIZES
from model.training import OPTIMIZERS
from model.transformer import blocks_per_checkpoint
from perf_tests.instruments.cores import processor_of_each_core
from perf_tests.instruments.nvtx_ranges import why_no_ranges
from perf_tests.phases import PHASES

PHASE_LABELS = tuple(dict.fromkeys(phase.label for phase in PHASES.values()))
CONTEXTS = (128, 256, 512, 1024)
CHECKPOINTS = ("none", "attention", "block")
EXECUTIONS = ("eager", "compiled")
HEAD_DIMS = (16, 32, 64, 128)
SEQUENCE_LENGTHS = (256, 1024, 4096, 8192, 16384)
GPU_SIZES = ("small", "medium", "large", "xl", "2.7B")
SIZES_APART = ("tiny", "small-2layers")
"""Sizes that are no part of `all`: one for smoke tests, one for the gate."""
GATE_SIZE = "small-2layers"

PASSES = {"kernels": "--kernels", "memory": "--memory", "warmup": "--warmup-study"}
"""Extra passes over the cases, each with its option; what they find is never a timing."""

Parse = Callable[[str, str], Any]
"""An option's name and what was typed to its value; raises ValueError with one sentence."""


def as_typed(option: str, text: str) -> str:
    return text


def one_of(known: Collection[str], option: str, text: str, next_step: str = "") -> str:
    if text not in known:
        raise ValueError(f"{option} {text!r} is not known; choose among {', '.join(known)}{next_step}.")
    return text


def some_of(known: Collection[str], option: str, text: str, apart: Collection[str] = ()) -> tuple[str, ...]:
    """A list with commas, in the order of `known` whatever the order of typing; `all` is without those `apart`."""
    if text == "all":
        return tuple(name for name in known if name not in apart)
    chosen = {one_of(known, option, name.strip(), ", or all") for name in text.split(",")}
    return tuple(name for name in known if name in chosen)


def whole_number(option: str, text: str, least: int = 1) -> int:
    if not re.fullmatch(r"-?\d+", text.strip()):
        raise ValueError(f"{option} {text!r} is not a whole number; give it without a unit, at least {least}.")
    if int(text) < least:
        raise ValueError(f"{option} is {int(text)}; it must be at least {least}.")
    return int(text)


def whole_numbers(everything: tuple[int, ...], option: str, text: str) -> tuple[int, ...]:
    """A list with commas, ascending, of any numbers from 1."""
    if text == "all":
        return everything
    return tuple(sorted({whole_number(option, item) for item in text.split(",")}))


def checkpoints(everything: Sequence[str], option: str, text: str) -> tuple[str, ...]:
    """A list with commas, as typed."""
    if text == "all":
        return tuple(everything)
    chosen = tuple(dict.fromkeys(item.strip() for item in text.split(",")))
    for item in chosen:
        blocks_per_checkpoint(item)
    return chosen


def thread_count(option: str, text: str) -> int:
    threads, logical = whole_number(option, text), len(os.sched_getaffinity(0))
    if threads > logical:
        raise ValueError(f"{option} is {threads}; this process may use at most {logical}.")
    return threads


def byte_count(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KiB|MiB|GiB)", text.strip())
    if match is None:
        raise ValueError(f"{option} {text!r} is not an amount of memory; write it like 12GiB or 800MB.")
    unit = match[2]
    factor = 1024 if "i" in unit else 1000
    return int(float(match[1]) * factor ** "BKMG".index(unit[0]))


def minutes(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise ValueError(f"{option} {text!r} is no time; give a number of minutes above 0.")
    return value


def model_factory(option: str, text: str) -> str:
    module, _, factory = text.partition(":")
    if not module or not factory:
        raise ValueError(f"{option} {text!r} names no factory; write it like package.module:build_model.")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{option} {text!r}: module {module!r} cannot be imported: {error}.") from error
    if found is None:
        raise ValueError(f"{option} {text!r}: there is no module {module!r} on the path; put its folder on PYTHONPATH.")
    return text


@dataclass(frozen=True)
class Option:
    """One option of the command line; `default` in words. Without `parse` it is a switch."""

    name: str
    text: str
    default: str = ""
    parse: Parse | None = None
    metavar: str = ""
    typed_by_default: str | None = None
    """For an option that others read as it is typed."""

    def add_to(self, group: pytest.OptionGroup) -> None:
        if self.parse is None:
            group.addoption(self.name, action="store_true", help=self.text)
            return
        metavar = self.metavar or self.name.strip("-").upper().replace("-", "_")
        text = f"{self.text} (default: {self.default})" if self.default else self.text
        group.addoption(self.name, default=self.typed_by_default, metavar=metavar, help=text)


OPTIONS = (
    Option("--device", "where to run: auto, cpu, cuda or cuda:N", "auto", lambda _, text: device_named(text),
           typed_by_default="auto"),
    Option("--size", "model sizes", "small on a CPU, small to 2.7B on a GPU",
           partial(some_of, SIZES, apart=SIZES_APART)),
    Option("--context", "context lengths in tokens", "128 on a CPU, 128 to 1024 on a GPU",
           partial(whole_numbers, CONTEXTS)),
    Option("--precision", ", ".join(PRECISIONS), "fp32 and, where native, bf16", partial(some_of, PRECISIONS)),
    Option("--attention", ", ".join(ATTENTION), "naive in models; alone naive, compiled, sdpa",
           partial(some_of, ATTENTION)),
    Option("--execution", f"{', '.join(EXECUTIONS)}: the whole model", "eager", partial(some_of, EXECUTIONS)),
    Option("--checkpoint", "none, attention, block or a number of blocks: activations recomputed", "none",
           partial(checkpoints, CHECKPOINTS)),
    Option("--phase", ", ".join(PHASE_LABELS), "forward, backward, full_step on a CPU, all on a GPU",
           partial(some_of, PHASE_LABELS)),
    Option("--head-dim", "head widths of attention alone", "16,64 on a CPU, all on a GPU",
           partial(whole_numbers, HEAD_DIMS)),
    Option("--sequence-length", "sequence lengths of attention alone", "256,1024 on a CPU, all on a GPU",
           partial(whole_numbers, SEQUENCE_LENGTHS)),
    Option("--batch-size", "sequences in a batch of the language models", "4", whole_number),
    Option("--warmup-rounds", "unmeasured rounds before the measured ones", "5", partial(whole_number, least=0)),
    Option("--rounds", "measured rounds", "10; attention alone on a GPU 100", whole_number),
    Option("--threads", "CPU threads of PyTorch", "all physical cores", thread_count),
    Option("--seed", "seed of weights and inputs", "2027", partial(whole_number, least=0)),
    Option("--optimizer", f"AdamW as {', '.join(OPTIMIZERS)}", "PyTorch's choice for the device",
           partial(one_of, OPTIMIZERS)),
    Option("--memory-budget", "memory that may be used, for example 12GiB", "what is free", byte_count),
    Option("--model", "MODULE:FACTORY, a model of your own: factory(config) -> nn.Module", "ours", model_factory),
    Option("--kernels",
           "also trace each case, after the timings: kernels, launches, gaps, one attention layer by part"),
    Option("--memory",
           "also examine the memory of each case, in a process of its own: peaks, what is saved, what holds it"),
    Option("--warmup-study",
           "also study each case in fresh processes: how many warm-up rounds it needs, and what the first costs"),
    Option("--memory-snapshot", "write a snapshot of each case for memory_viz; implies --memory"),
    Option("--nvtx", "run each case with NVTX ranges for Nsight Systems; time and save nothing"),
    Option("--resume", "resume an interrupted run"),
    Option("--update-counters", "rewrite the ledger of exact counters"),
    Option("--against", "gate: measure the working tree in turns with this git revision, and judge each case",
           parse=as_typed, metavar="REV"),
    Option("--against-option", "gate: run base with another value, like attention=sdpa",
           parse=as_typed, metavar="AXIS=VALUE"),
    Option("--gate-minutes", "how long the gate may measure", "15", minutes, "MINUTES"),
    Option("--gate-undecided", "what an undecided case counts as: pass or fail", "pass",
           partial(one_of, ("pass", "fail")), "VERDICT"),
    Option("--gate-summary", "write the gate's verdicts as Markdown", parse=as_typed, metavar="FILE"),
)  # fmt: skip
"""Every option of the suite, in the order of its help."""

_PARSE = {option.name: option.parse for option in OPTIONS}


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
    for option in OPTIONS:
        option.add_to(group)


def typed_or(config: pytest.Config, name: str, default: Any) -> Any:
    """The value of what was typed for an option, else `default`. Raises ValueError naming the option at fault."""
    text, parse = config.getoption(name), _PARSE[name]
    return default if text is None or parse is None else parse(name, str(text))


def read_settings(config: pytest.Config) -> Settings:
    """The options of this run with their defaults filled in; raises pytest.UsageError naming the option at fault."""
    try:
        return _read_settings(config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _read_settings(config: pytest.Config) -> Settings:
    device = typed_or(config, "--device", None)
    on_gpu = device.type == "cuda"

    def given(name: str, on_cpu: Any, otherwise: Any = None) -> Any:
        """What was typed, else the default; `otherwise` is that of a GPU, where it has another."""
        return typed_or(config, name, otherwise if on_gpu and otherwise is not None else on_cpu)

    native = tuple(name for name in ("fp32", "bf16") if PRECISIONS[name].why_unsupported(device) is None)
    model = given("--model", None)
    attentions = given("--attention", ("naive",))
    return Settings(
        device=str(device),
        sizes=given("--size", _cpu_sizes(config), GPU_SIZES),
        contexts=given("--context", (128,), CONTEXTS),
        precisions=given("--precision", native),
        # The attention inside a model of the user's own is not ours to choose.
        attentions=attentions if model is None else ("own",),
        executions=given("--execution", ("eager",)),
        checkpoints=given("--checkpoint", ("none",)),
        phases=given("--phase", ("forward", "backward", "full_step"), PHASE_LABELS),
        head_dims=given("--head-dim", (16, 64), HEAD_DIMS),
        sequence_lengths=given("--sequence-length", (256, 1024), SEQUENCE_LENGTHS),
        attention_alone_precisions=given("--precision", ("fp32",)),
        attention_alone_implementations=given("--attention", ("naive", "compiled", "sdpa")),
        batch_size=given("--batch-size", 4),
        warmup_rounds=given("--warmup-rounds", 5),
        rounds=given("--rounds", 10),
        attention_alone_rounds=given("--rounds", 10, 100),
        threads=given("--threads", None) or physical_cores(),
        seed=given("--seed", 2027),
        optimizer=given("--optimizer", "default"),
        memory_budget_bytes=given("--memory-budget", None),
        model=model,
        passes=_passes(config),
        memory_snapshot=config.getoption("--memory-snapshot"),
        nvtx=_nvtx(config),
    )


def _cpu_sizes(config: pytest.Config) -> tuple[str, ...]:
    """A gate measures everything dozens of times, and on a CPU the whole of `small` would take it an hour."""
    is_gate = config.getoption("--against") is not None or config.getoption("--against-option") is not None
    return (GATE_SIZE,) if is_gate else ("small",)


def physical_cores() -> int:
    """How many cores this process may run on, a core with two hardware threads counted once."""
    return len(processor_of_each_core())


def _passes(config: pytest.Config) -> tuple[str, ...]:
    implied = {"memory"} if config.getoption("--memory-snapshot") else set()
    return tuple(name for name, option in PASSES.items() if config.getoption(option) or name in implied)


def _nvtx(config: pytest.Config) -> bool:
    if not config.getoption("--nvtx"):
        return False
    others = [PASSES[name] for name in _passes(config)]
    if others:
        raise ValueError(f"--nvtx is for a run that another profiler watches; drop it, or drop {' and '.join(others)}.")
    reason = why_no_ranges()
    if reason is not None:
        raise ValueError(reason)
    return True
