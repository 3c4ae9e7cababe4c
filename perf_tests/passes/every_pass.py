"""The extra passes by name, in the order in which they run."""

from perf_tests.passes.extra_pass import ExtraPass
from perf_tests.passes.kernels import KernelPass
from perf_tests.passes.memory import MemoryPass
from perf_tests.passes.warmup import WarmupPass

EVERY_PASS: dict[str, type[ExtraPass]] = {"kernels": KernelPass, "memory": MemoryPass, "warmup": WarmupPass}
