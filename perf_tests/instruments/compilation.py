"""What torch.compile did in this process so far: graphs compiled, and whether its disk cache had them."""

from collections import Counter

from perf_tests.instruments.torch_private import compiler_counters


def count_compilations() -> Counter[str]:
    """`graphs`, `cache_hits` and `cache_misses` since the process began; subtract two of them."""
    counters = compiler_counters()
    if counters is None:
        return Counter()
    return Counter(
        graphs=counters["stats"]["unique_graphs"],
        cache_hits=counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
        cache_misses=counters["inductor"]["fxgraph_cache_miss"],
    )


def cache_state(compilations: Counter[str]) -> str | None:
    """`cold` if anything was generated, `warm` if the disk cache had it all, None if nothing was compiled."""
    if compilations["cache_misses"]:
        return "cold"
    return "warm" if compilations["cache_hits"] else None
