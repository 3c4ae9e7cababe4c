"""`python -m perf_tests compare`: what it prints and returns, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perf_tests.__main__ import main
from perf_tests.proofs.synthetic import BACKWARD, FORWARD, TEN_ROUNDS, record, timed, untimed, write_record
from perf_tests.records.record import Json

ROOT = Path(__file__).parents[2]
KEPT = "--storage=.benchmarks"
SLOWER = [1.1 * seconds for seconds in TEN_ROUNDS]


def compare(before: Path, now: Path, *options: str) -> int:
    return main(["compare", str(before), str(now), *options])


@pytest.mark.parametrize(
    "now, code, said",
    [(record([timed(seconds=SLOWER)]), 0, "1.100"), (record([timed()], threads=2), 3, "threads: 2 here, 4 there")],
    ids=["case by case", "not those of two machines"],
)
def test_runs_are_compared(now: Json, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_record(tmp_path / "before.json", record([timed()], threads=4))
    assert compare(before, write_record(tmp_path / "now.json", now)) == code
    assert said in capsys.readouterr().out


def test_json_says_the_same_to_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_record(tmp_path / "run.json", record([timed()]))
    assert compare(path, path, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["ratio"], row["is_failure"]) == (FORWARD, 1.0, False)


@pytest.mark.parametrize("now", [record([timed()]), record([timed()], [untimed(BACKWARD, phase="backward")])])
def test_a_case_that_lost_its_figure_is_a_finding(now: Json, tmp_path: Path) -> None:
    before = write_record(tmp_path / "before.json", record([timed(), timed(BACKWARD, phase="backward")]))
    assert compare(before, write_record(tmp_path / "now.json", now)) == 1


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only record of the storage below the working folder."""
    monkeypatch.chdir(tmp_path)
    return write_record(tmp_path / ".benchmarks/machine/0001_x.json", record([timed()]))


@pytest.mark.parametrize("words", [["tables"], ["report", "--output=page.html"]])
def test_a_record_is_not_changed_by_looking_at_it(words: list[str], stored: Path) -> None:
    before = (stored.read_bytes(), stored.stat().st_mtime_ns)
    assert main([*words, KEPT]) == 0
    assert (stored.read_bytes(), stored.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    "words",
    [f"tables {KEPT} --output={{file}}", f"report {KEPT} --output=./no/page.html"],
)
def test_what_cannot_be_written_is_one_sentence(words: str, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.format(file=stored).split()) == 2
    assert len((said := capsys.readouterr().err).splitlines()) == 1
    assert "cannot be written" in said
    assert ".unfinished-" not in said


@pytest.mark.parametrize("words", ["audit", "compare {file}", "kernels", "kernels --json", "replay"])
def test_a_folder_in_the_place_of_a_file_is_named_once(
    words: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.format(file=stored).split(), str(stored.parent)]) == 3
    said = "".join(capsys.readouterr())
    assert "it is a folder, not a file" in said
    assert said.count(str(stored.parent)) == 1


@pytest.mark.parametrize(
    "words", ["compare {file} {file}", "replay {file}", "kernels {file}", "report {file}", "tables {file}"]
)
def test_a_file_that_is_no_record_is_named(words: str, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.write_text("{}\n")
    assert main(words.format(file=stored).split()) == 3
    said = "".join(capsys.readouterr())
    assert f"{stored} cannot be" in said
    assert said.count(str(stored)) == 1


@pytest.mark.parametrize("words", [[], ["compare"], ["unknown"], ["predict", "--size=tiny"]])
def test_wrong_words_are_a_usage_error(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2


def test_a_reader_that_has_seen_enough_ends_a_verb_without_a_traceback() -> None:
    words = [sys.executable, "-m", "perf_tests", "audit", "published/e2e_timing.csv", "--all"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as verb:
        assert verb.stdout is not None
        assert verb.stderr is not None
        verb.stdout.readline()
        verb.stdout.close()
        assert verb.stderr.read() == ""
    assert verb.returncode == 0


def test_no_verb_but_report_may_load_the_page() -> None:
    verbs = [f"perf_tests.verbs.{path.stem}" for path in (ROOT / "perf_tests/verbs").glob("[a-z]*.py")]
    verbs.remove("perf_tests.verbs.report")
    program = "import sys, importlib; [*map(importlib.import_module, sys.argv[1:])]; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program, *verbs], cwd=ROOT, capture_output=True, text=True)
    assert set(verbs) <= (loaded := set(ended.stdout.split()))
    assert "perf_tests.views.report" not in loaded


@pytest.mark.parametrize("words", [["compare", "a", "b"], ["audit", "published/e2e_timing.csv"], ["tables", "none"]])
def test_a_verb_does_not_wait_for_what_only_others_take(words: list[str]) -> None:
    program = "import sys; from perf_tests.__main__ import main; main(sys.argv[1:]); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True)
    assert f"perf_tests.verbs.{words[0]}" in ended.stdout
    assert not {"scipy", "torch"} & set(ended.stdout.split())


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    verbs = {path.stem for path in (ROOT / "perf_tests/verbs").glob("[a-z]*.py")} - {"exit_codes", "output"}
    assert all(f"    {verb} " in shown for verb in verbs)


def test_run_is_pytest_on_the_benchmarks_with_the_suites_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """From any folder; a first word that names a file of the benchmarks selects it."""
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda executable, words: started.append(words))
    main(["run", "--model", "a.py:build", "--json"])
    main(["run", "test_counters.py", "-q"])
    always = [sys.executable, "-m", "pytest", "--config-file", f"{ROOT}/pyproject.toml"]
    assert started == [
        [*always, f"{ROOT}/perf_tests", "--model", "a.py:build", "--json"],
        [*always, f"{ROOT}/perf_tests/test_counters.py", "-q"],
    ]


def test_run_without_the_checkout_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perf_tests.verbs.run.CONFIGURATION", Path("/nowhere/pyproject.toml"))
    assert main(["run"]) == 2
    assert "install the suite from its checkout" in capsys.readouterr().out


def test_a_verb_imports_the_suites_model_where_another_one_is_nearer(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/__init__.py").write_text("raise ImportError('not the suite')\n")
    command = [sys.executable, "-m", "perf_tests", "predict", "--size=tiny", "--gpu=H100", "--json"]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
