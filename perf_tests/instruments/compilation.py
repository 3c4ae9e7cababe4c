"""What torch.compile did in this process so far, and where a round of its CUDA graphs begins."""

from collections import Counter

import torch

from perf_tests.instruments.torch_private import compiler_counters, cuda_graphs_may_be_recorded


def begin_round() -> None:
    """Call it before each round: CUDA graphs may now overwrite what they returned in the last one.

    Without it a forward pass whose backward pass never runs would record another graph in every round.
    """
    if cuda_graphs_may_be_recorded():
        torch.compiler.cudagraph_mark_step_begin()


def count_compilations() -> Counter[str]:
    """`graphs`, `cache_hits`, `cache_misses` and `cudagraph_skips` since the process began; subtract two of them."""
    counters = compiler_counters()
    if counters is None:
        return Counter()
    return Counter(
        graphs=counters["stats"]["unique_graphs"],
        cache_hits=counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
        cache_misses=counters["inductor"]["fxgraph_cache_miss"],
        cudagraph_skips=counters["inductor"]["cudagraph_skips"],
    )


def cache_state(compilations: Counter[str]) -> str | None:
    """`cold` if anything was generated, `warm` if the disk cache had it all, None if nothing was compiled."""
    if compilations["cache_misses"]:
        return "cold"
    return "warm" if compilations["cache_hits"] else None
