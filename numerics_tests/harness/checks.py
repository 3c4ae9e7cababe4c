"""How a claim looks at a result, and how it fails: with error / bound, and where it happened."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# Private, but the only way to see each operator as the dispatcher runs it, the backward pass included;
# torch.overrides.TorchFunctionMode, the public one, sees Python's calls alone.
from torch.utils._python_dispatch import TorchDispatchMode

from perf_tests_suite.numerics_tests.machine.formats import U32


def assert_within(actual: Tensor, exact: Tensor, bound: Tensor | float, source: str) -> None:
    """Raise AssertionError unless |actual - exact| <= bound everywhere; `exact` is the float64 oracle."""
    __tracebackhide__ = True
    assert exact.dtype == torch.float64, f"the oracle must be float64, it is {exact.dtype}"
    assert actual.shape == exact.shape, f"shape {tuple(actual.shape)}, the oracle has {tuple(exact.shape)}"
    error = (actual.double() - exact).abs()
    allowed = torch.as_tensor(bound, dtype=torch.float64, device=error.device).expand_as(error)
    # Written so that NaN fails: every comparison with NaN is false.
    outside = ~(error <= allowed)
    if not outside.any():
        return
    ratio = torch.where(outside, (error / allowed).nan_to_num(nan=float("inf")), 0)
    worst = int(ratio.flatten().argmax())
    raise AssertionError(
        f"error is {ratio.flatten()[worst]:.3g} x its bound at {_index(worst, error)} "
        f"({int(outside.sum())} of {error.numel()} outside): got {actual.flatten()[worst]:.9g}, "
        f"float64 says {exact.flatten()[worst]:.9g}, error {error.flatten()[worst]:.3g}, "
        f"allowed {allowed.flatten()[worst]:.3g} [{source}]."
    )


def assert_same_bits(actual: Tensor, expected: Tensor, source: str) -> None:
    """Raise AssertionError unless both tensors have one dtype and the same bits; -0 is not 0, any NaN is NaN."""
    __tracebackhide__ = True
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype} [{source}]"
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    both_nan = actual.isnan() & expected.isnan()
    same = (actual == expected) & (actual.signbit() == expected.signbit())
    different = ~(same | both_nan)
    if not different.any():
        return
    first = int(different.flatten().int().argmax())
    raise AssertionError(
        f"{int(different.sum())} of {actual.numel()} values differ, first at {_index(first, actual)}: "
        f"got {actual.flatten()[first]:.9g}, expected {expected.flatten()[first]:.9g} [{source}]."
    )


def assert_true(fact: bool, sentence: str) -> None:
    """Raise AssertionError with `sentence` unless `fact` holds."""
    __tracebackhide__ = True
    if not fact:
        raise AssertionError(sentence)


def assert_at_most_twice(
    actual: Tensor, baseline: Tensor, exact: Tensor, floor: float = 0.0, roundings: float = 0.0
) -> None:
    """Raise AssertionError if the largest error exceeds twice that of the plain computation, `baseline`, and a floor:
    `floor` itself, or so many roundings of the largest exact value to float32.

    The rule of flash-attention's own tests, tests/test_flash_attn.py: no bound is needed where a yardstick is.
    """
    __tracebackhide__ = True
    error = float((actual.double() - exact).abs().max())
    floor += roundings * U32 * float(exact.abs().max())
    allowed = 2 * float((baseline.double() - exact).abs().max()) + floor
    assert_true(
        error <= allowed,
        f"error is {error / allowed:.3g} x what is allowed: {error:.3g}, twice the plain computation "
        f"of the same precision is {allowed:.3g} [flash-attention, tests/test_flash_attn.py].",
    )


def _index(flat: int, like: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), like.shape))


class Watching(TorchDispatchMode):
    """A mode in which `note` is called with each operator that runs, by its name such as `aten::mm`, and its
    arguments.
    """

    def __init__(self, note: Callable[[str, tuple[Any, ...]], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a distributed tensor runs its operators on plain ones, which come here again
        self.note(func.name().partition(".")[0], args)
        return func(*args, **(kwargs or {}))


class InFloat32WhereFloat64Lacks(TorchDispatchMode):
    """A mode in which an operator that has no kernel for float64, as that of grouped experts, runs in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            narrow = {name: _cast(value, torch.float64, torch.float32) for name, value in (kwargs or {}).items()}
            return _cast(func(*_cast(args, torch.float64, torch.float32), **narrow), torch.float32, torch.float64)


def _cast(value: Any, one: torch.dtype, other: torch.dtype) -> Any:
    """The value with its tensors of one dtype in the other."""
    if isinstance(value, list | tuple):
        return type(value)(_cast(member, one, other) for member in value)
    return value.to(other) if isinstance(value, Tensor) and value.dtype == one else value


def operators_of(run: Callable[[], object]) -> list[str]:
    """Names of the operators that `run` issues, in their order: `aten::mm`."""
    names: list[str] = []
    with Watching(lambda name, arguments: names.append(name)):
        run()
    return names
