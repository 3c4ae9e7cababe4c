"""Bad input, as a user types it: one sentence that says what is wrong and what is known, and pytest's exit code."""

import importlib.util
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from perf_tests_suite.perf_tests import plugin
from perf_tests_suite.perf_tests.cases.options import REPLACED
from perf_tests_suite.perf_tests.records.store import machine_folder
from perf_tests_suite.perf_tests.user_code.named import CONFIGURED
from tests.support.items import stash_of
from tests.support.launch import MODELS, ROOT, SMALL, launch_all

USAGE, NOTHING_SELECTED = 4, 5
GATE = "--against=HEAD"
OWN_MODEL = f"--phase=forward --model={MODELS}"
OWN_OPTIMIZER = "--phase=full_step --optimizer=tests.support.planted_optimizers"

REFUSALS: dict[str, tuple[str, ...]] = {
    "--execution=jit": ("--execution 'jit'", "eager, compiled"),
    "--phase=forwards": ("--phase 'forwards'", "inference, forward, backward"),
    "--optimizer=sgd": ("--optimizer 'sgd'", "default, loop, foreach, fused, or name a factory"),
    "--optimizer=nowhere.py:build": ("--optimizer 'nowhere.py:build'", "there is no file nowhere.py"),
    f"{OWN_OPTIMIZER}:raises": ("planted_optimizers:raises builds no optimizer: KeyError: 'lr'",),
    f"{OWN_OPTIMIZER}:Still --model={MODELS}:Averaging": ("planted_optimizers:Still changes no parameter",),
    "--checkpoint=some": ("checkpoint", "'some'", "none, attention, block"),
    "--warmup-rounds=-1": ("--warmup-rounds is -1; it must be at least 0",),
    "--threads=99999": ("--threads is 99999", "at most"),
    "--device=tpu": ("tpu", "cpu", "cuda"),
    "--device=cuda:99": ("cuda:99",),
    "--model=nowhere:build": ("--model 'nowhere:build'", "'nowhere'"),
    "--model=hf:nowhere.json": ("'hf:nowhere.json' cannot be read",),
    "--model-arg=a=3": ("--model-arg is for a factory of your own",),
    f"{OWN_MODEL}:Healthy --model-arg=a": ("--model-arg 'a' is not an argument; write it as name=value",),
    f"{OWN_MODEL}:Healthy --checkpoint=block": ("--checkpoint does not apply",),
    f"{OWN_MODEL}:exits": ("planted_models:exits builds no model", "it called exit(3)"),
    f"{OWN_MODEL}:WrongShape": ("planted_models:WrongShape returned (1, 8, 9999)", "(1, 8, 10000)"),
    "--benchmark-compare=0077": ("--benchmark-compare=0077 matches no record", "recorded here: 0001_broken"),
    "--benchmark-compare=0001": ("0001_broken.json cannot be read",),
    "--resume": ("journal-foreign.jsonl is not a journal", "Delete it"),
    "--benchmark-storage=elasticsearch+http://host/index": ("--benchmark-storage", "file://PATH"),
    "--benchmark-storage=file:///proc/version/below": ("cannot be saved under /proc/version/below", "storage"),
    "--benchmark-timer=time.process_time": ("--benchmark-timer would have no effect", "clock that waits"),
    "--benchmark-min-rounds=3": ("--benchmark-min-rounds would have no effect",),
    "--benchmark-group-by=func,param:size": ("--benchmark-group-by 'param:size'", "param:model_size"),
    "--benchmark-json=/proc/nothing/a.json": ("--benchmark-json /proc/nothing/a.json", "is not a folder"),
    "--against=no-such-revision": ("names no revision", "a branch, a tag"),
    **{option: (f"{option.partition('=')[0]} is for the gate", "--against REV")
       for option in ("--against-python=python", "--gate-minutes=3", "--gate-compile", "--gate-measure-same")},
    f"{GATE} --gate-compile": ("none of these cases is compiled; add --execution compiled",),
    f"{GATE} --gate-compile --gate-minutes=0": ("--gate-minutes 0 measures no time, and --gate-compile compares",),
    f"{GATE} --against-python=/nowhere/python": ("--against-python /nowhere/python is not a program that can be run",),
    f"{GATE} --gate-undecided=maybe": ("--gate-undecided 'maybe'", "choose from pass, fail"),
    f"{GATE} --gate-summary=/proc/nothing/s.md": ("is not a folder",),
    f"{GATE} --context=100000000 -k=test_forward": ("can measure none of", "by each of base and head", "choose a"),
    **{f"{GATE} {option}": (f"cannot be combined with {option.partition('=')[0]}",) for option in (
        "--warmup-study", "--kernels", "--nvtx", "--resume", "--benchmark-compare", "--benchmark-disable",
    )},
    **{f"{option}=1/2": (f"{option} is gone: {instead}.",) for option, instead in REPLACED.items()},
    "--against-option=size=tiny": ("write AXIS=VALUE", "attention, precision"),
    "--against-option=attention=fast": ("'fast' is unknown", "naive, softmax, compiled, sdpa, flex"),
    "--against-option=attention=naive": ("is head's own value",),
    "--against-option=attention=sdpa --attention=naive,compiled": ("compares with one attention", "naive, compiled"),
    f"--against-option=attention=sdpa {OWN_MODEL}:WrongShape": ("compares with one attention", "own"),
    **{f"{gate}--time-limit=0.001": ("takes about", "--time-limit 0.001 leaves 0 s", "nothing was measured")
       for gate in ("", f"{GATE} ")},
    f"{GATE} -k=numerics_tests numerics_tests": ("--against cannot gate numerics_tests/", "so nothing was gated"),
    f"{GATE} test_own.py": ("--against cannot gate", "test_own.py, which is no benchmark of the suite"),
    "test_own.py --benchmark-compare": ("test_own.py is no benchmark of the suite", "nothing would compare"),
    "--memory -k=test_forward": ("--memory runs cases of its own, and none is selected", "add test_memory.py"),
    "--cold-cache -k=test_forward": ("--cold-cache is for timings of attention alone", "add test_attention.py"),
    "--parallel=ddp": ("start them with `torchrun --nproc-per-node 2 --no-python pytest",),
    "-p no:benchmark": ("-p no:benchmark switched it off",),
    "-k=no_such_case": ("5 deselected / 0 selected",),
}  # fmt: skip
"""What is typed, and words that stand in one line of what is said."""
if importlib.util.find_spec("pygal") is None:
    REFUSALS["--benchmark-histogram"] = ("draws with pygal, which is not", "pip install 'pytest-benchmark[histogram]'")
if not torch.cuda.is_available():
    REFUSALS["--device=cuda"] = ("device 'cuda' needs an NVIDIA GPU",)


DAMAGED = {"0001_broken.json": '{"machine_info": {"cpu"', "journal-foreign.jsonl": "a line of another tool\n"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a record that is torn and a journal of another tool."""
    storage = tmp_path_factory.mktemp("storage")
    machine_folder(storage).mkdir()
    for name, content in DAMAGED.items():
        (machine_folder(storage) / name).write_text(content)
    return storage


@pytest.fixture(scope="module")
def ends(
    storage: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, tuple[int, str, str]]:
    """How each of the refusals ended: exit code, output, errors; where some are selected, of these alone."""
    own = tmp_path_factory.mktemp("own_tests") / "test_own.py"
    own.write_text("def test_own(benchmark): benchmark(abs, 1)\n")
    always = ("perf_tests", "-p", "no:cacheprovider", *SMALL)
    kept = f"--benchmark-storage=file://{storage}"
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    selected = [item.callspec.params.get("typed") for item in items if hasattr(item, "callspec")]
    asked = [typed for typed in REFUSALS if typed in selected] or [*REFUSALS]
    words = [typed.replace("test_own.py", str(own)) for typed in asked]
    commands = [[*always, *(() if "no:benchmark" in typed else (kept,)), *typed.split()] for typed in words]
    return dict(zip(asked, launch_all(commands), strict=True))


@pytest.mark.parametrize("typed", REFUSALS)
def test_bad_input_ends_in_its_exit_code_and_one_sentence(typed: str, ends: dict[str, tuple[int, str, str]]) -> None:
    exit_code, output, errors = ends[typed]
    assert exit_code == (NOTHING_SELECTED if typed.startswith("-k") else USAGE), output + errors
    telling = [line for line in (output + errors).splitlines() if all(words in line for words in REFUSALS[typed])]
    assert len(telling) == 1, output + errors
    assert "Traceback" not in output + errors
    assert "INTERNALERROR" not in output + errors


def test_bad_input_measures_nothing_and_damages_nothing(storage: Path, ends: dict[str, tuple[int, str, str]]) -> None:
    assert ends
    assert {path.name: path.read_text() for path in storage.rglob("*") if path.is_file()} == DAMAGED


def test_a_revision_that_is_none_is_refused_before_cases_are_collected() -> None:
    """By `-v`, because the gate's own screen never says what was collected."""
    words = ["perf_tests", "-p", "no:cacheprovider", "-v", *SMALL, "--against=no-such-revision"]
    ((code, shown, _),) = launch_all([words])
    assert (code, "collected" in shown) == (USAGE, False)


def test_a_word_that_no_option_knows_gets_the_closest_one_and_usage_is_that_of_the_command() -> None:
    words = [*CONFIGURED, str(ROOT / "perf_tests")]
    (code, _, closest), (_, _, lacking) = launch_all([[*words, "--contxt", "64"], [*words, "--context"]])
    assert (code, closest.strip().count("\n")) == (USAGE, 0)
    assert "perf-tests run has no option --contxt; did you mean --context?" in closest
    assert "usage: perf-tests run [options]" in lacking


@pytest.mark.parametrize(
    "budget, words",
    [("40MB", "--memory-budget 40MB is less than the run needs"), (None, "The memory that is free is less than")],
)
def test_memory_that_ends_too_soon_is_refused(budget: str | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the cap is lifted, under which the refusal could not be printed."""
    lifted = Mock()
    monkeypatch.setattr(plugin, "_collect", Mock(side_effect=MemoryError))
    monkeypatch.setattr(plugin, "uncap_address_space", lifted)
    config = Mock(getoption=lambda name: budget, stash=stash_of(settings=None))
    with pytest.raises(pytest.UsageError, match=f"{words}.* give it at least 256MiB"):
        plugin.pytest_collection_modifyitems(Mock(), config, [])
    lifted.assert_called_once_with()
