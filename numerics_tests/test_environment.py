"""A wrong option and changed flags are named in one sentence instead of spoiling results."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics_tests.harness.claims import DEFAULT_PROFILE, PROFILES, load_profile
from numerics_tests.machine import environment


def start(*options: str) -> int:
    """pytest as a user starts it, with its exit code; in this process, because importing torch takes most of a run."""
    return pytest.main([str(Path(__file__)), "-q", "-p", "no:cacheprovider", "-k", "profile_in_force", *options])


@pytest.fixture
def profile_is_kept(pytestconfig: pytest.Config) -> Iterator[None]:
    """A run inside of this one loads a profile of its own."""
    yield
    load_profile(pytestconfig.getoption("hypothesis_profile") or DEFAULT_PROFILE)


@pytest.mark.usefixtures("profile_is_kept")
@pytest.mark.parametrize(
    "option, value, sentence",
    [
        ("--hypothesis-profile", "night", "profile 'night' is not known; choose quick, ci, deep."),
        ("--device", "cuda:99", "device 'cuda:99'"),
        ("--threads", "0", "--threads is 0"),
        ("--hypothesis-seed", "3", "--hypothesis-seed has no effect under profile ci"),
    ],
)
def test_wrong_option_ends_in_one_sentence(
    option: str, value: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """pytest's code for wrong usage, 4, and no traceback."""
    # The last profile typed is in force.
    assert start("--hypothesis-profile", "ci", option, value) == pytest.ExitCode.USAGE_ERROR
    errors = capsys.readouterr().err
    assert sentence in errors
    assert "Traceback" not in errors


def test_threads_are_those_asked_for(pytestconfig: pytest.Config) -> None:
    """One, because waiting for a second thread takes longer than such small tensors do."""
    assert torch.get_num_threads() == int(pytestconfig.getoption("--threads") or 1)


@pytest.mark.usefixtures("profile_is_kept")
def test_header_names_device_and_threads_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of these tests, not those with which the benchmarks would run."""
    assert pytest.main([str(Path(__file__)), "-p", "no:cacheprovider", "-k", "profile_in_force"]) == pytest.ExitCode.OK
    header = capsys.readouterr().out.partition("collected")[0]
    assert header.count("threads: ") == 1
    assert "numerics: torch" in header


@pytest.mark.usefixtures("profile_is_kept")
def test_quick_is_in_force_whatever_was_loaded_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Hypothesis loads a `ci` profile of its own where the variable CI is set, before any conftest."""
    settings.register_profile("hypothesis's own", max_examples=1, derandomize=True)
    settings.load_profile("hypothesis's own")
    assert start() == pytest.ExitCode.OK
    assert "1 passed" in capsys.readouterr().out


def test_profile_in_force_is_ours(pytestconfig: pytest.Config) -> None:
    """Hypothesis has a `ci` profile of its own; the one in force is in our table."""
    name = pytestconfig.getoption("hypothesis_profile") or DEFAULT_PROFILE
    chosen, current = PROFILES[name], settings()
    for attribute in ("max_examples", "derandomize", "deadline"):
        assert getattr(current, attribute) == getattr(chosen, attribute)


@pytest.mark.parametrize("flag", environment.FLAGS, ids=lambda flag: flag.name)
def test_flag_holds_its_pinned_value(flag: environment.Flag) -> None:
    """Every test here runs at the values that the bounds assume."""
    assert flag.read() == flag.pinned


def test_nothing_is_reported_where_nobody_changed_anything() -> None:
    """What PyTorch itself turns on, and these tests turn off, is not reported either."""
    flags = [flag for flag in environment.FLAGS if flag.torch_default is not None]
    for flag in flags:
        flag.write(flag.torch_default)
    assert environment.changed({}) == []


def test_changed_matmul_precision_is_named_and_reset() -> None:
    """What the user's environment sets is reported, pinned inside and restored outside."""
    torch.set_float32_matmul_precision("medium")
    assert any("float32_matmul_precision is 'medium'" in sentence for sentence in environment.changed({}))
    with environment.pinned():
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "medium"


def test_precision_set_for_one_backend_is_named_and_reset() -> None:
    """torch's getter raises after that; here it is reported as one more change."""
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
    """A variable that only cuBLAS reads cannot be reset here, so it is reported."""
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
