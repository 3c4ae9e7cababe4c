"""What a profiler of PyTorch saw, as a Chrome trace in memory."""

import tempfile
from pathlib import Path
from typing import Protocol


class Profiler(Protocol):
    """Both `torch.profiler.profile` and the lighter `torch.autograd.profiler.profile`."""

    def export_chrome_trace(self, path: str) -> None: ...


def exported_trace(profiler: Profiler) -> bytes:
    """JSON in Kineto's schema."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return path.read_bytes()
