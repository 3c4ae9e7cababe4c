"""Chromium, driven by its own command line: a page is opened from disk, without a network, in a fresh profile."""

import html
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr", "--window-size=1280,2000", "--dump-dom",
)  # fmt: skip
WAITING = "--virtual-time-budget=30000"
"""Time passes as fast as the page's programs allow, until all have run."""

MOST_SECONDS = 600
"""Seconds of real time, which a busy machine stretches: only a browser that hangs should reach it."""

LIGHT, DARK = 1, 0


def chromium() -> str | None:
    """The program, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def opened(page: Path, home: Path, address: str = "", scheme: int = LIGHT, driver: str = "") -> tuple[str, list[str]]:
    """(what the page is once its programs have run, what it said on the console); `driver` runs at its end."""
    words = (f"--blink-settings=preferredColorScheme={scheme}", WAITING)
    ended = _ended(driven(page, driver) if driver else page, home, *words, address=address)
    return ended.stdout, [line for line in ended.stderr.splitlines() if "CONSOLE" in line]


def _ended(page: Path, profile: Path, *words: str, address: str = "") -> subprocess.CompletedProcess[str]:
    browser = chromium()
    assert browser is not None
    typed = [browser, *OPTIONS, f"--user-data-dir={profile}", *words, f"{page.as_uri()}{address}"]
    return subprocess.run(typed, capture_output=True, text=True, timeout=MOST_SECONDS)


def driven(page: Path, driver: str) -> Path:
    """The page with a program at its end, beside it."""
    text = page.read_text().replace("</body>", f"<script>{driver}</script></body>")
    page = page.with_name(f"driven-{page.name}")
    page.write_text(text)
    return page


def title(dom: str) -> str:
    """What a driver said."""
    return html.unescape(dom.partition("<title>")[2].partition("</title>")[0])


PAINTED = """addEventListener("load", () => setTimeout(() => {
  document.title = performance.getEntriesByType("paint").map((paint) => paint.startTime)[0];
}, 0));"""


def first_paint_seconds(page: Path, profile: Path) -> float:
    """Seconds from the start of loading to the first picture, in real time."""
    return float(title(_ended(driven(page, PAINTED), profile).stdout)) / 1e3
