"""One launch pair after another: each case in quadruples of rounds in turns, each result on disk before the next."""

import json
import math
import os
import platform
import random
import shlex
import shutil
import string
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from perf_tests.bench.recording import Line
from perf_tests.bench.workers import WorkerEndedError, WorkerProcess, inherited_environment, last_words, start_worker
from perf_tests.gate.samples import (
    ABSENT,
    ORDERS,
    SIDES,
    ExactFinding,
    GateSamples,
    NoTiming,
    PairTime,
    Relaunch,
    Rules,
    SamplesFile,
    Sentinel,
    Side,
    Uncounted,
)
from perf_tests.gate.verdicts import exact_events
from perf_tests.hardware.machine import keep_on, let_go, processors_for
from perf_tests.interleaved.sides import Trees
from perf_tests.records.columns import case_name
from perf_tests.records.record import Json, how_many
from perf_tests.records.store import identity_difference
from perf_tests.user_code.named import SUITE, Repository

# Every random choice of a launch pair, a pure function of the run's seed, so that a run's layout can be repeated.


# At least 4 quadruples, because the Hodges-Lehmann centre of fewer withstands no wild value. At most 64, because
# launches differ by more than further rounds of one launch would sharpen.
FEWEST_QUADRUPLES, MOST_QUADRUPLES = 4, 64
QUADRUPLES_SECONDS = {1: 0.5, 2: 1.5}
"""By stage: the time that all rounds of one case in one pair should take, unmeasured ones included.

Stage 1 only selects, and most of its time goes into cases that do not differ. Stage 2 has few cases, of which each
launch costs more than the rounds.
"""
LONG_QUADRUPLE_SECONDS = 1.0
"""A quadruple this long is the only one of its case in a launch, in a drawn order, where nothing disturbs it: another
launch says more."""
DISTURBED = 0.05
"""A log ratio: in a calm quadruple two rounds of one side differ by less. A case whose long quadruple is disturbed gets
the fewest that others get, whose centre withstands one wild value. That favours no side: the two are not compared."""

_NAME_LENGTH = 12
_MOST_PADDING_BYTES = 4096
"""A page: beyond it the stack's alignments repeat."""


@dataclass(frozen=True)
class Draw:
    base_name: str
    head_name: str
    """Folder names of one length: the path of code affects where it lies in memory, and that its time."""
    padding_bytes: int
    """Length of an unused environment variable, which moves the stack by as much on both sides."""
    hash_seed: int
    head_starts_first: bool
    """In one of two pairs in a row, so that what favours the side that starts first favours neither in all of a few."""


def draw_pair(seed: int, pair: int) -> Draw:
    """The layout of launch pair `pair` of the run with this seed.

    Mytkowicz et al., "Producing wrong data without doing anything obviously wrong!", ASPLOS 2009, show by how much an
    unrandomised layout favours one of two equal programs.
    """
    choose = random.Random(f"{seed} {pair}")
    base_name, head_name = ("".join(choose.choices(string.ascii_lowercase, k=_NAME_LENGTH)) for _ in range(2))
    return Draw(
        base_name=base_name,
        head_name=head_name,
        padding_bytes=choose.randrange(_MOST_PADDING_BYTES),
        hash_seed=choose.randrange(1 << 32),
        head_starts_first=(random.Random(f"{seed} {pair // 2} starts").random() < 0.5) != bool(pair % 2),
    )


def draw_order(seed: int, pair: int, groups: Iterable[Sequence[str]]) -> list[str]:
    """The cases in the order of this pair; those of one model stay together, so that it is built once."""
    choose = random.Random(f"{seed} {pair} order")
    shuffled = [choose.sample(group, len(group)) for group in groups]
    choose.shuffle(shuffled)
    return [item for group in shuffled for item in group]


def draw_quadruples(seed: int, pair: int, case: str, count: int) -> list[str]:
    """`count` orders, both equally often; the last of an odd count at random."""
    choose = random.Random(f"{seed} {pair} {case}")
    orders = [*ORDERS * (count // 2), *choose.sample(ORDERS, count % 2)]
    choose.shuffle(orders)
    return orders


def draw_cores(seed: int, pair: int, case: str, cores: Sequence[int], count: int) -> list[int]:
    """The `count` cores on which both sides run this case; all where there are no more."""
    return random.Random(f"{seed} {pair} {case} cores").sample(cores, min(count, len(cores)))


def quadruple_count(stage: int, quadruple_seconds: float) -> int:
    """How many quadruples, of this duration with set-ups and unmeasured rounds, one pair of this stage gets.

    Even, so that the cost of a change of turns cancels between the two orders; of a long one, where it is small, it
    cancels between the pairs.
    """
    if quadruple_seconds >= LONG_QUADRUPLE_SECONDS:
        return 1
    wanted = 2 * round(QUADRUPLES_SECONDS[stage] / quadruple_seconds / 2)
    return max(FEWEST_QUADRUPLES, min(MOST_QUADRUPLES, wanted))


def is_disturbed(seconds: Iterable[Sequence[float]]) -> bool:
    """Whether the rounds of a quadruple, those of each side apart, differ by more than calm ones do."""
    return any(math.log(max(of_side) / min(of_side)) > DISTURBED for of_side in seconds)


# Whether the time is enough for the selection, known after the first launch pair, and what to measure if not.


CONFIRMED_SHARE = 0.2
"""Of the cases, what fresh launches have to confirm or clear where little has changed."""


@dataclass(frozen=True)
class PairCost:
    """What the first launch pair took."""

    launch_seconds: float
    """Without its cases."""
    case_seconds: Mapping[str, float]

    def needed_seconds(self, cases: Iterable[str], rules: Rules) -> float:
        """For stage 1 of these cases, and the first look of stage 2 at a share of them."""
        of_cases = sum(self.case_seconds.get(case, 0.0) for case in cases)
        confirming = rules.confirm_looks[0] * (self.launch_seconds + CONFIRMED_SHARE * of_cases)
        return rules.screen_pairs * (self.launch_seconds + of_cases) + confirming


def left_out(samples: GateSamples, cost: PairCost, rules: Rules, seconds: float) -> list[str]:
    """The cases that `seconds` are too short for.

    Those whose exact counters the change moves are measured first, then the cheapest, so that most are judged.
    """
    moved = {row.case for row in samples.of(ExactFinding) if row.new != row.old}
    ordered = sorted(cost.case_seconds, key=lambda case: (case not in moved, cost.case_seconds[case]))
    kept: list[str] = []
    for case in ordered:
        if kept and cost.needed_seconds([*kept, case], rules) > seconds:
            break
        kept.append(case)
    return [case for case in samples.cases if case in cost.case_seconds and case not in kept]


def too_short_sentence(left: Sequence[str], cost: PairCost, rules: Rules, seconds: float) -> str:
    cases = len(cost.case_seconds)
    return (
        f"{seconds / 60:.3g} min are too short for {how_many(cases, 'case')}, which need about "
        f"{cost.needed_seconds(cost.case_seconds, rules) / 60:.0f} min (--gate-minutes): after the first pair the "
        f"time goes to {cases - len(left)} of them, those with changed counters first, then the cheapest; the rest is "
        "left UNDECIDED."
    )


# A launch pair: two fresh worker processes, one in each side's tree, that serve the same cases in the same order.


STEADY = {
    # A worker that waits for its turn must leave the cores idle; by default its threads spin for milliseconds.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
}
"""Environment of every worker."""

START_SECONDS = 600.0
"""Time limit for a worker to start, and to build and warm a case, which may compile."""


@contextmanager
def launched(
    trees: Trees, tasks: Mapping[Side, Json], draw: Draw, python_of_base: str | None = None
) -> Iterator[dict[Side, WorkerProcess]]:
    """Both workers, started together and told what to collect; both are ended on every exit."""
    workers: dict[Side, WorkerProcess] = {}
    repository, folders = trees.repository, {"base": trees.base, "head": trees.head}
    try:
        for side in SIDES[::-1] if draw.head_starts_first else SIDES:
            tree, python = folders[side], python_of_base if side == "base" else None
            environment = worker_environment(draw, repository, tree)
            folder = tree if repository.holds_suite else repository.folder_in(tree)
            workers[side] = start_worker("perf_tests.interleaved.worker", folder, environment, side, python)
            workers[side].send({**tasks[side], "tree": str(tree)})
        yield workers
    finally:
        for worker in workers.values():
            worker.end()


def worker_environment(draw: Draw, repository: Repository, tree: Path) -> dict[str, str]:
    """This process's environment without pytest's variables, with those of the pair's layout and of a side's tree."""
    return {
        **(environment_without_the_suite() if repository.holds_suite else _environment_outside(repository, tree)),
        **STEADY,
        "PYTHONHASHSEED": str(draw.hash_seed),
        "PERF_TESTS_PADDING": "x" * draw.padding_bytes,
    }


def environment_without_the_suite() -> dict[str, str]:
    """Without pytest's variables and the repository on the path: its model/ would replace one that a tree lacks.

    The rest of the path is absolute, because a worker starts in another folder.
    """
    inherited = inherited_environment()
    return {**inherited, "PYTHONPATH": _joined(entry for entry in _python_path(inherited) if entry != SUITE)}


def _environment_outside(repository: Repository, tree: Path) -> dict[str, str]:
    """The path leads to `tree`, and never to the repository that it stands for."""
    inherited = inherited_environment()
    others = [entry for entry in _python_path(inherited) if not entry.is_relative_to(repository.root)]
    path = _joined((*repository.path_in(tree), *others))
    # Without the folder that the worker starts in: `model` or `perf_tests` may be the name of one of theirs.
    return {**inherited, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _python_path(environment: Mapping[str, str]) -> list[Path]:
    return [Path(entry).resolve() for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _joined(path: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, path))


# The interpreter of base where it is another one: asked what it has, and refused where the suite cannot run in it.


SECONDS = 120
"""Time limit of its answer; it imports torch."""

# Prints what it runs, and what of the needs of the project it lacks. Any Python 3 understands it.
QUESTION = """
import json, platform, sys
needs, pythons, device = json.loads(sys.argv[1])
import torch
from importlib import metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
lacking = [] if SpecifierSet(pythons).contains(platform.python_version()) else ["Python " + pythons]
for need in map(Requirement, needs):
    try:
        there = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        there = None
    if there is None or not need.specifier.contains(there, prereleases=True):
        lacking.append("%s (%s there)" % (need, there or "not"))
if device == "cuda" and not torch.cuda.is_available():
    lacking.append("a torch that sees the GPU")
print(json.dumps([platform.python_version(), torch.__version__, lacking]))
"""


class OtherPythonError(Exception):
    """Base cannot run under this interpreter; the message is one sentence."""


@dataclass(frozen=True)
class OtherPython:
    path: str
    """Absolute, links kept: a virtual environment is found by the path that its interpreter is started by."""
    build: str
    """`Python 3.11.7 with torch 2.12.1+cpu`."""


def build_here() -> str:
    return _build(platform.python_version(), torch.__version__)


def other_python(typed: str, device_type: str) -> OtherPython:
    """Raises OtherPythonError with what it lacks and the next step."""
    found = shutil.which(typed)
    if found is None:
        raise OtherPythonError(f"--against-python {shlex.quote(typed)} is no program that can be run.")
    path = os.path.abspath(found)
    python, its_torch, lacking = _answer(typed, path, device_type)
    if lacking:
        raise OtherPythonError(
            f"--against-python {typed} lacks what the suite needs: {', '.join(lacking)}; install it there."
        )
    return OtherPython(path, _build(python, its_torch))


def _answer(typed: str, path: str, device_type: str) -> tuple[str, str, list[str]]:
    """Its Python, its torch, and what it lacks."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    try:
        asked = subprocess.run(
            [path, "-c", QUESTION, json.dumps([project["dependencies"], project["requires-python"], device_type])],
            cwd=os.path.dirname(path), env=environment_without_the_suite(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OtherPythonError(f"--against-python {typed} cannot be run: {error}.") from error
    if asked.returncode or not asked.stdout.startswith("["):
        why = last_words(asked.stderr) or "it is no Python"
        raise OtherPythonError(
            f"--against-python {typed} cannot run the suite: {why}; make an environment of another build with "
            "`make .venv-2.11.0/.installed TORCH=2.11.0`, and give its bin/python."
        )
    python, its_torch, lacking = json.loads(asked.stdout)
    return python, its_torch, lacking


def _build(python: str, its_torch: str) -> str:
    return f"Python {python} with torch {its_torch}"


# The progress of a gate run: its launch pairs, and the time left.


class OutOfTimeError(Exception):
    """The next case would end after the run's time limit."""


@dataclass
class Watch:
    """Shows the progress of the run: on a rewritten `line`, or without one as a line per launch pair.

    Raises OutOfTimeError where the run must end before the pair or case that begins.
    """

    terminal: pytest.TerminalReporter | None
    line: Line | None
    screen_pairs: int
    seconds: float
    """The run's budget."""
    seconds_left: Callable[[], float] | None = None
    """Until the run's time limit; None without one."""
    _start: float = field(default_factory=time.monotonic)
    _prefix: str = ""
    _cases: int = 0
    _left_at_pair: float | None = None
    _left_at_case: float | None = None
    _longest_case_seconds: float = 0.0

    def pair_begins(self, stage: int, pair: int, cases: int) -> None:
        if self.seconds_left is not None:
            left = self.seconds_left()
            if self._left_at_pair is not None:
                self._end_unless_left((self._left_at_pair - left) * cases / self._cases)
            self._left_at_pair, self._left_at_case = left, None
        self._cases = cases
        self._prefix = f"launch pair {pair + 1} of {self.screen_pairs}"
        if stage == 2:
            self._prefix = f"launch pair {pair + 1 - self.screen_pairs} of the undecided cases"
        if self.line is None and self.terminal is not None:
            seconds = time.monotonic() - self._start
            self.terminal.ensure_newline()
            self.terminal.write_line(f"{self._prefix}: {how_many(cases, 'case')}, {seconds:.0f} s so far")

    def _end_unless_left(self, seconds: float) -> None:
        if self.seconds_left is not None and seconds > self.seconds_left():
            raise OutOfTimeError

    def case_begins(self, case: str, place: int) -> None:
        if self.seconds_left is not None:
            left = self.seconds_left()
            if self._left_at_case is not None:
                self._longest_case_seconds = max(self._longest_case_seconds, self._left_at_case - left)
            self._left_at_case = left
            self._end_unless_left(self._longest_case_seconds)
        if self.line is not None:
            left = max(0.0, self.seconds - (time.monotonic() - self._start))
            left_words = f"at most {left / 60:.0f} min left"
            text = f"{self._prefix}  case {place + 1} of {self._cases}  {left_words}  {case_name(case)}"
            self.line.rewrite(text, erase=True)

    def say(self, sentence: str) -> None:
        """Above the line that shows the progress."""
        self.ends()
        if self.terminal is not None:
            self.terminal.ensure_newline()
            self.terminal.write_line(sentence)

    def ends(self) -> None:
        if self.line is not None:
            self.line.rewrite("", erase=True)


SENTINELS = ("arithmetic", "memory", "interpreter")

PRIMED_BELOW_SECONDS = 0.01
"""Below this, each turn starts with an unmeasured round, because caches and branch predictors forget while the other
side works; in longer rounds that costs too little to matter."""

SETTLING_QUADRUPLES = 2
"""First quadruples of such short rounds that are discarded: before them both sides waited, one of them longer, and may
have changed cores."""

MOST_DEATHS = 2
"""A case is given up when a worker has died or hung in it this often; before that both are launched again."""


class UnmeasurableError(Exception):
    """Head cannot be measured at all; the message is one sentence."""


class CaseEndedError(Exception):
    """A side's case failed in a measured round."""

    def __init__(self, side: Side, answer: Json) -> None:
        super().__init__(side, answer)
        self.side: Side = side
        self.answer = answer


@dataclass
class Measuring:
    """Measures launch pairs of one run; `samples_file` grows with every case."""

    trees: Trees
    tasks: Mapping[Side, Json]
    """Settings and test files for each side's worker."""
    own_ids: Mapping[Side, Mapping[str, str]]
    """Each side's node id of a case: they differ where two values of one axis are compared."""
    identities: Mapping[str, Json]
    seed: int
    samples_file: SamplesFile
    watch: Watch
    differing_fields: frozenset[str] = frozenset()
    """Identity fields in which the sides differ on purpose."""
    start_seconds: float = START_SECONDS
    answer_seconds: float = 60.0
    """Time limit of an answer, beside the time of its rounds."""
    threads: int | None = None
    """Of a worker on a CPU, where both sides are bound to the same cores; None elsewhere."""
    counts: bool = False
    """Whether the next launch pair still has to count the exact counters of both sides."""
    counting_seconds: float = 0.0
    python_of_base: str | None = None
    """The interpreter of base where it is another one."""
    left_out: set[str] = field(default_factory=set)
    """Cases that a side cannot measure; each has its outcome in the file."""
    idle_cpu_seconds: float = 0.0
    """CPU time that workers used while they waited; it should be close to 0."""
    turns: int = 0
    case_seconds: dict[str, float] = field(default_factory=dict)
    """Of the latest launch pair that measured a case, with its set-up, but without `once_seconds`."""
    once_seconds: float = 0.0
    """What the current launch pair took for what later ones need not do: code that torch.compile finds in its cache
    then, the memory that a case needs."""
    launch_seconds: float = 0.0
    """What the latest launch pair took beside its cases."""
    last_stage: int = 1
    _deaths: dict[str, int] = field(default_factory=dict)

    def measure_pair(self, stage: int, pair: int, groups: Iterable[Sequence[str]]) -> float:
        """Measure each case of `groups` in one launch pair; its seconds. Raises UnmeasurableError and OSError."""
        draw = draw_pair(self.seed, pair)
        order = [case for case in draw_order(self.seed, pair, groups) if case not in self.left_out]
        self.trees.move(draw.base_name, draw.head_name)
        self.watch.pair_begins(stage, pair, len(order))
        self.last_stage = stage
        part = _PairPart(self, stage, pair, list(order), draw)
        self.once_seconds = 0.0
        start, counting_seconds = time.monotonic(), self.counting_seconds
        while part.left:
            try:
                part.measure()
            except WorkerEndedError as error:
                self._note_trouble(error, part)
        for (name, side), times in part.sentinel_seconds.items():
            self.samples_file.append(Sentinel(stage, pair, name, side, times).to_line())
        seconds = round(time.monotonic() - start - (self.counting_seconds - counting_seconds), 3)
        self.samples_file.append(PairTime(stage, pair, seconds).to_line())
        of_cases = sum(self.case_seconds.get(case, 0.0) for case in order)
        self.launch_seconds = max(0.0, seconds - self.once_seconds - of_cases)
        return seconds

    def expected_seconds(self, stage: int, cases: Sequence[str]) -> float:
        """Of a launch pair of these cases; stage 2 measures more rounds than they took in stage 1."""
        more_rounds = QUADRUPLES_SECONDS[stage] - QUADRUPLES_SECONDS[self.last_stage]
        return self.launch_seconds + sum(self.case_seconds.get(case, 0.0) + more_rounds for case in cases)

    def count_cases(self, cases: Sequence[str], workers: Mapping[Side, WorkerProcess]) -> None:
        """Keep the exact counters of both sides; a worker that fails in it costs no case its time."""
        start = time.monotonic()
        self.counts = False
        for place, case in enumerate(cases):
            try:
                for side, worker in workers.items():
                    worker.send({"count": self.own_ids[side][case]})
                answers = {side: worker.receive(self.start_seconds) for side, worker in workers.items()}
            except WorkerEndedError as error:
                reason = f"counting {case_name(case)} failed: {error}"
                for left in cases[place:]:
                    self.samples_file.append(Uncounted(left, error.side, reason).to_line())
                break
            for event in exact_events(case, answers):
                self.samples_file.append(event.to_line())
        self.counting_seconds += time.monotonic() - start

    def _note_trouble(self, error: WorkerEndedError, part: "_PairPart") -> None:
        """Launch again, or give up the current case; a side that cannot load has none of the cases."""
        if error.cannot_start and error.side == "head":
            raise UnmeasurableError(f"{error}.") from error
        at_fault = part.at_hand or part.left[0]
        self._deaths[at_fault] = self._deaths.get(at_fault, 0) + 1
        # Two workers that died before any case would die before the next one too.
        lost = part.left if error.cannot_start or not part.at_hand else [part.at_hand]
        if error.cannot_start or self._deaths[at_fault] >= MOST_DEATHS:
            outcome, reason = (ABSENT, str(error)) if error.cannot_start else ("error", f"{error}, twice")
            for case in lost:
                self.note_outcome(case, error.side, outcome, reason)
        else:
            self.samples_file.append(Relaunch(part.pair, part.at_hand, error.side, str(error)).to_line())
        part.left = [case for case in part.left if case not in self.left_out]
        part.at_hand = None

    def note_outcome(self, case: str, side: Side, outcome: str, reason: str) -> None:
        self.left_out.add(case)
        self.samples_file.append(NoTiming(case, side, outcome, reason).to_line())


@dataclass
class _PairPart:
    """The rest of one launch pair, over all processes that it needs."""

    measuring: Measuring
    stage: int
    pair: int
    left: list[str]
    draw: Draw
    at_hand: str | None = None
    sentinel_seconds: dict[tuple[str, Side], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.left)
        # Under another interpreter they would not be identical work.
        places = (0, count // 2, count - 1) if count and self.measuring.python_of_base is None else ()
        self._with_sentinels = {self.left[place] for place in places}
        self._all = list(self.left)

    def measure(self) -> None:
        """Launch both sides and measure the cases left; raises WorkerEndedError as soon as one side fails."""
        measuring = self.measuring
        with launched(measuring.trees, measuring.tasks, self.draw, measuring.python_of_base) as workers:
            self._agree_on_cases(workers)
            for case in list(self.left):
                self.at_hand = case
                measuring.watch.case_begins(case, self._all.index(case))
                start = time.monotonic()
                once_seconds = self._measure_case(case, workers)
                measuring.once_seconds += once_seconds
                measuring.case_seconds[case] = time.monotonic() - start - once_seconds
                self.left.remove(case)
                self.at_hand = None
            if measuring.counts:
                measuring.count_cases([case for case in self._all if case not in measuring.left_out], workers)

    def _agree_on_cases(self, workers: Mapping[Side, WorkerProcess]) -> None:
        """Leave out cases that a side lacks or defines differently; tell both sides the order."""
        measuring = self.measuring
        for side, answer in self._receive_all(workers).items():
            there: Json = answer["ready"]
            for case in list(self.left):
                reason = self._why_absent(case, there.get(measuring.own_ids[side][case]))
                if reason:
                    measuring.note_outcome(case, side, ABSENT, reason)
                    self.left.remove(case)
        for side, worker in workers.items():
            own_ids = {case: measuring.own_ids[side][case] for case in self.left}
            measured = [own_id for case, own_id in own_ids.items() if case in measuring.case_seconds]
            worker.send({"order": list(own_ids.values()), "measured": measured})

    def _receive_all(self, workers: Mapping[Side, WorkerProcess]) -> dict[Side, Json]:
        """An answer of each side. Of two WorkerEndedErrors it raises the graver: head's code cannot be used."""
        answers: dict[Side, Json] = {}
        troubles: list[WorkerEndedError] = []
        for side, worker in workers.items():
            try:
                answers[side] = worker.receive(self.measuring.start_seconds)
            except WorkerEndedError as error:
                troubles.append(error)
        if troubles:
            raise max(troubles, key=lambda error: (error.cannot_start, error.side == "head"))
        return answers

    def _why_absent(self, case: str, identity: Json | None) -> str | None:
        if identity is None:
            return "it does not know a value of this case"
        on_purpose = dict.fromkeys(self.measuring.differing_fields)
        difference = identity_difference({**identity, **on_purpose}, {**self.measuring.identities[case], **on_purpose})
        return f"under this id it measures something else: {difference}" if difference else None

    def _measure_case(self, case: str, workers: Mapping[Side, WorkerProcess]) -> float:
        """The seconds that it took for what only the first launches do."""
        measuring = self.measuring
        answers = self._receive_all(workers)
        once_seconds = max(answer.get("once_seconds", 0.0) for answer in answers.values())
        line = None
        if all("warm" in answer for answer in answers.values()):
            round_seconds = min(answer["round_seconds"] for answer in answers.values())
            try:
                with self._on_the_same_cores(case, workers) as cores:
                    line = {**self._measure_rounds(case, workers, round_seconds), "cores": cores}
            except CaseEndedError as error:
                answers[error.side] = error.answer
        warm = {side: workers[side] for side, answer in answers.items() if "warm" in answer}
        # To both before either answers: the side released first would build its next case first and then wait longer.
        for worker in warm.values():
            worker.send({"enough": True})
        answers.update(self._receive_all(warm))
        for side, answer in answers.items():
            if answer["outcome"] is not None:
                measuring.note_outcome(case, side, answer["outcome"]["outcome"], answer["outcome"]["reason"])
        if line is not None and case not in measuring.left_out:
            measuring.samples_file.append(line)
        return float(once_seconds)

    @contextmanager
    def _on_the_same_cores(self, case: str, workers: Mapping[Side, WorkerProcess]) -> Iterator[list[int] | None]:
        """Both workers on cores drawn for this case.

        The scheduler would keep each process on its own core, and load on one core would look like a difference of
        the code. Only once a case is warm: then its threads exist, and both sides have built it in parallel.
        """
        measuring = self.measuring
        if measuring.threads is None:
            yield None
            return
        cores = draw_cores(measuring.seed, self.pair, case, processors_for(measuring.threads), measuring.threads)
        for worker in workers.values():
            keep_on(worker.process.pid, cores)
        try:
            yield cores
        finally:
            for worker in workers.values():
                let_go(worker.process.pid)

    def _measure_rounds(self, case: str, workers: Mapping[Side, WorkerProcess], round_seconds: float) -> Json:
        unmeasured = 1 if round_seconds < PRIMED_BELOW_SECONDS else 0
        patience_seconds = self.measuring.answer_seconds + 100 * round_seconds
        quadruple_seconds = round_seconds * sum(unmeasured + rounds for _, rounds in turns(ORDERS[0]))
        count = quadruple_count(self.stage, quadruple_seconds)
        orders = draw_quadruples(self.measuring.seed, self.pair, case, max(count, FEWEST_QUADRUPLES))
        if unmeasured:
            for order in orders[:SETTLING_QUADRUPLES]:
                self._measure_quadruple(order, workers, unmeasured, patience_seconds)
        quadruples = []
        for order in orders:
            quadruples.append(self._measure_quadruple(order, workers, unmeasured, patience_seconds))
            if count == len(quadruples) == 1 and not is_disturbed(_by_best_clock(quadruples[0])):
                break
        orders = orders[: len(quadruples)]
        if case in self._with_sentinels:
            self._measure_sentinels(workers, orders[0])
        clocks = [f"{side}{clock}seconds" for side in SIDES for clock in ("_", "_cpu_")]
        # A GPU's rounds have no CPU time.
        seconds = {name: [q[name] for q in quadruples] if name in quadruples[0] else None for name in clocks}
        return {"stage": self.stage, "pair": self.pair, "case": case, "orders": orders, **seconds}

    def _measure_quadruple(
        self, order: str, workers: Mapping[Side, WorkerProcess], unmeasured: int, patience_seconds: float
    ) -> dict[str, list[float]]:
        quadruple: dict[str, list[float]] = {}
        for side, rounds in turns(order):
            answer = self._turn(side, {"rounds": rounds, "unmeasured": unmeasured}, workers, patience_seconds)
            for clock in ("seconds", "cpu_seconds"):
                if answer[clock] is not None:
                    quadruple.setdefault(f"{side}_{clock}", []).extend(answer[clock])
            self.measuring.idle_cpu_seconds += answer["idle_cpu_seconds"]
            self.measuring.turns += 1
        return quadruple

    def _turn(self, side: Side, request: Json, workers: Mapping[Side, WorkerProcess], patience_seconds: float) -> Json:
        """What one side measures while the other waits. Raises CaseEndedError where its case ends instead."""
        answer = workers[side].ask(request, patience_seconds)
        if "done" in answer:
            raise CaseEndedError(side, answer)
        return answer

    def _measure_sentinels(self, workers: Mapping[Side, WorkerProcess], order: str) -> None:
        for name in SENTINELS:
            for side, count in turns(order):
                request = {"sentinel": name, "count": count}
                answer = self._turn(side, request, workers, self.measuring.answer_seconds)
                self.sentinel_seconds.setdefault((name, side), []).extend(answer["seconds"])


def _by_best_clock(quadruple: Mapping[str, list[float]]) -> list[list[float]]:
    """The rounds of each side: CPU time, which a neighbour moves least, where it was read."""
    clock = "_cpu_seconds" if f"{SIDES[0]}_cpu_seconds" in quadruple else "_seconds"
    return [quadruple[f"{side}{clock}"] for side in SIDES]


def turns(order: str) -> list[tuple[Side, int]]:
    """The sides in turn and their rounds: "ABBA" is base once, head twice, base once."""
    first, second = SIDES if order == "ABBA" else SIDES[::-1]
    return [(first, 1), (second, 2), (first, 1)]
