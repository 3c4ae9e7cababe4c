"""Training steps run on fake tensors: each part is counted once, for every phase that contains it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import torch

from perf_tests_suite import model as model_package
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training, optimizer_that_runs
from perf_tests_suite.model.transformer import MultiHeadAttention, TransformerLM
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.clock import tensor_dtype
from perf_tests_suite.perf_tests.hardware.torch_private import bound_fake_shapes, fake_tensors
from perf_tests_suite.perf_tests.predict.counting import Counting
from perf_tests_suite.perf_tests.predict.cuda_rules import follow_rules
from perf_tests_suite.perf_tests.predict.parts import GRADIENTS, INPUTS, OPTIMIZER_STATE, PARAMETERS, Parts
from perf_tests_suite.perf_tests.user_code.attention import FAKE_RUN, attention_named
from perf_tests_suite.perf_tests.user_code.given import UserOptimizer, is_user_function
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from perf_tests_suite.perf_tests.user_code.model import build_model
from perf_tests_suite.perf_tests.user_code.optimizer import put_into
from perf_tests_suite.perf_tests.user_code.own_loss import OwnLossTraining

MODEL_SOURCE = Path(model_package.__file__).parent


HOST = torch.device("cpu")


def count_passes(case: LanguageModelCase, kind: type[Counting] = Counting) -> Parts:
    """Counters of `inference`, or of `forward`, `loss` and `backward`, every layer counted, in a counter of this kind.

    Only weights and batch are held at the start; the logits are freed after the loss.
    """
    with fake_run(case.device, case.precision, kind) as counting:
        training = fake_training(case)
        counting.claim(PARAMETERS)
        counting.guesses_values = case.user_model is None and not is_user_function(case.attention)
        tokens_BT, targets_BT = (torch.zeros(case.batch_size, case.context_length, dtype=torch.int64) for _ in range(2))
        counting.claim(INPUTS)
        make_loss_scale(training)
        counting.claim(OPTIMIZER_STATE)
        if not case.phase_row.records_graph:
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
        parameters = training.model.parameters()
        counting.register((one.grad for one in parameters if one.grad is not None), GRADIENTS)
        return counting.finished()


def count_updates(case: LanguageModelCase, kind: type[Counting] = Counting) -> Parts:
    """Counters of `first_update`, which makes the optimizer's state, and of `update`, which finds it there.

    Only weights, gradients and state are held. Raises UserCodeError for an optimizer of the user's that has none.
    """
    of_user = case.user_optimizer
    implementation = "default" if of_user else case.optimizer or "default"
    with fake_run(case.device, case.precision, kind) as counting:
        training = fake_training(case, optimizer_that_runs(implementation, torch.device(case.device)))
        counting.claim(PARAMETERS)
        if of_user is not None:
            put_into(of_user, training, training.model)
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
        next_step = "name a factory of yours that sets it to True or False, since a bare class is given no arguments"
        raise UserCodeError(f"{own.name} lets PyTorch choose `foreach` by the device; {next_step}.")

    def guess(whether: bool) -> Callable[..., None]:
        return lambda *_: setattr(counting, "guesses_values", whether)

    training.optimizer.register_step_pre_hook(guess(False))
    training.optimizer.register_step_post_hook(guess(True))


def count_attention(case: AttentionCase, kind: type[Counting] = Counting) -> Parts:
    """Counters of both phases of attention alone, by phase; query, key, value and output gradient are there."""
    with fake_run(case.device, case.precision, kind) as counting:
        dtype = tensor_dtype(PRECISIONS[case.precision])
        leaves = [torch.zeros(case.query_shape, dtype=dtype).requires_grad_() for _ in range(3)]
        gradient_BTK = torch.zeros(case.query_shape, dtype=dtype)
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
            stack.enter_context(fake_tensors())
            counting = stack.enter_context(kind(device, float32_rate, MODEL_SOURCE))
            for listener in LISTENERS:
                stack.enter_context(listener)
            yield counting
    finally:
        bound_fake_shapes()


def fake_training(case: LanguageModelCase, optimizer: str = "loop") -> Training:
    """The model of a case in training on the host, to run by the rules of its device type."""
    own, precision = case.user_model, PRECISIONS[case.precision]
    if own is not None:
        kind = OwnLossTraining if case.computes_loss else Training
        return kind(build_model(own, case.config), precision, HOST, optimizer)
    model = TransformerLM(case.config, attention_named(case.attention, FAKE_RUN).build(), case.checkpoint)
    if case.device == "cuda" and case.checkpoint != "none":
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                follow_rules(module)
    return Training(model, precision, HOST, optimizer)


def make_loss_scale(training: Training) -> None:
    """Make the scale, which a scaler makes at its first use."""
    training.scaler.scale(torch.zeros(()))
