"""Numbers and errors in sentences."""


def how_many(count: int, noun: str) -> str:
    """`1 case`, `2 cases`, `2 launches`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def without_path(error: Exception) -> str:
    """What went wrong with a file that the sentence names already."""
    if isinstance(error, IsADirectoryError):
        return "it is a folder, not a file"
    if isinstance(error, FileExistsError):
        return "it is a file, not a folder"
    return getattr(error, "strerror", None) or str(error)
