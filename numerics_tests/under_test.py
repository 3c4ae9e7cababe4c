"""What the user gives in place of the suite's own: functions with --attention, or a model with --model."""

from dataclasses import dataclass

import pytest
from torch import nn

from model.sizes import ModelConfig
from perf_tests.cases.options import typed_or
from perf_tests.user_code.attention import function_of, is_own
from perf_tests.user_code.guard import OwnModelError
from perf_tests.user_code.model import OwnModel, configured_shape, is_configuration


@dataclass
class Given:
    attentions: tuple[str, ...] = ()
    """As typed."""
    model: OwnModel | None = None

    def __bool__(self) -> bool:
        return bool(self.attentions or self.model)

    def build(self, config: ModelConfig) -> nn.Module:
        """The model, without dropout, with which no step repeats. Raises OwnModelError."""
        assert self.model is not None
        if is_configuration(self.model.name):
            config = configured_shape(self.model, config.context_length)
        return self.model.build(config).eval()


GIVEN = Given()


def take(config: pytest.Config, shape: ModelConfig) -> None:
    """Fill `GIVEN`; raises pytest.UsageError for what cannot be imported or built, and for both at once."""
    GIVEN.attentions = typed_or(config, "--attention", ())
    name = typed_or(config, "--model", None)
    GIVEN.model = None if name is None else OwnModel(name, typed_or(config, "--model-arg", ()))
    if GIVEN.attentions and GIVEN.model:
        raise pytest.UsageError("numerics_tests takes --attention or --model, not both; run it once for each.")
    try:
        for attention in filter(is_own, GIVEN.attentions):
            function_of(attention)
        if GIVEN.model:
            GIVEN.build(shape)
    except OwnModelError as error:
        raise pytest.UsageError(str(error)) from error


def in_words() -> str | None:
    """A line of the header; None where nothing is given."""
    if not GIVEN:
        return None
    given = f"--model {GIVEN.model.name}" if GIVEN.model else f"--attention {','.join(GIVEN.attentions)}"
    return f"numerics: {given}; tests of anything else are not selected"
