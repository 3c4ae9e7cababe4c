"""Warnings are errors, but for a few of PyTorch on a GPU that are no fault of a case: in PyTorch's own words."""

import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tests.support.launch import ROOT

TF32 = "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. "
# ATen/cuda/CublasHandlePool.cpp, which no wheel holds.
NO_CONTEXT = "Attempting to run cuBLAS, but there was no current CUDA context! Attempting to set the primary context..."


@pytest.mark.parametrize(
    "words, is_error",
    [
        (TF32, False),
        (NO_CONTEXT, False),
        ("cuDNN SDPA backward got an innermost stride of 0", True),
        (f"x {TF32}", True),
    ],
)
def test_advice_about_a_gpu_fails_no_test_and_any_other_user_warning_does(words: str, is_error: bool) -> None:
    with pytest.raises(UserWarning) if is_error else nullcontext():
        warnings.warn(f"{words} (Triggered internally)", UserWarning, stacklevel=1)


def test_assertions_that_python_takes_out_are_no_error() -> None:
    command = (
        sys.executable,
        "-OO",
        "-m",
        "pytest",
        "perf_tests/test_forward.py",
        "--size=tiny",
        "--collect-only",
        "-q",
    )
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, "test_forward[" in ended.stdout) == (0, True), ended.stderr


def test_inductor_still_warns_in_these_words() -> None:
    source = Path(torch.__file__).parent / "_inductor/compile_fx.py"
    assert TF32 in source.read_text()
