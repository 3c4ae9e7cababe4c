"""Whether base and head run the same program, so that its cases need not be measured. No torch.

Two processes of equal code, input and environment do the same, so only files that differ between the trees count. Each
must be shown to change nothing: a module by an equal syntax tree, any other file by never being read. What is not shown
is measured, with the reason. Both workers import, build and run the cases on fake tensors; they say which files they
used, and a digest of every operation.

The decision on code holds for a whole run: one process serves all cases, and each may change what the next one does.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from filecmp import cmp
from functools import cache, cached_property
from itertools import chain
from pathlib import Path, PurePosixPath

from perf_tests.interleaved.observer import files_of
from perf_tests.records.record import Json
from perf_tests.user_code.followed import LISTED, PACKAGES, Uses, between
from perf_tests.user_code.source import HARMLESS, Source, absolute_imports, top_of, words_in

# The files that differ between the trees, and why one of them keeps a run from being shown to be the same.

DEPENDENCIES = re.compile(
    r"(.*/)?((requirements|constraints)[^/]*\.(txt|in)|requirements/[^/]*|pyproject\.toml|setup\.(py|cfg)|Pipfile|"
    r"environment[^/]*\.ya?ml|conda[^/]*\.ya?ml|[^/]*\.lock|pylock[^/]*\.toml|\.python-version|tox\.ini|pdm\.toml|uv\.toml)",
    re.IGNORECASE,
)
COMPILED = frozenset({
    ".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".cubin", ".dll", ".dylib", ".f", ".f90", ".h", ".hip", ".hpp", ".inl",
    ".metal", ".mm", ".pth", ".ptx", ".pxd", ".pyc", ".pyd", ".pyx", ".rs", ".so", ".a", ".o", ".egg", ".whl", ".zip",
})  # fmt: skip
"""Sources and objects that are compiled or linked, what Python imports without source, and `.pth`, which it runs at its
start."""
IMPORTED = (".pyc", ".pyd", ".so")
POINTER = b"version https://git-lfs"
BESIDE = frozenset({"docs", "doc", "examples", "tests", "test", ".github", ".vscode"})
"""Folders at the top of a tree that no program reads, and no package imports, unless its code names one of them or of
their files."""
BESIDE_NAMES = (
    ".CLANG-FORMAT", ".DOCKERIGNORE", ".EDITORCONFIG", ".FLAKE8", ".GITATTRIBUTES", ".GITIGNORE", ".GITLAB-CI",
    ".MAILMAP", ".PRE-COMMIT", ".READTHEDOCS", "AUTHORS", "CHANGELOG", "CHANGES", "CODEOWNERS", "CONTRIBUTING",
    "LICENSE", "MYPY.INI", "RUFF.TOML",
)  # fmt: skip
OF_TEXTS = frozenset({"", ".ini", ".md", ".rst", ".toml", ".txt", ".yaml", ".yml"})
PROSE = frozenset({".cff", ".ipynb", ".md", ".pyi", ".rst"})
"""Documents, and what type checkers read: of these alone a word of a string that is their name without suffix says
nothing."""


def differing(base: Path, head: Path) -> list[str]:
    """Files and links that only one tree has, or that differ, sorted; without byte code and records."""
    names = files_of(base) | files_of(head)
    return sorted(name for name in names if not _are_equal(base / name, head / name))


def _are_equal(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    return one.is_file() and other.is_file() and _may_run(one) == _may_run(other) and cmp(one, other, shallow=False)


def _may_run(path: Path) -> bool:
    return path.exists() and bool(path.stat().st_mode & 0o111)


@dataclass(frozen=True)
class Seen:
    """What the worker of one side said of itself once it had run the cases on fake tensors."""

    ran: tuple[str, ...]
    """Files of its tree that ran, in order."""
    opened: frozenset[str]
    beyond: tuple[str, ...]
    """Lines that did what cannot be followed."""
    digests: Mapping[str, str]
    """A digest of the operations of each case that was counted, and of all before it, in the order of the run."""
    uncounted: Mapping[str, str]
    """Why a case was not."""
    paths: tuple[str, ...] = (".",)
    """Folders of Python's path, those in the tree relative to its top."""
    modules: tuple[str, ...] = ()
    """First names of the tree's modules that ran."""
    packages: frozenset[str] = frozenset()
    """Those of all others."""
    names: frozenset[str] = frozenset()
    """Those of its names that loaded packages give to anything too."""
    loaded: frozenset[str] = frozenset()
    """Files of its modules that stayed, and ran once: what fails to be imported is run whenever it is asked for."""
    early: frozenset[str] = frozenset()
    """Those that were there before the cases ran on fake tensors, on which an import may do what else fails."""
    registered: frozenset[str] = frozenset()
    """What its code calls parts of a `torch.nn.Module`, where packages, or the language, have such a name."""

    @classmethod
    def of(cls, message: Json) -> "Seen":
        digests = {case: said["digest"] for case, said in message["digests"].items() if said["digest"]}
        uncounted = {case: said["reason"] for case, said in message["digests"].items() if not said["digest"]}
        ran, beyond, paths, modules = (tuple(message[name]) for name in ("ran", "beyond", "paths", "modules"))
        opened, packages, names, loaded, early, registered = (
            frozenset(message[name]) for name in ("opened", "packages", "names", "loaded", "early", "registered")
        )
        return cls(ran, opened, beyond, digests, uncounted, paths, modules, packages, names, loaded, early, registered)


@dataclass
class Tree:
    """One tree and what its worker used of it; `trusted` beginnings of names are the suite's own."""

    tree: Path
    seen: Seen
    trusted: tuple[str, ...] = ()
    _sources: dict[str, Source] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        if name not in self._sources:
            self._sources[name] = Source(name, (self.tree / name).read_bytes())
        return self._sources[name]

    @cached_property
    def ran(self) -> list[str]:
        """Modules of theirs in the order of import."""
        return [name for name in self.seen.ran if not name.startswith(self.trusted or "\0")]

    def _is_there(self, name: str) -> bool:
        return (self.tree / name).exists()

    @cached_property
    def reach(self) -> set[str]:
        """Files of Python that ran, that any import statement of these may lead to, and so on, without ours."""
        return self._led_to({name for name in self.ran if name.endswith(".py") and (self.tree / name).is_file()})

    @cached_property
    def late(self) -> set[str]:
        """Those that an import within a function may lead to."""
        return self._led_to({name for one in self.reach for name in self._meant(self.source(one).late_imports)})

    def _led_to(self, found: set[str]) -> set[str]:
        left = list(found)
        while left:
            new = self._meant(self.source(left.pop()).imports) - found
            found |= new
            left += new
        return found

    def _meant(self, imports: Iterable[tuple[str, ...]]) -> set[str]:
        """Files that may be what these import, or a package around it."""
        asked = {meant[:count] for meant in imports for count in range(1, len(meant) + 1)}
        # An absolute import says an end of the path. A relative one may lead to another folder of a package's path, so
        # that only its package and module count.
        ends = {meant: meant[1:][-2:] if meant[0] == "" else meant for meant in asked}
        return {
            name
            for meant, end in ends.items() for module, name in self._by_last.get(meant[-1], ())
            if module[-len(end) :] == end
        }  # fmt: skip

    @cached_property
    def _by_last(self) -> dict[str, list[tuple[tuple[str, ...], str]]]:
        """Modules and files of theirs by the last part of the module."""
        by_last: dict[str, list[tuple[tuple[str, ...], str]]] = {}
        for name in files_of(self.tree):
            if name.endswith(".py") and not name.startswith(self.trusted or "\0"):
                module = PurePosixPath(name).with_suffix("").parts
                module = module[:-1] if module[-1] == "__init__" else module
                if module:
                    by_last.setdefault(module[-1], []).append((module, name))
                    # A star imports `a.b` too, where __all__ has it.
                    by_last.setdefault("*", []).extend(((*module[:end], "*"), name) for end in range(len(module)))
        return by_last

    @cached_property
    def words(self) -> set[str]:
        """Words of all strings of the code in reach, and of the data that was opened."""
        found: set[str] = set().union(*(self.source(name).words for name in self.reach))
        for name in self.seen.opened - self.reach:
            if not name.startswith(self.trusted or "\0") and (self.tree / name).is_file():
                found |= words_in([(self.tree / name).read_bytes()[:1_000_000].decode(errors="replace")])
        return found

    def importable(self, name: str) -> dict[str, str]:
        """The module that a file is or lies in, as imports name it, and its place, by each folder of the path."""
        path = PurePosixPath(name)
        within = (place for place in self.seen.paths if path.is_relative_to(place))
        tops = {place: path.relative_to(place).parts[0] for place in within}
        return {f"{place}/{top}": top.removesuffix(".py") for place, top in tops.items()}

    @cached_property
    def uses(self) -> list[Uses]:
        """What each file in reach asks of Python and of packages."""
        return [Uses(self.source(name), self.seen.names) for name in sorted(self.reach)]

    @cached_property
    def unknown(self) -> list[str]:
        """What the code in reach does that cannot be followed."""
        found = [f"{name} is compiled code" for name in self.ran if PurePosixPath(name).suffix in COMPILED]
        found += [f"{name} is in an archive, which is not followed" for name in self.ran if not self._is_there(name)]
        found += [f"{name} is compiled, and can be imported" for name in files_of(self.tree) if name.endswith(IMPORTED)]
        found += [f"{name} says what to import" for name in files_of(self.tree) if name.endswith("/entry_points.txt")]
        found += between(self.uses)
        for uses in self.uses:
            source = uses.source
            found += uses.unknown
            clashing = PACKAGES.intersection(self.importable(source.name).values()) - (HARMLESS - {*self.seen.modules})
            found += [f"{source.name} has the name of a package" for _ in clashing]
            found += [
                f"{source.name}:{line} uses {package}, which is not followed"
                for package, line in source.packages.items()
                if package in self._not_listed - {"model"} and package in self.seen.packages | sys.stdlib_module_names
            ]
        return found

    @cached_property
    def _not_listed(self) -> set[str]:
        """Packages that the code in reach imports and nobody knows."""
        sources = [uses.source for uses in self.uses]
        asked = {each for source in sources for node in source.nodes for each in absolute_imports(node)}
        known = PACKAGES.union(self.seen.modules)
        # A factory elsewhere may import the suite's model; its sizes, as a type hint, see nothing.
        if all(each.startswith("model.sizes.") for each in asked if top_of(each) == "model"):
            known |= {"model"}
        return {*map(top_of, asked)} - known

    @cached_property
    def reads_source(self) -> list[str]:
        """What may see how the code in reach is written; so may a package that nobody has loaded yet."""
        called = (f"a part of a module is called {name}" for name in sorted(self.seen.registered - LISTED))
        found = [f"{each}, which packages ask for" for each in called]
        for uses in self.uses:
            found += [
                f"{uses.source.name}:{line} uses {package}, which may see how it is written"
                for package, line in uses.source.packages.items()
                if package in self._not_listed
            ]
            found += uses.reads_source
        return found


def why_not_the_same(base: Tree, head: Tree, settings: str = "", keeps_locals: bool = False) -> str | None:
    """None where the code of both sides is shown to do the same, else the first reason why it is not, in words.

    `settings` is what was typed, which may name files. `keeps_locals` is for torch.compile, which sees their names.
    """
    files = differing(base.tree, head.tree)
    if not files:
        return None
    try:
        return _why_not_the_same(base, head, files, words_in([settings]), keeps_locals)
    except ValueError as error:
        return str(error)


def _why_not_the_same(
    base: Tree, head: Tree, files: Sequence[str], settings: set[str], keeps_locals: bool
) -> str | None:
    sides = (head, base)
    never = (_why_never(name, (base.tree / name, head.tree / name)) for name in files)
    links = (
        f"{name} is a symbolic link, which is not followed, and {files[0]} differs"
        for side in sides for name in sorted(files_of(side.tree)) if (side.tree / name).is_symlink()
    )  # fmt: skip
    if why := next(filter(None, chain(never, links, *(side.seen.beyond for side in sides))), None):
        return why
    for place in sorted({*base.seen.paths, *head.seen.paths}):  # each search for a module looks into it
        if (base.tree / place).is_dir() != (head.tree / place).is_dir():
            return f"{place}, a folder of Python's path, is there on one side alone"
    if base.ran != head.ran:
        alone = sorted(set(base.ran) ^ set(head.ran))
        return f"{alone[0]} is imported on one side alone" if alone else "modules are imported in another order"
    # Of source that was only opened, as for a digest of it, the same holds.
    opened = {name for name in base.seen.opened | head.seen.opened if name.endswith(".py")}
    in_reach = [name for name in files if name in base.reach | head.reach | opened]
    words = base.words | head.words
    if why := next((word for word in sorted(words | settings) if word.startswith(".benchmarks")), None):
        return f"{why}, which the code or an option names, is not compared"
    # Of the suite's own model the cases say whether they compile it.
    ours = {"model/compilation.py"} if head.trusted else set[str]()
    sources = [(side.source(name), name) for side in sides for name in side.reach]
    keeps_locals |= any(source.keeps_locals for source, name in sources if name not in ours)
    kept = (keeps_locals, any(source.keeps_documented for source, _ in sources))
    for name in files:
        is_code = name in in_reach
        if is_code and (why := _why_code_differs(name, base, head, *kept)):
            return why
        if not is_code and name in base.seen.opened | head.seen.opened:
            return f"{name}, which is opened, differs"
        if _is_named(name, words if is_code else words | settings, is_code) or _makes_a_package(name, base, head):
            return f"{name}, which the code or an option names, differs"
    there = files_of(base.tree) | files_of(head.tree)  # without what Python writes
    if of_one_side := there & (base.seen.opened ^ head.seen.opened):
        return f"{min(of_one_side)} is opened on one side alone"
    # What is read by unknown names may be the file that differs; what reads source sees how a module is written.
    for side in sides:
        if why := next(chain(side.unknown, side.reads_source if in_reach else ()), None):
            return f"{why}, and {files[0]} differs"
    others = [name for name in files if name not in in_reach]
    may_be_read = chain(_importable(others, base, head), (name for name in others if not _is_never_read(name)))
    return next((f"{name}, which may be read, differs" for name in may_be_read), None)


def _is_never_read(name: str) -> bool:
    """Whether a file is prose, lies among documents or tests, or is a module, which nothing in reach imports."""
    path = PurePosixPath(name)
    is_beside = path.parts[0] in BESIDE or (path.name.upper().startswith(BESIDE_NAMES) and path.suffix in OF_TEXTS)
    return is_beside or path.suffix in (".py", *PROSE)


def _importable(files: Iterable[str], base: Tree, head: Tree) -> Iterator[str]:
    """Yield modules, and files in folders of one side alone, that an installed package may import.

    Many look for others only once they need them, by a name that the tree may have.
    """
    made = {}
    for name in files:
        for place, module in {**base.importable(name), **head.importable(name)}.items():
            is_alone = (base.tree / place).is_dir() != (head.tree / place).is_dir()
            if (is_alone or name.endswith(".py")) and place.removeprefix("./") not in BESIDE:
                made[module] = name
    folders = frozenset(filter(os.path.isabs, (*base.seen.paths, *head.seen.paths)))
    found = imported_by_packages(frozenset(made), frozenset(base.seen.modules), folders)
    return (name for module, name in made.items() if module == found)


IMPORTS_BY_NAME = re.compile(
    rb"(?i)\w*import\w*[ \t]*\(|entry_?point|find_spec|importlib|lazy|load_module|plugin|resolve_name|run_(module|path)"
)
"""What stands near a text that names a module to import; many words in quotes are names of modules by accident."""
NEAR_BYTES = 1000


@cache  # it reads all that is installed
def imported_by_packages(modules: frozenset[str], known: frozenset[str], folders: frozenset[str]) -> str | None:
    """One of these modules that code in these folders may import: it has it behind `import` or `from`, or in quotes.

    In quotes it stands near to what imports by a name; alone there it is no new name for those that are `known` to be
    imported anyway.
    """
    if of_python := modules & sys.stdlib_module_names:
        return min(of_python)
    needles = [name.encode() for name in sorted(modules)]
    names, new = (b"|".join(re.escape(name.encode()) for name in sorted(some)) for some in (modules, modules - known))
    begin = rb"(?m)(?:^|[;:'\"]|\\n)[ \t]*(?:from[ \t]+|import[ \t]+(?:(?:[^\n#]|\\\n)*,[\s\\]*)?)"  # in texts too
    said = re.compile(rb"%b(%b)\b|['\"](%b)[.:]|['\"](%b)['\"]" % (begin, names, names, new or b"(?!)"))
    for file in chain.from_iterable(_sources_in(folder) for folder in folders if modules):
        content = file.read_bytes()
        for match in said.finditer(content) if any(needle in content for needle in needles) else ():
            near = content[max(0, match.start() - NEAR_BYTES) : match.end() + NEAR_BYTES]
            if match.lastindex == 1 or IMPORTS_BY_NAME.search(near):
                return match[match.lastindex or 0].decode()
    return None


def _sources_in(folder: str) -> Iterator[Path]:
    """Yield the files of Python below a folder, behind links too, each folder once."""
    known = set[str]()
    for here, folders, names in os.walk(folder, followlinks=True):
        if (place := os.path.realpath(here)) in known:
            folders.clear()
            continue
        known.add(place)
        paths = (Path(here, name) for name in names if name.endswith(".py"))
        yield from (path for path in paths if path.is_file())  # an editor's lock is a link to nowhere


def _why_never(name: str, places: Sequence[Path]) -> str | None:
    """Why a differing file of this kind is never shown to change nothing."""
    if DEPENDENCIES.fullmatch(name):
        return f"dependencies changed, not measured here: {name}"
    if any(place.is_symlink() for place in places):
        return f"{name} is a symbolic link, and differs"
    if _may_run(places[0]) != _may_run(places[1]):
        return f"{name} may be run as a program on one side alone"
    if re.search(r"[\ud800-\udfff]", name):
        return f"{name!a}, whose name is no text, differs"
    if PurePosixPath(name).suffix.lower() in COMPILED:
        return f"{name} is compiled, linked or run at the start, and differs"
    if PurePosixPath(name).parts[0] == ".git" or name == ".gitmodules":
        return f"{name} differs"
    for place in places:
        if place.is_file():
            with place.open("rb") as file:
                if file.read(len(POINTER)) == POINTER:
                    return f"{name} is kept by git LFS, and differs"
    return None


def _why_code_differs(name: str, base: Tree, head: Tree, keeps_locals: bool, keeps_documented: bool) -> str | None:
    for side, words in ((base, "base"), (head, "head")):
        if not (side.tree / name).is_file():
            return f"{name}, which can be imported, is not in {words}"
    if len({"PYTEST_DONT_REWRITE" in side.source(name).documentation for side in (base, head)}) > 1:
        return f"{name} tells pytest whether to rewrite its assertions on one side alone"
    line = head.source(name).line_of_difference(base.source(name), keeps_locals, keeps_documented)
    if line is not None:
        return f"{name}:{line} differs"
    # Each import that fails, perhaps of every step, reads it and runs it anew, at the cost of its text.
    stayed = [side.seen.loaded & side.seen.early if name in side.late else side.seen.loaded for side in (base, head)]
    if not all(name in files for files in stayed):
        return f"{name} may be imported again and again, and differs"
    # The compiler knows a function's past by the bytes of its file, and of a copy as of the other.
    copies = (
        other
        for side in (base, head) for other in sorted(side.reach - {name})
        if keeps_locals and side.source(other).content == side.source(name).content
    )  # fmt: skip
    copy = next(copies, None)
    return copy and f"{name} is the same file as {copy} on one side alone"


def _makes_a_package(name: str, base: Tree, head: Tree) -> bool:
    """Whether a folder that only one side has may be imported, which needs no file of Python in it, or be opened."""
    alone = [
        folder.name
        for folder in PurePosixPath(name).parents
        if folder.name and (base.tree / folder).is_dir() != (head.tree / folder).is_dir()
    ]
    asked = (meant for side in (base, head) for module in side.reach for meant in side.source(module).imports)
    parts = {part for meant in asked for part in meant}.union(*(side.words for side in (base, head)))
    names = "|".join(map(re.escape, alone))
    named = any(re.search(rf"(?i)(?<![\w-])({names})(?![\w-])", text) for text in parts if alone)
    return named or (bool(alone) and "*" in parts)


def _is_named(name: str, words: set[str], whole: bool) -> bool:
    """Whether a string may be this file's name or, unless it is to be `whole`, a part of which that is made."""
    path = PurePosixPath(name.lower())
    folders = {*path.parts[:-1]} if path.suffix == ".py" else BESIDE.intersection(path.parts[:1])
    if not whole and folders & words:  # a library may be told where to look
        return True
    is_whole = path.name in words or any(path.name in word for word in words if "." in word)
    if whole or is_whole:
        return is_whole
    parts = {path.parent.name if path.stem == "__init__" else path.stem} if path.suffix not in PROSE else set()
    parts |= {path.suffix.lstrip(".")} if path.suffix != ".py" else set()
    return bool((parts - {""}) & words)
