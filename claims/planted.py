"""Changes planted in `model/` of a gate trial: none that matters, extra work of a known share, and realistic ones.

As a pytest plugin, `-p claims.planted`, this file makes a gate run measure planted benchmarks alone, in a fixed
number of launch pairs. They show the truth of a trial: launches of its clone that decided nothing, in which nothing
decided when to stop. Rounds with and without the extra work in turns within one process would show too little: a round
is slower also where the one before it had extra work.
"""

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.bench.session import session_of
from perf_tests_suite.perf_tests.gate.samples import Rules

Change = Callable[[Path], None]
"""Edits a working tree; what it leaves is head."""

WATCHED_SLOWDOWNS = (0.03, 0.05)
"""Planted in every run, several times each, because the gate's power is claimed for them."""
OTHER_SLOWDOWNS = (0.02, 0.10)
"""Planted in some, for the curve."""

METHODS = {"forward": "forward", "backward": "backward", "full_step": "step"}
"""The method of `Training` by phase."""
SHAPES = ((16, 64), (16, 128), (32, 64), (32, 128))
"""Head width and sequence length of the attention benchmarks."""

# The share varies from call to call by a fifth to either side, as real work does.
EXTRA_WORK = '''"""After its work, a function works on for a share of what the work took."""

import random
import time


def work_on(start: float, end: float, share: float) -> None:
    until = end + (end - start) * share * random.uniform(0.8, 1.2)
    while time.perf_counter() < until:
        pass
'''

# Longer than the share by a call and a reading of the clock: the rest is part of the time that is waited out.
SLOWER_ATTENTION = """

def _with_extra_work(attention: AttentionFunction, shares: dict[tuple[int, int], float]) -> AttentionFunction:
    from time import perf_counter

    from perf_tests_suite.model import extra_work

    def slower(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        start = perf_counter()
        output_BHTK = attention(q_BHTK, k_BHTK, v_BHTK)
        end = perf_counter()
        if q_BHTK.ndim == 3 and (share := shares.get((q_BHTK.shape[-1], q_BHTK.shape[-2]))):
            extra_work.work_on(start, end, share)
        return output_BHTK

    return slower


naive_attention = _with_extra_work(naive_attention, {shares})
"""

# A whole step works on once, not once more in each of its parts.
SLOWER_TRAINING = """

def _with_extra_work(shares: dict[str, float]) -> None:
    from time import perf_counter

    from perf_tests_suite.model import extra_work

    outermost = []

    def slower(method, share):
        def working_on(*arguments):
            if outermost:
                return method(*arguments)
            outermost.append(method)
            start = perf_counter()
            try:
                result = method(*arguments)
            finally:
                outermost.clear()
            extra_work.work_on(start, perf_counter(), share)
            return result

        return working_on

    for name, share in shares.items():
        setattr(Training, name, slower(getattr(Training, name), share))


_with_extra_work({shares})
"""


class TrialError(Exception):
    """A trial cannot be planted, or its gate run ended without a verdict; the message says how."""


def replaced(file: str, old: str, new: str) -> Change:
    """A change of one piece of text, which must be there."""

    def change(tree: Path) -> None:
        path = tree / file
        text = path.read_text()
        if old not in text:
            raise TrialError(f"{file} has no {old!r} to change; adapt the change to the code.")
        path.write_text(text.replace(old, new))

    return change


def _comments(tree: Path) -> None:
    for path in sorted((tree / "model").glob("*.py")):
        path.write_text(f"# A comment that moves every line.\n{path.read_text()}\n# And one at the end.\n")


def _longer_docstrings(tree: Path) -> None:
    for path in sorted((tree / "model").glob("*.py")):
        path.write_text(path.read_text().replace('"""', '"""A longer text, which is only kept. ', 1))


NO_OP_CHANGES: dict[str, Change] = {
    "same-code": lambda tree: None,
    "comments": _comments,
    "renamed-symbol": replaced("model/attention.py", "scores_BHTT", "similarities_BHTT"),
    "unused-function": replaced("model/attention.py", "ATTENTION = {", "def unused() -> None: ...\n\n\nATTENTION = {"),
    "docstrings": _longer_docstrings,
}  # fmt: skip


@dataclass(frozen=True)
class RealSlowdown:
    """A realistic change that affects the benchmarks whose name contains one of `cases`."""

    about: str
    file: str
    old: str
    new: str
    cases: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    @property
    def change(self) -> Change:
        return replaced(self.file, self.old, self.new)


REAL_SLOWDOWNS = {
    "extra-copy": RealSlowdown(
        "queries, keys and values are copied before they are used",
        "model/attention.py", "    scores_BHTT = q_BHTK @",
        "    q_BHTK, k_BHTK, v_BHTK = q_BHTK.clone(), k_BHTK.clone(), v_BHTK.clone()\n    scores_BHTT = q_BHTK @",
        ("-naive]",),
    ),
    "float64-softmax": RealSlowdown(
        "softmax is computed in float64",
        "model/attention.py", "    return exponentials / exponentials.sum(dim=-1, keepdim=True)",
        "    exponentials = exponentials.double()\n"
        "    return (exponentials / exponentials.sum(dim=-1, keepdim=True)).to(x.dtype)",
        ("-naive]",),
    ),
    "per-head-loop": RealSlowdown(
        "the value product runs in a loop over the batch",
        "model/attention.py", "        return weights_BHTT @ v_BHTK",
        "        rows = [weights @ v for weights, v in zip(weights_BHTT, v_BHTK, strict=True)]\n"
        "        return torch.stack(rows)",
        ("-naive]",),
    ),
    "unfused-optimizer": RealSlowdown(
        "AdamW runs as a loop although the fused kernel was asked for",
        "model/training.py",
        'fused=self.optimizer_implementation == "fused"',
        "fused=False",
        ("full_step",), ("--optimizer=fused",),
    ),
    "item": RealSlowdown(
        "the loss is read back in every step",
        "model/training.py", "            self.scaler.scale(loss).backward()",
        "            loss.item()\n            self.scaler.scale(loss).backward()",
        ("test_backward[", "full_step"),
    ),
}  # fmt: skip


def slow_attention(tree: Path, shapes: dict[tuple[int, int], float]) -> None:
    """Slow the reference attention of these head widths and sequence lengths by a share each."""
    (tree / "model/extra_work.py").write_text(EXTRA_WORK)
    attention = SLOWER_ATTENTION.replace("{shares}", repr(shapes))
    replaced("model/attention.py", "\n\ndef sdpa_attention(", f"{attention}\n\ndef sdpa_attention(")(tree)


def slowed(
    choose: random.Random, of_shapes: Sequence[tuple[int, int]] = SHAPES, context: str = "ctx32"
) -> tuple[Change, dict[str, float]]:
    """A change that slows the phases of the model and the reference attention, and by how much which benchmark."""
    of_phases = (*WATCHED_SLOWDOWNS, choose.choice(OTHER_SLOWDOWNS))
    phases = dict(zip(choose.sample(list(METHODS), len(METHODS)), of_phases, strict=True))
    shapes = dict(zip(choose.sample(of_shapes, len(of_shapes)), cycle(WATCHED_SLOWDOWNS), strict=False))

    def change(tree: Path) -> None:
        slow_attention(tree, shapes)
        training = SLOWER_TRAINING.replace("{shares}", repr({METHODS[phase]: phases[phase] for phase in METHODS}))
        with (tree / "model/training.py").open("a") as file:
            file.write(training)

    planted = {
        f"test_{phase}[tiny-{context}-fp32-{attention}]": slowdown
        for phase, slowdown in phases.items()
        for attention in ("naive", "sdpa")
    }
    for (width, length), slowdown in shapes.items():
        planted[f"test_attention_forward[d{width}-seq{length}-fp32-naive]"] = slowdown
    return change, planted


VARIABLE = "PLANTED_TRUTH"
"""Names a file with a JSON list of the benchmarks that the plugin measures."""

LAUNCH_PAIRS_OF_TRUTH = 20
"""Their mean is known to half a point where they scatter by 2 %, and that of fifty benchmarks to a tenth."""


RULES_OF_TRUTH = Rules(
    first_look=None, second_share=0.0, screen_pairs=LAUNCH_PAIRS_OF_TRUTH, screen_above=0.98, matters=0.99
)
"""One stage without a look, after which no slowdown is suspected."""


def pytest_configure(config: pytest.Config) -> None:
    """Gate by rules that decide nothing."""
    session_of(config).gate_rules = RULES_OF_TRUTH


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the planted benchmarks; raises UsageError where one of them is not there."""
    planted = frozenset(json.loads(Path(os.environ[VARIABLE]).read_text()))
    if missing := planted.difference(item.name for item in items):
        raise pytest.UsageError(f"{', '.join(sorted(missing))} cannot be measured: there is no such benchmark.")
    items[:] = [item for item in items if item.name in planted]
