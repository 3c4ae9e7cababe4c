"""Published times beside two predictions of them: the suite's, fitted without their source, and torch's own.

torch's own `RuntimeEstimator` adds up a roofline of each operation. From torch 2.14 on it takes a card's
name, and so answers for one that is not here; its roofline knows no launches.
"""

from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from inspect import signature
from io import StringIO
from statistics import mean, median
from unittest.mock import patch

import torch

from claims.predicted_times import E2E, everything, fits_without, optimizer_loops, predicted_by, published_attention
from claims.published import published_rows
from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.torch_private import fake_tensors, runtime_estimator
from perf_tests_suite.perf_tests.predict.fake_run import fake_training
from perf_tests_suite.perf_tests.records.format import table

CARDS = {"H100-SXM": "NVIDIA H100", "A100-SXM-80GB": "NVIDIA A100"}
"""Cards of published times that both know, by the suite's name for them and by torch's."""

NEAR = 0.25

PARTS = {"forward": ("forward",), "backward": ("backward",), "forward_backward": ("forward", "loss", "backward")}
"""What the published times of each phase contain."""


def beside_the_estimator() -> Mapping[str, float]:
    """Print, for each source and card, the medians of predicted over measured; none where torch takes no card."""
    if "gpu_type" not in signature(runtime_estimator()).parameters:
        print(f"torch {torch.__version__} has no RuntimeEstimator that takes the name of a card; 2.14 has")
        return {}
    rows = published_rows(E2E)
    models = everything(rows)[0]
    fits = fits_without([*models, *optimizer_loops(rows), *published_attention()[0]])
    groups = dict[tuple[str, str], list[tuple[float, float]]]()
    held = []
    for cell in models:
        if cell.gpu in CARDS and cell.case.precision != "tf32":
            compared = predicted_by(fits[cell.author], cell)
            seconds = sum(estimated_seconds(cell.case, CARDS[cell.gpu])[part] for part in PARTS[cell.case.phase])
            ratios = compared.predicted.seconds / cell.seconds, seconds / cell.seconds
            groups.setdefault((cell.author, cell.gpu), []).append(ratios)
            held.append(compared.is_in_range)
    lines = [
        (*group, str(len(found)), *(f"{median(one):.2f}" for one in zip(*found, strict=True)))
        for group, found in sorted(groups.items())
    ]
    print("\n".join(table(("left out", "GPU", "cells", "the suite's", "torch's"), lines, left=("GPU",))))
    ours, theirs = zip(*(pair for found in groups.values() for pair in found), strict=True)
    print(f"{len(ours)} cells, {sum(held)} in the suite's range")
    near = [mean(abs(one - 1) <= NEAR for one in ratios) for ratios in (ours, theirs)]
    print(
        f"within {NEAR:.0%}: {near[0]:.0%} by the suite, {near[1]:.0%} by torch, whose median is {median(theirs):.2f}"
    )
    return {
        f"within {NEAR:.0%}": near[0],
        f"within {NEAR:.0%}, more than by torch": near[0] - near[1],
        "over measured, median": median(ours),
        "nearer than torch's": mean(abs(one - 1) < abs(other - 1) for one, other in zip(ours, theirs, strict=True)),
    }


def estimated_seconds(case: LanguageModelCase, card: str) -> Mapping[str, float]:
    """Seconds of each part by torch's estimator: those of one layer, and as many more as two layers have over one."""
    case = replace(case, phase="forward", optimizer=None)
    one, two = (_of_few_layers(replace(case, config=replace(case.config, num_layers=few)), card) for few in (1, 2))
    return {part: one[part] + (two[part] - one[part]) * (case.config.num_layers - 1) for part in one}


@cache
def _of_few_layers(case: LanguageModelCase, card: str) -> Mapping[str, float]:
    precision = PRECISIONS[case.precision]
    precision.apply()
    seconds = {}
    # It asks for a GPU that it does not use where a card is named.
    with fake_tensors(), patch.object(torch.accelerator, "is_available", lambda: True):
        training = fake_training(case)
        tokens_BT = torch.zeros(case.batch_size, case.context_length, dtype=torch.int64)
        outcome = tokens_BT
        for part in ("forward", "loss", "backward"):
            estimator = runtime_estimator()(gpu_type=card)  # from 2.14 on
            with redirect_stdout(StringIO()), estimator(estimate_mode_type="operator-level-cost-model"):
                if part == "forward":
                    outcome = training.forward(tokens_BT)
                elif part == "loss":
                    outcome = training.loss(outcome, tokens_BT)
                else:
                    training.backward(outcome)
            seconds[part] = estimator.total_runtime / 1e3
    PRECISIONS["fp32"].apply()
    return seconds
