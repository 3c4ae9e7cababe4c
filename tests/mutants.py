"""What survives of the faults that mutmut plants into `model/`; `make mutants` plants them and prints this.

pyproject.toml says where it plants none. Its own rules leave out the tables of a module, functions with a decorator and
calls without an argument such as `.float()`; `tests/kill_matrix` has faults in those.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

LIMIT = 0.03
"""The largest share of the mutants that may survive without being shown equivalent."""

CAUGHT = ("killed", "timeout", "segfault", "caught by type check")
"""Words of mutmut for a mutant that the tests noticed; any other, `no tests` included, is a survivor.

Where pytest itself refuses to start, as without a device, mutmut's worker hangs until its limit: a timeout.
"""


@dataclass(frozen=True)
class Change:
    """The lines of a function that a mutant takes out, and those that it puts in, each stripped and joined."""

    old: str
    new: str

    @classmethod
    def of(cls, diff: str) -> "Change":
        """Read off a unified diff."""
        lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
        old, new = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
        return cls(old, new)


def swap(line: str, old: str, *new: str) -> tuple[Change, ...]:
    """One change for each `new` that takes the place of `old` in `line`."""
    return tuple(Change(line, line.replace(old, each)) for each in new)


EQUIVALENT = {
    "the name of an architecture holds one underscore, and no X": (
        *swap('kind, _, name = architecture.partition("_")', "partition", "rpartition"),
        *swap('number = name.rstrip("af")', "af", "XXafXX"),
    ),
    "no words of torch end in an X": swap(
        'return str(error).partition("\\n")[0].partition(". Please")[0].rstrip(".")', 'rstrip(".")', 'rstrip("XX.XX")'
    ),
    "typing.cast returns its value": swap(
        "return cast(F, torch.compile(function, dynamic=False, mode=mode))", "cast(F,", "cast(None,"
    ),
    "as many learning rates are put back as there are groups, from which they were read": swap(
        "for group, learning_rate in zip(self.optimizer.param_groups, learning_rates, strict=True):",
        "strict=True",
        "strict=None",
        "",
    ),
    "float() reads INF as inf": swap('scores_BHTT = torch.where(mask_TT, scores_BHTT, float("-inf"))', "-inf", "-INF"),
    "queries have four dimensions there, so the last but one is number 2": swap(
        "mask = block_mask(q_BHTK.shape[-2], q_BHTK.device.type)", "[-2]", "[+2]"
    ),
    "register_buffer takes None for False": (
        *swap('self.register_buffer("cos_TK", interleaved(cos_TP, cos_TP), persistent=False)', "False", "None"),
        *swap('self.register_buffer("signed_sin_TK", interleaved(-sin_TP, sin_TP), persistent=False)', "False", "None"),
    ),
}
"""Why the program computes the same after each of these changes."""


def report(
    statuses: Mapping[str, str], change_of: Callable[[str], Change], equivalent: Mapping[str, Collection[Change]]
) -> tuple[list[str], bool]:
    """The lines to print, and whether few enough survive; `statuses` maps each mutant to mutmut's word."""
    survivors = {name: change_of(name) for name, status in statuses.items() if status not in CAUGHT}
    reasons = {change: reason for reason, changes in equivalent.items() for change in changes}
    unexplained = {name: change for name, change in survivors.items() if change not in reasons}
    caught = [change for change in reasons if change not in survivors.values()]
    counted = ", ".join(f"{count} {status}" for status, count in Counter(statuses.values()).most_common())
    lines = [f"{len(statuses)} mutants of model/: {counted}"]
    for reason, changes in equivalent.items():
        lines.append(f"{sum(change in changes for change in survivors.values()):6} equivalent: {reason}")
    share = len(unexplained) / max(1, len(statuses))
    lines.append(f"{len(unexplained):6} unexplained, {share:.1%} of all; at most {LIMIT:.0%} may be")
    lines += [
        f"  {name} ({statuses[name]})\n    - {change.old}\n    + {change.new}" for name, change in unexplained.items()
    ]
    lines += [
        f"  no survivor, so take it out of EQUIVALENT:\n    - {change.old}\n    + {change.new}" for change in caught
    ]
    return lines, bool(statuses) and share <= LIMIT and not caught


def mutmut(*arguments: str) -> str:
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    rows = [line.strip().partition(": ") for line in mutmut("results", "--all", "true").splitlines()]
    statuses = {name: status for name, _, status in rows if status}
    lines, is_good = report(statuses, lambda name: Change.of(mutmut("show", name)), EQUIVALENT)
    print(*lines, sep="\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
