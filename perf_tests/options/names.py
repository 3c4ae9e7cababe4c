"""Texts that name code: attention, checkpoints, optimizers, models and their arguments, ours or the user's."""

from collections.abc import Sequence

from model.attention import ATTENTION
from model.training import OPTIMIZERS
from model.transformer import blocks_per_checkpoint
from perf_tests.options.values import entries, one_of, refuse_doubled
from perf_tests.own.attention import is_own, label
from perf_tests.own.hugging_face import check_configuration, is_configuration
from perf_tests.own.model import argument
from perf_tests.own.named import check_name


def attentions(option: str, text: str) -> tuple[str, ...]:
    """Names of the table in its order, then functions of the user's as typed; of these `all` has none."""
    items = [] if text == "all" else entries(option, text)
    own = tuple(dict.fromkeys(item for item in items if is_own(item)))
    for item in own:
        check_name(option, item)
    refuse_doubled(option, "functions", [label(item) for item in own])
    forms = ", all, FILE.py:FUNCTION or MODULE:FUNCTION"
    known = [one_of(ATTENTION, option, item, forms) for item in items if item not in own]
    return (*(name for name in ATTENTION if text == "all" or name in known), *own)


def checkpoints(everything: Sequence[str], option: str, text: str) -> tuple[str, ...]:
    """A comma-separated list in the order typed."""
    if text == "all":
        return tuple(everything)
    chosen = tuple(dict.fromkeys(entries(option, text)))
    for item in chosen:
        blocks_per_checkpoint(item)
    return chosen


def check_checkpoints(chosen: Sequence[str], num_layers: int) -> None:
    """Raises ValueError for more blocks in a checkpoint than the deepest model has; all of them are one checkpoint."""
    for checkpoint in chosen:
        if blocks_per_checkpoint(checkpoint) > num_layers:
            raise ValueError(f"--checkpoint {checkpoint} is more blocks than a model has; give at most {num_layers}.")


def own_model(option: str, text: str) -> str:
    (check_configuration if is_configuration(text) else check_name)(option, text)
    return text


def optimizer(option: str, text: str) -> str:
    """How AdamW runs, or the name of a factory."""
    if ":" not in text:
        return one_of(OPTIMIZERS, option, text, ", or name a factory as MODULE:FACTORY or FILE.py:FACTORY")
    check_name(option, text)
    return text


def own_arguments(option: str, text: str) -> tuple[str, ...]:
    """One `name=value` a line: the option is repeatable."""
    lines = tuple(text.splitlines())
    names = [argument(line)[0] for line in lines]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{option} {name} is given twice; give it once.")
    return lines
