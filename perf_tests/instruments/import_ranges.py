"""Modules that are imported while a trace is taken: each import that nothing else imports is a range of its own."""

import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

from torch.profiler import record_function

IMPORT_RANGE = "import of "
"""What the name of such a range begins with."""


@contextmanager
def imports_as_ranges() -> Iterator[list[str]]:
    """Open a range of torch.profiler around each outermost import; yields the names of modules loaded, as they are."""
    finder = _RangeFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield finder.loaded
    finally:
        sys.meta_path.remove(finder)


class _RangeFinder(MetaPathFinder):
    """Asks the other finders, and has the loader that they choose work inside a range."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
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
            self.loaded.append(name)
            if self._is_open:
                execute(module)
                return
            self._is_open = True
            try:
                with record_function(f"{IMPORT_RANGE}{name}"):
                    execute(module)
            finally:
                self._is_open = False

        # On this object alone, which loads this module and no other.
        loader.exec_module = exec_module  # type: ignore[method-assign]
