"""New values in each round, and some timed rounds of a case held to what they must have computed.

A kernel that replays a result, or is right only while it is checked, looks fast in every round. So each round gets
values that nothing could know before, and of a few measured rounds, as many even as odd ones, drawn when they begin,
slices are kept. They are looked at once all is timed: attention against float64, a model against itself on the same
tokens, a step against its formula.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from perf_tests_suite.model.precision import Precision
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.bench.outcomes import SuspiciousError
from perf_tests_suite.perf_tests.cases.outputs import (
    check_attention_gradients,
    check_finite,
    check_gradients,
    require,
)
from perf_tests_suite.perf_tests.hardware.clock import multiplied_dtype
from perf_tests_suite.perf_tests.hardware.device import Device, is_out_of_memory
from perf_tests_suite.perf_tests.hardware.torch_private import modes_left_on
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.attention import (
    NAMES,
    Arithmetic,
    IncorrectError,
    check_within,
    exact_and_bounds,
    sums_and_bounds,
)
from perf_tests_suite.perf_tests.user_code.optimizer import MOST_STEPS
from perf_tests_suite.perf_tests.user_code.own_loss import OwnLossTraining

if TYPE_CHECKING:
    from perf_tests_suite.perf_tests.bench.loop import Rounds


# Bound before any file of the user's is imported.
_urandom, _chance, _digest = os.urandom, SystemRandom(), hashlib.sha256
_uniform, _permutation, _detached = torch.rand, torch.randperm, Tensor.detach


def drawn_seed() -> int:
    """Return a seed that no code could know before; 48 bits, which every reader of JSON keeps."""
    return int.from_bytes(_urandom(6), "big")


@dataclass(frozen=True)
class Draws:
    """The values of a case's rounds: those of each are a function of these fields and of its position, of no other."""

    seed: int
    case: str
    launch_pair: int = 0
    """The gate's pair, whose sides get the same values in their rounds of one position."""

    def generator(self, position: int) -> torch.Generator:
        key = f"{self.seed}/{self.case}/{self.launch_pair}/{position}"
        return torch.Generator().manual_seed(int.from_bytes(_digest(key.encode()).digest()[:8], "big"))


def fill_noise(leaf: Tensor, generator: torch.Generator) -> None:
    """Write values of mean 0 and variance 1 into the tensor, in place, each independent of the others.

    Any structure would be a shorter way to the result. They are uniform, because normal ones take ten times as long.
    """
    plain = _detached(leaf)
    if plain.device.type == "cpu":
        # PyTorch draws with one thread, in whose core's cache all inputs would lie; all threads copy.
        plain.copy_(_uniform(plain.shape, generator=generator).sub_(0.5).mul_(12**0.5))
    else:
        seed = int(torch.randint(2**62, (), generator=generator))
        plain.uniform_(-(3**0.5), 3**0.5, generator=torch.Generator(plain.device).manual_seed(seed))


# What is kept of a checked round, and what it is held to, for each kind of benchmark.


Slices = dict[str, Tensor]
"""Slices on the host, so that none of the device's memory is taken while rounds are measured."""

ROWS = 64
"""Rows of an output, drawn for each case."""
LONGEST_EXACT_BACKWARD = 4096
"""Tokens up to which dk and dv of one sequence are computed in float64, in O(T^2 K)."""
ROWS_AT_A_TIME = 256
SLICE_ELEMENTS, PROBE_ELEMENTS = 4096, 16
"""Elements of one parameter, its gradient and its state; and of each, to see it move."""
BY_CHANCE = 4
"""Fewer rows of logits, or gradients that are not 0, may be equal in two rounds by chance."""
KEPT_SHARE = 2.0**-12
"""Share of the highest by which all may differ from what is kept, of which a cheat may hide that it is the same."""
PROBE_ROUNDINGS = 64 * 2.0**-24
"""A smaller step might be lost in a weight's rounding."""
LEFT_BY_CHANCE = 20
"""Rprop leaves a weight whose gradient has changed its sign, so fewer weights may stay as they were by chance."""


@dataclass
class Kept:
    """Slices of one measured round."""

    number: int
    """Counted from 1 among the measured ones."""
    position: int
    before: Slices
    random_state: Sequence[Tensor] = ()
    """State of torch's generators before the set-up, with which dropout draws the same again."""
    after: Slices = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"measured round {self.number}"


# ruff: noqa: B027 -- the empty methods of a check are defaults, right for what it does not look at


class Check(ABC):
    """The check of one case; drawn places differ from case to case."""

    kept_rounds: int = 2
    """How many are checked, an even number: half of them are even ones."""
    reruns: int = 2
    """How many of these are run again on equal inputs; 0 where a round cannot be."""
    can_be_tried: bool = True
    """Whether `check` or `check_again` raises for any kept slice with a number that is far off."""
    about: str
    """What is checked, in words."""
    unchecked: str | None = None
    """What is not, in words."""

    def before(self) -> Slices:
        """Return, before the clock, slices of what the round changes."""
        return {}

    @abstractmethod
    def after(self, result: Any) -> Slices:
        """Return slices of what the round has left."""

    def check_finite(self, result: Any) -> None:
        """Raise AssertionError where what the last round left, as a whole, is not finite: others take its place."""

    def check(self, kept: Kept) -> None:
        """Raise IncorrectError where the slices are not what the round's inputs, which are in place again, make."""

    def check_again(self, kept: Kept, again: Slices) -> None:
        """Raise IncorrectError where they are not those of another round on equal inputs."""

    def check_pair(self, kept: Sequence[Kept]) -> None:
        """Raise IncorrectError where rounds on other inputs left the same."""


def _places(rows: int, batch: int, tokens: int) -> Tensor:
    """Return distinct random tokens of each sequence in order, (B, R): `rows` in all, at least one of a sequence."""
    of_each = min(tokens, max(1, rows // batch))
    generator = torch.Generator().manual_seed(drawn_seed())
    return torch.stack([_permutation(tokens, generator=generator)[:of_each].sort().values for _ in range(batch)])


def _rows(whole: Tensor, places_BR: Tensor) -> Tensor:
    """Return a copy of these tokens' rows, (B, R, ...)."""
    batch = torch.arange(len(places_BR), device=whole.device)[:, None]
    return _detached(whole)[batch, places_BR.to(whole.device)].to("cpu", copy=True)


class AttentionCheck(Check):
    """Output or gradients of causal attention against float64; `inputs` are q, k, v and the output's gradient."""

    # Rows alone are cheap. What is kept by address is wrong in some rounds only, and two may miss them.
    kept_rounds = 4
    reruns = 1

    def __init__(self, inputs: Sequence[Tensor], precision: Precision, *, has_backward: bool) -> None:
        self.inputs, self.has_backward = inputs, has_backward
        self.dtype = multiplied_dtype(precision)
        self.arithmetic = Arithmetic.of(self.dtype, precision.float32_matmul_precision != "highest")
        batch, tokens, _ = inputs[0].shape
        self.places_BR = _places(ROWS, batch, tokens)
        self.sequence = _chance.randrange(batch)
        self.is_exact = has_backward and tokens <= LONGEST_EXACT_BACKWARD
        rows = f"at {self.places_BR.numel()} rows"
        columns = f", dk and dv of sequence {self.sequence}" if self.is_exact else ""
        self.about = f"dq {rows}{columns}, the sums of dk and dv" if has_backward else f"the output {rows}"

    def after(self, result: Any) -> Slices:
        if not self.has_backward:
            if type(result) is not Tensor:
                kind = type(result).__name__
                raise IncorrectError(f"it returns a {kind}, whose work may not be done yet, instead of a plain tensor.")
            if result.shape != self.inputs[0].shape:
                raise IncorrectError(f"it returns {tuple(result.shape)}, not {tuple(self.inputs[0].shape)}.")
            return {NAMES[0]: _rows(result, self.places_BR), **self._inputs()}
        for letter, leaf in zip("qkv", self.inputs, strict=False):
            if type(leaf.grad) is not Tensor:
                found = "no gradient" if leaf.grad is None else f"a {type(leaf.grad).__name__} as gradient"
                raise IncorrectError(f"it gives {letter} {found}.")
        # A tensor may have methods of its own.
        dq, dk, dv = (_detached(leaf.grad) for leaf in self.inputs[:3] if leaf.grad is not None)
        slices = {NAMES[1]: _rows(dq, self.places_BR)}
        for name, whole in zip(NAMES[2:], (dk, dv), strict=True):
            slices[f"the sum of {name}"] = whole.sum(-2, dtype=torch.float64).cpu()
            if self.is_exact:
                slices[name] = whole[self.sequence].to("cpu", copy=True)
        return slices | self._inputs()

    def _inputs(self) -> Slices:
        if others := [type(one).__name__ for one in self.inputs if type(one) is not Tensor]:
            raise IncorrectError(f"it makes an input a {others[0]}, and inputs have to stay plain tensors.")
        return {f"input {name}": _rows(x, self.places_BR) for name, x in zip("qkv", self.inputs, strict=False)}

    def check_finite(self, result: Any) -> None:
        if self.has_backward:
            check_attention_gradients(*self.inputs[:3])
        else:
            check_finite(result, "outputs")

    def check(self, kept: Kept) -> None:
        for name, rows in self._inputs().items():
            if not kept.after[name].equal(rows):
                raise IncorrectError(f"it changes {name.removeprefix('input ')} in place, in {kept.name}.")
        q, k, v, do = (x.detach().to(self.dtype) for x in self.inputs)
        row_name, rows_BRK = next(iter(kept.after.items()))
        for sequence, places_R in enumerate(self.places_BR):
            at, of_sequence = places_R.to(q.device), (k[sequence], v[sequence])
            exact, allowed = exact_and_bounds(
                q[sequence, at], *of_sequence, do[sequence, at], self.arithmetic, at, (row_name,)
            )

            def place_of(place: tuple[int, ...], b: int = sequence, at: Tensor = places_R) -> tuple[int, ...]:
                return b, int(at[place[0]]), place[1]

            which = NAMES.index(row_name)
            self._within(kept, row_name, rows_BRK[sequence], exact[which], allowed[which], place_of)
        if not self.has_backward:
            return
        exact, allowed = sums_and_bounds(q, k, v, do, self.arithmetic)
        for which, name in enumerate(NAMES):
            if (found := kept.after.get(f"the sum of {name}")) is not None:
                self._within(kept, f"the sum of {name}", found, exact[which], allowed[which], lambda place: place)

    def check_columns(self, kept: Kept) -> None:
        """Raise IncorrectError where dk or dv of one sequence are not those of float64."""
        b = self.sequence
        q, k, v, do = (x.detach()[b].to(self.dtype) for x in self.inputs)
        exact, allowed = torch.zeros(2, *k.shape, dtype=torch.float64), torch.zeros(2, *k.shape, dtype=torch.float64)
        for at in torch.arange(len(q), device=q.device).split(ROWS_AT_A_TIME):
            # Keys that none of these queries sees are left out.
            seen = int(at[-1]) + 1
            parts = exact_and_bounds(q[at], k[:seen], v[:seen], do[at], self.arithmetic, at, NAMES[2:])
            for total, part in zip((exact, allowed), parts, strict=True):
                total[:, :seen] += torch.stack((part.dk, part.dv)).cpu()
        for which, name in enumerate(NAMES[2:]):
            self._within(kept, name, kept.after[name], exact[which], allowed[which], lambda place: (b, *place))

    def _within(self, kept: Kept, name: str, got: Tensor, exact: Tensor, allowed: Tensor, place_of: Any) -> None:
        words = f"inputs of shape {tuple(self.inputs[0].shape)} in {kept.name}"
        check_within(got, exact.cpu(), allowed.cpu(), name, words, place_of)


# A model is its own oracle: on the same tokens it must make the same again, on others something else. Whatever order
# its kernels add in, that moves a result by some roundings u, far below sqrt(u), which is half of the digits; what
# belongs to other tokens is further off.


def _half_the_digits(precision: Precision) -> float:
    is_tf32 = precision.float32_matmul_precision != "highest"
    return Arithmetic.of(precision.autocast_dtype or torch.float32, is_tf32).stored_roundoff ** 0.5


def _bound(share: float, magnitude: Tensor, highest: float) -> Tensor:
    """What adds up to 0, as the gradients of a bias of keys do, is made of the roundings of others alone."""
    return share * magnitude.clamp(min=share * highest)


def _are_alike(some: Tensor, others: Tensor) -> Tensor:
    return ((some - others).abs() <= KEPT_SHARE * some.abs().amax(-1, keepdim=True)).all(-1)


def _distinguishes(logits_RV: Tensor, tokens_R: Tensor) -> bool:
    """Whether logits of neighbours with different tokens differ, for at least half of them."""
    differ = tokens_R[1:] != tokens_R[:-1]
    return 2 * int((_are_alike(logits_RV[1:], logits_RV[:-1]) & differ).sum()) <= int(differ.sum())


class LogitsCheck(Check):
    """Logits at drawn places of all sequences; `forward` is the model's, from tokens (B, T) to logits (B, T, V)."""

    def __init__(self, tokens_BT: Tensor, precision: Precision, forward: Callable[[Tensor], Tensor]) -> None:
        self.tokens_BT, self.share, self.forward = tokens_BT, _half_the_digits(precision), forward
        self.places_BR = _places(ROWS, *tokens_BT.shape)
        self.about = f"the logits at {self.places_BR.numel()} tokens"

    def before(self) -> Slices:
        return {"tokens": _rows(self.tokens_BT.cpu(), self.places_BR)}

    def after(self, result: Any) -> Slices:
        if result.shape[:2] != self.tokens_BT.shape:
            wanted = tuple(self.tokens_BT.shape)
            raise IncorrectError(f"its logits have the shape {tuple(result.shape)}, for tokens of shape {wanted}.")
        return {"logits": _rows(result, self.places_BR)}

    def check_finite(self, result: Any) -> None:
        check_finite(result, "logits")

    def check_again(self, kept: Kept, again: Slices) -> None:
        wanted = again["logits"].double()
        bound = _bound(self.share, wanted.abs().amax(-1, keepdim=True), float(wanted.abs().max())).expand_as(wanted)
        check_within(kept.after["logits"], wanted, bound, "the logits", kept.name, self._place_of, "run once more")

    def check_pair(self, kept: Sequence[Kept]) -> None:
        one, other = kept
        are_other = one.before["tokens"] != other.before["tokens"]
        logits = one.after["logits"]
        if not _distinguishes(logits.flatten(0, 1), one.before["tokens"].flatten()):
            # Through many layers that are not trained, logits of any tokens become the same; of one sequence
            # alone they do so too. Where not, the timed rounds left out what tells tokens apart.
            with torch.no_grad():
                alone_TV = self.forward(self.tokens_BT[:1])[0].cpu()
            if not _distinguishes(alone_TV, self.tokens_BT[0].cpu()):
                return
        same = _are_alike(logits, other.after["logits"]) & are_other
        of_sequences = zip(same.sum(-1).tolist(), are_other.sum(-1).tolist(), strict=True)
        # A few may agree by chance: a sum of two tokens is that of the same two in another order.
        is_kept = 2 * int(same.sum()) > int(are_other.sum()) or any(
            found == of >= BY_CHANCE for found, of in of_sequences
        )
        if is_kept and int(same.sum()) >= BY_CHANCE:
            place = tuple(int(number) for number in same.nonzero()[0])
            raise IncorrectError(
                f"the logits of {int(same.sum())} tokens in {one.name}, the first at {self._place_of(place)}, are "
                f"those of {other.name}, which had other tokens: it returns what it has kept."
            )

    def _place_of(self, place: tuple[int, ...]) -> tuple[int, ...]:
        sequence, row, *rest = place
        return sequence, int(self.places_BR[sequence, row]), *rest


class LossCheck(Check):
    """The loss of a model that computes it; `forward` is the model's, from tokens (B, T) to the loss."""

    about = "the loss"
    unchecked = "its logits, which it does not give"

    def __init__(self, tokens_BT: Tensor, precision: Precision, forward: Callable[[Tensor], Tensor]) -> None:
        self.tokens_BT, self.share, self.forward = tokens_BT, _half_the_digits(precision), forward

    def after(self, result: Any) -> Slices:
        if not isinstance(result, Tensor) or result.dim():
            raise IncorrectError(f"it returns {tuple(getattr(result, 'shape', ()))} instead of the loss, a scalar.")
        return {"loss": result.detach().reshape(1).to("cpu", copy=True)}

    def check_finite(self, result: Any) -> None:
        check_finite(result, "losses")

    def check_again(self, kept: Kept, again: Slices) -> None:
        wanted = again["loss"].double()
        bound = _bound(self.share, wanted.abs(), float(wanted.abs()))
        check_within(kept.after["loss"], wanted, bound, "the loss", kept.name, lambda place: (), "run once more")

    def check_pair(self, kept: Sequence[Kept]) -> None:
        one, other = (of_round.after["loss"] for of_round in kept)
        if one.dtype != torch.float32 or not one.equal(other):  # losses in 16 bits may be equal by chance
            return
        with torch.no_grad():
            of_others = self.forward(self.tokens_BT.flip(-1)).reshape(1).cpu()
        if not of_others.equal(one):  # as all are with a head that begins at zero
            raise IncorrectError(
                f"the loss in {kept[0].name} is that in {kept[1].name}, which had other tokens: it returns what it has "
                "kept."
            )


def check_of_forward(training: Training, tokens_BT: Tensor) -> Check:
    """The check of a forward pass, of its logits or of the loss that the model computes."""
    kind = LossCheck if isinstance(training, OwnLossTraining) else LogitsCheck
    return kind(tokens_BT, training.precision, training.forward)


class _ParameterCheck(Check):
    """The check of a slice of one trainable parameter, both drawn."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.trainable = [
            (name.removeprefix("_orig_mod."), one)
            for name, one in training.model.named_parameters()
            if one.requires_grad
        ]
        require(self.trainable, "the model has no parameter that trains")
        self.name, self.parameter = _chance.choice(self.trainable)
        start = _chance.randrange(max(1, self.parameter.numel() - SLICE_ELEMENTS + 1))
        self.slice = slice(start, start + SLICE_ELEMENTS)
        self.size = min(SLICE_ELEMENTS, self.parameter.numel())

    def part(self, whole: Tensor) -> Tensor:
        return whole.detach().reshape(-1)[self.slice].to("cpu", copy=True)

    def after(self, result: Any) -> Slices:
        return {} if self.parameter.grad is None else {"gradient": self.part(self.parameter.grad)}

    def check_pair(self, kept: Sequence[Kept]) -> None:
        one, other = (of_round.after.get("gradient") for of_round in kept)
        if one is None or other is None or int(one.count_nonzero()) < BY_CHANCE or not one.isfinite().all():
            return
        if bool(((one - other).abs() <= KEPT_SHARE * one.abs().max()).all()):
            raise IncorrectError(
                f"{self.size} gradients of {self.name} in {kept[0].name} are those of {kept[1].name}, which had "
                "other tokens: it returns what it has kept."
            )

    def _place_of(self, place: tuple[int, ...]) -> tuple[int, ...]:
        flat = torch.tensor(place[0] + self.slice.start)
        return tuple(int(number) for number in torch.unravel_index(flat, self.parameter.shape or (1,)))


class GradientCheck(_ParameterCheck):
    """Gradients of a backward pass."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.share = _half_the_digits(training.precision)
        self.about = f"{self.size} gradients of {self.name}"

    def check_finite(self, result: Any) -> None:
        check_gradients(self.training)

    def check_again(self, kept: Kept, again: Slices) -> None:
        if not again or not bool(again["gradient"].isfinite().all()):  # a scaled one may overflow
            return
        wanted = again["gradient"].double()
        gradients = [one.grad for one in self.training.model.parameters() if one.grad is not None]
        highest = max(float(torch.linalg.vector_norm(gradient, torch.inf)) for gradient in gradients)
        bound = _bound(self.share, wanted.abs().max(), highest).expand_as(wanted)
        name = f"the gradient of {self.name}"
        check_within(kept.after["gradient"], wanted, bound, name, kept.name, self._place_of, "run once more")


class StepCheck(_ParameterCheck):
    """What a step makes of weights and state: AdamW's formula; of another optimizer, that it moves them."""

    reruns = 0
    can_be_tried = False

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.optimizer = training.optimizer
        groups = self.optimizer.param_groups
        of_parameter = (group for group in groups if any(self.parameter is one for one in group["params"]))
        self.group = next(of_parameter, {})  # a rank may hold others alone
        is_other = self.group.get("amsgrad", True) or self.group.get("maximize", True)
        self.is_known = type(self.optimizer) is torch.optim.AdamW and not is_other
        held_to = "AdamW's formula" if self.is_known else "having moved"
        self.about = f"{self.size} weights of {self.name} and their state, held to {held_to}"
        self.rates = {id(one): float(group["lr"]) for group in groups for one in group["params"]}
        self.probes = []
        for name, one in self.trainable:
            start = _chance.randrange(max(1, one.numel() - PROBE_ELEMENTS + 1))
            self.probes.append((name, one, slice(start, start + PROBE_ELEMENTS)))
        self.first = self.before()  # state that no round changes, as a copy of the first weights, need not advance
        self.unchecked = "what the gradients are, but that they change with the tokens"

    def before(self) -> Slices:
        state = self.optimizer.state.get(self.parameter, {})
        found = {"weights": self.part(self.parameter)}
        for name, value in state.items():
            if isinstance(value, Tensor):
                found[f"state {name}"] = (
                    self.part(value) if value.shape == self.parameter.shape else value.cpu().clone()
                )
            elif isinstance(value, int | float):
                found[f"state {name}"] = torch.tensor(value)
        if self.training.precision.scales_loss:
            found["scale"] = torch.tensor(self.training.loss_scale())
        return found | {f"probe {name}": one.detach().reshape(-1)[at].cpu().clone() for name, one, at in self.probes}

    def after(self, result: Any) -> Slices:
        gradients = [(name, one.grad.reshape(-1)[at]) for name, one, at in self.probes if one.grad is not None]
        return {
            **super().after(result),
            **self.before(),
            **{f"gradient {name}": probe.cpu().clone() for name, probe in gradients},
        }

    def check(self, kept: Kept) -> None:
        before, after = kept.before, kept.after
        gradient = after.get("gradient")
        if "scale" in after and bool(after["scale"] < before["scale"]):
            return  # its gradients overflowed, and the step was skipped
        where = f"{self.size} weights of {self.name} in {kept.name}"
        if self.is_known and gradient is not None:
            for name, (exact, bound) in self._stepped(before, after).items():
                self_name = f"{name} of {self.name}"
                check_within(after[name], exact, bound, self_name, kept.name, self._place_of, "AdamW in float64")
        if self.due_if_still(kept):
            return  # it may add gradients up; `check_pair` and `finish` look for rounds in which it moves
        state = [
            name
            for name in before
            if name.startswith("state ") and not before[name].equal(self.first.get(name, before[name]))
        ]
        is_due = gradient is not None and int(gradient.count_nonzero()) >= BY_CHANCE
        if state and is_due and all(before[name].equal(after[name]) for name in state):
            raise IncorrectError(f"the step leaves the optimizer's state of {where} as it was.")

    def check_pair(self, kept: Sequence[Kept]) -> None:
        super().check_pair(kept)
        if any(self.due_if_still(of_round) for of_round in kept):
            return
        self.check_moves(kept)

    def due_if_still(self, kept: Kept) -> int:
        """Return how many of the weights looked at the step had to move, where it has moved none; else 0."""
        due, is_moved = zip(*(self._due_and_moved(kept, name, one) for name, one, _ in self.probes), strict=True)
        return sum(due) if sum(due) >= LEFT_BY_CHANCE and not any(is_moved) else 0

    def check_moves(self, kept: Sequence[Kept]) -> None:
        """Raise IncorrectError where rounds that move some weights left those of a parameter as they were."""
        for name, one, _ in self.probes:
            due, is_moved = zip(*(self._due_and_moved(of_round, name, one) for of_round in kept), strict=True)
            if sum(due) >= LEFT_BY_CHANCE and not any(is_moved):
                rounds = " and ".join(of_round.name for of_round in kept)
                raise IncorrectError(f"the step leaves weights of {name} as they were, in {rounds}.")

    def _due_and_moved(self, kept: Kept, name: str, parameter: Tensor) -> tuple[int, bool]:
        """Return how many weights of the probe could not have stayed for being rounded, and whether one has moved."""
        weights, gradient = kept.before[f"probe {name}"], kept.after.get(f"gradient {name}")
        is_skipped = "scale" in kept.after and bool(kept.after["scale"] < kept.before["scale"])
        if gradient is None or is_skipped:
            return 0, False
        rate = self.rates.get(id(parameter), 0.0)
        due = int((rate * gradient.abs() > PROBE_ROUNDINGS * weights.abs()).sum())
        return due, not weights.equal(kept.after[f"probe {name}"])

    def _stepped(self, before: Slices, after: Slices) -> dict[str, tuple[Tensor, Tensor]]:
        """Return weights and moments by Loshchilov and Hutter's algorithm 2, each with a bound of its roundings.

        A moment takes 4 roundings of its terms, an update 16, and a bias correction c errs by u / c where it is made
        in float32. The gradient is that of after the clipping.
        """
        u = torch.finfo(torch.float32).eps / 2
        (beta_1, beta_2), decay, eps = self.group["betas"], float(self.group["weight_decay"]), self.group["eps"]
        rate, step = float(self.group["lr"]), float(before["state step"]) + 1
        weights, gradient, mean, square = (
            {**after, **before}[name].double() for name in ("weights", "gradient", "state exp_avg", "state exp_avg_sq")
        )
        mean_bound = 4 * u * (mean.abs() + (1 - beta_1) * gradient.abs()) + torch.finfo(torch.float32).tiny
        mean = beta_1 * mean + (1 - beta_1) * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        square_bound = 5 * u * square + torch.finfo(torch.float32).tiny
        bias_1, bias_2 = 1 - beta_1**step, 1 - beta_2**step
        factor = rate / bias_1 / ((square / bias_2).sqrt() + eps)
        update = factor * mean
        bound = factor * mean_bound + (16 + 1 / bias_1 + 1 / bias_2) * u * update.abs() + 4 * u * weights.abs()
        return {
            "state exp_avg": (mean, mean_bound),
            "state exp_avg_sq": (square, square_bound),
            "weights": (weights * (1 - rate * decay) - update, bound),
        }


# The rounds of a case: which are kept, and what is said of them.


LONG_ROUND_SECONDS = 0.03
"""Seconds of a round of which only one is run again, or checking would take over a tenth of the case."""


WRONG = 100.0
"""What is added, in units of the highest number, to one that a check then has to refuse."""
MOST_AGAIN = 3
"""More rounds where two on equal inputs differ."""


@dataclass
class CheckedRounds:
    """Call `begin` before each round's set-up, `ready` after it, `end` after the clock, `finish` when all is timed."""

    rounds: "Rounds"
    device: Device
    draws: Draws | None
    """None where inputs stay as they are."""
    _check: Check | None = field(init=False)
    _modes: int = field(init=False)
    _seen: int = 0
    _now: Kept | None = None
    _kept: dict[int, Kept] = field(default_factory=dict)
    """The kept rounds by number modulo how many: code that is wrong in every other call is wrong in half of them."""

    def __post_init__(self) -> None:
        self._modes = modes_left_on()
        # Not before: what it draws and copies would count as memory of the case in a pass that looks at that.
        self._check = None if self.rounds.check is None else self.rounds.check()

    def begin(self, position: int, *, is_measured: bool) -> None:
        """Write new values. A measured round is kept by chance, 1 over those of its residue so far: each as likely."""
        self._now = None
        if self.draws is None:
            return
        if self.rounds.renew is not None:
            self.rounds.renew(self.draws.generator(position))
        self._seen += is_measured
        check = self._check
        if is_measured and check is not None and _chance.randrange(ceil(self._seen / check.kept_rounds)) == 0:
            self._now = Kept(self._seen, position, {}, self._random_state())

    def ready(self) -> None:
        """Look at what the target is to change; what the set-up has changed is none of its work."""
        if self._now is not None and self._check is not None:
            self._now.before = self._check.before()

    @property
    def seed(self) -> int | None:
        return None if self.draws is None else self.draws.seed

    @property
    def keeps_this(self) -> bool:
        return self._now is not None

    def end(self) -> None:
        if self._now is not None and self._check is not None:
            self._refuse_modes()
            self._now.after = self._check.after(self.rounds.result)
            self._kept[self._now.number % self._check.kept_rounds] = self._now
        self._now = None

    def finish(self, round_seconds: float) -> Json | None:
        """Check the kept rounds; returns what was checked, None where there is nothing to check.

        Raises IncorrectError, AssertionError where the last round left what is not finite, and SuspiciousError where
        rounds were due to be checked and cannot be.
        """
        check, kept = self._check, list(self._kept.values())
        if check is None or self.draws is None:
            return None
        self._refuse_modes()
        due = min(self._seen, check.kept_rounds)  # the first ones are, until others take their places
        if len(kept) < due:
            raise SuspiciousError(
                f"{len(kept)} of its rounds were kept to be checked, and at least {due} always are: its code reaches "
                "what checks it."
            )
        if not kept:
            return None
        check.check_finite(self.rounds.result)
        unchecked, same = check.unchecked, None
        still = self._still_rounds(check, kept) if isinstance(check, StepCheck) else []
        if len(kept) == 2:
            check.check_pair(kept)
        _chance.shuffle(kept)
        reruns = min(check.reruns, 1 if round_seconds >= LONG_ROUND_SECONDS else len(kept))
        for left, one in zip(reversed(range(len(kept))), kept, strict=True):
            if self.rounds.renew is not None and self.draws is not None and check.reruns:
                self.rounds.renew(self.draws.generator(one.position))
                if self.rounds.renew_rest is not None:
                    self.rounds.renew_rest()
            try:
                check.check(one)
                if left == 0 and isinstance(check, AttentionCheck) and check.is_exact:
                    check.check_columns(one)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                unchecked = "memory ran out while it was checked"
            if left == 0 and unchecked is None:
                self._try(check, one)
            # The last one is, so that the result is of the inputs as they are then.
            if left < reruns:
                is_same, reason = self._run_again(check, one)
                same, unchecked = is_same and same is not False, reason or unchecked
        return {
            "rounds": sorted(one.number for one in kept),
            "what": check.about,
            "unchecked": unchecked,
            "same_again": same,
            "still": still or None,
        }

    def _still_rounds(self, check: StepCheck, kept: Sequence[Kept]) -> list[int]:
        """Return the numbers of the kept rounds whose step moved no weight, as one that adds gradients up does.

        Further rounds show whether it ever moves each parameter: raises IncorrectError where it does not.
        """
        still = [one for one in kept if check.due_if_still(one)]
        moving = [one for one in kept if one not in still]
        most = check.kept_rounds * MOST_STEPS
        for number in range(most if still else 0):
            if len(moving) == check.kept_rounds:
                break
            self.rounds.prepare()
            further = Kept(self._seen + number + 1, self._seen + number, check.before())
            self.rounds.run()
            self.device.synchronize()
            further.after = check.after(self.rounds.result)
            if not check.due_if_still(further):
                moving.append(further)
        # From fewer rounds nothing could be said of a parameter that stays as it was.
        if still and len(moving) < check.kept_rounds:
            raise IncorrectError(
                f"the step leaves all {check.due_if_still(still[0])} weights that it should move as they were, in "
                f"{still[0].name}, and moves any in {len(moving)} of {len(kept) + most} rounds."
            )
        if still:
            check.check_moves(moving)
        return sorted(one.number for one in still)

    def _try(self, check: Check, kept: Kept) -> None:
        """Raise SuspiciousError where the check takes for right what is made wrong here."""
        right = [name for name, found in kept.after.items() if found.is_floating_point() and found.isfinite().all()]
        if not check.can_be_tried or not right or right[0] != next(iter(kept.after)):
            return
        wrong = kept.after[right[0]].clone()
        wrong.view(-1)[_chance.randrange(wrong.numel())] += WRONG * (1 + float(wrong.abs().max()))
        spoiled = replace(kept, after={**kept.after, right[0]: wrong})
        try:
            check.check(spoiled)
            check.check_again(spoiled, kept.after)
        except IncorrectError:
            return
        raise SuspiciousError("A result that was made wrong on purpose passed its check, which its code has changed.")

    def _refuse_modes(self) -> None:
        if modes_left_on() != self._modes:
            raise SuspiciousError(
                "It leaves a mode of torch on after its rounds, under which no check means anything; leave each mode "
                "where it was entered."
            )

    def _run_again(self, check: Check, kept: Kept) -> tuple[bool, str | None]:
        """Return whether the round and another on equal inputs are equal, bit for bit, and what could not be checked.

        Where they differ by more than roundings, more rounds tell which of the two is the odd one.
        """
        again = self._slices_again(check, kept)
        if again.keys() == kept.after.keys() and all(again[name].equal(kept.after[name]) for name in again):
            return True, None
        try:
            check.check_again(kept, again)
            return False, None
        except IncorrectError:
            pass
        for _ in range(MOST_AGAIN):
            before, again = again, self._slices_again(check, kept)
            try:
                check.check_again(replace(kept, after=again), before)
            except IncorrectError:
                continue  # every round may be random, or every other one wrong
            check.check_again(kept, again)
            return False, None
        return False, f"{check.about}: rounds on equal inputs differ, as state that is kept makes them"

    def _random_state(self, state: Sequence[Tensor] = ()) -> Sequence[Tensor]:
        """Set the state where there is one; returns what it is."""
        cuda = [self.device.torch_device] if self.device.torch_device.type == "cuda" else []
        for found, device in zip(state[1:], cuda, strict=False):
            torch.cuda.set_rng_state(found, device)
        if state:
            torch.set_rng_state(state[0])
        return torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in cuda)

    def _slices_again(self, check: Check, kept: Kept) -> Slices:
        self._random_state(kept.random_state)
        self.rounds.prepare()
        self.rounds.run()
        self.device.synchronize()
        return check.after(self.rounds.result)
