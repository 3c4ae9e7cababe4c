"""Private parts of torch are named in one file, and one in the numerics suite: all to check against a new release."""

import ast
import re
from collections.abc import Iterator

import torch

from perf_tests.hardware.torch_private import compiler_counters, profiler_is_active
from tests.support.documents import ROOT

THE_ONE_FILE = ROOT / "perf_tests" / "hardware" / "torch_private.py"
OF_NUMERICS = ROOT / "numerics_tests" / "harness" / "checks.py"
"""The numerics suite imports nothing of `hardware`."""
PRIVATE = re.compile(r"torch(\.\w+)*\._(?!_)\w+(\.\w+)*")


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name in the file, what it stands for), of everything that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
                yield "", alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr, stands_for: dict[str, str]) -> str:
    """`torch.autograd.graph` for what an expression names; empty for one that is no chain of names."""
    if isinstance(node, ast.Name):
        return stands_for.get(node.id, "")
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, stands_for)}.{node.attr}"
    return ""


def private_parts(source: str) -> list[str]:
    """What private parts of torch a file imports, names, asks for by getattr or imports by a string."""
    tree = ast.parse(source)
    imported = list(imported_names(tree))
    stands_for = dict(imported)
    found = [name for _, name in imported]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.append(dotted(node, stands_for))
        elif isinstance(node, ast.Call):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            strings = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            if function == "import_module":
                found += [str(name) for name in strings]
            elif function in ("getattr", "hasattr"):
                found += [f"{dotted(node.args[0], stands_for)}.{name!s}" for name in strings]
    return [name for name in found if PRIVATE.fullmatch(name)]


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
    "from perf_tests.hardware import torch_private\ntorch_private.operator('_to_copy')",
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


def test_the_private_parts_say_what_they_are_taken_for() -> None:
    """A profiler is seen while it records; the compiler counts graphs once it is loaded."""
    assert not profiler_is_active()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert profiler_is_active()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    counters = compiler_counters()
    assert counters is not None
    assert counters["stats"]["unique_graphs"] > 0
