"""Whether two sides run the same program, by what each of them was seen to run and read. No torch.

Of the files that differ, one that ran counts by what it does (`interleaved.program`), one that was read by its bytes.
What neither did counts unless it is a document, a test or a module. The decision holds for a whole run: one process
serves all cases, and each may leave something behind for the next.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from filecmp import cmp
from functools import cached_property
from pathlib import Path, PurePosixPath

from perf_tests_suite.perf_tests.interleaved.observer import Observation
from perf_tests_suite.perf_tests.interleaved.program import Source, UnreadableError, difference, names_asked_for

DEPENDENCIES = re.compile(
    r"(.*/)?((requirements|constraints)[^/]*\.(txt|in)|requirements/[^/]*|pyproject\.toml|setup\.(py|cfg)|Pipfile|"
    r"environment[^/]*\.ya?ml|conda[^/]*\.ya?ml|[^/]*\.lock|pylock[^/]*\.toml|\.python-version|tox\.ini|pdm\.toml|uv\.toml)",
    re.IGNORECASE,
)
"""Files that say what to install."""
BESIDE = {"docs", "doc", "examples", "test", "tests", ".github", ".vscode", "images", "assets"}
"""Folders at the top of a tree that hold what is beside its program."""
DOCUMENTS = {".md", ".rst", ".ipynb", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf", ".cff", ".pyi"}
DOCUMENTS_NAMED = (
    "AUTHORS", "CHANGELOG", "CHANGES", "CODEOWNERS", "CONTRIBUTING", "COPYING", "LICENSE", "MAINTAINERS", "NOTICE",
    "README", "MAKEFILE", "DOCKERFILE", "MYPY.INI", "RUFF.TOML", ".CLANG-FORMAT", ".DOCKERIGNORE", ".EDITORCONFIG",
    ".FLAKE8", ".GITATTRIBUTES", ".GITIGNORE", ".GITLAB-CI", ".MAILMAP", ".PRE-COMMIT", ".READTHEDOCS",
)  # fmt: skip
"""How names of documents, and of what tools for a checkout read, begin."""
LFS_POINTER = b"version https://git-lfs"
WRITTEN = {"__pycache__", ".pytest_cache"}
"""Folders that programs write beside what they run."""


@dataclass
class ObservedTree:
    """One tree and what a process that ran it used of it."""

    tree: Path
    seen: Observation

    def content(self, name: str) -> bytes | None:
        path = self.tree / name
        return path.read_bytes() if path.is_file() else None

    def source(self, name: str) -> Source:
        """A file that was marked."""
        return Source(name, self.content(name) or b"", frozenset(self.seen.functions[name]))

    @cached_property
    def names(self) -> set[str]:
        """What its code that may run asks for by name. Raises UnreadableError."""
        there = [name for name in self.seen.ran if self.content(name) is not None and name in self.seen.functions]
        unmarked = [name for name in self.seen.ran if name not in self.seen.functions]
        words = {
            word
            for name in unmarked
            for word in re.findall(r"\w+", (self.content(name) or b"").decode(errors="replace"))
        }
        return names_asked_for([self.source(name) for name in there], self.seen) | words

    def names_in(self, folder: str) -> set[str]:
        path = self.tree / folder
        return {*os.listdir(path)} - WRITTEN if path.is_dir() else set()


def differing(base: Path, head: Path) -> list[str]:
    """Return files and links that only one tree has, or that differ, sorted; without byte code and records."""
    return sorted(name for name in _files_of(base) | _files_of(head) if not _are_equal(base / name, head / name))


def _files_of(tree: Path) -> set[str]:
    found = set()
    for folder, folders, names in os.walk(tree):
        here = Path(folder).relative_to(tree)
        links = [name for name in folders if (tree / here / name).is_symlink()]
        beside = (*links, *WRITTEN)
        folders[:] = [name for name in folders if name not in beside and str(here) != ".benchmarks"]
        found |= {str(here / name) for name in (*names, *links)}
    return found - {".benchmarks/accepted.toml"}


def _are_equal(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    is_there = one.is_file() and other.is_file()
    return is_there and os.access(one, os.X_OK) == os.access(other, os.X_OK) and cmp(one, other, shallow=False)


def is_document(name: str) -> bool:
    """Whether a file that nobody read says nothing to a program: a document, or what lies beside it."""
    path = PurePosixPath(name)
    is_named = path.name.upper().startswith(DOCUMENTS_NAMED) and path.suffix != ".py"
    is_beside = len(path.parts) > 1 and path.parts[0] in BESIDE
    return (is_beside or is_named or path.suffix.lower() in DOCUMENTS) and not DEPENDENCIES.fullmatch(name)


def why_not_the_same(base: ObservedTree, head: ObservedTree, files: Sequence[str]) -> str | None:
    """Return None where both sides run the same program, else the first file, and function, that differs, in words.

    `files` are those that differed before the processes ran, which may have written some.
    """
    if not files:
        return None
    sides = (base, head)
    try:
        reasons = (_why_counts(name, base, head) for name in files)
        why = next(filter(None, reasons), None)
    except UnreadableError as error:
        why = str(error)
    beyond = [line for side in sides for line in side.seen.beyond]
    if why is None and beyond and not all(map(is_document, files)):
        why = f"{beyond[0]}, which cannot be followed, and {files[0]} differs"
    why = why or _why_seen_otherwise(base, head)
    return why and why.encode(errors="backslashreplace").decode()


def _why_counts(name: str, base: ObservedTree, head: ObservedTree) -> str | None:
    """Why a file that differs may change what runs; None where it does not."""
    sides, places = (base, head), (base.tree / name, head.tree / name)
    if DEPENDENCIES.fullmatch(name):
        return f"dependencies changed, not measured here: {name}"
    if any(place.is_symlink() for place in places):
        return f"{name} is a symbolic link, and differs"
    if any((side.content(name) or b"").startswith(LFS_POINTER) for side in sides):
        return f"{name} is kept by git LFS, and differs"
    if any(name in side.seen.read for side in sides):
        return f"{name} is read, and differs"
    if any(name in side.seen.ran for side in sides):
        return _why_runs_otherwise(name, base, head)
    return None if is_document(name) or name.endswith(".py") else f"{name} may be read, and differs"


def _why_runs_otherwise(name: str, base: ObservedTree, head: ObservedTree) -> str | None:
    for side, other in ((base, "head"), (head, "base")):
        if name not in side.seen.ran:
            return f"{name} runs in {other} alone"
        if name not in side.seen.functions:
            return f"{name} is not loaded as it is written, and differs"
    preloaded = {*base.seen.preloaded} & {*head.seen.preloaded}
    found = difference(base.source(name), head.source(name), base.names | head.names, preloaded)
    function = found and re.sub(r"\.<\w+>", "", found)  # a comprehension, or a function inside, by the one around it
    return found and (f"{name} differs" if found == "module" else f"{name}: {function} differs")


def _why_seen_otherwise(base: ObservedTree, head: ObservedTree) -> str | None:
    """Why the processes were seen to do something else, whatever file it comes from."""
    if [*base.seen.ran.items()] != [*head.seen.ran.items()]:
        otherwise = {*base.seen.ran.items()} ^ {*head.seen.ran.items()}
        return f"{min(otherwise)[0]} runs on one side alone" if otherwise else "modules run in another order"
    for words, (one, other) in {
        "is loaded": (base.seen.modules, head.seen.modules), "is read": (base.seen.read, head.seen.read),
        "is listed": (base.seen.listed, head.seen.listed),
    }.items():  # fmt: skip
        if alone := {*one} ^ {*other}:
            return f"{min(alone)} {words} on one side alone"
    folders = (folder for folder in base.seen.listed if base.names_in(folder) != head.names_in(folder))
    folder = next(folders, None)
    return None if folder is None else f"{folder or 'the top folder'} is listed, and differs"
