"""The expedition: its steps are valid commands, it survives a change of machine, its page judges what was found."""

import json
import shlex
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from claims.expedition import __main__ as expedition
from claims.expedition import slices
from claims.expedition.__main__ import FolderLimits, StateTooLargeError, load_state, save_state
from claims.expedition.on_device import queue
from claims.expedition.page import CLAIMS, page
from claims.expedition.slices import SLICES, suite
from perf_tests.hardware.device import CpuDevice
from perf_tests.records.journal import Journal
from perf_tests.records.record import Json, identity_of
from tests.support.example_cases import CPU
from tests.support.launch import MODELS, ROOT, launch_all
from tests.support.synthetic import (
    BACKWARD,
    FORWARD,
    header,
    record,
    timed,
    traced,
    untimed,
    with_passes,
    write_record,
)


def test_each_step_of_the_table_selects_cases() -> None:
    steps = {step.name: step for slice_steps in SLICES.values() for step in slice_steps if "pytest perf" in step.words}
    commands = [
        shlex.split(f"{step.words} {step.on_cpu}".format(device="cpu", storage="/nowhere", minutes="9"))[1:]
        for step in steps.values()
    ]
    ends = launch_all([*words, "--collect-only", "-q", "-p", "no:cacheprovider"] for words in commands)
    assert {name: code for name, (code, _, _) in zip(steps, ends, strict=True)} == dict.fromkeys(steps, 0), ends


Expedition = Callable[..., int]
ONE_FOLDER = FolderLimits(files=8, bytes_per_file=2**20)


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch, forked_workers: None) -> Expedition:
    """One command of an expedition whose only step dies in its second case, if PLANTED_SIGNAL says so."""
    step = suite("main", "A record in two slices", f'--model {MODELS}:DiesAt16 -k "not attention"')
    monkeypatch.setattr(expedition, "SLICES", {"5": (step,), "6": (step,)})
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.support.quick_ceiling -p no:cacheprovider")
    return lambda *words: expedition.main([*map(str, words), "--device=cpu"])


def cases(out: Path, folder: Path) -> dict[str, Json]:
    """What the only record of the results holds."""
    load_state(folder, out)
    (path,) = folder.glob("storage/main/*/*.json")
    return {row["fullname"]: identity_of(row) for row in json.loads(path.read_text())["benchmarks"]}


def test_killed_between_two_slices_and_resumed_on_a_fresh_copy_it_records_the_same_cases_once(
    go: Expedition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANTED_SIGNAL", "SIGINT")
    assert go("5", "--out", tmp_path / "first") == 1
    monkeypatch.delenv("PLANTED_SIGNAL")
    shutil.copytree(tmp_path / "first", tmp_path / "carried")
    assert go("6", "--out", tmp_path / "second", "--state", tmp_path / "carried") == 0
    assert go("5", "--out", tmp_path / "at once") == 0
    assert "has its result" not in capsys.readouterr().out
    assert go("6", "--out", tmp_path / "at once") == 0
    assert "has its result" in capsys.readouterr().out
    in_two = cases(tmp_path / "second", tmp_path / "a")
    assert len(in_two) == 2
    assert in_two == cases(tmp_path / "at once", tmp_path / "b")


def test_a_slice_without_time_begins_no_step_and_says_so(
    go: Expedition, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert go("5", "--out", tmp_path, "--minutes", 0.1) == 1
    assert "run slice 5 again" in capsys.readouterr().out


def planted_traces(state: Path, *sizes: int) -> None:
    folder = state / "storage" / "passes" / "machine" / "files-1"
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (folder / f"{number}.trace.json.gz").write_bytes(b"x" * size)


def test_traces_fill_packs_within_the_limits_and_the_rest_is_named(tmp_path: Path) -> None:
    limits = FolderLimits(files=4, bytes_per_file=200_000)
    planted_traces(tmp_path / "state", 100_000, 70_000, 80_000, 500_000, 1000)
    save_state(tmp_path / "state", tmp_path, "traces-8", limits)
    packs = sorted(tmp_path.glob("traces-8-*.tar"))
    assert len(packs) == 2
    assert all(path.stat().st_size <= limits.bytes_per_file for path in packs)
    names = [name for path in packs for name in names_in(path)]
    assert sorted(names) == [f"{number}.trace.json.gz" for number in (0, 1, 2, 4)]
    load_state(tmp_path / "next", tmp_path)
    assert "3.trace.json.gz" in page(tmp_path / "next")


def names_in(pack: Path) -> list[str]:
    with tarfile.open(pack) as archive:
        return [Path(name).name for name in archive.getnames()]


def test_a_state_beyond_the_limit_is_refused_and_the_older_one_stays(tmp_path: Path) -> None:
    save_state(tmp_path / "state", tmp_path, "traces-1", ONE_FOLDER)
    before = (tmp_path / "state.tar.xz").read_bytes()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "log.txt").write_text("x")
    with pytest.raises(StateTooLargeError, match="--megabytes"):
        save_state(tmp_path / "state", tmp_path, "traces-1", FolderLimits(8, 10))
    assert (tmp_path / "state.tar.xz").read_bytes() == before


def test_a_damaged_state_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "state.tar.xz").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"state\.tar\.xz cannot be read"):
        load_state(tmp_path / "state", tmp_path)


FACTS: Json = {
    "gpu": {"name": "NVIDIA H200", "driver": "580"}, "torch": "2.11", "python": "3.12", "why_no_health": None,
    "drifting": {"sm_clock_mhz": 1980}, "copy_bytes_per_second": 4.2e12,
    "ceilings": {"matmul_flops_per_second": {"bf16": 780e12}},
}  # fmt: skip
QUEUE: Json = {
    "queued_event_seconds": 1.0, "kernel_seconds": 1.01, "wall_seconds": 1.2, "idle_event_seconds": 1.1,
}  # fmt: skip
PEAKS: Json = {"peak_allocated_bytes": 1001, "predicted_peak_bytes": 1000}
TIMES: Json = {"roofline_seconds": 1.0, "launching_seconds": 0.1, "bound": "compute"}
EAGER: Json = {"size": "large", "context_length": 1024, "mfu": 0.3}


def found_in(
    state: Path,
    step: str,
    values: Json | str = "",
    exit_code: int = 0,
    device: str = "cuda:0",
    data: Json | None = None,
) -> None:
    """One step's finding and record."""
    line = values if isinstance(values, str) else json.dumps(values)
    finding = {"slice": "1", "device": device, "exit_code": exit_code, "seconds": 1.0, "last_line": line}
    write_record(state / "findings" / f"{step}.json", finding)
    if data is not None:
        write_record(state / "storage" / step / "machine" / "0001_x.json", data)


def verdicts(state: Path) -> dict[str, str]:
    """By the beginning of the claim."""
    lines = [line.strip("| ").split(" | ") for line in page(state).splitlines() if line.startswith("| ")]
    return {cells[0]: cells[3] for cells in lines if len(cells) == 4 and cells[3] in VERDICTS}


VERDICTS = ("confirmed", "not confirmed", "not measured")


@pytest.mark.parametrize("step, exit_code, is_done", [
    ("numerics", 0, True), ("numerics", 1, True), ("gate", 1, True), ("gate", 143, False), ("gate", 4, False),
    ("queue", 1, False),
])  # fmt: skip
def test_a_verdict_is_not_sought_again_until_it_pleases(
    step: str, exit_code: int, is_done: bool, tmp_path: Path
) -> None:
    found_in(tmp_path, step, exit_code=exit_code)
    of_table = next(entry for steps in SLICES.values() for entry in steps if entry.name == step)
    assert expedition.is_done(of_table, tmp_path) is is_done


def test_without_results_nothing_is_measured_and_each_claim_has_a_row(tmp_path: Path) -> None:
    assert verdicts(tmp_path) == dict.fromkeys((claim.sentence for claim in CLAIMS), "not measured")


def test_on_a_cpu_nothing_is_confirmed(tmp_path: Path) -> None:
    assert "not measured on a CPU" in queue(CpuDevice(CPU))["reason"]
    found_in(tmp_path, "facts", FACTS, device="cpu")
    found_in(tmp_path, "smoke", data=record([timed()]), device="cpu")
    assert set(verdicts(tmp_path).values()) == {"not measured"}
    assert "not measured on a CPU" in page(tmp_path)


def planted(is_good: bool, state: Path) -> None:
    """All results of an expedition that confirms everything, or refutes it."""
    other = 1.0 if is_good else 1.5
    found_in(state, "facts", FACTS if is_good else {
        **FACTS, "drifting": {"sm_clock_mhz": None}, "copy_bytes_per_second": 1e12,
        "ceilings": {"matmul_flops_per_second": {"bf16": 300e12}},
    })  # fmt: skip
    found_in(state, "queue", QUEUE if is_good else {**QUEUE, "kernel_seconds": 0.5, "wall_seconds": 0.5})
    row, slow = timed(), timed(seconds=[other] * 10)
    failed = untimed(BACKWARD, outcome="error")
    too_large = untimed(BACKWARD, outcome="out_of_memory")
    for step in ("smoke", "10B", "longest", "flex"):
        found_in(state, step, data=record([row], [] if is_good else [failed]))
    found_in(state, "overflow", data=record([row], [too_large] if is_good else []))
    found_in(state, "device-assert", data=record([row], [failed] if is_good else []))
    found_in(state, "waits", data=record([timed(flags=["waits_for_host"] if is_good else [])]))
    for step in ("2000-rounds", "alone", "cold-cache"):
        found_in(state, step, data=record([timed(seconds=[1.0] * 10)]))
    for step in ("5-rounds", "after-large", "warm-cache"):
        found_in(state, step, data=record([slow]))
    backend: Json = {"sdpa_backend": "flash" if is_good else "math", "head_dim": 16}
    found_in(state, "sdpa", data=record([timed(**backend)]))
    for step in ("numerics", "gate"):
        found_in(state, step, "9 passed", exit_code=0 if is_good else 1)
    flags = [] if is_good else ["peak_off", "over_ceiling", "parts_do_not_add_up"]
    main_row = timed(seconds=[other**2] * 10, **PEAKS, **TIMES, flags=flags)
    found_in(state, "main", data=record([main_row], [] if is_good else [failed]))
    counted = timed(kernel_launches=60 if is_good else 50, device_busy_seconds=0.01 if is_good else 0.02)
    found_in(state, "passes", data=with_passes(record([counted]), traced()))
    compiled = timed(BACKWARD, seconds=[0.5 * other**3] * 10, **{**EAGER, "execution": "compiled"})
    found_in(state, "executions", data=record([timed(seconds=[1.0] * 10, **EAGER), compiled]))
    study = {"id": FORWARD, "pass": "warmup", "values": {"recommended_warmup_rounds": 5 if is_good else 10}}
    found_in(state, "study", data=with_passes(record([row]), {**study, "identity": identity_of(row)}))


@pytest.mark.parametrize(("is_good", "verdict"), [(True, "confirmed"), (False, "not confirmed")])
def test_each_claim_can_be_confirmed_and_refuted(is_good: bool, verdict: str, tmp_path: Path) -> None:
    planted(is_good, tmp_path)
    assert verdicts(tmp_path) == dict.fromkeys((claim.sentence for claim in CLAIMS), verdict), page(tmp_path)


def test_a_result_that_cannot_be_judged_is_a_row_with_its_reason(tmp_path: Path) -> None:
    found_in(tmp_path, "queue", {"kernel_seconds": 0.0})
    assert set(verdicts(tmp_path).values()) == {"not measured"}
    assert "cannot be judged" in page(tmp_path)


def test_an_unfinished_run_confirms_nothing(tmp_path: Path) -> None:
    found_in(tmp_path, "smoke")
    journal = Journal.create(tmp_path / "storage" / "smoke" / "machine", header([FORWARD, BACKWARD]))
    journal.write("benchmark", timed())
    journal.close()
    assert set(verdicts(tmp_path).values()) == {"not measured"}
    assert "1 measured, 1 left" in page(tmp_path)


def test_the_page_says_how_a_step_without_rows_ended(tmp_path: Path) -> None:
    found_in(tmp_path, "flex", "ERROR: --attention 'flex' is unknown", exit_code=4)
    assert "flex exited with 4: ERROR" in page(tmp_path)


def test_the_guide_names_every_slice() -> None:
    guide = (ROOT / "docs" / "gpu.md").read_text()
    assert [name for name in slices.SLICES if f"| {name} |" not in guide] == []
