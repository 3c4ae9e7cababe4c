"""A picture of a page, taken by Chromium without a network."""

import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--hide-scrollbars", "--virtual-time-budget=20000", "--blink-settings=preferredColorScheme=1",
)  # fmt: skip


class NoBrowserError(Exception):
    """There is no Chromium, or it took no picture; the message says what to do."""


def take(page: Path, picture: Path, width: int, height: int) -> None:
    """The top of the page, as PNG. Raises NoBrowserError."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if browser is None:
        raise NoBrowserError(f"No browser to take the picture with: install one of {', '.join(NAMES)}.")
    with tempfile.TemporaryDirectory() as profile:
        words = [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={picture.absolute()}"]
        ended = subprocess.run([browser, *OPTIONS, *words, page.absolute().as_uri()], capture_output=True, timeout=180)
    if ended.returncode or not picture.exists():
        raise NoBrowserError(f"{browser} took no picture of {page} (exit code {ended.returncode}).")
