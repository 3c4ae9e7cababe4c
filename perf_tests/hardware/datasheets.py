"""Peaks of known GPUs (`datasheets.toml`), the room that one leaves for tensors, and the rules of its CUDA libraries.

`gpu_named` takes a name as torch, a table or a user writes it. No torch."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

GIB = 2**30
_RATES = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Gpu:
    """The peaks of one card; a path that it only emulates counts as missing."""

    name: str
    memory_bytes: int
    """The datasheet's capacity, its GB being 2**30; a program sees 1 to 6 % less (driver, error correction)."""
    bytes_per_second: float
    rates: Mapping[str, float]
    """FLOP/s by precision, without paths that the card lacks; bf16 and fp16 of tensor cores that accumulate in fp32.

    The P100 has none and multiplies halves at twice its fp32 rate.
    """
    l2_cache_bytes: int | None
    """None where no public source has it."""
    aliases: tuple[str, ...]
    """Words that, found together in a name, mean this card."""
    source: str = "given by hand"
    clock_margin: float = 1.0
    """The factor by which a card may exceed its rates: data-centre parts are rated at their highest clock, GeForce
    below it."""
    tensor_clock_margin: float | None = None
    """The same of every rate but fp32's where it differs: Hopper's are stated at a lower clock than its fp32 rate."""
    compute_major: int | None = None
    """Major compute capability of cards whose libraries have rules of their own; None for the others."""
    multiprocessors: int | None = None
    """None for a card described by hand."""

    def flops_per_second(self, precision: str) -> float | None:
        """Peak of matrix products in `precision` (`fp16-unscaled` is `fp16`); None where the card has no such path.

        Raises ValueError for an unknown precision.
        """
        known = rate_name(precision)
        if known not in _RATES:
            raise ValueError(f"There is no peak for precision {precision!r}; known: {', '.join(_RATES)}.")
        return self.rates.get(known)

    def clock_margin_of(self, precision: str) -> float:
        """Return by how much the card may exceed its rate in `precision`."""
        return self.clock_margin if precision == "fp32" else self.tensor_clock_margin or self.clock_margin


def rate_name(precision: str) -> str:
    """Return the rate of a precision's products: `fp16` of `fp16-unscaled`, `bf16` of `bf16-tensors`."""
    return precision.removesuffix("-unscaled").removesuffix("-tensors")


def _gpu(
    name: str, memory_gib: float, gb_per_second: float, tflops: Mapping[str, float], l2_mib: float | None = None,
    aliases: Sequence[str] = (), **more: Any,
) -> Gpu:  # fmt: skip
    """Return the card in the units of `datasheets.toml`."""
    rates = {precision: rate * 1e12 for precision, rate in tflops.items()}
    l2_cache_bytes = None if l2_mib is None else int(l2_mib * 2**20)
    return Gpu(name, int(memory_gib * GIB), gb_per_second * 1e9, rates, l2_cache_bytes, tuple(aliases), **more)


_SHEETS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["datasheets"]
GPUS = {
    card["name"]: _gpu(**card, **{name: value for name, value in sheet.items() if name != "cards"})
    for sheet in _SHEETS
    for card in sheet["cards"]
}
"""Every card with a datasheet here. A name without a form factor means the faster one."""

BY_HAND = "memory=24GiB,bandwidth=300GB/s,fp32=30.3,tf32=60,bf16=121,fp16=121"
"""The peaks of another card, rates in TFLOP/s; a rate left out is a path that the card lacks."""

_GIVEN = ("memory", "bandwidth", *_RATES)

# A name with one of these means another card than the same name without it.
_QUALIFIERS = {"ti", "super", "laptop", "mobile", "max", "d", "nvl", "mig", "ada", "unknown", "not"}


_COUNTED = re.compile(
    r"(?<![\w.])(\d+) ?x ?(?=[a-z])|(?<![a-z])x ?(\d{1,3})(?!\w)|(?<!\w)(\d+) (?:\w+ )?(?:gpus|cards)(?!\w)"
)
"""`8x H100`, `H100 x8`, `8 H100 GPUs`, and the same in a remark of its own: several cards, whose work is shared."""


def gpu_named(text: str) -> Gpu:
    """The card that `text` names: torch's device name, a table's, one of `GPUS`, or peaks in the form of `BY_HAND`.

    Of remarks in parentheses only a capacity and a form factor are read. Raises ValueError when none, several kinds or
    several pieces match.
    """
    if text.partition("=")[0].strip() in _GIVEN:
        return _by_hand(text)
    pieces = pieces_named(text)
    if pieces > 1:
        raise ValueError(f"GPU {text!r} names {pieces} cards; name one.")
    words = _words(text)
    found: dict[str, int] = {}
    for gpu in filter(lambda gpu: _has_as_much(gpu, words), GPUS.values()):
        for alias in gpu.aliases:
            needed = set(alias.split())
            if needed <= words and not (words - needed) & _QUALIFIERS:
                found[gpu.name] = max(len(needed), found.get(gpu.name, 0))
    best = [name for name, length in found.items() if length == max(found.values())]
    if len(best) != 1 or "?" in text:
        why = f"may be {' or '.join(best)}" if best else "has no datasheet here"
        raise ValueError(
            f"GPU {text!r} {why}; known: {', '.join(GPUS)}. "
            f"Describe another card by its peaks, for example {BY_HAND} (TFLOP/s)."
        )
    return GPUS[best[0]]


@lru_cache(maxsize=4096)
def pieces_named(text: str) -> int:
    """How many cards a name counts, `8x H100`; 1 where it counts none."""
    plain = text.casefold().replace("*", "x").replace("\N{MULTIPLICATION SIGN}", "x")
    # A remark such as `(8x box)` is about the machine; only a count alone is about the measurement.
    remarks = re.findall(r"\( ?(x ?\d+|\d+ ?x|\d+ (?:gpus|cards)) ?\)", plain)
    counted = [*_COUNTED.findall(_without_remarks(plain)), *([re.sub(r"\D", "", remark)] for remark in remarks)]
    return max((int(count) for found in counted for count in found if count), default=1)


def _without_remarks(text: str) -> str:
    return re.sub(r"\([^()]*\)", " ", text)


def _words(text: str) -> set[str]:
    plain = re.sub(r"(?<!\w)rtx(?=\d)", "rtx ", text.casefold())
    remarks = " ".join(re.findall(r"\(([^()]*)\)", plain))
    named = re.findall(r"(?<![\w.])(?:\d+ ?gi?b|pcie|sxm\d?|nvl)(?!\w)", remarks)
    words = re.findall(r"[a-z0-9]+", _without_remarks(plain))
    return {*words, *(re.sub("gi?b$", "gb", word.replace(" ", "")) for word in named)}


def _has_as_much(gpu: Gpu, words: set[str]) -> bool:
    """Whether the card has the capacity that a name states: an RTX 3080 of 12 GB is another than that of 10."""
    stated = [int(found[1]) for word in words if (found := re.fullmatch(r"(\d+)gb", word))]
    return all(GIB * size <= 1.1 * gpu.memory_bytes for size in stated if size <= _MOST_GB)


def strongest_named(text: str) -> Gpu:
    """Return the card named; where form factor or memory are left open, the highest peaks of all cards it fits.

    No machine of that name does more. Raises ValueError.
    """
    fitting = _fitting(text)
    if len(fitting) < 2 or "?" in text or pieces_named(text) > 1:
        return gpu_named(text)
    names = [gpu.name for gpu in fitting]
    best = replace(
        fitting[0],
        name=f"{', '.join(names[:-1])} or {names[-1]}",
        memory_bytes=max(gpu.memory_bytes for gpu in fitting),
        bytes_per_second=max(gpu.bytes_per_second for gpu in fitting),
        rates={precision: max(gpu.rates[precision] for gpu in fitting) for precision in fitting[0].rates},
        l2_cache_bytes=max(gpu.l2_cache_bytes or 0 for gpu in fitting),
        multiprocessors=max(gpu.multiprocessors or 0 for gpu in fitting),
    )
    # One card that has them all is named alone.
    return next((gpu for gpu in fitting if replace(best, name=gpu.name, aliases=gpu.aliases) == gpu), best)


def _fitting(text: str) -> list[Gpu]:
    words = _words(text)
    said = words & _ALIAS_WORDS
    if not said or (words - said) & _QUALIFIERS:
        return []
    # `RTX 4090` is not the laptop's, but `H100` may be the H100 NVL.
    another = _QUALIFIERS - said - {"nvl"}
    aliases = [(gpu, set(alias.split())) for gpu in GPUS.values() for alias in gpu.aliases]
    found = {gpu.name: gpu for gpu, alias in aliases if said <= alias and not alias & another}
    return [gpu for gpu in found.values() if _has_as_much(gpu, words)]


_MOST_GB = max(gpu.memory_bytes for gpu in GPUS.values()) // GIB
"""More in a name is a host's memory: torch calls a GH200 `NVIDIA GH200 480GB`."""
_ALIAS_WORDS = {word for gpu in GPUS.values() for alias in gpu.aliases for word in alias.split()}


def _by_hand(text: str) -> Gpu:
    given: dict[str, float] = {}
    if ";" in text:
        raise ValueError(f"GPU {text!r} has semicolons; write its peaks with commas in between, as in {BY_HAND}.")
    for part in text.split(","):
        name, _, figure = (piece.strip() for piece in part.partition("="))
        match = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([A-Za-z/]*)", figure)
        unit = {"memory": "GiB", "bandwidth": "GB/s"}.get(name, "TFLOP/s")
        if match is None or name not in _GIVEN or name in given:
            raise ValueError(f"GPU {text!r} has {part.strip()!r}, which is not of the form of {BY_HAND}.")
        if float(match[1]) <= 0:
            figure = f"{match[1]} {match[2] or unit}"
            raise ValueError(f"GPU {text!r} has {name} of {figure}; give a number above 0, as in {BY_HAND}.")
        if match[2] not in ("", unit):
            raise ValueError(f"GPU {text!r} has {name} in {match[2]}; give it in {unit}, as in {BY_HAND}.")
        given[name] = float(match[1])
    missing = [name for name in ("memory", "bandwidth", "fp32") if name not in given]
    if missing:
        raise ValueError(f"GPU {text!r} lacks {' and '.join(missing)}; give at least memory, bandwidth and fp32.")
    return _gpu(text, given["memory"], given["bandwidth"], {name: given[name] for name in _RATES if name in given})


# How much of a card's memory is left for tensors, and whether a peak fits.


# GDDR cards that correct errors in line keep a sixteenth for it (a T4 of 16 GiB shows 15, an L4 or A10 of 24 shows
# 22.5, an L40S of 48 shows 45); cards with HBM have the bits beside. On top the driver keeps about 1.5 % of any card:
# an A100 of 80 GiB shows 79.2, an H100 of 80 shows 79.1, an RTX 4090 of 24 shows 23.6.
CORRECTS_ERRORS_IN_LINE = ("T4", "A10", "A10G", "A40", "L4", "L40", "L40S")
DRIVER_SHARE = 0.015

CONTEXT_BYTES = 500_000_000
"""CUDA context with PyTorch's kernels; 0.4 to 0.6 GB on the cards of the published tables."""

FRAGMENTATION_SHARE = 0.05
"""The share of the peak that is lost, because the allocator cannot fill every block, where its rules are not replayed:
a published step that needs 80.5 GB ran out of memory on a card with room for 84.1 GB
(kbjiang/cs336-assignment2-systems-mine, 2.7B at context 512)."""

FITS, MAY_NOT_FIT, DOES_NOT_FIT = "fits", "may not fit", "does not fit"


@dataclass(frozen=True)
class Room:
    bytes: int
    explanation: str

    def verdict(self, peak_bytes: int) -> str:
        """`may not fit` fits only if the allocator wastes less than `FRAGMENTATION_SHARE`."""
        if peak_bytes > self.bytes:
            return DOES_NOT_FIT
        return FITS if self.bytes_for(peak_bytes) <= self.bytes else MAY_NOT_FIT

    @staticmethod
    def bytes_for(peak_bytes: int) -> int:
        return round(peak_bytes * (1 + FRAGMENTATION_SHARE))


def room_on(gpu: Gpu) -> Room:
    in_line = 1 / 16 if gpu.name in CORRECTS_ERRORS_IN_LINE else 0.0
    kept_share = in_line + DRIVER_SHARE
    room_bytes = int(gpu.memory_bytes * (1 - kept_share)) - CONTEXT_BYTES
    return Room(
        room_bytes,
        f"{gpu.memory_bytes / 1e9:.1f} GB less {kept_share:.1%} for driver and error correction "
        f"and {CONTEXT_BYTES / 1e9:.1f} GB for the CUDA context",
    )


# What CUDA's libraries add to a case: cuBLAS's workspaces, and the kernel of scaled_dot_product_attention in 16
# bits.
#
# In: a card's compute capability, the versions of torch and cuDNN, the environment. Out: `CudaLibraries`.


HOPPER_MAJOR, BLACKWELL_MAJORS = 9, (10, 12)
"""Major compute capabilities; 10 in data centres, 12 in GeForce and workstation cards."""

WORKSPACE_BYTES, LARGE_WORKSPACE_BYTES = 8320 * 1024, 32 * 2**20
LARGE_ON_BLACKWELL_SINCE = (2, 12)

FLASH, CUDNN, EFFICIENT = "flash", "cudnn", "memory-efficient"
FLASH_SINCE = 8
"""Major compute capability of the first cards with a flash kernel in torch."""
CUDNN_AFTER = 91500
"""cuDNN's version number above which torch prefers its kernel, and the first torch whose wheels bring such a cuDNN."""
BUNDLED_SINCE = (2, 11)

CONFIG, DEPRIORITIZED = "CUBLAS_WORKSPACE_CONFIG", "TORCH_CUDNN_SDPA_DEPRIORITIZED"


@dataclass(frozen=True)
class CudaLibraries:
    """What of a case's counters depends on the card and its libraries."""

    sdpa: str
    """The kernel that torch tries first in 16 bits, `flash`, `cudnn` or `memory-efficient`."""
    workspace_bytes: int
    """Bytes of cuBLAS, for each thread that launches matrix products: from the caching allocator, kept until
    cleared."""
    workspace_rule: str
    """The origin of `workspace_bytes`, in words."""
    sdpa_rule: str
    """Why it is `sdpa`, in words."""


def libraries_on(
    compute_major: int | None, torch_version: str, environment: Mapping[str, str], cudnn_version: int | None = None
) -> CudaLibraries:
    """Apply torch's rules; an unknown card counts as Ampere, an unknown cuDNN as the one that torch's wheel brings."""
    major, minor = torch_version.split(".")[:2]
    version = int(major), int(minor)
    # PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp: pools as `:KIB:COUNT`; any other text means the default, which
    # is what NVIDIA recommends for cublasSetWorkspace. Products with a bias take cuBLASLt's workspace
    # (CUBLASLT_WORKSPACE_SIZE) out of the same block.
    pools = re.findall(r":(\d+):(\d+)", environment.get(CONFIG, ""))
    on_blackwell = compute_major in BLACKWELL_MAJORS and version >= LARGE_ON_BLACKWELL_SINCE
    workspace_bytes = LARGE_WORKSPACE_BYTES if compute_major == HOPPER_MAJOR or on_blackwell else WORKSPACE_BYTES
    workspace_rule = "torch's default on this card"
    if pools:
        workspace_bytes = sum(int(kib) * 1024 * int(count) for kib, count in pools)
        workspace_rule = f"{CONFIG}={environment[CONFIG]}"
    # PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `check_prefer_cudnn_attention`.
    if compute_major is not None and compute_major < FLASH_SINCE:
        sdpa, sdpa_rule = EFFICIENT, "torch has no flash kernel for this card"
    elif compute_major not in (HOPPER_MAJOR, BLACKWELL_MAJORS[0]):
        sdpa, sdpa_rule = FLASH, "torch's first choice"
    elif environment.get(DEPRIORITIZED) == "1":
        sdpa, sdpa_rule = FLASH, f"{DEPRIORITIZED}=1"
    elif cudnn_version is not None:
        sdpa, sdpa_rule = CUDNN if cudnn_version > CUDNN_AFTER else FLASH, f"by cuDNN {cudnn_version}"
    else:
        sdpa = CUDNN if version >= BUNDLED_SINCE else FLASH
        sdpa_rule = f"by the cuDNN of torch {major}.{minor}'s wheel"
    return CudaLibraries(sdpa, workspace_bytes, workspace_rule, sdpa_rule)
