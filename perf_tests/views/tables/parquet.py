"""The table `cases` as a Parquet file, where pyarrow is installed."""

import io
from collections.abc import Sequence

from perf_tests.views.tables.case_choice import ChoiceError
from perf_tests.views.tables.case_columns import COLUMNS, SPEEDUP
from perf_tests.views.tables.cases import Row


def as_parquet(rows: Sequence[Row], names: Sequence[str]) -> bytes:
    """A column keeps its type where all its cells are null. Raises ChoiceError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ChoiceError(
            "--format parquet needs pyarrow, which is not installed; `pip install pyarrow`, or choose csv or jsonl."
        ) from error
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    kinds = {**COLUMNS, SPEEDUP.name: SPEEDUP}
    schema = pyarrow.schema([(name, types[kinds[name].kind]) for name in names])
    content = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), content)
    return content.getvalue()
