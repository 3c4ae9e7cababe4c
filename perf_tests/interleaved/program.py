"""What a file of Python does in a process of which it is known what ran: its code, without how it is written. No torch.

Taken out are documentation, lines, names of locals, hints of plainly decorated functions, the order of imports of what
was loaded before, and what never ran: branches outside of functions, and functions, unless code that may run names
them, or a decorator, a package, Python itself or the suite may call them.
"""

import ast
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import CodeType
from typing import Any

from perf_tests_suite.perf_tests.interleaved.observer import Function, Observation, is_constant, parts_of, place_of

PLAIN = {"staticmethod", "classmethod", "property", "torch.no_grad()", "torch.inference_mode()", "functools.cache"}
"""Decorators that hand their function to nobody, and read no hints."""
READ_HINTS = {
    "get_type_hints", "__annotations__", "signature", "singledispatch", "script", "custom_op", "infer_schema",
    "beartype", "jaxtyped", "validate_call", "get_annotations",
}  # fmt: skip
"""What reads hints, in Python and in packages: where code may ask for one, all hints count."""
CALLED_BY_SUITE = {"reset_parameters", "multiple_of"}
"""What the suite asks of a user's model and attention."""
READ_LOCALS = {"locals", "vars", "eval", "exec", "dir"}
"""Python's own functions that read the locals around them by name."""


class UnreadableError(Exception):
    """A file cannot be parsed, so nobody knows what it does; the message says which."""


@dataclass(frozen=True)
class Source:
    """A file that ran, by its name in the tree."""

    name: str
    content: bytes
    places: frozenset[str]
    """The functions, and branches outside of them, that ran."""

    def module(self) -> ast.Module:
        """Return it without branches that never ran. Raises UnreadableError."""
        try:
            module = ast.parse(self.content)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnreadableError(f"{self.name} cannot be read as Python") from error
        for place, body in parts_of(module):
            if place.endswith((" if", " else")) and place not in self.places:
                body[:] = [ast.Pass()] if place.endswith(" if") else []
        return module


def names_asked_for(sources: Sequence[Source], seen: Observation) -> set[str]:
    """Return names by which code of one side that may run asks for something.

    That is what ran, what it names, what that names, and so on; neither an import nor `__all__` asks for what it names.
    Raises UnreadableError.
    """
    found = {*seen.overridden, *seen.of_suite, *CALLED_BY_SUITE}
    left: list[tuple[Source, ast.AST]] = [(source, source.module()) for source in sources]
    waiting: list[tuple[Source, Any]] = []
    while left:
        for source, node in left:  # which grows
            children = [*ast.iter_child_nodes(node)]
            if isinstance(node, Function) and place_of(node) not in source.places:
                waiting.append((source, node))
                children = [child for child in children if child not in node.body]
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
                children = []
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(node.value.split("."))
            else:
                found.update(filter(None, [getattr(node, "attr", None), getattr(node, "id", None)]))
            left += ((source, child) for child in children)
        called = [(source, node) for source, node in waiting if _may_be_called(node, found)]
        waiting = [each for each in waiting if each not in called]
        left = [(source, statement) for source, node in called for statement in node.body]
    return found


def _is_plain(node: Any) -> bool:
    return all(ast.unparse(each) in PLAIN for each in node.decorator_list)


def _only_defines(node: Any) -> bool:
    """Whether a function, where it is defined, computes nothing."""
    return all(isinstance(each, ast.Constant) for each in (*node.args.defaults, *node.args.kw_defaults) if each)


def _may_be_called(node: Any, names: AbstractSet[str]) -> bool:
    """Whether a function that never ran may be called nevertheless, as by the timed step."""
    return not _is_plain(node) or node.name in names or (node.name.startswith("__") and node.name.endswith("__"))


def difference(base: Source, head: Source, names: AbstractSet[str], preloaded: AbstractSet[str]) -> str | None:
    """Return the first function that does something else, `module` for what stands outside of all, or None.

    `names` are asked for on either side, `preloaded` modules there before its code. Raises UnreadableError.
    """
    codes = []
    for source in (base, head):
        module = ast.fix_missing_locations(_Reduced(source.places, names, preloaded).visit(source.module()))
        for node in ast.walk(module):
            if "lineno" in node._attributes:  # else a layout may add a step that stands for the end of a line
                vars(node).update(lineno=1, end_lineno=1, col_offset=0, end_col_offset=0)
        codes.append(compile(module, source.name, "exec", dont_inherit=True))
    return _first_difference(codes[0], codes[1])


class _Reduced(ast.NodeTransformer):
    """Takes out what changes nothing in a process in which these places ran."""

    def __init__(self, places: AbstractSet[str], names: AbstractSet[str], preloaded: AbstractSet[str]) -> None:
        self._places, self._names, self._preloaded = places, names, preloaded
        self._keeps_hints = not READ_HINTS.isdisjoint(names)
        self._is_within_function = False

    def visit(self, node: Any) -> Any:
        around = self._is_within_function
        if isinstance(node, Function):
            self._is_within_function = True
            place, is_plain = place_of(node), _is_plain(node)
            if place not in self._places and not _may_be_called(node, self._names):
                if _only_defines(node):
                    self._is_within_function = around
                    return None
                node.body = [ast.Pass()]  # defaults are computed all the same
            if is_plain and not self._keeps_hints:
                node.returns = None
                for each in ast.walk(node.args):
                    vars(each).pop("annotation", None)
        elif isinstance(node, ast.ClassDef) and self._is_never_asked_for(node):
            return None
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, name, None), list):
                kept = [each for each in block if not is_constant(each)]
                kept = kept if self._is_within_function else [*self._in_order(kept)]
                needs_one = name == "body" and not isinstance(node, ast.Module)
                setattr(node, name, kept or [ast.Pass()] * needs_one)
        self._is_within_function = around
        return node

    def _is_never_asked_for(self, node: ast.ClassDef) -> bool:
        """Whether a class is only there: nobody names it, it does nothing as it is made, and no part of it ran."""
        body = [each for each in node.body if not (is_constant(each) or isinstance(each, ast.Pass))]
        methods = [each for each in body if isinstance(each, Function)]
        values = [each.value for each in body if isinstance(each, ast.Assign | ast.AnnAssign)]
        is_used = node.name in self._names or any(place_of(each) in self._places for each in methods)
        registers = node.decorator_list or node.keywords or {"__init_subclass__", "__subclasses__"} & self._names
        is_plain = all(isinstance(each, ast.Name | ast.Attribute) for each in node.bases)
        is_plain &= all(each is None or isinstance(each, ast.Constant) for each in values)
        is_plain &= all(_is_plain(each) and _only_defines(each) for each in methods)
        only_these = len(body) == len(methods) + len(values)
        return bool(methods) and only_these and is_plain and not (is_used or registers)

    def _in_order(self, block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """Yield statements, of imports in a row first those of other modules, then by name what was loaded before.

        Of the latter only what is asked for.
        """
        first: list[ast.stmt] = []
        loaded: dict[str, ast.stmt] = {}
        for statement in [*block, None]:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for one, module, bound in _single_imports(statement):
                    if module not in self._preloaded or module == "__future__" or bound == "*":
                        first.append(one)
                    elif bound in self._names:
                        loaded[ast.dump(one)] = one
                continue
            yield from first
            yield from (loaded[key] for key in sorted(loaded))
            first, loaded = [], {}
            if statement is not None:
                yield statement


def _single_imports(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[ast.stmt, str, str]]:
    """Yield each import of a statement by itself, with its module and the name that it binds."""
    for alias in statement.names:
        bound = alias.asname or alias.name.partition(".")[0]
        if isinstance(statement, ast.Import):
            yield ast.Import([alias]), alias.name, bound
        else:
            yield (
                ast.ImportFrom(statement.module, [alias], statement.level),
                "." * statement.level + (statement.module or ""),
                bound,
            )


# Code of two sides, compiled from what is left.


def _first_difference(base: CodeType, head: CodeType) -> str | None:
    inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (base, head)]
    for one, other in zip(*inner, strict=False):
        if one.co_name == other.co_name and (found := _first_difference(one, other)):
            return found
    if _own(base) == _own(head):
        return None
    alone = [
        [*({each.co_qualname for each in these} - {each.co_qualname for each in those})]
        for these, those in (inner, inner[::-1])
    ]
    return min([*alone[0], *alone[1]], default="") or base.co_qualname.replace("<module>", "module")


def _own(code: CodeType) -> object:
    """What code does but for code within it: without lines, its file and, where nobody asks, names of locals."""
    given = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    locals_kept = len(code.co_varnames) if READ_LOCALS.intersection(code.co_names) else given
    return (
        code.co_name, code.co_code, code.co_flags, code.co_names, code.co_argcount, code.co_posonlyargcount,
        code.co_kwonlyargcount, code.co_nlocals, code.co_varnames[:locals_kept], code.co_freevars, code.co_cellvars,
        code.co_exceptiontable, [_constant(each) for each in code.co_consts],
    )  # fmt: skip


def _constant(value: object) -> object:
    """A constant as it is told apart from others: 1 from True and 1.0, 0.0 from -0.0; a set in one order."""
    if isinstance(value, CodeType):
        return value.co_name
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
