"""The git repository that holds what is under test: base and head of the gate come from it, and records go to it."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perf_tests.own.named import file_of, is_installed

SUITE = Path(__file__).resolve().parents[2]
"""The folder of `perf_tests/` and `model/`."""

UNDER_TEST = ("--model", "--attention", "--optimizer")
"""Options that name code of the user's own, each alone or in a comma-separated list."""


@dataclass(frozen=True)
class Repository:
    """Where what is under test lies, as seen from the folder in which pytest was started."""

    root: Path
    """The suite's folder, or the top folder of another git repository."""
    holds_suite: bool = True
    """Whether base has a `model/` of its own; the suite of another repository is the same on both sides."""
    named: tuple[str, ...] = ()
    """What the options name below `root`."""
    files: tuple[Path, ...] = ()
    """Its files, relative to `root`."""
    outside: tuple[str, ...] = ()
    """What they name that lies in no repository."""
    folder: Path = Path()
    """The one in which pytest was started."""
    import_path: tuple[Path, ...] = ()
    """Entries of Python's path below `root`."""

    def folder_in(self, tree: Path) -> Path:
        """Of `tree`, a copy of `root`, the folder in which pytest was started, or else the top one."""
        same = tree / self.folder.relative_to(self.root) if self.folder.is_relative_to(self.root) else tree
        return same if same.is_dir() else tree

    def path_in(self, tree: Path) -> list[Path]:
        """Python's path there: the suite comes first, because `model` may be the name of a folder of theirs."""
        return [SUITE, *(tree / entry.relative_to(self.root) for entry in self.import_path)]


def repository_of(typed: Mapping[str, str | None], folder: Path) -> Repository:
    """Of what the options name, seen from `folder`; the suite's where none is in another one.

    Raises ValueError with one sentence where two repositories hold it.
    """
    holders: dict[Path, list[tuple[str, str, Path]]] = {}
    outside = []
    for option, text in _each(typed):
        file = file_of(text)
        if file is None:
            continue
        root = _root_of(file)
        if root is None:
            outside.append(f"{option} {text}")
        else:
            holders.setdefault(root, []).append((option, text, file))
    if len(holders) > 1:
        (first, ours), (second, others), *_ = holders.items()
        raise ValueError(
            f"{ours[0][0]} {ours[0][1]} lies in the repository {first}, and {others[0][0]} {others[0][1]} in {second}; "
            "a record has one commit and the gate one base, so give files of one repository."
        )
    root, found = next(iter(holders.items()), (SUITE, []))
    entries = [Path(entry).resolve() for entry in sys.path if entry]
    return Repository(
        root,
        holds_suite=root == SUITE,
        named=tuple(text for _, text, _ in found),
        files=tuple(file.relative_to(root) for _, _, file in found),
        outside=tuple(outside),
        folder=folder.resolve(),
        import_path=tuple(e for e in entries if e.is_relative_to(root) and not is_installed(e)),
    )


def _each(typed: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    for option, texts in typed.items():
        for text in (texts or "").split(","):
            yield option, text.strip()


def _root_of(file: Path) -> Path | None:
    top = _top_of(file)
    return SUITE if file.is_relative_to(SUITE) and top == _top_of(SUITE / "perf_tests") else top


def _top_of(path: Path) -> Path | None:
    """The top folder of the git repository around a path; a worktree or a submodule has a file of this name."""
    return next((folder for folder in path.parents if (folder / ".git").exists()), None)
