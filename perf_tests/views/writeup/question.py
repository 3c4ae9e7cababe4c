"""One question with the command that answers it, and its answer where the files hold one."""

from collections.abc import Callable
from dataclasses import dataclass

from perf_tests.views.writeup.sources import Answer, Sources


@dataclass(frozen=True)
class Question:
    """`answer` gives None where no file holds what it needs."""

    asked: str
    command: str
    answer: Callable[[Sources], Answer | None]
