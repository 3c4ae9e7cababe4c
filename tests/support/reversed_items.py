"""A plugin, `-p tests.support.reversed_items`: it reorders what is collected, as pytest-randomly does."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.reverse()
