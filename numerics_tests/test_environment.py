"""A wrong option, and flags that somebody changed, are named in one sentence instead of spoiling results."""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics_tests import environment, profiles

ROOT = Path(__file__).resolve().parents[1]


COMMAND = [sys.executable, "-m", "pytest", "numerics_tests/test_environment.py", "-p", "no:cacheprovider"]


def start(*options: str, **variables: str) -> "subprocess.Popen[str]":
    """pytest in a process of its own, as a user starts it."""
    environ = {**os.environ, **variables}
    return subprocess.Popen([*COMMAND, *options], cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True, env=environ)


def test_options_do_what_a_user_expects() -> None:
    """A bad one ends with pytest's code for wrong usage, 4, and one sentence; `quick` holds on a CI machine too.

    Hypothesis loads a `ci` profile of its own where the variable CI is set, before any conftest.
    """
    # Side by side, because most of their time is spent importing torch.
    on_ci = start("-k", "profile_in_force", CI="1")
    bad = {
        "profile 'night' is not known; choose quick, ci, deep.": start("--hypothesis-profile", "night"),
        "device 'cuda:99'": start("--device", "cuda:99"),
    }
    for sentence, run in bad.items():
        output, errors = run.communicate(timeout=300)
        assert run.returncode == 4, output + errors
        assert sentence in errors, errors
        assert "Traceback" not in errors, errors
    output, errors = on_ci.communicate(timeout=300)
    assert "1 passed" in output, output + errors


def test_profile_in_force_is_ours(pytestconfig: pytest.Config) -> None:
    """Hypothesis has a `ci` profile of its own; the one in force is in our table."""
    name = pytestconfig.getoption("hypothesis_profile") or profiles.DEFAULT
    chosen, current = profiles.PROFILES[name], settings()
    for attribute in ("max_examples", "derandomize", "deadline"):
        assert getattr(current, attribute) == getattr(chosen, attribute)


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
    """Hypothesis seeds Python and NumPy by itself; torch's generator is registered with it and starts alike too."""
    drawn = set()

    @given(st.integers())
    def example(number: int) -> None:
        drawn.add(torch.rand(()).item())

    example()
    assert len(drawn) == 1
