"""One launch pair after another: each case in quadruples of rounds in turns, each result on disk before the next.

A launch pair is two fresh worker processes, one in each side's tree, that serve the same cases in the same order.
"""

import math
import random
import signal
import string
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests.bench.recording import Line
from perf_tests_suite.perf_tests.bench.workers import WorkerEndedError, WorkerProcess, start_worker
from perf_tests_suite.perf_tests.gate.samples import (
    ABSENT,
    ORDERS,
    SIDES,
    SINGLE_ORDERS,
    NoTiming,
    PairTime,
    Relaunch,
    SamplesFile,
    Sentinel,
    Side,
    Uncounted,
    case_of,
    compiled_in,
    exact_events,
)
from perf_tests_suite.perf_tests.hardware.cores import keep_on, let_go, processors_for
from perf_tests_suite.perf_tests.interleaved.sides import Trees, environment_of_side
from perf_tests_suite.perf_tests.records.columns import case_name
from perf_tests_suite.perf_tests.records.record import Json, how_many
from perf_tests_suite.perf_tests.records.store import identity_difference

STEADY = {
    # A worker that waits for its turn must leave the cores idle; by default its threads spin for milliseconds.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
}
"""Environment of every worker."""

START_SECONDS = 600.0
"""Time limit for a worker to start, and to build and warm a case, which may compile."""

SENTINELS = ("arithmetic", "memory", "interpreter")

PRIMED_BELOW_SECONDS = 0.01
"""Each turn of shorter rounds starts with an unmeasured one, because caches and branch predictors forget while the
other side works; in longer rounds that costs too little to matter."""

SETTLING_QUADRUPLES = 2
"""First quadruples of such short rounds that are discarded: before them both sides waited, one of them longer, and may
have changed cores."""

PATIENCE_ROUNDS = 100
"""An answer, of three rounds at most, may take as long as so many, beside its own time limit: no neighbour slows a side
by as much, so only a hang is given up, and a long round never is."""

MOST_DEATHS = 2
"""A case is given up when a worker has died or hung in it this often; before that both are launched again."""


# Every random choice of a launch pair, a pure function of the run's seed, so that a run's layout can be repeated.

# At least 4 quadruples, because the Hodges-Lehmann centre of fewer withstands no wild value. At most 64, because
# launches differ by more than further rounds of one launch would sharpen.
FEWEST_QUADRUPLES, MOST_QUADRUPLES = 4, 64
ROUND_SECONDS = 0.005
"""Calls of a test that take less are grouped: a round this long dwarfs the clock, and the messages around a turn."""
MOST_SET_UP = 10
"""How many times that a round of grouped calls may take with what is set up for each."""
QUADRUPLES_SECONDS = {1: 0.5, 2: 1.5}
"""Seconds by stage: the time that all rounds of one case in one pair should take, unmeasured ones included.

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
    """The layout of a launch pair."""

    base_name: str
    head_name: str
    """Folder names of one length: the path of code affects where it lies in memory, and that its time."""
    padding_bytes: int
    """Length of an unused environment variable, which moves the stack by as much on both sides."""
    hash_seed: int
    head_starts_first: bool
    """Whether head starts first, as in one of two pairs in a row, so that what favours the side that starts first
    favours neither in all of a few."""


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


def calls_of_a_round(call_seconds: float, whole_seconds: float) -> int:
    """How many calls of a test of the user's one round times, of which each takes `whole_seconds` with its set-up."""
    wanted = math.ceil(ROUND_SECONDS / max(call_seconds, 1e-9))
    return max(1, min(wanted, math.floor(MOST_SET_UP * ROUND_SECONDS / max(whole_seconds, 1e-9))))


def is_disturbed(seconds: Iterable[Sequence[float]]) -> bool:
    """Whether the rounds of a quadruple, those of each side apart, differ by more than calm ones do."""
    return any(math.log(max(of_side) / min(of_side)) > DISTURBED for of_side in seconds)


# The launch pairs.


class UnmeasurableError(Exception):
    """Head cannot be measured at all; the message is one sentence."""


class OutOfTimeError(Exception):
    """The next case would end after the run's time limit."""


class MinutesSpentError(Exception):
    """The minutes of the gate are over, in the middle of a launch pair."""


class CaseEndedError(Exception):
    """A side's case failed in a measured round."""

    def __init__(self, side: Side, answer: Json) -> None:
        super().__init__(side, answer)
        self.side: Side = side
        self.answer = answer


class Printed:
    """What a terminal of pytest's does, where pytest does not run."""

    def ensure_newline(self) -> None:
        pass

    def write_line(self, line: str) -> None:
        print(line, flush=True)


@dataclass
class GateProgress:
    """Shows the progress of the run: on a rewritten `line`, or without one as a line per launch pair.

    Raises OutOfTimeError where the run must end before the pair or case that begins.
    """

    terminal: pytest.TerminalReporter | Printed | None
    line: Line | None
    screen_pairs: int
    most_fresh_pairs: int
    seconds: float
    """The run's budget."""
    seconds_left: Callable[[], float] = lambda: math.inf
    """Seconds until the run's time limit."""
    seconds_between_lines: float = 0.0
    _start: float = field(default_factory=time.monotonic)
    _last_line: float = -math.inf
    _prefix: str = ""
    _cases: int = 1
    _left_at_pair: float = -math.inf
    _left_at_case: float = -math.inf
    _longest_case_seconds: float = 0.0

    def pair_begins(self, stage: int, pair: int, cases: int) -> None:
        left = self.seconds_left()
        if (self._left_at_pair - left) * cases / self._cases > left:  # as long a case as in the pair before
            raise OutOfTimeError
        self._left_at_pair, self._left_at_case, self._cases = left, -math.inf, cases
        self._prefix = f"launch pair {pair + 1} of {self.screen_pairs}"
        if stage == 2:
            fresh = pair + 1 - self.screen_pairs
            self._prefix = f"fresh launch pair {fresh} of at most {self.most_fresh_pairs} to decide the rest"
        now = time.monotonic()
        if self.line is None and now - self._last_line >= self.seconds_between_lines:
            self._last_line, seconds = now, now - self._start
            self._write(f"{self._prefix}: {how_many(cases, 'case')}, {seconds:.0f} s so far")

    def case_begins(self, case: str, place: int) -> None:
        left = self.seconds_left()
        self._longest_case_seconds = max(self._longest_case_seconds, self._left_at_case - left)
        self._left_at_case = left
        if self._longest_case_seconds > left:
            raise OutOfTimeError
        if self.line is not None:
            minutes = max(0.0, self.seconds - (time.monotonic() - self._start)) / 60
            place_words = f"case {place + 1} of {self._cases}  at most {minutes:.0f} min left"
            self.line.rewrite(f"{self._prefix}  {place_words}  {case_name(case)}", erase=True)

    def say(self, sentence: str) -> None:
        """Write a sentence above the line that shows the progress."""
        self.ends()
        self._write(sentence)

    def _write(self, sentence: str) -> None:
        if self.terminal is not None:
            self.terminal.ensure_newline()
            self.terminal.write_line(sentence)

    def ends(self) -> None:
        if self.line is not None:
            self.line.rewrite("", erase=True)


@dataclass
class Measuring:
    """Measures launch pairs of one run; `samples_file` grows with every case."""

    trees: Trees
    tasks: Mapping[Side, Json]
    """Settings and test files for each side's worker."""
    ids_on_side: Mapping[Side, Mapping[str, str]]
    """Each side's node id of a case: they differ where two values of one axis are compared."""
    identities: Mapping[str, Json]
    seed: int
    samples_file: SamplesFile
    watch: GateProgress
    differing_fields: frozenset[str] = frozenset()
    """Identity fields in which the sides differ on purpose."""
    start_seconds: float = START_SECONDS
    answer_seconds: float = 60.0
    """Time limit of an answer, beside the time of its rounds."""
    threads: int | None = None
    """Threads of a worker on a CPU, where both sides are bound to the same cores; None elsewhere."""
    python_of_base: str | None = None
    """The interpreter of base where it is another one."""
    end: float = math.inf
    """The time of `time.monotonic` at which it stops, whatever is at hand."""
    fits: Callable[[float, Mapping[str, float]], bool] = lambda launch, cases: True
    """Whether there is time to decide the cases that a pair has measured, by the seconds of its launch and of each: the
    first pair ends with the case that does not fit."""
    left_out: set[str] = field(default_factory=set)
    """Cases that a side cannot measure; each has its outcome in the file."""
    calls: dict[str, int] = field(default_factory=dict)
    """Calls in a round of a test of the user's: the same on both sides, in all pairs."""
    idle_cpu_seconds: float = 0.0
    """CPU time that workers used while they waited; it should be close to 0."""
    turns: int = 0
    case_seconds: dict[str, float] = field(default_factory=dict)
    """What each case took in its latest launch pair, with its set-up, but without `once_seconds`."""
    once_seconds: float = 0.0
    """What the current launch pair took for what later ones need not do: code that torch.compile finds in its cache
    then, the memory that a case needs."""
    launch_seconds: float = 0.0
    """What the latest launch pair took beside its cases."""
    last_stage: int = 1
    _deaths: dict[str, int] = field(default_factory=dict)
    # Of the launch pair at hand, over all processes that it needs.
    _pair: int = 0
    _cases: list[str] = field(default_factory=list)
    _left: list[str] = field(default_factory=list)
    """The cases not measured yet; `_at_hand` is the one that is being measured."""
    _at_hand: str | None = None
    _sentinels: dict[tuple[str, Side], list[float]] = field(default_factory=dict)
    _workers: dict[Side, WorkerProcess] = field(default_factory=dict)

    def count(self, cases: Sequence[str]) -> None:
        """Keep the exact counters of both sides, in a launch of its own; a worker that fails in it costs no case its
        time.
        """
        self._left = [*cases]
        while self._left:
            try:
                with launched(self.trees, self.tasks, draw_pair(self.seed, 0), self.python_of_base) as self._workers:
                    self._agree_on_cases(measures=False)
                    self._count_cases(self._left)
                    return
            except WorkerEndedError as error:
                self._launch_again_or_give_up(error)

    def measure_pair(self, stage: int, pair: int, groups: Iterable[Sequence[str]]) -> None:
        """Measure each case of `groups` in one launch pair. Raises UnmeasurableError, MinutesSpentError and OSError."""
        draw = draw_pair(self.seed, pair)
        self._pair, self.last_stage, self._at_hand, self._sentinels = pair, stage, None, {}
        rows = [case for case in draw_order(self.seed, pair, groups) if case not in self.left_out]
        self._cases = [case for case in rows if compiled_in(case) is None]
        self._left = [*self._cases]
        self.trees.move(draw.base_name, draw.head_name)
        self.watch.pair_begins(stage, pair, len(rows))
        self.once_seconds = 0.0
        start = time.monotonic()
        while self._left:
            try:
                with launched(self.trees, self.tasks, draw, self.python_of_base) as self._workers:
                    self._measure_cases(start)
            except WorkerEndedError as error:
                if time.monotonic() >= self.end:
                    raise MinutesSpentError from error
                self._launch_again_or_give_up(error)
        for case, of_case in groupby(sorted(set(rows) - set(self._cases)), case_of):
            self.watch.case_begins(f"{case} compile", len(self._cases))
            self._measure_compiling([*of_case], draw)
        for (name, side), times in self._sentinels.items():
            self.samples_file.append(Sentinel(stage, pair, name, side, times).to_line())
        seconds = round(time.monotonic() - start, 3)
        of_cases = sum(self.case_seconds.get(case, 0.0) for case in rows)
        self.launch_seconds = max(0.0, seconds - self.once_seconds - of_cases)
        self.samples_file.append(PairTime(stage, pair, seconds, self.launch_seconds).to_line())

    def expected_seconds(self, stage: int, cases: Sequence[str]) -> float:
        """How long a launch pair of these cases takes; stage 2 measures more rounds than they took in stage 1."""
        more_rounds = QUADRUPLES_SECONDS[stage] - QUADRUPLES_SECONDS[self.last_stage]
        return self.launch_seconds + sum(self.case_seconds.get(case, 0.0) + more_rounds for case in cases)

    def _measure_cases(self, pair_start: float) -> None:
        """Measure the cases left; raises WorkerEndedError as soon as one side fails."""
        self._agree_on_cases()
        launch_seconds = time.monotonic() - pair_start - sum(self.case_seconds.values())  # of the first pair
        for case in [*self._left]:
            if time.monotonic() >= self.end:
                raise MinutesSpentError
            self._at_hand = case
            self.watch.case_begins(case, self._cases.index(case))
            start = time.monotonic()
            once_seconds = self._measure_case(case)
            self.once_seconds += once_seconds
            self.case_seconds[case] = time.monotonic() - start - once_seconds
            self._left.remove(case)
            self._at_hand = None
            if self._pair == 0 and not self.fits(launch_seconds, self.case_seconds):
                self._left = []
                return

    def _within(self, patience_seconds: float) -> float:
        return max(0.001, min(patience_seconds, self.end - time.monotonic()))

    def _measure_compiling(self, rows: Sequence[str], draw: Draw) -> None:
        """Compile a case in fresh processes in turns, each side first with an empty cache, then with what it left."""
        start, found = time.monotonic(), dict[tuple[str, Side], Json]()
        order, parts = SINGLE_ORDERS[draw.head_starts_first], {row: compiled_in(row) or ("", "", "") for row in rows}
        with tempfile.TemporaryDirectory(dir=self.trees.folder, ignore_cleanup_errors=True) as folder:
            for cache in sorted({"cold", *(cache for _, _, cache in parts.values())}):
                of_cache = [row for row in rows if cache in ("cold", parts[row][2]) and row not in self.left_out]
                for side in SIDES if order == "AB" else SIDES[::-1]:
                    found[cache, side] = self._compile(side, of_cache, Path(folder, side), draw)
                for row, side in product(of_cache, SIDES):
                    if (outcome := found[cache, side].get("outcome")) is not None:
                        self._note_outcome(row, side, outcome["outcome"], outcome["reason"])
        for row in (row for row in rows if row not in self.left_out):
            _, part, cache = parts[row]
            line: Json = {"stage": self.last_stage, "pair": self._pair, "case": row, "orders": [order]}
            for side in SIDES:
                wall, cpu = found[cache, side]["compiled"][part]
                line |= {f"{side}_seconds": [[wall]], f"{side}_cpu_seconds": None if cpu is None else [[cpu]]}
            self.samples_file.append({**line, "cores": None})
            self.case_seconds[row] = (time.monotonic() - start) / len(rows)

    def _compile(self, side: Side, rows: Sequence[str], cache: Path, draw: Draw) -> Json:
        """What a fresh process of one side says of compiling the case of these rows; where it failed, its outcome."""
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
        self._at_hand, self._left = None, [row for row in rows if row not in self.left_out]
        while self._left:
            try:
                with launched(
                    self.trees, {side: self.tasks[side]}, draw, self.python_of_base, environment
                ) as self._workers:
                    self._agree_on_cases(measures=False)
                    if self._left:
                        worker = self._workers[side]
                        return worker.ask({"compile": self.ids_on_side[side][self._left[0]]}, self.start_seconds)
            except WorkerEndedError as error:
                self._launch_again_or_give_up(error)
        return {}

    def _count_cases(self, cases: Sequence[str]) -> None:
        for place, case in enumerate(cases):
            try:
                for side, worker in self._workers.items():
                    worker.send({"count": self.ids_on_side[side][case]})
                answers = {side: worker.receive(self.start_seconds) for side, worker in self._workers.items()}
            except WorkerEndedError as error:
                reason = f"counting {case_name(case)} failed: {error}"
                for left in cases[place:]:
                    self.samples_file.append(Uncounted(left, error.side, reason).to_line())
                break
            for event in exact_events(case, answers):
                self.samples_file.append(event.to_line())

    def _launch_again_or_give_up(self, error: WorkerEndedError) -> None:
        """Give up the current case where it is not the first time; a side that cannot load has none of the cases."""
        if error.cannot_start and error.side == "head":
            raise UnmeasurableError(f"{error}.") from error
        at_fault = self._at_hand or self._left[0]
        self._deaths[at_fault] = self._deaths.get(at_fault, 0) + 1
        # Two workers that died before any case would die before the next one too.
        lost = self._left if error.cannot_start or not self._at_hand else [self._at_hand]
        if error.cannot_start or self._deaths[at_fault] >= MOST_DEATHS:
            outcome, reason = (
                ABSENT if error.is_absent else "error",
                f"{error}{'' if error.cannot_start else ', twice'}",
            )
            for case in lost:
                self._note_outcome(case, error.side, outcome, reason)
        else:
            self.samples_file.append(Relaunch(self._pair, self._at_hand, error.side, str(error)).to_line())
        self._left = [case for case in self._left if case not in self.left_out]
        self._at_hand = None

    def _note_outcome(self, case: str, side: Side, outcome: str, reason: str) -> None:
        self.left_out.add(case)
        self.samples_file.append(NoTiming(case, side, outcome, reason).to_line())

    def _agree_on_cases(self, measures: bool = True) -> None:
        """Leave out cases that a side lacks or defines differently; tell both sides the order in which to measure."""
        on_purpose = dict.fromkeys(self.differing_fields)
        for side, answer in receive_all(self._workers, self._within(self.start_seconds)).items():
            there: Json = answer["ready"]
            for case in [*self._left]:
                reason = "it does not know a value of this case"
                if (identity := there.get(self.ids_on_side[side][case])) is not None:
                    difference = identity_difference(
                        {**identity, **on_purpose}, {**self.identities[case], **on_purpose}
                    )
                    reason = f"under this id it measures something else: {difference}" if difference else ""
                if reason:
                    self._note_outcome(case, side, ABSENT, reason)
                    self._left.remove(case)
        for side, worker in self._workers.items():
            ids_on_side = {case: self.ids_on_side[side][case] for case in self._left}
            measured = [own_id for case, own_id in ids_on_side.items() if case in self.case_seconds]
            # The seed of both sides' inputs comes here, after their code was imported.
            draws = {"seed": self.seed, "pair": self._pair}
            worker.send({"order": list(ids_on_side.values()) if measures else [], "measured": measured, **draws})

    def _measure_case(self, case: str) -> float:
        """The seconds that it took for what only the first launches do."""
        answers = receive_all(self._workers, self._within(self.start_seconds))
        once_seconds = max(answer.get("once_seconds", 0.0) for answer in answers.values())
        line = None
        if all("warm" in answer for answer in answers.values()):
            round_seconds = min(answer["round_seconds"] for answer in answers.values())
            if all("call_seconds" in answer for answer in answers.values()):
                call_seconds = min(answer["call_seconds"] for answer in answers.values())
                round_seconds *= self.calls.setdefault(case, calls_of_a_round(call_seconds, round_seconds))
            try:
                with self._on_the_same_cores(case) as cores:
                    line = {**self._measure_rounds(case, round_seconds), "cores": cores}
            except CaseEndedError as error:
                answers[error.side] = error.answer
        warm = {side: self._workers[side] for side, answer in answers.items() if "warm" in answer}
        # To both before either answers: the side released first would build its next case first and then wait longer.
        for worker in warm.values():
            worker.send({"enough": True})
        answers.update(receive_all(warm, self._within(self.start_seconds)))
        for side, answer in answers.items():
            if (outcome := answer["outcome"]) is not None:
                for one in SIDES if outcome.get("is_of_both") else [side]:
                    self._note_outcome(case, one, outcome["outcome"], outcome["reason"])
        if line is not None and case not in self.left_out:
            self.samples_file.append(line)
        return float(once_seconds)

    @contextmanager
    def _on_the_same_cores(self, case: str) -> Iterator[list[int] | None]:
        """Keep both workers on cores drawn for this case.

        The scheduler would keep each process on its own core, and load on one core would look like a difference of
        the code. Only once a case is warm: then its threads exist, and both sides have built it in parallel.
        """
        if self.threads is None:
            yield None
            return
        cores = draw_cores(self.seed, self._pair, case, processors_for(self.threads), self.threads)
        for worker in self._workers.values():
            keep_on(worker.process.pid, cores)
        try:
            yield cores
        finally:
            for worker in self._workers.values():
                let_go(worker.process.pid)

    def _measure_rounds(self, case: str, round_seconds: float) -> Json:
        stage, pair = self.last_stage, self._pair
        unmeasured = 1 if round_seconds < PRIMED_BELOW_SECONDS else 0
        patience_seconds = self.answer_seconds + PATIENCE_ROUNDS * round_seconds
        quadruple_seconds = round_seconds * sum(unmeasured + rounds for _, rounds in turns(ORDERS[0]))
        count = quadruple_count(stage, quadruple_seconds)
        orders = draw_quadruples(self.seed, pair, case, max(count, FEWEST_QUADRUPLES))
        if unmeasured:
            for order in orders[:SETTLING_QUADRUPLES]:
                self._measure_quadruple(case, order, unmeasured, patience_seconds)
        quadruples = []
        for order in orders:
            quadruples.append(self._measure_quadruple(case, order, unmeasured, patience_seconds))
            # A calm long quadruple says enough; a disturbed one gets the fewest that others get.
            if count == len(quadruples) == 1:
                # CPU time, which a neighbour moves least, where it was read.
                clock = "_cpu_seconds" if f"{SIDES[0]}_cpu_seconds" in quadruples[0] else "_seconds"
                if not is_disturbed([quadruples[0][f"{side}{clock}"] for side in SIDES]):
                    break
        orders = orders[: len(quadruples)]
        # Under another interpreter they would not be identical work.
        places = (0, len(self._cases) // 2, -1) if self.python_of_base is None else ()
        for name in SENTINELS if case in {self._cases[place] for place in places} else ():
            for side, turn in turns(orders[0]):
                answer = self._turn(side, {"sentinel": name, "count": turn}, self.answer_seconds)
                self._sentinels.setdefault((name, side), []).extend(answer["seconds"])
        clocks = [f"{side}{clock}seconds" for side in SIDES for clock in ("_", "_cpu_")]
        # A GPU's rounds have no CPU time.
        seconds = {name: [q[name] for q in quadruples] if name in quadruples[0] else None for name in clocks}
        return {"stage": stage, "pair": pair, "case": case, "orders": orders, **seconds}

    def _measure_quadruple(
        self, case: str, order: str, unmeasured: int, patience_seconds: float
    ) -> dict[str, list[float]]:
        quadruple: dict[str, list[float]] = {}
        for side, rounds in turns(order):
            request = {"rounds": rounds, "unmeasured": unmeasured, "calls": self.calls.get(case, 1)}
            answer = self._turn(side, request, patience_seconds)
            for clock in ("seconds", "cpu_seconds"):
                if answer[clock] is not None:
                    quadruple.setdefault(f"{side}_{clock}", []).extend(answer[clock])
            self.idle_cpu_seconds += answer["idle_cpu_seconds"]
            self.turns += 1
        return quadruple

    def _turn(self, side: Side, request: Json, patience_seconds: float) -> Json:
        """What one side measures while the other waits. Raises CaseEndedError where its case ends instead."""
        answer = self._workers[side].ask(request, self._within(patience_seconds))
        if "done" in answer:
            raise CaseEndedError(side, answer)
        return answer


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Raise Ctrl-C and SIGTERM at the end of the block: inside, they would leave a worker that nobody knows to end."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
        for first in came:
            signal.raise_signal(first)


@contextmanager
def launched(
    trees: Trees,
    tasks: Mapping[Side, Json],
    draw: Draw,
    python_of_base: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[dict[Side, WorkerProcess]]:
    """Start a worker for each side of `tasks`, under these `variables` too, and send it what to collect.

    All are ended on every exit.
    """
    workers: dict[Side, WorkerProcess] = {}
    try:
        for side in filter(tasks.__contains__, SIDES[::-1] if draw.head_starts_first else SIDES):
            tree, python = (trees.base, python_of_base) if side == "base" else (trees.head, None)
            environment = {
                **environment_of_side(trees.repository, tree),
                **STEADY,
                **(variables or {}),
                "PYTHONHASHSEED": str(draw.hash_seed),
                "PERF_TESTS_PADDING": "x" * draw.padding_bytes,
            }
            folder = tree if trees.repository.holds_suite else trees.repository.folder_in(tree)
            with _signals_wait():
                workers[side] = start_worker(
                    "perf_tests_suite.perf_tests.interleaved.worker", folder, environment, side, python
                )
            workers[side].send({**tasks[side], "tree": str(tree)})
        yield workers
    finally:
        with _signals_wait():
            for worker in workers.values():
                worker.end()


def receive_all(workers: Mapping[Side, WorkerProcess], patience_seconds: float = START_SECONDS) -> dict[Side, Json]:
    """An answer of each side, all within this time. Of two WorkerEndedErrors it raises the graver: head's code cannot
    be used.
    """
    answers: dict[Side, Json] = {}
    troubles: list[WorkerEndedError] = []
    end = time.monotonic() + patience_seconds
    for side, worker in workers.items():
        left_seconds = end - time.monotonic()
        if troubles and left_seconds <= 0:
            break
        try:
            answers[side] = worker.receive(max(0.001, left_seconds))
        except WorkerEndedError as error:
            troubles.append(error)
    if troubles:
        raise max(troubles, key=lambda error: (error.cannot_start, error.side == "head"))
    return answers


def turns(order: str) -> list[tuple[Side, int]]:
    """The sides in turn and their rounds: "ABBA" is base once, head twice, base once."""
    first, second = SIDES if order == "ABBA" else SIDES[::-1]
    return [(first, 1), (second, 2), (first, 1)]
