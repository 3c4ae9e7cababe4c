"""Draw the README's pictures from what is recorded: `make pictures`.

`false_alarms.svg` shows a table of the evidence. `comment.html`, which a browser turns into `comment.webp`, shows the
comment that `.github/workflows/reusable-comment.yml` makes of the README's gate.
"""

import contextlib
import html
import io
import re
import sys
from pathlib import Path

from perf_tests_suite.perf_tests.__main__ import main as perf_tests

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / ".benchmarks/epyc-2core/gate/float64-softmax.jsonl.xz"

SHOWN = {
    "this gate": "perf-tests", "criterion": "criterion", "asv factor 1.1": "asv, factor 1.1",
    "pytest-benchmark min:5%": "pytest-benchmark min:5%", "pytest-benchmark mean:5%": "pytest-benchmark mean:5%",
}  # fmt: skip
"""The rules of the README, by their names in the evidence."""

WIDTH, ROW, LEFT, RIGHT = 760, 30, 240, 60
"""Pixels: of the picture, of a bar with its gap, of the names and of the figures."""


def false_alarms(evidence: str) -> str:
    """Return an SVG with a bar for each rule of the README: how many runs of unchanged code it called slower."""
    found = re.findall(r"(?m)^ +(\S.*?)(?:, two launches)?  +(\d+) of (\d+), ", evidence)
    counts = {name: (int(alarms), int(runs)) for name, alarms, runs in found if name in SHOWN}
    rows = sorted(((SHOWN[name], *count) for name, count in counts.items()), key=lambda row: row[1])
    runs = rows[0][2]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {ROW * (len(rows) + 1)}" '
        'font-family="system-ui, sans-serif" font-size="15">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="0" y="18" fill="#57606a">Runs of unchanged code called slower, of {runs}</text>',
    ]
    for place, (name, alarms, _) in enumerate(rows, 1):
        y, length = ROW * place, (WIDTH - LEFT - RIGHT) * alarms / runs
        weight, color = ("bold", "#1a7f37") if not alarms else ("normal", "#cf222e")
        lines += [
            f'<text x="{LEFT - 10}" y="{y + 19}" text-anchor="end" font-weight="{weight}">{html.escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y + 4}" width="{max(length, 2):.1f}" height="{ROW - 10}" fill="{color}"/>',
            f'<text x="{LEFT + length + 8:.1f}" y="{y + 19}" font-weight="{weight}">{alarms}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


STYLE = """
body { margin: 0; padding: 12px; background: #fff; font: 14px system-ui, sans-serif; color: #1f2328; }
div { border: 1px solid #d1d9e0; border-radius: 6px; width: 1060px; }
header { background: #f6f8fa; border-bottom: 1px solid #d1d9e0; padding: 8px 16px; color: #59636e; }
p { margin: 12px 16px; }
pre { background: #f6f8fa; border-radius: 6px; margin: 12px 16px; padding: 12px; font: 12px monospace; }
"""


def comment() -> str:
    """Return the comment as HTML: what `replay` prints of the samples, the long lines left out."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        perf_tests(["replay", str(SAMPLES)])
    lines = [line for line in printed.getvalue().splitlines() if len(line) <= 125]
    said = "Gate of 5960bbdac847: <b>failure</b>. The text below was written by code of this pull request."
    text = html.escape("\n".join(lines))
    return (
        f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>'
        f"<div><header><b>github-actions</b> commented</header><p>{said}</p><pre>{text}</pre></div>\n"
    )


def main(folder: Path) -> int:
    (folder / "false_alarms.svg").write_text(false_alarms((ROOT / "claims/evidence.md").read_text()))
    (folder / "comment.html").write_text(comment())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
