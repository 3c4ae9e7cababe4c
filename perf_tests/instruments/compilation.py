"""What torch.compile did so far in this process: graphs compiled, and whether its disk cache knew them."""

from dataclasses import dataclass

from perf_tests.instruments.torch_private import compiler_counters


@dataclass(frozen=True)
class CompilationCount:
    """Totals since the process began; subtract two of them."""

    graphs: int
    cache_hits: int
    cache_misses: int

    def since(self, earlier: "CompilationCount") -> "CompilationCount":
        return CompilationCount(
            self.graphs - earlier.graphs,
            self.cache_hits - earlier.cache_hits,
            self.cache_misses - earlier.cache_misses,
        )

    @property
    def cache_state(self) -> str | None:
        """`cold` if anything had to be generated, `warm` if the disk cache held it all, None if nothing compiled."""
        if self.cache_misses:
            return "cold"
        return "warm" if self.cache_hits else None


def count_compilations() -> CompilationCount:
    counters = compiler_counters()
    if counters is None:
        return CompilationCount(0, 0, 0)
    return CompilationCount(
        graphs=counters["stats"]["unique_graphs"],
        cache_hits=counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
        cache_misses=counters["inductor"]["fxgraph_cache_miss"],
    )
