"""Plants faults into the tools, one at a time, and runs the test that owns each: `python -m tests.faults`.

A fault is an entry of a `ROOM.toml` beside this file:

    [[fault]]
    file = "perf_tests/gate/verdicts.py"
    within = "Verdicts.of_case"   # a function, a class or a name that is assigned
    old = "text that stands within it exactly once"
    new = "text that stands there instead"
    owner = "tests/rules/test_verdicts.py::test_the_rule"   # a node id or a file; may be missing where caught is false
    caught = true
    why = "where caught is false: what keeps the owner from seeing it"

Blanks, line breaks and a comma before a closing bracket do not count: an entry outlives a formatter, and what changes
elsewhere. Further lines of `new` are indented as far as the line in which `old` begins. Files that are no Python lack
`within`: `old` is a text of the whole file, letter by letter.

Faults stand in a copy of the tree, so that processes that the owner starts have them too and nothing here is written.
The copy has no history: an owner that asks git of this repository fails there without a fault, and is told so.
Exits with 1 where a fault marked as caught is not, or an entry is stale; with 2 for a wrong entry or option.
"""

import argparse
import ast
import contextlib
import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path

from tests.support.forked_python import forked_python

ROOT = Path(__file__).parents[2]
FOLDER = "tests/faults"

CPU_SECONDS = 20
"""An owner that needs more is too slow to be run for every fault; its own processes may take as much each."""

WALL_SECONDS = 180
"""Ends an owner that waits instead of computing; long enough for `CPU_SECONDS` on a machine with other work."""

NOT_COPIED = (".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis")
OUTPUTS = {"mutants", "wheels", "expedition"}
"""Folders of the root that `make` writes, which may be large; a package of such a name is copied."""

RUN_PYTEST = """
import resource, runpy, sys
limit, python = int(sys.argv.pop(1)), sys.argv.pop(1)
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
forked, sys.executable = sys.executable, python
try:
    import tests.support.forked_python as support
    support.forked_python = lambda: forked
except ImportError:
    pass
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
"""
"""Run in a fork. A stand-in takes `-m` and `-c` alone and starts no server of its own: owners get a whole Python as
`sys.executable`, and the stand-in where they ask for one."""

PR_SET_CHILD_SUBREAPER = 36
"""A number of linux/prctl.h: what an owner leaves running becomes a child of this process, whatever its group or
session."""

CAUGHT, SURVIVED, SLOW, BROKEN = "caught", "SURVIVED", "slow", "owner fails"
STALE, UNOWNED = "stale", "no owner"


@dataclass(frozen=True)
class Fault:
    """One entry. `name` is its room and its number there, as `gate:3`."""

    name: str
    file: str
    old: str
    new: str
    caught: bool
    owner: str = ""
    why: str = ""
    within: str = ""

    def planted(self, tree: Path) -> str:
        """The file's text with the fault. Raises ValueError with the reason where the entry is stale."""
        path = tree / self.file
        if not path.is_file():
            raise ValueError("there is no such file")
        text = path.read_text()
        if self.within:
            start, end = self.place_within(text)
            line = text[text.rfind("\n", 0, start) + 1 : start]
            indent = line[: len(line) - len(line.lstrip())]
            changed = text[:start] + self.new.strip().replace("\n", f"\n{indent}") + text[end:]
        elif text.count(self.old) != 1:
            raise ValueError(f"old stands there {text.count(self.old)} times")
        else:
            changed = text.replace(self.old, self.new)
        if path.suffix == ".py":
            try:
                compile(changed, self.file, "exec")
            except SyntaxError as error:
                raise ValueError(f"new makes line {error.lineno} no Python: {error.msg}") from error
        return changed

    def find_owner(self, tree: Path) -> None:
        """Raise ValueError where the test that owns the fault is not there any more."""
        file, _, test = self.owner.partition("::")
        text = (tree / file).read_text() if (tree / file).is_file() else ""
        if self.owner and f"def {test.partition('[')[0]}" not in text:
            raise ValueError(f"its owner {self.owner} is not there")

    def place_within(self, text: str) -> tuple[int, int]:
        """Return where `old` begins and ends. Raises ValueError where it does not stand there exactly once."""
        old, named = [word for word, _, _ in words_of(self.old)], definitions(text)
        if self.within not in named:
            raise ValueError(f"no function, class or assigned name there is called {self.within}")
        found = [place for begin, stop in named[self.within] for place in _places(words_of(text, begin, stop), old)]
        if len(found) != 1:
            raise ValueError(f"old stands {len(found)} times within {self.within}")
        return found[0]


Word = tuple[str, int, int]
"""A word or a sign of a text, and where it begins and ends."""


def words_of(text: str, start: int = 0, end: int | None = None) -> list[Word]:
    """Words and signs without blanks, and without a comma before a closing bracket, which a formatter adds."""
    found = [(one[0], *one.span()) for one in _WORD.finditer(text, start, len(text) if end is None else end)]
    followed = zip(found, [*found[1:], ("", 0, 0)], strict=True)
    return [word for word, (after, _, _) in followed if not (word[0] == "," and after in _CLOSING)]


_WORD = re.compile(r"\w+|[^\w\s]")
_CLOSING = (")", "]", "}")


def _places(words: Sequence[Word], old: Sequence[str]) -> Iterator[tuple[int, int]]:
    texts = [text for text, _, _ in words]
    for first in range(len(words) - len(old) + 1):
        if texts[first] == old[0] and texts[first : first + len(old)] == old:
            yield words[first][1], words[first + len(old) - 1][2]


@lru_cache(maxsize=64)
def definitions(text: str) -> dict[str, list[tuple[int, int]]]:
    """The ranges of each function and class of a Python file, and of each name that is assigned outside of functions.

    By its qualified name; one that is defined in two branches has two places.
    """
    lines = [0, *(match.end() for match in re.finditer("\n", text))]
    found = defaultdict[str, list[tuple[int, int]]](list)

    def place(line: int, column: int) -> int:
        start = lines[line - 1]
        return start + len(text[start:].partition("\n")[0].encode()[:column].decode())

    def visit(node: ast.AST, outer: str, is_inside: bool) -> None:
        if isinstance(node, _FUNCTION | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            named = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and not is_inside:
            first, targets = node.lineno, node.targets if isinstance(node, ast.Assign) else [node.target]
            named = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        else:
            first, named = 0, []
        for name in named:
            end = place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]  # of a statement
            found[f"{outer}{name}"].append((lines[first - 1], end))
        is_inside = is_inside or isinstance(node, _FUNCTION)
        inner = f"{outer}{named[0]}." if isinstance(node, _FUNCTION | ast.ClassDef) else outer
        for child in ast.iter_child_nodes(node):
            visit(child, inner, is_inside)

    visit(ast.parse(text), "", is_inside=False)
    return dict(found)


_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def read_faults(folder: Path) -> list[Fault]:
    """Every entry of the folder, rooms by name. Raises ValueError with one sentence for one that is wrong."""
    faults = []
    known = {each.name for each in fields(Fault)} - {"name"}
    for path in sorted(folder.glob("*.toml")):
        try:
            rooms = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path} is no TOML: {error}.") from error
        if rooms.keys() - {"fault"}:
            raise ValueError(f"{path} holds {', '.join(sorted(rooms))}; only [[fault]] is known.")
        for number, entry in enumerate(rooms.get("fault", []), 1):
            name, missing = f"{path.stem}:{number}", {"file", "old", "new", "caught"} - entry.keys()
            if entry.keys() - known or missing:
                raise ValueError(
                    f"{name} lacks {sorted(missing)} or has keys besides {sorted(known)}: {sorted(entry)}."
                )
            for key, value in entry.items():
                if not isinstance(value, bool if key == "caught" else str):
                    raise ValueError(f"{name}: {key} = {value!r} has the wrong type.")
            fault = Fault(name, **entry)
            if fault.old == fault.new or not fault.old:
                raise ValueError(f"{name}: old and new must be different texts, and old not empty.")
            if fault.file.endswith(".py") and not fault.within:
                raise ValueError(f"{name}: within names the function, class or name of {fault.file} that it changes.")
            if not (fault.owner if fault.caught else fault.why):
                raise ValueError(f"{name}: a caught fault names its owner, another one says why it is not caught.")
            faults.append(fault)
    return faults


def stale_among(faults: Iterable[Fault], tree: Path) -> Iterator[str]:
    """A sentence for each that does not apply to the tree, or whose owner is gone."""
    for fault in faults:
        try:
            fault.planted(tree)
            fault.find_owner(tree)
        except ValueError as error:
            yield f"{STALE:11} {fault.name:12} {fault.file}: {error}"


@dataclass
class Planter:
    """A copy of the tree, in which one fault at a time is planted. Closing it deletes the copy."""

    root: Path
    tree: Path = field(init=False)
    _clean: dict[str, bool] = field(default_factory=dict)
    """Answers by owner: whether it passes without a fault, once that was asked."""
    _plants: int = 0
    _kept: set[int] = field(default_factory=set)
    """Child processes that are not an owner's."""

    def __enter__(self) -> "Planter":
        self.tree = Path(tempfile.mkdtemp(prefix="faults-")) / "tree"
        ignored = shutil.ignore_patterns(*NOT_COPIED)

        def left_out(folder: str, names: list[str]) -> set[str]:
            return ignored(folder, names) | (OUTPUTS.intersection(names) if Path(folder) == self.root else set())

        shutil.copytree(self.root, self.tree, symlinks=True, ignore=left_out)
        forked_python()
        self._kept = _children()
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._end_orphans()
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
        shutil.rmtree(self.tree.parent)

    def verdict(self, fault: Fault) -> str:
        """What the owner makes of the fault, which is gone afterwards. Raises ValueError where the entry is stale."""
        changed = fault.planted(self.tree)
        if not fault.owner:
            return UNOWNED
        path = self.tree / fault.file
        original, when = path.read_bytes(), path.stat().st_mtime
        self._plants += 1
        try:
            path.write_text(changed)
            # Compiled files are told apart by size and whole seconds: each plant gets seconds of its own.
            os.utime(path, (when + self._plants, when + self._plants))
            ended = self._run(fault.owner)
        finally:
            path.write_bytes(original)
            os.utime(path, (when, when))
        if ended != CAUGHT:
            return ended
        if fault.owner not in self._clean:
            # Once more, because a busy machine ends some of what an owner starts.
            self._clean[fault.owner] = any(self._run(fault.owner) == SURVIVED for _ in range(2))
        return CAUGHT if self._clean[fault.owner] else BROKEN

    def _run(self, owner: str) -> str:
        """SURVIVED where all its tests pass; CAUGHT for anything else but SLOW, a test that cannot start included."""
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-seed=0"]
        process = subprocess.Popen(
            [forked_python(), "-c", RUN_PYTEST, str(CPU_SECONDS), sys.executable, *options, owner],
            cwd=self.tree,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            exit_code = process.wait(WALL_SECONDS)
        except subprocess.TimeoutExpired:
            exit_code = -signal.SIGXCPU
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._end_orphans()
        if exit_code in (-signal.SIGXCPU, -signal.SIGKILL):
            return SLOW
        return SURVIVED if exit_code == 0 else CAUGHT

    def _end_orphans(self) -> None:
        for process in _children() - self._kept:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


def _children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(process) for task in tasks for process in (task / "children").read_text().split()}


def chosen(faults: Sequence[Fault], options: argparse.Namespace) -> list[Fault]:
    """Those asked for. Raises ValueError where there is none of that name."""
    if options.only:
        faults = [fault for fault in faults if fault.name == options.only]
    if options.room:
        faults = [fault for fault in faults if fault.name.split(":")[0] == options.room]
    if not faults:
        raise ValueError(f"No fault is listed for {options.only or options.room or 'any room'}.")
    if options.draw is None:
        return list(faults)
    caught = [fault for fault in faults if fault.caught]
    if not caught:
        raise ValueError("No fault is marked as caught, so there is none to draw.")
    return random.Random(options.seed).sample(caught, min(options.draw, len(caught)))


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--room", help="only faults of this file")
    parser.add_argument("--only", metavar="ROOM:NUMBER", help="only this fault")
    parser.add_argument("--check", action="store_true", help="plant and compile each, and run no test: seconds for all")
    parser.add_argument("--draw", type=int, metavar="N", help="N at random among those marked as caught")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of --draw, to draw the same again")
    options = parser.parse_args(words)
    try:
        faults = chosen(read_faults(root / FOLDER), options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.draw is not None:
        print(f"{len(faults)} faults drawn with --seed {options.seed}")
    if options.check:
        stale = list(stale_among(faults, root))
        print(*stale, f"{len(faults) - len(stale)} of {len(faults)} faults apply", sep="\n")
        return int(bool(stale))
    verdicts: Counter[str] = Counter()
    failed = 0
    with Planter(root) as planter:
        for fault in faults:
            started = time.monotonic()
            note = "" if fault.caught else f"; listed as not caught: {fault.why}"
            try:
                verdict = planter.verdict(fault)
            except ValueError as error:
                verdict, note = STALE, f"; {error}"
            failed += verdict == STALE or (fault.caught and verdict != CAUGHT)
            seconds = time.monotonic() - started
            print(f"{verdict:11} {fault.name:12} {seconds:5.1f} s  {fault.file}  {fault.owner}{note}", flush=True)
            verdicts[verdict] += 1
    others = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common() if verdict != CAUGHT)
    print(f"{verdicts[CAUGHT]} of {len(faults)} faults caught" + (f": {others}" if others else ""))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
