"""Wiring of both suites."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="where to run (default: auto)")
