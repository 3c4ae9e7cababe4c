"""One launch pair after another: each case in quadruples of rounds by turns, each result on disk before the next."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perf_tests.gate.exact_counters import exact_events
from perf_tests.gate.samples import ABSENT, SamplesFile
from perf_tests.instruments.cores import keep_on, let_go, processors_for
from perf_tests.paired.draws import ORDERS, Draw, draw_cores, draw_order, draw_pair, draw_quadruples, quadruple_count
from perf_tests.paired.launch_pair import SIDES, START_SECONDS, Side, Worker, WorkerError, launched
from perf_tests.paired.trees import Trees
from perf_tests.records.compare import identity_difference
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import case_name

SENTINELS = ("arithmetic", "memory", "interpreter")

PRIMED_BELOW_SECONDS = 0.01
"""Caches and branch predictors forget while the other side works. A round shorter than this is run once unmeasured
after each change of turns; in a longer one what was forgotten costs too little to matter."""

SETTLING_QUADRUPLES = 2
"""Of rounds as short as that the first quadruples are thrown away: before them both sides have waited, one of them
longer, and may have changed cores."""

MOST_DEATHS = 2
"""A worker that dies or hangs in a case is launched again once; the second time the case is given up."""


class UnmeasurableError(Exception):
    """Head itself cannot be measured at all; the message is one sentence."""


class Watch(Protocol):
    """Whoever looks on."""

    def pair_begins(self, stage: int, pair: int, cases: int) -> None: ...

    def case_begins(self, case: str, place: int) -> None: ...


@dataclass
class Measuring:
    """Measures launch pairs of one run; `samples_file` grows with every case."""

    trees: Trees
    tasks: Mapping[Side, Json]
    """What each side's worker is told: its settings and the test files."""
    own_ids: Mapping[Side, Mapping[str, str]]
    """What each side calls a case: the two differ where two values of one axis are compared."""
    identities: Mapping[str, Json]
    seed: int
    samples_file: SamplesFile
    watch: Watch
    differing_fields: frozenset[str] = frozenset()
    """Identity fields in which the sides differ on purpose."""
    start_seconds: float = START_SECONDS
    answer_seconds: float = 60.0
    """The longest that an answer may take, beside what its rounds take."""
    threads: int | None = None
    """How many a worker computes with on a CPU, where both sides are kept on the same cores; None elsewhere."""
    counts: bool = False
    """Whether the exact counters of both sides are still to be counted, after the next launch pair."""
    counting_seconds: float = 0.0
    left_out: set[str] = field(default_factory=set)
    """Cases that at least one side cannot measure; each has its outcome in the file."""
    idle_cpu_seconds: float = 0.0
    """What waiting workers took from working ones; it should be next to nothing."""
    turns: int = 0
    _deaths: dict[str, int] = field(default_factory=dict)

    def measure_pair(self, stage: int, pair: int, groups: Iterable[Sequence[str]]) -> None:
        """Measure each case of `groups` in one launch pair. Raises UnmeasurableError and OSError."""
        draw = draw_pair(self.seed, pair)
        order = [case for case in draw_order(self.seed, pair, groups) if case not in self.left_out]
        self.trees.move(draw.base_name, draw.head_name)
        self.watch.pair_begins(stage, pair, len(order))
        part = _PairPart(self, stage, pair, order, draw)
        start, counting_seconds = time.monotonic(), self.counting_seconds
        while part.left:
            try:
                part.measure()
            except WorkerError as error:
                self._note_trouble(error, part)
        part.write_sentinels()
        seconds = time.monotonic() - start - (self.counting_seconds - counting_seconds)
        self.samples_file.append({"event": "pair", "stage": stage, "pair": pair, "seconds": round(seconds, 3)})

    def count_cases(self, cases: Sequence[str], workers: Mapping[Side, Worker]) -> None:
        """Keep the exact counters of both sides; a worker that fails in it takes no case its time."""
        start = time.monotonic()
        self.counts = False
        for place, case in enumerate(cases):
            try:
                answers = self._counted(case, workers)
            except WorkerError as error:
                for left in cases[place:]:
                    reason = f"counting {case_name(case)} failed: {error}"
                    self.samples_file.append({"event": "uncounted", "case": left, "side": error.side, "reason": reason})
                break
            for event in exact_events(case, answers):
                self.samples_file.append(event)
        self.counting_seconds += time.monotonic() - start

    def _counted(self, case: str, workers: Mapping[Side, Worker]) -> dict[Side, Json]:
        """Both at once: nobody is timed."""
        for side, worker in workers.items():
            worker.send({"count": self.own_ids[side][case]})
        return {side: worker.receive(self.start_seconds) for side, worker in workers.items()}

    def _note_trouble(self, error: WorkerError, part: "_PairPart") -> None:
        """Launch again, or give up on the case at hand; what a side cannot even load it has no case of."""
        if error.cannot_start and error.side == "head":
            raise UnmeasurableError(f"{error}.") from error
        at_fault = part.at_hand or part.left[0]
        self._deaths[at_fault] = self._deaths.get(at_fault, 0) + 1
        if error.cannot_start:
            self._give_up(part.left, error.side, ABSENT, str(error))
        elif self._deaths[at_fault] >= MOST_DEATHS:
            # Two workers that never came to a case would not come to the next one either.
            lost = [part.at_hand] if part.at_hand else part.left
            self._give_up(lost, error.side, "error", f"{error}, twice")
        else:
            event = {"event": "relaunch", "pair": part.pair, "case": part.at_hand, "side": error.side}
            self.samples_file.append({**event, "reason": str(error)})
        part.left = [case for case in part.left if case not in self.left_out]
        part.at_hand = None

    def _give_up(self, cases: Iterable[str], side: Side, outcome: str, reason: str) -> None:
        for case in list(cases):
            self.note_outcome(case, side, outcome, reason)

    def note_outcome(self, case: str, side: Side, outcome: str, reason: str) -> None:
        self.left_out.add(case)
        self.samples_file.append({"event": "outcome", "case": case, "side": side, "outcome": outcome, "reason": reason})


@dataclass
class _PairPart:
    """What is left of one launch pair, through all the processes that it takes."""

    measuring: Measuring
    stage: int
    pair: int
    left: list[str]
    draw: Draw
    at_hand: str | None = None
    _sentinel_seconds: dict[tuple[str, Side], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.left)
        self._with_sentinels = {self.left[place] for place in (0, count // 2, count - 1)} if count else set()
        self._all = list(self.left)

    def measure(self) -> None:
        """Launch both sides and measure what is left; raises WorkerError as soon as one of them fails."""
        measuring = self.measuring
        trees: dict[Side, Path] = {"base": measuring.trees.base, "head": measuring.trees.head}
        with launched(trees, measuring.tasks, self.draw) as workers:
            self._agree_on_cases(workers)
            for case in list(self.left):
                self.at_hand = case
                measuring.watch.case_begins(case, self._all.index(case))
                self._measure_case(case, workers)
                self.left.remove(case)
                self.at_hand = None
            if measuring.counts:
                measuring.count_cases([case for case in self._all if case not in measuring.left_out], workers)

    def _agree_on_cases(self, workers: Mapping[Side, Worker]) -> None:
        """Leave out what one side does not have, or has under the same id as something else; tell both the order."""
        measuring = self.measuring
        for side, answer in self._receive_all(workers).items():
            there: Json = answer["ready"]
            for case in list(self.left):
                reason = self._why_absent(case, there.get(measuring.own_ids[side][case]))
                if reason:
                    measuring.note_outcome(case, side, ABSENT, reason)
                    self.left.remove(case)
        for side, worker in workers.items():
            worker.send({"order": [measuring.own_ids[side][case] for case in self.left]})

    def _receive_all(self, workers: Mapping[Side, Worker]) -> dict[Side, Json]:
        """An answer of each side. Raises WorkerError, of two the graver: head's own code that cannot be used."""
        answers: dict[Side, Json] = {}
        troubles: list[WorkerError] = []
        for side, worker in workers.items():
            try:
                answers[side] = worker.receive(self.measuring.start_seconds)
            except WorkerError as error:
                troubles.append(error)
        if troubles:
            raise max(troubles, key=lambda error: (error.cannot_start, error.side == "head"))
        return answers

    def _why_absent(self, case: str, identity: Json | None) -> str | None:
        if identity is None:
            return "its model/ does not know a value of this case"
        difference = identity_difference(
            *(
                {name: value for name, value in fields.items() if name not in self.measuring.differing_fields}
                for fields in (identity, self.measuring.identities[case])
            )
        )
        return f"under this id it measures something else: {difference}" if difference else None

    def _measure_case(self, case: str, workers: Mapping[Side, Worker]) -> None:
        measuring = self.measuring
        answers = self._receive_all(workers)
        line = None
        if all("warm" in answer for answer in answers.values()):
            round_seconds = min(answer["round_seconds"] for answer in answers.values())
            with self._on_the_same_cores(case, workers) as cores:
                line = {**self._measure_rounds(case, workers, round_seconds), "cores": cores}
        warm = {side: workers[side] for side, answer in answers.items() if "warm" in answer}
        # To both before either answers: who is let go first builds its next case first, and waits longer for it.
        for worker in warm.values():
            worker.send({"enough": True})
        answers.update(self._receive_all(warm))
        for side, answer in answers.items():
            if answer["outcome"] is not None:
                measuring.note_outcome(case, side, answer["outcome"]["outcome"], answer["outcome"]["reason"])
        if line is not None and case not in measuring.left_out:
            measuring.samples_file.append(line)

    @contextmanager
    def _on_the_same_cores(self, case: str, workers: Mapping[Side, Worker]) -> Iterator[list[int] | None]:
        """Both workers on cores drawn for this case.

        Left to the scheduler either process stays on a core of its own, and whoever else slows one of the two is
        taken for a difference of the code. Only once a case is warm: its threads are there then, and nobody waits for
        a core while both sides build.
        """
        measuring = self.measuring
        if measuring.threads is None:
            yield None
            return
        cores = draw_cores(measuring.seed, self.pair, case, processors_for(measuring.threads), measuring.threads)
        for worker in workers.values():
            keep_on(worker.process_id, cores)
        try:
            yield cores
        finally:
            for worker in workers.values():
                let_go(worker.process_id)

    def _measure_rounds(self, case: str, workers: Mapping[Side, Worker], round_seconds: float) -> Json:
        unmeasured = 1 if round_seconds < PRIMED_BELOW_SECONDS else 0
        patience_seconds = self.measuring.answer_seconds + 100 * round_seconds
        quadruple_seconds = round_seconds * sum(unmeasured + rounds for _, rounds in turns(ORDERS[0]))
        orders = draw_quadruples(self.measuring.seed, self.pair, case, quadruple_count(quadruple_seconds))
        line: Json = {"stage": self.stage, "pair": self.pair, "case": case, "orders": orders}
        line.update({f"{side}{clock}seconds": [] for side in SIDES for clock in ("_", "_cpu_")})
        if unmeasured:
            for order in orders[:SETTLING_QUADRUPLES]:
                self._measure_quadruple(order, workers, unmeasured, patience_seconds)
        for order in orders:
            quadruple = self._measure_quadruple(order, workers, unmeasured, patience_seconds)
            for name, seconds in quadruple.items():
                line[name].append(seconds)
        if case in self._with_sentinels:
            self._measure_sentinels(workers, orders[0])
        return line

    def _measure_quadruple(
        self, order: str, workers: Mapping[Side, Worker], unmeasured: int, patience_seconds: float
    ) -> dict[str, list[float]]:
        quadruple: dict[str, list[float]] = {}
        for side, rounds in turns(order):
            answer = workers[side].ask({"rounds": rounds, "unmeasured": unmeasured}, patience_seconds)
            quadruple.setdefault(f"{side}_seconds", []).extend(answer["seconds"])
            quadruple.setdefault(f"{side}_cpu_seconds", []).extend(answer["cpu_seconds"])
            self.measuring.idle_cpu_seconds += answer["idle_cpu_seconds"]
            self.measuring.turns += 1
        return quadruple

    def _measure_sentinels(self, workers: Mapping[Side, Worker], order: str) -> None:
        for name in SENTINELS:
            for side, count in turns(order):
                answer = workers[side].ask({"sentinel": name, "count": count}, self.measuring.answer_seconds)
                self._sentinel_seconds.setdefault((name, side), []).extend(answer["seconds"])

    def write_sentinels(self) -> None:
        for (name, side), seconds in self._sentinel_seconds.items():
            event = {"event": "sentinel", "stage": self.stage, "pair": self.pair, "name": name, "side": side}
            self.measuring.samples_file.append({**event, "seconds": seconds})


def turns(order: str) -> list[tuple[Side, int]]:
    """Who works, and how many rounds on end: "ABBA" is base, then head twice, then base."""
    first, second = SIDES if order == "ABBA" else SIDES[::-1]
    return [(first, 1), (second, 2), (first, 1)]
