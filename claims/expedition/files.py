"""The results of an expedition in few files of limited size: one archive of all that was found, and packs of traces."""

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perf_tests.records.record import NUMBER, TEXT, OrNull, misshapen, unpacked
from perf_tests.records.store import write_whole

STATE = "state.tar.xz"
LEFT_OUT = "traces-left-out.txt"
MOST_BYTES = 1 << 29
"""Of the archive, unpacked: records and logs, without traces."""
FINDING = {"slice": TEXT, "device": TEXT, "exit_code": OrNull(NUMBER), "seconds": NUMBER, "last_line": TEXT}
"""How a step ended."""
TAR_BYTES = 1024 + 10240
"""The end of a tar file and the padding of its last record; each member adds a header and padding, up to 1024."""


class StateTooLargeError(Exception):
    """What was found does not fit one file; the message is one sentence."""


@dataclass(frozen=True)
class FolderLimits:
    """Of the folder that leaves the machine."""

    files: int
    bytes_per_file: int


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
    """As a plain file or folder. Python before 3.11.4 has no filter for what leads elsewhere."""
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
