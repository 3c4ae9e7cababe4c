"""The planter of faults over a tiny tree of its own."""

import os
from pathlib import Path

import pytest

from tests.faults.__main__ import main

SHOP = """
def price(number, each):
    if number > 10 and each > 100:
        return 0.9 * number * each
    return number * each
"""

TESTS = """
import subprocess, sys
from shop import price

def test_price():
    assert price(2, 3) == 6

def test_price_in_another_process():
    subprocess.run([sys.executable, "-c", "from shop import price; assert price(2, 3) == 6"], check=True)

def test_fails_anyway():
    assert price(2, 3) == 7

def test_waits():
    while price(2, 3) == 5:
        pass

def test_leaves_a_process():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open({left!r}, "w").write(str(process.pid))
    assert price(2, 3) == 6
"""

OWNER = "test_shop.py::test_price"


def entry(old: str, new: str, owner: str = OWNER, caught: bool = True, why: str = "") -> str:
    return (
        f"[[fault]]\nfile = 'shop.py'\nold = '{old}'\nnew = '{new}'\n"
        f"owner = '{owner}'\ncaught = {str(caught).lower()}\nwhy = '{why}'\n"
    )


SUM = ("    return number * each", "    return number + each")
DISCOUNT = ("0.9", "0.8")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with a product of one file and its tests; faults are added by the test."""
    root = tmp_path / "root"
    (root / "tests" / "faults").mkdir(parents=True)
    (root / "shop.py").write_text(SHOP)
    (root / "test_shop.py").write_text(TESTS.format(left=str(tmp_path / "left")))
    return root


def plant(root: Path, *entries: str, room: str = "shop") -> None:
    (root / "tests" / "faults" / f"{room}.toml").write_text("\n".join(entries))


def verdicts(output: str) -> dict[str, str]:
    """By name of the fault."""
    return {line[12:].split()[0]: line[:12].strip() for line in output.splitlines() if " s  shop.py  " in line}


def test_a_fault_is_caught_or_survives_or_is_stale(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    not_caught = entry(*DISCOUNT, caught=False, why="nobody buys as much")
    stale = [entry("twice", "once"), entry("number", "count"), entry("return 0.9", "return return")]
    unowned = entry(*SUM, owner="", caught=False, why="no owner yet")
    plant(root, entry(*SUM), entry(*DISCOUNT), not_caught, unowned, *stale)
    assert main([], root) == 1
    found = verdicts(capsys.readouterr().out)
    assert list(found.values()) == ["caught", "SURVIVED", "SURVIVED", "no owner", "stale", "stale", "stale"]
    assert main(["--only", "shop:1"], root) == 0
    assert main(["--only", "shop:3"], root) == 0, "it is listed as not caught"
    assert main(["--only", "shop:4"], root) == 0
    assert main(["--only", "shop:5"], root) == 1
    assert (root / "shop.py").read_text() == SHOP


def test_the_score_says_what_was_not_caught(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(root, entry(*SUM), entry(*DISCOUNT))
    main([], root)
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 2 faults caught: 1 SURVIVED"


def test_a_process_that_the_owner_starts_has_the_fault(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(root, entry(*SUM, owner="test_shop.py::test_price_in_another_process"))
    assert main([], root) == 0


@pytest.mark.parametrize("owner", ["test_shop.py::test_fails_anyway", "test_shop.py::test_gone", "test_gone.py"])
def test_an_owner_that_fails_or_is_missing_catches_nothing(
    root: Path, owner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(root, entry(*SUM, owner=owner))
    assert main([], root) == 1
    assert list(verdicts(capsys.readouterr().out).values()) == ["owner fails"]


@pytest.mark.parametrize("limit", ["CPU_SECONDS", "WALL_SECONDS"])
def test_an_owner_that_does_not_end_is_slow(
    root: Path, limit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"tests.faults.__main__.{limit}", 1)
    plant(root, entry(*SUM, owner="test_shop.py::test_waits"))
    assert main([], root) == 1
    assert list(verdicts(capsys.readouterr().out).values()) == ["slow"]


def test_what_an_owner_leaves_running_ends_with_it(root: Path, tmp_path: Path) -> None:
    plant(root, entry(*SUM, owner="test_shop.py::test_leaves_a_process"))
    assert main([], root) == 0
    process = int((tmp_path / "left").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_draw_takes_only_faults_marked_as_caught_and_can_be_repeated(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(root, *[entry(f"{text}", f"{text} ") for text in ("def price", "if number", "return 0.9")], room="a")
    plant(root, entry(*DISCOUNT, caught=False, why="nobody buys as much"), room="b")
    drawn = []
    for _ in range(2):
        main(["--draw", "2", "--seed", "7"], root)
        output = capsys.readouterr().out
        assert "--seed 7" in output
        drawn.append(list(verdicts(output)))
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 2
    main(["--draw", "9"], root)
    assert set(verdicts(capsys.readouterr().out)) == {"a:1", "a:2", "a:3"}
    assert main(["--draw", "1", "--room", "b"], root) == 2, "a draw of none would look like success"


def test_a_room_can_be_chosen(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(root, entry(*SUM), room="a")
    plant(root, entry(*DISCOUNT), room="b")
    assert main(["--room", "a"], root) == 0
    assert main(["--room", "c"], root) == 2
    assert "c" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, named",
    [
        ("fault = ", "shop.toml"),
        ("[other]", "other"),
        ("[[fault]]\nfile = 'shop.py'", "old"),
        (entry(*SUM) + "when = 'now'", "when"),
        (entry("same", "same"), "different"),
        (entry(*SUM, owner=""), "owner"),
        (entry(*SUM, caught=False), "why"),
        (entry(*SUM).replace("true", "'yes'"), "yes"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(
    root: Path, text: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(root, text)
    assert main([], root) == 2
    assert named in capsys.readouterr().err
