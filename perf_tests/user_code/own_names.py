"""The names of the suite's own modules, which meet none of the user's: each lies in the package `perf_tests_suite`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from perf_tests_suite.perf_tests.user_code.named import SUITE

_MODEL = "model"


class _OwnModules(MetaPathFinder, Loader):
    """Gives the one module of the suite under another name.

    pytest names a file by its folders, as `perf_tests.test_forward`, and asks with the place of the file. Import
    statements ask for `model`, where it is shared.
    """

    def __init__(self) -> None:
        self.shares_model = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top not in ("perf_tests", "numerics_tests", _MODEL) or (top == _MODEL and not self.shares_model):
            return None
        ours = find_spec(f"perf_tests_suite.{fullname}")
        if ours is None or ours.origin is None:
            return None
        if top != _MODEL and str(Path(ours.origin).parent) not in (path or ()):
            return None
        places = ours.submodule_search_locations
        return spec_from_file_location(fullname, ours.origin, loader=self, submodule_search_locations=places)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"perf_tests_suite.{spec.name}")
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Undo what the import system wrote: the module ran before, and pytest's name may be one of the user's.

        An import statement, which has loaded the package around it, keeps its name.
        """
        name = module.__spec__.name if module.__spec__ is not None else ""
        module.__spec__ = self._own_spec
        if name.partition(".")[0] != _MODEL and name.rpartition(".")[0] not in sys.modules:
            del sys.modules[name]


_finder = _OwnModules()


def know_files_by_their_package() -> None:
    """Let pytest, from here on, have files of the suite as modules of its package, and under no name beside."""
    if _finder in sys.meta_path:  # behind those of another run of pytest in this process
        sys.meta_path.remove(_finder)
    sys.meta_path.insert(0, _finder)


def share_model() -> None:
    """Let `import model` give the suite's package from here on.

    For code of the suite's own repository, and for earlier revisions, whose files import each other by that name.
    """
    know_files_by_their_package()
    _finder.shares_model = True


def look_in(folder: Path) -> None:
    """Let modules that options name be found in `folder` too, as pytest does."""
    sys.path.append(str(folder))
    if folder.is_relative_to(SUITE):
        share_model()
