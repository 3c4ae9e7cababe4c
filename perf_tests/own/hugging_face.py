"""`hf:CONFIG.json`: a language model of transformers from a configuration file, with random weights.

A configuration is data from strangers: none of its code runs, and nothing is fetched for it.
"""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from perf_tests.own.guard import OwnModelError
from perf_tests.own.named import path_of

Values = tuple[tuple[str, Any], ...]
"""Values of the configuration by name."""

PREFIX = "hf:"
BUILT_IN_ATTENTION = ("eager", "sdpa")
"""Others are kernels that transformers would fetch."""

_SAYS_NOTHING_OF_THE_MODEL = ("transformers_version", "_name_or_path")


def is_configuration(model: str) -> bool:
    return model.startswith(PREFIX)


def check_configuration(option: str, text: str) -> None:
    """Raises ValueError with one sentence for what can be refused without transformers, and where it is missing."""
    _read(f"{option} {text!r}", path_of(text.removeprefix(PREFIX)))
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(f"{option} {text!r} needs transformers; install it with `pip install '.[hf]'`.")


def size_name(model: str) -> str:
    """A size in ids: the file's name, of a `config.json` its folder's."""
    path = Path(model.removeprefix(PREFIX)).resolve()
    stem = path.parent.name if path.stem == "config" else path.stem
    return "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in stem) or "own"


def configuration_values(model: str) -> dict[str, Any]:
    """Every value of the file that says something of the model. Raises ValueError."""
    values = _read(f"--model {model}", path_of(model.removeprefix(PREFIX)))
    return {name: value for name, value in values.items() if name not in _SAYS_NOTHING_OF_THE_MODEL}


@lru_cache(maxsize=16)
def configuration(model: str, arguments: Values) -> Any:
    """transformers' configuration, the values of `arguments` in place of the file's. Raises OwnModelError."""
    values = configuration_values(model)
    changes = {name: value for name, value in arguments if name != "attn_implementation"}
    kind = values.pop("model_type")
    transformers = _transformers()
    try:
        known = transformers.AutoConfig.for_model(kind)
    except ValueError as error:
        raise OwnModelError(
            f"--model {model} names the architecture {kind!r}, which transformers does not know."
        ) from error
    unknown = [name for name in changes if not hasattr(known, name)]
    if unknown:
        raise OwnModelError(f"--model-arg {unknown[0]} is no value of a {kind} configuration.")
    # Keys and values of earlier tokens, of no use in training, would count as memory.
    return transformers.AutoConfig.for_model(kind, **{**values, **changes, "use_cache": False})


def build(model: str, arguments: Values) -> nn.Module:
    """Weights in float32, whatever the configuration says: precision is an axis of its own."""
    attention = dict(arguments).get("attn_implementation")
    if attention not in (None, *BUILT_IN_ATTENTION):
        known = ", ".join(BUILT_IN_ATTENTION)
        raise OwnModelError(f"--model-arg attn_implementation is {attention!r}; it must be one of {known}.")
    chosen = {} if attention is None else {"attn_implementation": attention}
    built: nn.Module = _transformers().AutoModelForCausalLM.from_config(
        configuration(model, arguments), trust_remote_code=False, dtype=torch.float32, **chosen
    )
    return built


def shape(model: str, arguments: Values) -> dict[str, int | None]:
    """Null where the configuration does not name it, as GPT-2 does not name its feed-forward width."""
    names = {
        "d_model": "hidden_size", "d_ff": "intermediate_size", "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads", "vocab_size": "vocab_size", "longest": "max_position_embeddings",
    }  # fmt: skip
    found = configuration(model, arguments)
    values = {ours: getattr(found, theirs, None) for ours, theirs in names.items()}
    return {name: value if isinstance(value, int) else None for name, value in values.items()}


def treat_fake_tensors_as_real() -> None:
    """Where transformers is loaded: its models compute a mask for tensors without content, and none for real ones.

    They ask this function (transformers 5.23); it has no switch, and counts would be of operations that never run.
    """
    imports = sys.modules.get("transformers.utils.import_utils")
    if hasattr(imports, "is_fake_tensor"):
        vars(imports)["is_fake_tensor"] = lambda tensor: False


def _transformers() -> Any:
    """Imported late: it takes a second, and no other run needs it."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when it is imported
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    return transformers


def _read(what: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except IsADirectoryError as error:
        raise ValueError(f"{what} is a folder, not a file; name the config.json in it.") from error
    except OSError as error:
        raise ValueError(f"{what} cannot be read: {error.strerror}, seen from {Path.cwd()}.") from error
    except ValueError as error:
        raise ValueError(f"{what} is no JSON: {error}.") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ValueError(f"{what} is no configuration of transformers: it names no model_type.")
    for name, value in _nested(values):
        if name == "auto_map":
            raise ValueError(f"{what} names code of its own (auto_map), which is never run; use MODULE:FACTORY for it.")
        if "attn_implementation" in name and value not in (None, *BUILT_IN_ATTENTION):
            raise ValueError(f"{what} names the attention {value!r}; it must be {' or '.join(BUILT_IN_ATTENTION)}.")
    return values


def _nested(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every name with its value, those of configurations inside included."""
    for name, value in values.items():
        yield name, value
        if isinstance(value, dict):
            yield from _nested(value)
