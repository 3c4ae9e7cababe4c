"""What a benchmark runs on: a model that is built once and reset before each case, inputs, and the user's attention."""

import gc
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from perf_tests_suite.model.compilation import compiled, forget_compiled
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.bench.checked_rounds import fill_noise
from perf_tests_suite.perf_tests.bench.outcomes import Outcome
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.devices import why_unsupported
from perf_tests_suite.perf_tests.cases.language_model import DEFAULT_ZERO_GRAD, LanguageModelCase
from perf_tests_suite.perf_tests.hardware import device as heap
from perf_tests_suite.perf_tests.hardware.bound import put_back
from perf_tests_suite.perf_tests.hardware.device import (
    Device,
    error_text,
    is_beyond_device,
    is_out_of_memory,
    needs_gpu,
)
from perf_tests_suite.perf_tests.phases import LANGUAGE_MODEL
from perf_tests_suite.perf_tests.user_code.attention import (
    IncorrectError,
    NoBackwardError,
    Sizes,
    Use,
    attention_named,
    check_attention,
    function_of,
    multiple_of,
)
from perf_tests_suite.perf_tests.user_code.given import user_optimizer
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from perf_tests_suite.perf_tests.user_code.model import build_model, check_values_of
from perf_tests_suite.perf_tests.user_code.optimizer import check_a_step, put_into
from perf_tests_suite.perf_tests.user_code.own_loss import OwnLossTraining

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.bench.ranks import Groups


@dataclass
class ModelCache:
    """Holds one model at a time and gives it, with fresh weights, as a `Training`."""

    device: Device
    seed: int
    groups: "Groups | None" = None
    """Those of a run on several ranks."""
    builds: int = 0
    _built_from: tuple[object, ...] | None = None
    _model: nn.Module | None = None
    _weights_are_fresh: bool = False
    _tried: set[object] = field(default_factory=set)
    """What each optimizer of the user's own has trained for a step already."""

    def get(self, case: LanguageModelCase, optimizer: str) -> Training:
        """Return a model for `case` with its initial weights, and no gradients, optimizer state or compiled code.

        `optimizer` says how AdamW runs where the case has no other. Raises UserCodeError.
        """
        if self._built_from != case.built_from or case.sharing is not None:
            self.reset()
        model, own = self._initial(case), case.user_optimizer
        if own is not None and (tried := (own, case.built_from)) not in self._tried:
            check_a_step(own, model, self.device.torch_device)
            self._tried.add(tried)
            self._weights_are_fresh = False
            del model  # or it would stay beside the one that takes its place
            model = self._initial(case)
        self._weights_are_fresh = not case.phase_row.trains
        precision = PRECISIONS[case.precision]
        precision.apply()
        implementation = "default" if user_optimizer(optimizer) else optimizer
        # Earlier revisions of `Training`, which the gate measures too, know the default alone.
        order = {} if case.zero_grad == DEFAULT_ZERO_GRAD else {"zero_grad": case.zero_grad}
        device = self.device.torch_device

        def train(model: nn.Module) -> Training:
            kind = OwnLossTraining if case.computes_loss else Training
            return kind(executed(model, case.execution), precision, device, implementation, **order)

        if case.sharing is not None:
            self._model = None  # its parameters become the ranks', and its groups must not outlive the case
            # Imported late: earlier revisions of `model`, which the gate measures, lack it.
            from perf_tests_suite.model.parallel import PARALLEL

            assert self.groups is not None
            return PARALLEL[case.sharing.parallel](model, self.groups.ranks(case.sharing), train)
        training = train(model)
        if own is not None:
            put_into(own, training, model)
        return training

    def _initial(self, case: LanguageModelCase) -> nn.Module:
        """Return the model of `case` with the weights of the seed."""
        torch.manual_seed(self.seed)
        if self._model is not None and not self._weights_are_fresh:
            reset = getattr(self._model, "reset_parameters", None)
            if callable(reset):
                reset()
            else:
                self.reset()
        if self._model is None:
            self.builds += 1
            device = self.device.torch_device
            with device:
                if case.user_model is None:
                    self._model = TransformerLM(case.config, attention_named(case.attention).build(), case.checkpoint)
                else:
                    self._model = build_model(case.user_model, case.config)
            if case.user_model is not None:
                self._model = self._model.to(device)
                check_values_of(case.model, self._model, case.config, device, computes_loss=case.computes_loss)
            self._built_from = case.built_from
        self._weights_are_fresh = True
        return self._model

    def reset(self) -> None:
        """Free the model."""
        self._model = self._built_from = None
        free_leftovers(self.device)

    def leave_memory_to_others(self) -> None:
        """Free the model, and return to the system what this process keeps of earlier cases."""
        self.reset()
        heap.give_back()


def executed(model: nn.Module, execution: str) -> nn.Module:
    """Return `model` as it is, or under torch.compile in the mode of this name."""
    if execution == "eager":
        return model
    # Earlier revisions of `compiled`, which the gate measures too, take no mode.
    return compiled(model) if execution == "compiled" else compiled(model, mode=execution)


def free_leftovers(device: Device) -> None:
    """Free what the last case left: garbage, compiled graphs, cached memory, libraries' workspaces."""
    gc.collect()
    forget_compiled()
    device.release_memory()


@dataclass(frozen=True)
class Batch:
    """Random tokens and, for each, the one that follows; int64, both (B, T)."""

    tokens_BT: Tensor
    targets_BT: Tensor
    draw: Callable[[torch.Generator], Tensor] | None = None
    """Draws tokens and the last one's target, (B, T + 1), on the host."""

    @classmethod
    def drawn(cls, draw: Callable[[torch.Generator], Tensor], seed: int, device: torch.device) -> "Batch":
        tokens = draw(torch.Generator().manual_seed(seed)).to(device)
        return cls(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), draw)

    @property
    def all(self) -> tuple[Tensor, Tensor]:
        return self.tokens_BT, self.targets_BT

    def renew(self, generator: torch.Generator) -> None:
        """Draw other tokens, into the same tensors."""
        if self.draw is not None:
            tokens = self.draw(generator)
            self.tokens_BT.copy_(tokens[:, :-1])
            self.targets_BT.copy_(tokens[:, 1:])


@dataclass(frozen=True)
class AttentionInputs:
    """Random query, key and value, leaves of a fresh graph, and the gradient of the output; (B, T, K)."""

    q_BTK: Tensor
    k_BTK: Tensor
    v_BTK: Tensor
    gradient_BTK: Tensor
    _of_gradient: list[torch.Generator] = field(default_factory=list, init=False, repr=False)

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.q_BTK, self.k_BTK, self.v_BTK, self.gradient_BTK

    def forget_gradients(self) -> None:
        for leaf in (self.q_BTK, self.k_BTK, self.v_BTK):
            leaf.grad = None

    def renew(self, generator: torch.Generator) -> None:
        """Draw other values, into the same tensors; those of the gradient wait for `renew_gradient`."""
        for one in self.all[:3]:
            fill_noise(one, generator)
        self._of_gradient[:] = [generator]

    @property
    def is_gradient_due(self) -> bool:
        return bool(self._of_gradient)

    def renew_gradient(self) -> None:
        """Draw what a forward pass may not know, once it is done, if that is due."""
        if self.is_gradient_due:
            fill_noise(self.gradient_BTK, self._of_gradient.pop())


# Functions of the user's, given with --attention, held to float64 before their cases are timed.


Refusals = dict[tuple[str, Use], Outcome]
"""Why a function is not timed, by how it was typed and where it is used."""

LONGEST_CONTEXT = 1024
"""Lengths of cases up to this are checked too; float64 keeps several T x T matrices."""

MOST_HEADS = 1024
"""Heads of all sequences together that are checked, at a short length: they take about as long as LONGEST_CONTEXT."""


def load_attentions(cases: Iterable[Case]) -> dict[str, list[str]]:
    """Import the functions of the cases; raises UserCodeError for one that cannot be imported.

    Return what each file or module replaced of clocks, judges and the suite, which is put back: it blames no other.

    Called before anything runs on fake tensors, of which a module imported meanwhile would keep some.
    """
    replaced: dict[str, list[str]] = defaultdict(list)
    for name in {case.user_attention for case in cases}:
        if name is not None:
            function_of(name)
            replaced[name.rpartition(":")[0]] += put_back()
    return replaced


def refusals(cases: Iterable[Case], device: torch.device) -> Refusals:
    """Check each function once for each head width, precision and layout of its cases."""
    lengths: dict[tuple[str, Use], set[int]] = defaultdict(set)
    sizes: dict[tuple[str, Use], set[Sizes]] = defaultdict(set)
    for case in cases:
        if case.user_attention is not None and why_unsupported(case, device) is None:
            key, (batch, *heads, tokens, _) = (case.user_attention, _use_of(case, device)), case.query_shape
            lengths[key].add(min(tokens, LONGEST_CONTEXT))
            sizes[key].add((min(batch, max(1, MOST_HEADS // math.prod(heads))), *heads))
    found: Refusals = {}
    for (name, use), checked in lengths.items():
        try:
            check_attention(attention_named(name).build(), name, use, checked, sizes[name, use])
        except IncorrectError as error:
            found[name, use] = Outcome("incorrect", str(error))
        except NoBackwardError as error:
            found[name, use] = OfBackward("unsupported", str(error))
        except UserCodeError as error:
            # Where the device is at fault, another one would run the function.
            cause, on_cpu = error.__cause__, use.device.type == "cpu"
            is_of_device = cause is not None and (is_beyond_device(cause) or (on_cpu and needs_gpu(cause)))
            found[name, use] = Outcome("unsupported" if is_of_device else "error", str(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            found[name, use] = Outcome("out_of_memory", error_text(error))
    return found


class OfBackward(Outcome):
    """Why only cases with a backward pass are not timed."""


def refusal_of(case: Case, refused: Refusals, device: torch.device) -> Outcome | None:
    """Return that of the case's function; a model of the user's has none, and may name no heads."""
    if case.user_attention is None:
        return None
    outcome = refused.get((case.user_attention, _use_of(case, device)))
    if outcome is not None and (case.phase_row.has_backward or not isinstance(outcome, OfBackward)):
        return outcome
    tokens, multiple = case.query_shape[-2], multiple_of(function_of(case.user_attention), case.user_attention)
    if tokens % multiple:
        sentence = f"{case.user_attention} takes multiples of {multiple} tokens (multiple_of), and here are {tokens}"
        return Outcome("unsupported", sentence)
    return None


def _use_of(case: Case, device: torch.device) -> Use:
    return Use(case.query_shape[-1], case.phase_row.family == LANGUAGE_MODEL, PRECISIONS[case.precision], device)
