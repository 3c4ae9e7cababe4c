"""What is typed as `MODULE:NAME`, `FILE.py:NAME` or `hf:FILE.json`: found without running it, then loaded.

A worker of the gate finds every file in its side's tree, wherever that was typed."""

import importlib
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from hashlib import sha256
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from perf_tests_suite.perf_tests import IMPORTABLE

INSTALLED = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


@dataclass(frozen=True)
class Tree:
    """One side of the gate: `tree` is its copy of the folder `root`, which holds what was `named` from `folder`."""

    tree: Path
    root: Path
    folder: Path
    named: frozenset[str]

    @classmethod
    def of(cls, tree: Path, repository: Mapping[str, Any]) -> "Tree":
        """Return the side in `tree` of a `Repository` as it was told."""
        return cls(tree, Path(repository["root"]), Path(repository["folder"]), frozenset(repository["named"]))


_tree: Tree | None = None


def take_files_from(tree: Tree) -> None:
    """Let this process find files and import modules in the copy alone from here on."""
    global _tree
    _tree = tree

    def is_code_below(folder: Path, entry: str) -> bool:
        return Path(entry).is_relative_to(folder) and not is_installed(Path(entry))

    # The copy may lie below the repository.
    sys.path[:] = [path for path in sys.path if is_code_below(tree.tree, path) or not is_code_below(tree.root, path)]


def serves_a_side() -> bool:
    """Whether this process takes files from a side of the gate."""
    return _tree is not None


def path_of(place: str) -> Path:
    """The file that was typed as `place`."""
    if _tree is None:
        return Path(place)
    path = (_tree.folder / place).resolve()
    return _tree.tree / path.relative_to(_tree.root) if path.is_relative_to(_tree.root) else path


def _place(text: str) -> str:
    """The place of what `text` names: the file, the module, or nothing for a plain word."""
    place, _, name = text.rpartition(":")
    return name if place == "hf" else place


def _is_file(text: str) -> bool:
    place = text.rpartition(":")[0]
    return place == "hf" or place.endswith(".py")


def file_of(text: str) -> Path | None:
    """The file of what `text` names, there or not; None for a plain word and for an installed library."""
    place = _place(text)
    if _is_file(text):
        return path_of(place).resolve()
    try:
        found = find_spec(place) if place else None
    except Exception:  # of the package around it, whose code runs; `check_name` says so
        return None
    if found is None or found.origin is None or not found.has_location:
        return None
    file = Path(found.origin).resolve()
    return None if is_installed(file) else file


_DEFINES_UNWRITTEN = {
    "__dict__", "__getattr__", "eval", "exec", "f_globals", "globals", "locals", "modules", "setattr", "vars",
}  # fmt: skip
"""Words of a file that may define a name which stands nowhere in it."""


def why_not_there(text: str | None) -> str | None:
    """Why this side lacks what `text` names, as a base does that is older; None if it is there, or names nothing."""
    if text is None or _tree is None or text not in _tree.named:
        return None
    file = file_of(text)
    if file is None or not os.path.isfile(file) or not file.is_relative_to(_tree.tree):
        return f"it has no {_place(text)}"
    if file.suffix != ".py":
        return None
    name, words = text.rpartition(":")[2], re.findall(r"\w+|\*", file.read_text(errors="replace"))
    is_written = name in words or ("import", "*") in pairwise(words) or not _DEFINES_UNWRITTEN.isdisjoint(words)
    return None if is_written else f"it has no {name} in {_place(text)}"


def loaded_below(folder: Path) -> list[Path]:
    """Files of the loaded modules below `folder`, without installed libraries.

    Torch has modules whose file is a bare name and does not exist.
    """
    files = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    there = (path for file in files if (path := _file_of_no_library(file)) is not None)
    return sorted(path for path in there if path.is_relative_to(folder) and path.is_file())


@cache
def _file_of_no_library(file: str) -> Path | None:
    """The file of a module that belongs to no library. Kept, because a process asks of thousands again and again."""
    path = Path(file)
    resolved = path.resolve() if path.is_absolute() and not is_installed(path) else None
    return None if resolved is None or is_installed(resolved) else resolved


def stray() -> Path | None:
    """A module that was loaded from the working tree itself, which would be measured as both sides."""
    loaded = [] if _tree is None else loaded_below(_tree.root)
    return next((file for file in loaded if _tree is None or not file.is_relative_to(_tree.tree)), None)


def is_installed(path: Path) -> bool:
    """Return whether Python or a library owns it, also where an environment lies inside a repository."""
    folders = {"site-packages", "dist-packages"}
    return bool(folders.intersection(path.parts)) or any(path.is_relative_to(folder) for folder in INSTALLED)


def names_code(texts: Iterable[str | None]) -> bool:
    """Whether any of these values of options names code of the user's."""
    return any(":" in text and not text.startswith("hf:") for text in texts if text is not None)


def check_name(option: str, text: str) -> None:
    """Refuse, by ValueError with one sentence, a name unless `text` has one of the forms and its module or file is
    there.
    """
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError(f"{option} {text!r} names nothing to load; write package.module:NAME or path/file.py:NAME.")
    if os.path.isdir(path_of(place)) and ("/" in place or place.endswith(".py")):
        raise ValueError(f"{option} {text!r}: {place} is a folder, not a file; name the file as path/file.py:{name}.")
    if place.endswith(".py"):
        if not os.path.isfile(path_of(place)):
            raise ValueError(f"{option} {text!r}: there is no file {place}, seen from {Path.cwd()}.")
        return
    try:
        found = find_spec(place)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{option} {text!r}: module {place!r} cannot be imported: {error}.") from error
    if found is None:
        raise ValueError(
            f"{option} {text!r}: there is no module {place!r} on the path; add its folder to PYTHONPATH, "
            f"or name its file as path/{place.replace('.', '/')}.py:{name}."
        )


def _at(text: str, path: str) -> str:
    """What `text` names, in another place."""
    return f"hf:{path}" if text.startswith("hf:") else f"{path}:{text.rpartition(':')[2]}"


def absolute(text: str) -> str:
    """The same for a process in another folder."""
    return _at(text, str(Path(_place(text)).resolve())) if _is_file(text) else text


MOST_OFFERED = 12
"""Names of a module that are listed where another was typed."""


def load(text: str, copy: str = "") -> Any:
    """Load what `text` names: run its module, and raise what that raises. Each `copy` of a file is its own module.

    Raises AttributeError with what the module defines where it lacks the name.
    """
    place, _, name = text.rpartition(":")
    try:
        module = _module_of_file(path_of(place), copy) if place.endswith(".py") else importlib.import_module(place)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name is not None and "." not in error.name:
            next_step = f"install it into {sys.prefix}, or add its folder to PYTHONPATH"
            raise ModuleNotFoundError(f"{error}; {next_step}", name=error.name) from error
        raise
    if not hasattr(module, name):
        offered = [
            one
            for one, value in vars(module).items()
            if callable(value)
            and not one.startswith("_")
            and str(getattr(value, "__module__", "")).startswith(module.__name__)
        ]
        closest = sorted(get_close_matches(name, offered, MOST_OFFERED, cutoff=0.0))
        more = f" and {len(offered) - len(closest)} more" if len(offered) > len(closest) else ""
        has = ", ".join(closest) or "no function and no class of its own"
        hint = "; write build(config), which returns your model (docs/your-own.md)" if name == "build" else ""
        raise AttributeError(f"{place} has no {name!r}; it has {has}{more}{hint}")
    return getattr(module, name)


def _module_of_file(file: Path, copy: str) -> ModuleType:
    """The module of a file under a name of its own, so that two `model.py` do not meet."""
    file = file.resolve()
    name = f"own_{file.stem}_{sha256(str(file).encode()).hexdigest()[:8]}{copy}"
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last, or a file beside it could shadow a library's module
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@lru_cache(maxsize=64)
def from_its_repository(text: str) -> str:
    """The same with a file as its repository knows it, so that records join wherever it was typed."""
    if not _is_file(text):
        return text
    typed_in = Path.cwd() if _tree is None else _tree.folder
    file = (typed_in / _place(text)).resolve()
    root = _top_of(file) or typed_in
    return _at(text, file.relative_to(root).as_posix()) if file.is_relative_to(root) else text


# The git repository that holds what is under test: base and head of the gate come from it, and records go to it.


SUITE = Path(__file__).resolve().parents[2]
"""The folder of `perf_tests/` and `model/`."""

UNDER_TEST = ("--model", "--attention", "--optimizer")
"""Options that name code of the user's own, each alone or in a comma-separated list."""


CONFIGURED = ["--config-file", str(SUITE / "pyproject.toml")]
"""What `perf-tests run` gives to pytest first; the folder, file or case is next."""


def program() -> str:
    """What to type for `perf-tests` here: its path, where the shell finds none or another by that name."""
    beside = Path(sys.executable).with_name("perf-tests")
    if not beside.exists():
        return "python -m perf_tests"
    found = shutil.which("perf-tests")
    is_found = found is not None and Path(found).resolve() == beside.resolve()
    path = os.path.relpath(beside)
    return "perf-tests" if is_found else shlex.quote(path if "/" in path else f"./{path}")


def as_typed_here(words: Sequence[str]) -> str:
    """Return the command line that gives these words to pytest: `perf-tests run`, if they are its, or pytest's own."""
    if list(words[:2]) != CONFIGURED or not "".join(words[2:3]).startswith(f"{SUITE}/"):
        return shlex.join(["pytest", *words])
    place = os.path.relpath(words[2], SUITE).removeprefix("perf_tests").removeprefix("/")
    return " ".join([program(), "run", *([shlex.quote(place)] if place else []), shlex.join(words[3:])]).rstrip()


@dataclass(frozen=True)
class Repository:
    """The place of what is under test, as seen from the folder in which pytest was started."""

    root: Path
    """The suite's folder, or the top folder of another git repository, or one where nothing named lies in any."""
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
    measured_by: Path | None = None
    """The suite that measures where `root` is another checkout of it; None where `root` measures itself."""

    @property
    def as_json(self) -> dict[str, Any]:
        """What another process is told of it, as JSON."""
        places = {"root": str(self.root), "folder": str(self.folder)}
        return {**places, "holds_suite": self.holds_suite, "named": self.named}

    def why_no_base(self) -> str | None:
        """Why no git revision is a base of what is measured, in a sentence with the next step; None if one can be."""
        outside = self.outside[0] if self.outside else ""
        mine = _other_repository_around(self.folder)
        is_elsewhere = mine is not None and self.measured_by is None
        if is_elsewhere and not outside.startswith("--") and (self.holds_suite or not self.named):
            return (
                f"nothing of the repository {mine} that you are in is named, so the suite's own model would be "
                "compared with the suite's own history, and nothing was gated; give --model FILE.py:FACTORY, "
                "--attention FILE.py:FUNCTION or --optimizer FILE.py:FACTORY"
            )
        if outside:
            return (
                f"{outside} lies in no git repository, so it has no base; commit it to one (`git init`), or name code "
                "of a repository with --model"
            )
        return None

    def folder_in(self, tree: Path) -> Path:
        """Return the folder of `tree`, a copy of `root`, in which pytest was started, or else the top one."""
        same = tree / self.folder.relative_to(self.root) if self.folder.is_relative_to(self.root) else tree
        return same if same.is_dir() else tree

    def path_in(self, tree: Path) -> list[Path]:
        """Python's path there, the suite's first."""
        return [IMPORTABLE, *(tree / entry.relative_to(self.root) for entry in self.import_path)]


def repository_of(typed: Mapping[str, str | None], folder: Path, takes_checkout: bool = False) -> Repository:
    """Find the repository of what the options name, seen from `folder`; the suite's where none is in another one.

    A suite that is installed as a library is in none, and records go to the repository around `folder`, or to itself.
    With `takes_checkout` another checkout of the suite around `folder` is what is under test, and this suite measures
    it. Raises ValueError with one sentence where two repositories hold it.
    """
    holders: dict[Path, list[tuple[str, str, Path]]] = {}
    outside = []
    around = _top_of(folder.resolve() / "it")
    checkout = around if takes_checkout and around is not None and _is_checkout(around) else None
    home = checkout or ((around or folder.resolve()) if is_installed(SUITE) else SUITE)
    for option, text in (
        (option, text.strip()) for option, texts in typed.items() for text in (texts or "").split(",")
    ):
        if (file := file_of(text)) is None:
            continue
        root = _top_of(file)
        if file.is_relative_to(SUITE) and root == _top_of(SUITE / "perf_tests"):
            root = SUITE if home == SUITE else None
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
    if home not in (SUITE, checkout) and not (holders or outside):
        outside.append("The installed suite's own model")
    root, found = next(iter(holders.items()), (home, []))
    entries = [Path(entry).resolve() for entry in sys.path if entry]
    return Repository(
        root,
        holds_suite=root in (SUITE, checkout),
        named=tuple(text for _, text, _ in found),
        files=tuple(file.relative_to(root) for _, _, file in found),
        outside=tuple(outside),
        folder=folder.resolve(),
        import_path=tuple(e for e in entries if e.is_relative_to(root) and not is_installed(e)),
        measured_by=SUITE if root == checkout != SUITE else None,
    )


def suite_model_notice(typed: Mapping[str, str | None], folder: Path) -> str | None:
    """Say whose model is measured where a user in a repository of their own names nothing of it; else None."""
    mine = _other_repository_around(folder)
    if mine is None or any(":" in (text or "") for text in typed.values()):
        return None
    return (
        f"measures the suite's own model (in {SUITE}), not the repository {mine} that you are in; give "
        "--model FILE.py:FACTORY to measure yours"
    )


def _other_repository_around(folder: Path) -> Path | None:
    """The top folder of the git repository around `folder`; None where there is none, or it is that of the suite."""
    mine = _top_of(folder.resolve() / "it")
    return None if not is_installed(SUITE) and mine == _top_of(SUITE / "it") else mine


def repository_around(places: Sequence[str], folder: Path, is_built: bool) -> Repository:
    """Return the repository of the user's test files and folders, seen from `folder`.

    Of code that `is_built` for each side the interpreter has it; any other is found from the top folder, from
    `folder` and in a `src` in there. Raises ValueError with one sentence where two repositories hold them.
    """
    paths = [Path(place).resolve() for place in places]
    roots = [_top_of(path / "it" if path.is_dir() else path) or path.parent for path in paths]
    if len(set(roots)) > 1:
        raise ValueError(f"{places[0]} lies in {roots[0]}, and another in {min(set(roots) - {roots[0]})}; gate each.")
    root, here = roots[0], folder.resolve()
    around = [place for place in (here, root) if place.is_relative_to(root)]
    entries = [*(place / "src" for place in around if (place / "src").is_dir()), *around]
    entries += [path for entry in sys.path if entry and (path := Path(entry).resolve()).is_relative_to(root)]
    return Repository(
        root,
        holds_suite=False,
        named=tuple(places),
        files=tuple(path.relative_to(root) for path in paths if path.is_file()),
        folder=here,
        import_path=() if is_built else tuple(dict.fromkeys(entry for entry in entries if not is_installed(entry))),
    )


def why_not_gated(file: str) -> str:
    """Say that --against did nothing for a test file that is not the suite's, and what it can do for its user."""
    return (
        f"--against cannot gate {file}, which is no benchmark of the suite, so nothing was gated; a test file of your "
        f"own repository is gated alone, as `{program()} run FILE.py --against REV`, code of yours by --model "
        "FILE.py:FACTORY."
    )


def _is_checkout(folder: Path) -> bool:
    """Whether a folder holds the suite, of whatever version."""
    return (folder / "perf_tests/plugin.py").is_file() and (folder / "model").is_dir()


def _top_of(path: Path) -> Path | None:
    """The top folder of the git repository around a path; a worktree or a submodule has a file of this name."""
    return next((folder for folder in path.parents if (folder / ".git").exists()), None)


# A digest of source code: two that are equal ran the same code.


def suite_files() -> list[tuple[Path, Path]]:
    """Return the files of the model and of what measures it: the path inside the suite, and the file."""
    found = (*SUITE.glob("model/**/*.py"), *SUITE.glob("perf_tests/**/*.py"), *SUITE.glob("perf_tests/**/*.toml"))
    return sorted((path.relative_to(SUITE), path) for path in found)


def digest_of(files: Iterable[tuple[Path, Path]]) -> str:
    """Digest each file's name and content, in the order given. Raises OSError."""
    digest = sha256()
    for name, path in files:
        digest.update(name.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


OF_TESTS = frozenset({"claims", "numerics_tests", "tests"})
"""Folders of the suite that its model does not import, though tests of it have loaded them."""


def digest_of_suite() -> str:
    """Digest the suite's files and those that its model imported beside them, once each set. Raises OSError."""
    ours = suite_files()
    beside = {path.relative_to(SUITE): path for path in {*loaded_below(SUITE)}.difference(path for _, path in ours)}
    return _digest_of((*ours, *sorted(each for each in beside.items() if each[0].parts[0] not in OF_TESTS)))


@cache
def _digest_of(files: tuple[tuple[Path, Path], ...]) -> str:
    return digest_of(files)
