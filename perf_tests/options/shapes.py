"""Sizes of models: known names, and shapes as typed."""

import re

from model.sizes import SIZES, ModelConfig
from perf_tests.options.values import entries, one_of, refuse_doubled, some_of

SIZES_APART = ("tiny", "small-2layers")
"""Sizes that `all` leaves out: one for smoke tests, one for the gate."""


SHAPE = re.compile(r"(?:(?P<name>[A-Za-z][\w.]*)=)?(\d+)x(\d+)x(\d+)x(\d+)")


def sizes(option: str, text: str) -> tuple[str, ...]:
    """Known names and shapes of one's own, `192x768x3x4` or `wide=192x768x3x4`, smallest of each first."""
    if text == "all":
        return some_of(SIZES, option, text, SIZES_APART)
    items = entries(option, text)
    shapes = {_known_or_own(option, item) for item in items if SHAPE.fullmatch(item)}
    refuse_doubled(option, "shapes", [size_label(item) for item in shapes])
    known = {item for item in shapes if item in SIZES}
    for item in items:
        if not SHAPE.fullmatch(item):
            known.add(one_of(SIZES, option, item, ", all, or a shape as D_MODELxD_FFxLAYERSxHEADS"))
    own = sorted(shapes - known, key=lambda item: (shape_named(item).parameters, item))
    return (*(name for name in SIZES if name in known), *own)


def _known_or_own(option: str, text: str) -> str:
    """The known size of this shape, else the text. Raises ValueError."""
    match = SHAPE.fullmatch(text)
    assert match is not None
    if match["name"] in SIZES:
        raise ValueError(f"{option} {text!r} gives another shape the name of a known size; choose another name.")
    try:
        shape = shape_named(text)
    except ValueError as error:
        raise ValueError(f"{option} {text!r} is no shape of a model: {error}") from error
    return next((name for name, known in SIZES.items() if known == shape), text)


def size_label(size: str) -> str:
    """The name of a size as typed: `wide` of `wide=192x768x3x4`."""
    return size.partition("=")[0]


def shape_named(size: str) -> ModelConfig:
    """The shape of a known name or of a shape as typed. Raises ValueError."""
    if size in SIZES:
        return SIZES[size]
    match = SHAPE.fullmatch(size)
    if match is None:
        raise ValueError(f"{size!r} is neither a known size nor a shape.")
    return ModelConfig(*(int(number) for number in match.groups()[1:]))
