"""What the worker of a side uses of its tree: files that ran or were opened, names that packages have too. No torch."""

import ast
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import FrameType, FunctionType
from typing import Any

from perf_tests.records.record import Json
from perf_tests.user_code.named import SUITE, is_installed

STARTS = {
    "subprocess.Popen": "starts another program", "os.system": "starts another program",
    "os.exec": "starts another program", "os.posix_spawn": "starts another program",
    "os.fork": "starts another process", "os.forkpty": "starts another process",
    "ctypes.dlopen": "loads a library", "socket.connect": "opens a connection", "sqlite3.connect": "opens a database",
}  # fmt: skip
"""Python's audit events by which code leaves what can be followed."""


class Observer:
    """Notes what this process uses of `tree` from here on; `finished` says it. Code of `trusted` folders is ours."""

    def __init__(self, tree: Path, trusted: Sequence[Path] = ()) -> None:
        self._top, self._trusted = f"{tree}/", tuple(f"{folder}/" for folder in trusted)
        self._ran: dict[str, int] = {}
        """How often the code of each file, as a module, ran."""
        self._early = set[str]()
        self._opened: dict[str, None] = {}
        self._beyond: dict[str, None] = {}
        self._registered = set[str]()
        self._is_on = True
        sys.addaudithook(self._note)  # for good: Python cannot take one away

    def finished(self) -> Json:
        """Files of the tree, relative to its top: those that ran, in order; those opened; those of modules that stay.

        And of these those that were there before the cases ran; what cannot be followed; Python's path, those of its
        folders that are in the tree as seen from there, without the suite; first names of the tree's modules and of the
        others; all names that those have; and of these, those of parts of `torch.nn.Module`s.
        """
        self._is_on = False
        monitoring = getattr(sys, "monitoring", None)  # of Python 3.12
        if sys.gettrace() or sys.getprofile() or (monitoring and any(map(monitoring.get_tool, range(6)))):
            self._beyond.setdefault("a tracer, as of coverage, sees lines")
        modules, shared, loaded = set[str](), set[str](), set[str]()
        for known_as, module in list(sys.modules.items()):
            places = [getattr(module, "__file__", None)]
            places += [] if places[0] else list(getattr(module, "__path__", ()))
            for place in places:
                if not isinstance(place, str) or not os.path.isabs(place):  # torch has some without a folder
                    continue
                if (name := self._in_tree(place)) is not None:
                    self._ran.setdefault(name, 1)
                    loaded.add(name)
                    modules.add(known_as.partition(".")[0])
                else:  # of a package that lies in both
                    shared.add(known_as.partition(".")[0])
        entries = [
            os.path.abspath(entry) for entry in sys.path if is_installed(SUITE) or Path(entry).resolve() != SUITE
        ]
        within = {entry: self._in_tree(f"{entry}/x") for entry in entries}
        paths = [entry if name is None else str(PurePosixPath(name).parent) for entry, name in within.items()]
        of_packages = self._names_of_packages()
        registered = {name for name in self._registered if name in of_packages or name.startswith("__")}
        return {
            "ran": [*self._ran],
            "opened": [*self._opened],
            "loaded": sorted(name for name in loaded if self._ran[name] < 2),
            "early": sorted(self._early),
            "beyond": [*self._beyond],
            "paths": paths,
            "modules": sorted(modules - shared),
            "packages": sorted({name.partition(".")[0] for name in sys.modules} - (modules - shared)),
            "names": sorted(name for name in of_packages & self._names() if not name.startswith("__")),
            "registered": sorted(registered),
        }

    def note_loaded(self) -> None:
        """Note which modules are there before cases run on fake tensors, on which an import may do what else fails."""
        places = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        self._early |= {name for place in places if (name := self._in_tree(place)) is not None}

    def note_parts(self) -> None:
        """Note from here on what code of the tree calls the parts of a `torch.nn.Module`, by a computed name too."""
        from torch.nn.modules import module as torch_module  # a worker first says whether its tree is right

        torch_module.register_module_buffer_registration_hook(self._note_part)
        torch_module.register_module_module_registration_hook(self._note_part)
        torch_module.register_module_parameter_registration_hook(self._note_part)

    def _note_part(self, module: object, name: str, part: object) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and "/torch/nn/modules/" in frame.f_code.co_filename:
            frame = frame.f_back
        if self._is_on and frame is not None and frame.f_code.co_filename.startswith(self._top):
            self._registered.add(name)

    def _names_of_packages(self) -> set[str]:
        """Names that what is loaded from elsewhere gives: to modules, classes, and what these set."""
        names, kinds = set[object](), set[type]()
        for module in list(sys.modules.values()):
            place = str(getattr(module, "__file__", ""))
            is_theirs = place.startswith(f"{SUITE}/") or self._in_tree(place) is not None
            is_theirs &= not place.startswith(sys.prefix)  # which may lie in the tree, or in the suite's
            held = {} if is_theirs else dict(getattr(module, "__dict__", {}))
            names.update(held)
            # isinstance() would ask each for its class, and some of torch warn then.
            kinds.update(kind for each in held.values() if issubclass(type(each), type) for kind in each.__mro__)
        for kind in kinds:
            own = dict(vars(kind))
            annotated, made = own.get("__annotations__"), own.get("__init__")
            names.update(own, annotated if isinstance(annotated, dict) else ())
            names.update(made.__code__.co_names if isinstance(made, FunctionType) else ())
        return {name for name in names if isinstance(name, str)}

    def _names(self) -> set[object]:
        """All names and texts in the tree, as Python reads them, not as they are written."""
        tree, said = Path(self._top), set[object]()
        for path in (tree / name for name in files_of(tree) if name.endswith(".py")):
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                for node in ast.walk(ast.parse(path.read_bytes())):
                    said |= {each for each in vars(node).values() if isinstance(each, str)}
                    said.update(getattr(node, "kwd_attrs", ()))
        return said

    def _in_tree(self, place: object) -> str | None:
        if isinstance(place, bytes):
            place = os.fsdecode(place)
        if not isinstance(place, str) or place.startswith("<"):
            return None
        path = os.path.abspath(place)
        if not path.startswith(self._top):
            path = path if path.startswith((sys.prefix, sys.base_prefix)) else os.path.realpath(path)
        return path.removeprefix(self._top) if path.startswith(self._top) else None

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event == "open":
            place = arguments[0]
            if (name := self._in_tree(os.fspath(place) if hasattr(place, "__fspath__") else place)) is not None:
                self._opened.setdefault(_source_of(name))
        elif event == "exec":
            if (name := self._in_tree(getattr(arguments[0], "co_filename", None))) is not None:
                self._ran.setdefault(name, 0)
                self._ran[name] += arguments[0].co_name == "<module>" and not _is_loaded_by_us()
        elif event in ("os.listdir", "os.scandir"):
            if self._in_tree(f"{arguments[0] or '.'}/x") is not None and (line := self._line_of_theirs()):
                self._beyond.setdefault(f"{line} asks which files there are")
        elif event in STARTS and (line := self._line_of_theirs()):
            self._beyond.setdefault(f"{line} {STARTS[event]}")

    def _line_of_theirs(self) -> str | None:
        """The innermost line of the tree's code on the stack; None where the import system asks on its behalf."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            place = frame.f_code.co_filename
            if place.startswith("<frozen importlib"):
                return None
            if place.startswith(self._top) and not place.startswith(self._trusted):
                return f"{place.removeprefix(self._top)}:{frame.f_lineno}"
            frame = frame.f_back
        return None


def _is_loaded_by_us() -> bool:
    """Whether the suite itself runs a module, of which it may make several."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(f"{SUITE}/perf_tests/")


def _source_of(name: str) -> str:
    """The source of a file of byte code; any other file's own name."""
    path = PurePosixPath(name)
    if path.parent.name == "__pycache__" and path.suffix == ".pyc":
        return str(path.parent.parent / f"{path.name.partition('.')[0]}.py")
    return name


def files_of(tree: Path) -> set[str]:
    """Return files and links of a tree, relative to its top, without byte code and records."""
    found = set()
    for folder, folders, names in os.walk(tree):
        here = Path(folder).relative_to(tree)
        links = [name for name in folders if (tree / here / name).is_symlink()]
        beside = (*links, "__pycache__")
        folders[:] = [name for name in folders if name not in beside and str(here) != ".benchmarks"]
        found |= {str(here / name) for name in (*names, *links)}
    return found - {".benchmarks/accepted.toml"}
