"""One file of Python: what it does, without how it is written, and what in it cannot be followed. No torch."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any

HARMLESS = frozenset({
    "abc", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "enum", "functools", "itertools",
    "math", "operator", "os", "pathlib", "random", "re", "shutil", "sys", "time", "torch", "torch.nn",
    "torch.nn.functional", "types", "typing", "warnings",
})  # fmt: skip
"""Modules that torch has loaded before any code of a tree, so that to import them again runs nothing, in any order."""
MODULES_OF_TORCH = frozenset({"nn", "functional"})
"""Others of torch may be loaded only where they are imported; its classes, in capitals, are not."""

FOLLOWED = frozenset({
    "__future__", "abc", "argparse", "array", "atexit", "base64", "binascii", "bisect", "cmath", "collections",
    "contextlib", "contextvars", "copy", "copyreg", "dataclasses", "datetime", "decimal", "einops", "enum", "errno",
    "fractions", "functools", "gc", "hashlib", "heapq", "hmac", "importlib", "inspect", "io", "itertools", "jaxtyping",
    "json", "keyword", "logging", "math", "numbers", "numpy", "nvtx", "operator", "opt_einsum", "os", "pprint", "queue",
    "random", "re", "secrets", "shutil", "statistics", "struct", "sys", "textwrap", "time", "tomllib", "torch",
    "triton", "types", "typing", "typing_extensions", "unicodedata", "uuid", "warnings", "weakref", "zlib",
})  # fmt: skip
"""Packages that open no file, start nothing and load no code but by the names below."""

MAY_BE_ASKED = {module: frozenset(names.split()) for module, names in {
    "gc": "collect disable enable freeze isenabled",
    "importlib": "util", "importlib.util": "", "torch._inductor": "config", "torch.distributed.checkpoint": "",
    "inspect": "Parameter Signature isclass isfunction ismethod signature",
    "logging": "CRITICAL DEBUG ERROR INFO WARNING getLogger",
    "os": "PathLike cpu_count fspath getcwd getpid linesep name path sep",
    "os.path": "abspath basename commonpath dirname expanduser isabs join normpath relpath sep split splitext",
    "shutil": "get_terminal_size which",
    "sys": "byteorder exit float_info maxsize platform stderr stdout version version_info",
    "torch._dynamo": "allow_in_graph config disable graph_break mark_dynamic mark_static reset",
    "torch.utils": "checkpoint data parametrizations parametrize",
    "torch.utils.data": "BatchSampler DataLoader Dataset IterableDataset RandomSampler Sampler Subset TensorDataset",
    "types": "FunctionType GenericAlias MappingProxyType MethodType ModuleType NoneType SimpleNamespace UnionType",
    "warnings": "catch_warnings filterwarnings simplefilter warn",
}.items()}  # fmt: skip
"""What may be asked of modules by which a program reaches its own source, lines, files and imports: no name beside
these and those of `UNKNOWN`, which say what they open. All other modules are asked for whatever they hold."""

PLAIN = frozenset({
    "__all__", "__annotations__", "__call__", "__class__", "__constants__", "__doc__", "__enter__", "__exit__",
    "__file__", "__future__", "__getattr__", "__getitem__", "__init__", "__init_subclass__", "__main__", "__module__",
    "__name__", "__new__", "__post_init__", "__qualname__", "__repr__", "__setattr__", "__slots__",
    "__torch_dispatch__", "__torch_function__", "__version__",
})  # fmt: skip
"""Names of the language by which nothing is imported, opened or run that does not stand in the source."""
OF_THE_INTERPRETER = "reaches into the interpreter"

NAMES_OF_A_MODULE = "asks for a name that is not known"
ASKERS = frozenset({"delattr", "getattr", "setattr"})
IMPORTS = "imports a module without an import statement"
RUNS_CODE, STARTS = "runs code from a string or a file", "starts another program"
MEASURES = "asks for a file's size or date"
LISTS = "asks which files there are"
UNKNOWN = {
    **dict.fromkeys(
        ("exec", "eval", "compile", "execfile", "exec_module", "load_module", "run_path", "run_module", "ForwardRef",
         "Timer", "allow_pickle=", "breakpoint", "eval_str=", "f2py", "get_type_hints", "help", "load_config",
         "onnx", "singledispatch", "singledispatchmethod", "sympy", "testing", "weights_only="),
        RUNS_CODE,
    ),
    **dict.fromkeys(
        ("import_module", "__import__", "find_spec", "find_module", "find_loader", "spec_from_file_location",
         "SourceFileLoader", "entry_points", "dictConfig"),
        IMPORTS,
    ),
    **dict.fromkeys(
        ("open", "open_code", "read_text", "read_bytes", "open_text", "open_binary", "files", "load", "loads_file",
         "fromfile", "loadtxt", "genfromtxt", "memmap", "open_memmap", "safe_open", "load_file", "from_file",
         "from_pretrained", "fileConfig", "FileIO", "TextIOWrapper", "FileInput", "loadmat", "UntypedStorage",
         "PyTorchFileReader", "FileType", "hub", "cpp_extension", "load_library", "load_inline", "package", "load_url",
         "load_state_dict_from_url", "aoti_load_package", "ctypeslib", "mmap", "install_import_hook",
         "fromfile_prefix_chars", "fromfile_prefix_chars=", "fromregex", "recfromcsv", "recfromtxt", "NpzFile",
         "FileStore", "load_pt2", "metadata", "resources", "copy2", "move", "unpack_archive", "opener=", "buffering=",
         "raw", "buffer", "OpenWrapper", "copyright", "credits", "license", "get_code", "get_data", "get_source",
         "tunable", "gds"),
        "opens a file whose name is not known",
    ),
    **dict.fromkeys(
        ("contents", "chdir", "makedirs", "listdir", "scandir", "walk", "iterdir", "glob", "iglob", "rglob", "exists",
         "lexists", "is_file", "is_dir", "isfile", "isdir", "islink", "is_symlink", "access", "samefile", "DataSource",
         "FileBaton", "FileSystemReader", "datapipes", "realpath"),
        LISTS,
    ),
    **dict.fromkeys(("fstat", "getatime", "getctime", "getmtime", "getsize", "lstat", "stat", "st_size"), MEASURES),
    **dict.fromkeys(("system", "popen", "fork", "forkpty", "startfile", "Popen", "multiprocessing"), STARTS),
    **dict.fromkeys(
        ("attrgetter", "f_builtins", "f_globals", "gi_code", "gi_frame", "globals", "locals", "methodcaller",
         "tb_frame", "tb_next", "vars", "__dict__", "cr_code", "cr_frame", "ag_code", "ag_frame"),
        NAMES_OF_A_MODULE,
    ),
}  # fmt: skip
"""What these names do. They count wherever they stand, but for a call whose names of files or modules are known."""

ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
OF_A_SIDE = frozenset({"PYTHONPATH", "PERF_TESTS_PADDING", "PWD", "OLDPWD"})
"""Variables that differ between the sides. All others are the same, so to read one by its name is not."""

READS_SOURCE = frozenset({
    "__annotations__", "__doc__", "_use_new_zipfile_serialization=", "addFilter", "addHandler", "bmat",
    "callHandlers()", "debug=", "dir", "export", "f_lineno", "f_locals", "filters", "findCaller", "fx",
    "get_annotations", "get_overloads", "handle", "handle()", "handlers", "jit", "lineno", "lineno=",
    "makeRecord", "makeRecord()", "make_fx", "metaclass=", "njit", "numba", "numpy.info", "print_readable", "record=",
    "redirect_stderr", "stack_trace", "tb_lineno", "trace", "triton",
})  # fmt: skip
"""Names, keywords `x=` and definitions `x()` by which a program reads its own source, documentation, lines or the names
of its locals."""

COPY_DOCUMENTATION = {"cached_property", "classmethod", "property", "staticmethod", "update_wrapper", "wraps"}
"""What sets another object's documentation, which may look at it, unless it decorates a function."""

WORDS_OF_NAMES = ("file", "filename", "name", "path")
METACLASSES = frozenset({"ABCMeta", "EnumMeta", "EnumType", "type"})
NAMES_OF_MODULES = sys.stdlib_module_names - {"code", "select", "signal", "string", "test", "token", "types"}
"""Modules of Python, without those whose names are also methods and fields of others."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Block = ast.stmt | ast.ExceptHandler | ast.match_case
Nested = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, *filter(None, [getattr(ast, "TypeAlias", None)]),  # of Python 3.12
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
            compile(self.content, self.name, "exec", dont_inherit=True)  # what its grammar alone allows may not run
            module = _Normal(keeps_locals).visit(ast.parse(self.content))
            return [(ast.dump(statement), statement.lineno) for statement in _imports_in_order(module.body)]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{self.name} cannot be read as Python") from error

    def line_of_difference(self, other: "Source", keeps_locals: bool = False) -> int | None:
        """The first line that does something else than in `other`; None where both do the same."""
        ours, theirs = self.statements(keeps_locals), other.statements(keeps_locals)
        pairs = zip_longest(ours, theirs, fillvalue=("", max((line for _, line in ours), default=1)))
        return next((line for (one, line), (another, _) in pairs if one != another), None)

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
            found |= {tuple(name.split(".")) for name in _absolute(node)}
            if isinstance(node, ast.ImportFrom) and node.level:
                parts = PurePosixPath(self.name).parent.parts
                module = node.module.split(".") if node.module else []
                found |= {("", *parts[: len(parts) - node.level + 1], *module, alias.name) for alias in node.names}
        return found

    @cached_property
    def packages(self) -> dict[str, int]:
        """What absolute imports name first, with a line."""
        return {name: node.lineno for node in ast.walk(self._tree) for name in map(_top, _absolute(node))}  # type: ignore[attr-defined]

    @cached_property
    def _texts(self) -> list[tuple[int, str]]:
        """Every string in it, and its bytes, with their lines, without documentation."""
        return [
            (node.lineno, node.value if isinstance(node.value, str) else node.value.decode(errors="replace"))
            for node in ast.walk(_Normal(True).visit(ast.parse(self.content)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        ]

    @cached_property
    def words(self) -> set[str]:
        """The strings, and the words of each."""
        return words_in(text for _, text in self._texts)

    @cached_property
    def compiles(self) -> bool:
        """Whether it may give functions to the compiler, which sees the names of their locals."""
        return any(name == "compile" for _, name in _names(self._tree))

    @cached_property
    def unknown(self) -> list[str]:
        """What it does that cannot be followed, each with its line."""
        return [f"{self.name}:{line} {what}" for line, what in sorted(set(self._unknown()))]

    @cached_property
    def reads_source(self) -> list[str]:
        """Lines that read its own source, documentation, lines or names of locals."""
        found = set()
        decorators = (each for node in ast.walk(self._tree) for each in getattr(node, "decorator_list", []))
        decorating = {part for each in decorators for part in ast.walk(each)}
        for node, name in _names(self._tree):
            copies = bool(self._called(node, name) & COPY_DOCUMENTATION) and node not in decorating
            is_method = isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Constant)
            is_template = is_method and name in ("format", "format_map")
            if {name, self._meant(node)} & READS_SOURCE or name.startswith("co_") or is_template or copies:
                found.add((node.lineno, name))
        for line, text in self._texts:
            parts = {text, f"{text}=", *re.findall(r"\{[^{}]*\.(\w+)", text), *re.findall(r"__\w+__", text)}
            if parts & (READS_SOURCE - FOLLOWED) or re.search(r"\bco_\w", text):
                found.add((line, text[:40]))
        # A class of classes, and what a parent is an instance of, is given all that is in a class, documentation too.
        made = {name for node in ast.walk(self._tree) if isinstance(node, ast.Name) for name in _bound_here(node)}
        for node in ast.walk(self._tree):
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            if any(isinstance(base, ast.Call) or _last(base) in made | METACLASSES for base in bases):
                found.add((node.lineno, "a class's names"))  # type: ignore[attr-defined]  # a class has a line
            # The third argument of these may be a line.
            if isinstance(node, ast.Call) and _last(node.func) in ("filterwarnings", "simplefilter") and node.args[2:]:
                found.add((node.lineno, "lines"))
        return [f"{self.name}:{line} reads source or names ({name})" for line, name in sorted(found)]

    def _unknown(self) -> Iterator[tuple[int, str]]:
        calls = {node.func: node for node in ast.walk(self._tree) if isinstance(node, ast.Call)}
        known = {func for func, call in calls.items() if self._asks_for_known_names(call)}
        always = (RUNS_CODE, IMPORTS, STARTS, MEASURES, NAMES_OF_A_MODULE)
        for node, name in _names(self._tree):
            call = calls.get(node)
            is_of_torch = isinstance(node, ast.Attribute) and name in ("compile", "eval", "exec")
            is_of_torch &= _top(self._meant(node)) not in FOLLOWED - {"re", "torch"} | {"builtins"}
            # vars(self), self.__dict__
            of = call.args if call else [node.value] if isinstance(node, ast.Attribute) else []
            is_of_self = name in ("vars", "__dict__") and [ast.unparse(each) for each in of] == ["self"]
            is_known = node in known and (UNKNOWN.get(name) not in always or name == "find_spec")
            if name in UNKNOWN and not (is_of_torch or is_of_self or is_known):
                yield node.lineno, UNKNOWN[name]
            if re.fullmatch(r"__\w+__", name) and name not in PLAIN | {"__dict__"}:
                yield node.lineno, OF_THE_INTERPRETER
            if name in ASKERS and not call:
                yield node.lineno, NAMES_OF_A_MODULE
        for line, text in self._texts:
            if f"{text}=" in UNKNOWN or not PLAIN.issuperset(re.findall(r"__\w+__", text)):
                yield line, OF_THE_INTERPRETER
        for node in ast.walk(self._tree):
            written = getattr(node, "annotation", None) or getattr(node, "returns", None)
            if isinstance(written, ast.AST) and re.search(r"['\"].*\(", ast.unparse(written)):
                yield node.lineno, RUNS_CODE  # type: ignore[attr-defined]  # once somebody evaluates it
        for func, call in calls.items():
            # getattr(x, name), setattr(os, name), and getattr(x, "listdir"), which none of the names above asks for
            if isinstance(func, ast.Name) and func.id in ASKERS and call.args[1:]:
                asked, is_of_module = call.args[1], _root(call.args[0]) in self._modules
                said = asked.value if isinstance(asked, ast.Constant) else None
                if said in UNKNOWN or (said is None and (is_of_module or func.id == "getattr")):
                    yield call.lineno, NAMES_OF_A_MODULE
        yield from self._of_modules()
        yield from self._environment()

    def _of_modules(self) -> Iterator[tuple[int, str]]:
        """Yield what is asked of modules beyond `MAY_BE_ASKED`, and those of them that are handed on."""
        asked, allowed = set[ast.AST](), set[ast.AST]()
        pairs: list[tuple[Any, str, str]] = []
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute):
                asked.add(node.value)
                pairs.append((node, self._meant(node.value), node.attr + "=" * isinstance(node.ctx, ast.Store)))
            elif isinstance(node, ast.Call) and _root(node.func) == "hasattr":
                asked.update(node.args[:1])
            elif isinstance(node, ast.Compare):
                allowed.update(each for each in node.comparators if self._meant(each) == "sys.modules")
            if isinstance(node, ast.Import | ast.ImportFrom):  # under another name it could be handed on
                pairs += [(node, self._modules[alias.asname], "as") for alias in node.names if alias.asname]
            for parts in (name.split(".") for name in _absolute(node)):
                pairs += [(node, ".".join(parts[:place]), parts[place]) for place in range(1, len(parts))]
        for node, of, name in pairs:
            is_private = _top(of) in FOLLOWED and re.match(r"\*|_(?!_|dynamo|foreach|inductor|scaled)", name)
            is_module = name in NAMES_OF_MODULES and (name not in FOLLOWED or name in MAY_BE_ASKED)
            is_module &= isinstance(node, ast.Attribute) or _top(of) in FOLLOWED
            may_be_asked = MAY_BE_ASKED.get(of, () if is_module else (name,))
            is_known = name in may_be_asked or name in UNKNOWN.keys() | ENVIRONMENT or node in allowed
            if is_private or not is_known:
                yield node.lineno, NAMES_OF_A_MODULE
        for node in ast.walk(self._tree):
            if self._meant(node) in MAY_BE_ASKED.keys() | {"torch"} and node not in asked:
                yield node.lineno, NAMES_OF_A_MODULE  # type: ignore[attr-defined]  # an expression has a line

    def _called(self, node: ast.AST, name: str) -> set[str]:
        """Names of what an expression means, the one before it was imported `as` another too; none of an import."""
        return set() if isinstance(node, ast.ImportFrom) else {name, self._meant(node).rpartition(".")[2]}

    def _meant(self, node: ast.AST) -> str:
        """The module, or what of it, that an expression is, dotted; anything else for others."""
        if isinstance(node, ast.Attribute):
            return f"{self._meant(node.value)}.{node.attr}"
        name = node.id if isinstance(node, ast.Name) else ""
        return self._modules.get(name, name if name in MAY_BE_ASKED else "")  # a star may bind it

    def _asks_for_known_names(self, call: ast.Call) -> bool:
        """Whether a call says what it opens or imports by whole strings, such as `open("name")`: names that are joined,
        formatted or kept elsewhere stand in no string of the source."""
        asked = [*call.args, *(word.value for word in call.keywords if word.arg in (None, *WORDS_OF_NAMES))]
        texts = [each.value for each in asked if isinstance(each, ast.Constant)]
        if any(UNKNOWN.get(name) == LISTS for _, name in _names(call.func)):
            # What a folder holds is named by no string, but for the system's own.
            return bool(texts) and all(str(text).startswith(("/proc/", "/sys/")) for text in texts)
        is_library = _top(self._meant(call.func)) in FOLLOWED and _root(call.func) not in self._bound_otherwise
        is_followed = isinstance(call.func, ast.Name) or is_library
        if self._meant(call.func) in ("json.load", "tomllib.load"):
            return is_followed  # of a file that was opened before
        # The third of open, and True as that of np.load, give a class that opens others, and data that runs code.
        gives = (call.args[2:] and _last(call.func) == "open") or any(text is True for text in texts)
        return bool(asked) and len(texts) == len(asked) and is_followed and not gives

    def _environment(self) -> Iterator[tuple[int, str]]:
        """Yield uses of the environment but those by a literal name that means the same on both sides.

        What is written there may name a file to a library.
        """
        named: set[ast.AST] = set()
        for node in ast.walk(self._tree):
            match node:
                case (
                    ast.Subscript(value=place, slice=ast.Constant(value=key), ctx=ast.Load())
                    | ast.Assign([ast.Subscript(value=place, slice=ast.Constant(value=key))], ast.Constant())
                    | ast.Compare(left=ast.Constant(value=key), comparators=[place])
                    | ast.Call(ast.Attribute(place, "get" | "pop"), [ast.Constant(value=key), *_])
                    | ast.Call(ast.Attribute(place, "setdefault"), [ast.Constant(value=key), ast.Constant()])
                    | ast.Call(func=place, args=[ast.Constant(value=key), *_])
                ) if key not in OF_A_SIDE:
                    named.add(place)
        for node, name in _names(self._tree):
            if self._called(node, name) & ENVIRONMENT and node not in named:
                yield node.lineno, "reads the environment"

    @cached_property
    def _bound_otherwise(self) -> set[str]:
        """Names that anything but an import binds."""
        nodes = (node for node in ast.walk(self._tree) if not isinstance(node, ast.Import | ast.ImportFrom))
        return {name for node in nodes for name in _bound_here(node)}

    @cached_property
    def _modules(self) -> dict[str, str]:
        """What the names that import statements bind mean, dotted."""
        found = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[_bound_by(alias)] = alias.name if alias.asname else _bound_by(alias)
            elif isinstance(node, ast.ImportFrom):
                of = f"{'.' * node.level}{node.module}"
                found |= {_bound_by(alias): f"{of}.{alias.name}" for alias in node.names}
                found |= {_bound_by(alias): alias.name for alias in node.names if alias.name in MAY_BE_ASKED}
        return found


def words_in(texts: Iterable[str]) -> set[str]:
    """The texts, in lower case, and their words."""
    lower = {text.lower() for text in texts}
    return lower | {word for text in lower for word in re.findall(r"\w+", text)}


def _names(tree: ast.AST) -> Iterator[tuple[Any, str]]:
    """Every node that reads or imports a name, with that name; a dotted import with each of its parts.

    Also keywords of calls, as `x=`, definitions that Python or a library calls, as `x()`, and bindings of `__names__`.
    """
    for node in ast.walk(tree):
        if not isinstance(node, Function):
            yield from ((node, name) for name in _bound_here(node) if name.startswith("__"))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node, node.id
        elif isinstance(node, ast.Attribute):
            yield node, node.attr
        elif isinstance(node, ast.keyword) and _last(node.value) != "ABCMeta":
            yield node, f"{node.arg}="
        elif isinstance(node, Function):
            yield node, f"{node.name}()"
        elif isinstance(node, ast.MatchClass):
            yield from ((node, name) for name in node.kwd_attrs)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from ((node, part) for name in names for part in name.split("."))


def _last(node: ast.AST) -> str:
    """The last name of a chain of attributes."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _absolute(node: ast.AST) -> list[str]:
    """What an absolute import names, dotted."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def _top(module: str) -> str:
    return module.partition(".")[0]


def _root(node: ast.AST) -> str:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or _top(alias.name)


def _bound_here(node: ast.AST) -> list[str]:
    """What this node binds by itself, in whatever scope."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [_bound_by(alias) for alias in node.names]
    if isinstance(node, ast.alias | ast.keyword):
        return []
    named = [getattr(node, field, None) for field in ("name", "rest", "arg")]
    return [*getattr(node, "names", ()), *(name for name in named if isinstance(name, str))]


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
    """Give the locals of a function names by the order in which they are bound.

    A name stays where anything but the function's own statements may see it: parameters, imports, names of nested
    scopes and what these use, of exceptions and patterns, globals, what may be unbound where it is read, which an
    exception would tell; all of them where locals are read by name.
    """
    own: list[ast.Name] = []
    kept = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    kept.update(_perhaps_unbound(function.body, set()))

    def visit(node: ast.AST) -> None:
        if isinstance(node, Nested):
            kept.update(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
            kept.update(name for part in ast.walk(node) for name in _bound_here(part))
            return
        if isinstance(node, ast.Name):
            own.append(node)
        else:
            kept.update(_bound_here(node))
        for child in ast.iter_child_nodes(node):
            visit(child)

    for statement in function.body:
        visit(statement)
    used = {part.id for part in ast.walk(function) if isinstance(part, ast.Name)}
    if used & {"locals", "vars", "dir", "eval", "exec", "globals"}:
        return
    bound = dict.fromkeys(name.id for name in own if isinstance(name.ctx, ast.Store))
    # `__x`, and `_C__x` as well, may be one name within a class.
    free = (name for name in bound if name not in kept and not name.startswith("_"))
    names = {name: f"<{place}>" for place, name in enumerate(free)}
    for name in own:
        name.id = names.get(name.id, name.id)


def _perhaps_unbound(block: Sequence[ast.AST], bound: set[str]) -> Iterator[str]:
    """Yield names that are deleted, or read where no statement of this block or around it has bound them for sure."""
    for statement in block:
        parts = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, Block)]
        nodes = [each for part in parts for each in ast.walk(part)]
        names = [each for each in nodes if isinstance(each, ast.Name)]
        may_be_skipped = {each.target.id for each in nodes if isinstance(each, ast.NamedExpr)}
        stored = {name.id for name in names if isinstance(name.ctx, ast.Store)} - may_be_skipped
        reads = (ast.Load, ast.Store) if isinstance(statement, ast.AugAssign) else ast.Load
        yield from (name.id for name in names if isinstance(name.ctx, ast.Del))
        yield from (name.id for name in names if name.id not in bound and isinstance(name.ctx, reads))
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            within = bound | stored if field == "body" else set(bound)
            yield from _perhaps_unbound(getattr(statement, field, []), within)
        if isinstance(statement, ast.Assign):
            bound |= stored


def _imports_in_order(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, a run of imports of `HARMLESS` modules in one order; not where two bind the same name."""
    run: list[ast.stmt] = []
    for statement in (*body, None):
        is_harmless = (
            isinstance(statement, ast.Import) and {alias.name for alias in statement.names} <= HARMLESS
        ) or (
            isinstance(statement, ast.ImportFrom) and not statement.level and statement.module in HARMLESS
            and all(alias.name in MODULES_OF_TORCH or alias.name[0].isupper() if statement.module.startswith("torch")
                    else alias.name != "*" for alias in statement.names)
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
