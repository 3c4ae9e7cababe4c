"""A wrong option, and flags that somebody changed, are named in one sentence instead of spoiling results."""

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from numerics_tests import environment, profiles

ROOT = Path(__file__).resolve().parents[1]


def test_bad_option_ends_in_one_sentence() -> None:
    """pytest exits with 4, its code for wrong usage, says what would be right, and prints no traceback."""
    sentences = {
        ("--hypothesis-profile", "night"): "profile 'night' is not known; choose quick, ci, deep.",
        ("--device", "cuda:99"): "device 'cuda:99'",
        ("--device", "gpu"): "device 'gpu' is not known; choose auto, cpu, cuda or cuda:N.",
    }
    command = [sys.executable, "-m", "pytest", "numerics_tests/test_environment.py", "--collect-only"]
    # Side by side, because most of their time is spent importing torch.
    runs = {
        options: subprocess.Popen([*command, *options], cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True)
        for options in sentences
    }
    for options, run in runs.items():
        output, errors = run.communicate(timeout=300)
        assert run.returncode == 4, output + errors
        assert sentences[options] in errors, errors
        assert "Traceback" not in errors, errors


def test_profile_quick_is_the_default_even_where_ci_is_set() -> None:
    """Hypothesis loads its own `ci` profile where the variable CI is set; ours of that name replaces it."""
    assert profiles.DEFAULT == "quick"
    assert profiles.PROFILES["ci"].derandomize
    assert all(profile.deadline is None for profile in profiles.PROFILES.values())


@pytest.mark.parametrize("flag", environment.FLAGS, ids=lambda flag: flag.name)
def test_flag_holds_its_pinned_value(flag: environment.Flag) -> None:
    """Every test here runs at the values that the bounds assume."""
    assert flag.read() == flag.pinned


def test_nothing_is_reported_where_nobody_changed_anything() -> None:
    """Also with what PyTorch itself turns on and these tests turn off."""
    flags = [flag for flag in environment.FLAGS if flag.torch_default is not None]
    for flag in flags:
        flag.write(flag.torch_default)
    assert environment.changed({}) == []


def test_changed_matmul_precision_is_named_and_reset() -> None:
    """What the environment of a user sets is reported, pinned inside and back outside."""
    torch.set_float32_matmul_precision("medium")
    assert any("float32_matmul_precision is 'medium'" in sentence for sentence in environment.changed({}))
    with environment.pinned():
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "medium"


def test_precision_set_for_one_backend_is_named_and_reset() -> None:
    """torch's getter raises after that; here it is one more thing that somebody changed."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    matmul.fp32_precision = "bf16"
    try:
        assert any("MixedPrecisions(mkldnn='bf16'" in sentence for sentence in environment.changed({}))
        with environment.pinned():
            assert torch.get_float32_matmul_precision() == "highest"
        assert matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_variable_that_forces_tf32_is_named() -> None:
    """A variable that only cuBLAS reads cannot be undone from here, so it is said."""
    sentences = environment.changed({"NVIDIA_TF32_OVERRIDE": "1"})
    assert sentences == [
        "NVIDIA_TF32_OVERRIDE=1 is set: it forces TF32 inside cuBLAS and cuDNN, out of reach of PyTorch; unset it."
    ]


def test_torch_draws_the_same_in_every_example() -> None:
    """Hypothesis seeds Python and NumPy only; registered, torch's generator is saved and restored with them."""
    generator = profiles.TorchGenerator()
    state = generator.getstate()
    generator.seed(7)
    first = torch.rand(3)
    generator.seed(7)
    assert torch.equal(torch.rand(3), first)
    generator.setstate(state)
    assert torch.equal(generator.getstate(), state)
