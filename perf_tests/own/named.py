"""What the command line names as `MODULE:NAME` or `FILE.py:NAME`: looked for without running it, then loaded."""

import importlib
import importlib.util
import sys
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any


def check_name(option: str, text: str) -> None:
    """Raises ValueError with one sentence unless `text` has one of the forms and its module or file is there."""
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError(f"{option} {text!r} names nothing to load; write package.module:NAME or path/file.py:NAME.")
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise ValueError(f"{option} {text!r}: there is no file {place}, seen from {Path.cwd()}.")
        return
    try:
        found = importlib.util.find_spec(place)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{option} {text!r}: module {place!r} cannot be imported: {error}.") from error
    if found is None:
        raise ValueError(
            f"{option} {text!r}: there is no module {place!r} on the path; add its folder to PYTHONPATH, "
            f"or name its file as path/{place.replace('.', '/')}.py:{name}."
        )


def absolute(text: str) -> str:
    """The same for a process in another folder."""
    place, _, name = text.rpartition(":")
    if place == "hf":
        return f"hf:{Path(name).resolve()}"
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else text


def load(text: str, copy: str = "") -> Any:
    """What `text` names; runs its module, and raises what that raises. Each `copy` of a file is a module of its own."""
    place, _, name = text.rpartition(":")
    module = _module_of_file(Path(place), copy) if place.endswith(".py") else importlib.import_module(place)
    return getattr(module, name)


def _module_of_file(file: Path, copy: str) -> ModuleType:
    """The module of a file under a name of its own, so that a `model.py` is not taken for the suite's `model`."""
    file = file.resolve()
    name = f"own_{file.stem}_{sha256(str(file).encode()).hexdigest()[:8]}{copy}"
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last, or a file beside it could shadow a library's module
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@lru_cache(maxsize=64)
def from_its_repository(text: str) -> str:
    """The same with a FILE as its repository knows it, so that records join wherever it was typed."""
    place, _, name = text.rpartition(":")
    if not place.endswith(".py"):
        return text
    file = Path(place).resolve()
    root = next((folder for folder in file.parents if (folder / ".git").exists()), Path.cwd())
    return f"{file.relative_to(root).as_posix()}:{name}" if file.is_relative_to(root) else text
