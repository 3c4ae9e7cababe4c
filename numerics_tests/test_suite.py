"""The suite itself: what its checks reject, flags and options that are wrong, the report on mutants, the README."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention import softmax as model_softmax
from numerics_tests.harness.checks import assert_at_most_twice, assert_same_bits, assert_within
from numerics_tests.harness.claims import DEFAULT_PROFILE, PROFILES, all_claims, load_profile
from numerics_tests.harness.mutants import Change, report
from numerics_tests.harness.strategies import Recipe
from numerics_tests.machine import environment

ZERO = torch.zeros(2, dtype=torch.float64)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1.0])
def test_value_outside_its_bound_is_refused(wrong: float) -> None:
    """NaN too, which is neither smaller nor larger than anything."""
    with pytest.raises(AssertionError, match=r"x its bound at \(1,\) \(1 of 2 outside\)"):
        assert_within(torch.tensor([0.0, wrong]), ZERO, 0.5, "a source")


def test_oracle_of_low_precision_is_refused() -> None:
    """Two results in low precision agree on their common error."""
    with pytest.raises(AssertionError, match="the oracle must be float64"):
        assert_within(torch.zeros(2), torch.zeros(2), 1.0, "a source")


@pytest.mark.parametrize("wrong", [torch.tensor([-0.0]), torch.tensor([1e-45]), torch.zeros(1, dtype=torch.float64)])
def test_other_bits_are_refused(wrong: torch.Tensor) -> None:
    """The sign of zero counts, and the dtype."""
    with pytest.raises(AssertionError, match="a source"):
        assert_same_bits(wrong, torch.zeros(1), "a source")


def test_more_than_twice_the_error_is_refused() -> None:
    """The baseline's own error decides."""
    baseline = torch.full((2,), 0.1)
    assert_at_most_twice(torch.full((2,), 0.19), baseline, ZERO, 0.0)
    with pytest.raises(AssertionError, match="x what is allowed"):
        assert_at_most_twice(torch.full((2,), 0.21), baseline, ZERO, 0.0)
    with pytest.raises(AssertionError, match="x what is allowed"):
        assert_at_most_twice(torch.full((2,), math.nan), baseline, ZERO, 0.0)


def test_failure_can_be_read_and_pasted() -> None:
    """The bound's formula, the drawn numbers and a line of the judged code; the lines after "Paste:" repeat it all."""
    softmax = all_claims()["test_softmax_is_within_its_bound"]
    nearly = replace(softmax, references={"nearly": lambda x: model_softmax(x) * 1.1})
    recipe = Recipe((2, 3), torch.float16, seed=3, exponent=4, planted=((1, 256.0),))
    with pytest.raises(AssertionError) as caught:
        nearly.checked(**{softmax.argument: nearly.references["nearly"], "recipe": recipe})
    formula, inputs, judged, pasted = caught.value.__notes__
    assert "relative ((m - x_i) + log n + n + 8) u32 + u" in formula
    assert inputs.split()[1:4:2] == ["recipe:", "256,"]
    assert re.fullmatch(r"Judged: model/attention\.py:\d+, in softmax", judged)
    lines = [line.removeprefix("    ") for line in pasted.splitlines()[1:]]
    scope: dict[str, object] = {}
    exec("\n".join(lines[:-1]), scope)
    assert scope["claim"] is softmax
    with pytest.raises(AssertionError, match=re.escape(str(caught.value)[:40])):
        exec(lines[-1], {**scope, "claim": nearly})


def start(*options: str) -> int:
    """pytest as a user starts it, with its exit code; in this process, because importing torch takes most of a run."""
    return pytest.main([str(Path(__file__)), "-q", "-p", "no:cacheprovider", "-k", "profile_in_force", *options])


@pytest.fixture
def profile_is_kept(pytestconfig: pytest.Config) -> Iterator[None]:
    """Keep the profile: a run inside of this one loads one of its own."""
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


DIFF = """--- model/training.py
+++ model/training.py
@@ -1,4 +1,3 @@
 def step():
-    a = f(
-        b, c)
+    a = f(b)
"""
KNOWN = Change.of(DIFF)
CHANGES = {"known": KNOWN, "new": Change("x + 1", "x - 1")}


def statuses(killed: int, **others: str) -> dict[str, str]:
    return {f"killed_{number}": "killed" for number in range(killed)} | others


EQUIVALENT = {"c is 0": (KNOWN,)}


def test_a_change_is_its_lines_without_their_layout() -> None:
    assert Change("a = f( b, c)", "a = f(b)") == KNOWN


@pytest.mark.parametrize("word", ["survived", "no tests", "suspicious"])
@pytest.mark.parametrize("killed, is_good", [(98, True), (31, False)])
def test_few_may_survive_unexplained(word: str, killed: int, is_good: bool) -> None:
    """One of a hundred passes, one of 33 does not; the equivalent one does not count."""
    lines, passes = report(statuses(killed, known="survived", new=word), CHANGES.__getitem__, EQUIVALENT)
    assert passes == is_good
    assert f"  new ({word})\n    - x + 1\n    + x - 1" in lines
    assert "     1 equivalent: c is 0" in lines


def test_an_explanation_without_a_survivor_is_refused() -> None:
    lines, passes = report(statuses(9), CHANGES.__getitem__, EQUIVALENT)
    assert not passes
    assert "take it out of EQUIVALENT" in lines[-1]


def test_no_mutants_prove_nothing() -> None:
    assert not report({}, CHANGES.__getitem__, {})[1]


HERE = Path(__file__).parent
TEXT = (HERE / "README.md").read_text()


def test_readme_lists_every_test_file() -> None:
    """Each named file exists, and the table of questions has each test of precision."""
    named = set(re.findall(r"`(test_\w+\.py)`", TEXT))
    assert named == {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}


def test_readme_commands_select_something() -> None:
    """Profiles are known, and each word after -k is part of a test's name."""
    names = re.findall(r"^def (test_\w+)", "".join(path.read_text() for path in HERE.glob("test_*.py")), re.MULTILINE)
    assert set(re.findall(r"--hypothesis-profile (\w+)", TEXT)) <= set(PROFILES)
    for selection in re.findall(r"-k (\w+)", TEXT):
        assert any(selection in name for name in names), f"no test is called like {selection}"
