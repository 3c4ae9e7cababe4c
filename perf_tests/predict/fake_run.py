"""Training steps run on fake tensors: each part is counted once, for every phase that contains it."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

import model as model_package
from model.precision import PRECISIONS
from model.sizes import ModelConfig
from model.training import Training, optimizer_that_runs
from model.transformer import MultiHeadAttention, TransformerLM, blocks_per_checkpoint
from perf_tests.cases.attention import AttentionCase
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.hardware.clock import tensor_dtype
from perf_tests.hardware.torch_private import FakeTensorMode, bound_fake_shapes
from perf_tests.predict.allocator import Log
from perf_tests.predict.costs import follow_rules
from perf_tests.predict.counting import (
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    Counting,
    PartCounters,
    live_after,
)
from perf_tests.user_code.attention import FAKE_RUN, attention_named, is_user_function
from perf_tests.user_code.guard import UserCodeError
from perf_tests.user_code.model import UserModel
from perf_tests.user_code.optimizer import UserOptimizer, user_optimizer

MODEL_SOURCE = Path(model_package.__file__).parent


HOST = torch.device("cpu")


Parts = dict[str, PartCounters]


@lru_cache(maxsize=256)
def passes(case: LanguageModelCase, all_layers: bool = False) -> Parts:
    """Counters of `inference`, or of `forward`, `loss` and `backward` for every phase that records a graph.

    Counted are a few layers and one more, from which all are extrapolated, unless `all_layers` are asked for. Blocks
    that share a checkpoint count as one layer; those left over follow them, as in the model. A model of the user's own
    is counted whole, because its layers are not known. Only weights and batch are held at the start; the logits are
    freed after the loss. The optimizer of `case` does not matter.
    """
    # The first layer of an inference differs, because the caller still holds its input.
    few = 1 if case.row.records_graph else 2
    blocks = max(1, blocks_per_checkpoint(case.checkpoint))
    layers, left_over = divmod(case.config.num_layers, blocks)
    if all_layers or layers <= few + 1 or case.user_model is not None:
        return count_passes(case)
    depths = (few * blocks + left_over, (few + 1) * blocks + left_over)
    less, more = (count_passes(replace(case, config=replace(case.config, num_layers=depth))) for depth in depths)
    try:
        return {name: extrapolated(less[name], more[name], layers - few) for name in less}
    except NotOfEqualLayersError:
        return count_passes(case)


def count_passes(case: LanguageModelCase) -> Parts:
    """The same, with every layer counted."""
    with fake_run(case.device, case.precision) as counting:
        training = fake_training(
            case.config, case.attention, case.checkpoint, case.precision, "loop", case.device, case.user_model
        )
        counting.claim(PARAMETERS)
        counting.guesses_values = case.user_model is None and not is_user_function(case.attention)
        tokens_BT, targets_BT = (torch.zeros(case.batch_size, case.context_length, dtype=torch.int64) for _ in range(2))
        counting.claim(INPUTS)
        make_loss_scale(training)
        counting.claim(OPTIMIZER_STATE)
        if not case.row.records_graph:
            with counting.part("inference"), torch.no_grad():
                training.forward(tokens_BT)
            return counting.finished()
        with counting.part("forward"):
            logits_BTV = training.forward(tokens_BT)
        with counting.part("loss"):
            loss = training.loss(logits_BTV, targets_BT)
        del logits_BTV
        with counting.part("backward"):
            training.backward(loss)
        counting.register(gradients_of(training), GRADIENTS)
        return counting.finished()


@lru_cache(maxsize=256)
def updates(config: ModelConfig, optimizer: str, scales_loss: bool, device: str, own: UserModel | None = None) -> Parts:
    """Counters of `first_update`, which makes the optimizer's state, and of `update`, which finds it there.

    Only weights, gradients and state are held. Raises UserCodeError for an optimizer of the user's that has none.
    """
    precision, of_user = "fp16" if scales_loss else "fp32", user_optimizer(optimizer)
    implementation = optimizer_that_runs("default", torch.device(device)) if of_user else optimizer
    with fake_run(device, precision) as counting:
        training = fake_training(config, "naive", "none", precision, implementation, device, own)
        counting.claim(PARAMETERS)
        if of_user is not None:
            of_user.put_into(training, training.model)
            _refuse_to_guess(counting, training, of_user)
        make_loss_scale(training)
        counting.claim(OPTIMIZER_STATE)
        for parameter in training.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        counting.claim(GRADIENTS)
        with counting.part("first_update"):
            training.update()
        counting.claim(OPTIMIZER_STATE)
        with counting.part("update"):
            training.update()
        if of_user is not None:
            with counting.part("next_update"):
                training.update()
        parts = counting.finished()
    if of_user is not None and parts["update"].kernels != parts.pop("next_update").kernels:
        raise UserCodeError(f"the second and the third step of {of_user.name} differ, so neither counts for all.")
    return parts


def _refuse_to_guess(counting: Counting, training: Training, own: UserOptimizer) -> None:
    """Refuse a step that reads a value or leaves its form to the device: counts would be of another step."""
    if counting.on_cuda and any(group.get("foreach", False) is None for group in training.optimizer.param_groups):
        raise UserCodeError(f"{own.name} lets PyTorch choose `foreach` by the device; set it to True or False.")

    def guess(whether: bool) -> Callable[..., None]:
        return lambda *_: setattr(counting, "guesses_values", whether)

    training.optimizer.register_step_pre_hook(guess(False))
    training.optimizer.register_step_post_hook(guess(True))


@lru_cache(maxsize=256)
def attention_passes(case: AttentionCase) -> Parts:
    """Counters of both phases of attention alone, by phase; query, key, value and output gradient are there."""
    with fake_run(case.device, case.precision) as counting:
        size = (case.batch_size, case.sequence_length, case.head_dim)
        dtype = tensor_dtype(PRECISIONS[case.precision])
        leaves = [torch.zeros(size, dtype=dtype).requires_grad_() for _ in range(3)]
        gradient_BTK = torch.zeros(size, dtype=dtype)
        counting.claim(INPUTS)
        counting.guesses_values = not is_user_function(case.attention)
        attention = attention_named(case.attention, FAKE_RUN).build()
        with counting.part("attention_forward"), PRECISIONS[case.precision].autocast(HOST):
            output_BTK = attention(*leaves)
        cast_gradient_BTK = gradient_BTK.to(output_BTK.dtype)
        with counting.part("attention_backward"):
            output_BTK.backward(cast_gradient_BTK)
        counting.register((leaf.grad for leaf in leaves if leaf.grad is not None), GRADIENTS)
        return counting.finished()


LISTENERS: list[AbstractContextManager[object]] = []
"""Further modes that each operation passes first, in this process."""


@contextmanager
def fake_run(device: str, precision: str, kind: type[Counting] = Counting) -> Iterator[Counting]:
    """Count fake tensors by the rules of a device type, "cuda" or "cpu", recording a graph, in a counter of this kind.

    Raises RuntimeError inside autocast, whose weight copies would outlive the passes counted.
    """
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("counters cannot be taken inside torch.autocast; leave it first.")
    float32_rate = "fp32" if PRECISIONS[precision].float32_matmul_precision == "highest" else "tf32"
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(FakeTensorMode())
            counting = stack.enter_context(kind(device, float32_rate, MODEL_SOURCE))
            for listener in LISTENERS:
                stack.enter_context(listener)
            yield counting
    finally:
        bound_fake_shapes()


def fake_training(
    config: ModelConfig,
    attention: str,
    checkpoint: str,
    precision: str,
    optimizer: str,
    device: str,
    own: UserModel | None = None,
) -> Training:
    """A model in training on the host, to run by the rules of a device type; `own` in place of the suite's."""
    if own is not None:
        return Training(own.build(config), PRECISIONS[precision], HOST, optimizer)
    model = TransformerLM(config, attention_named(attention, FAKE_RUN).build(), checkpoint)
    if device == "cuda" and checkpoint != "none":
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                follow_rules(module)
    return Training(model, PRECISIONS[precision], HOST, optimizer)


def make_loss_scale(training: Training) -> None:
    """Make the scale, which a scaler makes at its first use."""
    training.scaler.scale(torch.zeros(()))


def gradients_of(training: Training) -> list[Tensor]:
    return [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]


# Counters of a deep model, exactly, from those of two shallow ones that differ by one layer.
#
# The log of a model of L equal layers is a beginning, L times one layer, and an end. The logs of the two shallow models
# agree from the start through every layer of the shallower, and backwards from the end. In between, each layer differs
# from its neighbour by the same bytes, so the peak lies in the first layer or the last. For logs of another form, the
# common start and end do not cover the deeper log, and NotOfEqualLayersError is raised.


LogStep = list[tuple[str, int]]
"""Categories and bytes, negative when freed, of simultaneous changes."""


Key = TypeVar("Key", bound=Hashable)


class NotOfEqualLayersError(Exception):
    """The counters do not grow by the same amount with each layer; count all layers."""


def extrapolated(few: PartCounters, more: PartCounters, further_layers: int) -> PartCounters:
    """The counters of a model with `further_layers` more layers than `few`, which has one less than `more`."""
    few_steps, few_freed_last = _without_last_frees(_steps(few.changes))
    more_steps, more_freed_last = _without_last_frees(_steps(more.changes))
    from_start, from_end = _common_start(few_steps, more_steps), _common_start(few_steps[::-1], more_steps[::-1])
    if not _is_covered(more_steps, from_start, from_end):
        raise NotOfEqualLayersError("the logs of the two depths differ in the middle")
    at_start = _line(few.live_at_start, more.live_at_start, further_layers)
    at_end = _line(few.live_at_end, more.live_at_end, further_layers)
    before_last_frees = at_end + _line(few_freed_last, more_freed_last, further_layers)
    backwards = [[(category, -size) for category, size in step] for step in few_steps[::-1]]
    # Layers in between repeat each other, so the peak lies in the steps that both depths begin or end with.
    early = few_steps[: max(_heights(few_steps[:from_start]), key=lambda item: item[1])[0]]
    # Of steps backwards, the last of equal heights is the first that happened, which a full log would name.
    late = backwards[: max(_heights(backwards[:from_end]), key=lambda item: (item[1], item[0]))[0]]
    peaks = (live_after(chain(*early), at_start), live_after(chain(*late), before_last_frees))
    scalars = _line(
        Counter(saved=few.saved_bytes, reads=few.host_reads),
        Counter(saved=more.saved_bytes, reads=more.host_reads),
        further_layers,
    )
    return PartCounters(
        kernels=_line(few.kernels, more.kernels, further_layers),
        saved_bytes=scalars["saved"],
        live_at_start=at_start,
        live_at_peak=max(peaks, key=Counter.total),
        live_at_end=at_end,
        changes=(),
        allocations=_line(few.allocations, more.allocations, further_layers),
        host_reads=scalars["reads"],
        log=_with_layers(few.log, more.log, further_layers),
        log_before=_with_layers(few.log_before, more.log_before, further_layers),
    )


def _with_layers(few: Log | None, more: Log | None, further_layers: int) -> Log | None:
    """The log of a model with `further_layers` more than `few`'s, of which `more`'s has one; None if none repeats.

    What is freed after the last allocation is of all layers, and repeats for itself.
    """
    if few is None or more is None:
        return None
    cuts = [max((place for place, (_, size, _) in enumerate(log, 1) if size > 0), default=0) for log in (few, more)]
    whole: Log = ()
    for short, long in ((few[: cuts[0]], more[: cuts[1]]), (few[cuts[0] :], more[cuts[1] :])):
        same, layer = _common_start(short, long), max(0, len(long) - len(short))
        if short[same:] != long[same + layer :]:
            return None
        whole += long[:same] + long[same : same + layer] * further_layers + long[same + layer :]
    return whole


def _steps(changes: tuple[tuple[str, int], ...]) -> list[LogStep]:
    """Each allocation by itself, and simultaneous frees together: their order may depend on addresses."""
    steps: list[LogStep] = []
    for is_allocation, run in groupby(changes, key=lambda change: change[1] > 0):
        if is_allocation:
            steps += [[change] for change in run]
        else:
            freed: Counter[str] = Counter()
            for category, size in run:
                freed[category] += size
            steps.append(sorted(freed.items()))
    return steps


def _without_last_frees(steps: list[LogStep]) -> tuple[list[LogStep], Counter[str]]:
    """The steps up to the last allocation, and what is freed after it, which is of all layers and holds no peak."""
    if not steps or steps[-1][0][1] > 0:
        return steps, Counter()
    return steps[:-1], Counter({category: -size for category, size in steps[-1]})


def _is_covered(steps: list[LogStep], from_start: int, from_end: int) -> bool:
    """Whether common start and end contain each step, except one that only frees and so holds no peak."""
    if from_start + from_end >= len(steps):
        return True
    return from_start + from_end == len(steps) - 1 and all(size < 0 for _, size in steps[from_start])


def _line(few: Counter[Key], more: Counter[Key], further_layers: int) -> Counter[Key]:
    """Each count, extrapolated linearly."""
    line = Counter({key: few[key] + (more[key] - few[key]) * further_layers for key in {**few, **more}})
    if min(line.values(), default=0) < 0:
        raise NotOfEqualLayersError("a count would be negative")
    return +line  # without zeros, which a Counter keeps and a log of such a model would not have


def _common_start(few: Sequence[object], more: Sequence[object]) -> int:
    return next((place for place, (one, other) in enumerate(zip(few, more, strict=False)) if one != other), len(few))


def _heights(steps: list[LogStep]) -> Iterator[tuple[int, int]]:
    """Bytes held, relative to the start, after each number of steps."""
    return enumerate(accumulate((sum(size for _, size in step) for step in steps), initial=0))
