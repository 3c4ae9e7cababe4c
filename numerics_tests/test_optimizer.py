"""AdamW and gradient clipping against their formulas in float64; loop, foreach and fused are the same optimizer."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import OPTIMIZERS, Training
from perf_tests_suite.numerics_tests.harness import bounds, oracles
from perf_tests_suite.numerics_tests.harness.checks import assert_same_bits, assert_true, assert_within, operators_of
from perf_tests_suite.numerics_tests.harness.claims import claim
from perf_tests_suite.numerics_tests.harness.strategies import Recipe, alike, recipes
from perf_tests_suite.numerics_tests.harness.tiny import TRAININGS, MakeTraining
from perf_tests_suite.numerics_tests.machine.environment import device
from perf_tests_suite.numerics_tests.machine.formats import U32

Steps = Callable[[Tensor, list[Tensor], int], Tensor]
"""(parameter, one gradient per step, steps done before) to the parameter after all steps, by torch's default AdamW.

The steps before had gradients of 0: the moments are 0, and only the correction of their bias knows of them.
"""
Clip = Callable[[list[Tensor], float], Tensor]
"""(gradients, largest norm) to the norm before; the gradients are clipped in place."""

RATE, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 1e-2
"""The defaults of torch.optim.AdamW, which the model's training uses."""


def stepping(implementation: str) -> Steps:
    """The optimizer of the model's `Training`, fed with given gradients."""

    def steps(parameter: Tensor, gradients: list[Tensor], done: int = 0) -> Tensor:
        layer = nn.ParameterList([parameter.clone()])
        training = Training(layer, PRECISIONS["fp32"], parameter.device, implementation)
        training.create_optimizer_state()
        training.optimizer.state[layer[0]]["step"].fill_(done)
        for gradient in gradients:
            layer[0].grad = gradient.clone()
            training.optimizer.step()
        return layer[0].detach()

    return steps


ADAMWS = {name: stepping(name) for name in ("loop", "foreach", "fused")}
VECTORS, MATRICES = (
    recipes(*shape, dtypes=(torch.float32,), exponents=(-6, 3), plant=(0.0, 1.0, 255.0))
    for shape in (((1, 33),), (3, (1, 11)))
)
PARAMETERS = VECTORS | MATRICES
"""Parameters of one dimension and of two, because a rule by dimension (no decay on vectors) is a common slip."""


def gradients_for(recipe: Recipe, steps: int) -> list[Tensor]:
    return [alike(recipe, n, exponent=-6 + n % 5).tensor() for n in range(1, steps + 1)]


@claim(
    "adamw", ADAMWS, cost=2, recipe=PARAMETERS, steps=st.sampled_from([1, 2, 20]), done=st.sampled_from([0, 1000, 3000])
)
def test_adamw_is_within_its_bound(adamw: Steps, recipe: Recipe, steps: int, done: int) -> None:
    """t (4 u |p| + lr 4096 u32) after t steps; Loshchilov and Hutter, arXiv:1711.05101, algorithm 2.

    The second moment is still corrected by 58 % after 1000 steps and by 5 % after 3000.
    """
    parameter, gradients = recipe.tensor(), gradients_for(recipe, steps)
    exact = oracles.adamw(parameter, gradients, RATE, BETAS, EPS, DECAY, done)
    bound = bounds.adamw(parameter.double(), steps, RATE)
    assert_within(adamw(parameter, gradients, done), exact, bound, "bounds.adamw")


@claim("adamw", {"foreach": ADAMWS["foreach"]}, cost=4, recipe=PARAMETERS)
def test_foreach_is_the_loop_to_the_bit(adamw: Steps, recipe: Recipe) -> None:
    """Both issue the same operations in the same order, one tensor at a time or all in one call."""
    parameter, gradients = recipe.tensor(), gradients_for(recipe, 5)
    loop = ADAMWS["loop"](parameter, gradients, 0)
    assert_same_bits(adamw(parameter, gradients, 0), loop, "same operations, same order")


def torch_clip(gradients: list[Tensor], largest: float) -> Tensor:
    leaves = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for leaf, gradient in zip(leaves, gradients, strict=True):
        leaf.grad = gradient
    return nn.utils.clip_grad_norm_(leaves, largest)


CLIPS = {"torch": torch_clip}
GRADIENTS = recipes(3, (1, 11), dtypes=(torch.float32,), exponents=(-8, 8), max_spread=3, plant=(0.0, 1e3))


def two_gradients(recipe: Recipe) -> list[Tensor]:
    """A matrix and a vector."""
    return [recipe.tensor(), alike(recipe, 1, shape=(7,)).tensor()]


@claim("clip", CLIPS, recipe=GRADIENTS, largest=st.sampled_from([0.5, 1.0, 1e3]))
def test_clipping_scales_to_the_norm(clip: Clip, recipe: Recipe, largest: float) -> None:
    """g min(1, c / (|g| + 1e-6)) with |g| over all tensors, relative (n + 8) u32; ASNA 2e, section 4.2.

    Pascanu, Mikolov and Bengio, arXiv:1211.5063, algorithm 1; the 1e-6 is torch.nn.utils.clip_grad_norm_'s own.
    """
    gradients = two_gradients(recipe)
    before = torch.cat([gradient.double().flatten() for gradient in gradients])
    norm = before.norm()
    exact = before * min(1.0, float(largest / (norm + 1e-6)))
    reported = clip(gradients, largest)
    relative = (len(before) + 8) * U32
    assert_within(reported, norm, relative * norm, "ASNA 2e, section 4.2")
    after = torch.cat([gradient.flatten() for gradient in gradients])
    assert_within(after, exact, relative * exact.abs() + 2.0**-149, "arXiv:1211.5063")


@claim("make", TRAININGS, cost=2, recipe=MATRICES, first=st.integers(-4, 8), second=st.integers(-4, 8))
def test_update_clips_to_norm_one_and_steps(make: MakeTraining, recipe: Recipe, first: int, second: int) -> None:
    """Two updates of the model's training against clipping and AdamW in float64, with bounds.adamw.

    Two, because the first AdamW step forgets the size of its gradient; two tensors, because the norm is that of all.
    Clipping is off by (n + 8) u32 relatively, of an update of some lr: within what bounds.adamw allows.
    """
    layer = nn.ParameterList(two_gradients(recipe))
    before, widths = torch.cat([p.detach().flatten() for p in layer]), [p.numel() for p in layer]
    training = make(layer, PRECISIONS["fp32"], device())
    shape = (len(before),)
    updates = ((1, first), (2, second))
    gradients = [alike(recipe, n, shape=shape, exponent=e, spread=1).tensor() for n, e in updates]
    for gradient in gradients:
        for parameter, own in zip(layer, gradient.split(widths), strict=True):
            parameter.grad = own.clone().view_as(parameter)
        training.update()
    rate = training.optimizer.param_groups[0]["lr"]
    assert_true(rate == RATE, f"the rate is {rate} after two updates")
    clipped = [g.double() * min(1.0, float(1 / (g.double().norm() + 1e-6))) for g in gradients]
    exact = oracles.adamw(before, clipped, RATE, BETAS, EPS, DECAY)
    bound = bounds.adamw(before.double(), 2, RATE)
    after = torch.cat([parameter.detach().flatten() for parameter in layer])
    assert_within(after, exact, bound, "bounds.adamw")


@claim("make", TRAININGS, cost=2, recipe=MATRICES)
def test_update_leaves_what_has_no_gradient_alone(make: MakeTraining, recipe: Recipe) -> None:
    """A frozen or unused parameter neither moves nor decays, to the bit: torch.optim skips `.grad is None`."""
    layer = nn.ParameterList(two_gradients(recipe))
    training, idle = make(layer, PRECISIONS["fp32"], device()), layer[1].detach().clone()
    layer[0].grad = alike(recipe, 2).tensor()
    training.update()
    assert_same_bits(layer[1].detach(), idle, "torch.optim.AdamW's page")
    assert_true(layer[1] not in training.optimizer.state, "a parameter without a gradient has moments")


@claim("make", TRAININGS, recipe=PARAMETERS)
def test_creating_the_optimizer_state_changes_nothing_else(make: MakeTraining, recipe: Recipe) -> None:
    """Afterwards: zero moments, no step counted, parameters to the bit, no gradients, torch's learning rate."""
    layer = nn.ParameterList([recipe.tensor()])
    training = make(layer, PRECISIONS["fp32"], device())
    training.create_optimizer_state()
    assert_same_bits(layer[0].detach(), recipe.tensor(), "learning rate 0")
    assert_true(training.optimizer.param_groups[0]["lr"] == RATE, "the learning rate is another")
    state = training.optimizer.state[layer[0]]
    moments_are_zero = not bool(state["exp_avg"].any()) and not bool(state["exp_avg_sq"].any())
    assert_true(moments_are_zero and layer[0].grad is None, "moments or gradients are left")
    assert_true(int(state["step"]) == 0, f"the next step counts as number {int(state['step']) + 1}")


@claim("make", TRAININGS)
def test_creating_the_optimizer_state_keeps_rates_and_leaves_out_what_is_frozen(make: MakeTraining) -> None:
    """Each group has its own rate back, 0 included; a frozen parameter gets no moments, as in a step."""
    layer = nn.ParameterList([torch.ones(2, device=device()) for _ in range(3)])
    layer[2].requires_grad_(requires_grad=False)
    training = make(layer, PRECISIONS["fp32"], device())
    training.optimizer = torch.optim.AdamW(
        [{"params": [layer[0]], "lr": 0.0}, {"params": [layer[1], layer[2]], "lr": 0.5}], foreach=False
    )
    training.create_optimizer_state()
    rates = [group["lr"] for group in training.optimizer.param_groups]
    assert_true(rates == [0.0, 0.5], f"the rates of the groups are {rates}")
    assert_true(layer[2] not in training.optimizer.state, "a frozen parameter has moments")


@claim("make", TRAININGS)
def test_update_hides_no_gradient_that_is_not_a_number(make: MakeTraining) -> None:
    """Nothing skips the step without a scaler: NaN reaches every weight, because the norm of all is NaN."""
    for precision in ("fp32", "bf16", "fp16-unscaled"):
        layer = nn.ParameterList([torch.ones(2, device=device()) for _ in range(2)])
        training = make(layer, PRECISIONS[precision], device())
        for parameter in layer:
            parameter.grad = torch.ones_like(parameter)
        layer[0].grad[0] = torch.nan
        training.update()
        assert_true(all(bool(parameter.isnan().all()) for parameter in layer), f"{precision} hides NaN")


KERNELS: dict[str | None, set[str]] = {
    "loop": set(),
    "foreach": {"aten::_foreach_norm", "aten::_foreach_addcdiv_"},
    "fused": {"aten::_foreach_norm", "aten::_fused_adamw_"},
}
"""Operators that tell an update's implementation: clipping by lists of tensors, AdamW by lists or in one kernel."""


@claim("make", TRAININGS)
def test_update_issues_the_kernels_of_its_optimizer(make: Callable[..., Training]) -> None:
    """Clipping and AdamW; `default` is what torch.optim.AdamW chooses itself: foreach on CUDA, a loop on a CPU."""
    default = KERNELS["foreach" if device().type == "cuda" else "loop"]
    for name in (*OPTIMIZERS, None):
        layer = nn.Linear(2, 2).to(device())
        training = make(layer, PRECISIONS["fp32"], device(), *filter(None, [name]))
        layer(torch.ones(1, 2, device=device())).sum().backward()
        found = set().union(*KERNELS.values()).intersection(operators_of(training.update))
        expected = KERNELS.get(name, default)
        assert_true(found == expected, f"{name} issues {sorted(found)}, not {sorted(expected)}")


def test_clipping_float16_gradients_loses_them_all() -> None:
    """A float16 norm overflows, the factor is 1 / inf = 0, and every gradient is silently 0: why .grad is float32."""
    gradients = [torch.full((4,), 60_000.0, dtype=torch.float16)]
    assert torch_clip(gradients, 1.0).isinf()
    assert (gradients[0] == 0).all()
    wide = [torch.full((4,), 60_000.0)]
    assert torch_clip(wide, 1.0) == 120_000
    assert (wide[0] > 0.49).all()


@claim("make", TRAININGS)
def test_training_takes_torchs_defaults(make: Callable[..., Training]) -> None:
    """The constants above are what the bounds assume; if torch's defaults change, this test fails first.

    Every other setting is torch's own too, so that no switch such as amsgrad stands unseen.
    """
    layer = nn.Linear(2, 2).to(device())
    for name in ADAMWS:
        groups = make(layer, PRECISIONS["fp32"], device(), name).optimizer.param_groups
        assert_true(len(groups) == 1, f"{len(groups)} groups of parameters")
        found = {key: value for key, value in groups[0].items() if key != "params"}
        assert_true(len(groups[0]["params"]) == 2, "a parameter is left out")
        stated = {"lr": RATE, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
        chosen = {"foreach": name == "foreach", "fused": name == "fused"}
        expected = {**torch.optim.AdamW(layer.parameters()).param_groups[0], **stated, **chosen}
        del expected["params"]
        assert_true(found == expected, f"{name} has {found}, not {expected}")
