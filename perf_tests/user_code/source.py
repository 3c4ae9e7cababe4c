"""One file of Python: what it does, without how it is written, and what its names mean. No torch."""

import ast
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import CO_NEWLOCALS
from pathlib import PurePosixPath
from types import CodeType
from typing import Any

HARMLESS = frozenset({
    "abc", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "enum", "functools", "itertools",
    "math", "operator", "os", "pathlib", "random", "re", "shutil", "sys", "time", "torch", "torch.nn",
    "torch.nn.functional", "types", "typing", "warnings",
})  # fmt: skip
"""Modules that torch has loaded before any code of a tree, so that to import them again runs nothing, in any order."""
MODULES_OF_TORCH = frozenset({"nn", "functional"})
"""Others of torch may be loaded only where they are imported; its classes, in capitals, are not."""

SEES_DOCUMENTED = frozenset({"asynccontextmanager", "contextmanager"})
"""What looks, at each `with`, whether a function has documentation."""
SEES_LOCALS = frozenset({
    "compile", "create_block_mask", "flex_attention", "catch_warnings", "filterwarnings", "simplefilter",
})  # fmt: skip
"""What sees the names of locals, and which parts stand on one line: the compiler; a warning is shown once a line."""

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
    def nodes(self) -> list[Any]:
        """Every part of it."""
        return list(ast.walk(self._parsed()))

    @cached_property
    def _around(self) -> dict[ast.AST, Any]:
        return {part: node for node in self.nodes for part in ast.iter_child_nodes(node)}

    def around(self, part: ast.AST) -> Any:
        """Return what it is a part of; None for the module."""
        return self._around.get(part)

    @cached_property
    def documentation(self) -> str:
        """The documentation of the module, empty where it has none."""
        return ast.get_docstring(self._parsed(), clean=False) or ""

    def statements(self, keeps_locals: bool = False, keeps_documented: bool = False) -> list[tuple[str, int]]:
        """What each statement of the module does, with the line where it begins.

        Without lines, comments, documentation and layout; names of a function's locals by their order, unless kept, and
        with whether it has documentation where that is kept.
        """
        module = self._parsed()
        try:
            compile(self.content, self.name, "exec", dont_inherit=True)  # what its grammar alone allows may not run
            module = _Normal(keeps_locals, keeps_documented).visit(module)
            lines = [node.lineno for node in ast.walk(module) if keeps_locals and hasattr(node, "lineno")]
            said = [(ast.dump(statement), statement.lineno) for statement in _imports_in_order(module.body)]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{self.name} cannot be read as Python") from error
        # The compiler knows functions, and where it breaks off, by their lines: which of these are one has to stay.
        places = {line: place for place, line in enumerate(sorted(set(lines)))}
        return [*said, *((f"on line {places[line]}", line) for line in lines)]

    def line_of_difference(
        self, other: "Source", keeps_locals: bool = False, keeps_documented: bool = False
    ) -> int | None:
        """The first line that does something else than in `other`; None where both do the same."""
        kept = (keeps_locals, keeps_documented)
        for ours, theirs in (
            (self.statements(*kept), other.statements(*kept)),
            (self._instructions(), other._instructions()),
        ):
            pairs = itertools.zip_longest(ours, theirs, fillvalue=("", max((line for _, line in ours), default=1)))
            if (line := next((line for (one, line), (another, _) in pairs if one != another), None)) is not None:
                return line
        return None

    def _instructions(self) -> list[tuple[Any, int]]:
        """The instructions of each function, and its first line: a step more may stand for where a line ends."""
        module = ast.fix_missing_locations(_Normal(False).visit(self._parsed()))
        found, left = list[tuple[Any, int]](), [compile(module, self.name, "exec", dont_inherit=True)]
        while left:
            code = left.pop()
            left += [part for part in code.co_consts if isinstance(part, CodeType)]
            if code.co_flags & CO_NEWLOCALS:
                found.append(((code.co_code, getattr(code, "co_exceptiontable", b"")), code.co_firstlineno))
        return found

    @cached_property
    def imports(self) -> set[tuple[str, ...]]:
        """Every module that an import statement, anywhere in it, may mean.

        What a statement means relative to its package begins with an empty part.
        """
        return self._imported_by(self.nodes)

    @cached_property
    def late_imports(self) -> set[tuple[str, ...]]:
        """The same of statements within functions."""
        return self._imported_by(part for node in self.nodes if isinstance(node, Function) for part in ast.walk(node))

    def _imported_by(self, nodes: Iterable[ast.AST]) -> set[tuple[str, ...]]:
        found: set[tuple[str, ...]] = set()
        for node in nodes:
            found |= {tuple(name.split(".")) for name in absolute_imports(node)}
            if isinstance(node, ast.ImportFrom) and node.level:
                parts = PurePosixPath(self.name).parent.parts
                module = node.module.split(".") if node.module else []
                found |= {("", *parts[: len(parts) - node.level + 1], *module, alias.name) for alias in node.names}
        return found

    @cached_property
    def packages(self) -> dict[str, int]:
        """What absolute imports name first, with a line."""
        return {name: node.lineno for node in self.nodes for name in map(top_of, absolute_imports(node))}

    @cached_property
    def words(self) -> set[str]:
        """The strings, and the words of each, without documentation."""
        constants = (node for node in ast.walk(_Normal(True).visit(self._parsed())) if isinstance(node, ast.Constant))
        texts = (each.value for each in constants)
        return words_in(
            text if isinstance(text, str) else text.decode(errors="replace")
            for text in texts
            if isinstance(text, str | bytes)
        )

    @cached_property
    def keeps_locals(self) -> bool:
        """Whether the compiler, which sees names of locals, may have its functions, or warnings are shown by line."""
        return not self._asked.isdisjoint(SEES_LOCALS)

    @cached_property
    def keeps_documented(self) -> bool:
        """Whether it may make a context manager of a function."""
        return not self._asked.isdisjoint(SEES_DOCUMENTED)

    @cached_property
    def _asked(self) -> set[str]:
        fields = ("attr", "id", "name", "value")  # of an attribute, a name, an import and a string
        return {said for node in self.nodes for field in fields if isinstance(said := getattr(node, field, None), str)}

    # What its names mean.

    @cached_property
    def meanings(self) -> dict[str, set[str]]:
        """What the names that import statements bind mean, dotted."""
        found = defaultdict[str, set[str]](set)
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[bound_by(alias)].add(alias.name if alias.asname else bound_by(alias))
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[bound_by(alias)].add(f"{'.' * node.level}{node.module}.{alias.name}")
        return found

    @cached_property
    def imported(self) -> dict[str, str]:
        """The same of names with one meaning; others are told where they are imported."""
        return {name: min(meanings) for name, meanings in self.meanings.items()}

    def meant(self, node: ast.AST) -> str:
        """The module, or what of it, that an expression is, dotted; nothing for others."""
        if isinstance(node, ast.Attribute):
            of = self.meant(node.value)
            return of and f"{of}.{node.attr}"
        return self.imported.get(node.id, "") if isinstance(node, ast.Name) else ""

    def call_of(self, node: ast.AST) -> ast.Call | None:
        """The call of what an expression gives."""
        around = self.around(node)
        return around if isinstance(around, ast.Call) and around.func is node else None

    def is_of_python(self, node: ast.AST, name: str) -> bool:
        """Whether an expression is this name of Python's own: nothing in the file hides it."""
        return isinstance(node, ast.Name) and node.id == name and not {name, "*"} & self.bound

    @cached_property
    def bound(self) -> set[str]:
        """All names that it binds; a star for what it does not name."""
        return self.bound_otherwise | self.meanings.keys()

    @cached_property
    def bound_otherwise(self) -> set[str]:
        """Names that anything but the import of one thing binds."""
        others = (node for node in self.nodes if not isinstance(node, ast.Import | ast.ImportFrom))
        return {name for node in others for name in bound_here(node)}

    def is_parameter(self, name: ast.Name) -> bool:
        """Whether a function around it has a parameter of its name, which hides Python's own."""
        inner: ast.AST = name
        for around in self.outward(name):
            body = around.body if isinstance(around, Function | ast.Lambda) else []
            if inner in (body if isinstance(body, list) else [body]):
                given = around.args
                named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
                if name.id in [part.arg for part in named if part is not None]:
                    return name.id not in self._global
            inner = around
        return False

    def is_local(self, node: ast.AST, name: str | None) -> bool:
        """Whether other functions cannot ask for a name that is bound here."""
        within = itertools.takewhile(lambda around: not isinstance(around, ast.ClassDef), self.outward(node))
        return name not in self._global and any(isinstance(each, Function) for each in within)

    @cached_property
    def _global(self) -> set[str]:
        """Names that a function takes from around it."""
        scopes = (node for node in self.nodes if isinstance(node, ast.Global | ast.Nonlocal))
        return {name for scope in scopes for name in scope.names}

    def outward(self, node: ast.AST) -> Iterator[Any]:
        """Yield it and all around it."""
        around: ast.AST | None = node
        while around is not None:
            yield around
            around = self.around(around)


def words_in(texts: Iterable[str]) -> set[str]:
    """The texts, in lower case, and their words."""
    lower = {text.lower() for text in texts}
    return lower | {word for text in lower for word in re.findall(r"\w+", text)}


def absolute_imports(node: ast.AST) -> list[str]:
    """What an absolute import names, dotted."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def top_of(module: str) -> str:
    return module.partition(".")[0]


def bound_by(alias: ast.alias) -> str:
    return alias.asname or top_of(alias.name)


def bound_here(node: ast.AST) -> list[str]:
    """What this node binds by itself, in whatever scope."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [bound_by(alias) for alias in node.names]
    if isinstance(node, ast.alias | ast.keyword):
        return []
    named = [getattr(node, field, None) for field in ("name", "rest", "arg")]
    return [*getattr(node, "names", ()), *(name for name in named if isinstance(name, str))]


class _Normal(ast.NodeTransformer):
    """Takes out what changes nothing at run time, and names the locals of a function by their order, unless kept."""

    def __init__(self, keeps_locals: bool, keeps_documented: bool = False) -> None:
        self._keeps_locals, self._keeps_documented = keeps_locals, keeps_documented
        self._is_in_function = False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        around, is_in_function = self._is_in_function, isinstance(node, Function)
        is_in_function |= around and not isinstance(node, ast.ClassDef)
        self._is_in_function = is_in_function
        super().generic_visit(node)
        self._is_in_function = around
        if isinstance(node, ast.ClassDef) and (said := ast.get_docstring(node, clean=False)):
            signed = said if "--\n\n" in said else None  # the signature of a class without __init__
            slots = any(
                name == "__slots__" for part in node.body for each in ast.walk(part) for name in bound_here(each)
            )
            # A dataclass without one makes its own; slots may clash with it; a named tuple that a step makes copies it;
            # and of a context manager made of an object it is its class's.
            if node.decorator_list or slots or signed or around or self._keeps_documented:
                node.keywords.append(ast.keyword("__doc__", ast.Constant(signed)))
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            # A constant that stands alone does as much as `pass`, which a function takes a step over each time.
            kept = [ast.copy_location(ast.Pass(), each) if _is_constant(each) else each for each in block]
            if isinstance(node, Function) and name == "body" and _is_constant(block[0]):
                is_text = isinstance(block[0].value.value, str)
                kept = kept[1:]  # its documentation
                if is_text and self._keeps_documented:
                    node.decorator_list.append(ast.Constant("documented"))
            elif not is_in_function:
                kept = [each for each in kept if not isinstance(each, ast.Pass)]
            if block and not kept and not isinstance(node, ast.Module) and name == "body":
                kept = [ast.Pass(lineno=block[0].lineno, col_offset=0)]
            setattr(node, name, kept)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not self._keeps_locals:
            _name_locals(node)
        return node


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


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
    kept.update(name for node in nodes if not isinstance(node, ast.Name) for name in bound_here(node))
    for node in nodes:
        if isinstance(node, Nested):
            kept.update(name for part in ast.walk(node) for name in (*bound_here(part), getattr(part, "id", "")))
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
        bound = [name for each in run for name in bound_here(each)]
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
            return all(of_torch if top_of(module) == "torch" else (alias.name != "*" for alias in names))
    return False
