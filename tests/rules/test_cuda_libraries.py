"""What torch's rules make of a card, its versions and the environment."""

import pytest

from perf_tests.hardware.datasheets import CONFIG, CUDNN, DEPRIORITIZED, EFFICIENT, FLASH, libraries_on

MIB = 2**20


@pytest.mark.parametrize(
    "major, torch_version, config, mebibytes",
    [
        (None, "2.13.0+cu130", None, 8.125),
        (8, "2.11.0", None, 8.125),
        (9, "2.9.1", None, 32),
        (12, "2.11.0", None, 8.125),
        (12, "2.12.0", None, 32),
        (9, "2.13.0", ":4096:8", 32),
        (9, "2.13.0", ":4096:2:16:8", 8.125),
        (9, "2.13.0", ":0:0", 0),
        (9, "2.13.0", "large", 32),  # torch warns and takes its default
    ],
)
def test_cublas_takes_the_workspace_that_torch_gives_it(
    major: int | None, torch_version: str, config: str | None, mebibytes: float
) -> None:
    environment = {} if config is None else {CONFIG: config}
    assert libraries_on(major, torch_version, environment).workspace_bytes == mebibytes * MIB


@pytest.mark.parametrize(
    "major, torch_version, environment, cudnn_version, kernel",
    [
        (9, "2.11.0", {}, None, CUDNN),
        (10, "2.13.0", {}, None, CUDNN),
        (9, "2.10.0", {}, None, FLASH),
        (9, "2.13.0", {}, 91002, FLASH),  # the system's cuDNN in front of the wheel's
        (9, "2.10.0", {}, 91501, CUDNN),
        (9, "2.13.0", {DEPRIORITIZED: "1"}, 91501, FLASH),
        (9, "2.13.0", {DEPRIORITIZED: "0"}, 91501, CUDNN),
        (8, "2.13.0", {}, 91501, FLASH),
        (7, "2.13.0", {}, 91501, EFFICIENT),
        (12, "2.13.0", {}, 91501, FLASH),
        (None, "2.13.0", {}, None, FLASH),
    ],
)
def test_the_first_kernel_of_fused_attention_is_torchs(
    major: int | None, torch_version: str, environment: dict[str, str], cudnn_version: int | None, kernel: str
) -> None:
    assert libraries_on(major, torch_version, environment, cudnn_version).sdpa == kernel
