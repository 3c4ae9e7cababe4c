"""A digest of source code: two that are equal ran the same code."""

from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path

from perf_tests.own.repository import SUITE


def suite_files() -> list[tuple[Path, Path]]:
    """Of the model and of what measures it, without its tests: the path inside the suite, and the file."""
    found = (*SUITE.glob("model/**/*.py"), *SUITE.glob("perf_tests/**/*.py"))
    return sorted((path.relative_to(SUITE), path) for path in found if "meta_tests" not in path.parts)


def digest_of(files: Iterable[tuple[Path, Path]]) -> str:
    """Of each file's name and content, in the order given. Raises OSError."""
    digest = sha256()
    for name, path in files:
        digest.update(name.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def digest_of_suite() -> str:
    """As the files are at the first call. Raises OSError."""
    return digest_of(suite_files())
