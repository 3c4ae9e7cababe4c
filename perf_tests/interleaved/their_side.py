"""Inside a worker of the gate, tests of the user's: pytest runs them by their configuration, on the calls asked for.

Their session is whole, with fixtures, conftest and plugins, but that `benchmark` blocks in the middle of a test until
the gate has enough rounds of it. No torch, unless the tests load it.
"""

import gc
import inspect
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from timeit import default_timer
from typing import Any

import pytest

# No hook of pytest-benchmark stands between `benchmark(f)` and its rounds, so both ways to call it are replaced.
from pytest_benchmark.fixture import BenchmarkFixture, PauseInstrumentation
from pytest_benchmark.stats import Metadata

from perf_tests_suite.perf_tests.bench.workers import Channel, ClosedError, last_error_line, lines_not_compiled
from perf_tests_suite.perf_tests.hardware.clocks import time
from perf_tests_suite.perf_tests.interleaved.observer import Recorder
from perf_tests_suite.perf_tests.records.record import Json
from perf_tests_suite.perf_tests.user_code.named import stray

WARM_SECONDS = 0.2
"""A test is called for so long before it is measured, twice at least."""

LONG_SECONDS = 1.0
"""A longer first call is not repeated to see what a test runs, where more than one round is asked for."""

NOT_ASKED = dict.fromkeys(
    ("benchmark_skip", "benchmark_only", "benchmark_disable", "benchmark_autosave", "benchmark_save", "benchmark_json",
     "benchmark_compare", "benchmark_compare_fail", "benchmark_histogram", "benchmark_cprofile", "maxfail", "basetemp",
     "usepdb", "lf", "failedfirst", "stepwise", "codspeed"),
) | {"benchmark_enable": True, "continue_on_collection_errors": True}  # fmt: skip
"""Options of theirs, perhaps from their configuration, that would disarm the gate, end it, or write beside it."""

COPIES = 2**24
"""Bytes of the sentinel of memory."""


def serve_tests(channel: Channel, task: Json, recorder: Recorder | None = None) -> str | None:
    """Serve the tests of `task` until the gate has enough of each; None, or why there was nothing to serve.

    With a `recorder` they are not measured: each is called a few times, and what that was is told; nor are they where
    the task is to count what they compile.
    """
    plugin = TheirSide(channel, task, recorder)
    sys.argv[:] = [str(Path(sys.executable).with_name("pytest")), *task["words"]]  # as tests of theirs may read it
    BenchmarkFixture.__call__ = plugin.benchmark  # type: ignore[method-assign]  # whatever fixture of theirs wraps it
    BenchmarkFixture.pedantic = plugin.pedantic  # type: ignore[method-assign]
    code = pytest.main(["-p", "benchmark", *task["words"]], plugins=[plugin])  # also where no plugin is loaded unasked
    if plugin.was_ready:
        return None
    sys.stdout.flush()
    said = os.pread(1, 1 << 20, 0).decode(errors="replace")  # the log
    return plugin.named_from_the_tree(plugin.trouble or _why_nothing_ran(said) or f"pytest ended with {code}")


def _why_nothing_ran(printed: str) -> str:
    """What pytest said of a conftest that cannot be imported, of an unknown option, or last."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("ImportError while loading conftest"):
            return f"{line.rstrip('.')}: {lines[-1].removeprefix('E').strip()}"
        if words := line.partition(": error: ")[2]:
            return words
    return last_error_line(printed).removeprefix("ERROR: ")


class NotServedError(Exception):
    """A test that the gate cannot measure; the message says why."""


@dataclass
class Calls:
    """What a test hands to `benchmark`."""

    target: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    setup: Callable[[], Any] | None = None
    teardown: Callable[..., Any] | None = None
    disable_gc: bool = False
    result: Any = None
    """What the last call returned."""

    def round(self, calls: int) -> tuple[float, float]:
        """Run so many calls; wall and CPU seconds of all, without set-up and teardown of each."""
        if self.setup is None and self.teardown is None:
            return self._timed(calls)
        timed = [self._timed(1) for _ in range(calls)]
        return sum(wall for wall, _ in timed), sum(cpu for _, cpu in timed)

    def _timed(self, calls: int) -> tuple[float, float]:
        args, kwargs = self.args, self.kwargs
        if self.setup is not None and (made := self.setup()):
            if args or kwargs:
                raise TypeError("Can't use `args` or `kwargs` if `setup` returns the arguments.")
            args, kwargs = made
        target, collects = self.target, gc.isenabled()
        self.result = None  # the former one, of which nothing may be freed within a round
        if self.disable_gc:
            gc.disable()
        try:
            with PauseInstrumentation():
                wait_for_device()
                cpu, wall = time.process_time(), time.perf_counter()
                for _ in range(calls):
                    result = target(*args, **kwargs)
                wait_for_device()
                seconds = time.perf_counter() - wall, time.process_time() - cpu
        finally:
            if collects:
                gc.enable()
        self.result = result
        if self.teardown is not None:
            self.teardown(*args, **kwargs)
        return seconds


def wait_for_device() -> None:
    """Wait for a GPU that the tests use."""
    if uses_gpu():
        sys.modules["torch"].cuda.synchronize()


def uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())


def why_not_served(item: pytest.Item) -> str | None:
    """Why a test is refused before it runs; None for any other."""
    marks = [mark for mark in item.iter_markers() if "benchmark" in mark.name]
    fixtures = getattr(item, "fixturenames", ())
    if "benchmark" not in fixtures and "codspeed_benchmark" in fixtures:
        return "it uses the fixture `codspeed_benchmark`; the gate serves `benchmark`"
    if "benchmark" not in fixtures:
        return "it has the mark without the fixture `benchmark`" if marks else None
    function = getattr(item, "obj", None)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is async; call the loop within a plain function, as in `benchmark(asyncio.run, ...)`"
    return None


PORT_IN_USE = "address already in use"
"""What the system says, in any case of letters, of a port that somebody has."""

OWN_TIMER = "it has a timer of its own; the gate compares by its clocks alone"


@dataclass(eq=False)  # pytest keeps its plugins in sets
class TheirSide:
    """Runs the tests in the gate's order, and their calls on request."""

    channel: Channel
    task: Json
    recorder: Recorder | None = None
    was_ready: bool = False
    trouble: str = ""
    """Why pytest could not collect."""
    outcome: Json | None = None
    """Why the current test has no rounds."""
    _failed: dict[str, str] = field(default_factory=dict)
    """Why a file was not collected."""
    _skipped: dict[str, str] = field(default_factory=dict)
    """Why a file skips all of its tests."""
    _test: str = ""
    _calls: Calls | None = None
    _found: dict[str, Json] = field(default_factory=dict)
    """What a rehearsal found, by test."""

    # The session.

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Change options before any plugin is configured: pytest-codspeed would replace `benchmark`."""
        if getattr(config.option, "dist", "no") != "no" or getattr(config.option, "numprocesses", None):
            self.trouble = "tests that run side by side, as pytest-xdist runs them, disturb each other; add -n 0"
            raise pytest.UsageError(self.trouble)
        vars(config.option).update({name: value for name, value in NOT_ASKED.items() if hasattr(config.option, name)})
        os.environ.pop("CODSPEED_ENV", None)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        # It would count the other side's turns.
        session.config.pluginmanager.unregister(name="timeout")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            why = last_error_line(report.longreprtext).removeprefix("E").strip()
            self._failed[report.nodeid] = self.named_from_the_tree(why)
        elif report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self._skipped[report.nodeid] = why.removeprefix("Skipped: ")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Tell the gate which tests there are, then keep those that it asks for, in its order."""
        yield
        if (file := stray()) is not None:
            self.trouble = f"it imports {file} of the working tree, which would be measured as both sides"
            raise pytest.UsageError(self.trouble)
        refused = {item.nodeid: why for item in items if (why := why_not_served(item))}
        tests = {item.nodeid: item for item in items if "benchmark" in getattr(item, "fixturenames", ())}
        option = config.option
        self.was_ready = True
        self.channel.send({
            "ready": {name: self._identity(item) for name, item in tests.items() if name not in refused},
            "refused": refused,
            "failed": self._failed,
            "skipped": self._skipped,
            "others": len(items) - len({*tests, *refused}),
            "files": sorted(self._files(config, items)),
            "root": os.path.relpath(config.rootpath),
            "is_restricted": bool(option.keyword or option.markexpr or getattr(option, "deselect", None)),
        })  # fmt: skip
        items[:] = [tests[name] for name in self.channel.receive()["order"]]
        gc.collect()
        gc.freeze()  # else each collection walks all that was imported

    def named_from_the_tree(self, words: str) -> str:
        """Return these words with files by their names in the tree."""
        return words.replace(f"{Path(self.task['tree']).resolve()}/", "")

    @staticmethod
    def _identity(item: pytest.Item) -> Json:
        mark = item.get_closest_marker("benchmark")
        return {"group": mark.kwargs.get("group") if mark else None, "module": item.nodeid.rpartition("::")[0]}

    def _files(self, config: pytest.Config, items: Sequence[pytest.Item]) -> Iterator[str]:
        """The files that tests are written in, by their names in the tree."""
        tree = Path(self.task["tree"])
        plugins = (getattr(plugin, "__file__", None) or "" for plugin in config.pluginmanager.get_plugins())
        written = {item.path for item in items} | {Path(file) for file in plugins if file.endswith("conftest.py")}
        return (str(path.resolve().relative_to(tree)) for path in written if path.resolve().is_relative_to(tree))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.outcome, self._test, self._calls = None, item.nodeid, None
        result = yield
        if self._calls is None and self.outcome is None:
            self.outcome = {"outcome": "unsupported", "reason": "it passed without a call of `benchmark`"}
        if self._tells_at_the_end:
            self._found.setdefault(item.nodeid, {})["outcome"] = self.outcome
        else:
            with suppress(ClosedError):
                self.channel.send({"done": item.nodeid, "outcome": self.outcome})
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not report.passed and self.outcome is None:
            error = call.excinfo.value if call.excinfo is not None else None
            if isinstance(error, NotServedError) or report.skipped:
                why = error if not report.skipped or error is None else f"skipped: {getattr(error, 'msg', error)}"
                self.outcome = {"outcome": "unsupported", "reason": str(why)}
            else:
                crash = getattr(report.longrepr, "reprcrash", None)
                lines = (crash.message if crash else report.longreprtext).strip().splitlines()
                # Of a fixture that there is none of, the line that says so.
                words = next((line[1:].strip() for line in lines if line.startswith("E ")), lines[0])
                raised = [(crash.path, crash.lineno)] if crash else []
                of_user = lines_not_compiled(crash.message if crash else "")
                place = "".join(f"{os.path.relpath(file)}:{line}: " for file, line in (of_user or raised)[-1:])
                self.outcome = {"outcome": "error", "reason": self.named_from_the_tree(f"{place}{words}")}
                if PORT_IN_USE in (report.longreprtext + report.capstderr + report.caplog).lower():
                    why = "both sides run it at once, and it binds a port that is taken; let it bind port 0"
                    said = f"{why} ({self.outcome['reason']})"
                    self.outcome = {"outcome": "unsupported", "reason": said, "is_of_both": True}
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        result = yield
        with suppress(ClosedError):
            if self._tells_at_the_end and self.was_ready:
                seen = self.recorder.observation().as_json if self.recorder is not None else {}
                self.channel.send({"tests": self._found, **seen})
            elif self.was_ready:
                self.channel.receive()  # the gate hangs up
        return result

    # The fixture.

    @property
    def benchmark(self) -> Callable[..., Any]:
        def call(fixture: BenchmarkFixture, function_to_benchmark: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self._serve(fixture, Calls(function_to_benchmark, args, kwargs))

        return call

    @property
    def pedantic(self) -> Callable[..., Any]:
        def call(
            fixture: BenchmarkFixture, target: Any, args: Any = (), kwargs: Any = None, setup: Any = None,
            teardown: Any = None, rounds: int = 1, warmup_rounds: int = 0, iterations: int = 1,
        ) -> Any:  # fmt: skip
            if setup is not None and iterations > 1:
                raise ValueError("Can't use more than 1 `iterations` with a `setup` function.")
            calls = Calls(target, args, kwargs or {}, setup, teardown)
            return self._serve(fixture, calls, is_single=rounds * iterations == 1)

        return call

    def _serve(self, fixture: Any, calls: Calls, is_single: bool = False) -> Any:
        """Warm the calls up and run as many as the gate asks for; the result of the last one.

        Of a test that calls once what a second call raises is its own fault.
        """
        if self._calls is not None:
            raise NotServedError("it uses its fixture `benchmark` twice")
        if fixture._timer is not default_timer:
            raise NotServedError(OWN_TIMER)
        fixture._mode, calls.disable_gc = "benchmark(...)", bool(fixture._disable_gc)
        self._calls = calls
        try:
            serve = self._measure if not self._tells_at_the_end else self._rehearse if self.recorder else self._count
            seconds = serve(calls, is_single)
        except Exception:
            fixture.has_error = True
            raise
        fixture.stats = Metadata(fixture, iterations=1, options={})
        for one in seconds:
            fixture.stats.update(one)
        return calls.result

    def _first_calls(self, calls: Calls, is_single: bool, least_seconds: float) -> list[tuple[float, float, float]]:
        """Wall and CPU seconds of calls, and those with set-up, for so long.

        Twice at least, but where they are only rehearsed once, if one takes long and more are asked for.
        """
        start, timed = time.perf_counter(), list[tuple[float, float, float]]()
        while len(timed) < 2 or time.perf_counter() - start < least_seconds:
            if timed and not (least_seconds or is_single) and timed[0][0] > LONG_SECONDS:
                break
            began = time.perf_counter()
            try:
                wall, cpu = calls.round(1)
            except Exception as error:
                if is_single and len(timed) == 1:
                    raise NotServedError(
                        f"it asks for one round, and a second call raises {type(error).__name__}: {error}; give it a "
                        "`setup`"
                    ) from error
                raise
            timed.append((wall, cpu, time.perf_counter() - began))
        return timed

    @property
    def _tells_at_the_end(self) -> bool:
        """Whether nothing is measured."""
        return self.recorder is not None or "counts" in self.task

    def _count(self, calls: Calls, is_single: bool) -> list[float]:
        from perf_tests_suite.perf_tests.predict.compiling import counted_call  # late: it loads torch

        start = time.perf_counter()
        self._found[self._test] = counted_call(lambda: calls.round(1), (Path(self.task["tree"]).resolve(),))
        return [time.perf_counter() - start]

    def _rehearse(self, calls: Calls, is_single: bool) -> list[float]:
        if "torch._dynamo" in sys.modules:
            from perf_tests_suite.perf_tests.interleaved.their_counters import forget_what_is_compiled

            forget_what_is_compiled()
        timed = self._first_calls(calls, is_single, 0.0)
        wall, cpu, _ = timed[-1]
        found = self._found[self._test] = {"cores": 1 if uses_gpu() else max(1, round(cpu / wall))}
        if "torch" in sys.modules:
            from perf_tests_suite.perf_tests.interleaved.their_counters import counted  # late: it loads torch

            found |= counted(lambda: calls.round(1))
        return [wall for wall, _, _ in timed]

    def _measure(self, calls: Calls, is_single: bool) -> list[float]:
        timed, all_seconds = self._first_calls(calls, is_single, WARM_SECONDS), list[float]()
        answer: Json = {
            "warm": self._test, "round_seconds": min(whole for _, _, whole in timed),
            "call_seconds": min(wall for wall, _, _ in timed),
        }  # fmt: skip
        while True:
            idle_start = time.process_time()
            self.channel.send(answer)
            request = self.channel.receive()
            idle_cpu_seconds = time.process_time() - idle_start
            if "enough" in request:
                return all_seconds or [wall for wall, _, _ in timed]
            if "sentinel" in request:
                work = Calls(sentinels()[request["sentinel"]])
                # The first is dropped: the test has left its own data in the caches.
                seconds = [work.round(1)[0] for _ in range(request["count"] + 1)][1:]
                answer = {"seconds": [round(one, 9) for one in seconds]}
                continue
            count = request["calls"]
            for _ in range(request["unmeasured"]):
                calls.round(count)
            rounds = [calls.round(count) for _ in range(request["rounds"])]
            wall, cpu = ([one[clock] / count for one in rounds] for clock in (0, 1))
            all_seconds += wall
            # Of rounds that wait for a GPU, CPU time is that of a thread that spins.
            answer = {
                "seconds": wall, "cpu_seconds": None if uses_gpu() else cpu, "idle_cpu_seconds": idle_cpu_seconds,
            }  # fmt: skip


# Frozen work that no change of theirs can affect: if it changes, the machine did.


def sentinels() -> dict[str, Callable[[], object]]:
    """Return it by its bound; each takes a few milliseconds."""
    if not _sentinels:
        source, target, factor = bytes(COPIES), bytearray(COPIES), 3**40_000

        def copy() -> None:
            target[:] = source

        def count_in_python() -> int:
            total = 0
            for step in range(60_000):
                total += step & 7
            return total

        _sentinels.update(arithmetic=lambda: factor * factor, memory=copy, interpreter=count_in_python)
    return _sentinels


_sentinels: dict[str, Callable[[], object]] = {}
