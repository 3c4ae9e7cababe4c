"""The device that a suite runs on, from the user's text."""

import os
import warnings

import torch


def device_named(text: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that can compute here; raises ValueError with the next step."""
    if text == "auto":
        text = "cuda" if _sees_gpu() and why_gpu_cannot_run(0) is None else "cpu"
    if text == "cpu":
        return torch.device("cpu")
    kind, _, number = text.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or text.endswith(":"):
        raise ValueError(f"device {text!r} is unknown; choose auto, cpu, cuda or cuda:N.")
    if not _sees_gpu():
        raise ValueError(
            f"device {text!r} needs an NVIDIA GPU, and torch {torch.__version__} can use none: "
            f"{(words := _why_no_gpu())}; {_next_step(words)}."
        )
    index, count = int(number or 0), torch.cuda.device_count()
    if index >= count:
        known = ", ".join(f"cuda:{place} ({torch.cuda.get_device_name(place)})" for place in range(count))
        raise ValueError(f"device {text!r} does not exist; torch sees {known}.")
    reason = why_gpu_cannot_run(index)
    if reason:
        raise ValueError(reason)
    return torch.device("cuda", index)


def why_gpu_is_passed_over(device: str) -> str | None:
    """One sentence why `auto` chose the CPU despite a GPU, else None."""
    if device != "cpu":
        return None
    if _sees_gpu():
        return why_gpu_cannot_run(0)
    words = _why_no_gpu()
    return None if words in _WORDS_WITHOUT_GPU else f"No GPU is used: {words}; {_next_step(words)}."


_NONE_VISIBLE = "No CUDA GPUs are available"
_WORDS_WITHOUT_GPU = (_NONE_VISIBLE, "Found no NVIDIA driver on your system", "Torch not compiled with CUDA enabled")
"""What torch says where there is no GPU, or none that the user lets it see; the rest means one that does not start."""


def _sees_gpu() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a driver that does not start; `_why_no_gpu` tells it
        return torch.cuda.is_available()


def _why_no_gpu() -> str:
    """Why CUDA does not start, in torch's words."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # the latter from a build without CUDA
        return str(error).partition("\n")[0].partition(". Please")[0].rstrip(".")
    return _NONE_VISIBLE


def _next_step(words: str) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words == _NONE_VISIBLE and visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides them: unset it, or use cpu"
    return "update the driver, install torch for an older CUDA, or use cpu" if "too old" in words else "use cpu"


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
