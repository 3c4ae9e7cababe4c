"""Every option of the command line, and how pytest is told of it."""

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

import pytest

from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.perf_tests.cases import sharing
from perf_tests_suite.perf_tests.cases.gate_options import (
    GATE,
    TIME_LIMIT,
    Option,
    argparse_keywords,
    as_typed,
    one_of,
)
from perf_tests_suite.perf_tests.cases.model_names import (
    attention_names,
    blocks_per_checkpoint,
    precision_names,
    words,
)
from perf_tests_suite.perf_tests.hardware.limits import COLLECTIVES
from perf_tests_suite.perf_tests.phases import LABELS, ZERO_GRAD
from perf_tests_suite.perf_tests.user_code.given import (
    argument,
    check_configuration,
    is_configuration,
    is_user_function,
    label,
)
from perf_tests_suite.perf_tests.user_code.named import check_name

ATTENTION, PRECISIONS = (*attention_names(),), (*precision_names(),)
OPTIMIZERS = words("training.py", "OPTIMIZERS")

# Texts of the command line as values: numbers, amounts, lists; what is wrong is a ValueError of one sentence.


def entries(option: str, text: str) -> list[str]:
    """Split a comma-separated list. Raises ValueError."""
    found = [entry.strip() for entry in text.split(",")]
    if ";" in text:
        raise ValueError(f"{option} {text!r} has a semicolon; write values with commas in between.")
    if "" in found:
        raise ValueError(f"{option} {text!r} has an empty entry; write one value, or values with commas in between.")
    return found


def some_of(known: Collection[str], option: str, text: str, apart: Collection[str] = ()) -> tuple[str, ...]:
    """A comma-separated list, sorted as `known`; `all` leaves out those `apart`."""
    if text == "all":
        return tuple(name for name in known if name not in apart)
    chosen = {one_of(known, option, name, ", or all") for name in entries(option, text)}
    return tuple(name for name in known if name in chosen)


def refuse_doubled(option: str, what: str, names: Sequence[str]) -> None:
    """Refuse, by ValueError, names under which cases of two would have one id."""
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise ValueError(f"{option} names two {what} {doubled[0]!r}; give each a name of its own.")


def whole_number(option: str, text: str, least: int = 1, most: int = 10**9) -> int:
    if not re.fullmatch(r"-?\d+", text.strip()):
        raise ValueError(f"{option} {text!r} is not a whole number; give it without a unit, at least {least}.")
    number = int(text.strip()[:30])  # with more digits it is beyond any limit
    if number < least:
        raise ValueError(f"{option} is {number}; it must be at least {least}.")
    if number > most:
        raise ValueError(f"{option} {text!r} is too large; it must be at most {most}.")
    return number


def thread_count(option: str, text: str) -> int:
    threads, logical = whole_number(option, text), len(os.sched_getaffinity(0))
    if threads > logical:
        raise ValueError(f"{option} is {threads}; this process may use at most {logical}.")
    return threads


def byte_count(option: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KiB|MiB|GiB)", text.strip())
    if match is None:
        raise ValueError(f"{option} {text!r} is not an amount of memory; write, for example, 12GiB or 800MB.")
    factor = 1024 if "i" in match[2] else 1000
    count = float(match[1]) * factor ** "BKMG".index(match[2][0])
    if not 1 <= count < 2**63:
        raise ValueError(f"{option} {text!r} is {'less than a byte' if count < 1 else 'more than any machine has'}.")
    return int(count)


def _ascending(read: Callable[[str, str], int], everything: tuple[int, ...], option: str, text: str) -> tuple[int, ...]:
    """A comma-separated list of what is read one by one, smallest first."""
    return everything if text == "all" else tuple(sorted({read(option, item) for item in entries(option, text)}))


whole_numbers, byte_counts = partial(_ascending, whole_number), partial(_ascending, byte_count)
"""Lists of numbers from 1, and of amounts of memory."""


# Texts that name code: attention, checkpoints, optimizers, models and their arguments, ours or the user's.


def attentions(option: str, text: str) -> tuple[str, ...]:
    """Names of the table in its order, then functions of the user's as typed; of these `all` has none."""
    items = [] if text == "all" else entries(option, text)
    of_user = tuple(dict.fromkeys(item for item in items if is_user_function(item)))
    for item in of_user:
        check_name(option, item)
    refuse_doubled(option, "functions", [label(item) for item in of_user])
    forms = ", all, FILE.py:FUNCTION or MODULE:FUNCTION"
    known = [one_of(ATTENTION, option, item, forms) for item in items if item not in of_user]
    return (*(name for name in ATTENTION if text == "all" or name in known), *of_user)


def checkpoints(everything: Sequence[str], option: str, text: str) -> tuple[str, ...]:
    """A comma-separated list in the order typed."""
    if text == "all":
        return tuple(everything)
    chosen = tuple(dict.fromkeys(entries(option, text)))
    for item in chosen:
        blocks_per_checkpoint(item)
    return chosen


def check_checkpoints(chosen: Sequence[str], num_layers: int) -> None:
    """Refuse, by ValueError, more blocks in a checkpoint than the deepest model has; all of them are one checkpoint."""
    if (large := next((one for one in chosen if blocks_per_checkpoint(one) > num_layers), None)) is not None:
        raise ValueError(f"--checkpoint {large} is more blocks than a model has; give at most {num_layers}.")


def user_model(option: str, text: str) -> str:
    (check_configuration if is_configuration(text) else check_name)(option, text)
    return text


def optimizer(option: str, text: str) -> str:
    """How AdamW runs, or the name of a factory."""
    if ":" not in text:
        return one_of(OPTIMIZERS, option, text, ", or name a factory as MODULE:FACTORY or FILE.py:FACTORY")
    check_name(option, text)
    return text


def user_arguments(option: str, text: str) -> tuple[str, ...]:
    """One `name=value` a line: the option is repeatable."""
    lines = tuple(text.splitlines())
    counts = Counter(argument(line)[0] for line in lines)
    if (doubled := next((name for name, count in counts.items() if count > 1), None)) is not None:
        raise ValueError(f"{option} {doubled} is given twice; give it once.")
    return lines


# Sizes of models: known names, and shapes as typed.


SIZES_APART = ("tiny", "small-2layers")
"""Sizes that `all` leaves out: one for smoke tests, one for the gate."""


SHAPE = re.compile(r"(?:(?P<name>[A-Za-z][\w.]*)=)?(\d+)x(\d+)x(\d+)x(\d+)")


def sizes(option: str, text: str) -> tuple[str, ...]:
    """Known names and shapes of one's own, `192x768x3x4` or `wide=192x768x3x4`, smallest of each first."""
    if text == "all":
        return some_of(SIZES, option, text, SIZES_APART)
    chosen = set()
    for item in entries(option, text):
        match = SHAPE.fullmatch(item)
        if match is None:
            chosen.add(one_of(SIZES, option, item, ", all, or a shape as D_MODELxD_FFxLAYERSxHEADS"))
            continue
        if match["name"] in SIZES:
            raise ValueError(f"{option} {item!r} gives another shape the name of a known size; choose another name.")
        try:
            shape = shape_named(item)
        except ValueError as error:
            raise ValueError(f"{option} {item!r} is not a shape of a model: {error}") from error
        chosen.add(next((name for name, known in SIZES.items() if known == shape), item))
    shapes = sorted(chosen - SIZES.keys(), key=lambda item: (shape_named(item).parameters, item))
    refuse_doubled(option, "shapes", [size_label(item) for item in shapes])
    return (*(name for name in SIZES if name in chosen), *shapes)


def size_label(size: str) -> str:
    """The name of a size as typed: `wide` of `wide=192x768x3x4`."""
    return size.partition("=")[0]


def shape_named(size: str) -> ModelConfig:
    """The shape of a known name or of a shape as typed. Raises ValueError."""
    if size in SIZES:
        return SIZES[size]
    match = SHAPE.fullmatch(size)
    if match is None:
        raise ValueError(f"{size!r} is neither a known size nor a shape.")
    return ModelConfig(*(int(number) for number in match.groups()[1:]))


CONTEXTS = (128, 256, 512, 1024)
CHECKPOINTS = ("none", "attention", "block")
# Earlier revisions of `model`, which the gate measures too, have no such modes.
CUDA_GRAPH_EXECUTIONS: tuple[str, ...] = words("compilation.py", "CUDA_GRAPH_MODES")
EXECUTIONS = ("eager", "compiled", *CUDA_GRAPH_EXECUTIONS)
HEAD_DIMS = (16, 32, 64, 128)
MESSAGE_BYTES, GPU_MESSAGE_BYTES = (64_000, 1_000_000, 4_000_000, 16_000_000), (10**6, 10**7, 10**8, 10**9)
SEQUENCE_LENGTHS = (256, 1024, 4096, 8192, 16384)

PASSES = {"kernels": "--kernels", "memory": "--memory", "warmup": "--warmup-study"}
"""Extra passes over the cases, each with its option; none of them produces a timing."""


GROUPS: dict[str, tuple[Option, ...]] = {
    "what is measured": (
        Option("--device", "device: auto, cpu, cuda or cuda:N", "auto", as_typed,
               typed_by_default="auto"),
        Option("--size", f"model sizes: {', '.join(SIZES)}, or [NAME=]D_MODELxD_FFxLAYERSxHEADS",
               "small on a CPU, small-2layers with --against; small to 2.7B on a GPU", sizes),
        Option("--vocab-size", "tokens in the vocabulary of each size", "10000", whole_number),
        Option("--context", "context lengths in tokens", "128 on a CPU, 128 to 1024 on a GPU",
               partial(whole_numbers, CONTEXTS)),
        Option("--batch-size", "sequences per batch of a language model", "4", partial(whole_numbers, (4,))),
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
        Option("--optimizer", f"AdamW implementation: {', '.join(OPTIMIZERS)}; or your own optimizer: "
               "MODULE:FACTORY or FILE.py:FACTORY, where FACTORY(named_parameters) returns a torch.optim.Optimizer",
               "AdamW as PyTorch runs it on the device", optimizer),
        Option("--zero-grad", f"full_step: when gradients are cleared: {', '.join(ZERO_GRAD)}", "before-forward",
               partial(one_of, ZERO_GRAD)),
        Option("--model", "measure your own model: MODULE:FACTORY or FILE.py:FACTORY, where FACTORY(config) returns an "
               "nn.Module, or hf:CONFIG.json", "the suite's model", user_model),
        Option("--model-arg", "an argument of the factory of --model, or a value of the configuration; repeatable",
               parse=user_arguments, metavar="NAME=VALUE", is_repeatable=True),
    ),
    "how it is measured": (
        Option("--warmup-rounds",
               "unmeasured rounds before the measured ones; a GPU gets more until it has worked for 0.3 s", "5",
               partial(whole_number, least=0)),
        Option("--rounds", "measured rounds of each case", "10; attention alone on a GPU 100", whole_number),
        Option("--threads", "CPU threads of PyTorch", "all physical cores", thread_count),
        Option("--seed", "seed of weights; where typed, of the values in each round too, whose seed is drawn otherwise",
               "2027", partial(whole_number, least=0, most=2**63 - 1)),
        Option("--cold-cache", "attention alone: flush the last-level cache before each measured round"),
        Option("--memory-budget", "memory limit, for example 12GiB", "free memory, less 2 GiB on a GPU", byte_count),
        TIME_LIMIT,
        Option("--resume", "resume the interrupted run"),
        Option("--resume-any-driver", "also resume a run started under another NVIDIA driver"),
        Option("--retry", "with --resume: measure again what failed, timed out or ended its process"),
    ),
    "passes beside the timings": (
        Option("--kernels",
               "also trace each case after the timings: kernels, launches, gaps, one attention layer by part"),
        Option("--memory", "also examine the memory of each case in its own process: peaks, saved tensors, largest "
               "blocks; of full_step also the first step"),
        Option("--memory-snapshot", "save a memory snapshot of each case for pytorch.org/memory_viz; implies --memory"),
        Option("--warmup-study",
               "also study the warm-up of each case in fresh processes: rounds needed, cost of the first round"),
        Option("--nvtx", "run each case with NVTX ranges for Nsight Systems; times and saves nothing"),
        Option("--update-counters", "accept the current exact counters as expected values"),
    ),
    "gate": GATE,
    "ranks, under torchrun": (
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
               "none; with --message-size, all three", partial(some_of, COLLECTIVES)),
        Option("--message-size", "with --collective: bytes of a message, for example 1MB,100MB",
               "64KB,1MB,4MB,16MB on a CPU, 1MB to 1GB on a GPU", partial(byte_counts, GPU_MESSAGE_BYTES)),
    ),
}  # fmt: skip
"""Every option of the suite, by what it is about, in the order of its help."""

OPTIONS = tuple(chain.from_iterable(GROUPS.values()))

REPLACED = {
    "--shard": "select by --size, --phase or --context; tables, report and history read several records together",
}
"""Options that earlier versions had, and what does their work."""


class Gone(argparse.Action):
    """An option of `REPLACED`; raises pytest.UsageError with its sentence."""

    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
        name = str(option_string)
        raise pytest.UsageError(f"{name} is gone: {REPLACED[name]}.")


def add_options(parser: pytest.Parser) -> None:
    for title, options in GROUPS.items():
        group = parser.getgroup(f"transformer performance: {title}")
        for option in options:
            group.addoption(option.name, **argparse_keywords(option))
    for name in REPLACED:
        parser.addoption(name, action=Gone, nargs="?", help=argparse.SUPPRESS)


class HasOptions(Protocol):
    """Pytest's configuration, or what a verb's parser read."""

    def getoption(self, name: str) -> Any: ...


_PARSE = {option.name: option.parse for option in OPTIONS}


def typed_or(config: HasOptions, name: str, default: Any) -> Any:
    """The value typed for an option, else `default`; raises pytest.UsageError naming the option."""
    text, parse = config.getoption(name), _PARSE[name]
    if text is None or parse is None:
        return default
    try:
        return parse(name, "\n".join(text) if isinstance(text, list) else str(text))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
