"""What a profiler of PyTorch saw, as a Chrome trace in memory."""

import tempfile
from collections.abc import Callable
from pathlib import Path


def exported_trace(export: Callable[[str], object]) -> bytes:
    """JSON in Kineto's schema, from the method `export_chrome_trace` of either kind of PyTorch profiler."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        export(str(path))
        return path.read_bytes()
