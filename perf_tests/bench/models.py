"""The model under test: built once for the cases that share it, and reset before each."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from model.compilation import compiled, forget_compiled
from model.precision import PRECISIONS
from model.training import Training
from model.transformer import TransformerLM
from perf_tests.cases.language_model import DEFAULT_ZERO_GRAD, LanguageModelCase
from perf_tests.instruments import heap
from perf_tests.instruments.device import Device
from perf_tests.own.attention import attention_named
from perf_tests.own.check import check_values_of
from perf_tests.own.optimizer import check_a_step, own_optimizer
from perf_tests.ranks.sharing import Sharing

if TYPE_CHECKING:  # only several ranks need it
    from perf_tests.ranks.groups import Groups


@dataclass
class ModelShelf:
    """Holds one model at a time and lends it, with fresh weights, as a `Training`."""

    device: Device
    seed: int
    groups: "Groups | None" = None
    """Of a run on several ranks."""
    builds: int = 0
    _built_from: tuple[object, ...] | None = None
    _model: nn.Module | None = None
    _weights_are_fresh: bool = False
    _tried: set[object] = field(default_factory=set)
    """What each optimizer of the user's own has trained for a step already."""

    def lend(self, case: LanguageModelCase, optimizer: str) -> Training:
        """A model for `case` with its initial weights, and no gradients, optimizer state or compiled code.

        `optimizer` says how AdamW runs where the case has no other. Raises OwnModelError.
        """
        if self._built_from != case.built_from or case.sharing is not None:
            self.clear()
        model, own = self._initial(case), case.own_optimizer
        if own is not None and (tried := (own, case.built_from)) not in self._tried:
            check_a_step(own, model, self.device.torch_device)
            self._tried.add(tried)
            self._weights_are_fresh = False
            del model  # or it would stay beside the one that takes its place
            model = self._initial(case)
        self._weights_are_fresh = not case.row.trains
        precision = PRECISIONS[case.precision]
        precision.apply()
        implementation = "default" if own_optimizer(optimizer) else optimizer
        # Earlier revisions of `Training`, which the gate measures too, know the default alone.
        order = {} if case.zero_grad == DEFAULT_ZERO_GRAD else {"zero_grad": case.zero_grad}
        device = self.device.torch_device

        def train(model: nn.Module) -> Training:
            return Training(executed(model, case.execution), precision, device, implementation, **order)

        if case.sharing is not None:
            self._model = None  # its parameters become the ranks', and its groups must not outlive the case
            return shared(model, case.sharing, self.groups, train)
        training = train(model)
        if own is not None:
            own.put_into(training, model)
        return training

    def _initial(self, case: LanguageModelCase) -> nn.Module:
        """The model of `case` with the weights of the seed."""
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
        self._weights_are_fresh = True
        return self._model

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
            if case.own is None:
                return TransformerLM(case.config, attention_named(case.attention).build(), case.checkpoint)
            model = case.own.build(case.config)
        model = model.to(self.device.torch_device)
        check_values_of(case.model, model, case.config, self.device.torch_device)
        return model


def executed(model: nn.Module, execution: str) -> nn.Module:
    """`model` as it is, or under torch.compile in the mode of this name."""
    if execution == "eager":
        return model
    # Earlier revisions of `compiled`, which the gate measures too, take no mode.
    return compiled(model) if execution == "compiled" else compiled(model, mode=execution)


def shared(
    model: nn.Module, sharing: Sharing, groups: "Groups | None", train: Callable[[nn.Module], Training]
) -> Training:
    """`model` in training on the ranks of its case."""
    # Imported late: earlier revisions of `model`, which the gate measures, lack it.
    from model.parallel import PARALLEL

    assert groups is not None
    return PARALLEL[sharing.parallel](model, groups.ranks(sharing), train)


def forget(device: Device) -> None:
    """Free what the last case left: garbage, compiled graphs, cached memory, libraries' workspaces."""
    gc.collect()
    forget_compiled()
    device.release_memory()
