"""A side's own process: `python -m perf_tests_suite.perf_tests.predict.side` in its tree, because two cannot share one.

It runs cases from standard input on fake tensors and prints their operations, of a compiled one what it compiles to.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perf_tests_suite.perf_tests.user_code.named import Tree, take_files_from
from perf_tests_suite.perf_tests.user_code.own_names import share_model

SEED = 2027
"""The seed of weights, where nothing is timed."""


def main() -> int:
    task = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model prints is no answer
    tree, where = Path(task["tree"]), task["repository"]
    take_files_from(Tree.of(tree, where))
    if where["holds_suite"]:
        share_model()
    sys.dont_write_bytecode = True
    # Import late: this loads the side's `model/`.
    import torch

    from perf_tests_suite import model
    from perf_tests_suite.perf_tests.predict.compiling import compilation_or_reason
    from perf_tests_suite.perf_tests.predict.counters import NotCountedError
    from perf_tests_suite.perf_tests.predict.operations import fake_round, json_of, received_case

    answers: list[Any] = []
    for sent in task["cases"]:
        if where["holds_suite"] and not Path(str(model.__file__)).is_relative_to(tree):
            answers.append("it has no model/")
            continue
        try:
            case = received_case(sent)
            if case.is_compiled:
                found, reason = compilation_or_reason(case, torch.device(case.device), SEED, (tree,))
                answers.append((reason or "").rstrip(".") if found is None else {"compilation": asdict(found)})
            else:
                answers.append(json_of(fake_round(case, tree)))
        except NotCountedError as error:
            answers.append(str(error).rstrip("."))
    with answer:
        json.dump(answers, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
