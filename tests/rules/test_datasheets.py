"""A card is known by the names that torch and people give it, and no other card passes for it."""

import pytest

from perf_tests.hardware.datasheets import BY_HAND, GIB, GPUS, Gpu, gpu_named, strongest_named


@pytest.mark.parametrize(
    "text, name",
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200-SXM"),
        ("Tesla T4", "T4"),
        ("Tesla P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
        ("P100-PCIe-16GB (Kaggle)", "P100-PCIe-16GB"),
        ("A100-80", "A100-SXM-80GB"),
        ("A100-80GB-class (inferred: 2x8.125 MiB workspaces, so not Hopper)", "A100-SXM-80GB"),
        ("H20 (8x box)", "H20"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA A40", "A40"),
        ("RTX4090", "RTX 4090"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("V100 (32 GB)", "V100-SXM2-32GB"),
        ("A100 (SXM, 40GB)", "A100-40GB"),
        *((name, name) for name in GPUS),
    ],
)
def test_a_card_is_recognised_by_the_names_in_use(text: str, name: str) -> None:
    assert gpu_named(text) is GPUS[name]


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA GeForce RTX 3080 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "RTX 4060 / T4?",
        "NVIDIA A10G",
        "Apple M3",
        "",
        "NVIDIA GeForce RTX 3080 12GB",
        "Quadro RTX 6000",
    ],
)
def test_a_card_without_a_datasheet_passes_for_no_other(text: str) -> None:
    with pytest.raises(ValueError, match=r"known: P100-PCIe.*by its peaks") as caught:
        gpu_named(text)
    assert BY_HAND in str(caught.value)


def test_a_name_that_leaves_the_memory_open_names_the_candidates() -> None:
    with pytest.raises(ValueError, match="may be A100-40GB or A100-PCIe-80GB or A100-SXM-80GB"):
        gpu_named("A100")


@pytest.mark.parametrize(
    "text", ["8x H100", "8xH100", "H100 x 8", "H100-SXM5-80GB \N{MULTIPLICATION SIGN}8", "8 H100 GPUs", "H100 (x8)"]
)
def test_a_count_of_cards_is_no_name_of_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"names 8 cards; name one\."):
        gpu_named(text)


@pytest.mark.parametrize(
    "text, name, memory_gib",
    [
        ("NVIDIA A100", "A100-SXM-80GB", 80),
        ("A100-PCIE-40GB", "A100-40GB", 40),
        ("V100", "V100-SXM2-32GB", 32),
        ("H100", "H100-PCIe, H100-NVL or H100-SXM", 94),
        ("NVIDIA H100 PCIe", "H100-PCIe", 80),
        ("RTX 4090", "RTX 4090", 24),
    ],
)
def test_a_name_that_leaves_cards_open_has_the_highest_peaks_of_them_all(text: str, name: str, memory_gib: int) -> None:
    gpu = strongest_named(text)
    assert (gpu.name, gpu.memory_bytes) == (name, memory_gib * GIB)
    families = [card for card in GPUS.values() if card.name in name.replace(" or ", ", ").split(", ")]
    assert gpu.bytes_per_second == max(card.bytes_per_second for card in families)
    assert gpu.rates["fp32"] == max(card.rates["fp32"] for card in families)


def test_rates_are_dense() -> None:
    h100 = GPUS["H100-SXM"]
    assert h100.rates["fp32"] == pytest.approx(66.9e12)
    assert h100.flops_per_second("bf16") == pytest.approx(989.4e12)
    assert GPUS["L4"].bytes_per_second == 300e9


@pytest.mark.parametrize("name, major, l2_mebibytes", [("H200-SXM", 9, 60), ("H100-SXM", 9, 50), ("B200", 10, 126),
                                                       ("RTX 5090", 12, 96), ("T4", 7, 4),
                                                       ("A100-SXM-80GB", None, 40)])  # fmt: skip
def test_a_card_has_its_cache_and_the_rules_of_its_architecture(
    name: str, major: int | None, l2_mebibytes: int
) -> None:
    assert (GPUS[name].compute_major, GPUS[name].l2_cache_bytes) == (major, l2_mebibytes * 2**20)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_a_narrower_format_is_never_slower(gpu: Gpu) -> None:
    rates = [gpu.rates.get(precision) for precision in ("fp32", "tf32", "bf16")]
    present = [rate for rate in rates if rate is not None]
    assert present == sorted(present)


def test_a_path_that_a_card_lacks_has_no_rate() -> None:
    assert GPUS["T4"].flops_per_second("bf16") is None
    assert GPUS["T4"].flops_per_second("fp16-unscaled") == 65e12
    with pytest.raises(ValueError, match="fp8"):
        GPUS["T4"].flops_per_second("fp8")


def test_peaks_by_hand_are_read_with_their_units() -> None:
    gpu = gpu_named(BY_HAND)
    assert (gpu.memory_bytes, gpu.bytes_per_second, gpu.rates["fp32"]) == (24 * GIB, 300e9, 30.3e12)
    assert gpu_named("memory=8,bandwidth=100,fp32=5").flops_per_second("bf16") is None
