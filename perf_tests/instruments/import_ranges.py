"""Modules that are imported while a trace is taken: each import that nothing else imports is a range of its own."""

import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

from torch.autograd.profiler import record_function

from perf_tests.instruments.page_faults import page_faults

IMPORT_RANGE = "import of "
"""What the name of such a range begins with."""


@dataclass
class Imports:
    """Modules loaded so far, by name, and the pages that loading them touched first."""

    modules: list[str] = field(default_factory=list)
    page_faults: int = 0


@contextmanager
def imports_as_ranges() -> Iterator[Imports]:
    """Open a range of the profiler around each outermost import; what is yielded grows with them."""
    finder = _RangeFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield finder.imports
    finally:
        sys.meta_path.remove(finder)


class _RangeFinder(MetaPathFinder):
    """Asks the other finders, and has the loader that they choose work inside a range."""

    def __init__(self) -> None:
        self.imports = Imports()
        self._is_open = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for other in sys.meta_path:
            spec = None if other is self else other.find_spec(fullname, path, target)
            if spec is None:
                continue
            # A loader that is a class, as that of builtin modules is, serves all of them and loads no file.
            if spec.loader is not None and not isinstance(spec.loader, type):
                self._watch(spec.loader, fullname)
            return spec
        return None

    def _watch(self, loader: Loader, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self.imports.modules.append(name)
            if self._is_open:
                execute(module)
                return
            self._is_open, before = True, page_faults()
            try:
                with record_function(f"{IMPORT_RANGE}{name}"):
                    execute(module)
            finally:
                self._is_open = False
                self.imports.page_faults += page_faults() - before

        # On this object alone, which loads this module and no other.
        loader.exec_module = exec_module  # type: ignore[method-assign]
