"""The expedition: its steps are valid commands, it survives a change of machine, its page judges what was found.

Three launches.
"""

import json
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest

from claims.expedition import __main__ as expedition
from claims.expedition import on_device
from claims.expedition.__main__ import FolderLimits, StateTooLargeError, load_state, save_state
from claims.expedition.on_device import queue
from claims.expedition.page import CLAIMS, page
from claims.expedition.slices import SLICES, Step, suite
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.records.journal import Journal
from perf_tests_suite.perf_tests.records.record import Json, identity_of
from tests.support.example_cases import CPU
from tests.support.launch import MODELS, ROOT, launch_all
from tests.support.synthetic import BACKWARD, FORWARD, header, record, timed, traced, untimed, with_passes, write_record

STEPS = {step.name: step for slice_steps in SLICES.values() for step in slice_steps}


def test_each_step_of_the_table_selects_cases_and_the_guide_names_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is typed for a GPU, whose shapes are replaced on a CPU, and as there."""
    monkeypatch.setattr(on_device, "CHECKS", dict.fromkeys(on_device.CHECKS, lambda device: {}))
    typed = {}
    for name, step in STEPS.items():
        for more in dict.fromkeys(("", step.on_cpu)):
            filled = f"{step.command} {more}".format(device="cpu", storage="/nowhere", minutes="9")
            module, *words = shlex.split(filled)
            if module == "pytest":
                typed[name, more] = [*words, "--collect-only", "-q", "-p", "no:cacheprovider"]
            else:
                assert module == on_device.__name__
                monkeypatch.setattr("sys.argv", [module, *words])
                assert on_device.main() == 0, name
    ends = launch_all(typed.values())
    assert {name: code for name, (code, _, _) in zip(typed, ends, strict=True)} == dict.fromkeys(typed, 0), ends
    guide = (ROOT / "claims/expedition/README.md").read_text()
    assert [name for name in SLICES if f"| {name} |" not in guide] == []


def test_killed_between_two_slices_and_resumed_on_a_fresh_copy_it_records_each_case_once(
    tmp_path: Path, forked_workers: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = suite("main", "A record in two slices", f'--model {MODELS}:DiesAt16 -k "not attention"')
    monkeypatch.setattr(expedition, "SLICES", {"5": (step,), "6": (step,)})
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.support.quick_ceiling -p no:cacheprovider")
    monkeypatch.setenv("PLANTED_SIGNAL", "SIGINT")  # in the second case
    assert expedition.main(["5", f"--out={tmp_path}/first", "--device=cpu"]) == 1
    monkeypatch.delenv("PLANTED_SIGNAL")
    shutil.copytree(tmp_path / "first", tmp_path / "carried")
    second = ["6", f"--out={tmp_path}/second", f"--state={tmp_path}/carried", "--device=cpu"]
    for more, code, said in ((["--minutes=0.1"], 1, "run slice 6 again"), ([], 0, ""), ([], 0, "has its result")):
        assert expedition.main([*second, *more]) == code
        found = capsys.readouterr().out
        assert (said in found, "has its result" in found) == (True, said == "has its result")
    load_state(tmp_path / "state", tmp_path / "second")
    (path,) = (tmp_path / "state").glob("storage/main/*/*.json")
    contexts = [row["extra_info"]["context_length"] for row in json.loads(path.read_bytes())["benchmarks"]]
    assert contexts == [8, 16]


def test_traces_fill_packs_within_the_limits_and_the_rest_is_named(tmp_path: Path) -> None:
    limits, folder = FolderLimits(files=4, bytes_per_file=200_000), tmp_path / "state/storage/passes/machine/files-1"
    folder.mkdir(parents=True)
    for number, size in enumerate((100_000, 70_000, 80_000, 500_000, 1000)):
        (folder / f"{number}.trace.json.gz").write_bytes(b"x" * size)
    save_state(tmp_path / "state", tmp_path, "traces-8", limits)
    packs = sorted(tmp_path.glob("traces-8-*.tar"))
    assert [path.stat().st_size <= limits.bytes_per_file for path in packs] == [True, True]
    names = []
    for path in packs:
        with tarfile.open(path) as archive:
            names += [Path(name).name for name in archive.getnames()]
    assert sorted(names) == [f"{number}.trace.json.gz" for number in (0, 1, 2, 4)]
    load_state(tmp_path / "next", tmp_path)
    assert "3.trace.json.gz" in page(tmp_path / "next")


def test_a_state_beyond_the_limit_is_refused_and_the_older_one_stays(tmp_path: Path) -> None:
    state, kept = tmp_path / "state", tmp_path / "state.tar.xz"
    save_state(state, tmp_path, "traces-1", FolderLimits(8, 2**20))
    before = kept.read_bytes()
    write_record(state / "log.txt", "x")
    with pytest.raises(StateTooLargeError, match="--megabytes"):
        save_state(state, tmp_path, "traces-1", FolderLimits(8, 10))
    assert kept.read_bytes() == before


FACTS: Json = {
    "gpu": {"name": "NVIDIA H200", "driver": "580"}, "torch": "2.11", "python": "3.12", "why_no_health": None,
    "drifting": {"sm_clock_mhz": 1980}, "copy_bytes_per_second": 4.2e12,
    "ceilings": {"matmul_flops_per_second": {"bf16": 780e12}},
}  # fmt: skip
QUEUE: Json = {
    "queued_event_seconds": 1.0, "kernel_seconds": 1.01, "wall_seconds": 1.2, "idle_event_seconds": 1.1,
}  # fmt: skip
MAIN: Json = {
    "peak_allocated_bytes": 1030, "predicted_peak_bytes": 1000, "roofline_seconds": 1.0, "launching_seconds": 0.1,
    "bound": "compute",
}  # fmt: skip
EAGER: Json = {"size": "large", "context_length": 1024, "mfu": 0.3}


def found_in(
    state: Path, step: str, data: Json | None = None, values: Json | str = "", exit_code: int = 0, device: str = "cuda"
) -> None:
    """One step's finding and record."""
    line = values if isinstance(values, str) else json.dumps(values)
    finding = {"slice": "1", "device": device, "exit_code": exit_code, "seconds": 1.0, "last_line": line}
    write_record(state / "findings" / f"{step}.json", finding)
    if data is not None:
        write_record(state / "storage" / step / "machine" / "0001_x.json", data)


def verdicts(state: Path) -> dict[str, str]:
    """Verdicts by the beginning of the claim."""
    lines = [line.strip("| ").split(" | ") for line in page(state).splitlines() if line.startswith("| ")]
    known = ("confirmed", "not confirmed", "not measured")
    return {cells[0]: cells[3] for cells in lines if len(cells) == 4 and cells[3] in known}


def planted(is_good: bool, state: Path) -> None:
    """All results of an expedition that confirms everything, or refutes it."""

    def either(good: object, bad: object) -> object:
        return good if is_good else bad

    other = 1.0 if is_good else 1.5
    poor = {"drifting": {"sm_clock_mhz": None}, "copy_bytes_per_second": 1e12,
            "ceilings": {"matmul_flops_per_second": {"bf16": 300e12}}}  # fmt: skip
    found_in(state, "facts", values=FACTS | ({} if is_good else poor))
    found_in(state, "queue", values=QUEUE | ({} if is_good else {"kernel_seconds": 0.5, "wall_seconds": 0.5}))
    for step in ("numerics", "gate"):
        found_in(state, step, values="9 passed", exit_code=int(not is_good))
    row, one_second = timed(), timed(seconds=[1.0] * 10)
    failed, too_large = untimed(BACKWARD, outcome="error"), untimed(BACKWARD, outcome="out_of_memory")
    failures, asked_for = [] if is_good else [failed], either(1001, 1002)
    flags = [] if is_good else ["peak_off", "over_ceiling", "parts_do_not_add_up"]
    counted = timed(kernel_launches=either(60, 50), device_busy_seconds=either(0.01, 0.02))
    compiled = timed(BACKWARD, seconds=[0.5 * other**3] * 10, **{**EAGER, "execution": "compiled"})
    study = {"id": FORWARD, "pass": "warmup", "values": {"recommended_warmup_rounds": either(5, 10)}}
    records: dict[str, Json] = {
        **dict.fromkeys(("smoke", "10B", "longest", "flex"), record([row], failures)),
        "overflow": record([row], [too_large] if is_good else []),
        "device-assert": record([row], [failed] if is_good else []),
        "waits": record([timed(flags=["waits_for_host"] if is_good else [])]),
        **dict.fromkeys(("300-rounds", "alone", "cold-cache"), record([one_second])),
        **dict.fromkeys(("5-rounds", "after-large", "warm-cache"), record([timed(seconds=[other] * 10)])),
        "sdpa": record([timed(sdpa_backend=either("flash", "math"), head_dim=16)]),
        "main": record([timed(seconds=[other**2] * 10, **MAIN, peak_requested_bytes=asked_for, flags=flags)], failures),
        "passes": with_passes(record([counted]), traced()),
        "executions": record([timed(seconds=[1.0] * 10, **EAGER), compiled]),
        "study": with_passes(record([row]), {**study, "identity": identity_of(row)}),
    }
    for step, data in records.items():
        found_in(state, step, data)


@pytest.mark.parametrize(("is_good", "verdict"), [(True, "confirmed"), (False, "not confirmed")])
def test_each_claim_can_be_confirmed_and_refuted(is_good: bool, verdict: str, tmp_path: Path) -> None:
    planted(is_good, tmp_path)
    assert verdicts(tmp_path) == dict.fromkeys((claim.sentence for claim in CLAIMS), verdict), page(tmp_path)


@pytest.mark.parametrize("step, exit_code, is_done", [
    ("numerics", 0, True), ("numerics", 1, True), ("gate", 1, True), ("gate", 143, False), ("gate", 4, False),
    ("queue", 1, False),
])  # fmt: skip
def test_a_verdict_is_not_sought_until_it_pleases(step: str, exit_code: int, is_done: bool, tmp_path: Path) -> None:
    found_in(tmp_path, step, exit_code=exit_code)
    assert expedition.is_done(STEPS[step], tmp_path) is is_done


def test_a_copy_without_history_gets_one_for_its_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite_folder = tmp_path / "suite"
    suite_folder.mkdir()
    (suite_folder / "count.py").write_text(
        "import os\nos.system('git rev-list --count HEAD; git status --short --untracked-files=no')\n"
    )
    monkeypatch.setattr(expedition, "ROOT", suite_folder)
    step = Step("gate", "Is there a base?", "count", judges=True, needs_git=True)
    assert expedition.run_step(step, tmp_path, "cuda", 60)["last_line"] == "1"
    assert not (suite_folder / ".git").exists(), "the copy alone becomes a repository"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found_in(tmp_path, "gate", values=(ended := expedition.run_step(step, tmp_path, "cuda", 60))["last_line"])
    path = tmp_path / "findings" / "gate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | ended))
    assert expedition.is_done(step, tmp_path)
    assert "gate could not run: git is not installed here | not measured" in page(tmp_path)


def test_nothing_is_confirmed_by_what_is_missing_of_a_cpu_unfinished_or_beyond_judging(tmp_path: Path) -> None:
    assert verdicts(tmp_path / "nothing") == dict.fromkeys((claim.sentence for claim in CLAIMS), "not measured")
    assert "not measured on a CPU" in queue(CpuDevice(CPU))["reason"]
    found_in(tmp_path, "facts", values=FACTS, device="cpu")
    found_in(tmp_path, "10B", record([timed()]), device="cpu")
    found_in(tmp_path, "queue", values={"kernel_seconds": 0.0})
    found_in(tmp_path, "flex", values="ERROR: --attention 'flex' is unknown", exit_code=4)
    found_in(tmp_path, "smoke")
    journal = Journal.create(tmp_path / "storage" / "smoke" / "machine", header([FORWARD, BACKWARD]))
    journal.write("benchmark", timed())
    journal.close()
    assert set(verdicts(tmp_path).values()) == {"not measured"}
    for words in ("not measured on a CPU", "cannot be judged", "1 measured, 1 left", "flex exited with 4: ERROR"):
        assert words in page(tmp_path)
