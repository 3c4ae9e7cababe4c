"""What one file of Python asks of the language and of packages: of each name it is known what it does. No torch.

All names that a file may use and stay followed are listed in `followed.toml`. What they make, and what that has as
attributes, opens no file, lists no folder, starts nothing and runs no text, but for attributes that are listed as well.
So whatever else a file does is done by code of its tree. Any other name is told with its line.
"""

import ast
import builtins
import itertools
import re
import string
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType, TracebackType
from typing import Any

from perf_tests.user_code.source import Function, Source, absolute_imports, bound_here, top_of


def _words(table: dict[str, str]) -> dict[str, frozenset[str]]:
    return {key: frozenset(text.split()) for key, text in table.items()}


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
ASKED, READS_SOURCE = _words(_TABLE["asked"]), _words(_TABLE["reads_source"])
"""Names by the module that may be asked for them; for the second ones only where no source is written otherwise."""
MODULES = ASKED.keys() | READS_SOURCE.keys()
PACKAGES = frozenset(map(top_of, MODULES))
MAY_BE_SET = re.compile(r"torch\.(backends(\.\w+)*|_(dynamo|inductor)\.config)")
"""Modules whose listed names may be set, to a constant: a package would call what else is set, and tell it lines."""

OF_PYTHON = frozenset(dir(builtins))
BUILTINS, READABLE, METHODS, TOLD_MORE = _words(_TABLE["language"]).values()
EXCEPTIONS = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
)
HIDING_NONE = frozenset({"hasattr", "isinstance", "print", "super"})
"""Names of Python's own whose call may be given what no code of the tree may have, so that none may hide them."""
ASSIGNED = frozenset({"__all__", "__constants__", "__slots__", "__version__"}) | METHODS - {"__exit__"}
"""Names of the language that may be bound otherwise than by a method."""
LISTED, REFUSED = _words(_TABLE["values"]).values()
LISTED |= ASKED["torch"] | {*string.ascii_letters} | {
    name
    for kind in (bytes, complex, dict, float, frozenset, int, list, range, set, slice, str, tuple)
    for name in dir(kind)
}  # fmt: skip
"""Attributes that are followed whatever has them."""
REFUSED |= frozenset(
    name
    for kind in (AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType, TracebackType)
    for name in dir(kind)
    if re.match(r"(ag|co|cr|f|gi|tb)_", name)
)
"""Attributes that are not, also where no loaded package has them."""

IN_PLACE = _words(_TABLE["in_place"])
FILTERS = frozenset({"warnings.filterwarnings", "warnings.simplefilter"})
SHOW_WARNINGS = frozenset({"default", "ignore", "module", "once"})
"""What a filter may do with a warning: "error" raises it, and "always" prints its line, comments too, at each step."""
HELD_IN_PLACE = frozenset(IN_PLACE) | FILTERS | {
    "abc.ABCMeta", "dataclasses.field", "importlib.util.find_spec", "numpy.ndarray", "shutil.which", "sys.modules",
    "sys.stderr", "sys.stdout", "warnings.catch_warnings", "warnings.warn",
}  # fmt: skip
BASES = frozenset({"float", "int", "object", "str"})
"""Python's own classes that others are made of; no collection, since a module that is one too answers any protocol."""
MAY_BE_BASES = re.compile(
    r"abc\.ABC|collections\.abc\.(Callable|Collection|Container|Hashable|Iterable|Sized|(Mutable)?(Mapping|Sequence|Set))"
    r"|collections\.namedtuple|contextlib\.(AbstractContextManager|nullcontext)|enum\.((Int|Str)?Enum|(Int)?Flag)"
    r"|torch\.(Tensor|autograd\.(function\.)?Function|nn\.parameter\.\w+|optim\.(optimizer\.)?\w+|utils\.data\.\w+)"
    r"|torch\.nn\.(?!GRU|LSTM|RNN)[A-Z]\w+"
    r"|typing(_extensions)?\.(Generic|NamedTuple|Protocol|TypedDict)"
)
ONLY_A_NAME = re.compile(r"(type\([\w.]+\)|[\w.]+\.__class__)(\.__(module|name|qualname)__| is (not )?[\w.]+)")
"""What may be done with `type` and `x.__class__`, which might make classes of any names; `==` may be an object's."""

WALKS = frozenset({
    "all", "any", "dict", "enumerate", "filter", "iter", "len", "list", "map", "max", "min", "sorted", "sum", "tuple",
    "zip",
})  # fmt: skip
"""Functions of Python's own that go through what they are given."""
BY_ADDRESSES = "an order by addresses"
"""A set of objects, and their numbers, are ordered by where they lie: a longer documentation moves them."""

ENVIRONMENT = frozenset({"os.environ", "os.environb", "os.getenv", "os.getenvb"})
OF_A_SIDE = frozenset({"PYTHONPATH", "PERF_TESTS_PADDING", "PWD", "OLDPWD"})
"""Variables that differ between the sides. All others are the same, so to read one by its name is not."""
WRITTEN = _words(_TABLE["environment"])["written"]

Told = tuple[Any, str, bool]
"""A part of the file, what it uses, and whether that is followed where no source is written otherwise."""


@dataclass(frozen=True)
class Uses:
    """What one file uses that is not followed."""

    source: Source
    of_packages: frozenset[str] = frozenset()
    """All names that loaded packages give to anything: what only the tree so calls is its own."""

    @cached_property
    def unknown(self) -> list[str]:
        """What may open a file, start a program or run text, each with its line."""
        return self._said(False, "which is not followed")

    @cached_property
    def reads_source(self) -> list[str]:
        """What may read its own source, documentation, lines or the names of its locals."""
        return self._said(True, "which may see how it is written")

    @cached_property
    def _asked_by_packages(self) -> frozenset[str]:
        return self.of_packages - LISTED

    def _said(self, reads: bool, what: str) -> list[str]:
        lines = sorted({(node.lineno, used) for node, used, only_reads in self._told if only_reads == reads})
        return [f"{self.source.name}:{line} uses {used}, {what}" for line, used in lines]

    def asks_others_for(self, held: Mapping[str, set[str]]) -> Iterator[tuple[int, str]]:
        """Yield lines that ask other files of the tree for one of these names, which are modules or so there."""
        for node in self.source.nodes:
            match node:
                case ast.Import(names=names):
                    asked = [part for alias in names for part in alias.name.split(".")[1:] if alias.asname]
                    asked = [] if top_of(names[0].name) in PACKAGES else asked
                case ast.ImportFrom(module=module, names=names, level=level):
                    is_of_tree = level or top_of(str(module)) not in PACKAGES
                    asked = [alias.name for alias in names if is_of_tree]
                case ast.Attribute(value=value, attr=name) if top_of(self.source.meant(value)) not in PACKAGES:
                    is_called = self.source.call_of(node) and held.get(name, set()) <= MODULES  # no module can be
                    asked = [] if is_called else [name]
                case ast.Call(ast.Name("getattr" | "setattr" | "delattr"), [value, ast.Constant(value=str(name)), *_]):
                    asked = [name] if top_of(self.source.meant(value)) not in PACKAGES else []
                case ast.MatchClass(kwd_attrs=asked):
                    pass
                case ast.Name(name) if "*" in self.source.meanings and self.source.meanings.get(name) != held.get(name):
                    asked = [name]
                case _:
                    continue
            yield from ((node.lineno, name) for name in asked if name in held)

    @cached_property
    def held(self) -> list[tuple[str, str]]:
        """Names that it imports, and what they mean, which others may not ask it for: modules, and `HELD_IN_PLACE`."""
        known = HELD_IN_PLACE | MODULES | {f"jaxtyping.{name}" for name in ASKED["jaxtyping"]}
        return [
            (name, meant) for name, meanings in self.source.meanings.items() for meant in meanings if meant in known
        ]

    @cached_property
    def classes(self) -> set[str]:
        """Names that it gives classes of its own, as they stand there."""
        found = set()
        for node in self.source.nodes:
            if isinstance(node, ast.ClassDef):
                decorators = (self.source.meant(getattr(each, "func", each)) for each in node.decorator_list)
                found |= {node.name} if all(top_of(meant) in PACKAGES for meant in decorators) else set()
        return found

    @cached_property
    def other_names(self) -> set[str]:
        """Names that it binds to anything else, as attributes too, but by imports."""
        set_ = (node for node in self.source.nodes if isinstance(node, ast.Attribute))
        kinds = (node for node in self.source.nodes if isinstance(node, ast.ClassDef))
        named = {node.name for node in kinds if node.name not in self.classes}
        bound = {
            name
            for node in self.source.nodes
            if not isinstance(node, ast.ClassDef | ast.Import | ast.ImportFrom)
            for name in bound_here(node)
        }
        return named | bound | {node.attr for node in set_ if not isinstance(node.ctx, ast.Load)}

    @cached_property
    def _told(self) -> list[Told]:
        return [told for node in self.source.nodes for told in self._of(node)]

    def _of(self, node: Any) -> Iterator[Told]:
        named = {getattr(node, field, None) for field in ("attr", "id", "name", "asname", "arg", "rest")}
        if any("__" in str(name) and not _is_dunder(str(name)) for name in named):
            yield node, "a name that a class changes", False  # within a class C `__x` is `_C__x`
        if not isinstance(node, ast.Name | ast.alias):
            yield from ((node, *told) for name in bound_here(node) for told in _of_binding(node, name))
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._of_import(node)
            case ast.Name(name, ast.Load()):
                yield from self._of_package(node, self.source.meant(node))
                yield from self._of_name(node, name)
            case ast.Name(name):
                yield from ((node, *told) for told in _of_binding(node, name))
            case ast.Attribute():
                yield from self._of_attribute(node, node.value, node.attr, isinstance(node.ctx, ast.Load))
            case ast.MatchClass():
                yield from self._of_pattern(node)
            case ast.keyword(arg=str(name)):
                yield from ((node, *told) for told in _of_binding(node, name))
            case ast.Call():
                yield from self._of_call(node)
            case ast.ClassDef():
                yield from self._of_class(node)
            case ast.ExceptHandler(name=str()) if not self._is_only_raised_again(node):
                yield node, "an exception that is caught", True
            case ast.Subscript() if self._is_evaluated(node):
                yield node, "a type that may run text", False
            case ast.SetComp() | ast.Set() if not (_is_constant(node) or self._is_looked_in(node)):
                yield node, BY_ADDRESSES, True

    def _of_pattern(self, node: ast.MatchClass) -> Iterator[Told]:
        if node.patterns and not (_named(node.cls) in BASES and _named(node.cls) not in self.source.bound):
            yield node, "attributes that a class names", False
        for name in node.kwd_attrs:
            yield from self._of_attribute(node, ast.Constant(None), name, True)

    def _of_class(self, node: ast.ClassDef) -> Iterator[Told]:
        kinds: list[ast.AST] = [base for base in node.bases if not self._may_be_base(base)]
        # What makes a class is given all that is in it.
        made = (word for word in node.keywords if word.arg in (None, "metaclass"))
        kinds += [word for word in made if self.source.meant(word.value) != "abc.ABCMeta"]
        yield from ((kind, "a class of an unknown kind", False) for kind in kinds)
        # A package's class may call what its own helper is called.
        parts, helpers = list[ast.AST](node.body), set[str]()
        while parts:
            part = parts.pop()
            helpers.update(bound_here(part))
            parts += [] if isinstance(part, Function | ast.Lambda | ast.ClassDef) else ast.iter_child_nodes(part)
        helpers &= self._asked_by_packages
        yield from ((node, f"{name} of its own", True) for name in helpers if name.startswith("_") and name != "_")

    def _of_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Told]:
        for name in bound_here(node):
            meanings = self.source.meanings[name]
            is_hidden = "*" in self.source.meanings and not self._is_after_stars(node)
            is_one = len(meanings) == 1 and name not in self.source.bound_otherwise and not is_hidden
            if not is_one and not PACKAGES.isdisjoint(map(top_of, meanings)):
                yield node, f"{name} for two things", False
        for parts in (dotted.split(".") for dotted in absolute_imports(node)):
            for end in range(1, len(parts) if parts[0] in PACKAGES else 0):
                yield from self._of_module(node, ".".join(parts[:end]), parts[end])

    def _is_after_stars(self, node: ast.Import | ast.ImportFrom) -> bool:
        """Whether an import stands, not within others, behind all stars, which may bind its name as well."""
        others = [each for each in self.source.nodes if isinstance(each, ast.ImportFrom) and each.names[0].name == "*"]
        return isinstance(self.source.around(node), ast.Module) and all(each.lineno < node.lineno for each in others)

    def _of_module(self, node: ast.AST, of: str, name: str) -> Iterator[Told]:
        dotted = f"{of}.{name}"
        if name in READS_SOURCE.get(of, ()):
            yield node, dotted, True
        elif dotted not in MODULES and name not in ASKED.get(of, ()):
            yield node, dotted, False

    def _of_package(self, node: ast.AST, dotted: str) -> Iterator[Told]:
        """Whether a module is handed on, or what is followed in place alone is used otherwise."""
        around = self.source.around(node)
        is_asked = isinstance(around, ast.Attribute) and isinstance(node, ast.Name | ast.Attribute)
        is_asked |= isinstance(around, ast.Call) and self.source.is_of_python(around.func, "hasattr")
        is_asked |= isinstance(around, ast.Compare) and all(isinstance(each, ast.Is | ast.IsNot) for each in around.ops)
        if dotted in MODULES and not is_asked:
            yield node, f"{dotted} as a value", False
        if dotted in HELD_IN_PLACE and not self._is_in_place(node, dotted):
            yield node, f"{dotted} in another way than in place", dotted == "warnings.warn"
        if top_of(dotted) == "jaxtyping" and dotted not in MODULES and not isinstance(around, ast.Subscript):
            yield node, f"{dotted} without its dimensions", False
        if dotted in ENVIRONMENT and not self._is_variable_known(node):
            yield node, "the environment by an unknown name", False

    def _of_name(self, node: ast.Name, name: str) -> Iterator[Told]:
        if _is_dunder(name) and name not in READABLE:
            yield node, name, name == "__doc__"
        if name not in OF_PYTHON or _is_dunder(name) or self.source.is_parameter(node):
            return
        is_called = self.source.call_of(node) is not None
        if name == "open":
            if not (is_called and self._is_opened_known(self.source.around(node))):
                yield node, "open in another way than to read a file of a written name at once", False
        elif name == "type":
            if not self._is_written(node) and not self._is_only_a_name(node, 3):
                yield node, "a class that may make others", False
        elif name not in BUILTINS | EXCEPTIONS or (name in ("getattr", "setattr", "delattr") and not is_called):
            yield node, name, name == "dir"
        elif (
            name in ("hash", "id")
            or (name in ("repr", "str") and getattr(self.source.around(node), "arg", "") == "key")
            or (name in ("frozenset", "set") and not self._is_set_known(node))
        ):
            yield node, BY_ADDRESSES, True

    def _is_set_known(self, kind: ast.AST) -> bool:
        """Whether `set` is a type, or makes what is only looked in, or has constants alone."""
        call, around = self.source.call_of(kind), self.source.around(kind)
        if call is not None:
            return self._is_looked_in(call) or (bool(call.args) and all(map(_is_constant, call.args)))
        is_type = isinstance(around, ast.Subscript) and self.source.around(around) is not None and around.value is kind
        return (
            is_type
            or self._is_written(kind)
            or (isinstance(around, ast.Call) and self.source.is_of_python(around.func, "isinstance"))
        )

    def _is_looked_in(self, collection: ast.AST) -> bool:
        """Whether nobody goes through it: it stands behind `in`, or is a local that does, or that is added to."""
        match self.source.around(collection):
            case ast.Compare(_, [ast.In() | ast.NotIn()], [behind]):
                return behind is collection
            case ast.Attribute(attr="add" | "discard" | "remove"):
                return isinstance(collection, ast.Name)
            case ast.Assign([ast.Name(name) as target]) if self.source.is_local(target, name):
                uses = (node for node in self.source.nodes if isinstance(node, ast.Name) and node.id == name)
                return all(isinstance(use.ctx, ast.Store) or self._is_looked_in(use) for use in uses)
        return False

    def _of_attribute(self, node: ast.AST, value: ast.AST, name: str, is_read: bool) -> Iterator[Told]:
        of = self.source.meant(value)
        dotted = f"{of}.{name}"
        if not is_read:
            yield from ((node, *told) for told in _of_binding(node, name))
            is_listed = MAY_BE_SET.fullmatch(of) and (name in ASKED.get(of, ()) or of == "torch.backends.cuda.matmul")
            is_constant = isinstance(getattr(self.source.around(node), "value", None), ast.Constant)
            if top_of(of) in PACKAGES and not (is_listed and is_constant):
                yield node, f"{dotted}, set to what its package may call", False
            if name in HIDING_NONE:
                yield node, f"{name} of a module's own", False
        elif _is_dunder(name):
            yield from self._of_dunder(node, value, name)
        elif of in MODULES:
            yield from self._of_module(node, of, name)
            if isinstance(node, ast.Call) and dotted in MODULES:  # getattr(module, "another")
                yield node, f"{dotted} as a value", False
            yield from self._of_package(node, dotted)
        if of not in MODULES and (name in REFUSED or name in self._asked_by_packages):
            yield node, name, name not in REFUSED
        if of not in MODULES and name in ("format", "format_map", "metadata", "throw"):
            template = getattr(value, "value", None)
            if name == "throw" or not isinstance(template, str) or re.search(r"\{[^{}]*[.\[]", template):
                yield node, name, name != "throw"
        if of not in MODULES and name == "compile" and not self._is_told_known(node, IN_PLACE["torch.compile"]):
            yield node, name, False

    def _of_dunder(self, node: ast.AST, value: ast.AST, name: str) -> Iterator[Told]:
        call = self.source.call_of(node)
        is_super = self.source.is_of_python(getattr(value, "func", value), "super")
        is_kind = is_super or self.source.is_of_python(value, "object") or _last(value) in self.classes
        if name in ("__call__", "__init__", "__new__") and not (
            is_kind or top_of(self.source.meant(value)) in PACKAGES
        ):
            yield node, f"{name} of anything", False
        if name == "__class__":
            if not self._is_only_a_name(node, 2):
                yield node, "a class that may make others", False
        elif name == "__setattr__" and call is not None and (is_super or self.source.is_of_python(value, "object")):
            yield from self._of_set(call, [ast.Name("self"), *call.args] if is_super else call.args)
        elif name not in READABLE and not (is_super and name in METHODS):
            yield node, name, name == "__doc__"

    def _of_call(self, node: ast.Call) -> Iterator[Told]:
        match node.func, node.args:
            case ast.Name("getattr"), [of, ast.Constant(value=str(name)), *_]:
                yield from self._of_attribute(node, of, name, True)
            case ast.Name("getattr"), asked:
                yield node, "getattr by an unknown name", self._is_of_a_value(asked)
            case ast.Name("setattr" | "delattr"), asked:
                yield from self._of_set(node, asked)
            case ast.Attribute(of, "items" | "keys"), asked:
                if (not asked or _named(of) == "dict") and not self._is_walked(node):
                    yield node, BY_ADDRESSES, True
            case ast.Attribute(attr="add_module" | "register_buffer" | "register_module" | "register_parameter"), asked:
                named = [*asked[:1], *(word.value for word in node.keywords if word.arg in ("name", None))]
                if not all(map(_names_a_part, named)):
                    yield node, "a part by an unknown name", True

    def _is_walked(self, view: ast.Call) -> bool:
        """Whether what a dictionary has is gone through, or looked in, where it is asked for: others combine it."""
        match self.source.around(view):
            case ast.For(iter=walked) | ast.comprehension(iter=walked) | ast.Starred(walked):
                return walked is view
            case ast.Compare(_, [ast.In() | ast.NotIn()], [_]):
                return True
            case ast.Call(ast.Name(name) as func, args):
                return view in args and name in WALKS and self.source.is_of_python(func, name)
            case ast.Call(ast.Attribute(attr=name), args):
                return view in args and name in ("extend", "join", "update")
        return False

    def _of_set(self, node: ast.Call, asked: list[ast.expr]) -> Iterator[Told]:
        match asked:
            case [of, ast.Constant(value=str(name)), *_]:
                yield from self._of_attribute(node, of, name, False)
            case _:
                yield node, "setattr by an unknown name", self._is_of_a_value(asked)

    def _is_of_a_value(self, asked: Sequence[ast.expr]) -> bool:
        """Whether what is asked is not imported, so that it is no module, which may open files."""
        return bool(asked) and isinstance(asked[0], ast.Name | ast.Attribute) and not self.source.meant(asked[0])

    def _is_of_environment(self, name: ast.expr) -> bool:
        """Whether the one thing that binds a name is a variable of the environment, which is the same on both sides."""
        bound = [node for node in self.source.nodes if isinstance(name, ast.Name) and name.id in bound_here(node)]
        statement = self.source.around(bound[0]) if len(bound) == 1 else None
        value = statement.value if isinstance(statement, ast.Assign) else None
        return isinstance(value, ast.Call) and self.source.meant(value.func) in ("os.environ.get", "os.getenv")

    def _is_written(self, kind: ast.AST) -> bool:
        """Whether a class stands in an annotation."""
        within = itertools.pairwise(self.source.outward(kind))
        return any(inner is getattr(each, "annotation", getattr(each, "returns", 0)) for inner, each in within)

    def _is_only_a_name(self, kind: ast.AST, outward: int) -> bool:
        """Whether what is done with a class, in one of so many expressions around it, is to name or compare it."""
        around = itertools.islice(self.source.outward(kind), outward)
        return any(ONLY_A_NAME.fullmatch(ast.unparse(each)) for each in around)

    def _may_be_base(self, base: ast.expr) -> bool:
        """Whether Python makes a class of it without telling anybody what is in it."""
        base = base.value if isinstance(base, ast.Subscript) else base
        base = (
            base.func
            if isinstance(base, ast.Call) and self.source.meant(base.func) == "collections.namedtuple"
            else base
        )
        meant = self.source.meant(base)
        if top_of(meant) in PACKAGES:
            return MAY_BE_BASES.fullmatch(meant) is not None
        return _named(base) in BASES | EXCEPTIONS or (_last(base) != "" and _named(base) not in OF_PYTHON)

    def bases(self) -> Iterator[tuple[int, str]]:
        """Yield the names of what its classes are made of that is no package's or Python's own, with their lines."""
        for base in (base for node in self.source.nodes if isinstance(node, ast.ClassDef) for base in node.bases):
            kind = base.value if isinstance(base, ast.Subscript) else base
            is_of_python = _named(kind) in BASES | EXCEPTIONS and _named(kind) not in self.source.bound
            if not (isinstance(kind, ast.Call) or is_of_python or top_of(self.source.meant(kind)) in PACKAGES):
                is_one = kind is base and len(self.source.meanings.get(_named(kind), "1")) == 1
                yield base.lineno, (self.source.meant(kind).rpartition(".")[2] or _last(kind)) if is_one else ""

    def _is_in_place(self, node: ast.AST, dotted: str) -> bool:
        """Whether it is used as it may be: seen with all that it is told."""
        call, around = self.source.call_of(node), self.source.around(node)
        asked = [*call.args, *(word.value for word in call.keywords)] if call else []
        texts = [each.value for each in asked if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        match dotted:
            case "abc.ABCMeta":
                return isinstance(around, ast.keyword) and around.arg == "metaclass"
            case "sys.modules":
                is_asked = isinstance(around, ast.Compare) and isinstance(around.ops[0], ast.In | ast.NotIn)
                return is_asked and len(around.ops) == 1 and isinstance(around.left, ast.Constant)
            case "sys.stderr" | "sys.stdout":
                return self._is_written_at_once(node)
            case "numpy.ndarray":  # made of a buffer it reads any memory
                is_asked = isinstance(around, ast.Call) and self.source.is_of_python(around.func, "isinstance")
                return is_asked or self._is_written(node)
            case "shutil.which":  # told more, or a path, it finds any file
                is_known = len(asked) == 1 and (bool(texts) or self._is_of_environment(asked[0]))
                return is_known and "/" not in "".join(texts)
            case "importlib.util.find_spec":  # what it finds has a loader, which reads files; parents are imported
                is_seen = call is not None and _last(call.func) == "find_spec" and "." not in "".join(texts)
                return len(asked) == len(texts) == 1 and is_seen and self._is_only_asked_for(call)
            case "warnings.catch_warnings":
                item = self.source.around(call) if call else None
                return isinstance(item, ast.withitem) and item.optional_vars is None and not asked
            case "dataclasses.field":
                return call is not None and self._is_of_dataclass(call)
            case "warnings.warn":
                return call is not None and self._is_shown_alone(call)
        if dotted in FILTERS:
            if call is None or len(call.args) not in (1, 2):
                return False
            is_shown = isinstance(call.args[0], ast.Constant) and call.args[0].value in SHOW_WARNINGS
            return is_shown and {word.arg for word in call.keywords} <= {"append", "category", "message", "module"}
        if not self._is_told_known(node, IN_PLACE[dotted]):
            return False
        if dotted not in ("dataclasses.dataclass", "functools.wraps"):
            return True
        decorated = self.source.around(call or node)
        is_first = (call or node) in getattr(decorated, "decorator_list", [])[-1:]
        return is_first and isinstance(decorated, Function if dotted == "functools.wraps" else ast.ClassDef)

    def _is_told_known(self, node: ast.AST, words: frozenset[str]) -> bool:
        """Whether it decorates, or is called with one argument at most and no other keywords."""
        call = self.source.call_of(node)
        if call is None:
            return node in getattr(self.source.around(node), "decorator_list", ())
        is_one = len(call.args) <= 1 and not any(isinstance(each, ast.Starred) for each in call.args)
        told = {word.arg for word in call.keywords if word.arg != "backend" or not isinstance(word.value, ast.Constant)}
        return is_one and told <= words

    def _is_only_asked_for(self, value: ast.AST | None) -> bool:
        """Whether nobody has a value that is only compared with None, or tested."""
        match self.source.around(value) if value else None:
            case ast.Compare(_, [ast.Is() | ast.IsNot()], [_]) | ast.UnaryOp(ast.Not()):
                return True
            case ast.If(test=test):
                return test is value
        return False

    def _is_shown_alone(self, call: ast.Call) -> bool:
        """Whether a warning has a text of its own, and its line no other: Python shows one a line, by the caller's."""
        match call:
            case ast.Call(args=[ast.Constant(value=str()) | ast.JoinedStr()] | [_, _], keywords=words):
                is_text = isinstance(call.args[0], ast.JoinedStr | ast.Constant)
                others = (each for each in self.source.nodes if isinstance(each, ast.Call) and each is not call)
                lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
                warning = [each for each in others if self.source.meant(each.func) == "warnings.warn"]
                is_alone = all(each.lineno not in lines and each.end_lineno not in lines for each in warning)
                return is_text and is_alone and {word.arg for word in words} <= {"category"}
        return False

    def _is_of_dataclass(self, call: ast.Call) -> bool:
        """Whether it declares a field, which a dataclass takes out before anybody else has it."""
        match (statement := self.source.around(call)), self.source.around(statement):
            case ast.AnnAssign(ast.Name(name)), ast.ClassDef(body=body, decorator_list=[*_, last]):
                ids = [getattr(n, "id", 0) for each in body if not isinstance(each, Function) for n in ast.walk(each)]
                made = self.source.meant(getattr(last, "func", last))
                return ids.count(name) == 1 and made == "dataclasses.dataclass"
        return False

    def _is_written_at_once(self, stream: ast.AST) -> bool:
        match self.source.around(stream):
            case ast.keyword(arg="file") as word:
                return self.source.is_of_python(self.source.around(word).func, "print")
            case ast.Attribute(attr="flush" | "isatty" | "write") as method:
                return self.source.call_of(method) is not None
        return False

    def _is_opened_known(self, call: ast.Call) -> bool:
        """Whether a file whose name stands here is read at once."""
        asked = [*call.args, *(word.value for word in call.keywords)]
        is_text = (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes) for each in asked)
        # The system's other files tell what this process has read.
        is_within = not any(
            re.search(r"(^|/)\.\.(/|$)|^/(?!proc/(cpu|mem)info$)|^~", str(getattr(each, "value", ""))) for each in asked
        )
        is_known = bool(asked) and all(is_text) and is_within
        return is_known and "open" not in self.source.bound and self._is_read_at_once(call)

    def _is_read_at_once(self, file: ast.AST) -> bool:
        """Whether an open file is only read, where it is opened or within its `with`: its class may open any other."""
        around = self.source.around(file)
        match around:
            case ast.Attribute(attr="close" | "read" | "readline" | "readlines"):
                return self.source.call_of(around) is not None
            case ast.Call(func=func, args=[given], keywords=[]):
                return self.source.meant(func) in ("json.load", "tomllib.load") and given is file
            case ast.For() | ast.comprehension():
                return around.iter is file
            case ast.withitem(optional_vars=ast.Name(id=name)):
                names = [node for node in self.source.nodes if isinstance(node, ast.Name) and node.id == name]
                loads = [node for node in names if isinstance(node.ctx, ast.Load)]
                written = ast.unparse(self.source.around(around).body)  # of a module others may ask for it meanwhile
                load = rf"\s*\w+ = ((json|tomllib)\.load\({name}\)|{name}\.read(lines)?\(\))"
                is_hidden = self.source.is_local(around, name) or re.fullmatch(load, written) is not None
                return is_hidden and all(map(self._is_read_at_once, loads))
        return isinstance(around, ast.withitem) and around.optional_vars is None

    def _is_only_raised_again(self, handler: ast.ExceptHandler) -> bool:
        """Whether an exception, whose text may quote lines, is read by nobody, or is one of a package alone."""
        match self.source.around(handler).body:
            case [ast.Expr(ast.Call(func, [], []))] if top_of(self.source.meant(func)) in PACKAGES and handler.type:
                return not {_named(kind) for kind in ast.walk(handler.type)} & {"Exception", "BaseException"}
        names = [node for node in ast.walk(handler) if isinstance(node, ast.Name) and node.id == handler.name]
        if not self.source.is_local(handler, handler.name) and not isinstance(handler.body[0], ast.Raise):
            return False
        return all(isinstance(self.source.around(name), ast.Raise) for name in names)

    def _is_evaluated(self, node: ast.Subscript) -> bool:
        """Whether jaxtyping may be told to run code: it evaluates the text of dimensions, wherever its type is from."""
        (last,) = getattr(node.slice, "elts", [])[-1:] or [node.slice]
        is_text = isinstance(last, ast.Constant) and isinstance(last.value, str)
        if is_text:
            return re.search(r"[(\[{]", last.value) is not None
        return top_of(self.source.meant(node.value)) == "jaxtyping"

    def _is_variable_known(self, place: ast.AST) -> bool:
        """Whether a use of the environment names a variable that means the same on both sides.

        What is written there may name a file, or a folder as ".", to a package.
        """
        around = self.source.around(place)
        match around, self.source.around(around):
            case (ast.Subscript(slice=ast.Constant(value=key), ctx=ast.Load()), _) | (
                ast.Compare(ast.Constant(value=key), [ast.In() | ast.NotIn()], [_]),
                _,
            ):
                return key not in OF_A_SIDE
            case ast.Subscript(slice=ast.Constant(value=key)), ast.Assign([_], ast.Constant()):
                return key in WRITTEN
            case ast.Attribute(attr="get" | "pop"), ast.Call(func, [ast.Constant(value=key), *_]):
                return func is around and key not in OF_A_SIDE
            case ast.Attribute(attr="setdefault"), ast.Call(func, [ast.Constant(value=key), ast.Constant()]):
                return func is around and key in WRITTEN
            case ast.Call(func, [ast.Constant(value=key), *_]), _:
                return func is place and key not in OF_A_SIDE
        return False


def between(files: Sequence[Uses]) -> list[str]:
    """Return what files of one tree have of each other that is not followed."""
    held = defaultdict[str, set[str]](set)
    for name, meant in (each for file in files for each in file.held):
        held[name].add(meant)
    classes = {name for file in files for name in file.classes} - {name for file in files for name in file.other_names}
    return [
        f"{file.source.name}:{line} uses {what}, which is not followed"
        for file in files
        for line, what in [
            *((line, f"{name} of another file") for line, name in file.asks_others_for(held)),
            *((line, "a class of an unknown kind") for line, name in file.bases() if name not in classes),
        ]
    ]


def _of_binding(node: ast.AST, name: str) -> Iterator[tuple[str, bool]]:
    """Yield what is told of a name that is bound, as a method or otherwise."""
    is_method = isinstance(node, ast.FunctionDef)
    is_handler = name == "__exit__" and not (isinstance(node, ast.FunctionDef) and _reads_nothing(node))
    if name in TOLD_MORE or is_handler:
        yield f"{name} with what it may be told", False
    elif _is_dunder(name) and name not in (METHODS if is_method else ASSIGNED):
        yield name, False


def _reads_nothing(method: ast.FunctionDef) -> bool:
    """Whether a method as it stands here does not look at what it is given."""
    itself = [*method.args.posonlyargs, *method.args.args][:1]
    given = {part.arg for part in ast.walk(method.args) if isinstance(part, ast.arg) and part not in itself}
    is_read = any(isinstance(part, ast.Name) and part.id in given for part in ast.walk(method))
    return not method.decorator_list and not is_read


def _is_constant(node: ast.AST) -> bool:
    """Whether it is a constant, or a collection of constants, whose hashes both sides have alike."""
    return all(isinstance(part, ast.Constant) for part in getattr(node, "elts", [node]))


def _names_a_part(name: ast.AST) -> bool:
    """Whether an expression gives a name that the language has not."""
    match name:
        case ast.Constant(value=str(text)):
            return "__" not in text
        case ast.JoinedStr(values=[ast.Constant(value=str(begin)), *_]):
            return begin[0].isalpha()
    return False


def _is_dunder(name: str) -> bool:
    return re.fullmatch(r"__\w+__", name) is not None


def _last(node: ast.AST) -> str:
    """The last name of a chain of attributes."""
    return node.attr if isinstance(node, ast.Attribute) else _named(node)


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
