"""What survives of mutmut's faults in the files of `model/` that ranks run; `make rank-mutants` plants and prints them.

mutmut judges a fault in a copy of the process that found out which tests reach it, and ranks are other processes. So
its faults are planted here as those of the kill matrix are, and judged by every claim on ranks until one fails.
"""

import re
import sys
from collections.abc import Iterator
from difflib import unified_diff

import torch

from numerics_tests import rank_pool
from numerics_tests.claims import CLAIMS, all_claims
from numerics_tests.mutants import Change, report, swap
from numerics_tests.planted_source import MODEL, SourceFault, imported_from

FILES = ("parallel.py", "resident.py")
DECORATOR = re.compile(r"^( *)@(?=contextmanager|property|cached_property)", re.MULTILINE)
HIDDEN = "# decorated: "
"""mutmut leaves out a function with a decorator, so these decorators are comments while it looks."""
SLOW = "test_gradient_of_ranks_is_that_of_the_whole_batch"
"""Takes 10 s for its oracle, so it comes last."""

EQUIVALENT = {
    "FSDP2 asks only whether it is true": (
        *swap("root.set_reshard_after_backward(False)", "False", "None"),
        *swap("root.set_requires_gradient_sync(False)", "False", "None"),
    ),
    "what is zipped has one length": (
        *swap("for gradient, part in zip(gradients(model), parts, strict=True):", "strict=True", "", "strict=None"),
        *swap("for gradient, part in zip(gradients(model), parts, strict=True):", "strict=True", "strict=False"),
        *swap("for own, gradient in zip(slices, last, strict=True):", "strict=True", "", "strict=None", "strict=False"),
    ),
    "None leaves gathered the weights of the root alone": swap(
        "fully_shard(model, mesh=ranks.mesh, reshard_after_forward=False, mp_policy=policy)",
        "reshard_after_forward=False, ",
        "reshard_after_forward=None, ",
        "",
    ),
    "every module is set in its turn, the root first": (
        *swap(
            "module.set_reshard_after_forward(False, recurse=False)",
            "recurse=False",
            "recurse=None",
            "",
            "recurse=True",
        ),
        *swap(
            "module.set_reshard_after_forward(reshard and module is not root, recurse=False)",
            "recurse=False",
            "recurse=None",
            "",
            "recurse=True",
        ),
    ),
}
"""Why ranks compute and send the same after each of these changes."""


def mutants_of(path: str) -> Iterator[str]:
    """The file with one fault each, in functions and methods."""
    from libcst import FunctionDef, Module  # an extra, as is mutmut
    from mutmut.mutation.file_mutation import create_mutations

    source = DECORATOR.sub(rf"\1{HIDDEN}", (MODEL / path).read_text())
    module, mutations, *_ = create_mutations(path, source)
    for mutation in mutations:
        if isinstance(mutation.contained_by_top_level_function, FunctionDef):
            mutated = module.deep_replace(mutation.original_node, mutation.mutated_node)
            assert isinstance(mutated, Module)  # what replaces a node inside is no other kind
            yield mutated.code.replace(HIDDEN, "@")


def status(fault: SourceFault) -> str:
    """`survived`, or `killed` by the first claim that fails in any way."""
    claims = sorted((name for name, claim in CLAIMS.items() if claim.area == "ranks"), key=SLOW.__eq__)
    try:
        with imported_from(fault):
            faulty = sys.modules["numerics_tests.claims"].CLAIMS
            for claim in map(faulty.get, claims):
                for implementation in claim.references.values():
                    claim.judge(implementation, torch.device("cpu"))
    except Exception:
        return "killed"
    return "survived"


def main() -> int:
    rank_pool.SECONDS = 20  # a fault may leave ranks waiting for each other
    all_claims()
    statuses, changes = {}, {}
    for path in FILES:
        source = (MODEL / path).read_text()
        if status(SourceFault(path, SLOW.removeprefix("test_"), path, source, source)) != "survived":
            raise RuntimeError("A claim on ranks fails without a fault; run pytest numerics_tests/test_ranks.py.")
        for number, mutant in enumerate(mutants_of(path)):
            name = f"{path} {number}"
            fault = SourceFault(name, SLOW.removeprefix("test_"), path, source, mutant)
            changes[name] = Change.of("\n".join(unified_diff(source.splitlines(), mutant.splitlines(), n=0)))
            statuses[name] = status(fault)
            print(name, statuses[name], flush=True)
    lines, is_good = report(statuses, changes.__getitem__, EQUIVALENT)
    print(*lines, sep="\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
