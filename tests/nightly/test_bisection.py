"""A whole search by git with `--bisect`, over commits of which one cannot be imported."""

from pathlib import Path

from claims.gate_elsewhere import write_model
from tests.stories.test_bisection import QUICK, THEIRS, ended, program, theirs
from tests.support.git_repository import commit, git

__all__ = ["theirs"]


def test_git_names_the_commit_that_does_more_among_some_that_cannot_be_imported(theirs: Path) -> None:
    for number in range(2, 9):
        write_model(theirs, 2 + (number >= 5), 16, comment=f"Number {number}")
        if number == 3:
            (theirs / "train/model.py").write_text("import nothing_of_the_kind\n")
        commit(theirs)
        git(theirs, "tag", f"number-{number}")
    git(theirs, "bisect", "start", "HEAD", "good")
    code, said = ended(theirs, ["git", "bisect", "run", *program(*THEIRS, *QUICK, "--against=good")])
    assert code == 0, said
    assert f"{git(theirs, 'rev-parse', 'number-5')} is the first bad commit" in said
