"""Named regions of a model and its training step: nothing at all, until an instrument says what to do at their ends.

    with region("softmax"):
        ...

Regions nest. Their names are part of what the suite prints, so a renamed one is a renamed row.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

OpenRegion = Callable[[str], AbstractContextManager[object]]
"""Makes of a region's name the context that the region runs in."""

# One object for all, of the one class that torch.compile can enter as a global.
_NOTHING = nullcontext()


def _ignore(name: str) -> AbstractContextManager[object]:
    return _NOTHING


_open: OpenRegion = _ignore


def region(name: str) -> AbstractContextManager[object]:
    """The context of one named region."""
    return _open(name)


@contextmanager
def regions_opened_by(open_region: OpenRegion) -> Iterator[None]:
    """Until this context ends, `open_region` is called for every region; then what was there before."""
    global _open
    before, _open = _open, open_region
    try:
        yield
    finally:
        _open = before
