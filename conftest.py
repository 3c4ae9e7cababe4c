"""Wiring of both suites: options and hooks live in the plugin, fixtures beside the tests that use them."""

import os
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf_tests/importable"))

if "MUTANT_UNDER_TEST" in os.environ:  # mutmut knows what it changed by its file, as `model.attention`
    sys.modules["perf_tests_suite.model"] = import_module("model")
    for file in Path(__file__).parent.glob("model/[!_]*.py"):
        sys.modules[f"perf_tests_suite.model.{file.stem}"] = import_module(f"model.{file.stem}")

from perf_tests_suite.perf_tests.run.termination import end_at_once_when_signalled, watch_over_user_code
from perf_tests_suite.perf_tests.user_code.own_names import know_files_by_their_package

know_files_by_their_package()
end_at_once_when_signalled()
watch_over_user_code()

pytest_plugins = ("perf_tests_suite.perf_tests.plugin",)
