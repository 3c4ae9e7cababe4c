"""Peaks of known GPUs from their vendor's datasheets. In: a name as torch or a user writes it. Out: a `Gpu`.

Every rate is dense: datasheets of Ampere and later print tensor rates with sparsity, which is twice as much. `fp32` is
the rate of the FFMA units, the only ones that `fp32` with TF32 off may use.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

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
    clock_margin: float
    """By how much a card may exceed its rates: data-centre parts are rated at their highest clock, GeForce below it."""
    source: str
    aliases: tuple[str, ...]
    """Words that, found together in a name, mean this card."""

    @property
    def compute_major(self) -> int | None:
        """Major compute capability of cards whose libraries have rules of their own; None for the others."""
        return _COMPUTE_MAJORS.get(self.source)

    def flops_per_second(self, precision: str) -> float | None:
        """Peak of matrix products in `precision` (`fp16-unscaled` is `fp16`); None where the card has no such path.

        Raises ValueError for an unknown precision.
        """
        known = precision.removesuffix("-unscaled")
        if known not in _RATES:
            raise ValueError(f"There is no peak for precision {precision!r}; known: {', '.join(_RATES)}.")
        return self.rates.get(known)


PASCAL = "NVIDIA Tesla P100 datasheet, PB-08284-001, and NVIDIA Tesla P100 whitepaper, WP-08019-001"
VOLTA = "NVIDIA V100 datasheet, January 2020, and NVIDIA Tesla V100 GPU Architecture whitepaper, WP-08608-001"
TU102 = "NVIDIA Turing GPU Architecture whitepaper, WP-09183-001: the Founders Edition"
TURING = "NVIDIA T4 datasheet and NVIDIA Turing GPU Architecture whitepaper, WP-09183-001"
AMPERE = "NVIDIA A100 datasheet and NVIDIA A100 Tensor Core GPU Architecture whitepaper, table 2"
A800 = "NVIDIA A800 datasheet: an A100 with a slower NVLink"
A30 = "NVIDIA A30 datasheet (tensor rates printed with sparsity)"
A10 = "NVIDIA A10 datasheet"
A40 = "NVIDIA A40 datasheet (tensor rates printed with sparsity)"
RTX_A6000 = "NVIDIA RTX A6000 datasheet, and NVIDIA Ampere GA102 GPU Architecture whitepaper"
L4 = "NVIDIA L4 datasheet (tensor rates printed with sparsity)"
L40 = "NVIDIA L40 datasheet"
L40S = "NVIDIA L40S datasheet"
RTX_6000 = "NVIDIA RTX 6000 Ada Generation datasheet, and NVIDIA Ada GPU Architecture whitepaper"
HOPPER = "NVIDIA H100 datasheet and NVIDIA H100 Tensor Core GPU Architecture whitepaper, table 2"
H200 = "NVIDIA H200 datasheet (tensor rates printed with sparsity)"
GH200 = "NVIDIA GH200 Grace Hopper Superchip datasheet"
H800 = "Lenovo Press LP1732, ThinkSystem NVIDIA H800: an H100 with a slower NVLink"
H20 = "NVIDIA H20 specification as printed by server vendors; NVIDIA publishes no page of its own"
BLACKWELL = "NVIDIA Blackwell Architecture Technical Brief: HGX B200 at 1000 W, GB200 at 1200 W"
GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix A"
ADA = "NVIDIA Ada GPU Architecture whitepaper, appendix A"
ADA_LAPTOP = "nvidia.com, GeForce RTX 40 Series laptops, compared: CUDA cores x 2 x highest boost clock"
GB202 = "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A"
GB202_PRO = "NVIDIA RTX PRO Blackwell GPU Architecture whitepaper and RTX PRO 6000 datasheet"

_DATA_CENTRE, _GEFORCE = 1.0, 1.1

_COMPUTE_MAJORS = {
    PASCAL: 6, VOLTA: 7, TURING: 7, TU102: 7,
    HOPPER: 9, H200: 9, GH200: 9, H800: 9, H20: 9, BLACKWELL: 10, GB202: 12, GB202_PRO: 12,
}  # fmt: skip


def _gpu(
    name: str,
    memory: float,
    bandwidth: float,
    rates: Sequence[float | None],
    l2: float | None,
    margin: float,
    source: str,
    aliases: str,
) -> Gpu:
    """In the units of the table below."""
    known = {precision: rate * 1e12 for precision, rate in zip(_RATES, rates, strict=True) if rate is not None}
    l2_bytes = None if l2 is None else int(l2 * 2**20)
    return Gpu(name, int(memory * GIB), bandwidth * 1e9, known, l2_bytes, margin, source, tuple(aliases.split("|")))


_CARDS = (
    # name, memory GB, GB/s, TFLOP/s in (fp32, tf32, bf16, fp16), L2 MB, clock margin, source, aliases
    _gpu("P100-PCIe-12GB", 12, 549, (9.3, None, None, 18.7), 3, _DATA_CENTRE, PASCAL, "p100 pcie 12gb"),
    _gpu("P100-PCIe-16GB", 16, 732, (9.3, None, None, 18.7), 4, _DATA_CENTRE, PASCAL, "p100 pcie"),
    _gpu("P100-SXM2-16GB", 16, 732, (10.6, None, None, 21.2), 4, _DATA_CENTRE, PASCAL, "p100|p100 sxm2"),
    _gpu("V100-PCIe-16GB", 16, 900, (14.0, None, None, 112), 6, _DATA_CENTRE, VOLTA, "v100 pcie|v100 pcie 16gb"),
    _gpu("V100-PCIe-32GB", 32, 900, (14.0, None, None, 112), 6, _DATA_CENTRE, VOLTA, "v100 pcie 32gb"),
    _gpu("V100S-PCIe-32GB", 32, 1134, (16.4, None, None, 130), 6, _DATA_CENTRE, VOLTA, "v100s"),
    _gpu("V100-SXM2-16GB", 16, 900, (15.7, None, None, 125), 6, _DATA_CENTRE, VOLTA, "v100|v100 sxm2|v100 sxm2 16gb"),
    _gpu("V100-SXM2-32GB", 32, 900, (15.7, None, None, 125), 6, _DATA_CENTRE, VOLTA, "v100 32gb|v100 sxm2 32gb"),
    _gpu("T4", 16, 320, (8.1, None, None, 65), 4, _DATA_CENTRE, TURING, "t4"),
    _gpu("A100-40GB", 40, 1555, (19.5, 156, 312, 312), 40, _DATA_CENTRE, AMPERE, "a100|a100 40gb|a100 40"),
    _gpu("A100-PCIe-80GB", 80, 1935, (19.5, 156, 312, 312), 40, _DATA_CENTRE, AMPERE, "a100|a100 80gb pcie"),
    _gpu("A100-SXM-80GB", 80, 2039, (19.5, 156, 312, 312), 40, _DATA_CENTRE, AMPERE, "a100|a100 80gb|a100 80"),
    _gpu("A800-PCIe-40GB", 40, 1555, (19.5, 156, 312, 312), 40, _DATA_CENTRE, A800, "a800 40gb|a800 pcie 40gb"),
    _gpu("A800-PCIe-80GB", 80, 1935, (19.5, 156, 312, 312), 40, _DATA_CENTRE, A800, "a800 pcie|a800 80gb pcie"),
    _gpu("A800-SXM-80GB", 80, 2039, (19.5, 156, 312, 312), 40, _DATA_CENTRE, A800, "a800|a800 80gb"),
    _gpu("A30", 24, 933, (10.3, 82, 165, 165), 24, _DATA_CENTRE, A30, "a30"),
    _gpu("A10", 24, 600, (31.2, 62.5, 125, 125), 6, _DATA_CENTRE, A10, "a10"),
    _gpu("A40", 48, 696, (37.4, 74.8, 149.7, 149.7), 6, _DATA_CENTRE, A40, "a40"),
    _gpu("RTX A6000", 48, 768, (38.7, 77.4, 154.8, 154.8), 6, _GEFORCE, RTX_A6000, "a6000"),
    _gpu("L4", 24, 300, (30.3, 60, 121, 121), 48, _DATA_CENTRE, L4, "l4"),
    _gpu("L40", 48, 864, (90.5, 90.5, 181, 181), 96, _DATA_CENTRE, L40, "l40"),
    _gpu("L40S", 48, 864, (91.6, 183, 362, 362), 96, _DATA_CENTRE, L40S, "l40s"),
    _gpu("RTX 6000 Ada", 48, 960, (91.1, 182.1, 364.2, 364.2), 96, _GEFORCE, RTX_6000, "rtx 6000 ada"),
    _gpu("H100-PCIe", 80, 2039, (51.2, 378, 756, 756), 50, _DATA_CENTRE, HOPPER, "h100 pcie"),
    _gpu("H100-NVL", 94, 3938, (60.0, 417.5, 835, 835), 50, _DATA_CENTRE, HOPPER, "h100 nvl|h100 94gb"),
    _gpu("H100-SXM", 80, 3352, (66.9, 494.7, 989.4, 989.4), 50, _DATA_CENTRE, HOPPER, "h100"),
    _gpu("GH200-96GB", 96, 4000, (66.9, 494.7, 989.4, 989.4), 60, _DATA_CENTRE, GH200, "gh200|gh200 96gb"),
    _gpu("GH200-144GB", 144, 4900, (66.9, 494.7, 989.4, 989.4), 60, _DATA_CENTRE, GH200, "gh200 144gb"),
    _gpu("H800-PCIe", 80, 2039, (51.2, 378, 756, 756), 50, _DATA_CENTRE, H800, "h800 pcie"),
    _gpu("H800-SXM", 80, 3352, (66.9, 494.7, 989.4, 989.4), 50, _DATA_CENTRE, H800, "h800"),
    _gpu("H20", 96, 4000, (44.0, 74, 148, 148), 60, _DATA_CENTRE, H20, "h20"),
    _gpu("H200-NVL", 141, 4800, (60.0, 417.5, 835, 835), 60, _DATA_CENTRE, H200, "h200 nvl"),
    _gpu("H200-SXM", 141, 4800, (66.9, 494.7, 989.4, 989.4), 60, _DATA_CENTRE, H200, "h200"),
    _gpu("B200", 180, 8000, (80.0, 1125, 2250, 2250), 126, _DATA_CENTRE, BLACKWELL, "b200"),
    _gpu("GB200", 186, 8000, (90.0, 1250, 2500, 2500), 126, _DATA_CENTRE, BLACKWELL, "gb200"),
    _gpu("RTX 2080 Ti", 11, 616, (14.2, None, None, 56.9), 5.5, _GEFORCE, TU102, "rtx 2080 ti"),
    _gpu("RTX 3070", 8, 448, (20.3, 20.3, 40.6, 40.6), 4, _GEFORCE, GA102, "rtx 3070"),
    _gpu("RTX 3080", 10, 760, (29.8, 29.8, 59.5, 59.5), 5, _GEFORCE, GA102, "rtx 3080"),
    _gpu("RTX 3090", 24, 936, (35.6, 35.6, 71, 71), 6, _GEFORCE, GA102, "rtx 3090"),
    _gpu("RTX 3090 Ti", 24, 1008, (40.0, 40.0, 80.0, 80.0), 6, _GEFORCE, GA102, "rtx 3090 ti"),
    _gpu("RTX 4060", 8, 272, (15.1, 15.1, 30.2, 30.2), 24, _GEFORCE, ADA, "rtx 4060"),
    _gpu("RTX 4060 Laptop", 8, 256, (14.6, 14.6, 29.1, 29.1), 32, _GEFORCE, ADA_LAPTOP, "rtx 4060 laptop"),
    _gpu("RTX 4070 Ti", 12, 504, (40.1, 40.1, 80.2, 80.2), 48, _GEFORCE, ADA, "rtx 4070 ti"),
    _gpu("RTX 4080", 16, 717, (48.7, 48.7, 97.5, 97.5), 64, _GEFORCE, ADA, "rtx 4080"),
    _gpu("RTX 4090", 24, 1008, (82.6, 82.6, 165.2, 165.2), 72, _GEFORCE, ADA, "rtx 4090"),
    _gpu("RTX 4090 Laptop", 16, 576, (39.7, 39.7, 79.4, 79.4), 64, _GEFORCE, ADA_LAPTOP, "rtx 4090 laptop"),
    _gpu("RTX 5070 Ti", 16, 896, (43.9, 43.9, 87.9, 87.9), 48, _GEFORCE, GB202, "rtx 5070 ti"),
    _gpu("RTX 5080", 16, 960, (56.3, 56.3, 112.6, 112.6), 64, _GEFORCE, GB202, "rtx 5080"),
    _gpu("RTX 5090", 32, 1792, (104.8, 104.8, 209.5, 209.5), 96, _GEFORCE, GB202, "rtx 5090"),
    _gpu("RTX PRO 6000 Blackwell", 96, 1792, (126.0, 251.9, 503.8, 503.8), 128, _GEFORCE, GB202_PRO, "rtx pro 6000"),
)  # fmt: skip
GPUS = {gpu.name: gpu for gpu in _CARDS}
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
    """As `gpu_named`, but where a name leaves form factor or memory open, with the highest peaks of all cards it fits.

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


_MOST_GB = max(gpu.memory_bytes for gpu in _CARDS) // GIB
"""More in a name is a host's memory: torch calls a GH200 `NVIDIA GH200 480GB`."""
_ALIAS_WORDS = {word for gpu in _CARDS for alias in gpu.aliases for word in alias.split()}


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
    rates = tuple(given.get(name) for name in _RATES)
    return _gpu(text, given["memory"], given["bandwidth"], rates, None, 1.0, "given by hand", "")
