"""Anybody's pytest-benchmark tests gated as they stand: real workers, in a repository with its own configuration."""

import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf_tests_suite.perf_tests.gate.samples import GateSamples, Rules, read_samples, rules_from_settings
from perf_tests_suite.perf_tests.gate.verdicts import GateResult, conclude
from perf_tests_suite.perf_tests.interleaved.measuring import Measuring
from perf_tests_suite.perf_tests.interleaved.run import GateRun, PairCost
from perf_tests_suite.perf_tests.run import termination
from perf_tests_suite.perf_tests.run.their_tests import gate_their_tests
from tests.support.git_repository import commit, git
from tests.support.same_programs import write

QUICK = Rules(
    alpha=0.05, margin=0.3, matters=0.9, screen_pairs=3, screen_level=0.3, confirm_looks=(5,), look_shares=(1.0,)
)
"""Nothing that is less than ninety per cent slower matters, so that a busy machine decides no test."""

LIBRARY = """
def square(x):
    return x * x

def count(n):
    total = 0
    for step in range(n):
        total += step & 7
    return total

def drain(values):
    while values:
        values.pop()
    return len(values)
"""
TESTS = """
import pytest
from lib import count, drain, square

@pytest.mark.benchmark(group="sums", min_rounds=3)
@pytest.mark.parametrize("n", [10, 20_000])
def test_count(benchmark, n):
    benchmark.extra_info["n"] = n
    assert benchmark(count, n) == sum(step & 7 for step in range(n))
    assert benchmark.stats["mean"] == benchmark.stats.stats.mean > 0

class TestDrain:
    def test_all(self, benchmark, values):
        torn_down = []
        assert benchmark.pedantic(drain, setup=lambda: ((list(values),), {}), teardown=torn_down.append, rounds=3) == 0
        assert set(map(tuple, torn_down)) == {()}

def test_square(benchmark):
    assert benchmark.pedantic(square, args=(3,), iterations=5, rounds=2) == 9

def test_plain():
    assert square(2) == 4
"""
CONFIGURED = """
[tool.pytest.ini_options]
addopts = "--strict-markers --benchmark-disable --benchmark-skip -x"
filterwarnings = ["error"]
python_files = ["bench_*.py"]
"""
FILES = {
    "src/lib/__init__.py": LIBRARY, "tests/bench_x.py": TESTS, "pyproject.toml": CONFIGURED,
    "tests/conftest.py": "import pytest\n@pytest.fixture(scope='module')\ndef values():\n    return range(1000)\n",
    ".gitignore": "out/\n",
}  # fmt: skip


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's repository, committed as `main`, in which the user stands."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))  # where no other gate measures
    folder = tmp_path / "theirs"
    commit(write(folder, FILES))
    monkeypatch.chdir(folder)
    return folder


Gate = Callable[..., "Ended"]


class Ended:
    """A gate that ended: its exit code, what it said, and its judged samples."""

    def __init__(self, code: int, output: str, errors: str, folder: Path) -> None:
        self.code, self.output, self.errors = code, output, errors
        self.paths = sorted((folder / ".benchmarks/gate").glob("*.jsonl"))

    @property
    def samples(self) -> GateSamples:
        return read_samples(self.paths[-1])

    @property
    def result(self) -> GateResult:
        return conclude(self.samples, rules_from_settings(self.samples.header["settings"]))

    @property
    def verdicts(self) -> dict[str, str]:
        return {row.id.removeprefix("tests/bench_x.py::"): str(row.verdict) for row in self.result.cases}


@pytest.fixture
def gated(theirs: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    def gate(
        *words: str, tests: tuple[str, ...] = ("tests/bench_x.py",), against: str = "main", minutes: float = 0
    ) -> Ended:
        code = gate_their_tests(tests, [f"--against={against}", f"--gate-minutes={minutes}", *words], QUICK)
        return Ended(code, *capsys.readouterr(), theirs)

    return gate


COUNTS, ALL = (
    ("test_count[10]", "test_count[20000]"),
    ("test_count[10]", "test_count[20000]", "TestDrain::test_all", "test_square"),
)


def test_a_slower_library_fails_its_tests_alone_by_their_node_ids(theirs: Path, gated: Gate) -> None:
    slower = LIBRARY.replace("total += step & 7", "total += sum([step & 7] * 9) // 9")
    write(theirs, {"src/lib/__init__.py": slower})
    ended = gated("--gate-summary=summary.md", minutes=3)
    assert ended.code == 1, ended.output + ended.errors
    assert ended.verdicts == {**dict.fromkeys(ALL, "OK"), **dict.fromkeys(COUNTS, "SLOWER")}
    for name in COUNTS:
        assert f"run 'tests/bench_x.py::{name}' --against=main" in ended.output
    assert "1 test without the fixture `benchmark` did not run." in ended.output
    assert "gate: FAILED (2 SLOWER, 2 OK)" in ended.output.splitlines()
    header, lines = ended.samples.header, ended.samples.measurements
    assert header["base"]["revision"] == git(theirs, "rev-parse", "main")
    assert {case["identity"]["group"] for case in header["cases"]} == {"sums", None}
    # Times are those of a call, however many are grouped into a round.
    least = {name: min(line.base_seconds.min() for line in lines if name in line.case) for name in ALL}
    assert least["test_square"] < least["test_count[10]"] < least["test_count[20000]"] / 100
    assert r"| tests/bench\_x.py::test\_count\[10\] | SLOWER |" in (theirs / "summary.md").read_text()
    assert git(theirs, "status", "--porcelain", "--", ":!.benchmarks", ":!summary.md") == " M src/lib/__init__.py"


def test_a_program_that_did_not_change_is_not_measured_whatever_else_did(theirs: Path, gated: Gate) -> None:
    write(theirs, {"src/lib/__init__.py": f"# A comment.\n{LIBRARY}", "tests/bench_x.py": f"{TESTS}\n# Another.\n"})
    rows = dict.fromkeys(ALL, "SAME")
    for words, is_shown in ((("-v", f"--rootdir={theirs}"), True), ((), False)):
        ended = gated(*words)
        assert (ended.code, ended.verdicts) == (0, rows), ended.output + ended.errors
        assert (re.search(r"::test_square +SAME", ended.output) is not None) is is_shown, ended.output
    write(theirs, {"src/lib/__init__.py": LIBRARY.replace("x * x", "x**2")})
    ended = gated("--gate-undecided=fail")
    assert ended.samples.header["settings"]["undecided"] == "fail"
    why = {row.id: row.why_measured for row in ended.result.cases}
    assert set(why.values()) == {"src/lib/__init__.py: square differs"}


ON_TORCH = """
import torch
from lib import layer

def test_layer(benchmark):
    benchmark(layer, torch.ones(4, 8))

def test_plain(benchmark):
    benchmark(sorted, [3, 1, 2])
"""


def test_operations_of_torch_are_counted_and_more_of_them_fail(theirs: Path, gated: Gate) -> None:
    layer = "\ndef layer(x):\n    return x @ x.T\n"
    commit(write(theirs, {"src/lib/__init__.py": LIBRARY + layer, "tests/bench_x.py": ON_TORCH}))
    write(theirs, {"src/lib/__init__.py": LIBRARY + layer.replace("x.T", "(x + 0).T")})
    ended = gated("-x", minutes=3)
    assert (ended.code, ended.samples.measurements) == (1, []), ended.output + ended.errors
    rose = {row.counter: (row.old, row.new) for row in ended.result.exact}
    assert rose["kernel_launches"] == (1, 2)
    assert rose["executed_flops"] == (2 * 4 * 4 * 8, 2 * 4 * 4 * 8)
    assert rose["bytes_touched"][1] == rose["bytes_touched"][0] + 2 * 4 * 4 * 8


COMPILED = """
import torch

@torch.compile(backend="eager")
def layer(x):
    x = x @ x.T
    return x.relu()
"""
OF_COMPILED = """
import pytest
import torch
from lib import layer

@pytest.mark.parametrize("rows", [4, 4.0])
def test_layer(benchmark, rows):
    benchmark(layer, torch.ones(int(rows), 8))
"""


def test_what_the_compiler_makes_of_a_test_is_counted_without_marks_and_a_break_fails_with_its_line(
    theirs: Path, gated: Gate
) -> None:
    commit(write(theirs, {"src/lib/__init__.py": COMPILED, "tests/bench_x.py": OF_COMPILED}))
    write(theirs, {"src/lib/__init__.py": COMPILED.replace("    return", "    print('', end='')\n    return")})
    ended = gated()
    assert ended.code == 1, ended.output + ended.errors
    rose = {(row.id[-5:], row.counter): (row.old, row.new) for row in ended.result.exact if row.is_failure}
    both = {"graphs": (1, 2), "graph_breaks": (0, 1)}  # the second test calls what the first has compiled
    assert rose == {(name, counter): both[counter] for name in ("er[4]", "[4.0]") for counter in both}
    assert "added src/lib/__init__.py:7 `print('', end='')`: " in ended.output
    write(theirs, {"src/lib/__init__.py": COMPILED.replace('torch.compile(backend="eager")', "torch.compiler.disable")})
    ended = gated("-k", "4.0")
    (row,) = (row for row in ended.result.exact if row.is_failure)
    assert (row.counter, row.old, row.new) == ("not_compiled", 0, 1), ended.output + ended.errors
    assert "head: nothing of it was compiled: " in ended.output


REFUSED = """
import time
from pathlib import Path
import pytest
from lib import square

done = []

async def test_async(benchmark):
    benchmark(square, 1)

@pytest.mark.benchmark(timer=time.process_time)
def test_timer(benchmark):
    benchmark(square, 1)

@pytest.mark.benchmark
def test_mark():
    square(1)

def test_replaced_timer(benchmark):
    benchmark._timer = time.process_time
    benchmark(square, 1)

def test_once(benchmark):
    benchmark.pedantic(lambda: done.append(1 // (1 - len(done))), rounds=1)

def test_twice(benchmark):
    benchmark(square, 1)
    benchmark(square, 2)

def test_skipped(benchmark):
    pytest.skip("no room")

def test_writes(benchmark):
    benchmark(square, 1)
    Path(__file__).with_name("out.json").write_text("[]")

def test_never(benchmark):
    pass

def test_no_fixture(benchmark, nothing):
    pass

def test_raises(benchmark):
    benchmark(square, 1)
    assert square(2) == 4
"""


def test_what_cannot_be_served_is_refused_by_name_and_what_raises_at_head_alone_fails(
    theirs: Path, gated: Gate
) -> None:
    write(theirs, {"tests/out.json": "{}"})
    commit(write(theirs, {"tests/bench_x.py": REFUSED + "\ndef test_gone(benchmark):\n    benchmark(square, 1)\n"}))
    write(theirs, {"tests/bench_x.py": REFUSED, "src/lib/__init__.py": LIBRARY.replace("x * x", "x * x + 1")})
    ended = gated()
    assert ended.code == 1, ended.output + ended.errors
    rows = {row.id.partition("::")[2]: (str(row.verdict), row.explanation) for row in ended.result.cases}
    assert "Tests wrote tests/out.json in their own trees, alike on both sides." in ended.output
    assert rows.pop("test_writes") == ("NOT MEASURED", "--gate-minutes 0 measures no time")
    assert rows.pop("test_gone") == ("GONE", "head does not have it: the test is gone")
    verdict, why = rows.pop("test_raises")
    assert (verdict, re.fullmatch(r"head failed: tests/bench_x\.py:\d+: assert 5 == 4", why) is not None) == (
        "FAILED", True,
    ), why  # fmt: skip
    assert {name: (verdict, words in why) for name, (verdict, why) in rows.items() for words in [WORDS[name]]} == (
        dict.fromkeys(WORDS, ("NOT MEASURED", True))
    ), rows


WORDS = {
    "test_async": "it is async", "test_timer": "a timer of its own", "test_replaced_timer": "a timer of its own",
    "test_mark": "without the fixture", "test_once": "a second call raises ZeroDivisionError",
    "test_twice": "its fixture `benchmark` twice", "test_skipped": "skipped: no room",
    "test_no_fixture": "failed: fixture 'nothing' not found", "test_never": "was not used at all",
}  # fmt: skip
NEWER = "\ndef cube(x):\n    return x**3\n"
OF_NEWER = "\ndef test_cube(benchmark):\n    import lib\n    benchmark(lib.cube, 3)\n"


def test_a_test_that_base_had_is_never_green_where_it_cannot_run_there(theirs: Path, gated: Gate) -> None:
    write(theirs, {"src/lib/__init__.py": LIBRARY + NEWER, "tests/bench_new.py": OF_NEWER})
    ended = gated(tests=("tests/bench_new.py",))
    assert (ended.code, [*ended.verdicts.values()]) == (0, ["NEW"]), ended.output + ended.errors
    write(theirs, {"tests/bench_x.py": TESTS + OF_NEWER})
    commit(theirs)
    write(
        theirs,
        {
            "src/lib/__init__.py": LIBRARY + NEWER.replace("cube", "third"),
            "tests/bench_x.py": TESTS + OF_NEWER.replace("lib.cube", "lib.third"),
        },
    )
    ended = gated()
    assert ended.code == 4, ended.output + ended.errors
    assert "INCOMPARABLE: base has tests/bench_x.py::test_cube, and head's version" in ended.output
    whole = TESTS.replace("import count", "import third, count") + OF_NEWER
    write(theirs, {"tests/bench_x.py": whole})
    ended = gated()
    assert (ended.code, "cannot import name 'third'" in ended.output) == (4, True), ended.output + ended.errors
    ended = gated(against="main~1", tests=("tests",))
    assert ended.code == 4


LIKE_CODSPEED = """
import os
import pytest

def pytest_addoption(parser):
    parser.addoption("--codspeed", action="store_true")

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.getoption("--codspeed") or "CODSPEED_ENV" in os.environ:
        raise pytest.UsageError("the fixture `benchmark` is codspeed's")
"""
FOR_CODSPEED = """
import sys
import pytest
from lib import square

if sys.argv[1:] != ["tests", "-p", "like_codspeed", "--codspeed"]:
    pytest.skip(f"it runs with --codspeed, not {sys.argv}", allow_module_level=True)

def test_a(benchmark):
    benchmark(square, 1)

def test_b(codspeed_benchmark):
    codspeed_benchmark(square, 1)

@pytest.fixture
def codspeed_benchmark():
    return lambda call, *given: call(*given)
"""


def test_tests_of_codspeed_are_gated_by_the_fixture_of_pytest_benchmark(
    theirs: Path, gated: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plugin comes first where it is switched on, and tests look for its option in `sys.argv`."""
    monkeypatch.setenv("CODSPEED_ENV", "1")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    skips = "import pytest\npytest.skip('no room', allow_module_level=True)\n"
    write(theirs, {"src/like_codspeed.py": LIKE_CODSPEED, "tests/bench_x.py": FOR_CODSPEED, "tests/bench_s.py": skips})
    commit(theirs)
    words = ("-p", "like_codspeed", "--codspeed")
    write(theirs, {"src/lib/__init__.py": LIBRARY + "\n"})
    ended = gated(*words, tests=("tests/",))
    verdicts = {"test_a": "SAME", "test_b": "NOT MEASURED"}
    assert (ended.code, ended.verdicts) == (4, verdicts), ended.output + ended.errors
    assert "it uses the fixture `codspeed_benchmark`; the gate serves `benchmark`" in ended.output
    assert "1 file skipped all tests: tests/bench_s.py: no room." in ended.output
    ended = gated(*words, tests=("tests/bench_s.py",))
    assert (ended.code, "of the first, tests/bench_s.py: no room." in ended.errors) == (4, True), ended.errors


ON_A_PORT = """
import errno
from pathlib import Path
import pytest
from lib import square

@pytest.fixture
def server():
    with Path({place!r}).open("a+") as file:
        file.write("once\\n")
        file.seek(0)
        if len(file.readlines()) == {taken}:
            raise OSError(errno.EADDRINUSE, "Address already in use")

def test_served(benchmark, server):
    benchmark(square, 1)
"""


@pytest.mark.parametrize("taken", [2, 4], ids=["as both are rehearsed", "as both are measured"])
def test_a_port_that_both_sides_bind_is_no_fault_of_the_side_that_comes_second(
    theirs: Path, gated: Gate, taken: int
) -> None:
    write(theirs, {"tests/bench_x.py": ON_A_PORT.format(place=str(theirs.parent / "starts"), taken=taken)})
    commit(theirs)
    ended = gated("--gate-measure-same", minutes=1)
    assert (ended.code, ended.verdicts) == (4, {"test_served": "NOT MEASURED"}), ended.output + ended.errors
    assert "it binds a port that is taken; let it bind port 0 (tests/bench_x.py:13: OSError: " in ended.output
    assert len((theirs.parent / "starts").read_text().splitlines()) == taken


def test_minutes_that_end_leave_undecided_what_was_not_measured(
    theirs: Path, gated: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that there is no time to decide, and then none at all."""
    write(theirs, {"src/lib/__init__.py": LIBRARY.replace("x * x", "x**2")})
    monkeypatch.setattr(PairCost, "needed_seconds", lambda self, cases, rules: 1e9 * (len([*cases]) > 1))
    ended = gated(minutes=1)
    assert [line.pair for line in ended.samples.measurements][:4] == [0, 0, 1, 2], ended.output
    kept = {line.case.partition("::")[2] for line in ended.samples.measurements if line.pair}
    left = [name for name, verdict in ended.verdicts.items() if verdict == "UNDECIDED"]
    assert (ended.code, len(kept), {*left} | kept) == (0, 1, {*ALL}), ended.output
    assert "too short for 4 cases (--gate-minutes): after the first pair the time goes to 1 of them" in ended.output
    monkeypatch.setattr(GateRun, "seconds_left", 0.0)
    ended = gated(minutes=1)
    assert (ended.samples.end, ended.samples.measurements) == ("budget", [])
    assert {row.why_measured.partition(" ")[2][:24] for row in ended.result.cases} == {"could not run each once:"}
    assert "The minutes ended in launch pair 1; what it had measured by then is kept." in ended.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_gate_with_what_judges_its_samples(
    theirs: Path, gated: Gate, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    write(theirs, {"src/lib/__init__.py": LIBRARY.replace("x * x", "x**2")})
    before = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    monkeypatch.setattr(termination, "_BEFORE", before)
    monkeypatch.setattr(Measuring, "measure_pair", lambda *_: os.kill(os.getpid(), number))
    ended = gated(minutes=1)
    assert (ended.code, ended.samples.end) == (code, "interrupted"), ended.errors
    assert "No verdict: the run did not finish." in ended.output
    assert f"replay {os.path.relpath(ended.paths[-1])}" in ended.output
    left = [path.name for path in (theirs.parent / "tmp").iterdir() if path.is_dir()]
    assert left == [], "no tree stays"


def test_a_conftest_that_fails_on_base_leaves_nothing_to_compare(theirs: Path, gated: Gate) -> None:
    commit(write(theirs, {"tests/conftest.py": "import lib\nlib.gone\n"}))
    write(theirs, {"tests/conftest.py": FILES["tests/conftest.py"]})
    ended = gated()
    assert ended.code == 4, ended.output + ended.errors
    assert re.search(r"INCOMPARABLE: base's own tests .*tests/conftest\.py': AttributeError: .*'gone'", ended.output)


def refusals(theirs: Path) -> list[tuple[dict[str, Any], str]]:
    """What is typed, or stands in the files, and what is said of it."""
    write(theirs.parent / "elsewhere", {"bench_y.py": "def test_a(benchmark): benchmark(int)\n"})
    write(theirs, {
        "tests/bench_none.py": "def test_a(): pass\n", "tests/bench_broken.py": "import nothing_of_the_kind\n",
        "out/bench_ignored.py": "def test_a(benchmark): benchmark(int)\n",
        ".gitignore": "out/\n_version.py\n", "src/lib/_version.py": "",
        "tests/bench_of_ignored.py": "from lib import _version\n",
        "tests/bench_stray.py": f"import sys\nsys.path.insert(0, {str(theirs / 'src')!r})\nimport lib\n"
                                "def test_a(benchmark): benchmark(lib.square, 1)\n",
    })  # fmt: skip
    return [
        ({"tests": ("tests/bench_none.py",)}, "tests/bench_none.py has no test to gate"),
        ({"tests": ("tests/bench_broken.py",)}, "tests/bench_broken.py cannot be collected: ModuleNotFoundError"),
        ({"tests": ("out/bench_ignored.py",)}, "git ignores out/bench_ignored.py"),
        ({"tests": ("tests/bench_of_ignored.py",)}, "commit it (`git add -f src/lib/_version.py`), or install each"),
        ({"tests": ("tests/bench_x.py::test_none",)}, "ERROR: not found: tests/bench_x.py::test_none."),
        ({"tests": ("tests/bench_stray.py",)}, "lib/__init__.py of the working tree, which would be measured as both"),
        ({"tests": ("tests/bench_x.py", "../elsewhere/bench_y.py")}, "gate each"),
        ({"tests": ("../elsewhere/bench_y.py",)}, "is in none"),
        ({"words": ("--no-such-option",)}, "unrecognized arguments: --no-such-option"),
        ({"words": ("-n2", "-pxdist")}, "disturb each other; add -n 0"),
        ({"words": ("--against-option=attention=sdpa",)}, "tests of yours have none of"),
        ({"words": ("--gate-compile",)}, "--gate-compile judges cases of the suite"),
        ({"words": ("--gate-minutes=soon",)}, "--gate-minutes 'soon' is not"),
        ({"words": ("--gate-summary=no/such.md",)}, "no is not a folder"),
        ({"words": ("--time-limit=0",)}, "--time-limit '0' is not a positive number of minutes"),
        ({"words": ("--gate-measure-same",)}, "--gate-minutes 0 measures no time"),
        ({"words": ("--maxfail=some",)}, "--maxfail invalid int value: 'some'"),
        ({"against": "mian"}, "--against mian"),
    ]


def test_what_cannot_be_gated_is_one_sentence(theirs: Path, gated: Gate) -> None:
    for typed, words in refusals(theirs):
        ended = gated(*typed.pop("words", ()), **typed)
        assert ended.code == 4, (words, ended.output)
        assert len([line for line in ended.errors.splitlines() if words in line]) == 1, (words, ended.errors)
        assert "Traceback" not in ended.output + ended.errors
    assert not (theirs / ".benchmarks").exists()
