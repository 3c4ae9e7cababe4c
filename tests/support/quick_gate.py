"""A plugin, `-p tests.support.quick_gate`: as few launch pairs as the rules allow, for tests of the tools.

Nothing that is less than ninety per cent slower matters here, so that a busy machine decides no test.
"""

import pytest

from perf_tests_suite.perf_tests.bench.session import session_of
from perf_tests_suite.perf_tests.gate.samples import Rules


def pytest_configure(config: pytest.Config) -> None:
    session_of(config).gate_rules = Rules(
        alpha=0.05, margin=0.3, matters=0.9, screen_pairs=3, screen_level=0.3, confirm_looks=(5,), look_shares=(1.0,)
    )
