"""Inputs: tensors drawn as short recipes, so that any size costs one draw and shrinks to a readable line.

A recipe is a seed, a base exponent, a spread of exponents and up to three planted values. It is evaluated in
float64 and rounded once to its dtype; its repr is Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import LOW, Format

ADVERSARIAL = (
    *(0.0, -0.0, 1.0, -1.0),
    *(2.0**10, 2.0**-10, 2.0**-14, 2.0**-24),  # where float16 turns subnormal, and its smallest subnormal
    *(255.0, 256.0, 257.0),  # 257 is the first integer bfloat16 lacks; 256 squared overflows float16
    *(2047.0, 2048.0, 2049.0),  # 2049 is the first integer float16 lacks
    *(3e4, 65504.0),  # the largest float16
)
"""Values near an edge of a 16-bit format; each is planted in some examples."""


@dataclass(frozen=True)
class Recipe:
    """The few numbers that a tensor is made from."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int = 0
    exponent: int = 0
    """Magnitudes are around 2**exponent."""
    spread: int = 0
    """Each element's exponent is off by up to this many, either way."""
    planted: tuple[tuple[int, float], ...] = ()
    """(position, value): positions in the flattened tensor, modulo its size."""
    positive: bool = False

    def exact(self) -> Tensor:
        """The float64 values before rounding, on the CPU."""
        generator = torch.Generator().manual_seed(self.seed)
        values = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        offsets = torch.randint(-self.spread, self.spread + 1, self.shape, generator=generator)
        values = torch.ldexp(values, offsets + self.exponent)
        for position, value in self.planted:
            if values.numel():
                values.view(-1)[position % values.numel()] = value
        return values.abs() if self.positive else values

    def tensor(self) -> Tensor:
        """Values rounded once to the dtype, clamped to its finite range, on the run's device."""
        largest = torch.finfo(self.dtype).max
        return self.exact().clamp(-largest, largest).to(self.dtype).to(device())


def recipes(
    *shape: int | Sequence[int],
    dtypes: Sequence[torch.dtype] = (torch.float16, torch.bfloat16, torch.float32),
    exponents: tuple[int, int] = (-6, 6),
    max_spread: int = 6,
    plant: Sequence[float] = ADVERSARIAL,
    positive: bool = False,
) -> SearchStrategy[Recipe]:
    """Recipes for tensors of `shape`; a dimension given as a sequence is one of its members.

    Every part is made once and not in each draw, which would take longer than most of the checks themselves.
    """
    sizes = [[size] if isinstance(size, int) else list(size) for size in shape]
    largest = torch.Size(max(members) for members in sizes).numel()
    planted = st.tuples(st.integers(0, max(0, largest - 1)), st.sampled_from(list(plant or [0.0])))
    return st.builds(
        Recipe,
        shape=st.tuples(*(st.sampled_from(members) for members in sizes)),
        dtype=st.sampled_from(list(dtypes)),
        seed=st.integers(0, 2**32 - 1),
        exponent=st.integers(*exponents),
        spread=st.integers(0, max_spread),
        planted=st.lists(planted, max_size=3 if plant else 0).map(tuple),
        positive=st.just(positive),
    )


def alike(recipe: Recipe, number: int, **changes: object) -> Recipe:
    """Another tensor of the same kind: same recipe, another seed, without the planted values."""
    return replace(recipe, **{"seed": recipe.seed + number, "planted": (), **changes})  # type: ignore[arg-type]


def integers(seed: int, largest: int, *shape: int) -> Tensor:
    """float64 integers in [-largest, largest]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-largest, largest + 1, shape, generator=generator).double()


@st.composite
def float32_patterns(draw: DrawFn, near: Format, length: int = 8) -> Tensor:
    """float32 values by class of bit pattern, so that subnormals, infinities and NaN come as often as numbers.

    Two classes more: numbers within the range of `near`, its subnormals included, and numbers beside a midpoint
    between two of its neighbours, where rounding decides.
    """
    top, full = 2**8 - 1, 2**23 - 1  # the largest exponent and mantissa field of float32
    lowest, highest = max(-126, near.min_exponent - near.precision), min(127, near.max_exponent)
    in_range = st.integers(lowest + 127, highest + 127)
    dropped = 24 - near.precision
    midpoints = st.builds(
        lambda kept, off: (kept << dropped) + (1 << (dropped - 1)) + off,
        st.integers(0, 2 ** (near.precision - 1) - 1),
        st.integers(-1, 1),
    )
    classes = {  # (exponent field, mantissa field)
        "zero": (st.just(0), st.just(0)),
        "subnormal": (st.just(0), st.integers(1, full)),
        "normal": (st.integers(1, top - 1), st.integers(0, full)),
        "largest": (st.just(top - 1), st.just(full)),
        "infinity": (st.just(top), st.just(0)),
        "nan": (st.just(top), st.integers(1, full)),
        "in range": (in_range, st.integers(0, full)),
        "midpoint": (in_range, midpoints),
    }
    patterns = []
    for position in range(length):
        exponents, mantissas = classes[draw(st.sampled_from(sorted(classes)), label=f"class {position}")]
        sign = draw(st.integers(0, 1), label=f"sign {position}")
        exponent = draw(exponents, label=f"exponent {position}")
        patterns.append((sign << 31) | (exponent << 23) | draw(mantissas, label=f"mantissa {position}"))
    unsigned = torch.tensor(patterns, dtype=torch.int64)
    # Patterns from 2^31 on are the negative ones of an int32.
    return torch.where(unsigned >= 2**31, unsigned - 2**32, unsigned).int().view(torch.float32)


SEEDS = st.integers(0, 1000)
"""Seeds of weights and tokens, for claims that build a model in each example."""


def low_dtypes() -> SearchStrategy[torch.dtype]:
    """float16 or bfloat16."""
    return st.sampled_from([a_format.dtype for a_format in LOW])


class TorchGenerator:
    """torch's global generator, as hypothesis.register_random wants it, so that every example starts from one seed."""

    def seed(self, seed: int) -> None:
        # Not torch.manual_seed: it records a stack trace for each missing backend, and called twice per example it
        # took 40 % of the suite's time.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


# Hypothesis keeps a weak reference only.
TORCH_GENERATOR = TorchGenerator()
