"""How it is measured: a parametrized test makes a case, the case a model, instruments look at it, records keep it."""

import sys
from pathlib import Path

if __name__ != "perf_tests":  # inside the one package that an installation has: from here on by its own name
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
