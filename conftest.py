"""Wiring of both suites: options and hooks live in the plugin, fixtures beside the tests that use them."""

pytest_plugins = ("perf_tests.plugin",)
