"""Wiring of both suites: options and hooks live in the plugin, fixtures beside the tests that use them."""

from perf_tests.run.termination import end_at_once_when_signalled

end_at_once_when_signalled()

pytest_plugins = ("perf_tests.plugin",)
