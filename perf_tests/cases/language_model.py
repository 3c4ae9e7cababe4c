"""One phase of training one language model."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.model_names import attention_names, optimizer_that_runs
from perf_tests_suite.perf_tests.cases.options import CUDA_GRAPH_EXECUTIONS, shape_named, size_label
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.cases.sharing import Sharing, backend_of
from perf_tests_suite.perf_tests.hardware.limits import FLOAT32_BYTES, ModelWork, Work, saved_bytes
from perf_tests_suite.perf_tests.phases import EXAMINED, LanguageModelIdentity, identity_from
from perf_tests_suite.perf_tests.user_code.given import (
    SHAPE,
    Facts,
    UserModel,
    UserOptimizer,
    is_configuration,
    label,
    user_optimizer,
)
from perf_tests_suite.perf_tests.user_code.named import from_its_repository

DEFAULT_ZERO_GRAD = "before-forward"

OF_ATTENTION_ALONE = "{} is a precision of attention alone: the weights of a model are float32, so choose bf16."
"""Why a model is not measured in tensors of 16 bits."""


@dataclass(frozen=True)
class LanguageModelCase(Case):
    """One phase of training one language model."""

    phase: str
    size: str
    config: ModelConfig
    context_length: int
    batch_size: int
    precision: str
    attention: str
    execution: str
    checkpoint: str
    optimizer: str | None
    """How AdamW runs, or a factory of the user's as typed; None in phases without a step."""
    device: str
    model: str
    model_arguments: tuple[str, ...] = ()
    zero_grad: str = DEFAULT_ZERO_GRAD
    """The moment at which a step clears gradients, as typed."""
    holds_former_pass: bool = False
    """Whether the user's loop still holds the outputs of the pass before; the suite's own never does."""
    sharing: Sharing | None = None
    axes: ClassVar = {
        "model_size": "sizes", "context_length": "contexts", "precision": "precisions", "attention": "attentions",
        "execution": "executions", "checkpoint": "checkpoints", "batch_size": "batch_sizes", "parallel": "parallels",
    }  # fmt: skip

    @classmethod
    def of(cls, phase: str, axes: dict[str, Any], settings: Settings) -> Self:
        optimizer = optimizer_that_runs(settings.optimizer, settings.device_type)
        return cls(
            phase=phase,
            size=size_label(axes["model_size"]),
            config=config_of(user_model(settings), axes["model_size"], axes["context_length"], settings.vocab_size),
            batch_size=axes.get("batch_size") or settings.batch_sizes[0],
            optimizer=optimizer if EXAMINED[phase].trains else None,
            device=settings.device_type,
            model=settings.model or "ours",
            model_arguments=settings.model_arguments,
            zero_grad=settings.zero_grad if "zero_grad" in EXAMINED[phase].timed else DEFAULT_ZERO_GRAD,
            sharing=None if axes.get("parallel") is None else Sharing.of(axes["parallel"]),
            **{name: axes[name] for name in cls.axes if name not in ("model_size", "batch_size", "parallel")},
        )

    @classmethod
    def grid(cls, settings: Settings) -> list[tuple[Any, ...]]:
        """Leave out attention compiled by itself inside a compiled model; the batch is None where there is only one."""
        compiled = {name for name, is_compiled in attention_names().items() if is_compiled}
        if len(settings.batch_sizes) == 1:
            settings = replace(settings, batch_sizes=(None,))  # type: ignore[arg-type]
        return [values for values in super().grid(settings) if values[4] == "eager" or values[3] not in compiled]

    @staticmethod
    def id_of(
        size: str,
        context: int,
        precision: str,
        attention: str,
        execution: str = "eager",
        checkpoint: str = "none",
        batch_size: int | None = None,
        parallel: str | None = None,
    ) -> str:
        """`small-ctx128-bf16-naive`; an axis at its default adds nothing, so that a new axis renames no old case.

        The id joins a case to its rows in older records: a changed id breaks every comparison of the case. The only
        batch of a run, None, adds nothing either.
        """
        parts = [size_label(size), f"ctx{context}", precision, label(attention)]
        if execution != "eager":
            parts.append("compiled-model" if execution == "compiled" else execution)
        if checkpoint != "none":
            parts.append(f"checkpoint-{checkpoint}")
        if batch_size not in (None, 4):
            parts.append(f"batch{batch_size}")
        if parallel is not None:
            parts.append(parallel)
        return "-".join(parts)

    def identity(self) -> dict[str, Any]:
        known = identity_from(LanguageModelIdentity, self, self.config, self.sharing)
        if self.user_optimizer is not None:
            known["optimizer"] = self.user_optimizer.in_identity
        if self.user_model is None:
            return known | {"attention": from_its_repository(self.attention)}
        return known | self.user_model.in_identity | self.facts.shape

    @property
    def user_model(self) -> UserModel | None:
        return None if self.model == "ours" else UserModel(self.model, self.model_arguments)

    @property
    def user_optimizer(self) -> UserOptimizer | None:
        return user_optimizer(self.optimizer)

    @property
    def zero_grad_policy(self) -> str | None:
        """The policy as records spell it."""
        return f"set_to_none_{self.zero_grad.replace('-', '_')}" if "zero_grad" in self.phase_row.timed else None

    @property
    def updates(self) -> bool:
        """Whether a step updates: one that has just cleared its gradients does not."""
        return self.phase_row.trains and not ("zero_grad" in self.phase_row.timed and self.zero_grad == "before-step")

    @property
    def is_compiled(self) -> bool:
        return self.execution != "eager" or super().is_compiled

    @property
    def replays_cuda_graphs(self) -> bool:
        return self.execution in CUDA_GRAPH_EXECUTIONS

    @property
    def tokens(self) -> int:
        return (self.global_batch_size or self.batch_size) * self.context_length

    @property
    def global_batch_size(self) -> int | None:
        if self.sharing is None:
            return None
        return self.batch_size * (self.sharing.world if self.sharing.scaling == "weak" else 1)

    @property
    def per_rank_batch_size(self) -> int | None:
        return None if self.sharing is None else (self.global_batch_size or 0) // self.sharing.world

    @property
    def backend(self) -> str | None:
        """What carries bytes between its ranks."""
        return None if self.sharing is None else backend_of(self.device)

    @property
    def facts(self) -> Facts:
        """What is known of its model: of ours by its shape, of the user's by the module itself."""
        if self.user_model is not None:
            from perf_tests_suite.perf_tests.user_code.model import facts_of  # late: to build one loads torch

            return facts_of(self.user_model, self.config)
        shape = {name: getattr(self.config, name) for name in SHAPE}
        return Facts(self.config.parameters, self.config.parameters, shape, why_not_counted=None)

    @property
    def computes_loss(self) -> bool:
        """Whether the model computes the loss, so that a forward pass returns it."""
        return self.user_model is not None and self.facts.computes_loss

    @property
    def parameters(self) -> int | None:
        return self.facts.parameters

    @property
    def trainable_parameters(self) -> int | None:
        return self.facts.trainable_parameters

    @property
    def blocks(self) -> int:
        return self.facts.shape["num_layers"] or 1

    @property
    def query_shape(self) -> tuple[int, ...]:
        return (self.batch_size, self.config.num_heads, self.context_length, self.config.head_dim)

    @property
    def residual_tensor_bytes(self) -> int | None:
        return self.tokens * self.config.d_model * FLOAT32_BYTES if self.user_model is None else None

    @property
    def least_bytes(self) -> int:
        """Weights, gradients, AdamW's two moments and logits; another optimizer, or loss, may keep nothing."""
        trainable = self.trainable_parameters or 0
        weights: float = (self.parameters or 0) + self.phase_row.has_backward * trainable
        moments: float = 2 * trainable * (self.phase_row.trains and self.user_optimizer is None)
        if self.sharing is not None:
            of_weights, of_moments = self.sharing.kept_shares
            weights, moments = weights * of_weights, moments * of_moments
        logits = 0 if self.computes_loss else self.tokens * self.config.vocab_size // (self.ranks or 1)
        return int(FLOAT32_BYTES * (weights + moments + logits))

    @property
    def resident_bytes(self) -> int:
        """Parameters, gradients, moments and what the backward pass of ours needs."""
        per_parameter = 1 + self.phase_row.has_backward + 2 * self.phase_row.trains
        saved = saved_bytes(self.config, self.batch_size, self.context_length) if self.user_model is None else 0
        return per_parameter * FLOAT32_BYTES * (self.parameters or 0) + saved

    @property
    def work(self) -> Work | None:
        sequences = self.global_batch_size or self.batch_size
        return ModelWork(self.size, self.config, sequences, self.context_length) if self.user_model is None else None

    @property
    def why_not_counted(self) -> str | None:
        if self.sharing is None and self.replays_cuda_graphs:
            return "what a compiled model fuses and the memory pool of its CUDA graphs holds is unknown until it runs."
        if self.sharing is None and self.execution != "eager":
            return "what a compiled model fuses is unknown until it is compiled for its device."
        if self.sharing is None and self.user_model is not None:
            return self.facts.why_not_counted
        return super().why_not_counted

    def why_unsupported_on_ranks(self, gpus: int) -> str | None:
        if self.sharing is None:
            return None
        if reason := self.sharing.why_unsupported(self.batch_size, self.device, gpus):
            return reason
        if self.execution != "eager":
            return f"--execution {self.execution} is measured on one device; choose eager."
        if self.user_optimizer is not None:
            return "an optimizer of your own is measured on one device; choose one of --optimizer's names."
        return None

    @property
    def built_from(self) -> tuple[Any, ...]:
        way = (self.attention, self.execution, self.checkpoint, self.device, self.sharing)
        return (self.user_model, self.config, *way)


def user_model(settings: Settings) -> UserModel | None:
    return None if settings.model is None else UserModel(settings.model, settings.model_arguments)


def config_of(of_user: UserModel | None, size: str, context_length: int, vocab_size: int | None = None) -> ModelConfig:
    """What a case of this size asks its model for. Raises UserCodeError for a configuration that is none."""
    if of_user is not None and is_configuration(of_user.name):
        from perf_tests_suite.perf_tests.user_code.model import configured_shape  # late: to read one loads torch

        return configured_shape(of_user, context_length)
    config = shape_named(size).at_context(context_length)
    return config if vocab_size is None else replace(config, vocab_size=vocab_size)
