"""Named regions of a model and its training step, which do nothing until an instrument opens them.

    with region("softmax"):
        ...

Regions nest. The suite prints their names, so renaming a region renames a row.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

OpenRegion = Callable[[str], AbstractContextManager[object]]
"""A function from a region's name to the context that it runs in."""

# One shared object, of the only class that torch.compile can enter as a global.
_NOTHING = nullcontext()


def _ignore(name: str) -> AbstractContextManager[object]:
    return _NOTHING


_open: OpenRegion = _ignore


def region(name: str) -> AbstractContextManager[object]:
    """The context of one named region."""
    return _open(name)


@contextmanager
def regions_opened_by(open_region: OpenRegion) -> Iterator[None]:
    """Return a context in which `open_region` is called for every region."""
    global _open
    before, _open = _open, open_region
    try:
        yield
    finally:
        _open = before
