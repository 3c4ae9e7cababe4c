"""Chromium, driven by its own command line: a page is opened from disk, without a network, in a fresh profile."""

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr", "--virtual-time-budget=30000", "--window-size=1280,2000",
)  # fmt: skip

LIGHT, DARK = 1, 0


def chromium() -> str | None:
    """The program, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def opened(
    page: Path, profile: Path, address: str = "", scheme: int = LIGHT, driver: str = ""
) -> tuple[str, list[str]]:
    """(what the page is once its programs have run, what it said on the console); `driver` runs at its end."""
    browser = chromium()
    assert browser is not None
    if driver:
        text = page.read_text().replace("</body>", f"<script>{driver}</script></body>")
        page = page.with_name(f"driven-{page.name}")
        page.write_text(text)
    words = [f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom"]
    ended = subprocess.run(
        [browser, *OPTIONS, *words, f"{page.as_uri()}{address}"], capture_output=True, text=True, timeout=120
    )
    return ended.stdout, [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
