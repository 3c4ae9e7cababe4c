"""The options of one run, read and checked once into a frozen `Settings`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from perf_tests_suite.perf_tests.cases import sharing
from perf_tests_suite.perf_tests.cases.options import (
    CONTEXTS,
    GPU_MESSAGE_BYTES,
    HEAD_DIMS,
    MESSAGE_BYTES,
    PASSES,
    SEQUENCE_LENGTHS,
    HasOptions,
    check_checkpoints,
    shape_named,
    typed_or,
)
from perf_tests_suite.perf_tests.cases.sharing import Launched, launched
from perf_tests_suite.perf_tests.hardware.cores import physical_cores
from perf_tests_suite.perf_tests.hardware.limits import COLLECTIVES
from perf_tests_suite.perf_tests.phases import LABELS
from perf_tests_suite.perf_tests.user_code.given import is_configuration, size_name

GPU_SIZES = ("small", "medium", "large", "xl", "2.7B")


def _given(option: str, on_cpu: Any, on_gpu: Any = None, **default: Any) -> Any:
    """A field with the value typed for an option, else its default; a GPU's where that differs."""
    return field(metadata={"option": (option, on_cpu, on_gpu)}, **default)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run: which cases, and how each is measured."""

    device: str
    sizes: tuple[str, ...]
    contexts: tuple[int, ...] = _given("--context", (128,), CONTEXTS)
    precisions: tuple[str, ...]
    attentions: tuple[str, ...]
    executions: tuple[str, ...] = _given("--execution", ("eager",))
    checkpoints: tuple[str, ...] = _given("--checkpoint", ("none",))
    phases: tuple[str, ...] = _given("--phase", ("forward", "backward", "full_step"), LABELS)
    head_dims: tuple[int, ...] = _given("--head-dim", (16, 64), HEAD_DIMS)
    sequence_lengths: tuple[int, ...] = _given("--sequence-length", (256, 1024), SEQUENCE_LENGTHS)
    attention_alone_precisions: tuple[str, ...]
    attention_alone_implementations: tuple[str, ...] = _given("--attention", ("naive", "compiled", "sdpa"))
    batch_sizes: tuple[int, ...] = _given("--batch-size", (4,))
    vocab_size: int | None = _given("--vocab-size", None)
    warmup_rounds: int = _given("--warmup-rounds", 5)
    rounds: int = _given("--rounds", 10)
    attention_alone_rounds: int = _given("--rounds", 10, 100)
    threads: int
    seed: int = _given("--seed", 2027)
    optimizer: str = _given("--optimizer", "default")
    memory_budget_bytes: int | None = _given("--memory-budget", None)
    model: str | None
    model_arguments: tuple[str, ...] = _given("--model-arg", ())
    passes: tuple[str, ...]
    memory_snapshot: bool
    nvtx: bool
    cold_cache: bool = False
    zero_grad: str = _given("--zero-grad", "before-forward", default="before-forward")
    """Records without it cleared them there."""
    parallels: tuple[str | None, ...] = (None,)
    """Labels of the ways in which ranks share a model; None is one device."""
    collectives: tuple[str, ...] = ()
    message_sizes: tuple[int, ...] = _given("--message-size", MESSAGE_BYTES, GPU_MESSAGE_BYTES, default=MESSAGE_BYTES)
    """Bytes of the messages of collectives alone."""
    worlds: tuple[int, ...] = (1,)
    """Numbers of ranks that share a case."""

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]


@dataclass(frozen=True)
class Typed:
    """What a verb's own parser read, as `settings_on` asks pytest's configuration for it."""

    values: Mapping[str, Any]

    def getoption(self, name: str) -> Any:
        return self.values.get(name.removeprefix("--").replace("-", "_"))


def settings_on(device: str, native: tuple[str, ...], config: HasOptions) -> Settings:
    """The options of a run on `device`, `cuda:0` for example, whose defaults are of what is `native` there.

    Raises pytest.UsageError naming the option at fault.
    """

    def given(name: str, on_cpu: Any, on_gpu: Any = None) -> Any:
        return typed_or(config, name, on_gpu if device.startswith("cuda") and on_gpu is not None else on_cpu)

    snapshot = config.getoption("--memory-snapshot")
    passes = tuple(
        name for name, option in PASSES.items() if config.getoption(option) or (name == "memory" and snapshot)
    )
    model = given("--model", None)
    attentions = given("--attention", ("naive",))
    alone = is_typed(config, "--head-dim", "--sequence-length") or (model is None and not is_on_ranks(config))
    _refuse_with_user_model(config, model, alone)
    if model is not None and is_configuration(model):
        sizes: Sequence[str] = (size_name(model),)
    else:
        # A gate measures each case dozens of times, and all of `small` would take it an hour on a CPU.
        is_gate = is_typed(config, "--against", "--against-option")
        sizes = given("--size", ("small-2layers",) if is_gate else ("small",), GPU_SIZES)
    if model is None:
        try:
            check_checkpoints(given("--checkpoint", ()), max(shape_named(size).num_layers for size in sizes))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
    if config.getoption("--nvtx") and passes:
        others = " or ".join(PASSES[name] for name in passes)
        raise pytest.UsageError(f"--nvtx is for a run under Nsight Systems and cannot be combined with {others}.")
    worlds, scaling = given("--world", None) or ((launched() or Launched()).world,), given("--scaling", ("strong",))
    # None at all, and so no model, where only collectives are asked for.
    ways = given("--parallel", () if is_on_ranks(config) else ("none",))
    for option in sharing.OF_SOME_WAYS:
        if is_typed(config, option) and (reason := sharing.why_without_effect(option, ways)):
            raise pytest.UsageError(reason)
    precisions = given("--precision", native)
    return Settings(
        device=device,
        sizes=tuple(sizes),
        # Whole models have no tensors of 16 bits: `all` means theirs, and such a precision alone a row that says so.
        precisions=tuple(name for name in precisions if not name.endswith("-tensors")) or precisions,
        attention_alone_precisions=given("--precision", ("fp32",), native),
        # The attention inside a model of the user's is not ours to choose.
        attentions=attentions if model is None else ("own",),
        model=model,
        passes=passes,
        memory_snapshot=snapshot,
        nvtx=bool(config.getoption("--nvtx")),
        cold_cache=bool(config.getoption("--cold-cache")),
        parallels=sharing.labels(ways, worlds, scaling, given("--bucket-mb", ()), given("--reshard", ("yes",))),
        collectives=tuple(given("--collective", COLLECTIVES if is_typed(config, "--message-size") else ())),
        worlds=worlds,
        threads=given("--threads", None) or cores_of_a_rank(is_on_ranks(config)),
        **{
            **{field.name: given(*field.metadata["option"]) for field in fields(Settings) if field.metadata},
            **({} if alone else {"head_dims": (), "sequence_lengths": ()}),
        },
    )


def is_typed(config: HasOptions, *names: str) -> bool:
    return any(config.getoption(name) is not None for name in names)


ON_RANKS = ("--parallel", "--collective", "--message-size")
"""Options that make a run one of several ranks."""
OF_RANKS = (*ON_RANKS, "--world", "--scaling", "--bucket-mb", "--reshard")


def is_on_ranks(config: HasOptions) -> bool:
    return is_typed(config, *ON_RANKS)


def asks_for_ranks(config: HasOptions) -> bool:
    """Whether anything typed is for several ranks, or several were started."""
    return (launched() or Launched()).world > 1 or is_typed(config, *OF_RANKS)


def _refuse_with_user_model(config: HasOptions, model: str | None, alone: bool) -> None:
    """What chooses a part of the suite's model, or an argument without a model. Raises pytest.UsageError."""
    if model is None:
        if config.getoption("--model-arg"):
            raise pytest.UsageError("--model-arg is for a factory of your own; name it with --model.")
        return
    ours = {"--checkpoint": "the model of --model chooses its own checkpoints"}
    if not alone:
        ours["--attention"] = "the model of --model brings its own attention"
    if is_configuration(model):
        ours["--size"] = "the configuration says the shape; change a value of it with --model-arg"
        ours["--vocab-size"] = "the configuration says the vocabulary; change it with --model-arg vocab_size=N"
    for option, reason in ours.items():
        if is_typed(config, option):
            raise pytest.UsageError(f"{option} does not apply: {reason}.")


def cores_of_a_rank(is_shared: bool) -> int:
    """Physical cores of this process; the ranks of a machine divide them."""
    ranks_here = (launched() or Launched()).local_world if is_shared else 1
    return max(1, physical_cores() // ranks_here)
