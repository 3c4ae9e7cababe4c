"""How much of a measuring run is measuring: `make perf` after installation, by the clock of the process that waits.

Arguments go to pytest as they come: `python -m perf_tests.proofs.time_inside_rounds --size tiny`.
"""

import re
import sys

from perf_tests.proofs.launches import launch_suite
from perf_tests.proofs.verdict import conclude, conditions

LIMIT = 0.80

TIME_LINE = re.compile(r"^(?P<total>\d+) s: (?P<rounds>\d+)% in warm-up and measured rounds", re.MULTILINE)


def main() -> int:
    print(conditions())
    launch = launch_suite(["perf_tests", "--benchmark-compare", *sys.argv[1:]])
    total_seconds, share = parsed_time_line(launch.output)
    before_seconds = launch.process_seconds - total_seconds
    share_of_process = share * total_seconds / launch.process_seconds
    print(launch.output[launch.output.index(f"{total_seconds:.0f} s: ") :].splitlines()[0])
    print(f"{len(launch.benchmarks)} cases; the process took {launch.process_seconds:.0f} s: {before_seconds:.0f} s")
    print(f"of them before that line's clock began or after it stopped; in rounds {share_of_process:.1%} of all")
    claim = f"at least {LIMIT:.0%} of a run is spent in warm-up and measured rounds with their set-up"
    return conclude(claim, share_of_process >= LIMIT)


def parsed_time_line(output: str) -> tuple[float, float]:
    """Seconds of the run and the share of them in rounds, as the suite prints them; raises ValueError without one."""
    line = TIME_LINE.search(output)
    if line is None:
        raise ValueError("the run printed no line about its time; did it measure anything?")
    return float(line["total"]), int(line["rounds"]) / 100


if __name__ == "__main__":
    sys.exit(main())
