"""What is the user's own, as it is typed: a function, a model with its arguments, an optimizer. No torch.

`hf:CONFIG.json` is a language model of transformers from a configuration file, with random weights. A configuration is
data from strangers: none of its code runs, and nothing is fetched for it.
"""

import importlib.util
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from perf_tests_suite.perf_tests.user_code.named import from_its_repository, path_of


def is_user_function(attention: str) -> bool:
    return ":" in attention


def label(attention: str) -> str:
    """Return the name in ids: `flash.attend` of `kernels/flash.py:attend` and of `kernels.flash:attend`."""
    place, _, function = attention.rpartition(":")
    module = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return f"{module}.{function}" if place else attention


ConfigValues = tuple[tuple[str, Any], ...]
"""Arguments, or values of the configuration, by name."""

PREFIX = "hf:"
BUILT_IN_ATTENTION = ("eager", "sdpa")
"""Others are kernels that transformers would fetch."""
IMPLEMENTATIONS = {
    "attn_implementation": BUILT_IN_ATTENTION,
    "experts_implementation": ("batched_mm", "eager", "grouped_mm"),
}
"""What --model-arg may choose beside values of a configuration: of experts only `batched_mm` runs without content."""


def is_configuration(model: str) -> bool:
    return model.startswith(PREFIX)


def check_configuration(option: str, text: str) -> None:
    """Refuse, by ValueError with one sentence, what can be refused without transformers, and where it is missing."""
    _read(f"{option} {text!r}", path_of(text.removeprefix(PREFIX)))
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(f"{option} {text!r} needs transformers; install it with `pip install transformers`.")


def size_name(model: str) -> str:
    """A size in ids: the file's name, of a `config.json` its folder's."""
    path = Path(model.removeprefix(PREFIX)).resolve()
    stem = path.parent.name if path.stem == "config" else path.stem
    return "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in stem) or "own"


def configuration_values(model: str) -> dict[str, Any]:
    """Every value of the file that says something of the model. Raises ValueError."""
    values = _read(f"--model {model}", path_of(model.removeprefix(PREFIX)))
    return {name: value for name, value in values.items() if name not in ("transformers_version", "_name_or_path")}


TWO_STACKS = "is of an encoder and a decoder ({}); only models of one causal stack are measured."


def _read(what: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except IsADirectoryError as error:
        raise ValueError(f"{what} is a folder, not a file; name the config.json in it.") from error
    except OSError as error:
        raise ValueError(f"{what} cannot be read: {error.strerror}, seen from {Path.cwd()}.") from error
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}.") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ValueError(f"{what} is not a configuration of transformers: it names no model_type.")
    for name, value in _nested(values):
        if name == "auto_map":
            raise ValueError(f"{what} names code of its own (auto_map), which is never run; use MODULE:FACTORY for it.")
        if "attn_implementation" in name and value not in (None, *BUILT_IN_ATTENTION):
            raise ValueError(f"{what} names the attention {value!r}; it must be {' or '.join(BUILT_IN_ATTENTION)}.")
    kind = values["model_type"]
    if values.get("is_encoder_decoder") is True:
        raise ValueError(f"{what} {TWO_STACKS.format(kind)}")
    if isinstance(values.get("text_config"), dict):
        raise ValueError(
            f"{what} is of text and other inputs ({kind}); write its text_config into a file of its own, with its "
            "model_type, and give that."
        )
    return values


def _nested(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every name with its value, those of configurations inside included."""
    for name, value in values.items():
        yield name, value
        if isinstance(value, dict):
            yield from _nested(value)


SHAPE = ("d_model", "d_ff", "num_layers", "num_heads")


@dataclass(frozen=True)
class UserModel:
    """`--model` and `--model-arg` as typed; equal ones are the same model."""

    name: str
    arguments: tuple[str, ...] = ()

    @property
    def values(self) -> ConfigValues:
        return tuple(sorted(argument(text) for text in self.arguments))

    @property
    def in_identity(self) -> dict[str, str | None]:
        """The file, the arguments as text, and a digest of them and of a configuration's values, never of source."""
        text = ", ".join(sorted(self.arguments)) or None
        configured = configuration_values(self.name) if is_configuration(self.name) else {}
        known = json.dumps([self.values, configured], sort_keys=True)
        digest = sha256(known.encode()).hexdigest()[:12] if text or configured else None
        return {"model": from_its_repository(self.name), "model_args": text, "model_digest": digest}

    @property
    def in_a_path(self) -> str:
        """`gpt2.json` or `nets.py-build`, with the digest where there is one."""
        parts = (self.name.removeprefix(PREFIX).rpartition("/")[2], self.in_identity["model_digest"])
        return "-".join(part.replace(":", "-") for part in parts if part)

    @property
    def as_options(self) -> str:
        """What to type for it."""
        return shlex.join(["--model", self.name, *(f"--model-arg={text}" for text in self.arguments)])


def argument(text: str) -> tuple[str, int | float | bool | str]:
    """The name and value of `key=value`; raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--model-arg {text!r} is not an argument; write it as name=value.")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


@dataclass(frozen=True)
class Facts:
    """What the module itself says of its size."""

    parameters: int | None
    """Shared ones once; None where memory ran out before they were there."""
    trainable_parameters: int | None
    shape: dict[str, int | None]
    """The fields asked of the factory, or named by the configuration; null where it read none."""
    why_not_counted: str | None
    """None where it can be built on fake tensors."""
    computes_loss: bool = False
    """Whether it takes targets and returns the loss, as `user_code.own_loss` says."""


@dataclass(frozen=True)
class UserOptimizer:
    """`--optimizer` as typed; equal ones are the same optimizer."""

    name: str

    @property
    def in_identity(self) -> str:
        """The same wherever it was typed."""
        return from_its_repository(self.name)


def user_optimizer(text: str | None) -> UserOptimizer | None:
    """The user's; None for a way to run AdamW, and for phases without a step."""
    return None if text is None or ":" not in text else UserOptimizer(text)
