"""What one file of Python does: two that differ in how they are written alone are equal, no others are."""

import ast

import pytest

from perf_tests.user_code.source import HARMLESS, Source
from tests.support.same_programs import FOLLOWED_CODE, READ_FILES, READ_THEIR_SOURCE

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
        ("    size: int = 4\n", "    size: int = (4)\n"),
    ],
)  # fmt: skip
def test_comments_documentation_and_layout_change_nothing(old: str, new: str) -> None:
    assert line(old, new) is None


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


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("exec(x)", "runs code"), ("y = [eval]", "runs code"), ("import builtins\nbuiltins.eval(x)", "runs code"),
        ("from importlib import import_module\nimport_module(x)", "imports a module"),
        ("import importlib\nimportlib.import_module('a' + x)", "imports a module"),
        ("import importlib\nimportlib.import_module('subprocess')", "imports a module"),
        ("import importlib.util as u\nu.find_spec('a').loader.get_source('a')", "opens a file"),
        ("import os\nos.stat('a.py')", "asks for a file's size"), ("help('a' + b)", "runs code"),
        ("import torch\ntorch._inductor.codecache", "asks for"), ("import torch\ntorch.fx.sympy", "runs code"),
        ("open(x)", "opens a file"), ("open(3).read()", "opens"), ("o = open", "opens a file"),
        ("p.read_text()", "opens a file"),
        ("def f(Path):\n    Path('a').read_text()", "opens a file"), ("torch.load(x)", "opens a file"),
        ("from config import PLACE\nPLACE.open('r')", "opens a file"), ("A = 'a'\nA = x\nopen(A)", "opens a file"),
        ("import os\nos.listdir('.' + x)", "asks which"), ("from pathlib import Path\nPath.cwd().exists()", "asks"),
        ("import os\ngetattr(os, 'listdir')('.')", "asks for"), ("import os\ngetattr(os, x)()", "asks for"),
        ("import os\nos.__dict__['x']", "asks for"), ("import os\nvars(os)", "asks for"), ("exec('1')", "runs code"),
        ("import os\nos.system('ls')", "starts another program"),
        ("import os\nos.environ[x]", "environment"), ("open('a' + 'b')", "opens a file"),
        ("V = 'fast'\nimport importlib\nimportlib.import_module('ops_' + V)", "imports a module"),
        ("open(f'vocab_{1}')", "opens a file"), ("open('_'.join(['a', 'b']))", "opens a file"),
        ("import os\nos.listdir('shards')", "asks which"),
        ("from pathlib import Path\nPath('a').iterdir()", "asks which"),
        ("import os\nos.path.isdir('cache')", "asks which"), ("A = 'a'\nfrom b import *\nopen(A)", "opens a file"),
        ("getattr(x, 'read_' + 'text')", "asks for"), ("np.fromregex(x, y, z)", "opens a file"),
        ("import os\ndict(os.environ)", "environment"), ("import os\nos.environ['PYTHONPATH']", "environment"),
        ("from os import environ as e\ndict(e)", "environment"), ("from os import listdir as l\nl('.')", "asks which"),
        # Names of the interpreter, however they are come by.
        ("__builtins__['open']", "reaches into"), ("__path__.append('impl')", "reaches into"),
        ("__path__ = ['impl']", "reaches into"), ("from a import b as __path__", "reaches into"),
        ("__package__ = 'tests'", "reaches into"), ("json.__spec__.loader", "reaches into"),
        ("f.__getattribute__('a' + 'b')", "reaches into"), ("f.__code__.co_varnames", "reaches into"),
        ("x['__globals__']", "reaches into"), ("dict(eval_str=True)", "runs code"), ("f(**{'opener': x})", "reaches"),
        # What a module holds beside what it may be asked for.
        ("import sys\nsys.path[:0] = ['a']", "asks for"), ("import sys as s\ns.path", "asks for"),
        ("from sys import path", "asks for"), ("import sys\ngetattr(sys, 'path')", "asks for"),
        ("import torch\ntorch.sys.argv", "asks for"), ("import sys\nsys.modules['a'] = b", "asks for"),
        ("import sys\nsys.modules.get('a')", "asks for"), ("import sys\nsys.stderr = x", "asks for"),
        ("import os\nos.utime(x)", "asks for"),
        ("import inspect\ninspect.getsource(f)", "asks for"), ("from inspect import getdoc", "asks for"),
        ("import inspect\nI = inspect\nI.stack()", "asks for"), ("from importlib.machinery import x", "asks for"),
        ("import inspect as i\ni.linecache", "asks for"), ("import gc\ngc.get_referents(f)", "asks for"),
        ("import logging\nlogging.FileHandler(x, 'r')", "asks for"), ("import logging.handlers", "opens a file"),
        ("import warnings\nwarnings.formatwarning(a, b, x, 2)", "asks for"), ("import torch._C", "asks for"),
        ("import torch\ntorch.serialization._open_file(x)", "asks for"), ("torch.ctypes.CDLL(x)", "asks for"),
        # Functions that ask for any name, handed on; files in the clothes of others.
        ("g = getattr", "asks for"), ("map(getattr, x, y)", "asks for"), ("getattr(f(), 'read_text')", "asks for"),
        ("from operator import attrgetter as a", "asks for"), ("x.methodcaller('read_text')", "asks for"),
        ("globals()", "asks for"), ("vars()", "asks for"), ("vars(x)['a']", "asks for"), ("cls.__dict__", "asks for"),
        ("g.gi_frame", "asks for"), ("import json\njson = x\njson.load(y)", "opens a file"),
        ("import re\nre = x\nre.open('r')", "opens a file"), ("type(open('a').raw)(x)", "opens a file"),
        ("import numpy as np\nnp.load('a', None, True)", "opens a file"), ("load(weights_only=False)", "runs code"),
        ("import os\nos.environ['A'] = 'a' + 'b'", "environment"), ("os.environ.setdefault('A', b)", "environment"),
        ("def f(x: 'open(y)'): pass", "runs code"), ("def f(x) -> 'list[g()]': pass", "runs code"),
        ("from torch.utils import benchmark", "asks for"), ("import os as o", "asks for"), ("sys.path", "asks for"),
        ("import torch.distributed.checkpoint\ntorch.distributed.checkpoint.a", "asks for"),
        ("import torch\ntorch.utils.data.graph", "asks for"), ("import torch\nt = torch", "asks for"),
        ("from os import *", "asks for"), ("import triton\ntriton.compile(x)", "runs code"),
        ("p(fromfile_prefix_chars='@')", "opens a file"), ("type(license)(x)", "opens a file"),
        # The class of an open file opens any other.
        ("f = open('a')", "opens a file"), ("type(open('a').detach().detach())(x)", "opens a file"),
        ("with open('a') as f:\n    type(f.detach().detach())(x)", "opens a file"), ("g(open('a'))", "opens a file"),
        ("with open('a') as f:\n    pass\ng(f)", "opens a file"), ("open('a').__class__(x)", "opens a file"),
        ("import sys\ntype(sys.stdout.detach().detach())(x)", "asks for"), ("import sys\nf = sys.stderr", "asks for"),
        ("with open('a') as f:\n    from late import g", "opens a file"),
        ("def h():\n    global f\n    with open('a') as f:\n        g()", "opens a file"),
        ("import json\ndef h():\n    with open('a') as f:\n        json.load(f, object_hook=g)", "opens a file"),
        ("import importlib.util\nimportlib.util.find_spec('a').loader.path_stats(x)", "imports a module"),
        ("import importlib.util\ns = importlib.util.find_spec('a')", "imports a module"),
        ("import numpy as np\ntype(np.load('a', 'r'))(x)", "opens a file"), ("torch.load('a')", "opens a file"),
        ("import io\nio.BufferedReader(x)", "asks for"), ("import os\nos.listdir('/proc/self/cwd')", "asks which"),
        # Modules of packages, and what is set in them, which their own code then calls.
        ("import torch\ntorch.serialization.get_unsafe_globals_in_checkpoint(x)", "asks for"),
        ("from torch.serialization import get_unsafe_globals_in_checkpoint", "asks for"),
        ("import numpy.lib.format as f", "asks for"), ("import torch.nn.functional as F\nF.torch.save(x)", "asks for"),
        ("import torch\nnn = torch.nn", "asks for"), ("import hashlib\nhashlib.sha256 = f", "asks for"),
        ("import textwrap as t\nt.dedent = f", "asks for"), ("import torch\nsetattr(torch.nn.Linear, 'a', f)", "asks"),
        ("import torch\ntorch._inductor.config.post_grad_custom_pre_pass = f", "asks for"),
        ("import torch\ntorch._dynamo.config.patch(a=f)", "asks for"), ("import torch\ntorch.classes.a", "asks for"),
        ("from warnings import catch_warnings\ncatch_warnings(**{x: True})", "asks for"),
        ("f.__annotations__['a'] = x", "reaches into"),
        ("import torch\ntorch.compiler.save_cache_artifacts()", "asks for"),
        ("from jaxtyping import Float\nisinstance(x, Float[Tensor, '{f()}'])", "runs code"),
    ],
)  # fmt: skip
def test_what_reads_by_unknown_names_or_runs_unknown_code_is_told_with_its_line(code: str, said: str) -> None:
    found = Source("a.py", f"\n{code}\n".encode()).unknown
    assert any(said in line for line in found), found
    assert all(line.startswith("a.py:") for line in found)


@pytest.mark.parametrize(
    "code",
    [
        "open('a.json').read()", "def f():\n    with open('a') as file:\n        return [a for a in file]",
        "import os\nos.environ['A'] = '1'", "def f(x: 'Tensor', y: 'list[int]'): pass",
        "import os\nos.environ.get('CXX', 'g++')", "import os\n'A' in os.environ", "import os\nos.getenv('A')",
        "import importlib.util\nimportlib.util.find_spec('triton') is None", "torch.compile(f)", "model.eval()",
        "import json\nwith open('a') as file:\n    names = json.load(file)", "getattr(self, 'a')", "x.exec_time",
        "import os\nos.path.exists('/proc/cpuinfo')", "vars(self)", "self.__dict__", "f.__name__", "__all__ = []",
        "import inspect\ninspect.signature(f)", "from inspect import signature\nsignature(f)", "f.__doc__",
        "import sys\n'a' in sys.modules",
        "from kit.subprocess import a", "import torch\ntorch._dynamo.config.verbose = True",
        "add(help='a')", "import shutil\nshutil.which(x)", "import torch\nhasattr(torch, 'compile')",
        "import logging\nlogging.getLogger(__name__).info('a')", "import os\nos.path.join(x, y)",
        "import json\njson.load(open(b'a'))", "import sys\nprint(x, file=sys.stderr)",
        "import torch.nn.functional as F\nF.gelu(x)",
        "from torch.nn import functional as F\nF.relu(x)", "import torch\ntorch.backends.cudnn.benchmark = True",
        "from einops.layers.torch import Rearrange", "import torch\nq, k = x.chunk(2)\nx.detach().cpu()",
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')", "setattr(self, x, y)",
    ],
)  # fmt: skip
def test_what_says_in_the_source_what_it_reads_is_followed(code: str) -> None:
    assert Source("a.py", code.encode()).unknown == []


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("f.__doc__", True), ("dir()", True), ("f.__annotations__", True), ("torch.jit.script(f)", True),
        ("@triton.jit\ndef f(): pass", True), ("match f:\n    case object(__doc__=text): pass", True),
        ("getattr(f, '__doc__')", True), ("'{0.__doc__}'.format(f)", True), ("x.format(f)", True),
        ("'{0.lineno}'.format(f)", True), ("'{}'.format(f)", False), ("str.format(x, f)", True),
        ("class A(metaclass=B): pass", True), ("class A(enum.EnumMeta): pass", True), ("class A(B()): pass", True),
        ("b = B()\nclass A(b): pass", True),
        ("class A(metaclass=abc.ABCMeta): pass", False), ("class A(B): pass", False),
        ("functools.update_wrapper(x, f)", True), ("from functools import update_wrapper as u\nu(x, f)", True),
        ("@functools.wraps(f)\ndef g(): pass", False), ("class A(property): pass", True), ("w = wraps(f)", True),
        ("@functools.wraps(f)\n@g\ndef h(): pass", True), ("A = dataclass(A)", True),
        ("@dataclass\nclass A: pass", False), ("class throw: pass", True),
        ("class A:\n    @property\n    def a(self): pass", False), ("typing.get_overloads(f)", True),
        ("import logging\nlogging.getLogger(x).addFilter(f)", True), ("contextlib.ExitStack()", True),
        ("warnings.simplefilter('error', Warning, 3)", True), ("warnings.filterwarnings('error', lineno=3)", True),
        ("warnings.catch_warnings(record=True)", True), ("warnings.filterwarnings('error', 'a')", True),
        ("warnings.filterwarnings('ignore', 'a')", False), ("warnings.simplefilter(x)", True),
        ("torch.compile(f, backend=b)", True), ("torch.compile(f, options={'a': b})", True),
        ("torch.compile(f, **b)", True), ("torch.compile(f, mode=m, backend='eager')", False),
        ("setattr(x, y, f)", True), ("setattr(x, 'y', f)", False), ("vars(self)", True), ("self.__dict__", True),
        ("torch.save(x, y, _use_new_zipfile_serialization=False)", True), ("torch.save(x, y)", False),
        ("import numpy as np\nnp.info(f)", True), ("np.bmat('a')", True), ("getattr(self, 'a')", False),
        ("f.__name__", False),
    ],
)  # fmt: skip
def test_what_reads_source_documentation_lines_or_locals_is_told(code: str, reads: bool) -> None:
    assert bool(Source("a.py", code.encode()).reads_source) == reads


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        # An error of torch.compile, or of what was registered twice, quotes lines of the program.
        ("try:\n    f(x)\nexcept A as e:\n    g(e)", True),
        ("try:\n    f(x)\nexcept A as e:\n    g()\n    raise", True),
        ("def h():\n    try:\n        f(x)\n    except A as e:\n        y = e", True),
        ("def h():\n    try:\n        f(x)\n    except A as e:\n        raise B(str(e)) from e", True),
        ("def h():\n    global e\n    try:\n        f(x)\n    except A as e:\n        g()\n        raise", True),
        ("def h():\n    try:\n        f(x)\n    except A as e:\n        (lambda: e)()", True),
        ("try:\n    f(x)\nexcept A:\n    pass", False), ("try:\n    f(x)\nexcept A as e:\n    raise B() from e", False),
        ("def h():\n    try:\n        f(x)\n    except A as e:\n        g()\n        raise B() from e", False),
        ("import torch\ntry:\n    torch.cuda.init()\nexcept RuntimeError as e:\n    x = str(e)", False),
        ("import torch\ntry:\n    torch.cuda.init()\nexcept Exception as e:\n    x = str(e)", True),
        ("import torch\ntry:\n    torch.compile(f)\nexcept RuntimeError as e:\n    x = str(e)", True),
        ("class A:\n    def __exit__(self, kind, e, at): return f(e)", True), ("__exit__ = f", True),
        ("class A:\n    def __exit__(self, *given): return True", False),
        ("class A:\n    def __aexit__(self, *given): return f(given)", True),
        ("class A:\n    @f\n    def __exit__(self, *given): return True", True), ("def throw(self, e): f(e)", True),
        ("from a import f as __exit__", True), ("type(x) == A", True), ("s = type.__setattr__", True),
        ("a.__exit__ = f", True),
        ("setattr(A, '__exit__', f)", True), ("type.__setattr__(A, x, f)", True), ("type('A', (), {x: f})", True),
        ("type(int)('A', (), {x: f})", True), ("x.__class__(y)", True), ("t = type", True), ("Enum('A', {x: f})", True),
        ("type(x) is A", False), ("x.__class__.__name__", False), ("def f(x: type[A]): pass", False),
    ],
)  # fmt: skip
def test_who_reads_the_text_of_an_exception_is_told(code: str, reads: bool) -> None:
    assert bool(Source("a.py", code.encode()).reads_source) == reads


def test_what_is_done_with_any_name_or_text_by_a_function_of_a_library_is_told() -> None:
    assert [code for code in READ_FILES if not Source("a.py", code.encode()).unknown] == []
    assert [code for code in READ_THEIR_SOURCE if not Source("a.py", code.encode()).reads_source] == []
    files = [Source("a.py", code.encode()) for code in FOLLOWED_CODE]
    assert [told for file in files for told in (*file.unknown, *file.reads_source)] == []


def test_a_decorated_class_keeps_whether_it_has_documentation() -> None:
    """A dataclass without any makes its own from the texts of its defaults, which may run code."""
    one, other, without = (
        Source("a.py", f"@f\nclass A:\n    {text}\n    a = b\n".encode()) for text in ("'a'", "'b'", "pass")
    )
    assert one.line_of_difference(other) is None
    assert one.line_of_difference(without) == 2


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
