"""No two classes share a name, so that each says what it holds."""

import ast
from collections import defaultdict

from tests.house.test_rooms import MODULES


def test_no_two_public_classes_share_a_name() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].append(module)
    assert {name: modules for name, modules in named.items() if len(modules) > 1} == {}
