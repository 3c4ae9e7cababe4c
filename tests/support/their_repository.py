"""A throw-away repository of somebody else, with a small model of its own, for tests of the suite from outside."""

from pathlib import Path

from claims import gate_elsewhere
from tests.support.git_repository import commit, git

MODEL = "--model=train/model.py:build"


def write_model(folder: Path, layers: int) -> None:
    gate_elsewhere.write_model(folder, layers, width=32)


def make_their_repository(folder: Path) -> Path:
    """Committed as `main`. Its `model/` is not the suite's."""
    write_model(folder, 4)
    (folder / "model").mkdir()
    (folder / "model/__init__.py").write_text("raise ImportError('not the model that the suite imports')\n")
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder
