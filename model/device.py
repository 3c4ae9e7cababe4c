"""The device a suite runs on, from what a user typed."""

import torch


def device_named(text: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that can compute here; raises ValueError with the next step."""
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() and why_gpu_cannot_run(0) is None else "cpu"
    if text == "cpu":
        return torch.device("cpu")
    kind, _, number = text.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or text.endswith(":"):
        raise ValueError(f"device {text!r} is not known; choose auto, cpu, cuda or cuda:N.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise ValueError(f"device {text!r} needs an NVIDIA GPU, and torch {torch.__version__} sees none; use cpu.")
    index = int(number or 0)
    if index >= count:
        raise ValueError(f"device {text!r} does not exist; this machine has {count}: cuda:0 to cuda:{count - 1}.")
    reason = why_gpu_cannot_run(index)
    if reason:
        raise ValueError(reason)
    return torch.device("cuda", index)


def why_gpu_cannot_run(index: int) -> str | None:
    """None where this torch build holds kernels for the GPU, else a sentence that names a wheel which does."""
    major, minor = torch.cuda.get_device_capability(index)
    built_for = torch.cuda.get_arch_list()
    # A cubin runs on later minor revisions of its major; PTX (compute_NN) on anything later still.
    runs = any(
        (kind == "sm" and number // 10 == major and number % 10 <= minor)
        or (kind == "compute" and number <= major * 10 + minor)
        for kind, number in (_split_architecture(name) for name in built_for)
    )
    if runs:
        return None
    return (
        f"GPU {torch.cuda.get_device_name(index)} has compute capability {major}.{minor}, but torch "
        f"{torch.__version__} was built for {' '.join(built_for)}; install the wheel of another CUDA version "
        "(https://pytorch.org/get-started/previous-versions)."
    )


def _split_architecture(name: str) -> tuple[str, int]:
    """`sm_90a` to ("sm", 90)."""
    kind, _, number = name.partition("_")
    return kind, int("".join(character for character in number if character.isdecimal()))
