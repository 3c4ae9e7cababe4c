"""Pairs of trees and what code of theirs does when it is imported, and mutants of a source: edits of its behaviour."""

import ast
import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from perf_tests.interleaved.same import Observer, Seen, Tree, why_not_the_same
from tests.support.launch import ROOT

MODEL = {f"model/{path.name}": path.read_text() for path in sorted((ROOT / "model").glob("*.py"))}
LOADED = tuple(name for name in MODEL if name != "model/parallel.py")
"""What a run on one device imports of it."""


READ_FILES = (
    "import shutil\nshutil.which('docs' + x, 0)", "import shutil\nfind = partial(shutil.which, mode=0)",
    "from shutil import which as find\nfind(x, 0)",
    "from torch.overrides import get_ignored_functions\nread = [*get_ignored_functions()][0]",
    "import torch\ntorch.backends.cudnn.__getattr__('sys').modules",
    "import numpy as np\nnp.__getattr__('test' + 'ing')",
    "def super(): return torch.backends.cudnn\nsuper().__getattr__('sys')", "self.known.__getattr__(x)",
    "import torch\ntorch.ops.aten.__getattr__('from_' + 'file')(x)", "f().__getattr__(x)",
    "super().known.__getattr__(x)",
    "import torch\ntorch.library.get_kernel('aten::from_' + 'file', 'CPU')", "torch.get_device_module('cuda')",
    "TEXT = 'open'\ndef f(x: TEXT): pass\ntorch.library.infer_schema(f, mutates_args=())",
    "@custom_op('a::f', mutates_args=())\ndef f(x: 'Call[open]'): pass",
    "TEXT = 'open'\n@custom_op('a::f', mutates_args=())\ndef f(x: TEXT): pass",
    "Tensor = 'open'\n@custom_op('a::f', mutates_args=())\ndef f(x: Tensor): pass",
    "from texts import Tensor\n@custom_op('a::f', mutates_args=())\ndef f(x: Tensor): pass",
    "custom_op('a::f', f, mutates_args=())",
    "from torch.library import custom_op as op\n@op('a::f')\ndef f(x: TEXT): pass",
    "import inspect\ninspect.Signature.from_callable(f, **{'eval_' + 'str': True})",
    "import inspect\npartial(inspect.signature, **{'eval_' + 'str': True})(f)",
    "import numpy as np\nnp.save('docs' + x, y)", "import torch\ntorch.save(x, y)", "y.tofile(x)",
    "import logging\nlogging.getLogger().handlers[0]._open()", "CUDAPluggableAllocator(x, 'f', 'g')",
    "HELD = cudnn.m\nHELD.torch.f(x)", "held.serialization.get_unsafe_globals_in_checkpoint(x)",
    "from shapes import Float\nisinstance(x, Float[Tensor, 'len(f())'])",
    "from jaxtyping import Float\nisinstance(x, Float[Tensor, TEXT])", "from jaxtyping import Float\nFloat[ARGUMENTS]",
)  # fmt: skip
"""Code that reads any file, or runs any text, by a function that others do with any name."""
READ_THEIR_SOURCE = (
    "import inspect\ninspect.signature(f)",  # of a class it is what the documentation says
    "from torch.autograd.function import FunctionMeta\nclass M(FunctionMeta): pass", "M = FunctionMeta",
    "ABCMeta('A', (), {'__ex' + 'it__': f})", "from abc import ABCMeta as M", "class A(SimpleNamespace): pass",
    "class A:\n    def __next__(self): return 0", "class A(itertools.count): pass",
    "class A(map): pass",
    "self.throw = f", "A(throw=f)", "setattr(self, 'throw', f)",
    "class A:\n    def __reduce_ex__(self, protocol): return f, (), (None, {x: g})", "parser.parse_args([], A)",
    "@wraps(f, assigned=('__ex' + 'it__',))\nclass A: pass", "@partial(wraps, assigned=x)(f)\nclass A: pass",
    "Make = Enum\nMake('A', x)", "class Base(Enum):\n    def f(self): pass", "class Base(Enum):\n    _ignore_ = 'a'",
    "from enum import Enum as E\nE('A', x)",
    "fields(A)[0].name = x\nastuple(A())", "from dataclasses import field\nWIDTH = field(default=1)\nWIDTH.name = x",
    "from dataclasses import field\nclass A:\n    b: int = field(default=1)\nA.b.name = x",
    "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    b: int = field(default=1)\n    f(b)",
    "from itertools import count as C", "class A(io.StringIO): pass", "class A(reversed): pass", "A.late.attrname = x",
    "from dataclasses import field as f", "class A(nn.ParameterDict): pass", "nn.ParameterDict.__getitem__(A, x)",
    "class A(lazy_property): pass", "class A(np.vectorize): pass", "class A(abc.abstractproperty): pass",
    "class A:\n    def __setattr__(self, name, value): f(value)",
    "class A:\n    def __setstate__(self, state): f(state)",
    "from functools import update_wrapper as note", "from torch.optim.lr_scheduler import LambdaLR",
    "torch.optim.lr_scheduler.LRScheduler.state_dict(A)", "from torch.nn.utils import prune",
    "partial(warnings.catch_warnings, **{'rec' + 'ord': True})",
    "choose = warnings.simplefilter\nchoose('error', A, 9)",
    "from warnings import simplefilter as choose", "warnings.filterwarnings('ignore', **{'line' + 'no': 9})",
    "from warnings import simplefilter as choose\nchoose('error', A, 9)", "warnings.catch_warnings(**x)",
    "partial(torch.compile, backend=f)", "build = torch.compile\nbuild(g, backend=f)",
)  # fmt: skip
"""Code that reads its documentation or lines by what copies attributes, makes classes or handles exceptions."""
FOLLOWED_CODE = (
    "import shutil\nshutil.which('ninja')", "class A(B):\n    def f(self, x): return super().__getattr__(x)",
    "from torch import Tensor\n@custom_op('a::f', mutates_args=())\ndef f(x: Tensor, n: int) -> list[Tensor]: pass",
    "@functools.wraps(f)\ndef g(): pass", "class A(Enum):\n    B = 'b'", "class A(enum.Flag):\n    B = enum.auto()",
    "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    b: list[int] = field(default_factory=list)",
    "@torch.compile\ndef f(): pass", "@torch.compile(dynamic=False)\ndef f(): pass", "def f(x: Namespace): pass",
    "from abc import ABC, ABCMeta\nclass A(metaclass=ABCMeta): pass",
    "import warnings\nwarnings.simplefilter('ignore')",
    "with warnings.catch_warnings():\n    f()", "a = nn.ParameterDict({})", "a = SimpleNamespace(b=1)",
    "from jaxtyping import Float\ndef f(x: Float[Tensor, '... a b+1']): pass", "x.numpy()",
    "self.classes = 10", "x[()]",
)  # fmt: skip
"""Code near to these that neither reads a file nor its own source."""


def write(tree: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tree


def seen_importing(tree: Path, module: str = "program") -> Seen:
    """What a process uses of the tree that imports this module and calls its `step`, if it has one."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            sys.path.insert(0, str(tree))
            sys.dont_write_bytecode = True
            os.chdir(tree)
            observer = Observer(tree)
            getattr(__import__(module), "step", lambda: None)()
            said = observer.finished()
            paths = [path for path in said["paths"] if not os.path.isabs(path)]  # to read all packages takes seconds
            os.write(writing, json.dumps({**said, "paths": paths, "digests": {}}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return Seen.of(json.loads(pipe.read()))


def decided(base: Path, head: Path, settings: str = "", keeps_locals: bool = False) -> str | None:
    """Why two trees whose `program.py` was imported are not the same; None where they are."""
    sides = [Tree(tree, seen_importing(tree)) for tree in (base, head)]
    return why_not_the_same(sides[0], sides[1], settings, keeps_locals)


def decided_on_the_model(tmp_path: Path, name: str, text: str, keeps_locals: bool = False) -> str | None:
    """The same of the suite's own model, one of whose files head has otherwise, without importing it."""
    seen = Seen(LOADED, frozenset(), (), {}, {}, modules=("model",))
    base, head = tmp_path / "base", tmp_path / "head"
    if not base.is_dir():
        write(base, MODEL)
    write(head, MODEL if not head.is_dir() else {})
    write(head, {name: text})
    try:
        return why_not_the_same(Tree(base, seen), Tree(head, seen), "", keeps_locals)
    finally:
        write(head, {name: MODEL[name]}) if name in MODEL else (head / name).unlink()


class _Mutation(ast.NodeTransformer):
    """One edit, at `place` among those it knows; it counts them where `place` is None."""

    def __init__(self, place: int | None, choose: random.Random) -> None:
        self.place, self.count, self.choose = place, 0, choose
        self.locals: list[str] = []

    def _is_here(self) -> bool:
        self.count += 1
        return self.count - 1 == self.place

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outside, self.locals = self.locals, sorted({
            each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        })  # fmt: skip
        if node.args.defaults and self._is_here():
            node.args.defaults[-1] = ast.Constant(17)
        if node.decorator_list and self._is_here():
            node.decorator_list = []
        self.generic_visit(node)
        statements = [each for each in node.body if not isinstance(each, ast.Expr | ast.Return)]
        if statements and len(node.body) > 1 and self._is_here():
            node.body.remove(self.choose.choice(statements))
        self.locals = outside
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        others = [name for name in self.locals if name != node.id]
        if isinstance(node.ctx, ast.Load) and node.id in self.locals and others and self._is_here():
            return ast.Name(self.choose.choice(others), ast.Load())
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool | int | float) and self._is_here():
            return ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self._is_here():
            node.op = ast.Add() if isinstance(node.op, ast.Mult | ast.Sub | ast.Div) else ast.Mult()
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self._is_here():
            node.ops[0] = ast.NotEq() if isinstance(node.ops[0], ast.Eq) else ast.Eq()
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if self._is_here():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if node.keywords and self._is_here():
            node.keywords.pop()
        elif len(node.args) > 1 and ast.dump(node.args[0]) != ast.dump(node.args[1]) and self._is_here():
            node.args[:2] = node.args[1::-1]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and self._is_here():
            node.attr += "_"
        return node


def mutants_of_the_model(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Names of files of `model/` that a run on one device imports, each with its text after one edit of behaviour."""
    choose = random.Random(seed)
    edits = []
    for name in LOADED:
        counting = _Mutation(None, choose)
        counting.visit(ast.parse(MODEL[name]))
        edits += [(name, place) for place in range(counting.count)]
    for name, place in choose.sample(edits, count):
        mutated = _Mutation(place, choose).visit(ast.parse(MODEL[name]))
        yield name, ast.unparse(mutated)
