"""The parts of a round of each case, counted once for every phase that contains them: by the record or a fake run."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import ModuleType
from typing import TypeVar

from perf_tests_suite.perf_tests.cases.attention import AttentionCase
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.cases.model_names import blocks_per_checkpoint
from perf_tests_suite.perf_tests.predict import recorded
from perf_tests_suite.perf_tests.predict.allocator import Log
from perf_tests_suite.perf_tests.predict.parts import PartCounters, Parts


@lru_cache(maxsize=256)
def passes(case: LanguageModelCase, all_layers: bool = False) -> Parts:
    """Counters of `inference`, or of `forward`, `loss` and `backward` for every phase that records a graph.

    Counted are a few layers and one more, from which all are extrapolated, unless `all_layers` are asked for. Blocks
    that share a checkpoint count as one layer; those left over follow them, as in the model. A model of the user's own
    is counted whole, because its layers are not known. Only weights and batch are held at the start; the logits are
    freed after the loss. The optimizer of `case` does not matter.
    """
    # The first layer of an inference differs, because the caller still holds its input.
    few = 1 if case.phase_row.records_graph else 2
    blocks = max(1, blocks_per_checkpoint(case.checkpoint))
    layers, left_over = divmod(case.config.num_layers, blocks)
    if all_layers or layers <= few + 1 or case.user_model is not None:
        return count_passes(case)
    depths = (few * blocks + left_over, (few + 1) * blocks + left_over)
    less, more = (count_passes(replace(case, config=replace(case.config, num_layers=depth))) for depth in depths)
    try:
        return {name: extrapolated(less[name], more[name], layers - few) for name in less}
    except NotOfEqualLayersError:
        return count_passes(case)


@lru_cache(maxsize=256)
def updates(case: LanguageModelCase) -> Parts:
    """Counters of `first_update`, which makes the optimizer's state, and of `update`, which finds it there."""
    return recorded.updates(case) or _fake_run().count_updates(case)


@lru_cache(maxsize=256)
def attention_passes(case: AttentionCase) -> Parts:
    """Counters of both phases of attention alone, by phase; query, key, value and output gradient are there."""
    return recorded.attention_passes(case) or _fake_run().count_attention(case)


def count_passes(case: LanguageModelCase) -> Parts:
    """The same as `passes`, with every layer counted."""
    return recorded.passes(case) or _in_another_batch(case) or _fake_run().count_passes(case)


_batches: dict[LanguageModelCase, "_Batches"] = {}
"""What is known of a case in any batch, by the case of two sequences."""


@dataclass
class _Batches:
    """The first batch in which passes were counted, and from the second on how they are replayed."""

    case: LanguageModelCase
    counted: Parts

    @cached_property
    def replayed(self) -> Callable[[int], Parts] | None:
        from perf_tests_suite.perf_tests.predict import recording

        return recording.in_batches(self.case, self.counted)


def _in_another_batch(case: LanguageModelCase) -> Parts | None:
    """Count one batch and replay the others, inside a prediction, which asks for many; None of a single sequence.

    A batch of one has views where others have copies.
    """
    if not recorded.is_in_use() or case.device != "cuda" or case.batch_size == 1:
        return None
    known = _batches.get(kind := replace(case, batch_size=2))
    if known is None:
        _batches[kind] = known = _Batches(case, _fake_run().count_passes(case))
    if known.case == case:
        return known.counted
    return known.replayed(case.batch_size) if known.replayed else None


def _fake_run() -> ModuleType:
    """Import torch for what the record lacks alone."""
    from perf_tests_suite.perf_tests.predict import fake_run

    return fake_run


# Counters of a deep model, exactly, from those of two shallow ones that differ by one layer.
#
# The log of a model of L equal layers is a beginning, L times one layer, and an end, and after its last allocation the
# same of what is freed. What the log of the deeper one has more is a layer: it is what stands before it once more, or
# frees alone. For logs of another form, or where a count would be negative, NotOfEqualLayersError is raised.


Key = TypeVar("Key", bound=Hashable)


class NotOfEqualLayersError(Exception):
    """The counters do not grow by the same amount with each layer; count all layers."""


def extrapolated(few: PartCounters, more: PartCounters, further_layers: int) -> PartCounters:
    """The counters of a model with `further_layers` more layers than `few`, which has one less than `more`."""

    def line(less: Counter[Key], more: Counter[Key]) -> Counter[Key]:
        """Each count, extrapolated linearly."""
        found = Counter({key: less[key] + (more[key] - less[key]) * further_layers for key in {**less, **more}})
        if min(found.values(), default=0) < 0:
            raise NotOfEqualLayersError("a count would be negative")
        return +found  # without zeros, which a Counter keeps and a count of such a model would not have

    def repeated(short: Log, long: Log) -> Log:
        """The log with as many layers more; what is freed after the last allocation is of all, repeats by itself."""
        one, two = (max((place for place, change in enumerate(log, 1) if change[1] > 0), default=0)
                    for log in (short, long))  # fmt: skip
        whole: Log = ()
        for less, more in ((short[:one], long[:two]), (short[one:], long[two:])):
            pairs, layer = enumerate(zip(less, more, strict=False)), max(0, len(more) - len(less))
            same = next((place for place, (first, second) in pairs if first != second), min(len(less), len(more)))
            added = more[same : same + layer]
            is_known = added == more[max(0, same - layer) : same] or all(size < 0 for _, size, _ in added)
            if less[same:] != more[same + layer :] or not is_known:
                raise NotOfEqualLayersError("the logs of the two depths differ in the middle")
            whole += more[:same] + added * further_layers + more[same + layer :]
        return whole

    scalars = line(
        Counter(saved=few.saved_bytes, reads=few.host_reads), Counter(saved=more.saved_bytes, reads=more.host_reads)
    )
    return PartCounters(
        kernels=line(few.kernels, more.kernels),
        saved_bytes=scalars["saved"],
        live_at_start=line(few.live_at_start, more.live_at_start),
        log=repeated(few.log, more.log),
        log_before=repeated(few.log_before, more.log_before),
        allocations=line(few.allocations, more.allocations),
        host_reads=scalars["reads"],
    )
