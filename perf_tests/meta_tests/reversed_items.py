"""A plugin, `-p perf_tests.meta_tests.reversed_items`: it reorders what is collected, as pytest-randomly does."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.reverse()
