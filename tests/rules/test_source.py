"""What one file of Python does: two that differ in how they are written alone are equal, no others are."""

import ast

import pytest

from perf_tests.user_code.source import HARMLESS, Source

BEFORE = '''"""Of a model."""
import math
import torch
from torch import Tensor, nn

WIDTH = 3  # of all


@torch.no_grad()
def grow(x: Tensor, by: int = 2, *, far: bool = False) -> Tensor:
    """Grow."""
    # more
    total = x * by
    rest = total - WIDTH
    for step in range(by):
        rest += step
    with open("a") as file:
        pass
    if far:
        total, rest = rest, total
    return total + rest


class Layer(nn.Module):
    """A layer."""

    size: int = 4
    """Its size."""

    def forward(self, x):
        def inner(y):
            return y + width
        width = self.size
        return [inner(each) for each in x]
'''


def line(old: str, new: str, keeps_locals: bool = False, before: str = BEFORE) -> int | None:
    assert old in before
    edited = before.replace(old, new)
    ast.parse(edited)
    return Source("a.py", edited.encode()).line_of_difference(Source("a.py", before.encode()), keeps_locals)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Of a model."""', '"""Another word."""'), ('"""Of a model."""\n', ""), ("  # of all", ""),
        ("    # more\n", "\n\n"), ('    """Grow."""\n', ""), ('    """Its size."""\n', ""), ('"""A layer."""', "pass"),
        ("x * by", "(x\n        * by)"), ('open("a")', "open('a')"), ("by: int = 2", "by: int = 0x2"),
        ("import math\nimport torch\n", "import torch\nimport math\n"), ("Tensor, nn", "nn, Tensor"),
        ("    size: int = 4\n", "    size: int = (4)\n"), ("WIDTH = 3", "WIDTH = 3\n'all'"),
    ],
)  # fmt: skip
def test_comments_documentation_and_layout_change_nothing(old: str, new: str) -> None:
    assert line(old, new) is None


def test_a_step_more_that_stands_for_the_end_of_a_line_is_a_difference() -> None:
    """As black writes it: on a line of its own `try` is a step of the loop."""
    loop = "def f(x):\n    for i in x:\n        try: x += i\n        finally: g()\n"
    one, two = (Source("a.py", text.encode()) for text in (loop, loop.replace("try: ", "try:\n            ")))
    assert one.statements() == two.statements()
    assert one.line_of_difference(two) == 1
    still = "def f(x):\n    while x(): ...\n"
    one, two = (Source("a.py", text.encode()) for text in (still, still.replace(": ", ":\n        ")))
    assert one.line_of_difference(two) == 1


def test_whether_a_function_has_documentation_counts_where_context_managers_are_made() -> None:
    """At each `with` the manager asks its function for it, and its own class where there is none."""
    bare, one, other = (
        Source("a.py", f"from contextlib import contextmanager\n@contextmanager\ndef f():\n{text}    yield\n".encode())
        for text in ("", "    'One.'\n", "    'Another.'\n")
    )
    assert one.keeps_documented
    assert one.line_of_difference(other, keeps_documented=True) is None
    assert one.line_of_difference(bare, keeps_documented=True) == 3
    assert one.line_of_difference(bare) is None
    bare, one = (Source("a.py", f"class A:\n{text}    a = 1\n".encode()) for text in ("", "    'One.'\n"))
    assert one.line_of_difference(bare) is None
    assert one.line_of_difference(bare, keeps_documented=True) == 1, "of an object it is its class's"
    assert not Source("a.py", BEFORE.encode()).keeps_documented


@pytest.mark.parametrize("name", ["total", "rest"])
def test_a_renamed_local_changes_nothing_but_for_the_compiler(name: str) -> None:
    assert line(name, "other") is None
    assert line(name, "other", keeps_locals=True) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 3", "WIDTH = 3.0"), ("@torch.no_grad()\n", ""), ("by: int = 2", "by: int = 3"), ("by", "times"),
        ("x: Tensor", "x"), ("far: bool = False", "far: bool = 0"), ("*, far", "far"), ("Tensor:\n", "object:\n"),
        ("total - WIDTH", "rest - WIDTH"), ("total - WIDTH", "total - total"), ("return total + rest", "return rest"),
        ("total, rest = rest, total", "rest, total = rest, total"), ("rest += step", "total += step"),
        ("range(by)", "range(by, 0)"), ("size: int = 4", "size = 4"), ("size", "length"), ("width", "breadth"),
        ("each", "one"), ("inner", "within"), ("(nn.Module)", "(object)"), ("class Layer", "class Level"),
        ("import math\n", "import math\nimport model\n"), ('open("a")', 'open("b")'),
        ("    rest = total - WIDTH\n", "    global rest\n    rest = total - WIDTH\n"),
        ("    for step", "    WIDTH = 5\n    for step"),
        ("        rest += step\n", "        rest += step\n        'a step'\n"),
        ("        rest += step\n", "        pass\n"),
        ("total = x * by", "total: Tensor = x * by"), ("if far:", "if far and locals():"),
        ("import math\nimport torch\n", "import torch\nfrom math import *\n"),
        ("    return total + rest\n", "    return total + rest\n\n\ndef unused():\n    return 1\n"),
    ],
)  # fmt: skip
def test_whatever_else_is_edited_is_a_difference_at_its_line(old: str, new: str) -> None:
    """Names of parameters, fields, closures, comprehensions, globals and definitions may be seen by others."""
    where = line(old, new)
    assert where is not None
    assert line(old, new, keeps_locals=True) == where
    before, after = (Source("a.py", text.encode()) for text in (BEFORE, BEFORE.replace(old, new)))
    assert before.line_of_difference(after) is not None


@pytest.mark.parametrize(
    "body",
    [
        "a = 1\n    return locals()", "a = 1\n    return eval('a')", "a = 1\n    return [a for b in c]",
        "a = 1\n    return lambda: a", "import a\n    return a", "global a\n    a = 1", "def a(): pass\n    return a",
        "try: pass\n    except ValueError as a: pass", "match c:\n        case [a, *rest]: return a",
        "class a: pass\n    return a", "return (a := 1) + f(lambda: a)", "for a in c: exec('1')",
        # An exception tells the name of what is not bound.
        "if c: a = 1\n    return a", "for a in c: pass\n    return a", "a = 1\n    del a",
        "while c: a = 1\n    return a",
        "with c: a = 1\n    return a", "try: a = 1\n    except c: pass\n    return a", "a += 1", "b, a = a, c",
        "b = c and (a := 1)\n    return a", "for b in c: a = 1\n    else: return a", "return a\n    a = 1",
    ],
)  # fmt: skip
def test_a_local_keeps_its_name_where_anything_but_the_functions_own_statements_may_see_it(body: str) -> None:
    text = f"def f(c):\n    {body}\n"
    renamed = ast.parse(text)
    for node in ast.walk(renamed):
        for field in ("id", "name", "asname"):
            if getattr(node, field, None) == "a":
                setattr(node, field, "z")
        if isinstance(node, ast.alias) and node.name == "a":
            node.name = "z"
        if isinstance(node, ast.Global):
            node.names = ["z"]
    edited = Source("a.py", ast.unparse(renamed).encode())
    assert edited.line_of_difference(Source("a.py", text.encode())) is not None


def test_a_local_that_a_class_may_call_otherwise_keeps_its_name() -> None:
    one, other = (
        Source(
            "a.py", f"class C:\n    def f(self):\n        {name} = 1\n        __x = 2\n        return {name}\n".encode()
        )
        for name in ("_C__x", "y")
    )
    assert one.line_of_difference(other) is not None


@pytest.mark.parametrize(
    "imports", [("import json", "import math"), ("from torch import fx", "from torch import Tensor")]
)
def test_imports_that_may_run_code_keep_their_order(imports: tuple[str, str]) -> None:
    one, other = (Source("a.py", "\n".join(order).encode()) for order in (imports, imports[::-1]))
    assert one.line_of_difference(other) == 1


@pytest.mark.parametrize(
    "last",
    ["[a for _ in c]", "lambda: a", "{a: 1 for _ in c}", "[c for _ in c if a]", "(lambda b=a: b)()", "locals()['a']"],
)
def test_two_locals_that_change_places_are_seen_through_a_nested_scope(last: str) -> None:
    """By their order alone both functions would read alike."""
    one, other = (
        Source("a.py", f"def f(c):\n    {first} = 1\n    {second} = 2\n    return {last}\n".encode())
        for first, second in ("ab", "ba")
    )
    assert one.line_of_difference(other) is not None


def test_a_decorated_class_keeps_whether_it_has_documentation() -> None:
    """A dataclass without any makes its own from the texts of its defaults, which may run code."""
    one, other, without = (
        Source("a.py", f"@f\nclass A:\n    {text}\n    a = b\n".encode()) for text in ("'a'", "'b'", "pass")
    )
    assert one.line_of_difference(other) is None
    assert one.line_of_difference(without) == 2
    for first, second in (
        ("'''A(a)\n--\n\n'''\n", "'''A(b)\n--\n\n'''\n"),  # what inspect.signature() reads
        ("'one'; __slots__ = ('__doc__',)\n", "__slots__ = ('__doc__',)\n"),
    ):
        texts = (f"class A:\n    {text}" for text in (first, second))
        kinds = [Source("a.py", text.encode()) for text in texts]
        assert kinds[0].line_of_difference(kinds[1]) == 1


def test_a_class_that_a_function_makes_keeps_whether_it_has_documentation() -> None:
    """A named tuple that a step makes copies it."""
    made = "def f(x):\n    class A(NamedTuple):\n{}        a: int\n    return A(x)\n"
    bare, one, other = (
        Source("a.py", made.format(text).encode()) for text in ("", "        'One.'\n", "        'Another.'\n")
    )
    assert one.line_of_difference(other) is None
    assert one.line_of_difference(bare) == 1


def test_functions_that_share_a_line_are_one_to_the_compiler() -> None:
    one, other = (Source("a.py", f"f = lambda: 1{between}g = lambda: 2\n".encode()) for between in ("; ", "\n"))
    assert one.line_of_difference(other) is None
    assert one.line_of_difference(other, keeps_locals=True) == 1


def test_a_file_that_is_no_python_says_so() -> None:
    with pytest.raises(ValueError, match=r"a\.py cannot be read as Python"):
        Source("a.py", b"def (").line_of_difference(Source("a.py", b"1"))


def test_modules_whose_imports_may_change_places_are_loaded_with_torch() -> None:
    import sys

    import torch  # noqa: F401

    assert sys.modules.keys() >= HARMLESS
