"""A fault planted into the source of `model/`, and the claims of this suite as they judge the model that has it."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from numerics_tests.claims import CLAIMS, Claim

MODEL = Path(__file__).parents[1] / "model"


@dataclass(frozen=True)
class SourceFault:
    """`old` becomes `new` in the file `path` of `model/`, and the claim `caught_by` must notice."""

    name: str
    caught_by: str
    path: str
    old: str
    new: str
    reference: str | None = None
    """The one implementation that it changes; None where it may change each that the claim judges."""

    def source(self) -> str:
        """The file with the fault; raises ValueError unless `old` stands in it exactly once."""
        text = (MODEL / self.path).read_text()
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name!r}: model/{self.path} holds {self.old!r} {text.count(self.old)} times; quote what it "
                "holds once."
            )
        return text.replace(self.old, self.new)

    def judge(self, device: torch.device) -> None:
        """Raise what the claim raises for the faulty model, over every implementation that the fault may change."""
        with imported_from(self) as claim:
            # A claim without references of its own judges every attention.
            names = claim.references or importlib.import_module("numerics_tests.test_attention").EAGER
            for implementation in names.values() if self.reference is None else (names[self.reference],):
                claim.judge(implementation, device)


def is_ours(module: str) -> bool:
    """Whether a second import makes it anew; the processes of ranks are shared."""
    return module.partition(".")[0] in ("model", "numerics_tests") and module != "numerics_tests.rank_pool"


@contextmanager
def imported_from(fault: SourceFault) -> Iterator[Claim]:
    """The claim out of a second import of the suite, made of a copy of `model/` with the fault."""
    name, module = f"test_{fault.caught_by}", CLAIMS[f"test_{fault.caught_by}"].check.__module__
    ours = [known for known in sys.modules if is_ours(known)]
    kept = {known: sys.modules.pop(known) for known in ours}
    with TemporaryDirectory() as folder:
        shutil.copytree(MODEL, Path(folder) / "model", ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "model" / fault.path).write_text(fault.source())
        sys.path.insert(0, folder)
        try:
            importlib.import_module(module)
            yield sys.modules["numerics_tests.claims"].CLAIMS[name]
        finally:
            sys.path.remove(folder)
            for known in [known for known in sys.modules if is_ours(known)]:
                del sys.modules[known]
            sys.modules.update(kept)
