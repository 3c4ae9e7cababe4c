"""No name of the suite's modules is met by one of the user's: what processes of the suite find under which names."""

import json
import subprocess
import sys
from pathlib import Path

from perf_tests_suite.perf_tests import IMPORTABLE
from perf_tests_suite.perf_tests.user_code.named import SUITE
from tests.support.launch import inherited

COLLECTED = """
import json, sys

def pytest_collection_finish(session):
    ours = [name for name in sys.modules if name.partition(".")[0] in ("perf_tests", "numerics_tests", "model")]
    where = {item.function.__module__.partition(".")[0] for item in session.items}
    print(json.dumps([ours, [entry for entry in sys.path if entry.startswith(SUITE)], sorted(where)]))
"""


def test_a_run_of_both_suites_puts_neither_their_folder_nor_a_name_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(COLLECTED.replace("SUITE", repr(f"{SUITE}/")))
    suites = [f"--config-file={SUITE}/pyproject.toml", f"{SUITE}/perf_tests", f"{SUITE}/numerics_tests"]
    words = [sys.executable, "-P", "-m", "pytest", *suites, "-p", "told", "--collect-only", "-qq", "-s", "--device=cpu"]
    shown = subprocess.check_output(words, cwd=tmp_path, env=inherited(PYTHONPATH=str(tmp_path)), text=True)
    (told,) = (json.loads(line) for line in shown.splitlines() if line.startswith("[["))
    here = [entry for entry in told[1] if "site-packages" not in entry]
    assert (told[0], {*here}, told[2]) == ([], {str(IMPORTABLE)}, ["perf_tests_suite"])


OLD_AND_NEW = """
from pathlib import Path
from perf_tests_suite.perf_tests.user_code import own_names
try:
    import model
except ModuleNotFoundError:
    own_names.share_model()
import model.attention as asked
from perf_tests_suite.model import attention
import perf_tests
print(asked is attention, asked.__name__, asked.__spec__.name, perf_tests.MINE)
own_names.look_in(Path.cwd())
import helper
print(helper.MINE)
"""


def test_model_is_one_module_under_both_names_where_it_is_shared_and_theirs_elsewhere(tmp_path: Path) -> None:
    """An earlier revision's files import each other as `model`; `perf_tests` may be a package of the user's."""
    for name in ("perf_tests/__init__.py", "later/helper.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("MINE = True\n")
    variables = inherited(PYTHONPATH=f"{IMPORTABLE}:{tmp_path}", PYTHONSAFEPATH="1")
    words = [sys.executable, "-c", OLD_AND_NEW]
    shown = subprocess.check_output(words, cwd=tmp_path / "later", env=variables, text=True)
    name = "perf_tests_suite.model.attention"
    assert shown.split() == ["True", name, name, "True", "True"]
