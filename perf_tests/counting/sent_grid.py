"""What ranks send in a training step, for the ledger: every size in each way to share a step, on 2, 8 and 64 ranks."""

from itertools import product

from model.sizes import SIZES
from perf_tests.counting.rank_messages import parameter_shapes
from perf_tests.limits.communication import sent_bytes, step_messages
from perf_tests.limits.ways import VARIANTS
from perf_tests.options.shapes import SIZES_APART

WORLDS = (2, 8, 64)
COLUMNS = ("size", "parallel", "world", "messages", "bytes_sent_by_all_ranks")


def sent_lines() -> list[str]:
    """A line of CSV for each, under a header. A rank's share may be a fraction of a byte, the sum of all is not."""
    lines = [",".join(COLUMNS)]
    for size, variant, world in product([size for size in SIZES if size not in SIZES_APART], VARIANTS, WORLDS):
        messages = step_messages(variant, parameter_shapes(SIZES[size]), world)
        lines.append(f"{size},{variant},{world},{len(messages)},{int(world * sent_bytes(messages, world))}")
    return lines
