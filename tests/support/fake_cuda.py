"""GPUs as far as torch.cuda tells of them, on a machine that has none."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

TOTAL_BYTES = 80 * 2**30
GPU = torch.device("cuda", 0)


class FakeCuda:
    """One GPU, or two of which the second is of 2007; `calls` holds the names of functions that act."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.limit = Mock()
        self._set: Callable[[str, object], None] = partial(monkeypatch.setattr, torch.cuda)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
            self._set(name, lambda *_, name=name: self.calls.append(name))
        self._set("set_per_process_memory_fraction", self.limit)
        self._set("init", Mock(side_effect=RuntimeError("No CUDA GPUs are available")))
        self.says(
            get_device_properties=SimpleNamespace(total_memory=TOTAL_BYTES, L2_cache_size=50 * 2**20),
            mem_get_info=(TOTAL_BYTES // 2, TOTAL_BYTES), memory_allocated=100, max_memory_allocated=300,
            max_memory_reserved=500, get_arch_list=["sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
        )  # fmt: skip
        self.sees()

    def says(self, **answers: object) -> None:
        for name, answer in answers.items():
            self._set(name, lambda *_, answer=answer: answer)

    def sees(self, capability: tuple[int, int] = (9, 0), count: int = 1) -> None:
        self.says(is_available=count > 0, device_count=count)
        for name, first, second in (
            ("get_device_capability", capability, (1, 0)),
            ("get_device_name", "NVIDIA Example", "NVIDIA Relic"),
        ):
            known: dict[object, object] = {0: first, GPU: first, 1: second}
            self._set(name, known.__getitem__)
