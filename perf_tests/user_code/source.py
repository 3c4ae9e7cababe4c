"""One file of Python: what it does, without how it is written, and what in it cannot be followed. No torch."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

HARMLESS = frozenset({
    "abc", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "enum", "functools", "importlib",
    "importlib.util", "itertools", "json", "logging", "math", "operator", "os", "pathlib", "random", "re", "shutil",
    "sys", "time", "torch", "torch.nn", "torch.nn.functional", "types", "typing", "warnings",
})  # fmt: skip
"""Modules that torch has loaded before any code of a tree, so that to import them again runs nothing, in any order."""
OF_TORCH = frozenset({"Tensor", "nn"})

FOLLOWED = frozenset({
    "__future__", "abc", "argparse", "array", "atexit", "base64", "binascii", "bisect", "cmath", "collections",
    "contextlib", "contextvars", "copy", "copyreg", "dataclasses", "datetime", "decimal", "difflib", "einops", "enum",
    "errno", "fractions", "functools", "gc", "hashlib", "heapq", "hmac", "importlib", "inspect", "io", "itertools",
    "jaxtyping", "json", "keyword", "logging", "math", "numbers", "numpy", "nvtx", "operator", "opt_einsum", "os",
    "pathlib", "platform", "pprint", "queue", "random", "re", "secrets", "shutil", "signal", "statistics", "string",
    "struct", "sys", "textwrap", "threading", "time", "tomllib", "torch", "traceback", "triton", "types",
    "typing", "typing_extensions", "unicodedata", "uuid", "warnings", "weakref", "zlib",
})  # fmt: skip
"""Packages that open no file, start nothing and load no code but by the names below."""

NAMES_OF_A_MODULE = "asks a module for a name that is not known"
ASKERS = ("delattr", "getattr", "setattr", "vars")
IMPORTS = "imports a module whose name is not known"
RUNS_CODE, STARTS = "runs code from a string or a file", "starts another program"
MEASURES = "asks for a file's size or date"
LISTS = "asks which files there are"
UNKNOWN = {
    **dict.fromkeys(
        ("__builtins__", "exec", "eval", "compile", "execfile", "exec_module", "load_module", "run_path", "run_module"),
        RUNS_CODE,
    ),
    **dict.fromkeys(
        ("import_module", "__import__", "find_spec", "find_module", "find_loader", "spec_from_file_location",
         "SourceFileLoader", "entry_points", "meta_path", "path_hooks", "path_importer_cache", "__loader__",
         "__path__", "dictConfig"),
        IMPORTS,
    ),
    **dict.fromkeys(
        ("open", "open_code", "read_text", "read_bytes", "open_text", "open_binary", "files", "load", "loads_file",
         "fromfile", "loadtxt", "genfromtxt", "memmap", "open_memmap", "DataSource", "safe_open", "load_file",
         "from_file", "from_pretrained", "fileConfig", "FileIO", "TextIOWrapper", "FileInput", "loadmat",
         "UntypedStorage", "PyTorchFileReader", "FileLister", "FileOpener", "FileSystemReader", "FileType", "hub",
         "cpp_extension", "load_library", "load_inline", "package", "load_url", "load_state_dict_from_url",
         "aoti_load_package", "ctypeslib", "mmap", "install_import_hook", "fromfile_prefix_chars", "fromregex",
         "recfromcsv", "recfromtxt", "NpzFile", "FileStore", "load_pt2", "metadata", "resources", "copy2", "move",
         "unpack_archive", "methodcaller"),
        "opens a file whose name is not known",
    ),
    **dict.fromkeys(
        ("contents", "chdir", "makedirs", "listdir", "scandir", "walk", "fwalk", "iterdir", "glob", "iglob", "rglob",
         "exists", "lexists", "is_file", "is_dir", "isfile", "isdir", "islink", "is_symlink", "access", "samefile",
         "readlink", "copyfile", "copytree", "make_archive", "statvfs"),
        LISTS,
    ),
    **dict.fromkeys(("fstat", "getatime", "getctime", "getmtime", "getsize", "lstat", "stat", "st_size"), MEASURES),
    **dict.fromkeys(
        ("system", "popen", "fork", "forkpty", "execv", "execve", "execvp", "execl", "execlp", "spawnv", "spawnl",
         "posix_spawn", "posix_spawnp", "startfile", "Popen", "multiprocessing"),
        STARTS,
    ),
}  # fmt: skip
"""What these names do. They count wherever they stand, but for a call whose names of files or modules are known."""

ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
OF_A_SIDE = frozenset({"PYTHONPATH", "PERF_TESTS_PADDING", "PWD", "OLDPWD"})
"""Variables that differ between the sides. All others are the same, so to read one by its name is not."""

READS_SOURCE = frozenset({
    "__annotations__", "__code__", "__doc__", "_getframe", "ast", "co_code", "co_consts", "co_filename",
    "co_firstlineno", "co_lines", "co_linetable", "co_name", "co_names", "co_varnames", "currentframe", "dir",
    "dis", "doctest", "exc_info", "f_back", "f_code", "f_lineno", "f_locals", "get_annotations", "get_objects",
    "get_referents", "get_referrers", "get_type_hints", "getdoc", "getsource", "getsourcelines", "globals", "help",
    "jit", "linecache", "lineno", "locals", "njit", "NameError", "numba", "pydoc", "setprofile", "settrace",
    "symtable", "tb_frame", "tb_lineno", "tokenize", "trace", "traceback", "triton", "UnboundLocalError",
    "WRAPPER_ASSIGNMENTS",
})  # fmt: skip
"""Names by which a program reads its own source, its documentation, its lines or the names of its locals."""

OF_SIGNATURES = frozenset({"Parameter", "Signature", "isclass", "isfunction", "ismethod", "signature"})
"""What `inspect` may be asked: parameters keep their names and annotations here."""

WORDS_OF_NAMES = ("file", "filename", "name", "path")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Nested = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp,
)  # fmt: skip

BINDS_BESIDE_NAMES = (
    ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.Global, ast.Nonlocal, ast.MatchAs, ast.MatchStar,
    ast.MatchMapping,
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One file of Python, `name` in its tree. Raises ValueError where it cannot be read."""

    name: str
    content: bytes

    @cached_property
    def _tree(self) -> ast.Module:
        try:
            return ast.parse(self.content)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{self.name} cannot be read as Python") from error

    def statements(self, keeps_locals: bool = False) -> list[tuple[str, int]]:
        """What each statement of the module does, with the line where it begins.

        Without lines, comments, documentation and layout; names of a function's locals by their order, unless kept.
        """
        try:
            module = _Normal(keeps_locals).visit(ast.parse(self.content))
            body = [*_imports_in_order(module.body)]
            return [(ast.dump(statement), statement.lineno) for statement in body]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{self.name} cannot be read as Python") from error

    def line_of_difference(self, other: "Source", keeps_locals: bool = False) -> int | None:
        """The first line that does something else than in `other`; None where both do the same."""
        ours, theirs = self.statements(keeps_locals), other.statements(keeps_locals)
        for (one, line), (another, _) in zip(ours, theirs, strict=False):
            if one != another:
                return line
        if len(ours) == len(theirs):
            return None
        return ours[len(theirs)][1] if len(ours) > len(theirs) else max((line for _, line in ours), default=1)

    @cached_property
    def imports(self) -> set[tuple[str, ...]]:
        """Every module that an import statement, anywhere in it, or a call with a literal name may mean.

        What a statement means relative to its package begins with an empty part.
        """
        found: set[tuple[str, ...]] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and any(UNKNOWN.get(name) == IMPORTS for _, name in _names(node.func)):
                texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
                named = (re.findall(r"\w+", text.removesuffix(".py")) for text in texts if isinstance(text, str))
                found |= {tuple(parts) for parts in named if parts}
            if isinstance(node, ast.Import):
                found |= {tuple(alias.name.split(".")) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                start = tuple(node.module.split(".")) if node.module else ()
                if node.level:
                    parts = PurePosixPath(self.name).parent.parts
                    start = ("", *parts[: len(parts) - node.level + 1], *start)
                found |= {(*start, *alias.name.split(".")) for alias in node.names}
        return found

    @cached_property
    def packages(self) -> dict[str, int]:
        """What absolute imports name first, with a line."""
        return {name: node.lineno for node in ast.walk(self._tree) for name in _top_modules(node)}  # type: ignore[attr-defined]

    @cached_property
    def words(self) -> set[str]:
        """Every string in it, and the words of each, without documentation."""
        texts = {
            node.value
            for node in ast.walk(_Normal(True).visit(ast.parse(self.content)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        return words_in(texts)

    @cached_property
    def unknown(self) -> list[str]:
        """What it does that cannot be followed, each with its line."""
        return [f"{self.name}:{line} {what}" for line, what in sorted(set(self._unknown()))]

    @cached_property
    def reads_source(self) -> list[str]:
        """Lines that read its own source, documentation, lines or names of locals."""
        found = set()
        asked = {node.value for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)}
        for node, name in _names(self._tree):
            inspects = isinstance(node, ast.Attribute) and _root(node.value) == "inspect" and name not in OF_SIGNATURES
            inspects |= isinstance(node, ast.Name) and name == "inspect" and node not in asked  # another name for it
            if (
                name in READS_SOURCE
                or name.startswith("co_")
                or inspects
                or (name in ("vars", "__dict__") and node not in self._of_self)
            ):
                found.add((node.lineno, name))
        for node in ast.walk(_Normal(True).visit(ast.parse(self.content))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if text in READS_SOURCE - FOLLOWED or re.search(r"\bco_\w|__(annotations|code|doc)__", text):
                found.add((node.lineno, text[:40]))  # type: ignore[attr-defined]  # a constant has a line
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and node.module == "inspect":
                found |= {(node.lineno, alias.name) for alias in node.names if alias.name not in OF_SIGNATURES}
            elif isinstance(node, ast.Import) and any(a.name == "inspect" and a.asname for a in node.names):
                found.add((node.lineno, "inspect"))
        return [f"{self.name}:{line} reads source or names ({name})" for line, name in sorted(found)]

    @cached_property
    def _of_self(self) -> set[ast.AST]:
        """`vars` in `vars(self)`, and `self.__dict__`."""
        found: set[ast.AST] = set()
        for node in ast.walk(self._tree):
            of = node.args if isinstance(node, ast.Call) else [node.value] if isinstance(node, ast.Attribute) else []
            if len(of) == 1 and isinstance(of[0], ast.Name) and of[0].id == "self":
                found.add(node.func if isinstance(node, ast.Call) else node)
        return found

    def _unknown(self) -> Iterator[tuple[int, str]]:
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        known = {call.func for call in calls if self._asks_for_known_names(call)}
        for node, name in _names(self._tree):
            is_of_torch = isinstance(node, ast.Attribute) and name in ("compile", "eval", "exec")
            is_unknown = name in UNKNOWN and not (is_of_torch and _root(node) != "builtins")
            if is_unknown and (node not in known or UNKNOWN[name] in (RUNS_CODE, STARTS, MEASURES)):
                yield node.lineno, UNKNOWN[name]
            if name == "path" and isinstance(node, ast.Attribute) and _root(node.value) == "sys":
                yield node.lineno, IMPORTS
            if name == "__dict__" and _root(node) in self._modules:
                yield node.lineno, NAMES_OF_A_MODULE
        for call in calls:
            # getattr(os, name), vars(os), and getattr(os, "listdir"), which is asked by no name of the list above
            asker, module = _root(call.func), _root(call.args[0]) if call.args else ""
            if asker == "getattr" and call.args[1:] and not isinstance(call.args[1], ast.Constant):
                yield call.lineno, NAMES_OF_A_MODULE
            if asker == "attrgetter" or (asker in ASKERS and module in self._modules):
                asked = call.args[1] if call.args[1:] else None
                if not isinstance(asked, ast.Constant) or asked.value in UNKNOWN:
                    yield call.lineno, NAMES_OF_A_MODULE
        yield from self._environment()

    def _asks_for_known_names(self, call: ast.Call) -> bool:
        """Whether a call says what it opens or imports by whole strings, such as `open("name")`: names that are joined,
        formatted or kept elsewhere stand in no string of the source."""
        asked = [*call.args, *(word.value for word in call.keywords if word.arg in (None, *WORDS_OF_NAMES))]
        texts = [each.value for each in asked if isinstance(each, ast.Constant)]
        if any(UNKNOWN.get(name) == LISTS for _, name in _names(call.func)):
            # What a folder holds is named by no string, but for the system's own.
            return bool(texts) and all(str(text).startswith(("/proc/", "/sys/")) for text in texts)
        root = "" if isinstance(call.func, ast.Name) else _root(call.func)
        if root in ("json", "tomllib"):
            return True  # of a file that was opened before
        is_followed = isinstance(call.func, ast.Name) or root in self._libraries
        return bool(asked) and len(texts) == len(asked) and is_followed

    def _environment(self) -> Iterator[tuple[int, str]]:
        """Yield reads of the environment but those by a literal name that means the same on both sides."""
        named: set[ast.AST] = set()
        for node in ast.walk(self._tree):
            place: ast.AST | None = None
            key: ast.AST | None = None
            if isinstance(node, ast.Subscript):
                place, key = node.value, node.slice
            elif isinstance(node, ast.Call) and node.args:
                place, key = node.func, node.args[0]
                if isinstance(place, ast.Attribute) and place.attr in ("get", "setdefault", "pop"):
                    place = place.value
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                place, key = node.comparators[0], node.left
            if isinstance(key, ast.Constant) and place is not None and key.value not in OF_A_SIDE:
                named.add(place)
        for node, name in _names(self._tree):
            if name in ENVIRONMENT and node not in named and not (isinstance(node, ast.ImportFrom) and not any(
                    alias.asname for alias in node.names)):  # fmt: skip
                yield node.lineno, "reads the environment"

    @cached_property
    def _libraries(self) -> set[str]:
        """Names that `import` binds to modules of libraries that are followed."""
        return {
            alias.asname or alias.name.partition(".")[0]
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name.partition(".")[0] in FOLLOWED
        }

    @cached_property
    def _modules(self) -> set[str]:
        """Names that import statements bind."""
        return {
            alias.asname or alias.name.partition(".")[0]
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }


def words_in(texts: Iterable[str]) -> set[str]:
    """The texts, in lower case, and their words."""
    lower = {text.lower() for text in texts}
    return lower | {word for text in lower for word in re.findall(r"\w+", text)}


def _names(tree: ast.AST) -> Iterator[tuple[Any, str]]:
    """Every node that reads or imports a name, with that name; a dotted import with each of its parts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node, node.id
        elif isinstance(node, ast.Attribute):
            yield node, node.attr
        elif isinstance(node, ast.MatchClass):
            yield from ((node, name) for name in node.kwd_attrs)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from ((node, part) for name in names for part in name.split("."))


def _top_modules(node: ast.AST) -> list[str]:
    """The packages of an absolute import."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [node.module.partition(".")[0]]
    return []


def _root(node: ast.AST) -> str:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _bound(tree: ast.AST) -> Iterator[str]:
    """Every binding of a name in the file, in whatever scope."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names


class _Normal(ast.NodeTransformer):
    """Takes out what changes nothing at run time, and names the locals of a function by their order, unless kept."""

    def __init__(self, keeps_locals: bool) -> None:
        self._keeps_locals = keeps_locals

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            # A string, or another constant, that stands alone is documentation: the compiler drops it, as `pass`.
            kept = [
                each
                for each in block
                if not isinstance(each, ast.Pass)
                and not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
            if block and not kept and not isinstance(node, ast.Module) and name == "body":
                kept = [ast.Pass(lineno=block[0].lineno, col_offset=0)]
            setattr(node, name, kept)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not self._keeps_locals:
            _name_locals(node)
        return node


def _name_locals(function: Function) -> None:
    """Give the locals of a function names by the order in which they are bound, and drop their annotations.

    A name stays where anything but the function's own statements may see it: parameters, imports, names of nested
    scopes and what these use, of exceptions and patterns, globals; all of them where locals are read by name.
    """
    own: list[ast.Name] = []
    kept = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}

    def look_at(node: ast.AST) -> None:
        if isinstance(node, Nested):
            kept.update(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
            kept.update(_bound(node))
            return
        if isinstance(node, ast.Name):
            own.append(node)
        elif isinstance(node, BINDS_BESIDE_NAMES):
            kept.update(_bound_here(node))
        for child in ast.iter_child_nodes(node):
            look_at(child)

    for statement in function.body:
        look_at(statement)
    # It lives inside of the function alone, and is never evaluated or kept there.
    function.body = [_Unannotated().visit(statement) for statement in function.body]
    used = {part.id for part in ast.walk(function) if isinstance(part, ast.Name)}
    if used & {"locals", "vars", "dir", "eval", "exec", "globals"}:
        return
    bound = dict.fromkeys(name.id for name in own if isinstance(name.ctx, ast.Store))
    free = (name for name in bound if name not in kept and not name.startswith("__"))
    names = {name: f"<{place}>" for place, name in enumerate(free)}
    for name in own:
        name.id = names.get(name.id, name.id)


def _bound_here(node: ast.AST) -> list[str]:
    """What this statement, handler or pattern binds by itself."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Global | ast.Nonlocal):
        return list(node.names)
    name = node.rest if isinstance(node, ast.MatchMapping) else getattr(node, "name", None)
    return [name] if name else []


class _Unannotated(ast.NodeTransformer):
    """Takes the annotation off a local that is assigned."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None or not node.simple or not isinstance(node.target, ast.Name):
            return node
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return node if isinstance(node, Nested) else super().generic_visit(node)


def _imports_in_order(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, a run of imports of `HARMLESS` modules in one order; not where two bind the same name."""
    run: list[ast.stmt] = []
    for statement in (*body, None):
        is_harmless = (
            isinstance(statement, ast.Import) and {alias.name for alias in statement.names} <= HARMLESS
        ) or (
            isinstance(statement, ast.ImportFrom) and not statement.level and statement.module in HARMLESS
            # Others of torch may be modules that are imported only then.
            and all(alias.name in OF_TORCH if statement.module == "torch" else alias.name != "*"
                    for alias in statement.names)
        )  # fmt: skip
        if is_harmless and statement is not None:
            run.append(statement)
            continue
        bound = [name for each in run for name in _bound_here(each)]
        # Two that bind a package by its first name, as `import torch` and `import torch.nn`, bind the same.
        if len(set(bound)) == len(bound):
            for each in run:
                if isinstance(each, ast.ImportFrom):
                    each.names.sort(key=lambda alias: (alias.name, alias.asname or ""))
            run.sort(key=ast.dump)
        yield from run
        run = []
        if statement is not None:
            yield statement
