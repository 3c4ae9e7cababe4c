"""What torch.compile did in this process so far: graphs compiled, and whether its disk cache had them."""

from dataclasses import astuple, dataclass

from perf_tests.instruments.torch_private import compiler_counters


@dataclass(frozen=True)
class CompilationCount:
    """Totals since the process began; subtract two of them."""

    graphs: int
    cache_hits: int
    cache_misses: int

    def since(self, earlier: "CompilationCount") -> "CompilationCount":
        return CompilationCount(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    @property
    def cache_state(self) -> str | None:
        """`cold` if anything was generated, `warm` if the disk cache had it all, None if nothing was compiled."""
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
