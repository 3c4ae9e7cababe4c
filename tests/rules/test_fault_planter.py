"""The planter of faults over a tiny tree of its own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.__main__ import FOLDER, ROOT, Fault, definitions, main, read_faults, stale_among

SHOP = """
def price(number, each):
    if number > 10 and each > 100:
        return 0.9 * number * each
    return number * each
"""

TESTS = """
import os, subprocess, sys
from shop import price

def test_price():
    assert price(2, 3) == 6

def test_price_in_another_process():
    assert os.path.isdir("pack/wheels") and not os.path.isdir("wheels"), "an output of make is not copied"
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

SUM = ("    return number * each", "    return number + each")
DISCOUNT = ("0.9", "0.8")


def entry(old: str, new: str, owner: str = "price", caught: bool = True, why: str = "") -> str:
    known = {
        "file": "shop.py", "within": "price", "old": old, "new": new, "why": why,
        "owner": owner and f"test_shop.py::test_{owner}",
    }  # fmt: skip
    lines = [f"{name} = '{value}'" for name, value in known.items()]
    return "\n".join(["[[fault]]", *lines, f"caught = {str(caught).lower()}\n"])


Plant = Callable[..., tuple[int, str, dict[str, str]]]


@pytest.fixture
def plant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plant:
    """The exit code, what is printed, and the verdict by name of the fault; `rooms` are added to the tree."""
    root = tmp_path / "root"
    for folder in ("tests/faults", "wheels", "pack/wheels"):
        (root / folder).mkdir(parents=True)
    (root / "shop.py").write_text(SHOP)
    (root / "test_shop.py").write_text(TESTS.format(left=str(tmp_path / "left")))

    def planted(*words: str, **rooms: str) -> tuple[int, str, dict[str, str]]:
        for room, entries in rooms.items():
            (root / "tests" / "faults" / f"{room}.toml").write_text(entries)
        code = main(words, root)
        assert (root / "shop.py").read_text() == SHOP
        said = "".join(capsys.readouterr())
        lines = [line for line in said.splitlines() if " s  shop.py  " in line]
        return code, said, {line[12:].split()[0]: line[:12].strip() for line in lines}

    return planted


FAULTS = {
    entry(*SUM): "caught",
    entry(*SUM, owner="price_in_another_process"): "caught",
    entry(*DISCOUNT): "SURVIVED",
    entry(*DISCOUNT, caught=False, why="nobody buys as much"): "SURVIVED",
    entry(*SUM, owner="", caught=False, why="no owner yet"): "no owner",
    entry("twice", "once"): "stale",
    entry("number", "count"): "stale",
    entry("return 0.9", "return return"): "stale",
    entry(*SUM, owner="fails_anyway"): "owner fails",
    entry(*SUM, owner="gone"): "owner fails",
}


def test_each_fault_has_its_verdict_and_fails_where_it_is_listed_as_caught_and_is_not(plant: Plant) -> None:
    code, said, verdicts = plant(shop="\n".join(FAULTS))
    assert (code, list(verdicts.values())) == (1, list(FAULTS.values()))
    assert said.splitlines()[-1] == "2 of 10 faults caught: 3 stale, 2 SURVIVED, 2 owner fails, 1 no owner"
    for number, expected in ((1, 0), (3, 1), (4, 0), (5, 0), (6, 1), (9, 1)):
        assert plant("--only", f"shop:{number}")[0] == expected


OUTER = """
LIMITS = {"a": 1, "b": 2}
é, SIZE = "é", 3

@memoised(
    size=3,
)
def price(number, each):
    def rounded(value):
        return round(value, 2)
    return rounded(number * each)

class Shop:
    open: bool = True

    async def price(self, number):
        return rounded(number * 2)

if SIZE:
    def which(): return 1
else:
    def which(): return 2
"""

PLANTED = [
    # within what, old, new, and what stands there or the reason why it is not planted
    ("price", "number*each", "number", "return rounded(number)"),
    ("price.rounded", "round( value ,2, )", "value", "        return value\n"),
    ("price", "size=3", "size=4", "    size=4,\n)"),
    ("LIMITS", '"b" :2', '"b": 3', '"b": 3}'),
    ("SIZE", '"é", 3', '"é", 4', 'é, SIZE = "é", 4'),
    ("Shop.open", "True", "False", "open: bool = False"),
    ("Shop", "return rounded(number * 2)", "if number:\n    return 0\nreturn 1",
     "        if number:\n            return 0\n        return 1\n"),
    ("which", "return 2", "return 3", "def which(): return 3"),
    ("which", "return", "yield", "old stands 2 times within which"),
    ("price", "ound(value", "x", "old stands 0 times within price"),
    ("price", "number * 2", "x", "old stands 0 times within price"),
    ("cost", "number", "x", "no function, class or assigned name there is called cost"),
    ("price", "return rounded", "return return", "new makes line 11 no Python"),
]  # fmt: skip


def test_a_fault_stands_in_what_it_names_however_that_is_formatted(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(OUTER)
    for within, old, new, found in PLANTED:
        try:
            planted = Fault("shop:1", "shop.py", old, new, caught=True, within=within).planted(tmp_path)
        except ValueError as error:
            planted = str(error)
        assert found in planted, (within, old, planted)
    names = "LIMITS é SIZE price price.rounded Shop Shop.open Shop.price which"
    assert [*definitions(OUTER)] == names.split()


def test_a_check_plants_each_and_runs_no_test(plant: Plant) -> None:
    code, said, verdicts = plant("--check", shop="\n".join(FAULTS))
    assert (code, verdicts, said.splitlines()[-1]) == (1, {}, "6 of 10 faults apply")
    assert [line.split(": ")[1] for line in said.splitlines()[:-1]] == [
        "old stands 0 times within price", "old stands 4 times within price", "new makes line 4 no Python",
        "its owner test_shop.py::test_gone is not there",
    ]  # fmt: skip
    assert plant("--check", "--only", "shop:9")[:2] == (0, "1 of 1 faults apply\n")


def test_every_listed_fault_applies() -> None:
    assert list(stale_among(read_faults(ROOT / FOLDER), ROOT)) == []


@pytest.mark.parametrize("limit", ["CPU_SECONDS", "WALL_SECONDS"])
def test_an_owner_that_does_not_end_is_slow(limit: str, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"tests.faults.__main__.{limit}", 1)
    code, _, verdicts = plant(shop=entry(*SUM, owner="waits"))
    assert (code, verdicts) == (1, {"shop:1": "slow"})


def test_what_an_owner_leaves_running_ends_with_it(plant: Plant, tmp_path: Path) -> None:
    assert plant(shop=entry(*SUM, owner="leaves_a_process"))[0] == 0
    process = int((tmp_path / "left").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_draw_takes_only_faults_marked_as_caught_and_can_be_repeated_and_a_room_chosen(plant: Plant) -> None:
    three = "\n".join(entry(text, f"{text} ") for text in ("def price", "if number", "return 0.9"))
    rooms = {"a": three, "b": entry(*DISCOUNT, caught=False, why="nobody buys as much"), "c": entry(*SUM)}
    (_, said, drawn), (*_, again) = (plant("--draw", "2", "--seed", "7", **rooms) for _ in range(2))
    assert "2 faults drawn with --seed 7" in said
    assert (list(drawn), len(drawn)) == (list(again), 2)
    assert plant("--draw", "9")[2].keys() == {"a:1", "a:2", "a:3", "c:1"}
    assert plant("--draw", "1", "--room", "b")[0] == 2, "a draw of none would look like success"
    assert plant("--room", "c")[::2] == (0, {"c:1": "caught"})
    assert plant("--room", "d")[:2] == (2, "No fault is listed for d.\n")


WRONG = {
    "fault = ": "shop.toml",
    "[other]": "other",
    "[[fault]]\nfile = 'shop.py'": "old",
    entry(*SUM) + "when = 'now'": "when",
    entry("same", "same"): "different",
    entry(*SUM, owner=""): "owner",
    entry(*SUM).replace("within = 'price'\n", ""): "within names the function",
    entry(*SUM, caught=False): "why",
    entry(*SUM).replace("true", "'yes'"): "yes",
}


def test_a_wrong_entry_is_refused_by_name(plant: Plant) -> None:
    for text, named in WRONG.items():
        code, said, _ = plant(shop=text)
        assert (code, named in said) == (2, True), said
