"""A recording on a GPU machine in slices: `python -m claims.expedition SLICE`, and `page` in the end.

A slice runs its steps in turn until its minutes are over, and packs all results so far into one folder, from which the
next slice resumes, on this machine or on a fresh one (claims/expedition/README.md). A step that has its result is not
run again. On a CPU every step runs on the smallest shapes, which tests this program alone.
"""

import argparse
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch

from claims.expedition.page import LEFT_OUT, page
from claims.expedition.slices import SLICES, Step
from perf_tests_suite.perf_tests.records.record import NUMBER, TEXT, Json, OrNull, misshapen, unpacked
from perf_tests_suite.perf_tests.records.store import write_whole
from tests.support.launches import ROOT

LEAST_SECONDS = 90.0
"""No step begins with less left of the slice: imports, CUDA and ceilings alone take a good part of it."""

GRACE_SECONDS = 30.0
"""A step that outlasts the slice by this is ended."""

PAGE = "expedition.md"

STATE = "state.tar.xz"
MOST_BYTES = 1 << 29
"""The most of an unpacked archive: records and logs, without traces."""
FINDING = {"slice": TEXT, "device": TEXT, "exit_code": OrNull(NUMBER), "seconds": NUMBER, "last_line": TEXT}
"""How a step ended."""
TAR_BYTES = 1024 + 10240
"""The end of a tar file and the padding of its last record; each member adds a header and padding, up to 1024."""


class StateTooLargeError(Exception):
    """What was found does not fit one file; the message is one sentence."""


@dataclass(frozen=True)
class FolderLimits:
    """Limits of the folder that leaves the machine."""

    files: int
    bytes_per_file: int


def main(words: list[str] | None = None) -> int:
    """0 where every step of the slice has its result, 1 where some are left for another call, 3 for a damaged state."""
    parser = argparse.ArgumentParser(prog="python -m claims.expedition", description=__doc__)
    parser.add_argument("slice", choices=[*SLICES, "page"], help="what to run, or page to judge what was found")
    parser.add_argument("--out", type=Path, default=Path("expedition"), help="the folder of results")
    parser.add_argument("--state", type=Path, help="the folder of an earlier slice, if OUT holds none")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this slice")
    parser.add_argument("--files", type=int, default=8, help="at most so many files in the folder")
    parser.add_argument("--megabytes", type=float, default=16.0, help="at most this size of each, in 2**20 bytes")
    asked = parser.parse_args(words)
    limits = FolderLimits(asked.files, int(asked.megabytes * 2**20))
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="expedition-") as folder:
        state = Path(folder)
        try:
            load_state(state, asked.out, *([asked.state] if asked.state else []))
            if asked.slice == "page":
                write_whole(asked.out / PAGE, page(state).encode())
                print(f"Wrote {asked.out / PAGE}.")
                return 0
            # No more of CUDA than this, or a context of this process would take memory from the steps.
            device = ("cuda" if torch.cuda.is_available() else "cpu") if asked.device == "auto" else asked.device
            return run_slice(asked.slice, state, asked.out, limits, device, asked.minutes * 60)
        except (StateTooLargeError, ValueError, OSError) as error:
            print(error)
            return 3


def run_slice(name: str, state: Path, out: Path, limits: FolderLimits, device: str, seconds: float) -> int:
    """Run the steps that have no result yet, and save the state after each."""
    end, packs = time.monotonic() + seconds, f"traces-{name}-{datetime.now():%Y%m%dT%H%M%S}"
    for step in SLICES[name]:
        if is_done(step, state):
            print(f"{step.name}: has its result")
            continue
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{step.name}: not begun with {left:.0f} s left; run slice {name} again")
            return 1
        print(f"{step.name}: {step.question}", flush=True)
        try:
            finding = {"slice": name, **run_step(step, state, device, left)}
            finding_path(step, state).parent.mkdir(exist_ok=True)
            finding_path(step, state).write_text(json.dumps(finding, indent=1))
        finally:
            save_state(state, out, packs, limits)
        print(f"  exit code {finding['exit_code']} after {finding['seconds']:.0f} s: {finding['last_line']}")
    return 0 if all(is_done(step, state) for step in SLICES[name]) else 1


def is_done(step: Step, state: Path) -> bool:
    if step.records:
        return any((state / "storage" / step.name).glob("*/*.json"))
    path = finding_path(step, state)
    return path.exists() and json.loads(path.read_bytes())["exit_code"] in ((0, 1, None) if step.judges else (0,))


def finding_path(step: Step, state: Path) -> Path:
    return state / "findings" / f"{step.name}.json"


def run_step(step: Step, state: Path, device: str, seconds: float) -> Json:
    """How the step's process ended; what it printed is added to its log. Without a process the exit code is None."""
    filled = step.command.format(device=device, storage=state / "storage" / step.name, minutes=f"{seconds / 60:.3f}")
    words = shlex.split(f"{filled} {step.on_cpu}" if device == "cpu" else filled)
    log = state / "logs" / f"{step.name}.txt"
    log.parent.mkdir(exist_ok=True)
    start = time.monotonic()
    with log.open("ab") as output, repository() if step.needs_git else nullcontext(ROOT) as folder:
        if folder is None:
            return {"device": device, "exit_code": None, "seconds": 0.0, "last_line": "git is not installed here"}
        earlier_bytes = output.tell()
        command = [sys.executable, "-m", *words]
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, process_group=0)
        try:
            process.wait(seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"  ended {GRACE_SECONDS:.0f} s after the slice")
        finally:
            end_group(process)
    printed = log.read_bytes()[earlier_bytes:].decode(errors="replace")
    lines = [line for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]  # pytest prints more after a usage error
    return {
        "device": device,
        "exit_code": process.returncode,
        "seconds": time.monotonic() - start,
        "last_line": (errors or lines or [""])[-1].strip("= "),
    }


@contextmanager
def repository() -> Iterator[Path | None]:
    """Yield ROOT, or of a copy without history a copy with one commit, for as long as it is used; None without git."""
    if (ROOT / ".git").exists():
        yield ROOT
    elif shutil.which("git") is None:
        yield None
    else:
        with tempfile.TemporaryDirectory(prefix="suite-") as folder:
            copy = Path(folder, ROOT.name)
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv*", "wheels", "__pycache__"))
            as_nobody = ("-c", "user.name=expedition", "-c", "user.email=expedition@localhost")
            for words in (["init", "-q"], ["add", "-A"], [*as_nobody, "commit", "-q", "--no-verify", "-m", "start"]):
                subprocess.run(["git", "-C", str(copy), *words], check=True)
            yield copy


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End what runs of a process and those that it started: first by SIGTERM, so that a run keeps its journal."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(GRACE_SECONDS)


def load_state(state: Path, *folders: Path) -> None:
    """Unpack what an earlier slice left in the first folder that holds it. Raises ValueError if it is damaged."""
    found = next((folder / STATE for folder in folders if (folder / STATE).exists()), None)
    if found is None:
        return
    content = unpacked(found, MOST_BYTES)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise ValueError(f"{member.name!r:.60} in it is neither a file nor a folder")
                _extract(archive, member, state)
        for path in sorted(state.glob("findings/*.json")):
            if wrong := misshapen(json.loads(path.read_bytes()), FINDING, path.name):
                raise ValueError(wrong)
    except (tarfile.TarError, EOFError, OSError, RecursionError, ValueError) as error:
        raise ValueError(f"{found} cannot be read: {error}; take the folder of the slice before.") from error


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, state: Path) -> None:
    """Extract a plain file or folder. Python before 3.11.4 has no filter for what leads elsewhere."""
    path = (state / member.name.lstrip("/")).resolve()
    if not path.is_relative_to(state.resolve()):
        raise ValueError(f"{member.name!r:.60} in it leads out of its folder")
    content = archive.extractfile(member)
    (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
    if content is not None:
        path.write_bytes(content.read())


def save_state(state: Path, out: Path, name_of_packs: str, limits: FolderLimits) -> None:
    """Write all that was found into `out`, and the traces beside it as far as the limits allow.

    Traces are side files of a record that nothing reads again, so they stay out of what the next slice loads. Raises
    StateTooLargeError, and leaves the older file.
    """
    traces = sorted(state.glob("storage/*/*/files-*/*"))
    packs, left_out = packed(traces, limits)
    if left_out:
        (state / LEFT_OUT).write_text("\n".join(path.name for path in left_out) + "\n")
    others = sorted({path for path in state.rglob("*") if path.is_file()} - set(traces))
    content = _archive(others, state, "w:xz")
    if len(content) > limits.bytes_per_file:
        raise StateTooLargeError(
            f"{STATE} has {len(content)} bytes, above the limit of {limits.bytes_per_file}; raise --megabytes."
        )
    write_whole(out / STATE, content)
    for number, pack in enumerate(packs, 1):
        write_whole(out / f"{name_of_packs}-{number}.tar", _archive(pack, state, "w"))


def packed(traces: Sequence[Path], limits: FolderLimits) -> tuple[list[list[Path]], list[Path]]:
    """The traces in packs, the smallest first, and those beyond the limits. The state and the page are files too."""
    packs: list[list[Path]] = []
    room, left_out = 0, []
    for path in sorted(traces, key=lambda path: path.stat().st_size):
        needed = path.stat().st_size + 1024
        if needed > room and len(packs) < limits.files - 2:
            packs.append([])
            room = limits.bytes_per_file - TAR_BYTES
        if packs and needed <= room:
            packs[-1].append(path)
            room -= needed
        else:
            left_out.append(path)
    return packs, left_out


def _archive(files: Sequence[Path], root: Path, mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]  # one mode of two
        for path in files:
            archive.add(path, path.relative_to(root))
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
