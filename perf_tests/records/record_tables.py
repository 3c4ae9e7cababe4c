"""Every table that one record has something for, each with the conditions of the record below it."""

from dataclasses import replace

from perf_tests.records.cells import cells_of
from perf_tests.records.conditions import commit_of, date_of, machine_line
from perf_tests.records.kernel_tables import attention_part_table, kernel_passes, kernel_table, share_table
from perf_tests.records.record import Json
from perf_tests.records.tables import (
    Table,
    attention_memory_table,
    attention_table,
    memory_table,
    precision_table,
    timing_table,
)

OF_CELLS = (timing_table, precision_table, memory_table, attention_table, attention_memory_table)
OF_KERNELS = (share_table, kernel_table, attention_part_table)


def tables_of(record: Json, name: str) -> list[Table]:
    """In the order of the text; `name` is what people call the record."""
    cells, passes = cells_of(record), kernel_passes(record)
    built = [*(build(cells) for build in OF_CELLS), *(build(passes) for build in OF_KERNELS)]
    facts = (machine_line(record), f"record {name}", commit_of(record), date_of(record))
    source = ", ".join(fact for fact in facts if fact)
    return [replace(table, notes=(*table.notes, source)) for table in built if table is not None]
