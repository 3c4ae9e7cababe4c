"""Where the suite keeps what it would otherwise find out again in every run; removing the folder loses only time."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """In `$XDG_CACHE_HOME`, or `~/.cache` (XDG Base Directory Specification). Raises OSError without a home."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(folder) if Path(folder).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise OSError(str(error)) from error
    return home / "transformer-perf-tests"
