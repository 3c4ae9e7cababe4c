"""The course's exercises on precision: the facts that tests assert, and the tables that show them.

Stanford CS336, assignment 2, sections "Mixed Precision" and "Accumulation".
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perf_tests_suite.model.transformer import RMSNorm
from perf_tests_suite.numerics_tests.harness import bounds, oracles
from perf_tests_suite.numerics_tests.harness.strategies import Recipe
from perf_tests_suite.numerics_tests.machine import cuda_autocast
from perf_tests_suite.numerics_tests.machine.formats import BF16, FP16, FP32, LOW, Format
from perf_tests_suite.numerics_tests.machine.sums import running_sums

Rows = tuple[tuple[str, ...], ...]
"""Texts; the header first."""

CPU = torch.device("cpu")
A_HUNDREDTH = Fraction(1, 100)
ADDITIONS = 1000

LOOPS = {
    # name: (accumulator, addend as it is added, what a thousand additions give)
    "fp32": (torch.float32, torch.tensor(0.01), 10.000133514404297),
    "fp16": (torch.float16, torch.tensor(0.01, dtype=torch.float16), 9.953125),
    "fp32-of-fp16": (torch.float32, torch.tensor(0.01, dtype=torch.float16), 10.00213623046875),
    "fp32-of-fp16-cast": (torch.float32, torch.tensor(0.01, dtype=torch.float16).float(), 10.00213623046875),
}
"""The four loops, and the totals that many write-ups print."""


def thousand_additions(accumulator: torch.dtype, addend: Tensor, device: torch.device) -> float:
    """The last of a thousand running sums."""
    return running_sums(addend.to(device), ADDITIONS, accumulator)[-1]


def accumulation() -> Rows:
    rows = []
    for name, (accumulator, addend, _) in LOOPS.items():
        total = thousand_additions(accumulator, addend, CPU)
        added_exactly = ADDITIONS * Fraction(addend.item())
        errors = added_exactly - ADDITIONS * A_HUNDREDTH, Fraction(total) - added_exactly
        rows.append((name, f"{total:.10g}", *(f"{float(error):+.3g}" for error in errors)))
    return ("Loop", "total", "error of the number", "error of the additions"), *rows


def partial_sums() -> Rows:
    """The first five sums of float16's 0.01, in float16 and in float32."""
    addend = torch.tensor(0.01, dtype=torch.float16)
    sums = [running_sums(addend, 5, dtype) for dtype in (torch.float16, torch.float32)]
    rows = [
        (f"{place}", *(f"{total:.10f}" for total in totals)) for place, totals in enumerate(zip(*sums, strict=True), 1)
    ]
    return ("Additions", "fp16", "fp32 of fp16"), *rows


def stored() -> Rows:
    values = {known.name: Fraction(torch.tensor(0.01, dtype=known.dtype).item()) for known in (FP32, FP16, BF16)}
    rows = [(name, f"{float(value):.10f}", f"{float(value / A_HUNDREDTH - 1):+.2e}") for name, value in values.items()]
    return ("Format", "stored", "relative error"), *rows


def stops_at(addend: float, precision: int) -> float:
    """The first power of two 2^e with addend <= 2^(e - p): there half a unit is at least the addend.

    Round to nearest, ties to even: at 2^e the distance to the next number is 2^(e - p + 1), and 2^e is even.
    """
    total = 2.0**-149  # the smallest float32, so below where any sum stops
    while addend > total * 2.0**-precision:
        total *= 2
    return total


def stagnation() -> Rows:
    rows = []
    for a_format in (FP16, BF16):
        addends = (torch.tensor(addend, dtype=a_format.dtype).item() for addend in (0.01, 1.0))
        rows.append((a_format.name, *(f"{stops_at(addend, a_format.precision):g}" for addend in addends)))
    return ("Format", "sum of hundredths", "sum of ones"), *rows


class ToyModel(nn.Module):
    """fc1, ReLU, norm, fc2; it keeps the dtype of each result."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 10, bias=False)
        self.norm = norm
        self.fc2 = nn.Linear(10, 3, bias=False)
        self.seen: dict[str, torch.dtype] = {}

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        normed = self.norm(F.relu(hidden))
        logits: Tensor = self.fc2(normed)
        self.seen = {"fc1": hidden.dtype, "norm": normed.dtype, "logits": logits.dtype}
        return logits


def cross_entropy(logits_BV: Tensor) -> Tensor:
    return F.cross_entropy(logits_BV, torch.zeros(len(logits_BV), dtype=torch.int64, device=logits_BV.device))


def toy_dtypes(
    loss: Callable[[Tensor], Tensor], norm: str, low: torch.dtype, device: torch.device
) -> dict[str, torch.dtype]:
    """The dtype of each part under autocast, of the loss inside and outside of it, and of weights and gradients."""
    torch.manual_seed(0)
    model = ToyModel(nn.LayerNorm(10) if norm == "layer" else nn.RMSNorm(10, eps=1e-5)).to(device)
    x = torch.randn(5, 4, device=device)
    with torch.autocast(device.type, dtype=low):
        logits = model(x)
        inside = loss(logits)
    outside = loss(logits)
    gradients = torch.autograd.grad(inside, list(model.parameters()))
    (of_parameters,) = {parameter.dtype for parameter in model.parameters()}
    (of_gradients,) = {gradient.dtype for gradient in gradients}
    losses = {"loss": inside.dtype, "loss outside": outside.dtype}
    return {"parameters": of_parameters, **model.seen, **losses, "gradients": of_gradients}


def toy_model_dtypes() -> Rows:
    """The dtypes with LayerNorm and cross-entropy, by the rules of CUDA and of a CPU."""
    columns = {}
    for rules in reversed(cuda_autocast.RULES):
        for a_format in LOW:
            with cuda_autocast.in_force(rules, CPU):
                columns[f"{rules}, {a_format.name}"] = toy_dtypes(cross_entropy, "layer", a_format.dtype, CPU)
    parts = next(iter(columns.values()))
    rows = [(part, *(str(of[part]).removeprefix("torch.") for of in columns.values())) for part in parts]
    return ("Part", *columns), *rows


def model_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    norm = RMSNorm(x.shape[-1], eps)
    # Not a copy of the forward pass: the module of the model, called with this very weight, so gradients reach it.
    return torch.func.functional_call(norm, {"weight_D": weight}, (x,))


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def inverse_rms_of_a_thousand() -> Rows:
    values = {
        a_format.name: inverse_rms(torch.tensor([1e3], dtype=a_format.dtype), 0.0).item() for a_format in (*LOW, FP32)
    }
    return ("Format", "of 1000"), *((name, f"{value:.4g}") for name, value in values.items())


def rms_norm_in_its_own_format(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What the model would compute without its cast to float32."""
    return weight.to(x.dtype) * (x * inverse_rms(x, eps))


def thousands(a_format: Format) -> Tensor:
    """Rows about 1000, whose squares are beyond float16."""
    return (1000 + 300 * Recipe((16, 64), torch.float64).exact()).to(a_format.dtype)


def norms() -> Rows:
    """RMSNorm in its own format and in float32, beside float64."""
    inputs = {f"about 1000, {a_format.name}": (thousands(a_format), 1e-5) for a_format in LOW}
    # Its square is below half of float16's smallest number.
    inputs[f"2^-13, {FP16.name}"] = (torch.full((1, 8), 2.0**-13, dtype=torch.float16), 1e-9)
    rows = []
    for name, (x, eps) in inputs.items():
        weight = torch.ones(x.shape[-1])
        exact = oracles.rms_norm(x, weight, eps)
        bound = bounds.rms_norm(exact, x.dtype)
        results = rms_norm_in_its_own_format(x, weight, eps), model_rms_norm(x, weight, eps)
        rows.append((name, *(_judged(result, exact, bound) for result in results)))
    return ("Input", "in its own format", "in float32, as the model"), *rows


def layer_norms() -> Rows:
    """LayerNorm of rows about 1000, part by part in their own format, and PyTorch's, which sums in float32."""
    rows = []
    for a_format in LOW:
        x = thousands(a_format)
        weight, bias = torch.ones(x.shape[-1]), torch.zeros(x.shape[-1])
        z, condition = oracles.normalised(x, 1e-5)
        bound = bounds.layer_norm(z, z, weight.double(), bias.double(), condition, x.dtype)
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        exact_mean, exact_variance = x.double().mean(-1, keepdim=True), x.double().var(-1, keepdim=True, correction=0)
        results = (x - mean) * (variance + 1e-5).rsqrt(), F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype)
        parts = (mean, exact_mean), (variance, exact_variance)
        words = [*(_in_roundings(*part, a_format) for part in parts), *(_judged(one, z, bound) for one in results)]
        rows.append((f"about 1000, {a_format.name}", *words))
    return ("Input", "mean", "variance", "result in its own format", "result in float32"), *rows


def _in_roundings(value: Tensor, exact: Tensor, a_format: Format) -> str:
    if not value.isfinite().all():
        return "infinite"
    worst = float(((value.double() - exact).abs() / exact.abs()).max() / a_format.unit_roundoff)
    return f"off by {worst:.2f} u"


def _judged(result: Tensor, exact: Tensor, bound: Tensor) -> str:
    if not result.isfinite().all():
        return "infinite"
    worst = float(((result.double() - exact).abs() / bound).max())
    return f"{worst:.2g} x its bound" if result.any() else "all zero"


def scaled_backward(
    x: Tensor, weight: Tensor, upstream: float, scale: float = 2.0**15, low: torch.dtype = torch.float16
) -> Tensor:
    leaf = weight.clone().requires_grad_()
    scaler = torch.amp.GradScaler(x.device.type, init_scale=scale)
    optimizer = torch.optim.SGD([leaf], lr=0.0)
    with torch.autocast(x.device.type, dtype=low):
        y = x @ leaf
    scaler.scale(y.float().sum() * upstream).backward()
    scaler.unscale_(optimizer)
    assert leaf.grad is not None
    return leaf.grad


def scaling() -> Rows:
    """A weight's gradient through a float16 product, with the loss scaled and not, and through a bfloat16 one."""
    one, rows = torch.ones(1, 1), []
    for power in (24, 25, 39):
        ways: tuple[dict[str, Any], ...] = ({"scale": 1.0}, {}, {"scale": 1.0, "low": torch.bfloat16})
        found = [float(scaled_backward(one, one, 2.0**-power, **way)) for way in ways]
        rows.append((f"2^-{power}", *(f"{gradient:.3g}" for gradient in found)))
    return ("dL/dy", "fp16", "fp16, loss scaled by 2^15", "bf16"), *rows


def stochastically_rounded(x: Tensor, generator: torch.Generator) -> Tensor:
    """float32 to bfloat16, up with the probability that makes the mean right: random bits below the cut."""
    noise = torch.randint(0, 2**16, x.shape, generator=generator, dtype=torch.int32)
    # A carry out of the last 16 bits rounds up; -0x10000 is the int32 0xFFFF0000, which then cuts them off.
    return ((x.view(torch.int32) + noise) & -0x10000).view(torch.float32).bfloat16()


def trained(weight: Tensor, steps: int, rate: float) -> Tensor:
    """AdamW without decay on a weight whose gradient is always 1: each step moves it by the learning rate."""
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr=rate, weight_decay=0.0)
    for _ in range(steps):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return parameter.detach()


def train_by_chance(weights: Tensor, change: float, steps: int, generator: torch.Generator) -> Tensor:
    for _ in range(steps):
        weights = stochastically_rounded(weights.float() - change, generator)
    return weights


def mean_of_squares(dtype: torch.dtype, round_to: Callable[[Tensor], Tensor], steps: int = 3000) -> Tensor:
    """AdamW's second moment of gradients of 1: .999 v + .001 at each step, from 0; 4096 of them."""
    moment = torch.zeros(4096, dtype=dtype)
    for _ in range(steps):
        moment = round_to(0.999 * moment.float() + 0.001)
    return moment


def states() -> Rows:
    """A weight of 1 after 100 steps of .001, and a second moment after 3000: kept in three ways."""
    generator, ones, rows = torch.Generator().manual_seed(0), torch.ones(4096), []
    weights = (
        trained(ones, 100, 1e-3),
        trained(ones.bfloat16(), 100, 1e-3),
        train_by_chance(ones.bfloat16(), 1e-3, 100, generator),
    )
    by_chance = mean_of_squares(torch.bfloat16, lambda x: stochastically_rounded(x, generator))
    moments = mean_of_squares(torch.float32, lambda x: x), mean_of_squares(torch.bfloat16, Tensor.bfloat16), by_chance
    for name, kept in (("weight of 1, 100 steps of .001", weights), ("mean of squares, 3000 gradients of 1", moments)):
        rows.append((name, *(f"{float(each.double().mean()):.2f}" for each in kept)))
    return ("State", "fp32", "bf16", "bf16, rounded by chance"), *rows


def relative_noise(approximate: Tensor, exact: Tensor) -> float:
    """Root mean square error over root mean square value."""
    return float((approximate.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def normal(*shape: int, seed: int = 0) -> Tensor:
    return Recipe(shape, torch.float64, seed=seed).exact()


def noise() -> Rows:
    """The error that rounding to bfloat16 leaves, in its roundings u, relative to the result, for 64 terms and 4096."""
    found: dict[str, list[float]] = {}
    for terms in (64, 4096):
        a, b, rows = normal(64, terms), normal(terms, 64, seed=1), normal(256, terms)
        exact, sizes = oracles.rms_norm(rows, torch.ones(terms), 1e-5), rows.abs()
        inverse = (rows.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        of_elements, of_roots = exact.bfloat16().double(), rows * inverse.bfloat16().double()
        noises = {
            "product of rounded inputs": relative_noise(a.bfloat16().double() @ b.bfloat16().double(), a @ b),
            "sum of rounded terms of one sign": relative_noise(sizes.bfloat16().double().sum(-1), sizes.sum(-1)),
            "mean error of a row, elements rounded": float((of_elements / exact - 1).mean(-1).abs().mean()),
            "mean error of a row, its inverse root rounded": float((of_roots / exact - 1).mean(-1).abs().mean()),
        }
        for name, value in noises.items():
            found.setdefault(name, []).append(value / BF16.unit_roundoff)
    rows_of = ((name, *(f"{value:.2g}" for value in values)) for name, values in found.items())
    return ("Where", "64 terms", "4096 terms"), *rows_of


def tables() -> dict[str, Rows]:
    return {
        "accumulation": accumulation(),
        "partial_sums": partial_sums(),
        "stored": stored(),
        "stagnation": stagnation(),
        "toy_model": toy_model_dtypes(),
        "norms": norms(),
        "inverse_rms": inverse_rms_of_a_thousand(),
        "layer_norms": layer_norms(),
        "scaling": scaling(),
        "states": states(),
        "noise": noise(),
    }
