"""What docs/measuring.md says of a study is what the study does."""

from perf_tests.audit.rounds import LEAST_EXCESS, LEAVING_OUT_ROUNDS, LEVEL, STUDIED_WARMUP_ROUNDS, study_rounds
from perf_tests.hardware.machine import ENERGY_LEAST_SECONDS
from tests.support.documents import page


def test_the_page_states_the_studys_own_figures() -> None:
    text = " ".join(page("measuring").split())
    *some, last = map(str, STUDIED_WARMUP_ROUNDS)
    processes = len(STUDIED_WARMUP_ROUNDS) + 1
    for words in (
        f"after {', '.join(some)} and {last} warm-up rounds",
        f"after {LEAVING_OUT_ROUNDS} rounds of set-up alone",
        f"by {100 * LEAST_EXCESS:.0f} % of their median",
        f"at most {100 * LEVEL:.0f} % are taken",
        f"takes {processes} processes, {processes + 1} where its set-up computes",
        f"run {study_rounds('forward', 10)} rounds, or {study_rounds('backward', 10)}, beside",
        f"null below {ENERGY_LEAST_SECONDS:.0f} s of rounds",
    ):
        assert words in text
