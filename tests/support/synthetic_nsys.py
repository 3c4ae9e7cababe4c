"""Small exports of Nsight Systems by hand, in its documented schema: one round of one layer in a process of its own."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

PROCESS = 77
MAIN, AUTOGRAD = PROCESS * 2**24 + 100, PROCESS * 2**24 + 101
OURS, OTHERS = 3, 0

SGEMM, EXP, COPY = "ampere_sgemm_128x64_tn", "void vectorized_elementwise_kernel<4, exp_kernel_cuda>", "direct_copy"


class Export:
    """A database that grows row by row; times are nanoseconds. `old` is an export without what came later."""

    def __init__(self, path: Path, old: bool = False) -> None:
        self.database = sqlite3.connect(path)
        self.old = old
        self.correlations: Iterator[int] = count(1)
        self.strings: dict[str, int] = {}
        kernel = "start INT, end INT, correlationId INT, streamId INT"
        kernel += ", name TEXT" if old else ", globalPid INT, demangledName INT, shortName INT, graphNodeId INT"
        self.database.executescript(
            f"""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({kernel});
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
                (start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT, returnValue INT);
            CREATE TABLE NVTX_EVENTS
                (start INT, end INT, eventType INT, rangeId INT, text TEXT, globalTid INT, textId INT, domainId INT);
            """
        )

    def string(self, value: str) -> int:
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 1
            self.insert("StringIds", self.strings[value], value)
        return self.strings[value]

    def insert(self, table: str, *row: object) -> None:
        self.database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def range(self, name: str, start: int, end: int | None, thread: int = MAIN, domain: int = OURS) -> None:
        """Registered strings, as the package nvtx makes them, are in `textId`."""
        self.insert("NVTX_EVENTS", start, end, 59, None, None, thread, self.string(name), domain)

    def kernel(self, name: str, launched: int, start: int, end: int, thread: int = MAIN) -> None:
        names = (thread // 2**24 * 2**24, self.string(name), self.string(name[:9]), None)
        activity = (start, end, self.call(launched, thread), 7)
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", *activity, *((name,) if self.old else names))

    def call(self, start: int, thread: int = MAIN) -> int:
        """The correlation of a call that takes 3 us with what it starts."""
        row = (start, start + 3000, 0, thread, correlation := next(self.correlations))
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", *row, self.string("cudaLaunchKernel_v7000"), 0)
        return correlation

    def copy_to_device(self, launched: int, start: int, end: int, size: int) -> None:
        columns = "start INT, end INT, correlationId INT, globalPid INT, copyKind INT, bytes INT"
        self.database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns})")
        self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, self.call(launched), PROCESS * 2**24, 1, size)

    def finish(self) -> None:
        self.database.commit()
        self.database.close()


@contextmanager
def one_round(path: Path) -> Iterator[Export]:
    """An export of a round of 100 us, to be filled."""
    export = Export(path)
    export.range("round", 0, 100_000)
    yield export
    export.finish()


def one_layer(path: Path, old: bool = False) -> Path:
    """A forward pass whose kernels run long after their launch, and a backward pass from autograd's thread."""
    export = Export(path, old)
    export.insert("NVTX_EVENTS", 0, None, 75, None, "transformer-perf-tests", MAIN, None, OURS)
    for name, start, end in (
        ("warm-up", 0, 90_000), ("round", 100_000, 1_000_000), ("forward", 105_000, 200_000),
        ("block 0", 110_000, 190_000), ("attention", 112_000, 188_000), ("scores", 115_000, 130_000),
        ("softmax", 135_000, 150_000), ("value_product", 155_000, 170_000), ("backward", 210_000, 900_000),
    ):  # fmt: skip
        export.range(name, start, end)
    export.range("somebody else's", 100_000, 1_000_000, domain=OTHERS)
    for kernel in (
        (SGEMM, 10_000, 20_000, 80_000), (SGEMM, 120_000, 300_000, 340_000), (EXP, 140_000, 340_000, 400_000),
        (SGEMM, 160_000, 400_000, 440_000), (SGEMM, 500_000, 510_000, 590_000, AUTOGRAD),
        (COPY, 600_000, 610_000, 630_000, AUTOGRAD),
    ):  # fmt: skip
        export.kernel(*kernel)
    export.database.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
    export.insert("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION", "3.11.0")
    export.finish()
    return path


def without_table(path: Path, table: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"DROP TABLE {table}")
        database.commit()
    return path
