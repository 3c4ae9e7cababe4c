"""A throw-away repository of somebody else, with a model of its own, for tests of the suite from outside."""

from pathlib import Path

from perf_tests.meta_tests.git_repository import commit, git

SOURCE = '''"""Layers of one kind, {layers} of them."""

from torch import nn

LAYERS = {layers}


class Net(nn.Module):
    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.mixing = nn.GRU(width, width, batch_first=True)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens):
        mixed, _ = self.mixing(self.embedding(tokens))
        return self.head(self.layers(mixed))


def build(config):
    return Net(config.vocab_size, {width})
'''

MODEL = "--model=train/model.py:build"


def write_model(folder: Path, layers: int, width: int = 32) -> None:
    """`train/model.py` as it is from now on; a layer more is as much more work."""
    (folder / "train").mkdir(exist_ok=True)
    (folder / "train/model.py").write_text(SOURCE.format(layers=layers, width=width))


def make_their_repository(folder: Path, layers: int = 4, width: int = 32) -> Path:
    """Committed as `main`. Its `model/` is not the suite's."""
    write_model(folder, layers, width)
    (folder / "model").mkdir()
    (folder / "model/__init__.py").write_text("raise ImportError('not the model that the suite imports')\n")
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder
