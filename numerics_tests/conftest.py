"""Wiring of the numerics suite: profile, device, pinned flags. The modules that it imports hold what it wires."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import register_random, settings

from perf_tests_suite.model.attention import ATTENTION, AttentionFunction
from perf_tests_suite.model.device import device_named, why_gpu_is_passed_over
from perf_tests_suite.numerics_tests.harness.claims import CLAIMS, DEFAULT_PROFILE, PROFILES, load_profile
from perf_tests_suite.numerics_tests.harness.strategies import TORCH_GENERATOR
from perf_tests_suite.numerics_tests.harness.tiny import GIVEN
from perf_tests_suite.numerics_tests.machine import cuda_autocast, environment
from perf_tests_suite.perf_tests.cases.options import typed_or
from perf_tests_suite.perf_tests.user_code.attention import attention_named
from perf_tests_suite.perf_tests.user_code.given import label

HERE = Path(__file__).parent
THREADS = pytest.StashKey[int]()


# First, so that an unknown profile gets our sentence instead of Hypothesis's traceback.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Also beats the `ci` profile that Hypothesis loads by itself where the variable CI is set.
    load_profile(config.getoption("hypothesis_profile", None) or DEFAULT_PROFILE)
    if settings().derandomize and config.getoption("--hypothesis-seed", None) is not None:
        raise pytest.UsageError(
            "--hypothesis-seed has no effect under profile ci, which always draws the same examples; "
            "choose quick or deep."
        )
    GIVEN.take(config)
    config.stash[THREADS] = typed_or(config, "--threads", 1)
    register_random(TORCH_GENERATOR)
    try:
        environment.compute_on(device_named(config.getoption("--device")))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out every other file where the word after -k is that of one, as `exercises`, and stands in no other."""
    word = config.getoption("keyword")
    if collection_path.parent != HERE or not (HERE / f"test_{word}.py").is_file():
        return None
    others = [path for path in HERE.glob("test_*.py") if path.name != f"test_{word}.py"]
    lines = (line for path in others for line in path.read_text().splitlines() if not line.startswith("from "))
    return True if collection_path in others and not any(word in line for line in lines) else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    device = environment.device()
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"threads: {config.stash[THREADS]}"
    lines = [f"numerics: torch {torch.__version__} on {device}, {where}"]
    if device.type == "cuda":
        lines.append(environment.of_gpu_products())
    if reason := why_gpu_is_passed_over(str(device)):
        lines.append(reason)
    if GIVEN:
        typed = f"--model {GIVEN.model.name}" if GIVEN.model else f"--attention {','.join(GIVEN.attentions)}"
        lines.append(f"numerics: {typed}; tests of anything else are not selected")
    return [*lines, *environment.changed()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread a claim over its references; over attentions, by the fixture, where a test names none or the user does."""
    made = CLAIMS.get(metafunc.definition.originalname)
    references = {} if made is None else made.references
    if "attention" in metafunc.fixturenames and (GIVEN.attentions or not references):
        names = GIVEN.attentions or tuple(ATTENTION)
        metafunc.parametrize("attention", names, ids=[label(name) for name in names], indirect=True, scope="session")
    elif made is not None and references:
        # Hypothesis refuses what pytest would make anew for each test; these are made once.
        metafunc.parametrize(made.argument, references.values(), ids=references.keys(), scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the exercises; with --attention or --model leave only tests of what the user gives."""
    items.sort(key=lambda item: item.path != HERE / "test_exercises.py")
    if not GIVEN:
        return

    def is_left_out(item: pytest.Item) -> bool:
        if HERE not in item.path.parents:
            return False
        if GIVEN.attentions:
            return "attention" not in item.fixturenames  # type: ignore[attr-defined]  # of a test function
        made = CLAIMS.get(item.originalname)  # type: ignore[attr-defined]
        return made is None or not made.of_any_model

    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with environment.pinned(), environment.threads(item.config.stash[THREADS]):
        return (yield)


@pytest.fixture(scope="session")
def attention(request: pytest.FixtureRequest) -> AttentionFunction:
    """An implementation by name, built once: a compiled one compiles once per shape."""
    implementation = attention_named(request.param)
    if implementation.is_compiled and settings().max_examples <= PROFILES["quick"].max_examples:
        pytest.skip(f"compiling {request.param!r} takes longer than the profile quick may; run ci or deep.")
    reason = implementation.why_unavailable(environment.device(), 16)
    if reason:
        pytest.skip(reason)
    return implementation.build()


@pytest.fixture(params=cuda_autocast.RULES)
def rules(request: pytest.FixtureRequest) -> Iterator[str]:
    """The autocast rules in force: the device's own, and on a CPU also CUDA's from the header."""
    if environment.device().type == "cuda" and request.param == "cpu":
        pytest.skip("the CPU's rules are checked in a run with --device cpu.")
    with cuda_autocast.in_force(request.param, environment.device()):
        yield request.param
