"""Wiring of both suites: options and hooks live in the plugin, fixtures beside the tests that use them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf_tests/importable"))

from perf_tests_suite.perf_tests.run.termination import end_at_once_when_signalled, watch_over_user_code
from perf_tests_suite.perf_tests.user_code.own_names import know_files_by_their_package

know_files_by_their_package()
end_at_once_when_signalled()
watch_over_user_code()

pytest_plugins = ("perf_tests_suite.perf_tests.plugin",)
