"""What a process runs and reads of a tree, whatever it runs: functions, modules, files, listed folders. No torch.

Each source file of the tree is compiled with a mark at the start of each function, so that a function that runs says
so, in any thread, for the price of one call into a set. What the import system, pytest or anybody else compiles from a
file's own text is marked; what is made of it first, as an import hook does, is not, and is compared as a whole. One
audit hook, which Python keeps for good, sees the rest.
"""

import __future__

import ast
import builtins
import linecache
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from perf_tests_suite.perf_tests.cases import model_names
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code import named

STARTS = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "socket.connect",
    "sqlite3.connect",
)  # fmt: skip
"""Python's audit events by which code reaches what nobody sees from here."""

MARK = "__perf_tests_ran__"
"""A name among Python's own, of the function that notes a mark."""

OF_PYTHON = ("<frozen ", *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")))
OF_PACKAGES = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
OF_PYTEST = "_pytest.assertion.rewrite"
"""The module that compiles tests with other asserts: what it makes of equal sources is equal."""

LOOKS = (__file__, named.__file__, model_names.__file__)
"""Files of the suite that look into a source for marks, for a name that was typed, or for tables of names, which are
compared as code that runs.
"""

FUTURES = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
"""The flags of code that its `from __future__` imports set."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Observation:
    """What a process has run and read of a tree so far, by names from its top."""

    ran: Mapping[str, int] = field(default_factory=dict)
    """How often each module's code ran, in order of the first time."""
    functions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The places of what ran, by each file that is marked."""
    read: Sequence[str] = ()
    listed: Sequence[str] = ()
    """Folders whose names were asked for."""
    beyond: Sequence[str] = ()
    """Lines that started or reached what cannot be observed."""
    modules: Sequence[str] = ()
    """The tree's modules without a file, and the packages that were loaded since its code began."""
    preloaded: Sequence[str] = ()
    """Modules that were there before it."""
    overridden: Sequence[str] = ()
    """Names in the tree's classes that their bases elsewhere have too, by which packages may call."""
    of_suite: Sequence[str] = ()
    """Names that the suite uses, where it lies in the tree."""

    @property
    def as_json(self) -> Json:
        return asdict(self)

    @classmethod
    def of(cls, message: Json) -> "Observation":
        """Return the one in a message, which may hold more."""
        return cls(**{each.name: message[each.name] for each in fields(cls)})


class Recorder:
    """Observes this process from here on; code of `trusted` folders is the suite's, the same on both sides.

    From here on the process writes no byte code, which would keep the marks.
    """

    def __init__(self, tree: Path, trusted: Sequence[Path] = ()) -> None:
        self._top = f"{os.path.realpath(tree)}/"
        self._trusted = tuple(f"{os.path.realpath(folder)}/".removeprefix(self._top) for folder in trusted)
        self._places: list[tuple[str, str]] = []
        self._marked = set[str]()
        self._passed = set[int]()
        self._ran = Counter[str]()
        self._opened, self._compiled = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self._loaded, self._listed, self._beyond = set[str](), set[str](), dict[str, None]()
        self._suite_code: list[CodeType] = []
        self._preloaded: set[str] | None = None
        self._compile: Callable[..., Any] = compile
        sys.dont_write_bytecode = True
        vars(builtins).update({MARK: self._passed.add, "compile": self._compile_marked})
        sys.addaudithook(self._note)

    def observation(self) -> Observation:
        """Return what was observed so far."""
        functions: dict[str, list[str]] = {name: [] for name in sorted(self._marked)}
        for mark, (name, place) in enumerate(self._places):
            if mark in self._passed:
                functions[name].append(place)
        theirs, others = set[str](), set[str]()
        for known_as, module in list(sys.modules.items()):
            held = getattr(module, "__dict__", {})
            places = [held.get("__file__"), *(held.get("__path__") or ())]
            # Torch has modules whose file is a bare name.
            is_theirs = any(self._name_of(place) is not None for place in places if os.path.isabs(str(place)))
            (theirs if is_theirs else others).add(known_as)
        namespaces = {name for name in theirs if getattr(sys.modules.get(name), "__file__", None) is None}
        early = self._preloaded or set()
        return Observation(
            ran=dict(self._ran),
            functions=functions,
            read=sorted(self._loaded | {name for name, _ in self._opened - self._compiled}),
            listed=sorted(self._listed),
            beyond=[*self._beyond],
            modules=sorted(namespaces | (others - early if self._preloaded else set())),
            preloaded=sorted(early),
            overridden=sorted(_overridden(theirs)),
            of_suite=sorted(_names_in(self._suite_code)),
        )

    def _name_of(self, place: object) -> str | None:
        """The file's own name in the tree, whatever link led to it."""
        if isinstance(place, bytes | os.PathLike):
            place = os.fsdecode(place)
        if not isinstance(place, str) or place.startswith("<"):
            return None
        try:
            path = _real(os.path.abspath(place))
        except (OSError, ValueError):  # in a folder that is gone, or no path at all
            return None
        return path.removeprefix(self._top) if path.startswith(self._top) else None

    def _is_theirs(self, name: str | None) -> bool:
        return name is not None and not name.startswith(self._trusted or "\0")

    # What is compiled.

    def _compile_marked(
        self, source: Any, filename: Any, mode: str, flags: int = 0, dont_inherit: bool = False, optimize: int = -1,
        **more: Any,
    ) -> Any:  # fmt: skip
        """Compile as Python does, a file of the tree with marks."""
        caller = sys._getframe(1)
        if not dont_inherit:
            flags |= caller.f_code.co_flags & FUTURES
        name = self._name_of(filename) if mode == "exec" and not flags & ast.PyCF_ONLY_AST else None
        if name is not None and self._is_theirs(name):
            self._compiled[name, _asked_by(caller) or ""] += 1
            self._preloaded = self._preloaded or {*sys.modules}
            if isinstance(source, ast.Module) and caller.f_globals.get("__name__") == OF_PYTEST:
                self._plant(source, name)
            elif isinstance(source, str | bytes) and _is_text_of(source, f"{self._top}{name}"):
                source = ast.parse(source, filename)
                self._plant(source, name)
        return self._compile(source, filename, mode, flags, True, optimize, **more)

    def _plant(self, module: ast.Module, name: str) -> None:
        self._marked.add(name)
        for place, body in parts_of(module):
            mark = ast.parse(f"{MARK}({len(self._places)})").body[0]
            for node in ast.walk(mark):
                ast.copy_location(node, body[0])
            body.insert(is_constant(body[0]), mark)
            self._places.append((name, place))

    # What else happens.

    def _note(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            if (name := self._name_of(given[0])) is not None and self._is_theirs(name):
                reader = _asked_by(sys._getframe(1))
                if reader not in (None, *LOOKS):
                    self._opened[name, reader or ""] += 1
        elif event == "exec":
            name = self._name_of(getattr(given[0], "co_filename", None))
            if name is not None and self._is_theirs(name):
                self._ran[name] += 1
            elif name is not None:
                self._suite_code.append(given[0])
        elif (event == "import" and given[1]) or event == "ctypes.dlopen":  # compiled code
            if (name := self._name_of(given[event == "import"])) is not None:
                self._loaded.add(name)
        elif event in ("os.listdir", "os.scandir"):
            place = None if isinstance(given[0], int) else f"{os.fsdecode(given[0] or '.')}/x"
            if (inside := self._name_of(place)) is not None and self._line() is not None:
                self._listed.add(inside.removesuffix("x"))
        elif event in STARTS and (line := self._line()) is not None:
            self._beyond.setdefault(f"{line} {event}")

    def _line(self) -> str | None:
        """The innermost line of the tree's code on the stack; None where the import system asks on its behalf."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            name = self._name_of(frame.f_code.co_filename)
            if name is not None and self._is_theirs(name):
                return f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return None


@cache
def _real(path: str) -> str:
    return os.path.realpath(path)


def _asked_by(frame: FrameType | None) -> str | None:
    """The file of the innermost code that is not Python's own library; None where that shows a line of a source."""
    while frame is not None and _is_of_python(frame.f_code.co_filename):
        if frame.f_code.co_filename == linecache.__file__:
            return None
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


@cache
def _is_of_python(file: str) -> bool:
    return file.startswith(OF_PYTHON) and not file.startswith(OF_PACKAGES)


def _is_text_of(source: str | bytes, path: str) -> bool:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:  # in an archive
        return False
    return source in (content, content.decode(errors="replace").replace("\r\n", "\n"))


def _overridden(modules: set[str]) -> Iterator[str]:
    """Yield names that classes of these modules have, and a base of theirs elsewhere."""
    known, left = {object, type}, [object]
    while left:
        new = {*type.__subclasses__(left.pop())} - known
        known |= new
        left += new
    for kind in known:
        if kind.__module__ in modules:
            others = [vars(each) for each in kind.__mro__ if each.__module__ not in modules]
            yield from (name for name in vars(kind) if any(name in each for each in others))


def _names_in(codes: Sequence[CodeType]) -> set[str]:
    """Names, and texts that may be one, in code and what it defines."""
    found, left = set[str](), [*codes]
    while left:
        code = left.pop()
        found.update(code.co_names, (each for each in code.co_consts if isinstance(each, str) and each.isidentifier()))
        left += (each for each in code.co_consts if isinstance(each, CodeType))
    return found


# What is marked, in words that both the process and who compares its files know.


def parts_of(module: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield each function, and each branch of an `if` outside of functions: its place and its statements."""
    left: list[tuple[ast.AST, bool]] = [(module, False)]
    for node, is_within in left:
        is_within |= isinstance(node, Function)
        if isinstance(node, Function):
            yield place_of(node), node.body
        elif isinstance(node, ast.If) and not is_within:
            yield from ((place_of(node, name), body) for name, body in branches_of(node) if body)
        left += [(child, is_within) for child in ast.iter_child_nodes(node)]


def branches_of(node: ast.If) -> list[tuple[str, list[ast.stmt]]]:
    return [("if", node.body), ("else", node.orelse)]


def place_of(node: Any, name: str = "") -> str:
    """Return the line where a function, with its decorators, or an `if` begins, and its name."""
    lines = [each.lineno for each in (node, *getattr(node, "decorator_list", ()))]
    return f"{min(lines)} {name or node.name}"


def is_constant(statement: ast.stmt) -> bool:
    """Whether a statement is a constant that stands alone, as documentation is."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
