"""Why a case has no timing: judged before it is tried, or read from the error that ended it."""

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from model.attention import ATTENTION
from model.precision import PRECISIONS
from model.transformer import blocks_per_checkpoint
from perf_tests.cases.case import Case
from perf_tests.cases.options import EXECUTIONS, PASSES, Parse, one_of, optimizer, typed_or
from perf_tests.cases.selected import FAMILIES
from perf_tests.cases.settings import Settings
from perf_tests.hardware.device import Device, is_beyond_device, is_out_of_memory, words_of
from perf_tests.phases import DIMENSIONS, ZERO_GRAD
from perf_tests.predict.counters import needed_bytes
from perf_tests.records.columns import case_name
from perf_tests.records.format import duration
from perf_tests.records.journal import (
    Journal,
    JournalContents,
    is_running,
    read_journal,
    remove_headless,
    unfinished_journals,
)
from perf_tests.records.record import OUTCOMES, Json, build_record, identity_of, machine_differences
from perf_tests.records.store import identity_difference, own_folder, remove_unfinished, save_record, saved_as
from perf_tests.user_code.attention import is_own
from perf_tests.user_code.named import check_name

DOES_NOT_FIT = ("out_of_memory", "would_not_fit")


class ImpossibleError(Exception):
    """A case was measured faster than its machine can be; the message gives the limit and the likely cause."""


@dataclass(frozen=True)
class Outcome:
    """Why a case has no timing."""

    outcome: str
    reason: str
    needed_bytes: int | None = None
    available_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} is not known; it must be one of {', '.join(OUTCOMES)}.")

    @property
    def in_words(self) -> str:
        return f"{OUTCOMES[self.outcome]}: {self.reason}"

    def as_row(self, case_id: str, case: Case, rounds: Sequence[float]) -> Json:
        """The row of the record; `rounds` are the seconds measured before the case ended."""
        return {"id": case_id, **case.identity(), **asdict(self), "rounds": list(rounds)}


KILLED = Outcome(
    "process_died",
    "the process was killed twice while this case ran, by a signal that it cannot name: from outside, or for want of "
    "memory.",
)


RANK_DIED = Outcome(
    "process_died",
    "a rank died twice while this case ran, or torchrun was told to end; what torchrun says above has its exit code.",
)


def why_too_large(case: Case, budget_bytes: int, earlier: Sequence[Json], of_what: str = "") -> Outcome | None:
    """None where the case may fit the budget and no smaller case of its family in `earlier` failed to.

    `of_what` says what limits the budget.
    """
    needed = needed_bytes(case)
    smaller = next((row for row in earlier if row["outcome"] in DOES_NOT_FIT and _is_smaller(row, case)), None)
    if needed > budget_bytes:
        reason = (
            f"needs at least {amount(needed)}, and {amount(budget_bytes)} may be used{of_what}; "
            "choose a smaller batch, context or size, or raise --memory-budget."
        )
    elif smaller is not None:
        reason = f"not tried: the smaller {smaller['id'].rpartition('::')[2]} is {OUTCOMES[smaller['outcome']]}."
    else:
        return None
    return Outcome("would_not_fit", reason, needed, budget_bytes)


def _is_smaller(row: Json, case: Case) -> bool:
    """Whether the row is of the case's family and none of its dimensions is larger."""
    there, here = identity_of(row), case.identity()
    if there.keys() != here.keys():
        return False
    return all(
        there[name] <= here[name]
        if name in DIMENSIONS and None not in (there[name], here[name])
        else there[name] == here[name]
        for name in here
        if name != "size"
    )


def outcome_of_error(error: BaseException, case: Case, device: Device, available_bytes: int) -> Outcome | None:
    """What the error says of the device; None where the case itself has failed."""
    words = words_of(error)
    if is_beyond_device(error):
        return Outcome("unsupported", words)
    if not is_out_of_memory(error):
        return None
    # PyTorch's own allocator tells what is free.
    memory = "" if "is free" in words else device.memory_in_words()
    return Outcome("out_of_memory", f"{words} ({memory})" if memory else words, needed_bytes(case), available_bytes)


def amount(count: float) -> str:
    """Bytes in words."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def outcome_of_report(report: pytest.TestReport) -> Outcome:
    """The outcome in pytest's report of a case that was skipped or failed."""
    if report.skipped:
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
        return Outcome("unsupported", reason.removeprefix("Skipped: "))
    crash = getattr(report.longrepr, "reprcrash", None)
    return Outcome("error", (crash.message if crash else report.longreprtext).splitlines()[0])


# How far a run is: a line that is rewritten at a terminal, a line a minute in a log.


SECONDS_BETWEEN_LINES = 60.0
"""Of a log. Lines come between rounds, never inside one, so that they disturb no figure."""


@dataclass(frozen=True)
class Output:
    """Of pytest, written past its capture."""

    terminal: pytest.TerminalReporter
    uncaptured: Callable[[], AbstractContextManager[None]]

    def ensure_newline(self) -> None:
        with self.uncaptured():
            self.terminal.ensure_newline()
            self.terminal.flush()


@dataclass(frozen=True)
class Line(Output):
    """A line of a terminal."""

    def rewrite(self, line: str, **markup: bool) -> None:
        width = shutil.get_terminal_size().columns - 1  # a wrapped line could not be overwritten
        with self.uncaptured():
            self.terminal.rewrite(line[:width], **markup)
            self.terminal.flush()


@dataclass(frozen=True)
class Log(Output):
    """Where nobody watches, but some end a job that is silent for long."""

    def write(self, line: str) -> None:
        with self.uncaptured():
            self.terminal.write_line(line)
            self.terminal.flush()


@dataclass
class Progress:
    """Silent without `output`. Only the ratios of the cases' `predicted_seconds` count."""

    output: Line | Log | None
    predicted_seconds: dict[str, float] = field(default_factory=dict)
    measured_seconds: float = 0.0
    """Of the cases that are done."""
    _done: dict[str, float] = field(default_factory=dict)
    _case_id: str = ""
    _case_start: float = 0.0
    _rounds: int = 0
    _warmup_rounds: int = 0
    _last: str = ""
    _last_line: float = field(default_factory=lambda: time.monotonic())

    @property
    def line(self) -> Line | None:
        return self.output if isinstance(self.output, Line) else None

    @property
    def done_predicted_seconds(self) -> float:
        return sum(self._done.values())

    def begin(self, case_id: str, warmup_rounds: int, rounds: int) -> None:
        self._case_id, self._warmup_rounds, self._rounds = case_id, warmup_rounds, rounds
        self._case_start = time.monotonic()
        if self.line is not None:
            self.line.ensure_newline()

    def round(self, number: int) -> None:
        """Round `number` begins, counted from 0, warm-up rounds first."""
        if self.output is None:
            return
        if number < self._warmup_rounds:
            kind, count, of = "warm-up", number + 1, self._warmup_rounds
        else:
            kind, count, of = "round", number - self._warmup_rounds + 1, self._rounds
        position = f"case {len(self._done) + 1} of {len(self.predicted_seconds)}"
        name = self._case_id.rpartition("::")[2]
        # The name comes last, because a narrow terminal cuts the end off.
        line = f"{position}{self._time_left()}  {kind} {count} of {of}  {name}"
        if self.line is not None:
            self.line.rewrite(line, erase=True)
        else:
            self._log(line)

    def end(self, case_id: str, result: str) -> None:
        """The case is done, with a timing or without; `result` replaces its rounds on the line."""
        if case_id == self._case_id:
            self.measured_seconds += time.monotonic() - self._case_start
            self._done[case_id] = self.predicted_seconds.get(case_id, 0.0)
            self._case_id, self._last = "", result
            if self.line is not None:
                self.line.rewrite("", erase=True)
                self.line.rewrite(f"{result} ")
            else:
                self._log(f"{len(self._done)} of {len(self.predicted_seconds)} cases done{self._time_left()}")
        else:
            self._done[case_id] = self.predicted_seconds[case_id] = 0.0

    def _log(self, line: str) -> None:
        """Once a minute, with the last figure."""
        now = time.monotonic()
        if isinstance(self.output, Log) and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self.output.write(f"{line}{f'; last: {self._last}' if self._last else ''}")
            self._last_line = now

    def _time_left(self) -> str:
        done = self.done_predicted_seconds
        if not done:
            return ""
        left = (sum(self.predicted_seconds.values()) - done) * self.measured_seconds / done
        left = max(0.0, left - (time.monotonic() - self._case_start if self._case_id else 0.0))
        return f"  about {left / 60:.0f} min left" if left >= 90 else f"  about {left:.0f} s left"


# One run from its first case to its record: the journal, and the rows of each case.


DRIVER = "gpu.driver: "
"""The fact of a machine that a resumed run may change, as `machine_differences` writes it."""


class ResumeError(Exception):
    """The run cannot begin beside another, or cannot be resumed; the message is one sentence."""


@dataclass
class MeasuringSession:
    """Keeps the journal of one run and builds its record."""

    journal: Journal
    contents: JournalContents
    """What the journal holds, with the cases of an interrupted run."""
    progress: Progress
    in_flight: str | None = None
    """The case that has begun and has no row yet."""
    was_complete: bool = field(default=False, init=False)
    """Whether an earlier process finished the last case."""
    saved: Path | None = field(default=None, init=False)
    """The record of a run that was killed before it removed its journal."""

    def __post_init__(self) -> None:
        self.was_complete = self.is_complete
        if self.was_complete:
            self.saved = saved_as(self.journal.path.parent, self.journal.path.stem)

    def begin(self, case_id: str, warmup_rounds: int, rounds: int) -> None:
        self.journal.write("started", case_id)
        self.in_flight = case_id
        self.progress.begin(case_id, warmup_rounds, rounds)

    def measured(self, row: Json) -> None:
        self._keep("benchmark", row, row["fullname"], duration(row["stats"]["median"]))

    def not_measured(
        self, case_id: str, case: Case, outcome: Outcome, rounds: Sequence[float] = (), extra_pass: str | None = None
    ) -> None:
        row = outcome.as_row(case_id, case, rounds) | ({} if extra_pass is None else {"pass": extra_pass})
        self._keep("outcome", row, case_id, OUTCOMES[outcome.outcome])

    def passed(self, case_id: str, case: Case, extra_pass: str, values: Json) -> None:
        row = {"id": case_id, "identity": case.identity(), "pass": extra_pass, "values": values}
        self._keep("pass", row, case_id, "done")

    def _keep(self, kind: str, row: Json, case_id: str, result: str) -> None:
        self.journal.write(kind, row)
        self.contents.add(kind, row)
        self.in_flight = None
        self.progress.end(case_id, f"{case_name(case_id)}  {result}")

    def measure_again(self, case_id: str) -> None:
        """Whatever the journal holds of the case does not count. Raises OSError."""
        self.journal.write("again", case_id)
        self.contents.add("again", case_id)

    def side_file(self, case_id: str, suffix: str) -> Path:
        """The path of a file too large for the record, in the run's folder beside it. Raises OSError."""
        folder = self.journal.path.with_name(self.journal.path.stem.replace("journal", "files", 1))
        folder.mkdir(exist_ok=True)
        return folder / f"{case_name(case_id).replace(' ', '-')}.{suffix}"

    @property
    def is_complete(self) -> bool:
        return set(self.contents.header["selection"]) <= self.contents.finished_ids

    @property
    def killed_in(self) -> list[str]:
        """Cases given up, perhaps by no fault of theirs, that the user has not seen in an earlier process."""
        rows = [] if self.was_complete else self.contents.outcomes
        return [row["id"] for row in rows if row["reason"] == KILLED.reason]

    def record(self) -> Json:
        """The run in the order of its selection, also where several calls finished it."""
        place = {case_id: number for number, case_id in enumerate(self.contents.header["selection"])}

        def in_order(rows: list[Json], name: str) -> list[Json]:
            return sorted(rows, key=lambda row: place.get(row[name], len(place)))

        return build_record(
            {**self.contents.header, "run": self.journal.path.stem},
            in_order(self.contents.benchmarks, "fullname"),
            in_order(self.contents.outcomes, "id"),
            in_order(self.contents.passes, "id"),
        )

    def save(self, record: Json, storage: Path, name: str) -> Path:
        """Write the run's record, then delete the journal; raises OSError, and then the journal stays."""
        path = self.saved or save_record(record, own_folder(storage), name)
        self.journal.discard()
        return path


def open_journal(
    storage: Path, header: Json, resume: bool, any_driver: bool = False
) -> tuple[Journal, JournalContents, list[str]]:
    """A new journal, or with `resume` that of this machine's newest interrupted run, if there is one.

    Beside it a sentence for each run of another machine. Raises ResumeError when the interrupted run differs from this
    one or another run measures here, OSError when the journal cannot be written.
    """
    _refuse_a_second_run(storage, header)
    remove_unfinished(own_folder(storage))
    remove_headless(own_folder(storage))
    passed_over: list[str] = []
    for path, contents in _interrupted_runs(storage, header) if resume else ():
        differences = machine_differences(header["machine_info"], contents.header["machine_info"])
        if any(not difference.startswith(DRIVER) for difference in differences):
            passed_over.append(f"{path.name} is of another machine or build: {'; '.join(differences)}.")
            continue
        if is_running(path):
            continue
        difference = _difference(contents.header, header)
        if difference:
            raise ResumeError(
                f"The interrupted run {path.name} differs from this one in {difference}; "
                f"resume it with `{contents.header['command']}`, or delete {path} to start over."
            )
        if differences and not any_driver:
            raise ResumeError(
                f"The interrupted run {path.name} is of another NVIDIA driver ({differences[0]}); resume it with "
                f"--resume-any-driver, or delete {path} to start over."
            )
        journal = Journal.reopen(path)
        if journal is None:  # another process has just taken or completed it
            continue
        if differences:
            driver = header["machine_info"]["torch"]["gpu"]["driver"]
            journal.write("driver", driver)
            contents.add("driver", driver)
        return journal, contents, []
    return Journal.create(own_folder(storage), header), JournalContents(header), passed_over


def newest_selection(storage: Path) -> set[str]:
    """The cases of the newest interrupted run; none without one."""
    for path in unfinished_journals(storage):
        with suppress(OSError, ValueError):
            contents = read_journal(path)
            if contents is not None and not is_running(path):
                return set(contents.header["selection"])
    return set()


def _refuse_a_second_run(storage: Path, header: Json) -> None:
    """Two runs on one device would slow each other. Shares of one grid run beside each other, on several GPUs."""
    for path in filter(is_running, unfinished_journals(storage)):
        with suppress(OSError, ValueError):
            contents = read_journal(path)
            if contents is not None and _is_here(contents.header, header):
                raise ResumeError(
                    f"Process {contents.process} is measuring here already, in {path}; wait for it, or choose another "
                    "device or --benchmark-storage."
                )


def _is_here(theirs: Json, ours: Json) -> bool:
    there, here = ((run["machine_info"].get("node"), run["settings"].get("device")) for run in (theirs, ours))
    return there == here and not _is_another_share(theirs, ours)


def _interrupted_runs(storage: Path, header: Json) -> Iterator[tuple[Path, JournalContents]]:
    """Newest first, without those of other shares of this grid. Raises ResumeError for a damaged one."""
    for path in unfinished_journals(storage):
        try:
            contents = read_journal(path)
        except FileNotFoundError:  # that run has just become complete
            continue
        except ValueError as error:
            raise ResumeError(f"{error} Delete it to start over.") from error
        if contents is not None and not _is_another_share(contents.header, header):
            yield path, contents


def _is_another_share(interrupted: Json, now: Json) -> bool:
    """Whether both are shares of one grid, which may lie side by side in one folder."""
    theirs, ours = interrupted["settings"].get("shard"), now["settings"].get("shard")
    return isinstance(theirs, list) and ours is not None and theirs[:1] != ours[:1] and theirs[1:] == ours[1:]


def _difference(interrupted: Json, now: Json) -> str:
    """What makes two headers different runs; empty if they are one."""
    before = interrupted["settings"]
    changed = [
        f"{name} ({before.get(name)!r} then, {value!r} now)"
        for name, value in now["settings"].items()
        if before.get(name) != value
    ]
    if changed:
        return ", ".join(changed)
    if interrupted["selection"] != now["selection"]:
        return f"its selection ({len(interrupted['selection'])} cases then, {len(now['selection'])} now)"
    if interrupted["source"] != now["source"]:
        return "its code, which has changed since"
    return ""


# pytest-benchmark's options for saving, comparing and failing on a regression, taken over by the suite.
#
# They work as its users know them, but on records that are written whole and hold the cases without a timing.
# pytest-benchmark keeps its table, columns, groups and histograms.


class RegressionCheck(Protocol):
    """What pytest-benchmark makes of `--benchmark-compare-fail=median:5%`; `fails` returns a sentence or None."""

    def fails(self, current: Json, compared: Json) -> str | None: ...


@dataclass(frozen=True)
class SavingOptions:
    """What pytest-benchmark was asked to save and to compare with."""

    storage: Path
    save_name: str | None = None
    json_path: Path | None = None
    compare: bool = False
    compare_with: str | None = None
    """Number, beginning of a name, or path; None for the latest comparable record."""
    compare_fail: Sequence[RegressionCheck] = ()
    disabled: bool = False


WITHOUT_EFFECT = (
    *("--benchmark-timer", "--benchmark-min-time", "--benchmark-max-time", "--benchmark-min-rounds"),
    *("--benchmark-calibration-precision", "--benchmark-warmup", "--benchmark-warmup-iterations"),
)

GROUPINGS = (
    *("group", "name", "func", "fullname", "fullfunc", "param"),
    *dict.fromkeys(f"param:{axis}" for family in FAMILIES.values() for axis in family.axes),
)

COLUMNS = ["median", "iqr", "mean", "stddev", "min", "rounds"]


def take_over(config: pytest.Config, storage: Path) -> SavingOptions:
    """Read these options and reset them for pytest-benchmark; call before it reads them. `storage` is the default."""
    option = config.option
    if not config.pluginmanager.hasplugin("benchmark"):
        return SavingOptions(storage)
    if option.benchmark_storage == "file://./.benchmarks":
        option.benchmark_storage = f"file://{storage}"
    if not option.benchmark_storage.startswith("file://") and "://" in option.benchmark_storage:
        raise pytest.UsageError(
            f"--benchmark-storage {option.benchmark_storage!r} is not a folder; records are files, so give file://PATH."
        )
    _refuse_what_cannot_work(config)
    if not option.benchmark_columns:
        option.benchmark_columns = COLUMNS
    saving = SavingOptions(
        storage=Path(option.benchmark_storage.removeprefix("file://")).absolute(),
        save_name=option.benchmark_save or option.benchmark_autosave,
        json_path=option.benchmark_json,
        compare=bool(option.benchmark_compare),
        compare_with=option.benchmark_compare if isinstance(option.benchmark_compare, str) else None,
        compare_fail=tuple(option.benchmark_compare_fail or ()),
        disabled=(option.benchmark_disable and not option.benchmark_enable) or option.benchmark_skip,
    )
    option.benchmark_save = option.benchmark_autosave = option.benchmark_json = option.benchmark_compare_fail = None
    option.benchmark_compare = []
    return saving


def _refuse_what_cannot_work(config: pytest.Config) -> None:
    """Raises pytest.UsageError before measuring for what pytest-benchmark would ignore, or refuse after measuring."""
    typed = [word.partition("=")[0] for word in config.invocation_params.args]
    for name in WITHOUT_EFFECT:
        if name in typed:
            raise pytest.UsageError(
                f"{name} would have no effect, because every case is measured for a set number of rounds by a clock "
                "that waits for the device; use --rounds and --warmup-rounds."
            )
    for grouping in config.option.benchmark_group_by.split(","):
        if grouping not in GROUPINGS:
            raise pytest.UsageError(
                f"--benchmark-group-by {grouping!r} is not known; choose from {', '.join(GROUPINGS)}."
            )
    if config.option.benchmark_histogram and importlib.util.find_spec("pygal") is None:
        raise pytest.UsageError(
            "--benchmark-histogram draws with pygal, which is not installed; "
            "run `pip install 'pytest-benchmark[histogram]'`."
        )
    path = config.option.benchmark_json
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise pytest.UsageError(f"--benchmark-json {path} cannot be written: {Path(path).parent} is not a folder.")


def show_beside_baseline(rows: list[Json], baseline: Json | None, baseline_name: str) -> None:
    """Insert the baseline's row before each comparable row of pytest-benchmark's table, as its own comparison does."""
    shown: list[Json] = []
    for row, before in _with_baseline(rows, baseline):
        if before is not None:
            stats = {name: value for name, value in before["stats"].items() if name != "data"}
            shown.append({**row, **stats, "path": baseline_name, "source": baseline_name.rpartition("/")[2][:4]})
            row["source"] = "NOW"
        shown.append(row)
    rows[:] = shown


def _with_baseline(rows: Sequence[Json], baseline: Json | None) -> Iterator[tuple[Json, Json | None]]:
    """Each row with its comparable row of the baseline, or None."""
    known = {row["fullname"]: row for row in baseline["benchmarks"]} if baseline else {}
    for row in rows:
        before = known.get(row["fullname"])
        yield row, None if before is None or identity_difference(before, row) else before


def same_parameters(rows: list[Json], axes: Sequence[str]) -> None:
    """Give every row every axis: `--benchmark-group-by=param:NAME` fails on rows without the name."""
    for row in rows:
        row["params"] = {**dict.fromkeys(axes, "-"), **(row["params"] or {})}


def regressions(record: Json, baseline: Json, checks: Sequence[RegressionCheck]) -> list[str]:
    """A sentence for each comparable case and each of the user's checks that it fails."""
    return [
        f"{row['fullname']}: {failure}"
        for row, before in _with_baseline(record["benchmarks"], baseline)
        if before is not None
        for check in checks
        if (failure := check.fails(row["stats"], before["stats"]))
    ]


# The gate's options, checked once: what was typed in, one frozen `Against` out.


DEFAULT_MINUTES = 15.0


def _attention(option: str, text: str) -> str:
    if not is_own(text):
        return one_of(ATTENTION, option, text)
    check_name(option, text)
    return text


OTHER_VALUES: dict[str, Parse] = {
    "attention": _attention,
    "precision": partial(one_of, PRECISIONS),
    "execution": partial(one_of, EXECUTIONS),
    "checkpoint": lambda option, text: blocks_per_checkpoint(text),
    "optimizer": optimizer,
    "zero_grad": partial(one_of, ZERO_GRAD),
}
"""The axes of `--against-option`, each with the check of its value."""


@dataclass(frozen=True)
class OtherOption:
    """Base runs with `value` on `axis`, head as the user typed it."""

    axis: str
    value: str

    @property
    def identity_field(self) -> str:
        """In which the two sides of a case differ on purpose."""
        return "zero_grad_policy" if self.axis == "zero_grad" else self.axis

    def applied_to(self, settings: Settings) -> Settings:
        """The settings of base."""
        values: dict[str, Any] = {
            name: self.value if isinstance(getattr(settings, name), str) else (self.value,)
            for name in _fields_of(self.axis)
        }
        return replace(settings, **values)


def _fields_of(axis: str) -> list[str]:
    """The fields of `Settings` that hold an axis."""
    return [family.axes[axis] for family in FAMILIES.values() if axis in family.axes] or [axis]


@dataclass(frozen=True)
class Against:
    """One gate run. At least one of `revision` and `other_option` is given."""

    revision: str | None
    """As typed; None compares two settings of the working tree."""
    other_option: OtherOption | None
    minutes: float
    undecided: Literal["pass", "fail"]
    summary: Path | None
    python: str | None = None
    """The interpreter of base, as typed; None for head's own."""

    def settings_of_base(self, settings: Settings) -> Settings:
        return settings if self.other_option is None else self.other_option.applied_to(settings)


def read_against(config: pytest.Config, settings: Settings, saving: SavingOptions) -> Against | None:
    """None without a gate. Raises ValueError with one sentence for options that cannot be combined."""
    option = config.option
    if option.against is None and option.against_option is None:
        for name in ("--against-python", "--gate-minutes", "--gate-undecided", "--gate-summary"):
            if config.getoption(name) is not None:
                raise ValueError(f"{name} is for the gate; add --against REV.")
        return None
    _refuse_recording(option, settings, saving)
    return Against(
        revision=option.against,
        other_option=None if option.against_option is None else _other_option(option.against_option, settings),
        minutes=typed_or(config, "--gate-minutes", DEFAULT_MINUTES),
        undecided=typed_or(config, "--gate-undecided", "pass"),
        summary=_summary(option.gate_summary, config.invocation_params.dir),
        python=option.against_python,
    )


def _refuse_recording(option: Any, settings: Settings, saving: SavingOptions) -> None:
    """A gate run takes its base from git, not from a record."""
    asked = {
        "--resume": option.resume, "--shard": settings.shard, "--benchmark-compare": saving.compare,
        "--benchmark-save": saving.save_name, "--benchmark-json": saving.json_path,
        "--benchmark-compare-fail": saving.compare_fail, "--benchmark-disable": saving.disabled,
        "--nvtx": settings.nvtx,
        **{PASSES[name]: True for name in settings.passes},
    }  # fmt: skip
    for name, value in asked.items():
        if value:
            raise ValueError(f"--against writes samples and no record; it cannot be combined with {name}.")


def _other_option(text: str, settings: Settings) -> OtherOption:
    axis, _, value = text.partition("=")
    if axis not in OTHER_VALUES or not value:
        raise ValueError(
            f"--against-option {text!r} is not known; write AXIS=VALUE with one of {', '.join(OTHER_VALUES)}."
        )
    OTHER_VALUES[axis](f"--against-option {axis}", value)
    for name in _fields_of(axis):
        chosen = getattr(settings, name)
        values = (chosen,) if isinstance(chosen, str) else chosen
        if len(values) != 1 or "own" in values:
            raise ValueError(
                f"--against-option {text} compares with one {axis} of head, and this run has {', '.join(values)}; "
                f"choose one with --{axis}."
            )
        if values == (value,):
            raise ValueError(f"--against-option {text} is head's own value; give another value, or another --{axis}.")
    return OtherOption(axis, value)


def _summary(text: str | None, folder: Path) -> Path | None:
    if text is None:
        return None
    path = folder / text
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"--gate-summary {text} cannot be written: {path.parent} is not a folder, or {text} is one.")
    return path
