"""Numbers in sentences."""


def how_many(count: int, noun: str) -> str:
    """`1 case`, `2 cases`, `2 launches`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"
