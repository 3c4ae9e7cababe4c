"""The records of a verb: those that the user named, or all that are stored."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from perf_tests.records.store import StoredRecord, name_of


def chosen_paths(storage: Path, asked: Sequence[str]) -> list[Path]:
    """Files that match any of the words, each once; without words every file of the storage.

    A word is a path, a folder of records, or the beginning of a name: `0003`, `epyc-2core/0003`.
    Raises ValueError with one sentence where a word matches nothing, or nothing is stored.
    """
    stored = sorted(storage.glob("*/*.json"))
    if not asked:
        if not stored:
            raise ValueError(f"{storage} holds no record; `pytest perf_tests` records a run.")
        return stored
    return list(dict.fromkeys(path for word in asked for path in _fitting(stored, storage, word)))


def _fitting(stored: Sequence[Path], storage: Path, word: str) -> list[Path]:
    is_folder = False
    try:
        if Path(word).is_file():
            return [Path(word)]
        if is_folder := Path(word).is_dir():
            found = sorted([*Path(word).glob("*.json"), *Path(word).glob("*/*.json")])
        else:
            found = [path for path in stored if path.name.startswith(word) or name_of(path).startswith(word)]
    except (OSError, ValueError):  # too long for a path, or with a null character in it
        found = []
    if not found:
        if is_folder:
            raise ValueError(f"{word} is a folder without records.")
        known = ", ".join(map(name_of, stored[-10:])) or "none"
        raise ValueError(f"{word!r} matches no record under {storage}; the last ones stored there: {known}.")
    return found


def newest(records: Iterable[StoredRecord]) -> StoredRecord | None:
    """The last one written; of two with one date, the last given."""
    by_date = sorted(records, key=lambda record: str(record.data.get("datetime")))
    return by_date[-1] if by_date else None
