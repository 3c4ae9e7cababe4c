"""What ranks import, once for all of them: each is a fork of a process that has this module."""

import torch
import torch.distributed.fsdp
import torch.distributed.optim

from perf_tests_suite.numerics_tests.harness import rank_tasks, tiny

__all__ = ["rank_tasks", "tiny"]

torch.compiler.reset()  # imports the compiler, as the first step of an optimizer does
