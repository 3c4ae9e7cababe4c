"""A plugin: rank 1 has other code, or another device, as PLANTED_DIFFERENCE says."""

import os

from perf_tests.run import before as facts
from perf_tests.run import ranks as starts

if os.environ["RANK"] == "1":
    if os.environ["PLANTED_DIFFERENCE"] == "code":
        facts.source_digest = lambda repository: "other"
    else:
        starts.device_in_words = lambda device: "another device"  # type: ignore[attr-defined]  # imported there
