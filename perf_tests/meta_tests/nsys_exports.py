"""Small exports of Nsight Systems by hand, in its documented schema: one round of one layer in a process of its own."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
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
            self.database.execute("INSERT INTO StringIds VALUES (?, ?)", (self.strings[value], value))
        return self.strings[value]

    def range(self, name: str, start: int, end: int | None, thread: int = MAIN, domain: int = OURS) -> None:
        """Registered strings, as the package nvtx makes them, are in `textId`."""
        row = (start, end, 59, None, thread, self.string(name), domain)
        self.database.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId, domainId) VALUES (?,?,?,?,?,?,?)",
            row,
        )

    def domain(self, name: str, number: int) -> None:
        self.database.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES (0, 75, ?, ?, ?)",
            (name, MAIN, number),
        )

    def kernel(self, name: str, launched: int, start: int, end: int, thread: int = MAIN) -> None:
        correlation = next(self.correlations)
        self.call(launched, launched + 3000, thread, correlation)
        if self.old:
            row: tuple[object, ...] = (start, end, correlation, 7, name)
        else:
            row = (start, end, correlation, 7, thread // 2**24 * 2**24, self.string(name), self.string(name[:9]), None)
        marks = ", ".join("?" * len(row))
        self.database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", row)

    def call(self, start: int, end: int, thread: int, correlation: int, name: str = "cudaLaunchKernel_v7000") -> None:
        row = (start, end, 0, thread, correlation, self.string(name), 0)
        self.database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?,?)", row)

    def copy_to_device(self, launched: int, start: int, end: int, size: int) -> None:
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS CUPTI_ACTIVITY_KIND_MEMCPY"
            " (start INT, end INT, correlationId INT, globalPid INT, copyKind INT, bytes INT)"
        )
        correlation = next(self.correlations)
        self.call(launched, launched + 3000, MAIN, correlation, "cudaMemcpyAsync_v3020")
        row = (start, end, correlation, PROCESS * 2**24, 1, size)
        self.database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?)", row)

    def version(self, name: str, value: str) -> None:
        self.database.execute("CREATE TABLE IF NOT EXISTS META_DATA_EXPORT (name TEXT, value TEXT)")
        self.database.execute("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", (name, value))

    def finish(self) -> None:
        self.database.commit()
        self.database.close()


def one_layer(path: Path, old: bool = False) -> Path:
    """A forward pass whose kernels run long after their launch, and a backward pass from autograd's thread."""
    export = Export(path, old)
    export.domain("transformer-perf-tests", OURS)
    export.range("warm-up", 0, 90_000)
    export.kernel(SGEMM, 10_000, 20_000, 80_000)
    export.range("round", 100_000, 1_000_000)
    export.range("forward", 105_000, 200_000)
    export.range("block 0", 110_000, 190_000)
    export.range("attention", 112_000, 188_000)
    export.range("scores", 115_000, 130_000)
    export.range("somebody else's", 100_000, 1_000_000, domain=OTHERS)
    export.kernel(SGEMM, 120_000, 300_000, 340_000)
    export.range("softmax", 135_000, 150_000)
    export.kernel(EXP, 140_000, 340_000, 400_000)
    export.range("value_product", 155_000, 170_000)
    export.kernel(SGEMM, 160_000, 400_000, 440_000)
    export.range("backward", 210_000, 900_000)
    export.kernel(SGEMM, 500_000, 510_000, 590_000, AUTOGRAD)
    export.kernel(COPY, 600_000, 610_000, 630_000, AUTOGRAD)
    export.version("EXPORT_SCHEMA_VERSION", "3.11.0")
    export.finish()
    return path


def without_table(path: Path, table: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"DROP TABLE {table}")
        database.commit()
    return path
