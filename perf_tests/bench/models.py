"""The model under test: built once for the cases that share it, and reset before each."""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.attention import ATTENTION
from model.compilation import compiled, forget_compiled
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training
from model.transformer import ModelFactory, TransformerLM
from perf_tests.cases import LanguageModelCase
from perf_tests.instruments import heap
from perf_tests.instruments.device import Device
from perf_tests.instruments.device_errors import is_out_of_memory


class ForeignModelError(Exception):
    """The factory given with --model makes no language model; the message is one sentence."""


@dataclass
class ModelShelf:
    """Holds one model at a time and lends it, with fresh weights, as a `Training`."""

    device: Device
    seed: int
    builds: int = 0
    _built_from: tuple[object, ...] | None = None
    _model: nn.Module | None = None
    _weights_are_fresh: bool = False

    def lend(self, case: LanguageModelCase, optimizer: str) -> Training:
        """A model for `case` with its initial weights, and no gradients, optimizer state or compiled code."""
        if self._built_from != case.built_from:
            self.clear()
        torch.manual_seed(self.seed)
        if self._model is not None and not self._weights_are_fresh:
            reset = getattr(self._model, "reset_parameters", None)
            if callable(reset):
                reset()
            else:
                self.clear()
        if self._model is None:
            self._model = self._build(case)
            self._built_from = case.built_from
        self._weights_are_fresh = not case.row.trains
        precision = PRECISIONS[case.precision]
        precision.apply()
        return Training(executed(self._model, case.execution), precision, self.device.torch_device, optimizer)

    def clear(self) -> None:
        """Free the model."""
        self._model = self._built_from = None
        forget(self.device)

    def leave_memory_to_others(self) -> None:
        """Free the model, and return to the system what this process keeps of earlier cases."""
        self.clear()
        heap.give_back()

    def _build(self, case: LanguageModelCase) -> nn.Module:
        self.builds += 1
        with self.device.torch_device:
            if case.model == "ours":
                return TransformerLM(case.config, ATTENTION[case.attention].build(), case.checkpoint)
            model = build_foreign_model(case.model, case.config)
        model = model.to(self.device.torch_device)
        check_foreign_model(model, case, self.device.torch_device)
        return model


def executed(model: nn.Module, execution: str) -> nn.Module:
    """`model` as it is, or under torch.compile in the mode of this name."""
    if execution == "eager":
        return model
    # Earlier revisions of `compiled`, which the gate measures too, take no mode.
    return compiled(model) if execution == "compiled" else compiled(model, mode=execution)


def forget(device: Device) -> None:
    """Free what the last case left: garbage, compiled graphs, cached memory, libraries' workspaces."""
    gc.collect()
    forget_compiled()
    device.release_memory()


def build_foreign_model(name: str, config: ModelConfig) -> nn.Module:
    """What `MODULE:FACTORY` makes of `config`. Raises ForeignModelError with one sentence."""
    module_name, _, factory_name = name.partition(":")
    with _as_foreign_model_error(f"--model {name} cannot be imported"):
        factory: ModelFactory = getattr(importlib.import_module(module_name), factory_name)
    with _as_foreign_model_error(f"--model {name} builds no model of {config}"):
        model = factory(config)
    if not isinstance(model, nn.Module):
        raise ForeignModelError(f"--model {name} returned a {type(model).__name__}; it must return an nn.Module.")
    return model


@contextmanager
def _as_foreign_model_error(what: str) -> Iterator[None]:
    """Any error of the user's code but running out of memory, which is an outcome of the case."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ForeignModelError(f"{what}: {type(error).__name__}: {error}") from error


@torch.no_grad()
def check_foreign_model(model: nn.Module, case: LanguageModelCase, device: torch.device) -> None:
    """Raises ForeignModelError unless the model is a language model of the case's shape that reads its context."""
    shape = (1, case.context_length)
    wanted = (*shape, case.config.vocab_size)
    tokens_BT = torch.randint(case.config.vocab_size, shape, device=device)
    with _as_foreign_model_error(f"--model {case.model} fails on tokens of shape {shape}"):
        logits_BTV = model(tokens_BT)
    if not isinstance(logits_BTV, Tensor) or tuple(logits_BTV.shape) != wanted:
        got = tuple(logits_BTV.shape) if isinstance(logits_BTV, Tensor) else type(logits_BTV).__name__
        raise ForeignModelError(
            f"--model {case.model} returned {got} for tokens of shape {shape}; it must return logits of shape {wanted}."
        )
    if case.context_length == 1:
        return
    changed_BT = (tokens_BT + 1) % case.config.vocab_size
    changed_BT[:, -1] = tokens_BT[:, -1]
    if torch.equal(model(changed_BT)[:, -1], logits_BTV[:, -1]):
        raise ForeignModelError(
            f"--model {case.model} ignores its context: the last logits do not depend on earlier tokens, "
            "so a figure for this context length would be wrong."
        )
