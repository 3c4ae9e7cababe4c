"""Base and head run the same program, or are measured: a wrong SAME would hide a slowdown, a rare one serves nobody."""

import io
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.gate.accepted import FILE_NAME
from perf_tests_suite.perf_tests.interleaved.observer import Observation
from perf_tests_suite.perf_tests.interleaved.program import Source, UnreadableError, difference
from perf_tests_suite.perf_tests.interleaved.same import ObservedTree, differing, is_document, why_not_the_same
from perf_tests_suite.perf_tests.user_code import named
from tests.support.same_programs import decided, import_and_step, observed, write

Files = Mapping[str, str | bytes]

PROGRAM = "from layers import attend\n\n\ndef step():\n    return attend(2)\n"
LAYERS = '''"""Layers."""
import functools
import json
import math
import os
import threading
from dataclasses import dataclass
from functools import partial
from helpers import scaled, wrap, late

SCALE = 2
ORDER = (3, 1)
os.environ["OF_LAYERS"] = "1"
TABLE = {}
math.tau = 6.0


def kept(name):
    def keep(function):
        TABLE[name] = function
        return function
    return keep


@kept("fast")
def kernel(x: int) -> int:
    return x + 10


class Meta(type):
    def __call__(cls, *given):
        return super().__call__(*given)


class Base:
    def run(self, x):
        return x


class Other:
    def run(self, x):
        return x


class Layer(Base, metaclass=Meta):
    """A layer."""

    __slots__ = ("x",)
    width = 3

    def __init__(self, x=1, *, bias=True):
        self.x = x

    @property
    def size(self):
        return self.x

    @classmethod
    def made(cls):
        return Layer()

    def __len__(self):
        return 9

    def only_timed(self):
        return slow(self.x)

    def of_nobody(self):
        return 1


@dataclass
class Shape:
    width: int = 4
    known: bool = 2 in {1, 2}
    depth: float = 1.0


class Encoder(json.JSONEncoder):
    def default(self, given):
        return 1


def slow(x):
    return slower(x)


def slower(x):
    return x * 5


def counter():
    count = 0

    def more(by):
        nonlocal count
        count += by
        return count
    return more


def values(x):
    for each in range(x):
        yield each * 2


@wrap
def attend(x, scale=SCALE):
    """Attend."""
    result = []
    thread = threading.Thread(target=in_thread, args=(result,))
    thread.start()
    thread.join()
    total = Layer.made().size + Layer().run(x) + counter()(x) + sum(values(x)) + Shape().width
    if x > 9:
        Layer().only_timed()
        getattr(Encoder(), "by_text")()
    try:
        total += (lambda y: y + 1)(x)
    except ValueError:
        total = 0
    return scaled(total) * scale


def in_thread(result):
    result.append(1)


def by_text():
    return 3


def unused(x, y=1):
    other = x - y
    return other


def made_of_nobody(x=os.environ.setdefault("AT_IMPORT", "1")):
    return 2


class Unused(Base):
    def use(self, x):
        return unused(x)


if __name__ == "__main__":
    print(attend(1))
elif os.environ.get("OF_NOBODY"):
    SCALE = 3
'''
HELPERS = """import functools
def wrap(f):
    @functools.wraps(f)
    def wrapped(x):
        return f(x)
    return wrapped
def scaled(x): return x
def late(): import rare
"""
ALWAYS: Files = {
    "program.py": PROGRAM, "layers.py": LAYERS, "helpers.py": HELPERS, "rare.py": "1\n", "README.md": "A program.\n",
    "tests/test_it.py": "1\n", "tool.py": "print(1)\n",
}  # fmt: skip


def helped(code: str) -> str:
    """The helpers, which run this first."""
    return f"{code}\n{HELPERS}"


OBSERVED: dict[str, Observation] = {}
"""What was seen of each base that several tests have."""


def two(tmp_path: Path, base: Files, head: Files) -> str | None:
    """Why two programs that share `ALWAYS` are not the same."""
    trees = [write(tmp_path / side, {**ALWAYS, **files}) for side, files in (("base", base), ("head", head))]
    if (known := str(base)) not in OBSERVED:
        OBSERVED[known] = observed(trees[0])
    of_base, of_head = ObservedTree(trees[0], OBSERVED[known]), ObservedTree(trees[1], observed(trees[1]))
    return why_not_the_same(of_base, of_head, differing(trees[0], trees[1]))


def edited(old: str, new: str) -> str:
    assert LAYERS.count(old) == 1, old
    return LAYERS.replace(old, new)


HARMLESS = {
    "a comment": ("total = 0", "total = 0  # nothing"),
    "documentation": ('"""Attend."""', '"""Attend, and more."""'),
    "documentation taken away": ('    """A layer."""\n', ""),
    "documentation of a module": ('"""Layers."""', '"""All layers."""'),
    "documentation added": ("def in_thread(result):", 'def in_thread(result):\n    """Of a thread."""'),
    "blank lines": ("@wrap\n", "\n\n@wrap\n"),
    "parentheses": ("* scale", "* (scale)"),
    "a call on two lines": ("threading.Thread(target=in_thread, args=(result,))",
                            "threading.Thread(\n        target=in_thread,\n        args=(result,),\n    )"),
    "quotes": ('"OF_LAYERS"', "'OF_LAYERS'"),
    "a function of nobody whose default is computed": ("    return 2\n", "    return 5\n"),
    "hints": ("def slower(x):", "def slower(x: int) -> int:"),
    "a hint of a local": ("result = []", "result: list = []"),
    "imports in another order": ("import json\nimport math\n", "import math\nimport json\n"),
    "an import that nobody uses": ("from functools import partial\n", "import re\n"),
    "a function that nobody calls": ("    other = x - y\n", "    other = x - 2 * y\n"),
    "another such function": ("def unused(", "def also_unused():\n    return 5\n\n\ndef unused("),
    "a method that nobody calls": ("def of_nobody(self):\n        return 1", "def of_nobody(self):\n        return 2"),
    "a class that nobody uses": ("class Unused(Base):", "class More:\n    def go(self): pass\n\n\nclass Unused(Base):"),
    "what only a script does": ("print(attend(1))", "print(attend(2))"),
    "a branch that was not taken": ("    SCALE = 3\n", "    SCALE = 4\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_an_edit_that_changes_nothing_that_ran_is_the_same(name: str, tmp_path: Path) -> None:
    assert two(tmp_path, {}, {"layers.py": edited(*HARMLESS[name])}) is None


def test_locals_may_have_other_names_unless_something_asks_for_them(tmp_path: Path) -> None:
    renamed = LAYERS.replace("total", "everything").replace("    thread", "    one")
    assert two(tmp_path / "1", {}, {"layers.py": renamed}) is None
    asked = [text.replace("return scaled(", "return len(locals()) * scaled(") for text in (LAYERS, renamed)]
    why = two(tmp_path / "2", {"layers.py": asked[0]}, {"layers.py": asked[1]})
    assert why == "layers.py: attend differs"


STARTS = "import subprocess\nsubprocess.run(['true'])"
OF_NOBODY: dict[str, tuple[Files, Files]] = {
    "documents": ({}, {"README.md": "new", "docs/new.md": "", "LICENSE": "free", "assets/a.bin": "1"}),
    "tests and scripts": ({}, {"tests/test_it.py": "open(x)", "tools/release.py": "exec(x)", "tool.py": "print(2)\n"}),
    "a module that only a late import names": ({}, {"rare.py": "A = 2\n"}),
    "records": ({}, {".benchmarks/accepted.toml": "1", ".benchmarks/Linux/0001.json": "1"}),
    "data that did not change": ({"helpers.py": helped("open('a.json').close()"), "a.json": "1"}, {"README.md": "new"}),
    "a document beside a started process": ({"helpers.py": helped(STARTS)}, {"README.md": "new"}),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NOBODY)
def test_a_file_that_nobody_ran_or_read_is_the_same(name: str, tmp_path: Path) -> None:
    base, head = OF_NOBODY[name]
    assert two(tmp_path, base, {**base, **head}) is None


ATTEND, MODULE = "layers.py: attend differs", "layers.py differs"
HARMFUL = {
    "a default": ("scale=SCALE", "scale=4", MODULE),
    "a default of a keyword": ("bias=True", "bias=False", "layers.py: Layer differs"),
    "a constant": ("SCALE = 2", "SCALE = 3", MODULE),
    "a constant of another type": ("SCALE = 2", "SCALE = 2.0", MODULE),
    "the order of a tuple": ("(3, 1)", "(1, 3)", MODULE),
    "an attribute of a class": ("width = 3", "width = 4", "layers.py: Layer differs"),
    "a field's default": ("width: int = 4", "width: int = 5", "layers.py: Shape differs"),
    "a field's type": ("depth: float", "depth: int", "layers.py: Shape differs"),
    "arguments of a decorator": ("@dataclass\n", "@dataclass(slots=True)\n", MODULE),
    "a decorator": ("@wrap\n", "@functools.lru_cache\n@wrap\n", MODULE),
    "a decorator taken away": ("@wrap\n", "", MODULE),
    "a registered name": ('@kept("fast")', '@kept("other")', MODULE),
    "a registered function that never ran": ("x + 10", "x + 11", "layers.py: kernel differs"),
    "a hint that a decorator may read": ("def kernel(x: int)", "def kernel(x: float)", MODULE),
    "bases": ("Layer(Base, ", "Layer(Other, ", MODULE),
    "a metaclass": (", metaclass=Meta", "", MODULE),
    "a metaclass's call": ("return super().__call__(*given)", "return super().__call__(*given[:1])",
                           "layers.py: Meta.__call__ differs"),
    "slots": ('("x",)', '("x", "y")', "layers.py: Layer differs"),
    "a property": ("return self.x", "return self.x + 1", "layers.py: Layer.size differs"),
    "a closure": ("count += by", "count += 2 * by", "layers.py: counter.more differs"),
    "what a closure starts from": ("count = 0", "count = 1", "layers.py: counter differs"),
    "a generator": ("yield each * 2", "yield each * 3", "layers.py: values differs"),
    "a thread": ("result.append(1)", "result.append(2)", "layers.py: in_thread differs"),
    "a lambda": ("lambda y: y + 1", "lambda y: y + 2", "layers.py: attend differs"),
    "a handler": ("except ValueError", "except TypeError", ATTEND),
    "the environment": ('"OF_LAYERS"] = "1"', '"OF_LAYERS"] = "2"', MODULE),
    "a patch of a library": ("math.tau = 6.0", "math.tau = 7.0", MODULE),
    "an operation": ("scaled(total) * scale", "scaled(total) / scale", ATTEND),
    "another function's name": ("scaled(total)", "abs(total)", ATTEND),
    "a dunder that never ran": ("return 9", "return 8", "layers.py: Layer.__len__ differs"),
    "what only the timed step calls": ("return slow(self.x)", "return slow(2)", "layers.py: Layer.only_timed differs"),
    "what that calls": ("return slower(x)", "return slower(2)", "layers.py: slow differs"),
    "what that calls again": ("x * 5", "x * 6", "layers.py: slower differs"),
    "a method that a package may call": ("given):\n        return 1\n", "given):\n        return 2\n",
                                         "layers.py: Encoder.default differs"),
    "what a text names": ("    return 3\n", "    return 4\n", "layers.py: by_text differs"),
    "a default that is computed": ('"AT_IMPORT", "1"', '"AT_IMPORT", "2"', MODULE),
    "a set": ("{1, 2}", "{1, 3}", "layers.py: Shape differs"),
    "a branch at the top": ('get("OF_NOBODY")', 'get("OF_SOMEBODY")', MODULE),
    "a branch that is taken": ('elif os.environ.get("OF_NOBODY")', "elif True", MODULE),
    "an import of the tree": ("import scaled, wrap, late", "import wrap, scaled, late", MODULE),
    "a new method of a base's name": ("class Layer(Base, metaclass=Meta):", "class Layer(Base, metaclass=Meta):\n"
                                      "    def run(self, x):\n        return 1\n", "layers.py: Layer.run differs"),
    "a function written over": ("def unused(", "def slower(x): return 1\n\n\ndef unused(", MODULE),
    "an assertion": ("    result = []", "    assert x\n    result = []", ATTEND),
    "a loop unrolled": ("for each in range(x):\n        yield each * 2", "yield from [0, 2]",
                        "layers.py: values differs"),
    "a class method made static": ("@classmethod\n    def made(cls):", "@staticmethod\n    def made(cls=None):",
                                   "layers.py: Layer differs"),
    "a keyword's name": ("bias=True", "biased=True", "layers.py: Layer.__init__ differs"),
    "a global in place of a local": ("    result = []", "    global result\n    result = []", ATTEND),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_a_change_of_what_ran_or_may_run_names_its_file_and_function(name: str, tmp_path: Path) -> None:
    old, new, said = HARMFUL[name]
    assert two(tmp_path, {}, {"layers.py": edited(old, new)}) == said


def archive(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as written:
        for name, content in files.items():
            written.writestr(name, content)
    return packed.getvalue()


FAILS = "try:\n    import fast\nexcept Exception:\n    fast = None"
LISTS = "import os\nNAMES = sorted(os.listdir('plugins'))"
HOOKED = """
import importlib.machinery, importlib.util, ast
class Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *, _optimization=-1):
        return compile(ast.parse(data), path, 'exec', dont_inherit=True)
module = importlib.util.module_from_spec(importlib.util.spec_from_loader('hooked', Loader('hooked', 'hooked.py')))
module.__spec__.loader.exec_module(module)
"""
REWRITES = HOOKED.replace(
    "def source", "def get_data(self, path): return super().get_data(path).upper()\n    def unused"
)
HINTS = "import typing\ndef f(x: int): pass\nKNOWN = typing.get_type_hints(f)"
REGISTERS = "class A:\n    def __init_subclass__(cls): A.last = cls\n"
MADE = "import types\nmore = types.ModuleType('m')\nexec(compile(open('m.py').read(), 'm.py', 'exec'), vars(more))"
POINTER = "version https://git-lfs.github.com/spec/v1\n"
FILES: dict[str, tuple[str, Files, Files, str]] = {
    # what the helpers run first, files of base, what head has otherwise, and what is said
    "a configuration": ("import pathlib\npathlib.Path('a.json').read_text()", {"a.json": "1"}, {"a.json": "2"},
                        "a.json is read, and differs"),
    "a pickle": ("with open('a.pkl', 'rb') as file: file.read()", {"a.pkl": "1"}, {"a.pkl": "2"},
                 "a.pkl is read, and differs"),
    "its own text": ("open(__file__).close()", {}, {"helpers.py": helped("open(__file__).close()") + "# new"},
                     "helpers.py is read, and differs"),
    "data by the import system": ("import pkgutil\npkgutil.get_data('helpers', 'a.json')", {"a.json": "1"},
                                  {"a.json": "2"}, "a.json is read, and differs"),
    "text that is executed": ("exec(open('m.py').read())", {"m.py": "A = 1\n"}, {"m.py": "A = 2\n"},
                              "m.py is read, and differs"),
    "text that becomes a module": (MADE, {"m.py": "def f(): pass\nA = 1\n"}, {"m.py": "def f(): pass\nA = 2\n"},
                                   "m.py differs"),
    "a document that is read": ("open('README.md').close()", {}, {"README.md": "new"},
                                "README.md is read, and differs"),
    "a file of another folder": ("import os\nos.chdir('sub')\nopen('a.txt').close()\nos.chdir('..')",
                                 {"sub/a.txt": "1"}, {"sub/a.txt": "2"}, "sub/a.txt is read, and differs"),
    "data that nobody read": ("", {"weights.bin": "1"}, {"weights.bin": "2"}, "weights.bin may be read, and differs"),
    "compiled code": ("", {"fast.so": "1"}, {"fast.so": "2"}, "fast.so may be read, and differs"),
    "an archive": ("import sys\nsys.path.append('packed.zip')\nimport packed",
                   {"packed.zip": archive({"packed.py": "A = 1"})}, {"packed.zip": archive({"packed.py": "A = 2"})},
                   "packed.zip is read, and differs"),
    "a module of a helper": ("", {}, {"helpers.py": HELPERS.replace("x): return x", "x): return -x")},
                             "helpers.py: scaled differs"),
    "functools.wraps": ("", {}, {"helpers.py": HELPERS.replace("    @functools.wraps(f)\n", "")},
                        "helpers.py: wrap differs"),
    "a late import": ("", {"helpers.py": HELPERS.replace("x): return x", "x):\n    import rare\n    return x")},
                      {"rare.py": "A = 1\n"}, "rare.py differs"),
    "an import that is found on one side": (FAILS, {}, {"fast.py": "1\n"}, "fast.py runs in head alone"),
    "an import that fails on one side": (FAILS, {"fast.py": "1\n"}, {"fast.py": "1 +\n"}, "fast.py runs in base alone"),
    "a file that cannot be decoded": (FAILS, {"fast.py": "1\n"}, {"fast.py": b"'\xff'\n"},
                                      "fast.py runs in base alone"),
    "a module in a library's place": ("import colorsys", {}, {"colorsys.py": "1\n"}, "colorsys.py runs in head alone"),
    "a package without a file": (FAILS, {}, {"fast/README.md": "1\n"}, "fast is loaded on one side alone"),
    "a library that is loaded": (FAILS, {"fast.py": "import rare\n"}, {"fast.py": "import rare, wave\n"},
                                 "fast.py differs"),
    "a listed folder": (LISTS, {"plugins/a.py": "1\n"}, {"plugins/b.py": "1\n"}, "plugins/ is listed, and differs"),
    "a started process": (STARTS, {}, {"tool.py": "2\n"},
                          "helpers.py:2 subprocess.Popen, which cannot be followed, and tool.py differs"),
    "an import hook": (HOOKED, {"hooked.py": "A = 1\n"}, {"hooked.py": "A = 1  # new\n"},
                       "hooked.py is not loaded as it is written, and differs"),
    "an import hook that writes text anew": (REWRITES, {"hooked.py": "A = 1\n"}, {"hooked.py": "A = 1  # new\n"},
                                             "hooked.py is not loaded as it is written, and differs"),
    "hints that are read": (HINTS, {}, {"helpers.py": helped(HINTS.replace(": int", ": float"))}, "helpers.py differs"),
    "a class that registers itself": (REGISTERS, {},
                                      {"helpers.py": helped(f"{REGISTERS}class B(A):\n    def f(self): pass")},
                                      "helpers.py: B differs"),
    "dependencies": ("", {"sub/requirements-dev.txt": "a"}, {"sub/requirements-dev.txt": "b"},
                     "dependencies changed, not measured here: sub/requirements-dev.txt"),
    "a lock": ("", {"uv.lock": "a"}, {"uv.lock": "b"}, "dependencies changed, not measured here: uv.lock"),
    "a package's setup": ("", {"setup.py": "a"}, {"setup.py": "b"},
                          "dependencies changed, not measured here: setup.py"),
    "submodules": ("", {".gitmodules": "a"}, {".gitmodules": "b"}, ".gitmodules may be read, and differs"),
    "a pointer to a large file": ("", {"docs/w.pdf": f"{POINTER}1"}, {"docs/w.pdf": f"{POINTER}2"},
                                  "docs/w.pdf is kept by git LFS, and differs"),
    "a name that is no text": ("", {"notes\udce9": "1"}, {"notes\udce9": "2"}, "notes\\udce9 may be read, and differs"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_ran_or_was_read_or_may_be_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)  # of Python's library, which another test may load
    code, base, head, said = FILES[name]
    base = {"helpers.py": helped(code), **base}
    assert two(tmp_path, base, {**base, **head}) == said


def test_links_count_by_what_they_lead_to_and_their_loops_by_nothing(tmp_path: Path) -> None:
    for side, width in (("base", 1), ("head", 2)):
        tree = write(
            tmp_path / side, {**ALWAYS, "helpers.py": helped("import lib.fast"), "vendor/fast.py": f"WIDTH = {width}\n"}
        )
        (tree / "lib").symlink_to("vendor")
        (tree / "loop").symlink_to("loop")
        (tree / "again").symlink_to(".")
    assert decided(tmp_path / "base", tmp_path / "head") == "vendor/fast.py differs"
    write(tmp_path / "head", {"vendor/fast.py": "WIDTH = 1\n"})
    assert decided(tmp_path / "base", tmp_path / "head") is None
    (tmp_path / "head/loop").unlink()
    (tmp_path / "head/loop").symlink_to("again")
    assert decided(tmp_path / "base", tmp_path / "head") == "loop is a symbolic link, and differs"


def test_a_listed_folder_of_ten_thousand_files_is_compared_by_its_names(tmp_path: Path) -> None:
    for side in ("base", "head"):
        folder = write(tmp_path / side, {"plugins/0.py": ""}) / "plugins"
        for number in range(1, 10_000):
            os.close(os.open(f"{folder}/{number}.py", os.O_CREAT))
    files = {"helpers.py": helped(LISTS)}
    assert two(tmp_path, files, {**files, "plugins/7.py": "2\n"}) is None
    write(tmp_path / "head", {"plugins/new.py": ""})
    assert decided(tmp_path / "base", tmp_path / "head") == "plugins/ is listed, and differs"


def test_modules_that_run_in_another_order_are_another_program(tmp_path: Path) -> None:
    base, head = (write(tmp_path / side, {"a.py": "", "b.py": "", "README.md": side}) for side in ("base", "head"))
    sides = [ObservedTree(tree, Observation(ran=ran)) for tree, ran in (
        (base, {"a.py": 1, "b.py": 1}), (head, {"b.py": 1, "a.py": 1}))]  # fmt: skip
    assert why_not_the_same(sides[0], sides[1], ["README.md"]) == "modules run in another order"
    sides = [ObservedTree(base, Observation(read=("a.py",))), ObservedTree(head, Observation())]
    assert why_not_the_same(sides[0], sides[1], ["README.md"]) == "a.py is read on one side alone"


SHOWS = """
import inspect, traceback
def f(): return traceback.format_stack(), inspect.getsource(f)
f()
"""


def test_a_line_that_python_shows_is_not_read_but_a_text_that_is_opened_is(tmp_path: Path) -> None:
    base = {"helpers.py": helped(SHOWS)}
    assert two(tmp_path, base, {"helpers.py": f"# new\n{helped(SHOWS)}"}) is None


def test_a_module_that_is_read_and_imported_by_one_file_is_read(tmp_path: Path) -> None:
    base = {"helpers.py": helped("import rare\nopen('rare.py').close()")}
    assert two(tmp_path, base, {**base, "rare.py": "1  # new\n"}) == "rare.py is read, and differs"


FUTURE = """from __future__ import annotations
from helpers import late
code = compile('def f(x: nothing): pass', 'x', 'exec')
"""


def test_marks_change_nothing_that_code_sees_and_are_never_written(tmp_path: Path) -> None:
    """The arguments and lines of functions, the future that a compiled text inherits, and what a gone folder lists."""
    texts = "def late():\n    'Said.'\n    global A\n    A = 1\n\n\ndef rest(): return late.__doc__\n"
    check = "exec(code, {})\nassert late.__code__.co_firstlineno == 1\nassert late.__doc__ == 'Said.'\nlate()\n"
    check += "import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\nassert os.listdir('.') == []\n"
    tree = write(tmp_path, {"program.py": FUTURE + check, "helpers.py": texts})
    seen = observed(tree)
    assert seen.functions == {"helpers.py": ["1 late"], "program.py": []}
    assert list(tree.rglob("*.pyc")) == []


TESTS = """
import pytest


def test_it():
    assert [1, 2] == [1, 2]


def test_other():
    \"\"\"Nobody.\"\"\"
"""


def run_pytest() -> None:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    assert pytest.main(["-q", "-p", "no:cacheprovider", "tests/test_theirs.py"]) == 0


def test_of_a_pytest_session_what_ran_and_was_read_decides(tmp_path: Path) -> None:
    """No torch, no operations: pytest compiles their tests with other asserts, and to read one is to load it."""
    files = {
        "tests/test_theirs.py": TESTS,
        "tests/conftest.py": "import layers\n",
        "pytest.ini": "[pytest]\n",
        **ALWAYS,
    }
    base, head = (write(tmp_path / side, files) for side in ("base", "head"))
    for name, new, said in (
        ("tests/test_theirs.py", f"# new\n{TESTS.replace('Nobody', 'No one')}", None),
        ("tests/test_theirs.py", TESTS.replace("[1, 2]\n", "[1, 2, 3][:2]\n"), "tests/test_theirs.py: test_it differs"),
        ("layers.py", LAYERS.replace("SCALE = 2", "SCALE = 3"), MODULE),
        ("pytest.ini", "[pytest]\nxfail_strict = true\n", "pytest.ini is read, and differs"),
    ):
        write(head, {**files, name: new})
        assert decided(base, head, run_pytest) == said, name


def test_a_name_made_at_run_time_is_known_once_the_step_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step on real tensors shows that one on tensors without content did not."""
    code = """import os
def slow_step(): return 1
def attend(x): return globals()['slow' + '_step']() if os.environ['REAL'] else x
"""
    base, head = (write(tmp_path / side, {**ALWAYS, "layers.py": code}) for side in ("base", "head"))
    write(head, {"layers.py": code.replace("return 1", "return 2")})
    for is_real, said in (("", None), ("1", "layers.py: slow_step differs")):
        monkeypatch.setenv("REAL", is_real)
        assert decided(base, head) == said


BLIND = {
    "the number of a line": ("attend = lambda x: x * attend.__code__.co_firstlineno\n", {"layers.py": "\n"}),
    "the length of documentation": ("def attend(x):\n    return x * len(__import__('layers').__doc__ or '')\n",
                                    {"layers.py": "'Layers.'\n"}),
    "whether a document exists": ("import os\nattend = lambda x: x * os.path.exists('NOTES.md')\n",
                                  {"NOTES.md": "new"}),
}  # fmt: skip


@pytest.mark.parametrize("name", BLIND)
def test_what_the_page_says_that_it_cannot_see_it_does_not_see(name: str, tmp_path: Path) -> None:
    code, new = BLIND[name]
    head = {"layers.py": code, **{file: f"{text}{code if file == 'layers.py' else ''}" for file, text in new.items()}}
    assert two(tmp_path, {"layers.py": code}, head) is None


def test_trees_differ_in_content_modes_and_names_but_not_in_byte_code_and_records(tmp_path: Path) -> None:
    records = (".benchmarks/x/y", f".benchmarks/{FILE_NAME}")
    base, head = (
        write(tmp_path / side, {"a": "1", "b/c": "1", **dict.fromkeys(records, side)}) for side in ("base", "head")
    )
    write(head, {"__pycache__/a.pyc": "", "b/new": ""})
    os.chmod(head / "a", 0o755)
    assert differing(base, head) == ["a", "b/new"]


def test_documents_are_known_by_folder_by_kind_and_by_name() -> None:
    documents = (
        "README",
        "README.md",
        "docs/a.bin",
        "tests/a.json",
        "LICENSE",
        ".gitattributes",
        "a/b.PNG",
        "Makefile",
    )
    others = ("a.json", "src/docs/a.bin", "docs", "license.py", "docs/requirements.txt", "tests/pyproject.toml", "a.so")
    assert [name for name in (*documents, *others) if is_document(name)] == [*documents]


def told(base: str, head: str) -> str | None:
    """The function that differs where all ran."""
    of_base, of_head = (Source("a.py", text.encode(), frozenset({"1 f"})) for text in (base, head))
    return difference(of_base, of_head, set(), set())


def test_a_set_is_told_apart_by_what_it_holds_alone() -> None:
    assert told("def f(x): return x in {1, 9}", "def f(x): return x in {9, 1}") is None  # of one place in its table
    assert told("def f(x): return x in {1, 9}", "def f(x): return x in {1, 8}") == "f"


def test_a_line_that_ends_elsewhere_is_no_step() -> None:
    code = "def f(x):\n try:{}x()\n except E: pass\n"
    assert told(code.format(" "), code.format("\n  ")) is None


def test_a_file_that_cannot_be_parsed_is_told_by_its_name() -> None:
    good, bad = Source("a.py", b"A = 1\n", frozenset()), Source("a.py", b"A = \n", frozenset())
    with pytest.raises(UnreadableError, match=r"^a\.py cannot be read as Python$"):
        difference(good, bad, set(), set())


def test_names_that_the_suite_asks_for_count_where_it_lies_in_the_tree(tmp_path: Path) -> None:
    """Its own files are the same on both sides and not theirs."""
    layers = "def only_timed(): return 1\ndef of_nobody(): return 1\n"
    suite = {
        "perf_tests/__init__.py": "def go(x):\n    return x.only_timed()\n",
        "program.py": "import perf_tests, layers\n",
    }
    base, head = (write(tmp_path / side, {**suite, "layers.py": layers}) for side in ("base", "head"))
    for old, said in (("only_timed(): return 1", "layers.py: only_timed differs"), ("nobody(): return 1", None)):
        write(head, {"layers.py": layers.replace(old, old.replace("1", "2"))})
        sides = [ObservedTree(tree, observed(tree, trusted=[tree / "perf_tests"])) for tree in (base, head)]
        assert "perf_tests/__init__.py" not in sides[0].seen.ran
        assert why_not_the_same(sides[0], sides[1], differing(base, head)) == said


def test_that_the_suite_looks_for_the_name_that_was_typed_in_a_file_is_no_reading(tmp_path: Path) -> None:
    """`--model model.py:build` is looked for in the text of each side's file before it is imported."""

    def look_and_run() -> None:
        here = Path.cwd()
        named.take_files_from(named.Tree(here, here, here, frozenset({"program.py:step"})))
        assert named.why_not_there("program.py:step") is None
        import_and_step()

    base, head = (write(tmp_path / side, {**ALWAYS, "program.py": f"{PROGRAM}# {side}\n"}) for side in "ab")
    assert decided(base, head, look_and_run) is None
