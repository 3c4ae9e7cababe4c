"""Tests of the tools measure nothing, and may share the machine: one thread each."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
