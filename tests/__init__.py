"""Tests of the tools, one folder a kind."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "perf_tests/importable"))
