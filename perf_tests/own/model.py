"""A model of the user's own: how it is built, and what is known of it before it runs.

A factory is called with the `ModelConfig` asked for, unless it takes no positional argument, and with the values of
--model-arg by name.
"""

import inspect
import json
import shlex
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

from torch import Tensor, nn

from model.sizes import ModelConfig
from perf_tests.instruments.device_errors import is_out_of_memory
from perf_tests.instruments.torch_private import FakeTensorMode
from perf_tests.own import hugging_face
from perf_tests.own.guard import LONGEST_SECONDS, NeverReturnsError, OwnModelError, guarded
from perf_tests.own.named import from_its_repository, load

Values = tuple[tuple[str, int | float | bool | str], ...]
"""Arguments by name."""

SHAPE = ("d_model", "d_ff", "num_layers", "num_heads")


@dataclass(frozen=True)
class OwnModel:
    """`--model` and `--model-arg` as typed; equal ones are the same model."""

    name: str
    arguments: tuple[str, ...] = ()

    @property
    def values(self) -> Values:
        return tuple(sorted(argument(text) for text in self.arguments))

    @property
    def in_identity(self) -> dict[str, str | None]:
        """Its file, its arguments as text, and a digest of them and of a configuration's values, never of source."""
        text = ", ".join(sorted(self.arguments)) or None
        is_configuration = hugging_face.is_configuration(self.name)
        configured = hugging_face.configuration_values(self.name) if is_configuration else {}
        known = json.dumps([self.values, configured], sort_keys=True)
        digest = sha256(known.encode()).hexdigest()[:12] if text or configured else None
        return {"model": from_its_repository(self.name), "model_args": text, "model_digest": digest}

    @property
    def in_a_path(self) -> str:
        """`gpt2.json` or `nets.py-build`, with the digest where there is one."""
        parts = (self.name.removeprefix(hugging_face.PREFIX).rpartition("/")[2], self.in_identity["model_digest"])
        return "-".join(part.replace(":", "-") for part in parts if part)

    @property
    def as_options(self) -> str:
        """What to type for it."""
        return shlex.join(["--model", self.name, *(f"--model-arg={text}" for text in self.arguments)])

    def shape(self, config: ModelConfig) -> dict[str, int | None]:
        """As asked of the factory or named by the configuration, null where it takes none. Raises OwnModelError."""
        return facts_of(self, config).shape

    def build(self, config: ModelConfig, seconds: float | None = None) -> nn.Module:
        """The model, whose call returns logits alone. Raises OwnModelError, with a limit also for one that takes long.

        A large model may take long to build for real, so only what comes before measuring sets a limit.
        """
        if hugging_face.is_configuration(self.name):
            with guarded(f"--model {self.name} builds no model", seconds):
                model = hugging_face.build(self.name, self.values)
        else:
            with guarded(f"--model {self.name} cannot be imported"):
                factory = load(self.name)
            with guarded(f"--model {self.name} builds no model", seconds):
                model = factory(*([config] if _takes_a_config(factory) else []), **dict(self.values))
        if not isinstance(model, nn.Module):
            got = f"the class {model.__name__}" if inspect.isclass(model) else f"a {type(model).__name__}"
            raise OwnModelError(f"--model {self.name} returned {got}; it must return an nn.Module.")
        hugging_face.treat_fake_tensors_as_real()
        model.register_forward_hook(_logits_alone)
        return model


@dataclass(frozen=True)
class Facts:
    """What the module itself says of its size."""

    parameters: int | None
    """Shared ones once; None where memory ran out before they were there."""
    trainable_parameters: int | None
    shape: dict[str, int | None]
    """As asked of the factory, or named by the configuration; null where it read none."""
    why_not_played: str | None
    """None where it can be built on tensors without content."""


def argument(text: str) -> tuple[str, int | float | bool | str]:
    """The name and value of `key=value`; raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--model-arg {text!r} is no argument; write it as name=value.")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


@lru_cache(maxsize=64)
def facts_of(own: OwnModel, config: ModelConfig) -> Facts:
    """Built on tensors without content where that works, else for real. Raises OwnModelError."""
    why_not, (watched, read) = None, _watched(config)
    try:
        try:
            with FakeTensorMode():
                model = own.build(watched, LONGEST_SECONDS)
        except NeverReturnsError:
            raise
        except OwnModelError as error:
            why_not = f"{own.name} cannot be built on tensors without content: {error.__cause__!r}."
            model = own.build(watched)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Facts(
            None, None, {name: getattr(config, name) or None for name in SHAPE}, f"memory ran out building {own.name}."
        )
    if hugging_face.is_configuration(own.name):
        named = hugging_face.shape(own.name, own.values)
        shape = {name: named[name] for name in SHAPE}
    else:
        shape = {name: getattr(config, name) if name in read else None for name in SHAPE}
    parameters = list(model.parameters())
    return Facts(
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        shape=shape,
        why_not_played=why_not,
    )


@dataclass(frozen=True)
class ConfiguredShape(ModelConfig):
    """Vocabulary and longest context of a model whose widths stand in its own configuration, here 0."""

    def __post_init__(self) -> None:
        """No width is checked: none is used."""


def configured_shape(own: OwnModel, context_length: int) -> ModelConfig:
    """What a configuration asks for. Raises OwnModelError."""
    with guarded(f"--model {own.name} is no configuration of a language model"):
        named = hugging_face.shape(own.name, own.values)
    if named["vocab_size"] is None:
        raise OwnModelError(f"--model {own.name} names no vocab_size; add it to the configuration.")
    if named["longest"] is not None and context_length > named["longest"]:
        raise OwnModelError(
            f"--context is {context_length}, and --model {own.name} takes at most {named['longest']} tokens "
            "(max_position_embeddings); choose a shorter context."
        )
    return ConfiguredShape(0, 0, 0, 0, named["vocab_size"], context_length)


def _watched(config: ModelConfig) -> tuple[ModelConfig, set[str]]:
    """An equal configuration, and the fields of the shape read from it: a factory may ignore what it is asked for."""
    read: set[str] = set()

    class Watched(ModelConfig):
        def __post_init__(self) -> None:
            """The values were checked already."""

        def __getattribute__(self, name: str) -> Any:
            read.update(SHAPE if name == "__dict__" else {name}.intersection(SHAPE))
            return super().__getattribute__(name)

    return Watched(**vars(config)), read


def _takes_a_config(factory: Any) -> bool:
    """Whether its first positional parameter is required, or named config."""
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # some written in C have none
        return True
    if not parameters:
        return False
    first = parameters[0]
    if first.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        return False
    return first.default is inspect.Parameter.empty or first.name == "config"


def _logits_alone(module: nn.Module, inputs: Any, output: Any) -> Any:
    """The logits of an output object or tuple; anything else as it is, for the check to refuse."""
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple) and output else output
