"""One file of Python: what it does, without how it is written, and what in it cannot be followed. No torch."""

import ast
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
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
    "__future__", "abc", "argparse", "base64", "bisect", "cmath", "collections", "contextlib", "contextvars", "copy",
    "dataclasses", "datetime", "decimal", "einops", "enum", "fractions", "functools", "gc", "hashlib", "heapq",
    "importlib", "inspect", "io", "itertools", "jaxtyping", "json", "logging", "math", "numbers", "numpy", "nvtx",
    "operator", "os", "pprint", "random", "re", "shutil", "statistics", "struct", "sys", "textwrap", "time", "tomllib",
    "torch", "triton", "types", "typing", "typing_extensions", "warnings", "weakref", "zlib",
})  # fmt: skip
"""Packages that open no file, start nothing and load no code but by the names below."""

MODULES = re.compile(
    r"collections\.abc|einops\.layers(\.\w+)?|importlib\.util|numpy\.(fft|linalg|random|typing)|os\.path"
    r"|torch\.((amp|distributions|fft|linalg|masked|nested|optim|sparse|special)(\.\w+)*"
    r"|nn(\.(attention|functional|init|modules|parallel|parameter|utils)(\.\w+)*)?"
    r"|autograd(\.(forward_ad|function|functional|graph|profiler))?"
    r"|backends(\.(cpu|cuda|cudnn|mkl|mkldnn|mps|openmp|opt_einsum))?|cuda(\.(amp|graphs|memory|nvtx|random|streams))?"
    r"|distributed(\.(device_mesh|fsdp|optim|tensor)(\.\w+)*)?"
    r"|utils(\.(checkpoint|data|parametrizations|parametrize))?|(_dynamo|_inductor)(\.config)?"
    r"|accelerator|compiler|cpu|func|functional|library|mps|overrides|profiler|random|types|version)|triton\.language"
)
"""Modules of these packages that may be asked; no other one is followed."""

MAY_BE_ASKED = {module: frozenset(names.split()) for module, names in {
    "argparse": "ArgumentDefaultsHelpFormatter ArgumentParser BooleanOptionalAction Namespace",
    "gc": "collect disable enable freeze isenabled",
    "importlib": "util", "importlib.util": "", "io": "BytesIO StringIO",
    "inspect": "Parameter Signature isclass isfunction ismethod signature",
    "logging": "CRITICAL DEBUG ERROR INFO WARNING getLogger",
    "os": "PathLike cpu_count fspath getcwd getpid linesep name path sep",
    "os.path": "abspath basename commonpath dirname expanduser isabs join normpath relpath sep split splitext",
    "shutil": "get_terminal_size which",
    "sys": "byteorder exit float_info maxsize platform stderr stdout version version_info",
    "torch._dynamo": "allow_in_graph config disable graph_break mark_dynamic mark_static reset",
    "torch._inductor": "config", "torch.autograd.profiler": "record_function",
    "torch.compiler": "allow_in_graph assume_constant_result compile config cudagraph_mark_step_begin disable "
                      "is_compiling is_dynamo_compiling is_exporting reset set_stance",
    "torch.library": "Library custom_op define impl register_autocast register_autograd register_fake "
                     "register_kernel register_vmap triton_op wrap_triton",
    "torch.overrides": "TorchFunctionMode handle_torch_function has_torch_function is_tensor_like",
    "torch.profiler": "record_function", "torch.utils": "checkpoint data parametrizations parametrize",
    "torch.utils.data": "BatchSampler DataLoader Dataset IterableDataset RandomSampler Sampler Subset TensorDataset",
    "types": "FunctionType GenericAlias MappingProxyType MethodType ModuleType NoneType SimpleNamespace UnionType",
    "warnings": "catch_warnings filterwarnings simplefilter warn",
}.items()}  # fmt: skip
"""What may be asked of modules by which a program reaches its own source, lines, files and imports: no name beside
these and those of `UNKNOWN`, which say what they open. All other modules are asked for whatever they hold."""
MAY_BE_SET = re.compile(r"torch\.(backends|_dynamo\.config|_inductor\.config)\..*")
"""What may be set in a package, to a constant: its own code would call what else is set there, and tell it lines."""

PLAIN = frozenset({
    "__all__", "__call__", "__class__", "__constants__", "__doc__", "__enter__", "__exit__",
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
OPENS = "opens a file whose name is not known"
LISTS, MEASURES = "asks which files there are", "asks for a file's size or date"
UNKNOWN = {name: what for what, names in {
    RUNS_CODE: "exec eval compile CompilationUnit execfile exec_module load_module run_path run_module ForwardRef "
               "Timer allow_pickle= breakpoint eval_str= evaluate_forward_ref f2py get_type_hints help load_config "
               "custom_op from_callable infer_schema onnx signature singledispatch singledispatchmethod sympy test "
               "testing triton_op weights_only=",
    IMPORTS: "import_module __import__ find_spec import_ir_module find_module find_loader spec_from_file_location "
             "SourceFileLoader entry_points dictConfig",
    OPENS: "open open_code read_text read_bytes open_text open_binary files load loads_file fromfile loadtxt "
           "genfromtxt memmap open_memmap safe_open load_file from_file from_pretrained fileConfig FileIO "
           "TextIOWrapper FileInput loadmat UntypedStorage PyTorchFileReader FileType hub cpp_extension load_library "
           "load_inline package load_url load_state_dict_from_url aoti_load_package ctypeslib mmap "
           "install_import_hook fromfile_prefix_chars fromfile_prefix_chars= fromregex recfromcsv recfromtxt NpzFile "
           "FileStore load_pt2 metadata resources copy2 move unpack_archive opener= raw buffer OpenWrapper "
           "copyright credits license get_code get_data get_source tunable gds init_process_group rendezvous "
           "CUDAPluggableAllocator dump handlers save savetxt savez savez_compressed tofile",
    LISTS: "contents chdir makedirs listdir scandir walk iterdir glob iglob rglob exists lexists is_file is_dir isfile "
           "isdir islink is_symlink access samefile which DataSource FileBaton FileSystemReader datapipes realpath",
    MEASURES: "fstat getatime getctime getmtime getsize lstat stat st_size",
    STARTS: "system popen fork forkpty startfile Popen multiprocessing",
    NAMES_OF_A_MODULE: "attrgetter f_builtins f_globals get_device_module gi_code gi_frame globals locals methodcaller "
                       "tb_frame tb_next vars __dict__ cr_code cr_frame ag_code ag_frame",
}.items() for name in names.split()}  # fmt: skip
"""What these names do. They count wherever they stand, but for a call whose names of files or modules are known."""

ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
OF_A_SIDE = frozenset({"PYTHONPATH", "PERF_TESTS_PADDING", "PWD", "OLDPWD"})
"""Variables that differ between the sides. All others are the same, so to read one by its name is not."""

READS_SOURCE = frozenset({
    "AsyncExitStack", "DataLoader", "DataParallel", "ExitStack", "Field", "__aexit__", "__annotations__", "__dict__",
    "__doc__", "__exit__", "_use_new_zipfile_serialization=", "attrname", "bmat", "debug=", "dir", "export", "f_lineno",
    "f_locals", "fields", "from_callable", "fx", "get_annotations", "get_overloads", "jit", "lineno", "lineno=",
    "logging", "lr_scheduler", "make_dataclass", "make_fx", "metaclass=", "numpy.info", "parallel_apply", "parse_args",
    "parse_intermixed_args", "parse_known_args", "print_readable", "prune", "record=", "redirect_stderr",
    "redirect_stdout", "signature", "stack_trace", "swa_utils", "tb_lineno", "throw", "throw=", "trace", "triton",
    "vars",
})  # fmt: skip
"""Names and keywords `x=` by which a program reads its own source, documentation, lines or the names of its locals."""

COPY_DOCUMENTATION = frozenset({
    "abstractclassmethod", "abstractproperty", "abstractstaticmethod", "cached_property", "classmethod", "dataclass",
    "dependent_property", "lazy_property", "property", "staticmethod", "update_wrapper", "vectorize", "wraps",
})  # fmt: skip
"""What looks at an object's documentation, or sets it, which may look at it, unless it decorates a definition."""

METACLASSES = frozenset({"ABCMeta", "EnumMeta", "EnumType", "FunctionMeta", "NamedTupleMeta", "type"})
ENUMS = frozenset({"Enum", "Flag", "IntEnum", "IntFlag", "StrEnum"})
TYPES = re.compile(r"((torch\.)?(Tensor|dtype|device)|bool|float|int|str|None|list|tuple|[\[\], |])+")
IN_PLACE = ENUMS | METACLASSES - {"type"} | {
    "Namespace", "ParameterDict", "SimpleNamespace", "catch_warnings", "compile", "filterwarnings", "simplefilter",
}  # fmt: skip
"""What has attributes of any names, makes classes of any names, or is told by a keyword to read: followed only where
it is called or decorates, so that its arguments are seen; of enums and metaclasses where a class is made of them."""
ONLY_A_NAME = re.compile(
    r"type\[.*\]|(type\([\w.]+\)|[\w.]+\.__class__)(\.__(module|name|qualname)__| is (not )?[\w.]+)", re.DOTALL
)
"""What may be done with `type` and `x.__class__`, which might make classes of any names; `==` may be an object's."""
HANDLERS = frozenset({"__aexit__", "__exit__", "throw"})
"""Methods that Python calls with an exception."""
TOLD = frozenset({"__getstate__", "__next__", "__reduce__", "__reduce_ex__", "__setattr__", "__setstate__"})
"""Methods by which an object is told, or gives, attributes by their names; and of what has `throw` as an attribute."""
ITERATORS = {*dir(itertools), "BytesIO", "StringIO", "enumerate", "filter", "map", "reversed", "zip"}
"""Classes with `__next__`, whose objects have `throw` once they are given it."""
SHOW_WARNINGS = frozenset({"always", "default", "ignore", "module", "once"})
"""What a filter may do with a warning whose text or line it matches: "error" raises it."""
NAMES_OF_MODULES = sys.stdlib_module_names - {
    "array", "chunk", "code", "errno", "keyword", "queue", "select", "signal", "string", "test", "token", "tokenize",
    "types", "uuid",
}  # fmt: skip
"""Modules that others hold, without those whose names are also methods and fields."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Nested = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, *filter(None, [getattr(ast, "TypeAlias", None)]),  # of Python 3.12
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One file of Python, `name` in its tree. Raises ValueError where it cannot be read."""

    name: str
    content: bytes

    def _parsed(self) -> ast.Module:
        try:
            return ast.parse(self.content)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{self.name} cannot be read as Python") from error

    @cached_property
    def _nodes(self) -> list[Any]:
        """Every part of it."""
        return list(ast.walk(self._parsed()))

    @cached_property
    def _around(self) -> dict[ast.AST, Any]:
        """The part that each is a part of."""
        return {part: node for node in self._nodes for part in ast.iter_child_nodes(node)}

    def statements(self, keeps_locals: bool = False) -> list[tuple[str, int]]:
        """What each statement of the module does, with the line where it begins.

        Without lines, comments, documentation and layout; names of a function's locals by their order, unless kept.
        """
        module = self._parsed()
        try:
            compile(self.content, self.name, "exec", dont_inherit=True)  # what its grammar alone allows may not run
            # The compiler knows a function by its line and name.
            begin = [node.lineno for node in self._nodes if isinstance(node, Function | ast.Lambda) and keeps_locals]
            module = _Normal(keeps_locals).visit(module)
            said = [(ast.dump(statement), statement.lineno) for statement in _imports_in_order(module.body)]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{self.name} cannot be read as Python") from error
        beside = [line for place, line in enumerate(begin) if line in begin[:place]]
        return [*said, *((f"function {begin.index(line)} has another on its line", line) for line in beside)]

    def line_of_difference(self, other: "Source", keeps_locals: bool = False) -> int | None:
        """The first line that does something else than in `other`; None where both do the same."""
        ours, theirs = self.statements(keeps_locals), other.statements(keeps_locals)
        pairs = itertools.zip_longest(ours, theirs, fillvalue=("", max((line for _, line in ours), default=1)))
        return next((line for (one, line), (another, _) in pairs if one != another), None)

    @cached_property
    def imports(self) -> set[tuple[str, ...]]:
        """Every module that an import statement, anywhere in it, or a call with a literal name may mean.

        What a statement means relative to its package begins with an empty part.
        """
        found: set[tuple[str, ...]] = set()
        for node in self._nodes:
            if isinstance(node, ast.Call) and any(
                UNKNOWN.get(name) == IMPORTS for _, name in _names(ast.walk(node.func))
            ):
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
        return {name: node.lineno for node in self._nodes for name in map(_top, _absolute(node))}

    @cached_property
    def _texts(self) -> list[tuple[int, str]]:
        """Every string in it, and its bytes, with their lines, without documentation."""
        return [
            (node.lineno, node.value if isinstance(node.value, str) else node.value.decode(errors="replace"))
            for node in ast.walk(_Normal(True).visit(self._parsed()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        ]

    @cached_property
    def words(self) -> set[str]:
        """The strings, and the words of each."""
        return words_in(text for _, text in self._texts)

    @cached_property
    def compiles(self) -> bool:
        """Whether it may give functions to the compiler, which sees the names of their locals."""
        return any(name == "compile" for _, name in _names(self._nodes))

    @cached_property
    def unknown(self) -> list[str]:
        """What it does that cannot be followed, each with its line."""
        found = {(node.lineno, what) for node, what in (*self._unknown(), *self._of_modules(), *self._environment())}
        found |= {
            (line, OF_THE_INTERPRETER)
            for line, text in self._texts
            if f"{text}=" in UNKNOWN or not PLAIN.issuperset(re.findall(r"__\w+__", text))
        }
        return [f"{self.name}:{line} {what}" for line, what in sorted(found)]

    @cached_property
    def reads_source(self) -> list[str]:
        """Lines that read its own source, documentation, lines or names of locals."""
        found = {(node.lineno, what) for node, what in self._parts_that_read()}
        decorated = [getattr(node, "decorator_list", []) for node in self._nodes]
        decorating = {each for some in decorated for each in some}
        # All that wraps() may be told is what it copies by default.
        wrapping = {each for some in decorated for each in some[-1:] if _is_given_one(each)}
        for node, name in _names(self._nodes):
            called, place = self._called(node, name), self._call_of(node) or node
            copies = called & COPY_DOCUMENTATION and place not in (wrapping if "wraps" in called else decorating)
            is_method = isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Constant)
            is_template = is_method and name in ("format", "format_map")
            is_template |= self._is_handed_on(node) and place not in decorating
            if {name, self._meant(node)} & READS_SOURCE or name.startswith("co_") or is_template or copies:
                found.add((node.lineno, name))
        for line, text in self._texts:
            parts = {text, f"{text}=", *re.findall(r"\{[^{}]*\.(\w+)", text), *re.findall(r"__\w+__", text)}
            if parts & (READS_SOURCE - FOLLOWED) or re.search(r"\bco_\w", text):
                found.add((line, text[:40]))
        return [f"{self.name}:{line} reads source or names ({what})" for line, what in sorted(found)]

    def _is_handed_on(self, node: ast.AST) -> bool:
        """Whether others may call what is followed where it is called alone."""
        call, around = self._call_of(node), self._around[node]
        if isinstance(node, ast.ImportFrom):
            named = IN_PLACE | COPY_DOCUMENTATION | ITERATORS | {"field"}
            return any(each.asname and each.name in named for each in node.names)
        if self._meant(node).endswith(".field"):
            return not self._is_of_dataclass(self._around[call or node])
        is_base = isinstance(around, ast.ClassDef) and _last(node) in ENUMS | METACLASSES
        is_written = isinstance(around, ast.arg) or (isinstance(around, ast.keyword) and around.arg == "metaclass")
        return call is None and not (is_base or is_written) and not IN_PLACE.isdisjoint(self._called(node, _last(node)))

    def _is_of_dataclass(self, statement: ast.AST) -> bool:
        """Whether it declares a field, which a dataclass takes out before anybody else has it."""
        match statement, self._around[statement]:
            case ast.AnnAssign(ast.Name(name)), ast.ClassDef(body=body, decorator_list=[*_, last]):
                ids = [getattr(n, "id", 0) for each in body if not isinstance(each, Function) for n in ast.walk(each)]
                return ids.count(name) == 1 and self._meant(getattr(last, "func", last)) == "dataclasses.dataclass"
        return False

    def _parts_that_read(self) -> Iterator[tuple[Any, str]]:
        made = {name for node in self._nodes if isinstance(node, ast.Name) for name in _bound_here(node)}
        for node in self._nodes:
            bound = {*_bound_here(node)}
            if bound & TOLD or (bound & HANDLERS and not _reads_nothing(node)):
                yield node, "an exception or names of attributes"
            match node:
                # A class of classes, and what a parent is an instance of, is given all that is in a class.
                case ast.ClassDef(bases=bases):
                    # An enum makes no others once it has a member.
                    member = r"\n    [A-Za-z]\w* = ([-\d'\"(]|(enum\.)?auto\(\))"
                    names = {_last(base) or type(base).__name__ for base in bases}
                    is_open = names & ENUMS and not re.search(member, ast.unparse(node))
                    if is_open or names & (made | METACLASSES | ITERATORS | {"Call"}):
                        yield node, "a class's names"
                case ast.Name("type", ast.Load()) | ast.Attribute(attr="__class__"):
                    if not any(ONLY_A_NAME.fullmatch(ast.unparse(each)) for each in list(self._outward(node))[1:3]):
                        yield node, "a class that may make others"
                case ast.ExceptHandler(name=str()) if not self._is_only_raised_again(node):
                    yield node, "the text of an exception"
                case ast.Attribute(attr="__setattr__") if not self._is_asked_by_name(node):
                    yield node, NAMES_OF_A_MODULE
                case ast.Call() if what := self._read_by_call(node):
                    yield node, what

    def _read_by_call(self, call: ast.Call) -> str | None:
        """What a function may be told, or make, by what it is given."""
        name = _last(call.func)
        computed = {word.arg for word in call.keywords if not isinstance(word.value, ast.Constant)}
        actions = {each.value for each in call.args[:1] if isinstance(each, ast.Constant) and not call.args[2:]}
        is_shown = name == "catch_warnings" or actions & SHOW_WARNINGS
        if name in ("catch_warnings", "filterwarnings", "simplefilter") and (None in computed or not is_shown):
            return "the text or line of a warning"
        if name == "compile" and computed & {"backend", "options", None}:
            return "what the compiler sees"
        if name == "setattr" and not self._is_asked_by_name(call.func):
            return NAMES_OF_A_MODULE
        return "a class's names" if name in ENUMS | METACLASSES - {"type"} else None

    def _is_asked_by_name(self, asker: ast.AST) -> bool:
        """Whether a call of it has a literal name: a computed one may be any."""
        call = self._call_of(asker)
        return call is not None and any(isinstance(each, ast.Constant) for each in call.args[:2])

    def _is_only_raised_again(self, handler: ast.ExceptHandler) -> bool:
        """Whether an exception, whose text may quote lines, is read by nobody, or is one of a library alone."""
        match self._around[handler].body:
            case [ast.Expr(ast.Call(func, [], []))] if _top(self._meant(func)) in FOLLOWED and handler.type:
                return not {_last(kind) for kind in ast.walk(handler.type)} & {"Exception", "BaseException"}
        names = [node for node in ast.walk(handler) if isinstance(node, ast.Name) and node.id == handler.name]
        if not self._is_local(handler, handler.name) and not isinstance(handler.body[0], ast.Raise):
            return False
        return all(isinstance(self._around[name], ast.Raise) for name in names)

    def _is_local(self, node: ast.AST, name: str | None) -> bool:
        """Whether other functions cannot ask for a name that is bound here."""
        others = {each for node in self._nodes if isinstance(node, ast.Global | ast.Nonlocal) for each in node.names}
        within = itertools.takewhile(lambda around: not isinstance(around, ast.ClassDef), self._outward(node))
        return name not in others and any(isinstance(around, Function) for around in within)

    def _outward(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield it and all around it."""
        around: ast.AST | None = node
        while around is not None:
            yield around
            around = self._around.get(around)

    def _unknown(self) -> Iterator[tuple[Any, str]]:
        for node, name in _names(self._nodes):
            if name in UNKNOWN and not self._is_known(node, name):
                yield node, UNKNOWN[name]
            if re.fullmatch(r"__\w+__", name) and name not in PLAIN | {"__dict__"}:
                yield node, OF_THE_INTERPRETER
            if name == "__getattr__" and isinstance(node, ast.Attribute) and not self._is_super(node.value):
                yield node, NAMES_OF_A_MODULE  # of a module it gives any other
            if name in ASKERS and not self._call_of(node):
                yield node, NAMES_OF_A_MODULE
        for node in self._nodes:
            written = getattr(node, "annotation", None) or getattr(node, "returns", None)
            if isinstance(written, ast.AST) and re.search(r"['\"].*\(", ast.unparse(written)):
                yield node, RUNS_CODE  # once somebody evaluates it
            if isinstance(node, ast.Subscript) and self._is_evaluated(node):
                yield node, RUNS_CODE
            match node:
                # getattr(x, name), setattr(os, name), and getattr(x, "listdir"), which none of the names above asks for
                case ast.Call(func=ast.Name(id="getattr" | "setattr" | "delattr" as asker), args=[of, asked, *_]):
                    said = asked.value if isinstance(asked, ast.Constant) else None
                    if said in UNKNOWN or (said is None and (asker == "getattr" or _root(of) in self._modules)):
                        yield node, NAMES_OF_A_MODULE
                case ast.Call(func=func, keywords=keywords) if any(word.arg is None for word in keywords):
                    if self._meant(func).rpartition(".")[0] in MAY_BE_ASKED:  # f(**{name: x})
                        yield node, NAMES_OF_A_MODULE

    def _is_super(self, node: ast.AST) -> bool:
        return _root(getattr(node, "func", node)) == "super" and "super" not in {*self._bound_otherwise, *self._modules}

    def _is_evaluated(self, node: ast.Subscript) -> bool:
        """Whether jaxtyping may be told to run code: it evaluates the text of dimensions, wherever its type is from."""
        (last,) = getattr(node.slice, "elts", [])[-1:] or [node.slice]
        is_text = isinstance(last, ast.Constant) and isinstance(last.value, str)
        return bool(re.search(r"[(\[{]", last.value)) if is_text else _top(self._meant(node.value)) == "jaxtyping"

    def _is_known(self, node: ast.AST, name: str) -> bool:
        """Whether it stands in the source what a name of `UNKNOWN` opens or runs, or nothing is opened or run."""
        if name in ("vars", "__dict__"):
            call = self._call_of(node)
            of = call.args if call else [node.value] if isinstance(node, ast.Attribute) else []
            return [ast.unparse(each) for each in of] == ["self"]
        if name in ("compile", "eval", "exec"):  # torch.compile(f), model.eval()
            own = FOLLOWED - {"re", "torch"} | {"builtins"}
            return isinstance(node, ast.Attribute) and _top(self._meant(node)) not in own
        call = self._call_of(node)
        if name in ("custom_op", "signature", "triton_op", "which"):
            if isinstance(node, ast.ImportFrom):
                return not any(each.asname for each in node.names)
            # Told more, one evaluates annotations, the other finds any file.
            return self._has_types(call) if name.endswith("_op") else _is_given_one(call)
        if call is None:
            return False
        asked = [*call.args, *(word.value for word in call.keywords)]
        texts = [each.value for each in asked if isinstance(each, ast.Constant) and isinstance(each.value, str | bytes)]
        is_whole = bool(asked) and len(texts) == len(asked)
        is_library = _root(call.func) not in self._bound_otherwise
        if UNKNOWN[name] == LISTS:
            # What a folder holds is named by no string, but for the system's own.
            return is_whole and all(re.fullmatch(r"/(proc|sys)/(?!.*self)[a-z_/]+", str(text)) for text in texts)
        match self._meant(call.func):
            case "json.load" | "tomllib.load":
                return is_library  # of a file that was opened before
            case "importlib.util.find_spec":  # what it finds has a loader, which reads files
                return is_library and is_whole and isinstance(self._around[call], ast.Compare | ast.UnaryOp | ast.If)
        is_open = isinstance(node, ast.Name) and name == "open"
        return is_open and is_whole and self._is_read_at_once(call)

    def _has_types(self, call: ast.AST | None) -> bool:
        """Whether it decorates a function whose annotations are types by their names: a text would be evaluated."""
        function = call and self._around[call]
        if not isinstance(function, ast.FunctionDef) or self._modules.get("Tensor", "torch.Tensor") != "torch.Tensor":
            return False
        written = [getattr(part, "annotation", None) for part in ast.walk(function.args)] + [function.returns]
        is_type = (TYPES.fullmatch(ast.unparse(each)) for each in written if each)
        return all(is_type) and not any(map(TYPES.fullmatch, self._bound_otherwise))

    def _is_read_at_once(self, file: ast.AST) -> bool:
        """Whether an open file is only read, where it is opened or within its `with`: its class may open any other."""
        around = self._around[file]
        match around:
            case ast.Attribute(attr="close" | "read" | "readline" | "readlines"):
                return self._call_of(around) is not None
            case ast.Call(func=func, args=[given], keywords=[]):
                return self._meant(func) in ("json.load", "tomllib.load") and given is file
            case ast.For() | ast.comprehension():
                return around.iter is file
            case ast.withitem(optional_vars=ast.Name(id=name)):
                names = [node for node in self._nodes if isinstance(node, ast.Name) and node.id == name]
                loads = [node for node in names if isinstance(node.ctx, ast.Load)]
                written = ast.unparse(self._around[around].body)  # of a module others may ask for it meanwhile
                load = rf"\s*\w+ = ((json|tomllib)\.load\({name}\)|{name}\.read(lines)?\(\))"
                is_hidden = self._is_local(around, name) or re.fullmatch(load, written) is not None
                return is_hidden and all(map(self._is_read_at_once, loads))
        return isinstance(around, ast.withitem) and around.optional_vars is None

    def _of_modules(self) -> Iterator[tuple[Any, str]]:
        """Yield what is asked of modules beyond `MAY_BE_ASKED`, what is set there, and those that are handed on."""
        for node, of, name, is_set in self._asked():
            is_of_package, dotted = _top(of) in FOLLOWED, f"{of}.{name}"
            is_private = is_of_package and re.match(r"\*|_(?!_|dynamo|foreach|inductor|scaled)", name)
            is_module = name in NAMES_OF_MODULES and (name not in FOLLOWED or name in MAY_BE_ASKED)
            is_module &= isinstance(node, ast.Attribute) or is_of_package
            is_module |= is_of_package and _is_module(dotted) and not MODULES.fullmatch(dotted)
            is_module |= _top(of) in ("numpy", "torch") and name in ("classes", "numpy")
            is_module |= isinstance(node, ast.Attribute) and name in ("np", "serialization", "torch")
            may_be_asked = MAY_BE_ASKED.get(of, () if is_module else (name,))
            is_known = name in may_be_asked or name in UNKNOWN.keys() | ENVIRONMENT
            is_known |= dotted == "sys.modules" and isinstance(self._around[node], ast.Compare)
            if is_of_package and (is_set or (".config." in dotted and self._call_of(node))):  # config.patch(x)
                value = getattr(self._around[node], "value", None)
                is_known = MAY_BE_SET.match(dotted) is not None and isinstance(value, ast.Constant)
            if dotted in ("sys.stdout", "sys.stderr"):
                is_known &= self._is_written_at_once(node)
            if is_private or not is_known:
                yield node, NAMES_OF_A_MODULE
        for node in self._nodes:
            around = self._around.get(node)
            is_asked = isinstance(around, ast.Attribute) or (
                isinstance(around, ast.Call) and _root(around.func) == "hasattr"
            )
            if (meant := self._meant(node)) and _is_module(meant) and not is_asked:
                yield node, NAMES_OF_A_MODULE

    def _asked(self) -> Iterator[tuple[Any, str, str, bool]]:
        """Yield which expression asks what for which name, and whether to set it."""
        for node in self._nodes:
            match node:
                case ast.Attribute():
                    yield node, self._meant(node.value), node.attr, not isinstance(node.ctx, ast.Load)
                case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[of, *_]):
                    yield node, self._meant(of), "", True
                case ast.Import() | ast.ImportFrom():  # under another name it could be handed on
                    yield from ((node, self._modules[each.asname], "as", False) for each in node.names if each.asname)
            for parts in (name.split(".") for name in _absolute(node)):
                yield from ((node, ".".join(parts[:end]), parts[end], False) for end in range(1, len(parts)))

    @cached_property
    def modules(self) -> set[str]:
        """Names that it binds to modules of packages."""
        return {name for name, meant in self._modules.items() if _is_module(meant)}

    def asks_others_for(self, modules: set[str]) -> list[str]:
        """Lines that ask other files of the tree for one of these names, which is a module there."""
        here = self.modules | self._bound_otherwise
        stars = [node for node in self._nodes if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
        found = set()
        for node in self._nodes:
            match node:
                case ast.ImportFrom(module=module, names=names, level=level):
                    if level or _top(str(module)) not in FOLLOWED:
                        found |= {node.lineno for alias in names if alias.name in modules}
                case ast.Attribute(value=value, attr=name):
                    if name in modules and _top(self._meant(value)) not in FOLLOWED and not self._call_of(node):
                        found.add(node.lineno)
                case ast.Name(name) if stars and name in modules - here:
                    found.add(node.lineno)
        return [f"{self.name}:{line} {NAMES_OF_A_MODULE}" for line in sorted(found)]

    def _is_written_at_once(self, stream: ast.AST) -> bool:
        match self._around[stream]:
            case ast.keyword(arg="file") as word:
                return _root(self._around[word].func) == "print" not in self._bound_otherwise | self._modules.keys()
            case ast.Attribute(attr="flush" | "isatty" | "write") as method:
                return self._call_of(method) is not None
        return False

    def _call_of(self, node: ast.AST) -> ast.Call | None:
        """The call of what an expression gives."""
        around = self._around.get(node)
        return around if isinstance(around, ast.Call) and around.func is node else None

    def _called(self, node: ast.AST, name: str) -> set[str]:
        """Names of what an expression means, the one before it was imported `as` another too; none of an import."""
        return set() if isinstance(node, ast.ImportFrom) else {name, self._meant(node).rpartition(".")[2]}

    def _meant(self, node: ast.AST) -> str:
        """The module, or what of it, that an expression is, dotted; anything else for others."""
        if isinstance(node, ast.Attribute):
            return f"{self._meant(node.value)}.{node.attr}"
        name = node.id if isinstance(node, ast.Name) else ""
        return self._modules.get(name, name if name in MAY_BE_ASKED else "")  # a star may bind it

    def _environment(self) -> Iterator[tuple[Any, str]]:
        """Yield uses of the environment but those by a literal name that means the same on both sides.

        What is written there may name a file to a library.
        """
        named: set[ast.AST] = set()
        for node in self._nodes:
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
        for node, name in _names(self._nodes):
            if self._called(node, name) & ENVIRONMENT and node not in named:
                yield node, "reads the environment"

    @cached_property
    def _bound_otherwise(self) -> set[str]:
        """Names that anything but an import binds."""
        nodes = (node for node in self._nodes if not isinstance(node, ast.Import | ast.ImportFrom))
        return {name for node in nodes for name in _bound_here(node)}

    @cached_property
    def _modules(self) -> dict[str, str]:
        """What the names that import statements bind mean, dotted."""
        found = {}
        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[_bound_by(alias)] = alias.name if alias.asname else _bound_by(alias)
            elif isinstance(node, ast.ImportFrom):
                of = f"{'.' * node.level}{node.module}"
                found |= {_bound_by(alias): f"{of}.{alias.name}" for alias in node.names}
        return found


def words_in(texts: Iterable[str]) -> set[str]:
    """The texts, in lower case, and their words."""
    lower = {text.lower() for text in texts}
    return lower | {word for text in lower for word in re.findall(r"\w+", text)}


def _names(nodes: Iterable[ast.AST]) -> Iterator[tuple[Any, str]]:
    """Every node that reads or imports a name, with that name; a dotted import with each of its parts.

    Also keywords of calls, as `x=`, and bindings of `__names__`.
    """
    for node in nodes:
        if not isinstance(node, Function):
            yield from ((node, name) for name in _bound_here(node) if name.startswith("__"))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node, node.id
        elif isinstance(node, ast.Attribute):
            yield node, node.attr
        elif isinstance(node, ast.keyword) and _last(node.value) != "ABCMeta":
            yield node, f"{node.arg}="
        elif isinstance(node, ast.MatchClass):
            yield from ((node, name) for name in node.kwd_attrs)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from ((node, part) for name in names for part in name.split("."))


@cache
def _is_module(dotted: str) -> bool:
    """Whether it is a package that is followed, or a module in an installed one."""
    top, *rest = dotted.split(".")
    if top not in FOLLOWED or not rest or dotted == "os.path":
        return top in FOLLOWED
    spec = find_spec(top)
    places = [Path(folder, *rest) for folder in (spec and spec.submodule_search_locations) or ()]
    return any(place.is_dir() or any(place.parent.glob(f"{place.name}.*")) for place in places)


def _reads_nothing(node: ast.AST) -> bool:
    """Whether it is a method as it stands here, which does not look at what it is given."""
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return False
    given = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)} - {"self"}
    return not any(isinstance(part, ast.Name) and part.id in given for part in ast.walk(node))


def _is_given_one(call: ast.AST | None) -> bool:
    """Whether it is a call with one argument and no options."""
    return isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords


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
        if isinstance(node, ast.ClassDef) and node.decorator_list and ast.get_docstring(node) is not None:
            node.keywords.append(ast.keyword("__doc__", ast.Constant(None)))  # a dataclass without one makes its own
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

    A name stays unless one block has it alone, whose first statement with it assigns it: else an exception might tell
    that it is unbound. So it does where anything but the function's own statements may see it: parameters, imports,
    names of nested scopes and what these use, of exceptions and patterns, globals; all where locals are read by name.
    """
    nodes = [part for statement in function.body for part in ast.walk(statement)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    if {name.id for name in names} & {"locals", "vars", "dir", "eval", "exec", "globals"}:
        return
    kept = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
    kept.update(name for node in nodes if not isinstance(node, ast.Name) for name in _bound_here(node))
    for node in nodes:
        if isinstance(node, Nested):
            kept.update(name for part in ast.walk(node) for name in (*_bound_here(part), getattr(part, "id", "")))
    kept.update(name.id for name in names if isinstance(name.ctx, ast.Del))
    counts, bound = Counter(name.id for name in names), dict[str, str]()
    inner = (getattr(node, field, None) for node in nodes for field in ("body", "orelse", "finalbody"))
    for block in (function.body, *(each for each in inner if isinstance(each, list))):
        of_statements = [[part for part in ast.walk(each) if isinstance(part, ast.Name)] for each in block]
        of_block = Counter(name.id for here in of_statements for name in here)
        seen = {name for name, count in of_block.items() if count < counts[name]}
        for statement, here in zip(block, of_statements, strict=True):
            seen |= {name.id for name in here if isinstance(name.ctx, ast.Load)}
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            for stored in (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)):
                # `__x`, and `_C__x` as well, may be one name within a class.
                if stored not in seen | kept and not stored.startswith("_"):
                    bound.setdefault(stored, f"<{len(bound)}>")
            seen |= {name.id for name in here}
    for name in names:
        name.id = bound.get(name.id, name.id)


def _imports_in_order(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, a run of imports of `HARMLESS` modules in one order; not where two bind the same name."""
    for is_harmless, group in itertools.groupby(body, _is_harmless):
        run: list[Any] = [*group]
        bound = [name for each in run for name in _bound_here(each)]
        # Two that bind a package by its first name, as `import torch` and `import torch.nn`, bind the same.
        if is_harmless and len(set(bound)) == len(bound):
            for each in run:
                each.names.sort(key=lambda alias: (alias.name, alias.asname or ""))
            run.sort(key=ast.dump)
        yield from run


def _is_harmless(statement: ast.stmt) -> bool:
    """Whether it imports only what is loaded already."""
    match statement:
        case ast.Import(names=names):
            return {alias.name for alias in names} <= HARMLESS
        case ast.ImportFrom(module=module, names=names, level=0) if module in HARMLESS:
            of_torch = (alias.name in MODULES_OF_TORCH or alias.name[0].isupper() for alias in names)
            return all(of_torch if _top(module) == "torch" else (alias.name != "*" for alias in names))
    return False
