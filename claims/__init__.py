"""What the suite claims of itself, measured: `python -m claims` tries the claims of `table.py`, one after the other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "perf_tests/importable"))
