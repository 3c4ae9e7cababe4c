"""The columns of published tables under the names and units in use. In: a header. Out: where each column stands."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perf_tests.audit.files.units import bytes_in, seconds_in

_SHARED = {
    "source": "source repository repo file url origin",
    "gpu": "gpu gpu_name gpu_type device_name device card hardware accelerator",
    "gpu_basis": "gpu_basis device_basis",
    "batch": "batch batch_size bs batchsize local_batch_size b",
    "precision": "precision dtype data_type amp",
    "compiled": "compiled compile torch_compile is_compiled jit",
    "attention": "attention impl implementation attention_impl attn attn_impl variant backend method kernel_type",
    "execution": "execution",
    "checkpoint": "checkpoint",
    "optimizer": "optimizer optim optimiser",
    "n_measured": "n_measured n rounds n_rounds iters iterations n_iters num_iters steps n_steps repeats",
    "warmup": "warmup n_warmup warmup_rounds warmup_steps warmup_iters num_warmup warm_up",
    "unit": "unit units",
    "cards": "n_gpus num_gpus gpu_count ngpus gpus world_size world n_devices num_devices",
    "tf32": "tf32 allow_tf32 use_tf32 tf32_enabled matmul_precision float32_matmul_precision",
    "window": "window window_size sliding_window attention_window sparsity",
}
_OF_A_MODEL = {
    "size": "size model_size model model_name size_name",
    "d_ff": "d_ff d_ffn ffn_dim ffn d_hidden intermediate_size hidden_dim_ff",
    "n_layers": "n_layers num_layers layers n_layer depth num_hidden_layers",
    "n_heads": "n_heads num_heads heads n_head num_attention_heads",
    "vocab": "vocab vocab_size",
    "d_model": "d_model dmodel width hidden_size n_embd embed_dim",
    "context": "context context_length ctx ctx_len n_ctx seq_len seqlen sequence_length seq_length seq",
}
_PHASE = {"phase": "phase pass direction stage mode step_type what"}

_TIME = (
    "mean mean_time time avg average avg_time average_time latency duration elapsed runtime median median_time "
    "p50 min min_time best"
)
_DEVIATION = "std stddev std_dev stdev sd std_time deviation"
_AMOUNT = "value peak memory mem peak_memory peak_mem max_memory allocated peak_allocated amount"


@dataclass(frozen=True)
class Names:
    """What the columns of one layout of table are called, the best name first."""

    texts: Mapping[str, str]
    times: Mapping[str, str] = field(default_factory=dict)
    amounts: Mapping[str, str] = field(default_factory=dict)


MODEL_TIMING = Names({**_SHARED, **_OF_A_MODEL, **_PHASE}, {"mean": _TIME, "std": _DEVIATION})
ATTENTION_TIMING = Names(
    {
        **_SHARED,
        **_PHASE,
        "n_measured": _SHARED["n_measured"].replace(" n ", " "),  # the length of many a table of attention
        "seq_len": "seq_len seqlen sequence_length seq_length seq length context context_length ctx n_ctx l t n",
        "d_model": "d_model d head_dim d_head dim width embed_dim dmodel head_size headdim",
        "heads": "heads n_heads num_heads nheads h",
        "causal": "causal_mask causal is_causal",
    },
    {"mean": _TIME, "std": _DEVIATION},
)
MEMORY = Names(
    {
        **_SHARED,
        **_OF_A_MODEL,
        "object": "object",
        "mode": "mode phase what quantity",
        "context": f"{_OF_A_MODEL['context']} length",
    },
    amounts={"value": _AMOUNT},
)
KERNELS = Names(
    {
        **{name: _SHARED[name] for name in ("source", "gpu", "batch", "unit")},
        "size": _OF_A_MODEL["size"],
        "context": _OF_A_MODEL["context"],
        "scope": "scope phase pass range",
        "kernel": "kernel kernel_name name",
        "calls": "calls instances count invocations launches",
        "pct": "pct_of_gpu_time time_pct pct percent share_pct percentage share",
    },
    {"total": "total total_time time cuda_total", "average": "avg average mean avg_time", "std": _DEVIATION},
)


@dataclass(frozen=True)
class Layout:
    """Where a table has its columns."""

    header: Sequence[str]
    places: Mapping[str, int]
    seconds: Mapping[str, float]
    """Of one unit, for columns of times whose header names it."""
    bytes: Mapping[str, tuple[float, float]]
    """The same for amounts: fewest and most."""
    works: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """What the reader made of the cells that say which work was timed."""


def layout_of(header: Sequence[str], names: Names) -> Layout:
    normal = [normal_name(name) for name in header]
    places: dict[str, int] = {}
    seconds: dict[str, float] = {}
    sizes: dict[str, tuple[float, float]] = {}
    for column, words in names.texts.items():
        place = next((normal.index(word) for word in words.split() if word in normal), None)
        if place is not None:
            places[column] = place
    taken = set(places.values())
    for column, words in names.times.items():
        found = _measured(normal, words.split(), is_alone=column == "mean", taken=taken, is_unit=seconds_in)
        if found is not None:
            places[column], unit = found
            per_unit = seconds_in(unit)
            seconds |= {column: per_unit} if per_unit else {}
            taken.add(places[column])
    for column, words in names.amounts.items():
        found = _measured(normal, words.split(), is_alone=True, taken=taken, is_unit=bytes_in)
        if found is not None:
            places[column], unit = found
            per_byte = bytes_in(unit)
            sizes |= {column: per_byte} if per_byte else {}
    return Layout(header, places, seconds, sizes)


def is_time(name: str) -> bool:
    """Of a header's name in `normal_name`'s form."""
    return _measured([name], _TIME.split(), is_alone=True, taken=set(), is_unit=seconds_in) is not None


def is_deviation(name: str) -> bool:
    return _measured([name], _DEVIATION.split(), is_alone=False, taken=set(), is_unit=seconds_in) is not None


def normal_name(name: str) -> str:
    """`Time (%)` as `time_pct`, `Mean [µs]` as `mean_us`; a unit of bytes keeps its remark, `MiB (written MB)`."""
    if bytes_in(name) is not None:
        return name.casefold().strip()
    plain = name.casefold().replace("µ", "u").replace("μ", "u").replace("%", " pct ")
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def _measured(
    normal: Sequence[str], stems: Sequence[str], is_alone: bool, taken: set[int], is_unit: object
) -> tuple[int, str] | None:
    """Place and unit of the first column called by a stem, with or without a unit, or by a unit alone."""
    assert callable(is_unit)
    for stem in stems:
        for place, name in enumerate(normal):
            rest = name.removeprefix(stem).removeprefix("_") if name.startswith(stem) else None
            if place not in taken and rest is not None and (name == stem or (name != stem + rest and is_unit(rest))):
                return place, rest
    alone = [place for place, name in enumerate(normal) if place not in taken and is_unit(name)]
    return (alone[0], normal[alone[0]]) if is_alone and alone else None
