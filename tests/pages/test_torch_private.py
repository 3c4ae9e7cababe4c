"""Private parts of torch are named in one file, and one in the numerics suite: all to check against a new release."""

import ast
import re
from pathlib import Path

import pytest
import torch

from perf_tests_suite.perf_tests.hardware import torch_private
from perf_tests_suite.perf_tests.hardware.torch_private import (
    FakeTensorMode,
    compiler_counters,
    is_fake,
    profiler_is_active,
)
from tests.support.documents import ROOT

THE_ONE_FILE = ROOT / "perf_tests" / "hardware" / "torch_private.py"
OF_NUMERICS = ROOT / "numerics_tests" / "harness" / "checks.py"
"""The numerics suite imports nothing of `hardware`."""
PRIVATE = re.compile(r"torch(\.\w+)*\._(?!_)\w+(\.\w+)*")


def private_parts(source: str) -> list[str]:
    """Find the private parts of torch that a file imports, names, asks for by getattr or imports by a string."""
    nodes, imported = list(ast.walk(ast.parse(source))), dict[str, str]()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            imported |= {alias.asname or alias.name: module + alias.name for alias in node.names}
    names = [*imported.values()]
    for node in nodes:
        match node:
            case ast.Attribute(attr=attribute) if attribute.startswith("_"):
                names.append(ast.unparse(node))
            case ast.Call(ast.Name("getattr" | "hasattr"), [owner, ast.Constant(str(text)), *_]):
                names.append(f"{ast.unparse(owner)}.{text}")
            case ast.Call(
                ast.Attribute(attr="import_module") | ast.Name("import_module"), [ast.Constant(str(text)), *_]
            ):
                names.append(text)
    split = (name.partition(".") for name in names)
    whole = (imported.get(first, first) + dot + rest for first, dot, rest in split)
    return [name for name in whole if PRIVATE.fullmatch(name)]


NAMING = (
    "import torch\nx = torch._C._get_tracing_state()",
    "import torch\nprint(getattr(torch.cuda.memory, '_snapshot', None))",
    "import torch._dynamo",
    "import torch._dynamo as dynamo",
    "from torch import _C",
    "from torch._inductor import config",
    "from torch.utils._python_dispatch import TorchDispatchMode",
    "from torch.utils import _python_dispatch as dispatch",
    "from torch import cuda\ncuda.memory._snapshot()",
    "import importlib\nimportlib.import_module('torch._dynamo')",
)
NOT_NAMING = (
    "import torch\ntorch.autograd.graph.__file__, torch.__version__",
    "import torch\nself._device = torch.device('cpu')",
    "from perf_tests_suite.perf_tests.hardware import torch_private\ntorch_private.operator('_to_copy')",
)


def test_only_one_file_names_private_parts_of_torch() -> None:
    assert [bool(private_parts(line)) for line in (*NAMING, *NOT_NAMING)] == [True] * 10 + [False] * 3
    folders = ("model", "perf_tests", "numerics_tests", "tests", "claims")
    files = {path for folder in folders for path in (ROOT / folder).rglob("*.py")} - {THE_ONE_FILE, OF_NUMERICS}
    assert len(files) > 200
    found = {str(path.relative_to(ROOT)): private_parts(path.read_text()) for path in files}
    assert {path: names for path, names in found.items() if names} == {}
    known = private_parts(THE_ONE_FILE.read_text())
    assert known
    assert set(private_parts(OF_NUMERICS.read_text())) <= set(known)


def test_a_tensor_without_content_is_known_whichever_language_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.ones(1)
    with FakeTensorMode():
        fake = torch.ones(1)
    assert [is_fake(each) for each in (real, fake, None)] == [False, True, False]
    monkeypatch.setattr(torch_private, "_is_fake_in_cpp", lambda tensor: tensor is real)
    assert is_fake(real)
    folders = ("perf_tests", "numerics_tests", "tests", "claims")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if path not in (THE_ONE_FILE, Path(__file__))
    ]
    assert [path.name for path in files if re.search(r"\bFakeTensor\b(?!Mode)", path.read_text())] == [
        "model.py"
    ]  # a message


def test_the_private_parts_say_what_they_are_taken_for() -> None:
    """A profiler is seen while it records; the compiler counts graphs once it is loaded."""
    assert not profiler_is_active()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert profiler_is_active()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    counters = compiler_counters()
    assert counters is not None
    assert counters["stats"]["unique_graphs"] > 0
