"""`python -m perf_tests`: one sentence for each refusal, and no verb loads what only others take."""

import json
import lzma
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from perf_tests_suite.perf_tests.__main__ import GROUPS, REPLACED, VERBS
from perf_tests_suite.perf_tests.cases.options import OPTIONS
from perf_tests_suite.perf_tests.interleaved.sides import alone
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.verbs.run import MOST_USED
from tests.support.file_readers import READERS
from tests.support.git_repository import commit, git
from tests.support.launch import Verb, parsed
from tests.support.synthetic import BACKWARD, FORWARD, TEN_ROUNDS, record, timed, traced, untimed, write_record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only record of the storage below the working folder."""
    monkeypatch.chdir(tmp_path)
    return write_record(tmp_path / ".benchmarks/machine/0001_x.json", record([timed()]))


REFUSED = {
    "audit ./none.csv": 3,
    "compare {file} ./none.json": 3,
    "diff none": 2,
    "diff HEAD --size none": 2,
    "history none": 3,
    "history --storage=./none": 3,
    "history {file} --case none": 2,
    "history {file} -o none.csv": 2,
    "history {file} --export otava -o ./no/page.csv": 2,
    "kernels ./none.sqlite": 3,
    "kernels {file} --case none": 2,
    "predict --gpu H100 --size none": 2,
    "replay ./none.jsonl": 3,
    "replay run.jsonl --summary ./no/page.md": 2,
    "report none": 3,
    "report {file} -o ./no/page.html": 2,
    "show ./none.json": 3,
    "show {file} --against ./none.json": 3,
    "tables none": 3,
    "tables {file} --columns none": 2,
    "tables {file} -o ./run.jsonl": 2,
    # A name that no file system takes fails at every question after it, as one in a folder of somebody else's does.
    **{f"{words} none{'x' * 300}": 3 for words in (
        "audit", "compare {file}", "history --relative", "history --storage",
        "kernels", "replay", "report --storage", "tables --storage",
    )},
}  # fmt: skip
"""What each verb was given, and its exit code: 2 for a choice or an output, 3 for what cannot be read."""


@pytest.mark.parametrize("words", REFUSED)
def test_a_refusal_is_one_sentence_beside_the_output_with_the_word_typed(words: str, stored: Path, verb: Verb) -> None:
    name = words.partition(" ")[0]
    write_record(stored, {**record([timed()]), "passes": [traced("kernels")] if name == "kernels" else []})
    reader = READERS["samples"]
    for name, content in {**reader.beside(), reader.file: reader.content()}.items():
        (stored.parents[2] / name).parent.mkdir(exist_ok=True)
        (stored.parents[2] / name).write_bytes(content)
    code, shown, said = verb(*words.format(file=stored).split())
    assert (code, shown, len(said.splitlines())) == (REFUSED[words], "", 1)
    assert said.count(re.findall(r"\./\S+|none\S*", words)[-1]) == 1
    assert ".unfinished-" not in said


@pytest.mark.parametrize("name", REPLACED)
def test_a_verb_that_is_gone_says_in_one_sentence_what_to_use(name: str, verb: Verb) -> None:
    """Whatever stands behind it, and each verb named instead is one."""
    for words in ((), ("--help",), ("none", "--json")):
        code, shown, said = verb(name, *words)
        assert (code, shown, said) == (2, "", f"perf-tests {name} is gone: {REPLACED[name]}.\n")
    assert {*re.findall("`perf-tests ([a-z]+)", REPLACED[name])} <= {*VERBS}
    assert name not in VERBS


def test_an_error_of_the_program_stops_a_search_by_git(monkeypatch: pytest.MonkeyPatch, verb: Verb) -> None:
    """Where Python's own exit code would name an innocent commit."""
    monkeypatch.setattr("perf_tests_suite.perf_tests.verbs.run.of_pytest", Mock(side_effect=KeyError("no such")))
    assert verb("run", "--bisect", "--against=HEAD")[0] == 255
    monkeypatch.setattr("perf_tests_suite.perf_tests.verbs.run.of_pytest", Mock(side_effect=ValueError("not gated")))
    assert verb("run", "--bisect", "--against=HEAD")[0] == 255


def test_every_verb_is_refused_something() -> None:
    """All but `run`, which becomes pytest."""
    assert {words.split()[0] for words in REFUSED} == set(VERBS) - {"run"}


LOST = record([timed()], [untimed(BACKWARD, phase="backward")])
COMPARED: dict[str, tuple[Json, int, str]] = {
    "case by case": (record([timed(seconds=[1.1 * one for one in TEN_ROUNDS]), timed(BACKWARD)]), 0, "1.100"),
    "not those of two machines": (record([timed()], threads=2), 3, "threads: A: 4, B: 2"),
    "a case that is gone is a finding": (record([timed()]), 1, "not part of this run"),
    "a case that lost its figure is a finding": (LOST, 1, "out of memory"),
}


@pytest.mark.parametrize("claim", COMPARED)
def test_runs_are_compared(claim: str, tmp_path: Path, verb: Verb) -> None:
    now, code, said = COMPARED[claim]
    before = write_record(tmp_path / "before.json", record([timed(), timed(BACKWARD, phase="backward")], threads=4))
    words = "compare", before, write_record(tmp_path / "now.json", now)
    ended, *shown = verb(*words)
    assert (ended, said in "".join(shown)) == (code, True)
    ended, as_json, _ = verb(*words, "--json")
    rows = json.loads(as_json) if code < 3 else []
    assert (ended, [row["is_failure"] for row in rows if row["id"] == FORWARD]) == (code, [False] * (code < 3))


PACKED = (
    "compare {0} {0} --json", "kernels {0} --json", "tables 0001 --json", "history 0001 --json",
    "report 0001 -o page.html", "show {0} --json",
)  # fmt: skip


def test_a_packed_record_is_read_as_it_is(stored: Path, verb: Verb) -> None:
    content = READERS["record"].content()
    shown: dict[str, list[tuple[int, str]]] = {words: [] for words in PACKED}
    for path in (stored, stored.with_name("0001_x.json.xz")):
        path.write_bytes(content if path == stored else lzma.compress(content))
        (stored.parents[2] / "page.html").unlink(missing_ok=True)
        for words, found in shown.items():
            code, text, _ = verb(*words.format(path, path.parent).split())
            found.append((code, text.replace(".json.xz", ".json")))
        path.unlink()
    for words, (plain, packed) in shown.items():
        assert packed == plain, words
        assert plain[0] in (0, 1), words


def test_a_folder_in_the_place_of_a_file_is_named_once(stored: Path, verb: Verb) -> None:
    for words in (["audit"], ["compare", stored], ["kernels"], ["replay"], ["show"]):
        code, *both = verb(*words, stored.parent)
        said = "".join(both)
        assert (code, "it is a folder, not a file" in said, said.count(str(stored.parent))) == (3, True, 1), words


CALL = "import sys; from perf_tests_suite.perf_tests.__main__ import main\ntry: main(sys.argv[1:])\n"
CALL += "finally: print(*sys.modules)"
IMPORT = "import sys, importlib; [*map(importlib.import_module, sys.argv[1:])]; print(*sys.modules)"


def loaded(program: str, *words: str) -> set[str]:
    ended = subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True)
    return set(ended.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    ["audit published/e2e_timing.csv.xz", "compare {file} {file}", "history {file}",
     "report {file} --output={folder}/page.html", "show {file}", "tables {file}"],
)  # fmt: skip
def test_a_verb_does_not_wait_for_what_only_others_take(words: str, stored: Path, tmp_path: Path) -> None:
    """Nor for what would look for steps where one commit is all there is."""
    modules = loaded(CALL, *words.format(file=stored, folder=tmp_path).split())
    assert VERBS[words.partition(" ")[0]] in modules
    assert not {"scipy.stats", "scipy.special", "scipy.optimize", "ruptures", "torch"} & modules


def test_no_verb_but_report_may_load_the_page_and_help_loads_none() -> None:
    verbs = [module for verb, module in VERBS.items() if verb != "report"]
    modules = loaded(IMPORT, *verbs)
    assert set(verbs) <= modules
    assert "perf_tests_suite.perf_tests.report.page" not in modules
    assert not {"torch", "scipy", "perf_tests_suite.perf_tests.records.record", *VERBS.values()} & loaded(
        CALL, "--help"
    )
    for verb in VERBS:
        assert verb == "run" or "torch" not in loaded(CALL, verb, "--help"), verb


def test_help_lists_every_verb(verb: Verb) -> None:
    shown = verb("--help")[1]
    assert [*re.findall(r"^  (\w+) +\w.*\.$", shown, re.M)] == list(VERBS)
    assert list(GROUPS) == re.findall(r"^(\w[\w ]+):$", shown.partition("own\n")[2], re.M)
    assert next(iter(VERBS)) == "run", "it is needed first"
    code, _, said = verb("nosuchverb")
    assert (code, "nosuchverb" in said) == (2, True)
    files = {f"perf_tests_suite.perf_tests.verbs.{path.stem}" for path in (ROOT / "perf_tests/verbs").glob("[a-z]*.py")}
    assert files <= set(VERBS.values()), "each file is a verb's"


@pytest.mark.parametrize("name", [name for name in VERBS if name != "run"])
def test_the_help_of_a_verb_begins_with_a_sentence_and_ends_with_two_examples_that_parse(name: str, verb: Verb) -> None:
    shown = verb(name, "--help")[1]
    assert len(shown.splitlines()) <= 40
    usage, sentence, *_, examples = shown.split("\n\n")
    assert usage.startswith(f"usage: perf-tests {name} ")
    assert re.fullmatch(r"[A-Z][^.]+(?:\.\w[^.]*)*\.", " ".join(sentence.split())), sentence
    first, *typed = examples.strip().splitlines()
    assert (first, len(typed)) == ("examples:", 2)
    for line in typed:
        program, named, *words = shlex.split(line)
        assert (program, named) == ("perf-tests", name)
        parsed(name, words)


def test_the_help_of_run_fits_a_screen_and_names_every_option_once(verb: Verb) -> None:
    shown = verb("run", "--help")[1]
    assert shown.split("\n\n")[1].startswith("Benchmark a model, or compare it with a git revision")
    assert (len(shown.splitlines()) <= 40, max(map(len, shown.splitlines())) <= 80) == (True, True)
    named = re.findall(r"(?:^  |: |, )(--[\w-]+)", shown.partition("\n\nLists")[0], re.M)
    assert sorted(named) == sorted(option.name for option in OPTIONS)
    assert "`perf-tests run --help-all`" in shown
    examples = [shlex.split(line)[2:] for line in shown.partition("\nexamples:\n")[2].strip().splitlines()]
    assert len(examples) == 2
    for typed in examples:
        parsed("run", typed)


@pytest.mark.parametrize("name", MOST_USED)
def test_what_the_help_of_run_lists_are_values_that_the_option_takes(name: str) -> None:
    (option,) = (option for option in OPTIONS if option.name == name)
    text = MOST_USED[name]
    assert re.findall(r"\((\d+)\)", text) in ([], [option.default])
    if name in ("--size", "--precision", "--attention", "--optimizer", "--execution", "--phase"):
        listed = set(re.findall(r"[\w.-]+", re.sub(" or FILE.*| and more", "", text))) - {"or"}
        assert len(listed) > 3
        assert listed <= set(re.findall(r"[\w.-]+\w", option.text))


def test_run_is_pytest_with_the_suites_files_and_configuration(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any folder; words that name files of a suite select them, before and after options, as a record's ids do."""
    monkeypatch.setattr("os.execv", execv := Mock())
    always = [sys.executable, "-m", "pytest", "--config-file", f"{ROOT}/pyproject.toml"]
    for typed, words in {
        "--model a.py:build --json": f"{ROOT}/perf_tests --model a.py:build --json",
        "test_memory.py test_counters.py": f"{ROOT}/perf_tests/test_memory.py {ROOT}/perf_tests/test_counters.py",
        "numerics_tests/test_softmax.py -q": f"{ROOT}/numerics_tests/test_softmax.py -q",
        "perf_tests/test_memory.py::a[b] -x test_forward.py": f"{ROOT}/perf_tests/test_memory.py::a[b] "
        f"{ROOT}/perf_tests/test_forward.py -x",
        "-x numerics_tests": f"{ROOT}/numerics_tests -x",
        "--deselect test_memory.py --size a": f"{ROOT}/perf_tests --deselect test_memory.py --size a",
    }.items():
        verb("run", *typed.split())
        assert execv.call_args.args[1] == [*always, *words.split()]


THEIRS = ("bench_x.py", "test_attention.py", "numerics_tests/test_own.py", "small/test_x.py")


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user stands in, with tests of their own: two bear names of the suite, one that of a size."""
    for name in THEIRS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def test_x(benchmark): benchmark(abs, 1)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_test_file_where_the_user_stands_is_run_alone_by_plain_pytest(
    theirs: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.execv", execv := Mock())
    suites = f"--config-file {ROOT}/pyproject.toml {ROOT}/perf_tests"
    for typed, words in {
        "bench_x.py::test_x --benchmark-disable": "bench_x.py::test_x --benchmark-disable",
        "-q -x bench_x.py": "bench_x.py -q -x",
        "./test_attention.py": "./test_attention.py",
        "small": "small",
        "--size small": f"{suites} --size small",
        "-k bench_x.py": f"{suites} -k bench_x.py",
        "--model bench_x.py:build": f"{suites} --model bench_x.py:build",
        "perf_tests/test_attention.py::a[b]": f"{suites}/test_attention.py::a[b]",
        f"{ROOT}/numerics_tests -q": f"--config-file {ROOT}/pyproject.toml {ROOT}/numerics_tests -q",
    }.items():
        verb("run", *typed.split())
        assert execv.call_args.args[1] == [sys.executable, "-m", "pytest", *words.split()]


def test_a_test_file_where_the_user_stands_is_gated_alone(
    theirs: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this process, or for git by one of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(theirs))
    commit(theirs)
    monkeypatch.setattr("perf_tests_suite.perf_tests.run.their_tests.gate_their_tests", gate := Mock(return_value=1))
    monkeypatch.setattr("perf_tests_suite.perf_tests.run.bisection.judged_by", judged := Mock(return_value=125))
    for typed, tests, words in (
        ("bench_x.py --against main", "bench_x.py", "--against main"),
        ("-k x --against=main bench_x.py::test_x", "bench_x.py::test_x", "-k x --against=main"),
    ):
        assert verb("run", *typed.split())[0] == 1
        assert gate.call_args.args == ([tests], words.split())
        assert verb("run", *typed.split(), "--bisect")[0] == 125
        assert judged.call_args.args[0] == [sys.executable, "-m", "perf_tests_suite.perf_tests", "run", *typed.split()]


def test_a_file_that_is_two_is_exit_4_and_runs_nothing(
    theirs: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.execv", execv := Mock())
    for typed, words in {
        "test_attention.py --against main": ("perf_tests/test_attention.py", "./test_attention.py"),
        "-k x numerics_tests/test_own.py": (f"{ROOT}/numerics_tests/test_own.py", "./numerics_tests/test_own.py"),
        "test_forward.py bench_x.py": ("bench_x.py is yours and test_forward.py the suite's",),
    }.items():
        code, shown, said = verb("run", *typed.split())
        assert (code, shown, len(said.splitlines()), execv.called) == (4, "", 1, False), typed
        assert [one for one in words if one not in said] == [], said


def test_git_and_the_lock_are_asked_before_pytest_starts(
    theirs: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch; and not for the lock where no time is measured."""
    monkeypatch.setattr("os.execv", execv := Mock())
    monkeypatch.setattr(tempfile, "tempdir", str(theirs))
    git(theirs, "init", "-q", "-b", "main")
    commit(theirs)
    typed = ("run", "--model=bench_x.py:build", "--against")
    code, _, said = verb("run", "tests/none.py::test_a", "--against", "main")
    assert (code, "There is no file tests/none.py, seen from" in said, execv.called) == (4, True, False), said
    code, _, said = verb(*typed, "mian")
    assert (code, "did you mean main?" in said, execv.called) == (4, True, False), said
    with alone():
        code, _, said = verb(*typed, "main")
        assert (code, "Another gate" in said, execv.called) == (4, True, False), said
        verb(*typed, "main", "--gate-minutes=0")
        assert execv.called
    assert "torch" not in loaded(CALL, "run", "--against", "no-such-revision")


def test_a_verb_imports_the_suites_model_where_another_one_is_nearer(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/__init__.py").write_text("raise ImportError('not the suite')\n")
    command = [sys.executable, "-m", "perf_tests", "predict", "--size=tiny", "--gpu=H100", "--json"]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
