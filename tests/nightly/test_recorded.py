"""Every kind of case that the record of `model/` holds replays what a fake run counts, at drawn sizes."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from perf_tests_suite.model.sizes import SIZES
from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.predict import fake_run, recorded, recording

DRAW = Random(20)


def of_another_size(case: Case) -> Case:
    """The same kind in the dimensions of a known size."""
    batch = 1 if vars(case)["batch_size"] == 1 else DRAW.choice((2, 4, 64, 2048))
    if isinstance(case, AttentionCase):
        tokens = DRAW.choice((256, 1000, 16384))
        return replace(case, head_dim=DRAW.choice((16, 24, 128)), sequence_length=tokens, batch_size=batch)
    assert isinstance(case, LanguageModelCase)
    context = DRAW.choice((128, 300, 1024, 4096))
    sizes = [one for one in SIZES.values() if case.phase != "optimizer" or one.num_layers == case.config.num_layers]
    config = replace(DRAW.choice(sizes).at_context(context), num_layers=case.config.num_layers)
    return replace(case, config=config, context_length=context, batch_size=batch)


@pytest.fixture(autouse=True)
def in_use() -> Iterator[None]:
    with recorded.in_use():
        yield


def test_every_kind_of_case_is_replayed_as_it_is_counted() -> None:
    assert recorded.opened() is not None, "no record of this torch and this model/; write it by `make ledger`"
    for kind in recording.cases():
        case = of_another_size(kind)
        if isinstance(case, AttentionCase):
            counted, replayed = fake_run.count_attention(case), recorded.attention_passes(case)
        elif isinstance(case, LanguageModelCase) and case.phase == "optimizer":
            counted, replayed = fake_run.count_updates(case), recorded.updates(case)
        else:
            assert isinstance(case, LanguageModelCase)
            counted, replayed = fake_run.count_passes(case), recorded.passes(case)
        assert replayed == counted, case
