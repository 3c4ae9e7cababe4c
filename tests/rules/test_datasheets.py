"""A card is known by the names that torch and people give it; what room it leaves and what its libraries do follow."""

import pytest

from perf_tests_suite.perf_tests.hardware import datasheets as sheets
from perf_tests_suite.perf_tests.hardware.datasheets import (
    BY_HAND,
    CONFIG,
    DEPRIORITIZED,
    GIB,
    GPUS,
    gpu_named,
    libraries_on,
)
from perf_tests_suite.perf_tests.hardware.limits import has_64_lanes

MIB = 2**20

NAMES = {
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA A100-SXM4-40GB": "A100-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "Tesla P100-PCIE-16GB": "P100-PCIe-16GB",
    "Tesla V100-SXM2-32GB": "V100-SXM2-32GB",
    "NVIDIA L4": "L4",
    "NVIDIA GeForce RTX 3090 Ti": "RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "RTX 4090 Laptop",
    "RTX4090": "RTX 4090",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GeForce RTX 5050": "RTX 5050",
    "NVIDIA GeForce RTX 5060 Ti": "RTX 5060 Ti",
    "P100-PCIe-16GB (Kaggle)": "P100-PCIe-16GB",
    "V100 (32 GB)": "V100-SXM2-32GB",
    "A100 (SXM, 40GB)": "A100-40GB",
    "A100-80": "A100-SXM-80GB",
    "A100-80GB-class (inferred: 2x8.125 MiB workspaces, so not Hopper)": "A100-SXM-80GB",
    "H20 (8x box)": "H20",
}


def test_a_card_is_recognised_by_the_names_in_use() -> None:
    names = NAMES | {name: name for name in GPUS}
    assert {text: gpu_named(text).name for text in names} == names


REFUSED = {
    **dict.fromkeys(
        ("NVIDIA GeForce RTX 3080 Ti", "NVIDIA GeForce RTX 4090 D", "RTX 4060 / T4?", "T4?", "Apple M3",
         "", "NVIDIA GeForce RTX 3080 12GB", "Quadro RTX 6000"),
        r"known: P100-PCIe.*by its peaks, for example memory=24GiB",
    ),
    "A100": "may be A100-40GB or A100-PCIe-80GB or A100-SXM-80GB",
    **dict.fromkeys(
        ("8x H100", "8xH100", "H100 x 8", "H100-SXM5-80GB \N{MULTIPLICATION SIGN}8", "8 H100 GPUs", "H100 (x8)"),
        r"names 8 cards; name one\.",
    ),
    "2x H100": "names 2 cards",
    "memory=24GiB;bandwidth=1;fp32=1": "has semicolons; write its peaks with commas in between",
    "memory=24GiB": "lacks bandwidth and fp32",
    "memory=24furlongs,bandwidth=1,fp32=1": "has memory in furlongs; give it in GiB, as in memory=",
    "memory=-80GB,bandwidth=1,fp32=1": "has memory of -80 GB; give a number above 0",
    "memory=-24GiB,bandwidth=1,fp32=1": "has memory of -24 GiB; give a number above 0",
    "memory=24,bandwidth=0,fp32=1": "has bandwidth of 0 GB/s; give a number above 0",
    "memory=24,bandwidth=1TB/s,fp32=1": "has bandwidth in TB/s; give it in GB/s",
    "memory=24,bandwidth=fast,fp32=1": "'bandwidth=fast', which is not of the form",
    "memory=24,memory=24,bandwidth=1,fp32=1": "'memory=24', which is not of the form",
}  # fmt: skip


def test_what_names_no_single_card_is_refused_with_what_to_give() -> None:
    for text, words in REFUSED.items():
        with pytest.raises(ValueError, match=words):
            gpu_named(text)


STRONGEST = {
    "NVIDIA A100": ("A100-SXM-80GB", 80), "A100-PCIE-40GB": ("A100-40GB", 40), "V100": ("V100-SXM2-32GB", 32),
    "H100": ("H100-PCIe, H100-NVL or H100-SXM", 94), "NVIDIA H100 PCIe": ("H100-PCIe", 80),
    "RTX 4090": ("RTX 4090", 24),
}  # fmt: skip


def test_a_name_that_leaves_cards_open_has_the_highest_peaks_of_them_all() -> None:
    for text, (name, memory_gib) in STRONGEST.items():
        gpu = sheets.strongest_named(text)
        families = [card for card in GPUS.values() if card.name in name.replace(" or ", ", ").split(", ")]
        assert (gpu.name, gpu.memory_bytes, gpu.bytes_per_second, gpu.rates["fp32"]) == (
            name, memory_gib * GIB, max(card.bytes_per_second for card in families),
            max(card.rates["fp32"] for card in families),
        )  # fmt: skip


def test_a_card_has_its_dense_rates_and_what_its_architecture_rules() -> None:
    """A narrower format is never slower, and a path that a card lacks has no rate."""
    h100, t4 = GPUS["H100-SXM"], GPUS["T4"]
    assert (h100.rates["fp32"], h100.rates["bf16"]) == pytest.approx((66.9e12, 989.4e12))
    assert GPUS["L4"].bytes_per_second == 300e9
    assert (t4.flops_per_second("bf16"), t4.flops_per_second("fp16-unscaled")) == (None, 65e12)
    assert h100.flops_per_second("bf16-tensors") == h100.rates["bf16"]
    with pytest.raises(ValueError, match="fp8"):
        t4.flops_per_second("fp8")
    majors = {"H200-SXM": (9, 60), "B200": (10, 126), "RTX 5090": (12, 96), "T4": (7, 4), "A100-SXM-80GB": (None, 40)}
    for name, (major, mebibytes) in majors.items():
        assert (GPUS[name].compute_major, GPUS[name].l2_cache_bytes) == (major, mebibytes * MIB)
    for gpu in GPUS.values():
        present = [gpu.rates[name] for name in ("fp32", "tf32", "bf16") if name in gpu.rates]
        assert present == sorted(present), gpu.name
        clocks = gpu.rates["fp32"] / (2 * (gpu.multiprocessors or 0))
        hertz = clocks / (64 if has_64_lanes(gpu) else 128)
        assert 1.25e9 < hertz < 2.65e9, f"{gpu.name} has other multiprocessors, or another rate"


def test_peaks_by_hand_are_read_with_their_units() -> None:
    gpu = gpu_named(BY_HAND)
    assert (gpu.memory_bytes, gpu.bytes_per_second, gpu.rates["fp32"]) == (24 * GIB, 300e9, 30.3e12)
    assert gpu_named("memory=8,bandwidth=100,fp32=5").flops_per_second("bf16") is None


def test_the_room_on_a_card_is_what_programs_are_shown_less_the_context() -> None:
    """What `torch.cuda.get_device_properties` reports of these cards, in GiB, within 2 %."""
    seen = {"A100-80GB": 79.25, "H100": 79.11, "RTX 4090": 23.65, "T4": 14.75, "L4": 22.05}
    room = {name: (sheets.room_on(gpu_named(name)).bytes + 0.5e9) / GIB for name in seen}
    assert room == pytest.approx(seen, rel=0.02)


def test_fragmentation_stands_between_fitting_and_not() -> None:
    verdicts = [sheets.Room(1050, "made up").verdict(peak) for peak in (1000, 1001, 1050, 1051)]
    assert verdicts == [sheets.FITS, sheets.MAY_NOT_FIT, sheets.MAY_NOT_FIT, sheets.DOES_NOT_FIT]


WORKSPACES = [
    (None, "2.13.0+cu130", {}, 8.125), (8, "2.11.0", {}, 8.125), (9, "2.9.1", {}, 32), (12, "2.11.0", {}, 8.125),
    (12, "2.12.0", {}, 32), (10, "2.12.0", {}, 32), (9, "2.13.0", {CONFIG: ":4096:8"}, 32),
    (9, "2.13.0", {CONFIG: ":4096:2:16:8"}, 8.125), (9, "2.13.0", {CONFIG: ":0:0"}, 0),
    (9, "2.13.0", {CONFIG: "large"}, 32),  # torch warns and takes its default
]  # fmt: skip
CUDNN, EFFICIENT, FLASH = sheets.CUDNN, sheets.EFFICIENT, sheets.FLASH
KERNELS = [
    (9, "2.11.0", {}, None, CUDNN), (10, "2.13.0", {}, None, CUDNN), (9, "2.10.0", {}, None, FLASH),
    (9, "2.13.0", {}, 91002, FLASH),  # the system's cuDNN in front of the wheel's
    (9, "2.10.0", {}, 91500, FLASH), (9, "2.10.0", {}, 91501, CUDNN), (9, "2.13.0", {DEPRIORITIZED: "1"}, 91501, FLASH),
    (9, "2.13.0", {DEPRIORITIZED: "0"}, 91501, CUDNN), (8, "2.13.0", {}, 91501, FLASH),
    (7, "2.13.0", {}, 91501, EFFICIENT), (12, "2.13.0", {}, 91501, FLASH), (None, "2.13.0", {}, None, FLASH),
]  # fmt: skip


def test_cublas_and_fused_attention_follow_torchs_rules() -> None:
    """Major compute capability, torch, environment, perhaps cuDNN; MiB of workspace and the kernel tried first."""
    for major, version, environment, mebibytes in WORKSPACES:
        found = libraries_on(major, version, environment)
        assert found.workspace_bytes == mebibytes * MIB, (major, version, environment)
        assert (f"{CONFIG}=" in found.workspace_rule) == (environment.get(CONFIG, "large") != "large")
    for major, version, environment, cudnn, kernel in KERNELS:
        assert libraries_on(major, version, environment, cudnn).sdpa == kernel, (major, version, environment, cudnn)
