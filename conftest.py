"""Wiring of both suites: options and hooks live in the plugin, fixtures beside the tests that use them."""

from perf_tests.run.termination import end_at_once_when_signalled, watch_over_user_code

end_at_once_when_signalled()
watch_over_user_code()

pytest_plugins = ("perf_tests.plugin",)
