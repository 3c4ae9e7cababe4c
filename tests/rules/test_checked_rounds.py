"""Values are new in each round, timed rounds are held to what they must compute, and only cheats are refused."""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, cycle
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.model.attention import naive_attention
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.training import Training
from perf_tests_suite.perf_tests.bench import checked_rounds as module
from perf_tests_suite.perf_tests.bench.checked_rounds import (
    AttentionCheck,
    CheckedRounds,
    Draws,
    Kept,
    LogitsCheck,
    LossCheck,
    StepCheck,
)
from perf_tests_suite.perf_tests.bench.loop import Rounds
from perf_tests_suite.perf_tests.bench.models import AttentionInputs, Batch
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.user_code.attention import (
    Arithmetic,
    IncorrectError,
    exact_and_bounds,
    sums_and_bounds,
)
from tests.support.cheats import CHEATS, FAMILIES, HERE, in_a_fork, refusal, refusal_of_cheat, warm_up
from tests.support.example_cases import CPU, build
from tests.support.honest_code import honest, kind_of


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    threads = torch.get_num_threads()
    warm_up()
    yield
    torch.set_num_threads(threads)


BY_CHANCE = ("optimizer_of_every_16th_weight",)
"""Refused in some runs today: it depends on which weights are looked at."""

CATALOGUE = [
    pytest.param(
        name,
        marks=[pytest.mark.xfail(reason=cheat.why_recorded, raises=TypeError, strict=name not in BY_CHANCE)]
        * bool(cheat.why_recorded),
    )
    for name, cheat in CHEATS.items()
]
"""What is recorded today fails here once it is refused, by `xfail_strict`."""


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_cheat_is_refused(name: str, warm: None) -> None:
    when, sentence = in_a_fork(lambda: refusal_of_cheat(name))
    assert when == CHEATS[name].refused, sentence
    assert sentence.endswith("."), sentence


def test_the_catalogue_has_each_family_and_each_of_its_files() -> None:
    assert {cheat.family for cheat in CHEATS.values()} == set(range(1, len(FAMILIES) + 1))
    assert {path.stem for path in HERE.glob("[a-z]*.py")} == set(CHEATS)


def test_an_optimizer_that_adds_gradients_up_is_measured_with_a_note(
    monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    said: list[Any] = []
    finish = CheckedRounds.finish

    def finish_and_say(checked: CheckedRounds, round_seconds: float) -> Any:
        said.append(finish(checked, round_seconds))
        return said[-1]

    monkeypatch.setattr(CheckedRounds, "finish", finish_and_say)
    named = f"{HERE.parent}/honest_code.py:optimizer_that_accumulates"

    def measured() -> Any:
        return refusal(named, "optimizer", kind="optimizer"), said

    refused, (checked,) = in_a_fork(measured)
    assert refused is None
    assert checked["rounds"] == sorted(checked["rounds"])
    assert set(checked["still"]) < set(checked["rounds"]), "it moves in every second round, of both kinds is one kept"


QUICK = sorted(code for code in honest() if not code[0].endswith(":compiled"))  # compiling takes 20 s
DRAWN = random.Random(0).sample(QUICK, 12)  # the same in every worker of pytest-xdist
"""All of them, over 20 seeds and three precisions, are the claim's."""


@pytest.mark.parametrize("named, phase", DRAWN, ids=[f"{named.rpartition(':')[2]}-{phase}" for named, phase in DRAWN])
def test_honest_code_is_measured(named: str, phase: str, warm: None) -> None:
    assert in_a_fork(lambda: refusal(named, phase, kind=kind_of(named, phase))) is None


def drawn(position: int, seed: int = 1, case: str = "case", pair: int = 0) -> list[float]:
    leaf = torch.zeros(1, 4, 2)
    module.fill_noise(leaf, Draws(seed, case, pair).generator(position))
    return leaf.flatten().tolist()


def test_values_are_a_function_of_seed_case_launch_pair_and_position_alone() -> None:
    assert drawn(3) == drawn(3)
    others = [drawn(4), drawn(3, seed=2), drawn(3, case="other"), drawn(3, pair=1), drawn(-3)]
    assert all(other != drawn(3) for other in others)


def test_new_values_are_written_into_the_same_tensors_and_counted_by_their_version() -> None:
    inputs = AttentionInputs(*(torch.zeros(2, 96, 8, requires_grad=letter != "g") for letter in "qkvg"))
    before = [(x.data_ptr(), x._version) for x in inputs.all]
    inputs.renew(Draws(1, "case").generator(0))
    assert inputs.gradient_BTK._version == before[3][1], "a forward pass may not know it"
    inputs.renew_gradient()
    assert all(x.data_ptr() == place and x._version > old for x, (place, old) in zip(inputs.all, before, strict=True))
    values = torch.stack([x.detach() for x in inputs.all])
    assert (float(values.mean()), float(values.var())) == pytest.approx((0, 1), abs=0.2)
    assert len(values.flatten().unique()) > 0.99 * values.numel()
    # Sums of a row of the run and one of the place would make this 0, and a softmax of them a product.
    crossed = values[..., 0, :] - values[..., 1, :] - values[..., 8, :] + values[..., 9, :]
    assert float(crossed.abs().min()) > 0
    batch = tokens_and_targets()
    place, drawn_first = batch.tokens_BT.data_ptr(), batch.tokens_BT.clone()
    batch.renew(Draws(1, "case").generator(0))
    assert (batch.tokens_BT.data_ptr(), batch.tokens_BT.equal(drawn_first)) == (place, False)
    assert batch.tokens_BT[:, 1:].equal(batch.targets_BT[:, :-1]), "the tokens and what follows are of one text"


# Which rounds are kept, and what is said of them.


@pytest.mark.parametrize("rounds", [2, AttentionCheck.kept_rounds])
def test_of_even_and_odd_rounds_equally_many_are_kept_each_as_likely(rounds: int) -> None:
    kept: list[int] = []
    check = type("Some", (Nothing,), {"kept_rounds": rounds})
    for _ in range(400):
        checked = CheckedRounds(Rounds(lambda: None, check=check), CpuDevice(CPU), Draws(1, "case"))
        for number in range(8):
            checked.begin(number, is_measured=True)
            checked.end()
        found = checked.finish(1.0)
        assert found is not None
        assert len({number % rounds for number in found["rounds"]}) == rounds
        kept += found["rounds"]
    counts = [kept.count(number) for number in range(1, 9)]
    assert min(counts) > 30 * rounds, counts  # 50 for each round; 60 of 100 is 4.6 deviations below


class Nothing(module.Check):
    about, reruns = "nothing", 0

    def after(self, result: Any) -> module.Slices:
        return {}


def qkvg(*size: int) -> list[torch.Tensor]:
    return [torch.randn(size, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


def test_sums_of_gradients_are_those_of_all_tokens_and_their_bounds_hold_the_bounds_of_each() -> None:
    q, k, v, do = qkvg(2, 24, 8)
    for dtype in (torch.float32, torch.bfloat16):
        exact, allowed = exact_and_bounds(q, k, v, do, Arithmetic.of(dtype))
        sums, bounds = sums_and_bounds(q, k, v, do, Arithmetic.of(dtype))
        torch.testing.assert_close(exact.dk.sum(-2), sums.dk, rtol=0, atol=1e-12)
        torch.testing.assert_close(exact.dv.sum(-2), sums.dv)
        for whole, each in ((bounds.dk, allowed.dk), (bounds.dv, allowed.dv)):
            assert bool((whole >= each.sum(-2)).all())
        assert float((bounds.dv / do.abs().sum(-2)).max()) < (1e-3 if dtype == torch.float32 else 1)


def test_rows_alone_are_those_of_the_whole_and_add_up_to_its_gradients_and_bounds() -> None:
    (q, k, v, do), arithmetic = qkvg(24, 8), Arithmetic.of(torch.float32)
    whole = exact_and_bounds(q, k, v, do, arithmetic)
    places = torch.arange(24).split(7)
    parts = [exact_and_bounds(q[at], k, v, do[at], arithmetic, positions_R=at) for at in places]
    for number, (exact, bound) in enumerate(zip(*whole, strict=True)):
        sides = [[part[side][number] for part in parts] for side in (0, 1)]
        found = [torch.cat(side) if number < 2 else torch.stack(side).sum(0) for side in sides]
        torch.testing.assert_close(found[0], exact)
        assert bool((found[1] >= bound * (1 - 1e-12)).all())
        assert bool((found[1] <= bound * 1.5).all())


def kept_step(**options: Any) -> tuple[StepCheck, Kept]:
    """A step of AdamW, kept as a measured round."""
    training = Training(build(), PRECISIONS["fp32"], CPU, **options)
    training.create_optimizer_state()
    check, tokens = StepCheck(training), torch.randint(37, (2, 9))
    training.step(tokens[:, :-1], tokens[:, 1:])
    kept = Kept(1, 0, check.before())
    training.step(tokens[:, :-1], tokens[:, 1:])
    kept.after = check.after(None)
    return check, kept


def test_a_step_is_adamws_formula_in_every_implementation() -> None:
    for optimizer in ("loop", "foreach", "fused"):
        check, kept = kept_step(optimizer=optimizer)
        check.check(kept)
        for name in ("weights", "state exp_avg", "state exp_avg_sq"):
            off = replace(kept, after={**kept.after, name: kept.after[name] * (1 + 1e-4) + 1e-9})
            with pytest.raises(IncorrectError, match=f"of {name} of .*AdamW in float64"):
                check.check(off)


def test_a_parameter_that_stays_as_it_was_in_one_round_may_do_so_by_chance() -> None:
    """Rprop leaves a weight whose gradient has changed its sign; what it leaves in every round it does not train."""
    check, moves = kept_step()
    name = max(check.probes, key=lambda probe: int(moves.after[f"gradient {probe[0]}"].count_nonzero()))[0]
    stays = replace(moves, after={**moves.after, f"probe {name}": moves.before[f"probe {name}"]})
    check.check(stays)
    other = {**moves.after, "gradient": 2 * moves.after["gradient"]}
    check.check_pair([stays, replace(moves, after=other)])
    with pytest.raises(IncorrectError, match=f"weights of {name} as they were, in measured round 1 and "):
        check.check_pair([stays, replace(stays, after=other | {f"probe {name}": stays.after[f"probe {name}"]})])


def test_a_step_that_the_scaler_skips_may_leave_all_as_it_was() -> None:
    check, kept = kept_step()
    stays = {**kept.before, "gradient": kept.after["gradient"]}
    with pytest.raises(IncorrectError):
        check.check(replace(kept, after=stays))
    scales = {"scale": torch.tensor(8.0)}, {"scale": torch.tensor(4.0)}
    check.check(replace(kept, before=kept.before | scales[0], after=stays | scales[1]))


def tokens_and_targets() -> Batch:
    return Batch.drawn(lambda generator: torch.randint(1, 50, (2, 9), generator=generator), 0, CPU)


def played(error: Callable[[], Any], check: Callable[[LogitsCheck], object] = lambda check: None) -> dict[str, Any]:
    """What is said of two rounds of a model, of which each adds an error to what its tokens make."""
    batch = tokens_and_targets()
    of_logits = LogitsCheck(batch.tokens_BT, PRECISIONS["fp32"], Mock())
    check(of_logits)
    target = lambda: batch.tokens_BT[..., None].float().repeat(1, 1, 4) + error()  # noqa: E731
    rounds = Rounds(target, renew=batch.renew, check=lambda: of_logits)
    checked = CheckedRounds(rounds, CpuDevice(CPU), Draws(1, "case"))
    for position in range(2):
        checked.begin(position, is_measured=True)
        rounds.prepare()
        checked.ready()
        rounds.run()
        checked.end()
    return checked.finish(1.0) or {}


def test_what_a_model_makes_again_may_differ_in_half_of_the_digits_or_always() -> None:
    """Dropout is drawn again, additions may be in another order, and what has a state is left unchecked."""
    again: list[tuple[Callable[[], Any], bool, bool]] = [
        (lambda: 0, True, False), (lambda: torch.rand(1), True, False),
        (partial(next, cycle([0.0, 1e-5, 2e-5])), False, False), (partial(next, count(1)), False, True),
    ]  # fmt: skip
    for error, same, is_unchecked in again:
        found = played(error)
        assert (found["same_again"], found["unchecked"] is not None) == (same, is_unchecked)


def test_tokens_in_another_order_may_add_up_to_the_same() -> None:
    """A few rows of logits may be equal by chance; those of all tokens, or of a whole sequence, are a kept result."""
    tokens = torch.arange(2 * 8).view(2, 8)
    check, logits = LogitsCheck(tokens, PRECISIONS["fp32"], Mock()), torch.randn(2, 8, 5)

    def kept(number: int, same: int, sequences: int = 2) -> Kept:
        other = torch.randn(2, 8, 5)
        other[:sequences, :same] = logits[:sequences, :same]
        return Kept(number, 0, {"tokens": tokens + number}, after={"logits": other})

    check.check_pair([kept(1, same=8), kept(2, same=3)])
    for same, sequences in ((5, 2), (8, 1)):
        with pytest.raises(IncorrectError, match=r"logits of \d+ tokens in measured round 1, the first at \(0, 0\), "):
            check.check_pair([kept(1, same=8), kept(2, same=same, sequences=sequences)])


APART = [
    # what a token adds to logits of 1 in rounds and alone, and whether that is refused
    (1e-8, 1e-8, False),  # a deep model without training
    (1e-8, 1.0, True),
    (0.0, 1.0, True),
]


@pytest.mark.parametrize("in_rounds, alone, is_refused", APART)
def test_a_model_that_never_tells_tokens_apart_is_accused_of_keeping_nothing(
    in_rounds: float, alone: float, is_refused: bool
) -> None:
    batch = tokens_and_targets()

    def logits_of(tokens_BT: torch.Tensor) -> torch.Tensor:
        return 1 + (alone if len(tokens_BT) == 1 else in_rounds) * tokens_BT[..., None].repeat(1, 1, 4)

    check, kept = LogitsCheck(batch.tokens_BT, PRECISIONS["fp32"], logits_of), []
    for position in range(2):
        batch.renew(torch.Generator().manual_seed(position + 1))
        kept.append(Kept(position + 1, position, check.before(), after=check.after(logits_of(batch.tokens_BT))))
    with pytest.raises(IncorrectError, match="it returns what it has kept") if is_refused else nullcontext():
        check.check_pair(kept)


@pytest.mark.parametrize(
    "in_rounds, alone, dtype, is_refused",
    [
        (0.0, 1.0, torch.float32, True),
        (1.0, 1.0, torch.float32, False),
        (0.0, 0.0, torch.float32, False),  # a head that begins at zero
        (0.0, 1.0, torch.bfloat16, False),  # 16 bits hold few values
    ],
)
def test_a_loss_that_is_kept_is_refused_and_one_that_no_token_moves_is_not(
    in_rounds: float, alone: float, dtype: torch.dtype, is_refused: bool
) -> None:
    batch, of_tokens = tokens_and_targets(), torch.linspace(0, 1, 8)

    def loss_of(tokens_BT: torch.Tensor, share: float = alone) -> torch.Tensor:
        return 1 + (share * tokens_BT * of_tokens).mean().to(dtype)

    check, kept = LossCheck(batch.tokens_BT, PRECISIONS["fp32"], loss_of), []
    for position in range(2):
        batch.renew(torch.Generator().manual_seed(position + 1))
        kept.append(Kept(position + 1, position, {}, after=check.after(loss_of(batch.tokens_BT, in_rounds))))
    words = "loss in measured round 1 is that in measured round 2, .* it returns what it has kept"
    with pytest.raises(IncorrectError, match=words) if is_refused else nullcontext():
        check.check_pair(kept)


def test_a_loss_of_the_timed_round_is_held_to_that_of_the_same_tokens() -> None:
    check = LossCheck(torch.zeros(2, 8, dtype=torch.int64), PRECISIONS["fp32"], Mock())
    kept = Kept(1, 0, {}, after=check.after(torch.tensor(3.0)))
    check.check_again(kept, check.after(torch.tensor(3.0001)))
    with pytest.raises(IncorrectError, match=r"error .* of the loss, for measured round 1: 3, run once more 3\.01"):
        check.check_again(kept, check.after(torch.tensor(3.01)))
    with pytest.raises(IncorrectError, match=r"it returns \(2, 8\) instead of the loss"):
        check.after(torch.zeros(2, 8))


def test_one_sequence_of_a_backward_pass_is_held_to_float64_as_a_whole() -> None:
    """A wrong gradient of one key, outside of the rows that are looked at, shows there alone."""
    inputs = AttentionInputs(*(torch.randn(1, 64, 8, requires_grad=letter != "g") for letter in "qkvg"))
    check = AttentionCheck(inputs.all, PRECISIONS["fp32"], has_backward=True)
    naive_attention(*inputs.all[:3]).backward(inputs.gradient_BTK)
    kept = Kept(1, 0, {}, after=check.after(None))
    check.check_columns(kept)
    kept.after["the gradient of k"][17, 3] += 0.1
    kept.after["the gradient of k"][18, 3] -= 0.1
    check.check(kept)
    with pytest.raises(IncorrectError, match=r"at \(0, 1[78], 3\) of the gradient of k, .* in measured round 1: "):
        check.check_columns(kept)


def test_a_check_for_which_memory_runs_out_costs_the_case_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = played(lambda: 0, lambda check: monkeypatch.setattr(check, "check", Mock(side_effect=MemoryError)))
    assert found["unchecked"] == "memory ran out while it was checked"


@pytest.mark.parametrize("moves_in", [0, 1])
def test_a_step_that_moves_weights_in_fewer_rounds_than_are_compared_is_refused(moves_in: int) -> None:
    """One round alone could not show that a parameter stays as it was."""
    ends = iter([20] * 3 + [0] * moves_in + [20] * 1000)
    check = Mock(spec=StepCheck, kept_rounds=2, due_if_still=lambda kept: next(ends))
    rounds: Any = SimpleNamespace(check=None, prepare=lambda: None, run=lambda: None, result=None)
    checked = CheckedRounds(rounds, Mock(), None)
    with pytest.raises(IncorrectError, match=rf"moves any in {moves_in} of 66 rounds\.$"):
        checked._still_rounds(check, [Kept(1, 1, {}), Kept(2, 2, {})])
