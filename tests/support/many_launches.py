"""Start the suite many times in one process, which imports torch once.

Standard input: a JSON list of argument lists. Standard output: a JSON list of `[exit code, output, errors]`.
"""

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest


def main() -> None:
    ends = []
    for arguments in json.load(sys.stdin):
        output, errors = StringIO(), StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            exit_code = pytest.main(arguments)
        ends.append([int(exit_code), output.getvalue(), errors.getvalue()])
    json.dump(ends, sys.stdout)


if __name__ == "__main__":
    main()
