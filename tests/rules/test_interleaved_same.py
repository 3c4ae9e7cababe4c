"""Base and head run the same program, or are measured: a wrong SAME would hide a slowdown."""

import importlib.util
import io
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from perf_tests.gate.verdicts import FILE_NAME
from perf_tests.interleaved.observer import Observer
from perf_tests.interleaved.same import Seen, Tree, differing, imported_by_packages, why_not_the_same
from perf_tests.user_code.named import load
from perf_tests.user_code.source import Source
from tests.support.launch import ROOT
from tests.support.same_programs import MODEL, decided, decided_on_the_model, mutants_of_the_model, write

Files = Mapping[str, str | bytes]


def archive(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as written:
        for name, content in files.items():
            written.writestr(name, content)
    return packed.getvalue()


PROGRAM = "import math\n\nfrom layers import attend\n\n\ndef step():\n    return attend(math.pi)\n"
LAYERS = 'def attend(x):\n    """Attend."""\n    return x\n'
ALWAYS: Files = {"program.py": PROGRAM, "layers.py": LAYERS, "README.md": "A program.\n", "tests/test_it.py": "1\n"}


def two(tmp_path: Path, base: Files, head: Files) -> str | None:
    """Why two programs that share `ALWAYS` are not the same."""
    return decided(write(tmp_path / "base", {**ALWAYS, **base}), write(tmp_path / "head", {**ALWAYS, **head}))


@pytest.mark.parametrize(
    ("base", "head"),
    [
        ({}, {}),
        ({}, {"README.md": "Another text.\n", "docs/new.md": "new", "LICENSE": "free"}),
        ({}, {"tests/test_it.py": "import subprocess, yaml\nopen(x)\n", "of_nobody/release.py": "exec(x)"}),
        ({}, {"layers.py": LAYERS.replace("Attend.", "Look.") + "# the end\n"}),
        ({}, {"layers.py": "\n\n" + LAYERS.replace("return x", "return (x)")}),
        # What a program reads of its environment by name, and data that did not change, are the same on both sides.
        ({"layers.py": "import os\nattend = float\nos.environ.get('A')\nopen('a.json').close()\n", "a.json": "1"},
         {"layers.py": "import os\nattend = float\nos.environ.get('A')\nopen('a.json').close()\n", "a.json": "1",
          "README.md": "new"}),
        # Bytes that are equal may read their own documentation.
        ({"layers.py": "attend = float\nattend.__doc__\n"},
         {"layers.py": "attend = float\nattend.__doc__\n", "README.md": "new"}),
        ({"layers.py": "import dataclasses\nattend = float\n"},
         {"layers.py": "import dataclasses\nattend = float\n", "tests/data/new.json": "1", "layers.pyi": "1",
          ".pre-commit-config.yaml": "1"}),
        ({"tools/run.sh": "1", ".benchmarks/accepted.toml": "1", ".benchmarks/Linux/0001.json": "1"},
         {"tools/run.sh": "1", "LICENSE.md": "new"}),
    ],
    ids=["nothing", "documents", "tests and a module", "comments", "layout", "its data", "its own words", "of checkers",
         "records"],
)  # fmt: skip
def test_a_change_that_reaches_nothing_of_the_program_leaves_it_the_same(
    base: Files, head: Files, tmp_path: Path
) -> None:
    assert two(tmp_path, base, head) is None


CONFIG = "import json\nWIDTH = json.load(open('config.json'))['width']\ndef attend(x):\n    return x * WIDTH\n"
BASES = "class A:\n    def run(self): return 1\nclass B(A): pass\n"
MRO = "from bases import B\nclass C(B):\n    def again(self): return self.run()\nattend = lambda x: C().again()\n"
PATCHED = "import layers_fast\n\n\ndef attend(x):\n    return x\n"
DECORATED = "from wraps import fast\n\n\n@fast\ndef attend(x):\n    return x\n"
LAZY = "def __getattr__(name):\n    from slow import attend\n    return attend\n"
EITHER = "try:\n    from fast import attend\nexcept ImportError:\n    attend = float\n"
BRANCH = "def attend(x):\n    if x > 9:\n        from rare import slow\n        return slow(x)\n    return x\n"
LITERAL = "import importlib\ndef attend(x):\n    return x if x < 9 else importlib.import_module('rare').slow(x)\n"
THREADS = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nattend = float\n"
FROM_A = "from a.pkg import m\nattend = float\n"
DOCUMENTED = 'def attend(x):\n    """Attend."""\n    return x * len(getattr(attend, "__doc__", ""))\n'
MEASURED = "import os\nsize = os.stat(__file__)\nattend = lambda x: x if x < 9 else 2 * x\n"
OWN = "def attend(x):\n    return x if x < 9 else len(open('layers.py').read())\n"
BYTES = "def attend(x):\n    return x if x < 9 else open(b'README.md').read()\n"
LATE = "def late():\n    from parts.slow import K\n    return K\n"
PATHS = {"layers.py": "import parts\nattend = float\n", "parts/__init__.py": f"__path__ = ['to' + 'ols']\n{LATE}"}
STARTED = "import kit.turtle\ndef late():\n    import turtle\nattend = float\n"
COMPILED = "def attend(x):\n    y = 2 * x\n    return torch.compile(y) if x > 9 else x\n"
LATE_IMPORT = {"layers.py": "def attend(x):\n    if x > 9:\n        import late\n"}
STAR = {**LATE_IMPORT, "late.py": "from package import *\n", "package/__init__.py": "__all__ = ['ke' + 'rnel']\n"}
REOPENED = (
    "def attend(x):\n    if x > 9:\n        with open('a.json') as file:\n"
    "            return type(file.detach().detach())('READ' + 'ME.m' + 'd')\n    return x\n"
)
QUOTED = (
    "import torch\n\n\ndef attend(x):\n    try:\n        return torch.compile(attend)(x) if x > 9 else x\n"
    "    except Exception as error:\n        return len(str(error))\n"
)
HANDED = "import tools\nattend = lambda x: x if x < 9 else tools.t.serialization.f(x)\n"
CACHE = "import os\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = 'tests/cache'\nattend = float\n"
COMPILER = "import os\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = 'cache'\nattend = float\n"
LATE_STAR = {"layers.py": "import kit, parts\ndef attend(x):\n    if x > 9:\n        from kit import late\n",
             "kit/__init__.py": "", "kit/late.py": "from parts import *\n",
             "parts/__init__.py": "__all__ = ['sub.ker' + 'nel']\n"}  # fmt: skip
FOUND = "import importlib.util\nattend = lambda x: x if x < 9 or importlib.util.find_spec('rare') is None else 2\n"
SPELT = "attend = lambda x: x if x < 9 else getattr(x, 'getcw\\x64b')\n"
OPENED = "def attend(x):\n    return x if x < 9 else open('rare').read()\n"
BLANK = (
    "from dataclasses import dataclass\n\n\nSEEN = []\nattend = float\n"
    "@dataclass\nclass A:\n    'one'\n    a: object = attend\n"
)
OTHERS = "from tools import Base\nclass A(Base): pass\nattend = float\n"
PARTS = (
    "from torch import nn\n\n\ndef attend(x):\n    part = nn.Identity()\n"
    "    nn.Module().add_module('__deep' + 'copy__', part)\n    return x\n"
)
CHILDREN = PARTS.replace(
    "nn.Module().add_module('__deep' + 'copy__', part)", "nn.ModuleDict({'__deep' + 'copy__': part})"
)
MANAGER = "from contextlib import contextmanager\n\n\ndef managed(f):\n    return contextmanager(f)\n"
MANAGED = "from managed import managed as c\n\n\ndef spans():\n    yield\n\n\nspan, attend = c(spans), float\n"
ARCHIVED: Files = {
    "layers.py": "import sys\nsys.path.append('packed.zip')\nfrom packed import attend\n",
    "packed.zip": archive({"packed.py": "attend = float\n"}),
}
OPTIONAL = (
    "import parts\n\n\ndef attend(x):\n    try:\n        from parts.fast import attend\n"
    "    except ImportError:\n        return x\n    return attend(x)\n"
)
FAILS = {"layers.py": OPTIONAL, "parts/__init__.py": "", "parts/fast.py": "'One.'\nraise ImportError('no GPU')\n"}
LATER = {**FAILS, "layers.py": OPTIONAL.replace("try", "if x > 9").replace("except ImportError", "else")}
EARLY = {**FAILS, "parts/fast.py": "'One.'\nattend = float\n"}
COPY = {"layers.py": COMPILED, "other.py": COMPILED, "program.py": f"import other\n{PROGRAM}"}
TWICE = "import warnings\nattend = float\ndef late(x):\n    warnings.simplefilter('default')\n    x(); x()\n"
EINOPS = {"layers.py": "import einops\nattend = lambda x: x if x < 9 else einops.t.read(x)\n", "einops.py": "t = 1\n"}
PLUGIN = {
    "plugin.egg-info/entry_points.txt": "[torch_dynamo_backends]\nfast = plugin:f\n",
    "plugin.py": "import deep\n",
}
REGISTRY = "from registry import TABLE\nimport one, two\nattend = TABLE[-1]\n"


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [
        ({"layers.py": PATCHED, "layers_fast.py": "import math\n"},
         {"layers.py": PATCHED, "layers_fast.py": "import math\nmath.pi = 3\n"}, "layers_fast.py:2 differs"),
        ({"layers.py": CONFIG, "config.json": '{"width": 1}'}, {"layers.py": CONFIG, "config.json": '{"width": 2}'},
         "config.json, which is opened, differs"),
        ({"layers.py": "import os\nattend = float\nos.environ.get('A', '1')\n"},
         {"layers.py": "import os\nattend = float\nos.environ.get('A', '2')\n"}, "layers.py:3 differs"),
        ({"layers.py": THREADS}, {"layers.py": THREADS.replace("'1'", "'2'")}, "layers.py:2 differs"),
        ({"layers.py": MRO, "bases.py": BASES},
         {"layers.py": MRO, "bases.py": BASES.replace("B(A): pass", "B(A):\n    def run(self): return 2")},
         "bases.py:3 differs"),
        ({"layers.py": DECORATED, "wraps.py": "def fast(f):\n    return f\n"},
         {"layers.py": DECORATED, "wraps.py": "def fast(f):\n    return lambda x: f(f(x))\n"}, "wraps.py:1 differs"),
        ({"layers.py": LAZY, "slow.py": "attend = float\n"}, {"layers.py": LAZY, "slow.py": "attend = int\n"},
         "slow.py:1 differs"),
        ({"layers.py": EITHER}, {"layers.py": EITHER, "fast.py": "attend = int\n"},
         "fast.py is imported on one side alone"),
        ({"layers.py": BRANCH, "rare.py": "slow = float\n"}, {"layers.py": BRANCH, "rare.py": "slow = int\n"},
         "rare.py:1 differs"),
        ({"layers.py": BRANCH}, {"layers.py": BRANCH, "rare.py": "slow = int\n"}, "rare.py, which can be imported"),
        ({"layers.py": LITERAL, "rare/__init__.py": "from deep import slow\n", "deep.py": "slow = float\n"},
         {"layers.py": LITERAL, "rare/__init__.py": "from deep import slow\n", "deep.py": "slow = int\n"},
         "uses importlib.import_module"),
        ({"layers.py": LITERAL, "rare/__init__.py": "slow = float\n"},
         {"layers.py": LITERAL, "rare/__init__.py": "slow = int\n"}, "rare/__init__.py, which the code"),
        ({"layers.py": BRANCH}, {"layers.py": BRANCH, "rare/notes": "a package without a file"}, "rare/notes, which"),
        ({"layers.py": REGISTRY, "registry.py": "TABLE = []\n", "one.py": "import registry\nregistry.TABLE += [int]\n",
          "two.py": "import registry\nregistry.TABLE += [float]\n"},
         {"layers.py": REGISTRY.replace("one, two", "two, one"), "registry.py": "TABLE = []\n",
          "one.py": "import registry\nregistry.TABLE += [int]\n",
          "two.py": "import registry\nregistry.TABLE += [float]\n"}, "imported in another order"),
        ({"layers.py": "attend = float\nassert True\n"}, {"layers.py": "attend = float\nassert 1\n"}, "layers.py:2"),
        ({"layers.py": "attend = list({3, 1}).count\n"}, {"layers.py": "attend = list({1, 3}).count\n"},
         "layers.py:1 differs"),
        ({"layers/__init__.py": LAYERS, "layers.py": LAYERS}, {}, "layers"),
        ({}, {"sitecustomize.py": "import math\nmath.pi = 3\n", "program.py": f"import sitecustomize\n{PROGRAM}"},
         "sitecustomize.py is imported on one side alone"),
        # Nothing of these is followed, whatever else differs.
        ({"layers.py": "attend = float\nexec('1')\n"}, {"layers.py": "attend = float\nexec('1')\n", "a.txt": ""},
         "layers.py:2 uses exec, which is not followed, and a.txt differs"),
        ({"layers.py": "import subprocess\nattend = float\n"},
         {"layers.py": "import subprocess\nattend = float\n", "a.txt": ""}, "uses subprocess, which is not followed"),
        ({"layers.py": "attend = float\nattend.__doc__\n"},
         {"layers.py": "attend = float\n# new\nattend.__doc__\n"}, "uses __doc__, which may see how it is written"),
        ({"layers.py": "attend = float\nname = f'weights.{1}.bin'\n"},
         {"layers.py": "attend = float\nname = f'weights.{1}.bin'\n", "data/weights.1.bin": "new"}, "names, differs"),
        ({"layers.py": "import json\nattend = float\njson.load(open('list.json'))\n", "list.json": '["plugin"]'},
         {"layers.py": "import json\nattend = float\njson.load(open('list.json'))\n", "list.json": '["plugin"]',
          "plugin.py": "1"}, "plugin.py, which the code or an option names, differs"),
        ({"layers.py": FROM_A, "a/pkg/__init__.py": "", "a/pkg/m.py": "def go():\n    from .n import f\n",
          "b/pkg/n.py": "f = float\n"},
         {"layers.py": FROM_A, "a/pkg/__init__.py": "", "a/pkg/m.py": "def go():\n    from .n import f\n",
          "b/pkg/n.py": "f = int\n"}, "b/pkg/n.py:1 differs"),
        ({"data.bin": "1"}, {"data.bin": "2"}, "data.bin, which may be read, differs"),
        ({}, {"_strptime.py": "1"}, "_strptime.py, which may be read, differs"),
        ({"layers.py": REOPENED, "a.json": "1"}, {"layers.py": REOPENED, "a.json": "1", "README.md": "new"},
         "layers.py:3 uses open in another way"),
        ({"layers.py": QUOTED}, {"layers.py": f"# longer\n{QUOTED}"}, "uses an exception that is caught"),
        ({"layers.py": HANDED, "tools.py": "import torch as t\n"},
         {"layers.py": HANDED, "tools.py": "import torch as t\n", "README.md": "new"}, "uses t of another file"),
        ({"layers.py": DOCUMENTED}, {"layers.py": DOCUMENTED.replace("Attend", "Look")}, "uses __doc__"),
        ({"layers.py": MEASURED}, {"layers.py": f"{MEASURED}# the size changes\n"}, "uses os.stat"),
        ({"layers.py": MEASURED.replace("os.stat", "os.path.getmtime")},
         {"layers.py": MEASURED.replace("os.stat", "os.path.getmtime"), "a.txt": ""}, "uses os.path.getmtime"),
        ({"layers.py": OWN}, {"layers.py": f"# longer\n{OWN}"}, "layers.py, which the code or an option names"),
        ({"layers.py": BYTES}, {"layers.py": BYTES, "README.md": "longer"}, "README.md, which the code"),
        ({**PATHS, "tools/slow.py": "K = 1\n"}, {**PATHS, "tools/slow.py": "K = 2\n"}, "uses __path__"),
        ({"layers.py": STARTED, "kit/__init__.py": "", "kit/turtle.py": ""},
         {"layers.py": STARTED, "kit/__init__.py": "", "kit/turtle.py": "", "README.md": "new"},
         "layers.py:3 uses turtle"),
        ({}, {".benchmarks/size.json": "1"}, ".benchmarks/size.json, which may be read"),
        ({**STAR, "package/kernel.py": "1\n"}, {**STAR, "package/kernel.py": "2 + 2\n"}, "package/kernel.py:1 differs"),
        ({"layers.py": CACHE, "tests/cache/a": "1"}, {"layers.py": CACHE, "tests/cache/a": "2"}, "tests/cache/a, "),
        ({**LATE_IMPORT, "late.py": "''\nfrom __future__ import annotations\n"},
         {**LATE_IMPORT, "late.py": "''\n''\nfrom __future__ import annotations\n"}, "cannot be read"),
        ({"layers.py": COMPILED}, {"layers.py": COMPILED.replace("y", "z")}, "layers.py:1 differs"),
        ({"layers.py": FOUND}, {"layers.py": FOUND, "rare/notes.md": "1"}, "rare/notes.md, which the code"),
        ({"layers.py": OPENED}, {"layers.py": OPENED, "rare/notes.md": "1"}, "rare/notes.md, which the code"),
        ({"layers.py": OPENED.replace("rare", "rare-1/a.json")},
         {"layers.py": OPENED.replace("rare", "rare-1/a.json"), "rare-1/notes.md": "1"},
         "rare-1/notes.md, which the code"),
        ({"layers.py": SPELT}, {"layers.py": f"{SPELT}# new\n"}, "uses getcwdb"),
        ({"kit/__init__.py": "", "kit/late.pyc": "1"}, {"kit/__init__.py": "", "kit/late.pyc": "1", "README.md": "new"},
         "kit/late.pyc is compiled, and can be imported"),
        ({**LATE_STAR}, {**LATE_STAR, "parts/deep/notes.md": "1"}, "parts/deep/notes.md, which the code"),
        ({"layers.py": BLANK}, {"layers.py": BLANK.replace("one", "")}, "layers.py:7 differs"),
        ({"notes\udce9": "1"}, {"notes\udce9": "2"}, "whose name is no text"),
        ({"conftest.py": "1\n", "layers.py": "import conftest\nattend = float\n"},
         {"conftest.py": "'PYTEST_DONT_REWRITE'\n1\n", "layers.py": "import conftest\nattend = float\n"},
         "conftest.py tells pytest"),
        ({"layers.py": OTHERS, "tools.py": "Base = map\n"},
         {"layers.py": OTHERS, "tools.py": "Base = map\n", "a.txt": ""}, "layers.py:2 uses a class of an unknown kind"),
        ({**LATE_STAR, "parts/sub/kernel.py": "1 + 1"}, {**LATE_STAR, "parts/sub/kernel.py": "2 + 2"},
         "parts/sub/kernel.py:1 differs"),
        (EINOPS, {**EINOPS, "README.md": "new"}, "einops.py has the name of a package"),
        ({**PLUGIN, "deep.py": "1"}, {**PLUGIN, "deep.py": "2"}, "entry_points.txt says what to import"),
        (FAILS, {**FAILS, "parts/fast.py": FAILS["parts/fast.py"].replace("One", "One and more")},
         "parts/fast.py may be imported again and again, and differs"),
        (LATER, {**LATER, "parts/fast.py": f"# more\n{LATER['parts/fast.py']}"},
         "parts/fast.py may be imported again and again, and differs"),
        (EARLY, {**EARLY, "parts/fast.py": f"# more\n{EARLY['parts/fast.py']}"},
         "parts/fast.py may be imported again and again, and differs"),
        ({"layers.py": PARTS}, {"layers.py": f"{PARTS}# new\n"}, "a part of a module is called __deepcopy__"),
        ({"layers.py": CHILDREN}, {"layers.py": f"{CHILDREN}# new\n"}, "a part of a module is called __deepcopy__"),
        ({"layers.py": COPY["layers.py"], **COPY}, {**COPY, "other.py": f"{COMPILED}# new\n"},
         "other.py is the same file as layers.py on one side alone"),
        ({"layers.py": TWICE}, {"layers.py": TWICE.replace("x(); x()", "x()\n    x()")}, "layers.py:6 differs"),
        ({"layers.py": "attend = list({float, int})[0]\n"}, {"layers.py": "attend = list({float, int})[0]  # new\n"},
         "uses an order by addresses"),
        ({"layers.py": MANAGED, "managed.py": MANAGER},
         {"layers.py": MANAGED.replace("    yield", "    'Open.'\n    yield"), "managed.py": MANAGER},
         "layers.py:4 differs"),
        (ARCHIVED, {**ARCHIVED, "README.md": "new"}, "packed.zip/packed.py is in an archive, which is not followed"),
        ({"layers.py": COMPILER, "cache/ab/cd.py": "1"}, {"layers.py": COMPILER, "cache/ab/cd.py": "2"},
         "cache/ab/cd.py, which the code or an option names"),
    ],
    ids=[
        "monkeypatch in another module", "default in a config file", "environment variable read at import",
        "environment written at import", "override by MRO", "decorator of another file", "__getattr__ module",
        "conditional import", "lazy import", "lazy import of a new file",
        "what a module of a literal name imports", "a package of a literal name",
        "lazy import of a new folder", "registry filled by import order",
        "assertion, under -O too", "order of a set", "a package in place of a module", "sitecustomize",
        "code from a string", "a program started", "source that is read", "data of a built name",
        "a module that data names", "a package of two folders", "data",
        "a module of the standard library's name", "the class of an open file", "an error that quotes lines",
        "a package that another file hands on", "documentation by getattr",
        "size of its own file", "date of its own file", "its own source by name", "a name in bytes",
        "another path of a package", "a library of the name of a module", "data among records",
        "a star that imports modules", "a folder of tests that is named",
        "a string before the future", "a local that the compiler sees",
        "a folder that is looked for", "a folder that is opened", "a folder of a longer name",
        "a name that is spelt otherwise", "byte code without source",
        "a folder that a star imports",
        "documentation of a dataclass that becomes empty",
        "a name that is no text", "assertions that pytest does not rewrite", "a class of another file",
        "a star that imports a module of a module", "a file of a package's name",
        "a module that an entry point names",
        "an import that fails at each step", "an import that was not seen",
        "an import that fakes alone have seen",
        "a module's part of a computed name",
        "an item of a computed name", "a file twice", "warnings on one line", "order of a set of classes",
        "documentation of a context manager", "a module in an archive",
        "a module in a folder that is named",
    ],
)  # fmt: skip
def test_a_change_that_may_reach_the_program_is_never_the_same(
    base: Files, head: Files, said: str, tmp_path: Path
) -> None:
    why = two(tmp_path, base, head)
    assert why is not None
    assert said in why


def test_an_installed_package_that_shares_its_name_with_a_folder_of_the_tree_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = write(tmp_path / "installed", {"shared/reader.py": "read = float\n"})
    monkeypatch.setattr("sys.path", [*sys.path, str(installed)])
    files = {"layers.py": "import shared.own\nfrom shared.reader import read as attend\n", "shared/own.py": "1\n"}
    assert two(tmp_path, files, {**files, "README.md": "new"}) == (
        "layers.py:2 uses shared, which is not followed, and README.md differs"
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def attend(x):\n    return x\ndef load():\n    from later import weights\n", "layers.py:4 uses later"),
        ("def attend(x):\n    return getattr(x, 'scan', x)\n", "layers.py:2 uses scan"),
        (
            "def attend(x):\n    for i in 1, 2:\n        getattr(x, f'part{i}', 0)\n",
            "layers.py:3 uses getattr by an unknown",
        ),
    ],
    ids=["a package that nobody loaded", "a name that packages have", "a part by a number"],
)
def test_what_may_see_source_keeps_nothing_measured_where_only_files_that_nobody_reads_differ(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = write(tmp_path / "installed", {"fancy/__init__.py": "scan = float\n"})
    monkeypatch.setattr("sys.path", [*sys.path, str(installed)])
    importlib.import_module("fancy")
    base = {"layers.py": code}
    assert two(tmp_path / "1", base, {**base, "README.md": "new", "tests/test_it.py": "2", "of_nobody.py": "1"}) is None
    why = two(tmp_path / "2", base, {"layers.py": f"{code}# new\n"})
    assert why is not None
    assert why.startswith(said)
    assert why.endswith(", which may see how it is written, and layers.py differs")
    why = two(tmp_path / "3", {**base, "a.txt": "1"}, {**base, "a.txt": "2"})
    assert why == "a.txt, which may be read, differs"


def test_a_package_that_is_not_listed_may_read_whatever_is_there_once_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a name of its own, and perhaps on real tensors alone."""
    installed = write(tmp_path / "installed", {"of_kernels.py": "attend = float\n"})
    monkeypatch.setattr("sys.path", [*sys.path, str(installed)])
    base = {"layers.py": "from of_kernels import attend\n"}
    why = two(tmp_path, base, {**base, "README.md": "new"})
    assert why is not None
    assert why.startswith("layers.py:")
    assert why.endswith(", which is not followed, and README.md differs")


@pytest.mark.parametrize(
    ("module", "is_seen"), [("sizes import ModelConfig", False), ("attention import softmax", True)]
)
def test_of_the_suites_model_a_factory_elsewhere_has_the_sizes_alone_unseen(
    module: str, is_seen: bool, tmp_path: Path
) -> None:
    base = {"layers.py": f"from model.{module}\n\n\ndef attend(x):\n    return x\n"}
    assert two(tmp_path / "1", base, {**base, "README.md": "new"}) is None
    why = two(tmp_path / "2", base, {"layers.py": f"{base['layers.py']}# new\n"})
    seen = "layers.py:1 uses model, which may see how it is written, and layers.py differs"
    assert why == (seen if is_seen else None)


def test_a_tracer_sees_where_lines_end(tmp_path: Path) -> None:
    observer, before = Observer(tmp_path), sys.gettrace()
    try:
        sys.settrace(lambda *_: None)
        found = observer.finished()
    finally:
        sys.settrace(before)
    assert found["beyond"] == ["a tracer, as of coverage, sees lines"]


def test_a_file_that_one_side_alone_opens_shows_that_they_differ(tmp_path: Path) -> None:
    code = "import os\nopen('a' if os.path.basename(os.getcwd()) == 'base' else 'b').close()\nattend = float\n"
    files = {"layers.py": code, "a": "1", "b": "1"}
    assert two(tmp_path / "1", files, {**files, "README.md": "new"}) == "a is opened on one side alone"
    base, head = (
        Tree(write(tmp_path / side, {"README.md": side}), Seen((), frozenset({f"a.pyc.{side}"}), (), {}, {}))
        for side in "cd"
    )
    assert why_not_the_same(base, head) is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import subprocess\nsubprocess.run(['true'])\n", "layers.py:2 starts another program"),
        ("import os\nos.listdir('.')\n", "layers.py:2 asks which files there are"),
        ("import os\nos.system('true')\n", "layers.py:2 starts another program"),
    ],
)
def test_what_a_program_was_seen_to_do_beyond_its_files_is_told_with_its_line(
    code: str, said: str, tmp_path: Path
) -> None:
    files = {"layers.py": f"{code}attend = float\n"}
    assert two(tmp_path, files, {**files, "README.md": "new"}) == said


PACKAGE = """
def late():
    try: import os, \\
        fancy.parts
    except ImportError: pass
    found = import_module('quoted'), "dotted.part"
    from plain import of_its_own
"""


@pytest.mark.parametrize(
    ("name", "is_imported"),
    [
        ("fancy.py", True), ("fancy/new.py", True), ("fancy/notes.md", True), ("src/fancy/new.py", True),
        ("quoted.py", True), ("dotted/new.py", True), ("plain/new.py", True), ("src/_strptime.py", True),
        ("parts.py", False), ("of_its_own/new.py", False), ("fancier.py", False), ("docs/fancy.py", False),
        ("lib/fancy.py", False), ("known/new.py", False), ("README.md", False), ("train.py", False),
    ],
)  # fmt: skip
def test_a_module_that_an_installed_package_may_import_once_it_needs_it_is_never_the_same(
    name: str, is_imported: bool, tmp_path: Path
) -> None:
    far = f"{'#' * 1001}\nMODES = 'train', 'eval'\n"
    write(tmp_path, {"elsewhere/library/__init__.py": f"{PACKAGE}    'known'\n{far}"})
    packages = write(tmp_path / "packages", {"of_nobody.py/notes": "a folder"})
    (packages / "linked").symlink_to(tmp_path / "elsewhere")
    (packages / "lock.py").symlink_to("nowhere")
    base, head = (write(tmp_path / side, {"known/__init__.py": "", "src/a.md": ""}) for side in ("base", "head"))
    write(head, {name: "1"})
    seen = Seen(("known/__init__.py",), frozenset(), (), {}, {}, (".", "src", str(tmp_path / "packages")), ("known",))
    expected = f"{name}, which may be read, differs" if is_imported else None
    assert why_not_the_same(Tree(base, seen), Tree(head, seen)) == expected


def test_torch_is_known_to_import_optional_packages_while_it_compiles() -> None:
    folder = Path(str(torch.__file__)).parent / "_dynamo"
    for name, is_imported in (("einops", True), ("numpy", True), ("a_name_of_nobody", False)):
        asked = frozenset({name, "another_of_nobody"})
        assert imported_by_packages(asked, frozenset(), frozenset({str(folder)})) == (name if is_imported else None)


@pytest.mark.parametrize("is_loaded_by_the_suite", [True, False])
def test_a_module_whose_code_ran_twice_may_run_again(
    is_loaded_by_the_suite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under two names, of which one may fail at each step; of a file of the user's the suite makes several."""
    monkeypatch.setattr("sys.path", [*sys.path])
    path = write(tmp_path, {"a.py": "class A: pass\n"}) / "a.py"
    observer = Observer(tmp_path)
    for name in ("first", "second"):
        if is_loaded_by_the_suite:
            load(f"{path}:A", name)
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(sys.modules[name])
    found = observer.finished()
    assert (found["ran"], found["loaded"]) == (["a.py"], ["a.py"] * is_loaded_by_the_suite)


def test_a_folder_of_pythons_path_on_one_side_alone_is_never_the_same(tmp_path: Path) -> None:
    base, head = write(tmp_path / "base", {"a.py": "1"}), write(tmp_path / "head", {"a.py": "1", "tests/b.md": "1"})
    sides = [Tree(tree, Seen((), frozenset(), (), {}, {}, (".", "tests"))) for tree in (base, head)]
    said = "tests, a folder of Python's path, is there on one side alone"
    assert why_not_the_same(sides[0], sides[1]) == said


def test_the_path_of_a_worker_is_told_as_its_tree_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    observer = Observer(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "src"), str(ROOT), "/usr/lib/python3"])
    assert observer.finished()["paths"] == [".", "src", "/usr/lib/python3"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("requirements.txt", "dependencies changed, not measured here: requirements.txt"),
        ("requirements/dev.txt", "dependencies changed"), ("sub/pyproject.toml", "dependencies changed"),
        ("uv.lock", "dependencies changed"), ("constraints.txt", "dependencies changed"),
        ("setup.py", "dependencies changed"), ("environment.yml", "dependencies changed"),
        ("kernels/attend.cu", "is compiled, linked"), ("a.cpp", "is compiled"), ("_fast.so", "is compiled"),
        ("paths.pth", "run at the start"), ("einops.pyc", "is compiled"), (".gitmodules", ".gitmodules differs"),
    ],
)  # fmt: skip
def test_dependencies_and_compiled_sources_are_never_shown_to_change_nothing(
    name: str, said: str, tmp_path: Path
) -> None:
    assert said in str(two(tmp_path, {name: "a"}, {name: "b"}))


def test_links_and_pointers_to_large_files_are_never_shown_to_change_nothing(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    assert "is kept by git LFS" in str(two(tmp_path, {"w.bin": pointer + b"1"}, {"w.bin": pointer + b"2"}))
    (tmp_path / "base/w.bin").unlink()
    (tmp_path / "head/w.bin").unlink()
    (tmp_path / "head/linked").symlink_to("/etc")
    assert differing(tmp_path / "base", tmp_path / "head") == ["linked"]
    assert decided(tmp_path / "base", tmp_path / "head") == "linked is a symbolic link, and differs"


def test_trees_differ_in_content_modes_and_names_but_not_in_byte_code_and_records(tmp_path: Path) -> None:
    records = (".benchmarks/x/y", f".benchmarks/{FILE_NAME}")
    base, head = (
        write(tmp_path / side, {"a": "1", "b/c": "1", **dict.fromkeys(records, side)}) for side in ("base", "head")
    )
    write(head, {"__pycache__/a.pyc": "", "b/new": ""})
    os.chmod(head / "a", 0o755)
    assert differing(base, head) == ["a", "b/new"]
    sides = [Tree(tree, Seen((), frozenset(), (), {}, {})) for tree in (base, head)]
    assert why_not_the_same(sides[0], sides[1]) == "a may be run as a program on one side alone"


# The suite's own model: 200 mutants of it are tried by tests/nightly.


def test_mutants_of_the_model_are_never_the_same(tmp_path: Path) -> None:
    for name, text in mutants_of_the_model(60):
        assert decided_on_the_model(tmp_path, name, text) is not None, text
    not_loaded = "model/parallel.py"
    assert decided_on_the_model(tmp_path, not_loaded, f"{MODEL[not_loaded]}SHARE = 2\n") is None


def commented(text: str) -> str:
    """A comment after every line that ends a statement, with none in strings."""
    return re.sub(r"(?m)^(import .*|class .*:|    return [^\"'(\[{]*)$", r"\1  # new", text)


def test_edits_of_comments_documentation_and_layout_of_the_model_are_the_same(tmp_path: Path) -> None:
    edits: dict[str, Callable[[str], str]] = {
        "comment": commented,
        "documentation": lambda text: re.sub(r'(?m)^( *)"""(\w)', r'\1"""New \2', text),
        "layout": lambda text: text.replace("\n\n\n", "\n\n\n\n").replace(" = ", "  =  "),
    }
    tried = 0
    for kind, edit in edits.items():
        for name, text in MODEL.items():
            if name != "model/parallel.py" and edit(text) != text:
                tried += 1
                assert decided_on_the_model(tmp_path, name, edit(text), keeps_locals=True) is None, (kind, name)
    for name in ("README.md", "docs/new.md", "tests/rules/test_new.py", "examples/new.py", "LICENSE", ".gitignore",
                 "docs/usage.rst", "docs/picture.svg", ".github/workflows/new.yml"):  # fmt: skip
        tried += 1
        assert decided_on_the_model(tmp_path, name, "new\n") is None, name
    assert tried >= 35


PROVEN = (
    ("attention", "shifted", "moved"), ("attention", "exponentials", "powers"), ("attention", "position_T", "place_T"),
    ("attention", "mask_TT", "visible_TT"),
    ("training", "learning_rates", "rates"), ("training", "shifted_BTV", "moved_BTV"),
    ("transformer", "inverse_rms_BT1", "scale_BT1"),
    ("device", "visible", "seen"),
    ("compilation", "import os\nimport shutil\nimport sys\n", "import sys\nimport shutil\nimport os\n"),
    ("attention", "import math\nfrom collections.abc import Callable\n",
     "from collections.abc import Callable\nimport math\n"),
    ("training", "from torch import Tensor, nn", "from torch import nn, Tensor"),
)  # fmt: skip
NOT_PROVEN = (
    ("attention", "weights_BHTT", "shares_BHTT"), ("transformer", "attended_BTD", "seen_BTD"),
    ("attention", "shifted = x", "shifted: Tensor = x"), ("attention", "position_T = ", "position_T: Tensor = "),
    ("training", "learning_rates = ", "learning_rates: list[float] = "), ("precision", "names = (", "names: tuple = ("),
    ("attention", "def softmax(x: Tensor)", "def softmax(x)"), ("training", "-> Tensor:", ":"),
    ("training", "logits_BTV: Tensor", "logits_BTV: object"), ("sizes", "d_model: int", "d_model: object"),
    ("attention", "def causal_mask", "def unused() -> int:\n    return 1\n\n\ndef causal_mask"),
    ("training", "class Training", "def unused() -> int:\n    return 1\n\n\nclass Training"),
    ("attention", "from model.compilation import compiled, why_cannot_compile\nfrom model.regions import region\n",
     "from model.regions import region\nfrom model.compilation import compiled, why_cannot_compile\n"),
    ("regions", "def region", "def unused() -> int:\n    return 1\n\n\ndef region"),
)  # fmt: skip
"""Locals that a context might leave unbound, annotations, functions that nobody calls, the order of imports of a tree's
own modules."""


def test_of_25_harmless_edits_of_code_11_are_shown_to_be() -> None:
    assert (len(PROVEN), len(PROVEN) + len(NOT_PROVEN)) == (11, 25)
    for edits, is_proven in ((PROVEN, True), (NOT_PROVEN, False)):
        for file, old, new in edits:
            name = f"model/{file}.py"
            edited = re.sub(rf"(?<![\w.\"]){re.escape(old)}", new.replace("\\", "\\\\"), MODEL[name])
            assert edited != MODEL[name], (file, old)
            line = Source(name, edited.encode()).line_of_difference(Source(name, MODEL[name].encode()))
            assert (line is None) == is_proven, (file, old, line)


def test_the_suite_imports_late_only_that_part_of_the_model_which_no_case_on_one_device_runs() -> None:
    """What is imported within a function may come after the cases were played."""
    late = {
        found
        for path in (ROOT / "perf_tests").rglob("*.py")
        if "report" not in path.parts
        for found in re.findall(r"^ +from (model\.\w+) import", path.read_text(), re.MULTILINE)
    }
    assert late == {"model.parallel"}


def test_a_worker_that_saw_other_modules_than_the_other_is_believed(tmp_path: Path) -> None:
    base, head = (write(tmp_path / side, {**ALWAYS, "README.md": side}) for side in ("base", "head"))
    sides = [Tree(tree, Seen((*ran,), frozenset(), (), {}, {})) for tree, ran in ((base, ("layers.py",)), (head, ()))]
    assert why_not_the_same(sides[0], sides[1]) == "layers.py is imported on one side alone"


def test_a_tree_with_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    for side, width in (("base", 1), ("head", 2)):
        tree = write(tmp_path / side, {**ALWAYS, "vendor/fast.py": f"WIDTH = {width}\n"})
        (tree / "lib").symlink_to("vendor")
    assert "lib is a symbolic link" in str(decided(tmp_path / "base", tmp_path / "head"))
