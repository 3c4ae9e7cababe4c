"""How it is measured: a parametrized test makes a case, the case a model, instruments look at it, records keep it."""

import sys
from pathlib import Path

IMPORTABLE = Path(__file__).resolve().with_name("importable")
"""The folder on the path of the suite's processes; it holds `perf_tests_suite`, all of the suite, and no other name."""

if __name__ == "perf_tests" and str(IMPORTABLE) not in sys.path:  # `python -m perf_tests` in a checkout
    sys.path.insert(0, str(IMPORTABLE))
