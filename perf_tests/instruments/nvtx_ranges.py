"""The model's regions as NVTX ranges, which Nsight Systems shows on its timeline and filters by."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

DOMAIN = "transformer-perf-tests"
"""The suite's own domain, so that its ranges do not mix with others."""


def why_no_ranges() -> str | None:
    """None where ranges can be made, else one sentence with the next step."""
    if importlib.util.find_spec("nvtx") is None:
        return "--nvtx needs the package nvtx, and it is not installed; run `pip install nvtx`."
    return None


class NvtxRanges:
    """Opens a range for each region; without a profiler nothing happens."""

    def __init__(self) -> None:
        import nvtx  # here, so that a run without ranges needs no such package

        self._domain: Any = nvtx.get_domain(DOMAIN)
        # Registered once each, as nsys requires to start a capture at a range; it is also cheaper.
        self._attributes: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        # Inside compiled code there is nothing to mark.
        return nullcontext() if torch.compiler.is_compiling() else self._range(name)

    @contextmanager
    def _range(self, name: str) -> Iterator[None]:
        if name not in self._attributes:
            self._attributes[name] = self._domain.get_event_attributes(message=name)
        self._domain.push_range(self._attributes[name])
        try:
            yield
        finally:
            self._domain.pop_range()


@contextmanager
def capture(device: torch.device) -> Iterator[None]:
    """The range that `nsys profile --capture-range=cudaProfilerApi` captures; nothing on a CPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.profiler.start()
    try:
        yield
    finally:
        torch.cuda.profiler.stop()
