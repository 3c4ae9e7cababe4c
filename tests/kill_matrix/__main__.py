"""Whether every claim can fail: each planted fault must be caught by the claim that names it. `make kill-matrix`.

    python -m tests.kill_matrix              all faults, a row each
    python -m tests.kill_matrix softmax      those with such a word in their name, their claim or their place
    python -m tests.kill_matrix --device cuda

Exits with 1 where a fault survives or cannot be planted, where an honest rewrite is refused, or where a claim has no
fault.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from hypothesis import register_random

from perf_tests_suite.model.device import device_named
from perf_tests_suite.numerics_tests.harness.claims import REFUSALS, all_claims, load_profile
from perf_tests_suite.numerics_tests.harness.planting import NoSuchPlaceError, Planted
from perf_tests_suite.numerics_tests.harness.strategies import TORCH_GENERATOR
from perf_tests_suite.numerics_tests.machine import environment
from tests.kill_matrix import arithmetic, layers, training
from tests.kill_matrix.judging import Fault, judge_planted
from tests.kill_matrix.model import HONEST
from tests.kill_matrix.planted import PLANTED

CLAIMS = all_claims()
FAULTS: tuple[Fault | Planted, ...] = (*arithmetic.FAULTS, *layers.FAULTS, *training.FAULTS, *PLANTED.values())
ONLY_ON_A_CPU = ("torch's 16-bit kernel on a CPU",)
CAUGHT, SURVIVES, NOT_PLANTED, ACCIDENT = "caught", "SURVIVES", "NOT PLANTED", "ACCIDENT"
ACCEPTED, REFUSED = "accepted", "REFUSED"
GOOD = (CAUGHT, ACCEPTED)


def judged(fault: Fault | Planted) -> tuple[str, str]:
    """What becomes of a fault, and in which words: an error other than the claim's own is an accident, and no catch."""
    try:
        with environment.pinned():
            fault.judge() if isinstance(fault, Fault) else judge_planted(fault)
    except REFUSALS as error:
        return CAUGHT, str(error).splitlines()[0]
    except NoSuchPlaceError as error:
        return NOT_PLANTED, str(error)
    except Exception as error:
        return ACCIDENT, f"{type(error).__name__}: {error}".splitlines()[0]
    return SURVIVES, f"{fault.caught_by} no longer sees it"


def judged_honest(rewrite: Planted) -> tuple[str, str]:
    """What becomes of an honest rewrite, with as many examples as the profile `quick` draws."""
    try:
        with environment.pinned():
            judge_planted(rewrite, "quick")
    except NoSuchPlaceError as error:
        return NOT_PLANTED, str(error)
    except Exception as error:
        return REFUSED, f"{rewrite.caught_by}: {error}".splitlines()[0]
    return ACCEPTED, rewrite.caught_by


def unguarded(faults: Sequence[Fault | Planted]) -> list[str]:
    """One sentence for each claim without a fault, which might never fail, and for each name that two faults have."""
    named = {f"test_{fault.caught_by}" for fault in faults}
    twice = [name for name, count in Counter(fault.name for fault in (*faults, *HONEST)).items() if count > 1]
    return [
        *(f"{name}: no fault is planted for it." for name in sorted(set(CLAIMS) - named)),
        *(f"{name}: no claim is called so." for name in sorted(named - set(CLAIMS))),
        *(f"{name}: two faults are called so." for name in twice),
    ]


def ends(words: Sequence[str], device: str) -> Iterator[tuple[str, str, str]]:
    """Name, end and words of each fault and each honest rewrite that is asked for, as they are judged."""

    def is_asked_for(fault: Fault | Planted) -> bool:
        text = f"{fault.name} {fault.caught_by} {getattr(fault, 'place', '')}"
        return not words or any(word in text for word in words)

    for fault in filter(is_asked_for, FAULTS):
        if device == "cpu" or fault.name not in ONLY_ON_A_CPU:
            yield fault.name, *judged(fault)
    for rewrite in filter(is_asked_for, HONEST):
        yield rewrite.name, *judged_honest(rewrite)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("tests.kill_matrix", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="judge the faults alone that have one of these words")
    parser.add_argument("--device", default="cpu")
    typed = parser.parse_args(arguments)
    environment.compute_on(device_named(typed.device))
    load_profile("ci")
    register_random(TORCH_GENERATOR)
    torch.set_num_threads(1)  # waiting for a second one takes longer than such small tensors do
    counted: Counter[str] = Counter()
    for name, end, words in ends(typed.words, typed.device):
        counted[end] += 1
        print(f"{end:11} {name:50} {words[:110]}", flush=True)
    problems = [] if typed.words else unguarded(FAULTS)
    print(*problems, ", ".join(f"{count} {end}" for end, count in counted.items()), sep="\n")
    return int(bool(problems) or any(end not in GOOD for end in counted))


if __name__ == "__main__":
    sys.exit(main())
