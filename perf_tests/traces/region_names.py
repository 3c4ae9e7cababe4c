"""The model's regions as rows of a table: all layers together, without phases."""

PHASES = ("full_step", "forward", "backward")
ELSEWHERE = "elsewhere"
"""In no region but a phase."""


def layer_of(path: tuple[str, ...]) -> str | None:
    """The region of the layer on the path, `block 3`; None outside of all."""
    return next((name for name in path if name.startswith("block ")), None)


def label(path: tuple[str, ...]) -> list[str]:
    """`("forward", "block 3", "attention", "softmax")` to `["attention", "attention / softmax"]`."""
    names = [name for name in path if name not in PHASES and not name.startswith("block ")]
    if not names:
        return ["residual" if layer_of(path) else ELSEWHERE]
    return [" / ".join(names[: depth + 1]) for depth in range(len(names))]
