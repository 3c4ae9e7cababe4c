"""What users see, command by command, and how it is compared with what they saw.

`python -m tests.commands.golden [NAME...]` makes the expected values anew and prints what changed.
Everything a command reads lies in this folder, so that neither the checkout's records nor its history decide anything.
"""

import csv
import difflib
import gzip
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.support.forked_python import forked_python

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
EXPECTED = FOLDER / "expected.json"

MOST_SECONDS = 120
"""The slowest takes two on a quiet machine; only one that hangs reaches this."""

LEFT_OUT = {"identity", "largest_allocations", "machine_info", "reason", "series", "why"}
"""Keys of JSON that repeat what was asked for, name lines of the model's source or the machine, or are sentences."""

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*%?")


@dataclass(frozen=True)
class Command:
    """Words for `python -m`, and what of its answer is kept.

    `{in}` in the words is this folder, `{out}` an empty one that holds only `trace.json.gz`.
    """

    words: str
    kind: str
    """json: its values; text: its lines, blanks folded; csv: its header, and rows without empty fields; numbers: those
    of a screen; ids: cases collected; page: numbers and sections of `{out}/page.html`."""


COLLECT = "pytest perf_tests -p no:cacheprovider --collect-only -q --device cpu"
BEFORE, AFTER, HISTORY = "{in}/before.json.xz", "{in}/after.json.xz", "{in}/history"
SOME_COLUMNS = (
    "id,phase,size,precision,attention,median_seconds,median_high_seconds,kernel_launches,bound,flags,outcome"
)

COMMANDS = {
    **{
        f"predict-{name}": Command(f"perf_tests predict --json {words}", "json")
        for name, words in {
            "default": "--size tiny --context 64 --gpu A100-80GB",
            "bf16-sdpa": "--size tiny --context 128 --precision bf16 --attention sdpa --optimizer fused --gpu H100",
            "checkpoints": "--size tiny --context 64 --checkpoint all --gpu T4",
            "own-shape-own-gpu": "--size wide=192x768x3x4 --vocab-size 503 --batch-size 9 --context 32 --zero-grad "
            "after-forward --gpu memory=24GiB,bandwidth=300GB/s,fp32=30.3,tf32=60,bf16=121,fp16=121",
            "ranks": "--size tiny --context 64 --precision bf16 --parallel fsdp2 --world 8 --gpu H100",
            "own-optimizer": "--size tiny --context 32 --optimizer examples/muon.py:build --gpu L4",
            "attention": "--head-dim 16,128 --sequence-length 256,16384 --gpu H100",
        }.items()
    },
    "predict-screen": Command("perf_tests predict --size tiny --context 64 --precision fp16 --gpu T4", "numbers"),
    **{
        f"audit-{name}": Command(f"perf_tests audit --json --all {{in}}/{name}", "json")
        for name in ("steps.csv", "attention.csv", "memory.csv")
    },
    "audit-screen": Command("perf_tests audit {in}/steps.csv", "numbers"),
    "compare": Command(f"perf_tests compare --json {BEFORE} {AFTER}", "json"),
    "compare-screen": Command(f"perf_tests compare {BEFORE} {AFTER}", "numbers"),
    "history": Command(f"perf_tests history --json --storage {HISTORY}", "json"),
    "history-otava": Command(f"perf_tests history --export otava --storage {HISTORY}", "text"),
    "history-github": Command(f"perf_tests history --export github-action-benchmark --storage {HISTORY}", "json"),
    "tables-markdown": Command(f"perf_tests tables --format markdown {BEFORE}", "text"),
    "tables-latex": Command(f"perf_tests tables --format latex --only timing {BEFORE}", "text"),
    "tables-cases": Command(f"perf_tests tables --format csv --only cases --where phase=full_step {BEFORE}", "csv"),
    "tables-outcomes": Command(
        f"perf_tests tables --format jsonl --only cases --columns {SOME_COLUMNS} {AFTER}", "text"
    ),
    "tables-query": Command(
        "perf_tests tables --format csv --only cases --columns id,median_seconds --sort=-median_seconds "
        f"--where head_dim=64 --against-axis attention=naive {BEFORE}",
        "csv",
    ),
    "kernels-record": Command(f"perf_tests kernels --json --case attention_backward {BEFORE}", "json"),
    "kernels-trace": Command("perf_tests kernels --json {out}/trace.json.gz", "json"),
    "kernels-screen": Command("perf_tests kernels {out}/trace.json.gz", "text"),
    "replay": Command("perf_tests replay --json {in}/gate.jsonl.xz", "json"),
    "replay-screen": Command("perf_tests replay {in}/gate.jsonl.xz", "numbers"),
    "report": Command(f"perf_tests report {BEFORE} {AFTER} -o {{out}}/page.html", "page"),
    **{
        f"ids-{name}": Command(f"{COLLECT} {words}", "ids")
        for name, words in {
            "default": "--precision fp32,bf16",
            "axes": "--size all --precision bf16 --execution all --checkpoint all --phase full_step",
            "own-shape": "--size wide=192x768x3x4,tiny --batch-size 2,4 --precision fp32 --phase all",
            "passes": "--size tiny --precision fp32 --kernels --memory --warmup-study --sequence-length 256",
        }.items()
    },
}


def seen(command: Command, python: str) -> dict[str, Any]:
    """The exit code of the command and what its kind keeps, in a process of `python` that ends with this call.

    Raises subprocess.TimeoutExpired after killing one that hangs.
    """
    with tempfile.TemporaryDirectory() as out:
        (Path(out) / "trace.json.gz").write_bytes(gzip.compress((FOLDER / "trace.json").read_bytes()))
        words = [word.replace("{in}", str(FOLDER)).replace("{out}", out) for word in command.words.split()]
        ended = subprocess.run(
            [python, "-m", *words],
            cwd=ROOT, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, timeout=MOST_SECONDS,
        )  # fmt: skip
        page = Path(out) / "page.html"
        text = page.read_text() if page.exists() else ended.stdout
        return {"exit_code": ended.returncode, **kept(command.kind, text.replace(str(FOLDER), "IN"))}


def kept(kind: str, text: str) -> dict[str, Any]:
    """Keep of an answer what its kind says."""
    match kind:
        case "json":
            return {"json": _without(json.loads(text))}
        case "text":
            return {"lines": [" ".join(line.split()) for line in text.splitlines() if line.strip()]}
        case "csv":
            header, *rows = csv.reader(text.splitlines())
            fields = [dict(zip(header, row, strict=True)) for row in rows]
            return {"header": header, "rows": [{name: said for name, said in row.items() if said} for row in fields]}
        case "numbers":
            return {"numbers": sorted(NUMBER.findall(text))}
        case "ids":
            return {"ids": sorted(line for line in text.splitlines() if "::" in line)}
        case "page":
            body = re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", " ", text, flags=re.DOTALL))
            return {
                "sections": sorted(re.findall(r'<section id="([^"]+)"', text)),
                "plots": len(re.findall(r'class="plot"', text)),
                "numbers": sorted(set(NUMBER.findall(body))),
            }
    raise ValueError(f"{kind!r} is no kind of command.")


def _without(value: Any) -> Any:
    """The JSON without what `LEFT_OUT` names and without nulls, which say nothing and are most of an identity."""
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in LEFT_OUT and each is not None}
    return [_without(each) for each in value] if isinstance(value, list) else value


def differences(expected: Any, found: Any) -> list[str]:
    """The values of `expected` that are gone and those that are new, one a line, each with the line before it."""
    both = (json.dumps(value, indent=1, sort_keys=True) for value in (expected, _settled(expected, found)))
    before, now = (text.splitlines() for text in both)
    return [line for line in difflib.unified_diff(before, now, n=1) if not line.startswith(("---", "+++", "@@"))]


def _settled(expected: Any, found: Any) -> Any:
    """What was found, with numbers that are the same within 1e-6 of their size as they were expected."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {key: _settled(expected.get(key), value) for key, value in found.items()}
    if isinstance(expected, list) and isinstance(found, list):
        return [_settled(*pair) for pair in zip_longest(expected[: len(found)], found)]
    numbers = [value for value in (expected, found) if isinstance(value, int | float) and not isinstance(value, bool)]
    return expected if len(numbers) == 2 and math.isclose(*numbers, rel_tol=1e-6, abs_tol=1e-12) else found


def as_text(values: dict[str, Any]) -> str:
    """JSON with what holds no other list or object on one line, to be short and yet show a change line by line."""
    text = json.dumps(values, indent=1, sort_keys=True)
    simple = re.compile(r'([\[{])\n\s*((?:[^\[\]{}"]|"(?:[^"\\]|\\.)*")*?)\n\s*([\]}])')
    return simple.sub(lambda found: found[1] + re.sub(r",\n\s*", ", ", found[2]) + found[3], text) + "\n"


def main(names: list[str]) -> None:
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    remade = {name: values for name, values in expected.items() if name in COMMANDS}
    for name in names or COMMANDS:
        found = seen(COMMANDS[name], forked_python())
        if lines := differences(expected.get(name, {}), found):  # else another machine's last digits would be written
            print(name, *lines, sep="\n")
            remade[name] = found
    EXPECTED.write_text(as_text(remade))


if __name__ == "__main__":
    main(sys.argv[1:])
