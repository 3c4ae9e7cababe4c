"""Pairs of trees and what code of theirs does when it is imported, and mutants of a source: edits of its behaviour."""

import ast
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from perf_tests_suite.perf_tests.interleaved.observer import Observation, Recorder
from perf_tests_suite.perf_tests.interleaved.same import ObservedTree, differing, why_not_the_same
from tests.support.launch import ROOT

MODEL = {f"model/{path.name}": path.read_text() for path in sorted((ROOT / "model").glob("*.py"))}
LOADED = tuple(name for name in MODEL if name not in ("model/parallel.py", "model/resident.py"))
"""What a run on one device imports of it."""


def write(tree: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tree


def import_and_step() -> None:
    getattr(__import__("program"), "step", lambda: None)()


def observed(tree: Path, run: Callable[[], object] = import_and_step, trusted: Sequence[Path] = ()) -> Observation:
    """What a process uses of the tree that runs this in it; it raises AssertionError where that raises."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        said = ""
        try:
            sys.path.insert(0, str(tree))
            os.chdir(tree)
            for name in [name for name in sys.modules if trusted and name.startswith("perf_tests")]:
                del sys.modules[name]  # of which the tree has one
            recorder = Recorder(tree, trusted)
            run()
            said = json.dumps(recorder.observation().as_json)
        except BaseException:
            said = traceback.format_exc()
        finally:
            with os.fdopen(writing, "w") as pipe:
                pipe.write(said)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        heard = pipe.read()
    os.waitpid(child, 0)
    assert heard.startswith("{"), heard
    return Observation.of(json.loads(heard))


def decided(base: Path, head: Path, run: Callable[[], object] = import_and_step) -> str | None:
    """Why two trees in which this runs are not the same; None where they are."""
    files = differing(base, head)
    sides = [ObservedTree(tree, observed(tree, run)) for tree in (base, head)]
    return why_not_the_same(sides[0], sides[1], files)


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
