"""The device that a suite runs on, from the user's text."""

import torch


def device_named(text: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that can compute here; raises ValueError with the next step."""
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() and why_gpu_cannot_run(0) is None else "cpu"
    if text == "cpu":
        return torch.device("cpu")
    kind, _, number = text.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or text.endswith(":"):
        raise ValueError(f"device {text!r} is unknown; choose auto, cpu, cuda or cuda:N.")
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


def why_gpu_is_passed_over(device: str) -> str | None:
    """One sentence why `auto` chose the CPU despite a GPU, else None."""
    return why_gpu_cannot_run(0) if device == "cpu" and torch.cuda.is_available() else None


def why_gpu_cannot_run(index: int) -> str | None:
    """None if this torch build has kernels for the GPU, else one sentence with the next step."""
    capability = torch.cuda.get_device_capability(index)
    built_for = torch.cuda.get_arch_list()
    if any(_runs_on(architecture, capability) for architecture in built_for):
        return None
    major, minor = capability
    return (
        f"GPU {torch.cuda.get_device_name(index)} has compute capability {major}.{minor}, but torch "
        f"{torch.__version__} was built for {' '.join(built_for)}; install the wheel of another CUDA version "
        "(https://pytorch.org/get-started/previous-versions)."
    )


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """NVIDIA, CUDA C++ Programming Guide, "Compute Compatibility": what code for `sm_90a` or `compute_80` runs on."""
    kind, _, name = architecture.partition("_")
    number = name.rstrip("af")
    built_for = int(number[:-1]), int(number[-1])
    if name.endswith("a"):  # code that uses features of one architecture runs nowhere else
        return built_for == capability
    if kind == "sm" or name.endswith("f"):  # machine code, and code for a family, run on later minor revisions
        return built_for[0] == capability[0] and built_for[1] <= capability[1]
    return built_for <= capability  # PTX is translated for later architectures
