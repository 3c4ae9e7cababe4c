"""Every table that one record has rows for, with the record's conditions below."""

from dataclasses import replace

from perf_tests.records.record import Json
from perf_tests.views.tables.cells import cells_of, pass_cells
from perf_tests.views.tables.conditions import commit_of, date_of, machine_line
from perf_tests.views.tables.kernels import KERNEL_TABLES
from perf_tests.views.tables.memory import MEMORY_TABLES
from perf_tests.views.tables.table import Table
from perf_tests.views.tables.timing import TIMING_TABLES
from perf_tests.views.tables.warmup import WARMUP_TABLES

OF_PASSES = {"kernels": KERNEL_TABLES, "memory": MEMORY_TABLES, "warmup": WARMUP_TABLES}


def tables_of(record: Json, name: str) -> list[Table]:
    """In the order of a write-up; `name` is the record's."""
    cells = cells_of(record)
    built = [build(cells) for build in TIMING_TABLES]
    for extra_pass, builders in OF_PASSES.items():
        passed = pass_cells(record, extra_pass)
        built += [build(passed) for build in builders]
    facts = (machine_line(record), f"record {name}", commit_of(record), date_of(record))
    source = ", ".join(fact for fact in facts if fact)
    return [replace(table, notes=(*table.notes, source)) for table in built if table is not None]
