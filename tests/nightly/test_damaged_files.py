"""Thousands of damaged files: every reader ends in one sentence and its exit code, never in a traceback."""

import os
from pathlib import Path

import pytest

from tests.support.damage import fuzz
from tests.support.file_readers import READERS

EXAMPLES, SEED = int(os.environ.get("FUZZ_EXAMPLES", "1000")), int(os.environ.get("FUZZ_SEED", "0"))
"""Files for each reader and the seed that draws them, for a longer search by hand."""


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_ends_in_a_sentence_and_its_exit_code(name: str, tmp_path: Path) -> None:
    tally = fuzz(READERS[name], EXAMPLES, SEED)
    for place, contents in enumerate(tally.wrong.values()):  # pytest keeps the folder of a test that failed
        (tmp_path / f"{place}-{Path(READERS[name].file).name}").write_bytes(contents[0])
    assert tally.codes.total() == EXAMPLES
    assert {wrong: len(contents) for wrong, contents in tally.wrong.items()} == {}, f"kept in {tmp_path}"
