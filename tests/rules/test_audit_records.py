"""The audit of benchmark files: records of this suite, and files of others."""

from pathlib import Path

import pytest

from perf_tests.audit.figures import IMPOSSIBLE
from perf_tests.audit.tables import audit_file
from tests.support.audited_tables import written_json
from tests.support.foreign_tables import Row
from tests.support.synthetic import record, timed


@pytest.mark.parametrize(
    "gpu, honest, fast, limit",
    [
        ("NVIDIA A100-SXM4-80GB", timed(), timed(seconds=(1e-9,) * 10), "A100"),
        (None, *(timed(matmul_ceiling_tflops_per_second=rate) for rate in (0.1, 1e-6)), "best product measured there"),
    ],
    ids=["a GPU's datasheet", "the ceiling that a CPU's run measured"],
)
def test_a_record_of_this_suite_is_held_to(gpu: str | None, honest: Row, fast: Row, limit: str, tmp_path: Path) -> None:
    """A model of two layers in 1 s is fine on any GPU; in a nanosecond on none."""
    honest_run, fast_run = (record([row], gpu={"name": gpu} if gpu else None) for row in (honest, fast))
    assert audit_file(written_json(tmp_path, honest_run)).findings == []
    (finding,) = audit_file(written_json(tmp_path, fast_run)).findings
    assert (finding.verdict, finding.rule) == (IMPOSSIBLE, "arithmetic")
    assert limit in finding.limit


def test_a_foreign_benchmark_file_is_not_judged_and_says_why(tmp_path: Path) -> None:
    foreign = {"machine_info": {"node": "x"}, "benchmarks": [{"name": "test_x", "stats": {"mean": 0.1}}]}
    audit = audit_file(written_json(tmp_path, foreign))
    assert audit.reasons() == {"no identity: neither phase nor shape of what was timed": 1}
