"""A model of the user's own: how it is built, and what is known of it before it runs.

A factory is called with the `ModelConfig` asked for, unless it takes no positional argument, and with the values of
--model-arg by name."""

import importlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from perf_tests_suite.model.attention import naive_attention
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.hardware.torch_private import fake_tensors, let_models_be_built_of_fakes
from perf_tests_suite.perf_tests.user_code.given import (
    IMPLEMENTATIONS,
    SHAPE,
    TWO_STACKS,
    ConfigValues,
    Facts,
    UserModel,
    UserOptimizer,
    argument,
    configuration_values,
    is_configuration,
)
from perf_tests_suite.perf_tests.user_code.guard import (
    LONGEST_SECONDS,
    NeverReturnsError,
    UserCodeError,
    check_kind,
    guarded,
    running_out_of_memory_allowed,
)
from perf_tests_suite.perf_tests.user_code.named import load
from perf_tests_suite.perf_tests.user_code.optimizer import build_optimizer, check_a_step
from perf_tests_suite.perf_tests.user_code.own_loss import check_loss, computes_own_loss, loss_in, outputs_alone


@lru_cache(maxsize=16)
def configuration(model: str, arguments: ConfigValues) -> Any:
    """transformers' configuration, the values of `arguments` in place of the file's. Raises UserCodeError."""
    values = configuration_values(model)
    changes = {name: value for name, value in arguments if name not in IMPLEMENTATIONS}
    kind = values.pop("model_type")
    transformers = _transformers()
    try:
        known = transformers.AutoConfig.for_model(kind)
    except ValueError as error:
        unknown_kind = f"--model {model} names the architecture {kind!r}, which transformers does not know."
        raise UserCodeError(unknown_kind) from error
    if values.get("is_encoder_decoder", known.is_encoder_decoder):  # what a file leaves out is as its kind has it
        raise UserCodeError(f"--model {model} {TWO_STACKS.format(kind)}")
    unknown = [name for name in changes if not hasattr(known, name)]
    if unknown:
        raise UserCodeError(f"--model-arg {unknown[0]} is not a value of a {kind} configuration.")
    # Keys and values of earlier tokens, of no use in training, would count as memory.
    return transformers.AutoConfig.for_model(kind, **{**values, **changes, "use_cache": False})


def shape(model: str, arguments: ConfigValues) -> dict[str, int | None]:
    """Widths and counts, null where the configuration does not name one: GPT-2 has no feed-forward width."""
    names = {
        "d_model": "hidden_size", "d_ff": "intermediate_size", "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads", "vocab_size": "vocab_size", "longest": "max_position_embeddings",
    }  # fmt: skip
    found = configuration(model, arguments)
    values = {ours: getattr(found, theirs, None) for ours, theirs in names.items()}
    # XLNet names no limit by -1.
    return {name: value if isinstance(value, int) and value > 0 else None for name, value in values.items()}


def _transformers() -> Any:
    """Import transformers late: it takes a second, and no other run needs it."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when it is imported
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        next_step = f"repair it in {sys.prefix}, for example by `pip install --force-reinstall transformers`"
        raise UserCodeError(f"transformers, which hf: needs, cannot be imported: {error}; {next_step}.") from error
    transformers.logging.set_verbosity_error()
    return transformers


def build_model(user_model: UserModel, config: ModelConfig, seconds: float | None = None) -> nn.Module:
    """Build it; a call returns logits alone, the loss alone, or both in this order.

    Raises UserCodeError, with a limit also for one that takes long.

    A large model may take long to build for real, so only what comes before measuring sets a limit.
    """
    let_models_be_built_of_fakes()
    if is_configuration(user_model.name):
        chosen = {name: value for name, value in user_model.values if name in IMPLEMENTATIONS}
        for name, value in chosen.items():
            if value not in IMPLEMENTATIONS[name]:
                known = ", ".join(IMPLEMENTATIONS[name])
                raise UserCodeError(f"--model-arg {name} is {value!r}; it must be one of {known}.")
        with guarded(f"--model {user_model.name} cannot be imported"):
            found = configuration(user_model.name, user_model.values)
            # The model's own file now, which may take seconds: building it has a limit.
            classes = getattr(_transformers(), "MODEL_FOR_CAUSAL_LM_MAPPING", {})
            if type(found) in classes:
                classes[type(found)]
        with guarded(f"--model {user_model.name} builds no model", seconds):
            # Weights in float32, whatever the configuration says: precision is an axis of its own.
            model: Any = _transformers().AutoModelForCausalLM.from_config(
                found, trust_remote_code=False, dtype=torch.float32, **chosen
            )
    else:
        with guarded(f"--model {user_model.name} cannot be imported"):
            factory = load(user_model.name)
        with guarded(f"--model {user_model.name} builds no model", seconds):
            try:
                model = factory(*([config] if _takes_a_config(factory) else []), **dict(user_model.values))
            except OtherConfigurationError as error:
                raise UserCodeError(str(error)) from error
    check_kind(f"--model {user_model.name}", model, nn.Module, "an nn.Module")
    # Models of transformers compute a mask for fake tensors alone, by this function (transformers 5.23); it has no
    # switch, and counts would be of operations that never run.
    imports = sys.modules.get("transformers.utils.import_utils")
    if hasattr(imports, "is_fake_tensor"):
        vars(imports)["is_fake_tensor"] = lambda tensor: False
    model.register_forward_hook(outputs_alone)
    return model


@lru_cache(maxsize=64)
def facts_of(user_model: UserModel, config: ModelConfig) -> Facts:
    """Facts of the model, built on fake tensors where that works, else for real. Raises UserCodeError."""
    why_not, (watched, read), model, computes_loss = None, _watched(config, user_model.name), None, False
    with running_out_of_memory_allowed():
        try:
            with fake_tensors():
                model = build_model(user_model, watched, LONGEST_SECONDS)
                computes_loss = computes_own_loss(model, config.context_length, config.vocab_size)
        except NeverReturnsError:
            raise
        except UserCodeError as error:
            why_not = f"{user_model.name} cannot be built on fake tensors: {error.__cause__!r}."
            model = build_model(user_model, watched)
            computes_loss = computes_own_loss(model, config.context_length, config.vocab_size)
    if model is None:
        asked = {name: getattr(config, name) or None for name in SHAPE}
        return Facts(None, None, asked, f"memory ran out building {user_model.name}.")
    if is_configuration(user_model.name):
        named = shape(user_model.name, user_model.values)
        shape_fields = {name: named[name] for name in SHAPE}
    else:
        shape_fields = {name: getattr(config, name) if name in read else None for name in SHAPE}
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return Facts(
        parameters=sum(size for size, _ in sizes),
        trainable_parameters=sum(size for size, is_trained in sizes if is_trained),
        shape=shape_fields,
        why_not_counted=why_not,
        computes_loss=computes_loss,
    )


@dataclass(frozen=True)
class ConfiguredShape(ModelConfig):
    """Vocabulary and longest context of a model whose widths stand in its own configuration, here 0."""

    def __post_init__(self) -> None:
        """Check no width: none is used, or all were checked already."""


def configured_shape(user_model: UserModel, context_length: int) -> ModelConfig:
    """What a configuration asks for. Raises UserCodeError."""
    with guarded(f"--model {user_model.name} is not a configuration of a language model"):
        named = shape(user_model.name, user_model.values)
    if named["vocab_size"] is None:
        raise UserCodeError(f"--model {user_model.name} names no vocab_size; add it to the configuration.")
    if named["longest"] is not None and context_length > named["longest"]:
        raise UserCodeError(
            f"--context is {context_length}, and --model {user_model.name} takes at most {named['longest']} tokens "
            "(max_position_embeddings); choose a shorter context."
        )
    return ConfiguredShape(0, 0, 0, 0, named["vocab_size"], context_length)


class OtherConfigurationError(AttributeError):
    """A factory asked our configuration for what it does not have; the message says what to write."""


def _watched(config: ModelConfig, factory: str) -> tuple[ModelConfig, set[str]]:
    """An equal configuration, and the fields of the shape read from it: a factory may ignore what it is asked for."""
    read: set[str] = set()

    class Watched(ConfiguredShape):
        def __getattribute__(self, name: str) -> Any:
            read.update(SHAPE if name == "__dict__" else {name}.intersection(SHAPE))
            return super().__getattribute__(name)

        def __getattr__(self, name: str) -> Any:
            """Refuse what it lacks: the factory wants another configuration than ours."""
            known = ", ".join(field.name for field in fields(ModelConfig))
            place, _, wanted = factory.rpartition(":")
            raise OtherConfigurationError(
                f"--model {factory} builds no model: ModelConfig has no {name!r}; it has {known}. Write these lines "
                f"into {place}, and name --model {place}:build\n\n"
                f"    def build(config):\n"
                f"        mine = YourConfig({name}=..., vocab_size=config.vocab_size)  # yours, from fields of config\n"
                f"        return {wanted}(mine)\n"
            )

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


# Whether what is the user's own can be measured, before anything is: a model without content and for real.


SMALL_PARAMETERS = 100_000_000
"""A model of at most so many is built and run for the check; a larger one when its first case borrows it."""

EARLIER_MOVE = 1e-4
"""The share of the largest logit by which those of earlier tokens may move with the last: rounding is far less."""

FIRST_LAYER = {"num_hidden_layers": 1, "vocab_size": 64}
"""Values of a configuration under which even a large model is small, as long as it names no token beyond 63."""

SMALL_TO_STEP = 10_000_000
"""The same for the step of an optimizer of the user's own, which may multiply all the weights many times."""


class NotCausalError(UserCodeError):
    """A model sees what it is to predict."""


def check_before_measuring(user_model: UserModel, configs: Sequence[ModelConfig], device: torch.device) -> None:
    """Run it once; raises UserCodeError unless it is a language model under `configs`, of which the smallest comes
    first.

    The first and the last run without content; the others, as every model, are checked when a case borrows them. The
    smallest runs on `device` too, unless it is large or memory runs out, which is an outcome of its cases.
    """
    for config in dict.fromkeys((configs[0], configs[-1])):
        if facts_of(user_model, config).why_not_counted is None:
            _check_without_content(user_model, config)
    with running_out_of_memory_allowed():
        if (facts_of(user_model, configs[0]).parameters or 0) <= SMALL_PARAMETERS:
            model = build_model(user_model, configs[0], LONGEST_SECONDS).to(device)
            computes_loss = facts_of(user_model, configs[0]).computes_loss
            name = user_model.name
            check_values_of(name, model, configs[0], device, LONGEST_SECONDS, computes_loss=computes_loss)


def check_optimizer_before_measuring(
    optimizer: UserOptimizer, user_model: UserModel | None, config: ModelConfig, device: torch.device
) -> None:
    """Step it once; raises UserCodeError unless it trains `user_model` under `config`, or else a narrow model of the
    suite's.

    A large model is given to it without content alone; it is tried when its first case borrows that model.
    """
    with running_out_of_memory_allowed():
        if user_model is None:
            narrow = ModelConfig(32, 64, config.num_layers, 1, vocab_size=64, context_length=8)
            check_a_step(optimizer, TransformerLM(narrow, naive_attention).to(device), device, LONGEST_SECONDS)
        elif ((facts := facts_of(user_model, config)).parameters or math.inf) <= SMALL_TO_STEP:
            check_a_step(
                optimizer, build_model(user_model, config, LONGEST_SECONDS).to(device), device, LONGEST_SECONDS
            )
        elif facts.why_not_counted is None:
            with fake_tensors():
                build_optimizer(optimizer, build_model(user_model, config, LONGEST_SECONDS), LONGEST_SECONDS)


@torch.no_grad()
def _check_without_content(user_model: UserModel, config: ModelConfig) -> None:
    """Check only what came out: to fail on fake tensors, on a value read for example, is no fault."""
    with fake_tensors():
        model = build_model(user_model, config, LONGEST_SECONDS)
        tokens_BT = torch.zeros(1, config.context_length, dtype=torch.int64)
        try:
            with guarded("it cannot run on fake tensors", LONGEST_SECONDS):
                given = (tokens_BT, tokens_BT) if facts_of(user_model, config).computes_loss else (tokens_BT,)
                output = model(*given)
        except UserCodeError:
            return
        check_output(user_model.name, model, tokens_BT, output, config.vocab_size, computes_loss=len(given) == 2)


@torch.no_grad()
def check_values_of(
    name: str, model: nn.Module, config: ModelConfig, device: torch.device, seconds: float | None = None,
    *, computes_loss: bool = False,
) -> None:  # fmt: skip
    """Check values; raises UserCodeError unless the model, run on `device`, computes finite logits from all of its
    context.

    Of one that returns the loss alone only this is looked at: neither its context nor later tokens show in a mean.
    """
    what = f"--model {name}"

    def returned(tokens_BT: Tensor, failing: str) -> Any:
        """Return what it gives; dropout draws the same in every call, so that two differ by their tokens alone."""
        with (
            guarded(f"{what} fails {failing}", seconds),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            return model(tokens_BT, targets_BT) if computes_loss else model(tokens_BT)

    targets_BT = torch.randint(config.vocab_size, (1, config.context_length), device=device)
    tokens_BT = torch.randint(config.vocab_size, (1, config.context_length), device=device)
    given_BT = tokens_BT.clone()
    try:
        logits_BTV = returned(tokens_BT, f"on tokens of shape {tuple(tokens_BT.shape)}")
    except UserCodeError as error:
        if "FakeTensor" not in str(error):
            raise
        raise UserCodeError(
            f"{what} keeps a tensor from one build to the next, in a global or a cache, so that a fake one reaches "
            "this model; keep it in the module."
        ) from error
    check_output(name, model, tokens_BT, logits_BTV, config.vocab_size, computes_loss=computes_loss)
    if not torch.equal(tokens_BT, given_BT):
        raise UserCodeError(f"{what} changed its tokens in place; change a copy, because they are used again.")
    if computes_loss:
        if not bool(torch.isfinite(loss_in(logits_BTV))):
            raise UserCodeError(f"{what} returned a loss that is not finite, from its initial weights.")
        if not isinstance(logits_BTV, tuple) or logits_BTV[0].shape != (*tokens_BT.shape, config.vocab_size):
            return
        logits_BTV = logits_BTV[0]
    if not bool(torch.isfinite(logits_BTV).all()):
        raise UserCodeError(f"{what} returned logits that are not finite, from its initial weights.")
    if config.context_length == 1:
        return

    def logits_in(tokens_BT: Tensor, failing: str) -> Tensor:
        output = returned(tokens_BT, failing)
        return output[0] if computes_loss else output

    with _zero_matrices_drawn(model) as drawn:
        if drawn:
            logits_BTV = logits_in(tokens_BT, "with weights in place of zeros")
        ended_BT = tokens_BT.clone()
        ended_BT[:, -1] = (tokens_BT[:, -1] + 1) % config.vocab_size
        moved = (logits_in(ended_BT, "at its second call") - logits_BTV)[:, :-1].abs().amax()
        if moved > EARLIER_MOVE * logits_BTV.abs().amax():
            raise NotCausalError(
                f"{what} is not a causal language model: logits of earlier tokens change with the last token, so it "
                "sees what it is to predict; mask later tokens (is_decoder in a configuration)."
            )
        changed_BT = (tokens_BT + 1) % config.vocab_size
        changed_BT[:, -1] = tokens_BT[:, -1]
        if torch.equal(logits_in(changed_BT, "at its third call")[:, -1], logits_BTV[:, -1]):
            raise UserCodeError(
                f"{what} ignores its context: the last logits do not depend on earlier tokens, so a figure for this "
                "context length would be wrong."
            )


@contextmanager
def _zero_matrices_drawn(model: nn.Module) -> Iterator[int]:
    """Draw, inside, each weight matrix of zeros, and return how many: a product with zeros shows nothing of its input.

    As nanochat has it, whose blocks add nothing before the first step.
    """
    zeros = [weight for weight in model.parameters() if weight.dim() > 1 and not bool(weight.any())]
    try:
        for weight in zeros:
            nn.init.normal_(weight, std=0.02)
        yield len(zeros)
    finally:
        for weight in zeros:
            nn.init.zeros_(weight)


@lru_cache(maxsize=16)
def check_first_layer(user_model: UserModel) -> None:
    """Run the first layer of a configuration; raises NotCausalError where it sees later tokens.

    For a model that may be too large to run here. One that cannot be cut, or fails for another reason, is not refused.
    """
    others = (text for text in user_model.arguments if argument(text)[0] not in FIRST_LAYER)
    cut = UserModel(user_model.name, (*others, *(f"{name}={value}" for name, value in FIRST_LAYER.items())))
    config = ConfiguredShape(0, 0, 0, 0, FIRST_LAYER["vocab_size"], 8)
    try:
        if (facts_of(cut, config).parameters or math.inf) <= SMALL_PARAMETERS:
            model = build_model(cut, config, LONGEST_SECONDS)
            check_values_of(cut.name, model, config, torch.device("cpu"), LONGEST_SECONDS)
    except NotCausalError:
        raise
    except UserCodeError:
        return


def check_output(
    name: str, model: nn.Module, tokens_BT: Tensor, logits_BTV: Any, vocab_size: int, *, computes_loss: bool = False
) -> None:
    """Check what a model returned; raises UserCodeError unless it is logits of the tokens, or the loss where it
    `computes_loss`, and all is in float32.
    """
    what = f"--model {name}"
    halves = {str(one.dtype) for one in model.parameters() if one.is_floating_point() and one.dtype != torch.float32}
    if halves:
        next_step = "build them in float32 and choose the precision with --precision"
        raise UserCodeError(f"{what} has parameters of {', '.join(sorted(halves))}; {next_step}.")
    if computes_loss:
        check_loss(what, loss_in(logits_BTV))
        return
    shape = tuple(tokens_BT.shape)
    wanted = (*shape, vocab_size)
    got = tuple(logits_BTV.shape) if isinstance(logits_BTV, Tensor) else type(logits_BTV).__name__
    if got != wanted:
        raise UserCodeError(
            f"{what} returned {got} for tokens of shape {shape}; it must return logits of shape {wanted}."
        )
    if logits_BTV.dtype != torch.float32:
        raise UserCodeError(f"{what} returned logits of {logits_BTV.dtype}; without autocast give float32.")
